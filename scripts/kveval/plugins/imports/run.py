"""Puts one imported run into the measurement store: links or copies its files, adds checksums and a description.

The PCP archives that cover its levels are chosen by the times that the archives themselves name, never by file names.
"""

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kveval.configuration.config import measurement_id
from kveval.host.errors import Failure
from kveval.host.files import is_lfs_pointer, sha256_file, write_json
from kveval.load.reports import ReportFileError
from kveval.load.reports.reading import read_report
from kveval.plugins.imports.counters import counters_of
from kveval.plugins.imports.describe import ReadLevel, describe_run
from kveval.plugins.imports.facts import ReportSummary, read_server_facts
from kveval.plugins.imports.plan import LevelPlan, RunPlan
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

    `paths` are as given.
    """

    base: str
    host: str
    start_ns: int
    end_ns: int | None
    paths: tuple[str, ...]


@dataclass
class _Sources:
    """The files of a run: name in the store -> the original; `recording`: names of archives in the store."""

    files: dict[str, str] = field(default_factory=dict)
    recording: dict[str, None] = field(default_factory=dict)
    hosts: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)


def import_run(plan: RunPlan, store: Store, output: Path) -> None:
    """Write the pointer `output` to an imported run, found in the store or put there now.

    Raises ImportFailure when a file that the plan names is gone or cannot be read, and when no level has a result.
    """
    levels = _read_levels(plan)
    description = describe_run(plan, levels)
    sources = _sources(levels)
    digests = _digests(sources.files)
    # A file that several levels name counts once.
    originals = {path: digests[name] for name, path in sources.files.items()}
    identity = {
        **description["specification"],
        "sources": sorted(originals.values()),
        "levels": [level.identity for level in levels],
    }
    key = Key(
        measurement_id(identity),
        plan.run,
        str(description["hardware"]["fingerprint"]),
    )
    # Keeps others from deleting the entry before the pointer to it exists.
    with store.no_deletions():
        place = store.find(key)
        if place is None:
            scratch = store.scratch(key)
            try:
                _place_files(sources.files, scratch, copy=plan.copy)
                described = _described(plan, levels, key, sources, digests, scratch)
                write_json(scratch / "run.json", {**description, **described})
                place = store.commit(scratch, key, known=digests)
            except BaseException:
                shutil.rmtree(scratch, ignore_errors=True)
                raise
        write_json(output, pointer(place, key))


def _read_levels(plan: RunPlan) -> list[ReadLevel]:
    """Read the reports and what says how the servers ran. Raises ImportFailure where no level has a result."""
    reports: dict[str, ReportSummary | ReportFileError] = {}
    levels = []
    for level in plan.levels:
        if level.error:
            levels.append(ReadLevel(level, error=level.error))
            continue
        if level.report not in reports:
            reports[level.report] = _read_facts(level.report)
        levels.append(_read_level(level, reports[level.report]))
    if all(level.facts is None for level in levels):
        reasons = "".join(f"\n  {level.error}" for level in levels)
        raise ImportFailure(
            f"{plan.sheet}: no level of run {plan.run} of {plan.cell.path} has a result; `use` no leaves it out:{reasons}",
            path=plan.sheet,
        )
    return levels


def _read_facts(report: str) -> ReportSummary | ReportFileError:
    try:
        return ReportSummary.from_report(read_report(Path(report)))
    except ReportFileError as error:
        if error.code == "unreadable":
            message = f"{error}; plan again"
            raise ImportFailure(message, path=Path(report)) from error
        return error


def _read_level(level: LevelPlan, report: ReportSummary | ReportFileError) -> ReadLevel:
    """Return a level as its report has it, or as one that failed, with the reason."""
    if isinstance(report, ReportFileError):
        return ReadLevel(level, error=str(report))
    if level.benchmark >= len(report.levels):
        message = f"{level.report} has no benchmark {level.benchmark}, only {len(report.levels)} from 0 on"
        raise ImportFailure(message, path=Path(level.report))
    facts = report.levels[level.benchmark]
    if facts.error is not None:
        return ReadLevel(level, error=facts.error)
    server = read_server_facts([Path(path) for path in level.server_files])
    return ReadLevel(level, facts, report.guidellm, server)


def _sources(levels: Sequence[ReadLevel]) -> _Sources:
    """Choose the files: the levels' reports, and the archives that cover them."""
    sources = _Sources()
    good = [level for level in levels if level.facts is not None]
    reports: set[str] = set()
    users: dict[str, list[ReadLevel]] = {}
    for level in good:
        plan, number = level.plan, f"{level.plan.level:04d}"
        if plan.report not in reports:
            reports.add(plan.report)
            name = f"raw/guidellm-{number}{_suffix(plan.report, '.json')}"
            sources.files[name] = plan.report
        sources.files |= {
            f"raw/beside/{number}/{path.rpartition('/')[2]}": path
            for path in plan.server_files
        }
        if plan.recording:
            users.setdefault(plan.recorded_as, []).append(level)
    shared = [named for named, its in users.items() if len(its) > 1]
    for named, its in users.items():
        whose = f"{its[0].plan.level:04d}"
        if named in shared:
            whose = f"shared{shared.index(named) or ''}"
        _choose(whose, its, sources)
    return sources


