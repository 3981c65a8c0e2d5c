"""Puts one imported run into the measurement store: links or copies its files, adds checksums and a description.

The PCP archives that cover its levels are chosen by the times that the archives themselves name, never by file names.
"""

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from kveval.configuration.config import measurement_id
from kveval.host.errors import Failure
from kveval.host.files import is_lfs_pointer, sha256_file, write_json
from kveval.importing.counters import counters_of
from kveval.importing.plan import LevelPlan, RunPlan
from kveval.importing.trees import ARCHIVES_NAME
from kveval.store.run_file import SCHEMA
from kveval.store.store import Key, Store, pointer
from pcp_parquet.archive.files import split_name
from pcp_parquet.archive.index import read_index
from pcp_parquet.archive.member import Member
from pcp_parquet.archive.problems import ProblemLog
from pcp_parquet.archive.tars import is_tar

# A sample before a level and one after it, so that counters have a value at both of its ends.
_MARGIN_S = 30.0

# The index of a logger that was killed ends before its data does.
_UNINDEXED_NS = 120 * 10**9


class ImportFailure(Failure):
    """A run cannot be imported; the message says which file and why."""


@dataclass(frozen=True)
class Span:
    """An archive and the time it covers (ns since 1970 UTC); `end_ns` is None if it is not known.

    `paths` are relative to the tree, as given.
    """

    base: str
    host: str
    start_ns: int
    end_ns: int | None
    paths: tuple[str, ...]


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
    levels = [
        [level.level, level.benchmark, level.report is not None]
        for level in plan.levels
    ]
    identity = {
        **plan.description["specification"],
        "sources": sorted(originals.values()),
        "levels": levels,
    }
    key = Key(
        measurement_id(identity),
        plan.run,
        str(plan.description["hardware"]["fingerprint"]),
    )
    # Keeps others from deleting the entry before the pointer to it exists.
    with store.no_deletions():
        place = store.find(key)
        if place is None:
            scratch = store.scratch(key)
            try:
                _place_files(sources.files, tree, scratch, copy=plan.copy)
                write_json(
                    scratch / "run.json",
                    _description(plan, key, sources, digests, scratch),
                )
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
        sources.files |= {
            f"raw/beside/{number}/{path.rpartition('/')[2]}": path
            for path in level.beside
        }
        _choose(number, level.archives, [level], tree, sources)
    _choose("shared", plan.shared_archives, good, tree, sources)
    return sources


def _choose(
    whose: str,
    paths: Sequence[str],
    levels: Sequence[LevelPlan],
    tree: Path,
    sources: _Sources,
) -> None:
    """Take the archives of the time of any of the levels, and whole tars; `whose` tells them apart in the store."""
    tars = [path for path in paths if is_tar(path.rpartition("/")[2])]
    for number, path in enumerate(tars):
        extra = f"-{number}" if number or whose == "shared" else ""
        name = f"raw/pcp-{whose}{extra}{_suffix(path.lower(), '.t')}"
        sources.files[name] = path
        sources.recording[name] = None
    archive_spans, problems = spans(tree, [path for path in paths if path not in tars])
    sources.notes += problems
    chosen = {
        span.base: span
        for level in levels
        for span in covering(archive_spans, *_window(level))
    }
    if archive_spans and not chosen:
        numbers = ", ".join(str(level.level) for level in levels)
        sources.notes.append(
            f"level {numbers}: none of its {len(archive_spans)} archives covers its time"
        )
    for span in chosen.values():
        sources.hosts.add(span.host)
        sources.recording["raw/pcp"] = None
        sources.files |= {
            f"raw/pcp/{whose}/{path.rpartition(f'{ARCHIVES_NAME}/')[2]}": path
            for path in span.paths
        }


