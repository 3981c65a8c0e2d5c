"""Puts one imported run into the measurement store: links or copies its files, adds checksums and a description."""

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from kveval.host.errors import Failure
from kveval.host.files import sha256_file, write_json
from kveval.importing.archives import covering, spans
from kveval.importing.counters import counters_of
from kveval.importing.plan import LevelPlan, RunPlan
from kveval.importing.trees import ARCHIVES_NAME
from kveval.pcp.archive.tars import is_tar
from kveval.spec.config import measurement_id
from kveval.store.run_file import SCHEMA
from kveval.store.store import Key, Store, pointer

# A sample before a level and one after it, so that counters have a value at both of its ends.
_MARGIN_S = 30.0


class ImportFailure(Failure):
    """A run cannot be imported; the message says which file and why."""


@dataclass
class _Sources:
    """The files of a run: name in the store -> the original, relative to the tree; `recording`: names of archives."""

    files: dict[str, str] = field(default_factory=dict)
    recording: dict[str, None] = field(default_factory=dict)
    hosts: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)


def import_run(plan: RunPlan, store: Store, output: Path) -> None:
    """Write the pointer `output` to an imported run, found in the store or put there now.

    Raises ImportFailure when a file that the plan names is gone or cannot be read.
    """
    tree = Path(plan.tree)
    sources = _sources(plan, tree)
    digests = _digests(sources.files, tree)
    # A file that several levels name counts once.
    originals = {path: digests[name] for name, path in sources.files.items()}
    levels = [[level.level, level.benchmark, level.report is not None] for level in plan.levels]
    identity = {**plan.description["specification"], "sources": sorted(originals.values()), "levels": levels}
    key = Key(measurement_id(identity), plan.run, str(plan.description["hardware"]["fingerprint"]))
    # Keeps others from deleting the entry before the pointer to it exists.
    with store.using():
        place = store.find(key)
        if place is None:
            scratch = store.scratch(key)
            try:
                _place_files(sources.files, tree, scratch, copy=plan.copy)
                write_json(scratch / "run.json", _description(plan, key, sources, digests, scratch))
                place = store.commit(scratch, key, known=digests)
            except BaseException:
                shutil.rmtree(scratch, ignore_errors=True)
                raise
        write_json(output, pointer(place, key))


def plan_from(content: Mapping[str, Any]) -> RunPlan:
    """Return the plan that a job was given as plain values."""
    return msgspec.convert(content, RunPlan)


def _sources(plan: RunPlan, tree: Path) -> _Sources:
    """Choose the files: the levels' reports, and the archives that cover them."""
    sources = _Sources()
    good = [level for level in plan.levels if level.report is not None]
    reports: set[str] = set()
    for level in good:
        report, number = str(level.report), f"{level.level:04d}"
        if report not in reports:
            reports.add(report)
            sources.files[f"raw/guidellm-{number}{_suffix(report, '.json')}"] = report
        sources.files |= {f"raw/beside/{number}/{path.rpartition('/')[2]}": path for path in level.beside}
        _choose(number, level.archives, [level], tree, sources)
    _choose("shared", plan.shared_archives, good, tree, sources)
    return sources


def _choose(whose: str, paths: Sequence[str], levels: Sequence[LevelPlan], tree: Path, sources: _Sources) -> None:
    """Take the archives of the time of any of the levels, and whole tars; `whose` tells them apart in the store."""
    tars = [path for path in paths if is_tar(path.rpartition("/")[2])]
    for number, path in enumerate(tars):
        extra = f"-{number}" if number or whose == "shared" else ""
        name = f"raw/pcp-{whose}{extra}{_suffix(path.lower(), '.t')}"
        sources.files[name] = path
        sources.recording[name] = None
    found, problems = spans(tree, [path for path in paths if path not in tars])
    sources.notes += problems
    chosen = {span.base: span for level in levels for span in covering(found, *_window(level))}
    if found and not chosen:
        numbers = ", ".join(str(level.level) for level in levels)
        sources.notes.append(f"level {numbers}: none of its {len(found)} archives covers its time")
    for span in chosen.values():
        sources.hosts.add(span.host)
        sources.recording["raw/pcp"] = None
        sources.files |= {f"raw/pcp/{whose}/{path.rpartition(f'{ARCHIVES_NAME}/')[2]}": path for path in span.paths}


def _suffix(path: str, begin: str) -> str:
    """Return the end of a file's name from the last `begin` on, such as .json.zst or .tar.xz."""
    name = path.rpartition("/")[2]
    return name[name.rindex(begin) :]


def _window(level: LevelPlan) -> tuple[float, float]:
    return (level.start or 0.0) - _MARGIN_S, (level.end or 0.0) + _MARGIN_S


def _digests(files: Mapping[str, str], tree: Path) -> dict[str, str]:
    digests = {}
    for name, path in files.items():
        try:
            digests[name] = sha256_file(tree / path)
        except OSError as error:
            said = f"{tree / path}: cannot be read ({error.strerror}); plan again"
            raise ImportFailure(said, path=tree / path) from error
    return digests


def _place_files(files: Mapping[str, str], tree: Path, scratch: Path, *, copy: bool) -> None:
    """Put the files below `scratch`, as copies or as links; links are relative if the tree's path is."""
    for name, path in files.items():
        target, original = scratch / name, tree / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if copy:
            shutil.copy2(original, target)
        elif tree.is_absolute():
            target.symlink_to(original)
        else:
            # A run's folder lies as deep in the store as the one it is prepared in, so the link stays right.
            target.symlink_to(os.path.relpath(original.absolute(), target.parent.absolute()))


def _description(
    plan: RunPlan, key: Key, sources: _Sources, digests: Mapping[str, str], scratch: Path
) -> dict[str, Any]:
    tree = Path(plan.tree)
    names = {path: name for name, path in sources.files.items()}
    windows = [_window(level) for level in plan.levels if level.report is not None]
    window = (min(begin for begin, _ in windows), max(end for _, end in windows))
    counters, notes = counters_of(plan, [scratch / source for source in sources.recording], window)
    if len(sources.hosts) > 1:
        hosts = ", ".join(sorted(sources.hosts))
        notes = [f"recorded on several hosts ({hosts}), which are not distinguished", *notes]
    return {
        **plan.description,
        "schema": SCHEMA,
        "measurement": key.measurement,
        "run": plan.run,
        "levels": [_level(level, names, counters.get(level.level, {})) for level in plan.levels],
        # Only a recording of the server's counters can prove that the arm was active.
        "exercised": {"required": plan.required} if counters else {"required": [], "unread": plan.required},
        "recording": {
            "sources": list(sources.recording),
            "window": window,
            "hosts": sorted(sources.hosts),
            "notes": [*sources.notes, *notes],
        },
        "sources": [
            {"path": (tree / path).as_posix(), "bytes": (tree / path).stat().st_size, "sha256": digests[name]}
            for name, path in sources.files.items()
        ],
        "tree": plan.tree,
        "copied": plan.copy,
    }


def _level(level: LevelPlan, names: Mapping[str, str], counters: Mapping[str, Any]) -> dict[str, Any]:
    if level.report is None:
        return {"level": level.level, "status": "failed", "error": level.error, "place": level.place}
    return {
        "level": level.level,
        "status": "ok",
        "error": None,
        "start": level.start,
        "end": level.end,
        "report": names[level.report],
        "benchmark": level.benchmark,
        "strategy": level.strategy,
        "counters": dict(counters),
        "command": [],
        "place": level.place,
    }