def _choose(whose: str, levels: Sequence[ReadLevel], sources: _Sources) -> None:
    """Take the archives of the time of any of the levels, and whole tars; `whose` tells them apart in the store."""
    recording = levels[0].plan.recording
    tars = [path for path, name in recording.items() if is_tar(name)]
    for number, path in enumerate(tars):
        extra = f"-{number}" if number else ""
        name = f"raw/pcp-{whose}{extra}{_suffix(path.lower(), '.t')}"
        sources.files[name] = path
        sources.recording[name] = None
    archive_spans, problems = spans([path for path in recording if path not in tars])
    sources.notes += problems
    chosen = {
        span.base: span
        for level in levels
        for span in covering(archive_spans, *_window(level))
    }
    if archive_spans and not chosen:
        numbers = ", ".join(str(level.plan.level) for level in levels)
        sources.notes.append(
            f"level {numbers}: none of its {len(archive_spans)} archives covers its time"
        )
    for span in chosen.values():
        sources.hosts.add(span.host)
        sources.recording["raw/pcp"] = None
        sources.files |= {
            f"raw/pcp/{whose}/{recording[path]}": path for path in span.paths
        }


def spans(paths: Iterable[str]) -> tuple[list[Span], list[str]]:
    """Return the archives among `paths` in order of their starts, and what of them cannot be read, in words."""
    bases: dict[str, dict[str, Member]] = {}
    for path in paths:
        folder, _, name = path.rpartition("/")
        if (parts := split_name(name)) is not None:
            base, part, suffix = parts
            bases.setdefault(f"{folder}/{base}", {})[path] = Member(
                Path(path), suffix, part
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
            pointer = any(is_lfs_pointer(_head(Path(path))) for path in members)
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
    """Return the end of a file's name from the last `begin` on, such as .json.zst or .tar.xz; "" without it."""
    name = path.rpartition("/")[2]
    _, suffix, rest = name.rpartition(begin)
    return f"{suffix}{rest}" if suffix else ""


def _window(level: ReadLevel) -> tuple[float, float]:
    """Return the time that a recording has to cover, epoch seconds."""
    assert level.facts is not None, "a level that failed has no time"
    return level.facts.start - _MARGIN_S, level.facts.end + _MARGIN_S


def _digests(files: Mapping[str, str]) -> dict[str, str]:
    digests = {}
    for name, path in files.items():
        try:
            digests[name] = sha256_file(Path(path))
        except OSError as error:
            message = f"{path}: cannot be read ({error.strerror}); plan again"
            raise ImportFailure(message, path=Path(path)) from error
    return digests


def _place_files(files: Mapping[str, str], scratch: Path, *, copy: bool) -> None:
    """Put the files below `scratch`, as copies or as links; links are relative if the file's path is."""
    for name, path in files.items():
        target, original = scratch / name, Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if copy:
            shutil.copy2(original, target)
        elif original.is_absolute():
            target.symlink_to(original)
        else:
            # A run's folder lies as deep in the store as the one it is prepared in, so the link stays right.
            target.symlink_to(
                os.path.relpath(original.absolute(), target.parent.absolute())
            )


def _described(
    plan: RunPlan,
    levels: Sequence[ReadLevel],
    key: Key,
    sources: _Sources,
    digests: Mapping[str, str],
    scratch: Path,
) -> dict[str, Any]:
    """Return the parts of run.json that name files of the store, which lie in `scratch`."""
    names = {path: name for name, path in sources.files.items()}
    windows = [_window(level) for level in levels if level.facts is not None]
    window = (min(begin for begin, _ in windows), max(end for _, end in windows))
    recording = [scratch / source for source in sources.recording]
    counters, notes = counters_of(levels, plan.required, recording, window)
    if len(sources.hosts) > 1:
        hosts = ", ".join(sorted(sources.hosts))
        notes = [
            f"recorded on several hosts ({hosts}), which are not distinguished",
            *notes,
        ]
    return {
        "schema": SCHEMA,
        "measurement": key.measurement,
        "run": plan.run,
        "levels": [
            _level(level, names, counters.get(level.plan.level, {})) for level in levels
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
                "path": path,
                "bytes": Path(path).stat().st_size,
                "sha256": digests[name],
            }
            for name, path in sources.files.items()
        ],
        "sheet": plan.sheet,
        "copied": plan.copy,
    }


def _level(
    level: ReadLevel, names: Mapping[str, str], counters: Mapping[str, Any]
) -> dict[str, Any]:
    plan, facts = level.plan, level.facts
    if facts is None:
        return {
            "level": plan.level,
            "status": "failed",
            "error": level.error,
            "place": plan.report,
        }
    return {
        "level": plan.level,
        "status": "ok",
        "error": None,
        "start": facts.start,
        "end": facts.end,
        "report": names[plan.report],
        "benchmark": plan.benchmark,
        "strategy": facts.strategy,
        "counters": dict(counters),
        "command": [],
        "place": plan.report,
    }