def spans(root: Path, paths: Iterable[str]) -> tuple[list[Span], list[str]]:
    """Return the archives among `paths` in order of their starts, and what of them cannot be read, in words."""
    bases: dict[str, dict[str, Member]] = {}
    for path in paths:
        folder, _, name = path.rpartition("/")
        if (parts := split_name(name)) is not None:
            base, part, suffix = parts
            bases.setdefault(f"{folder}/{base}", {})[path] = Member(
                root / path, suffix, part
            )
    result, problems = [], []
    for base, members in sorted(bases.items()):
        labels = [
            label
            for member in members.values()
            if (label := member.label()) is not None
        ]
        if labels:
            first = min(labels, key=lambda label: label.start_ns)
            index = next(
                (member for member in members.values() if member.name == "index"), None
            )
            times = [
                entry.time_ns
                for entry in read_index(index, first.version, ProblemLog())
            ]
            # A logger that was killed before its second entry leaves an index of one, which does not give the end.
            end_ns = max(
                (time for time in times if time > first.start_ns), default=None
            )
            result.append(
                Span(base, first.host, first.start_ns, end_ns, tuple(members))
            )
        else:
            pointer = any(is_lfs_pointer(_head(root / path)) for path in members)
            lacking = (
                "Git LFS pointers, not the files: git lfs pull"
                if pointer
                else "no file starts with a label"
            )
            problems.append(f"{base}: no PCP archive ({lacking})")
    return sorted(result, key=lambda span: (span.start_ns, span.base)), problems


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(64)


def covering(spans: Sequence[Span], start_s: float, end_s: float) -> list[Span]:
    """Return the archives that may hold samples of a window in epoch seconds.

    An archive lasts until its index ends, and at most until the next one of its host begins; one that is alone is taken
    unless it begins after the window.
    """
    start_ns, end_ns = round(start_s * 1e9), round(end_s * 1e9)
    chosen = []
    for number, span in enumerate(spans):
        if span.start_ns > end_ns:
            continue
        later = [
            other.start_ns for other in spans[number + 1 :] if other.host == span.host
        ]
        limits = [min(later)] if later else []
        if span.end_ns is not None and len(spans) > 1:
            limits.append(span.end_ns + _UNINDEXED_NS)
        if not limits or min(limits) >= start_ns:
            chosen.append(span)
    return chosen


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
            message = f"{tree / path}: cannot be read ({error.strerror}); plan again"
            raise ImportFailure(message, path=tree / path) from error
    return digests


def _place_files(
    files: Mapping[str, str], tree: Path, scratch: Path, *, copy: bool
) -> None:
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
            target.symlink_to(
                os.path.relpath(original.absolute(), target.parent.absolute())
            )


def _description(
    plan: RunPlan,
    key: Key,
    sources: _Sources,
    digests: Mapping[str, str],
    scratch: Path,
) -> dict[str, Any]:
    tree = Path(plan.tree)
    names = {path: name for name, path in sources.files.items()}
    windows = [_window(level) for level in plan.levels if level.report is not None]
    window = (min(begin for begin, _ in windows), max(end for _, end in windows))
    counters, notes = counters_of(
        plan, [scratch / source for source in sources.recording], window
    )
    if len(sources.hosts) > 1:
        hosts = ", ".join(sorted(sources.hosts))
        notes = [
            f"recorded on several hosts ({hosts}), which are not distinguished",
            *notes,
        ]
    return {
        **plan.description,
        "schema": SCHEMA,
        "measurement": key.measurement,
        "run": plan.run,
        "levels": [
            _level(level, names, counters.get(level.level, {})) for level in plan.levels
        ],
        # Only a recording of the server's counters can prove that the arm was active.
        "exercised": {"required": plan.required}
        if counters
        else {"required": [], "unread": plan.required},
        "recording": {
            "sources": list(sources.recording),
            "window": window,
            "hosts": sorted(sources.hosts),
            "notes": [*sources.notes, *notes],
        },
        "sources": [
            {
                "path": (tree / path).as_posix(),
                "bytes": (tree / path).stat().st_size,
                "sha256": digests[name],
            }
            for name, path in sources.files.items()
        ],
        "tree": plan.tree,
        "copied": plan.copy,
    }


def _level(
    level: LevelPlan, names: Mapping[str, str], counters: Mapping[str, Any]
) -> dict[str, Any]:
    if level.report is None:
        return {
            "level": level.level,
            "status": "failed",
            "error": level.error,
            "place": level.place,
        }
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
