"""Puts one imported run into the measurement store: links or copies its files, adds checksums and a description."""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from kveval.host.errors import Failure
from kveval.host.files import sha256_file, write_json
from kveval.importing.archives import Span, covering, is_tar, spans
from kveval.importing.counters import counters_of
from kveval.importing.plan import LevelPlan, RunPlan
from kveval.importing.trees import ARCHIVES_NAME
from kveval.spec.config import measurement_id
from kveval.store.run_file import IMPORTED, SCHEMA
from kveval.store.store import Key, Store, pointer

# A sample before a level and one after it, so that counters have a value at both of its ends.
_MARGIN_S = 30.0


class ImportFailure(Failure):
    """A run cannot be imported; the message says which file and why."""


@dataclass
class _Sources:
    """The files of a run: name in the store -> the original, relative to the tree."""

    files: dict[str, str] = field(default_factory=dict)
    recording: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def add(self, name: str, path: str) -> str:
        self.files[name] = path
        return name

    def record(self, source: str) -> None:
        if source not in self.recording:
            self.recording.append(source)


def import_run(plan: RunPlan, store: Store, output: Path) -> None:
    """Write the pointer `output` to an imported run, found in the store or put there now.

    Raises ImportFailure when a file that the plan names is gone or cannot be read.
    """
    tree = Path(plan.tree)
    sources = _sources(plan, tree)
    digests = _digests(sources.files, tree)
    originals = {path: digests[name] for name, path in sources.files.items()}
    identity = {**plan.description["specification"], "sources": sorted(originals.values()), "levels": _identity(plan)}
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


def _identity(plan: RunPlan) -> list[list[Any]]:
    return [[level.level, level.benchmark, level.report is not None] for level in plan.levels]


def _sources(plan: RunPlan, tree: Path) -> _Sources:
    """Choose the files: the levels' reports, and the archives that cover them."""
    sources = _Sources()
    reports: dict[str, str] = {}
    for level in plan.levels:
        if level.report is None:
            continue
        if level.report not in reports:
            name = level.report.rpartition("/")[2]
            suffix = name[name.rindex(".json") :]
            reports[level.report] = sources.add(f"raw/guidellm-{level.level:04d}{suffix}", level.report)
        for path in level.beside:
            sources.add(f"raw/beside/{level.level:04d}/{path.rpartition('/')[2]}", path)
        _own_archives(level, tree, sources)
    if plan.shared_archives:
        _shared_archives(plan, tree, sources)
    return sources


def _own_archives(level: LevelPlan, tree: Path, sources: _Sources) -> None:
    tars = [path for path in level.archives if is_tar(path)]
    for number, path in enumerate(tars):
        extra = f"-{number}" if number else ""
        sources.record(sources.add(f"raw/pcp-{level.level:04d}{extra}{_tar_suffix(path)}", path))
    found, problems = spans(tree, [path for path in level.archives if path not in tars])
    sources.notes += problems
    chosen = covering(found, *_window(level))
    if found and not chosen:
        sources.notes.append(f"level {level.level}: none of its {len(found)} archives covers its time")
    _link(chosen, f"{level.level:04d}", sources)


def _shared_archives(plan: RunPlan, tree: Path, sources: _Sources) -> None:
    """Take the archives that belong to no single result: those of the time of any level, and whole tars."""
    paths = plan.shared_archives
    for number, path in enumerate(path for path in paths if is_tar(path)):
        sources.record(sources.add(f"raw/pcp-shared-{number}{_tar_suffix(path)}", path))
    found, problems = spans(tree, [path for path in paths if not is_tar(path)])
    sources.notes += problems
    chosen = {span.base: span for level in plan.levels if level.report for span in covering(found, *_window(level))}
    _link(list(chosen.values()), "shared", sources)


def _link(chosen: Sequence[Span], folder: str, sources: _Sources) -> None:
    for span in chosen:
        sources.hosts.add(span.host)
        for path in span.paths:
            below = path.rpartition(f"{ARCHIVES_NAME}/")[2]
            sources.add(f"raw/pcp/{folder}/{below}", path)
    if chosen:
        sources.record("raw/pcp")


def _tar_suffix(path: str) -> str:
    name = path.rpartition("/")[2].lower()
    return name[name.rindex(".tar") :] if ".tar" in name else f".{name.rpartition('.')[2]}"


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
    good = [level for level in plan.levels if level.report is not None]
    window = (min(_window(level)[0] for level in good), max(_window(level)[1] for level in good))
    counters, note = counters_of(plan, [scratch / source for source in sources.recording], window)
    if len(sources.hosts) > 1:
        hosts = ", ".join(sorted(sources.hosts))
        sources.notes.append(f"recorded on several hosts ({hosts}), which are not distinguished")
    return {
        **json.loads(json.dumps(plan.description)),
        "schema": SCHEMA,
        "measurement": key.measurement,
        "run": plan.run,
        "engine": IMPORTED,
        "levels": [_level(level, names, counters.get(level.level, {})) for level in plan.levels],
        # Only a recording of the server's counters can prove that the arm was active.
        "exercised": {"required": plan.required} if counters else {"required": [], "unread": plan.required},
        "recording": {
            "sources": sources.recording,
            "window": window,
            "hosts": sorted(sources.hosts),
            "notes": [*sources.notes, *note],
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
