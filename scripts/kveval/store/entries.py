"""The entries of a store, and the pointers to it below results/: listed, and each verified on request.

An entry is verified by its checksums, description, id and hardware.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from kveval.host import hardware
from kveval.host.findings import pluralize
from kveval.host.hashing import content_hash
from kveval.store.lock import LOCK
from kveval.store.run_file import (
    IMPORTED,
    POINTER,
    SCHEMA,
    RunFileError,
    read_run,
    recorded_cell,
)
from kveval.store.store import (
    DAMAGED,
    FAILED,
    PARTIAL,
    REASON,
    RUN,
    SUMS,
    Defect,
    StoreError,
    extra_files,
    listed,
    verify_file,
)

INCOMING, PRUNED = "incoming", "pruned"
_ID = re.compile(r"[0-9a-f]{16}")
_RUN_FOLDER = re.compile(r"run-(?P<run>[1-9][0-9]*)(@.+)?")
_REST = re.compile(r"(?P<id>[0-9a-f]{16})-run-(?P<run>[1-9][0-9]*)(@[^/]*|-.*)?")
State = Literal["sound", "damaged", "arriving", "kept"]
"""arriving: it may still be being copied. kept: it has a problem that setting it aside would not solve."""
Arriving = Callable[[Path, StoreError], bool]
_FIXES: Mapping[Defect, str] = {
    "unreadable": "chmod -R g+rX the entry as its owner, or see to the disk",
    "original missing": "put the results that were imported back, or import them with copy: true",
}


@dataclass(frozen=True)
class StoreEntry:
    """A folder of the store that holds a run, or was meant to: id and run come from its name, None without."""

    place: Path
    measurement: str | None
    run: int | None

    @property
    def facts(self) -> Mapping[str, Any]:
        """The content of run.json; empty where it cannot be read."""
        try:
            content = json.loads((self.place / RUN).read_text())
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    @property
    def label(self) -> str:
        """The run in words: by its description, else by its id."""
        facts = self.facts
        cell = recorded_cell(facts)
        if cell is not None:
            kind = "i" if facts.get("engine") == IMPORTED else ""
            return f"{cell.path} run {kind}{facts.get('run', self.run)}"
        return (
            f"{self.measurement or self.place.name} run {self.run}"
            if self.run
            else self.place.name
        )

    def bytes(self) -> int:
        """The size of its files, without what links refer to."""
        return size_bytes(self.place)


@dataclass(frozen=True)
class Contents:
    """Everything in a store's folder, by its place there; `strange` is what does not belong there."""

    measurements: list[StoreEntry] = field(default_factory=list)
    incoming: list[StoreEntry] = field(default_factory=list)
    partial: list[StoreEntry] = field(default_factory=list)
    failed: list[StoreEntry] = field(default_factory=list)
    damaged: list[StoreEntry] = field(default_factory=list)
    pruned: list[StoreEntry] = field(default_factory=list)
    strange: list[Path] = field(default_factory=list)


@dataclass(frozen=True)
class Pointer:
    """A measurement.json below the results; `place` is None where it cannot be read."""

    path: Path
    measurement: str | None
    run: int | None
    place: Path | None
    sha256: str | None

    @property
    def cell(self) -> str:
        """MODEL/SCENARIO/BLOCKS run N, by the pointer's own path."""
        parts = self.path.parts[-5:-1]
        return f"{'/'.join(parts[:-1])} run {parts[-1].removeprefix('run-')}"


def contents(root: Path) -> Contents:
    """List a store. An empty one for a folder that is not there."""
    result = Contents()
    for path in _children(root):
        if path.name == LOCK or (path.name.startswith(".") and path.is_file()):
            continue
        if _ID.fullmatch(path.name) and path.is_dir():
            _add_runs(path, result.measurements, result.strange)
        elif path.name in (INCOMING, PRUNED) and path.is_dir():
            for folder in _children(path):
                _add_runs(folder, getattr(result, path.name), result.strange)
        elif path.name in (PARTIAL, FAILED, DAMAGED) and path.is_dir():
            getattr(result, path.name).extend(
                _rest(folder) for folder in _children(path)
            )
        else:
            result.strange.append(path)
    return result


def pointers(roots: Iterable[Path], store: Path, base: Path) -> list[Pointer]:
    """List what points to stored runs below `roots`, folders of results; paths in them are relative to `base`."""
    files = {path: None for root in roots for path in _pointer_files(root, store)}
    return [_pointer(path, base) for path in files]


def size_bytes(path: Path) -> int:
    """Return the bytes of a file, or of the files below a folder, without what links refer to."""
    total = 0
    for file in [path, *path.rglob("*")]:
        try:
            stat = file.lstat()
        except OSError:
            continue
        total += 0 if file.is_dir() and not file.is_symlink() else stat.st_size
    return total


def size_text(size: float) -> str:
    """Return a number of bytes with its unit, such as 1.5 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def written_s(entry: StoreEntry) -> float:
    """Return when an entry was finished, epoch seconds: a time that copies keep."""
    for name in (SUMS, RUN, REASON, "."):
        try:
            return (entry.place / name).stat().st_mtime
        except OSError:
            continue
    return 0.0


def _add_runs(folder: Path, entries: list[StoreEntry], strange: list[Path]) -> None:
    if not (folder.is_dir() and _ID.fullmatch(folder.name)):
        strange.append(folder)
        return
    for path in _children(folder):
        named = _RUN_FOLDER.fullmatch(path.name)
        if named is None or not path.is_dir():
            strange.append(path)
        else:
            entries.append(StoreEntry(path, folder.name, int(named["run"])))


def _rest(folder: Path) -> StoreEntry:
    named = _REST.fullmatch(folder.name)
    return StoreEntry(
        folder, named and named["id"], int(named["run"]) if named else None
    )


def _children(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _pointer_files(results: Path, store: Path) -> Iterator[Path]:
    within = os.path.realpath(store)
    for folder, folders, files in os.walk(results):
        folders[:] = sorted(
            name for name in folders if os.path.realpath(Path(folder, name)) != within
        )
        if POINTER in files:
            yield Path(folder, POINTER)


def _pointer(path: Path, base: Path) -> Pointer:
    try:
        content = json.loads(path.read_text())
        return Pointer(
            path,
            str(content["measurement"]),
            int(content["run"]),
            base / content["path"],
            str(content["sha256"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Pointer(path, None, None, None, None)


@dataclass(frozen=True)
class Verdict:
    """The state of an entry, and why; `extra` are files that its checksums do not cover.

    `code`: a fixed name for the kind of reason; `wrong`: how many of its files do not match its checksums.
    """

    entry: StoreEntry
    state: State
    reason: str = ""
    fix: str = ""
    code: str = ""
    wrong: int = 0
    extra: list[str] = field(default_factory=list)
    bytes: int = 0
    label: str = ""
    fingerprint: str = ""
    imported: bool = False


def judge(entry: StoreEntry, arriving: Arriving) -> Verdict:
    """Check an entry thoroughly; `arriving` tells whether an error may come from an unfinished copy."""
    facts = entry.facts
    errors = _wrong_files(entry.place)
    state, reason, fix, code = (
        _wrong_state(entry, errors, arriving) if errors else _state(entry, facts)
    )
    recorded = facts.get("hardware")
    return Verdict(
        entry,
        state,
        reason,
        fix,
        code,
        len(errors),
        extra=[]
        if state == "arriving"
        else [name for name in extra_files(entry.place) if name != REASON],
        bytes=size_bytes(entry.place),
        label=entry.label,
        fingerprint=str(recorded.get("fingerprint", ""))
        if isinstance(recorded, dict)
        else "",
        imported=facts.get("engine") == IMPORTED,
    )


def _wrong_state(
    entry: StoreEntry, errors: Sequence[StoreError], arriving: Arriving
) -> tuple[State, str, str, str]:
    """Return the state of an entry with wrong files, the reason, what mends it, and the reason's code."""
    # Files that are still arriving or cannot be read are not damage; a single file that differs is.
    worst = next(
        (error for error in errors if error.defect in ("differs", "missing")), errors[0]
    )
    others = len(errors) - 1
    more = f", and {pluralize(others, 'more file')}" if others else ""
    reason = f"{worst.within(entry.place)}{more}"
    if worst.defect in _FIXES:
        return "kept", reason, _FIXES[worst.defect], worst.code
    return (
        ("arriving" if arriving(entry.place, worst) else "damaged"),
        reason,
        "",
        worst.code,
    )


def _state(entry: StoreEntry, facts: Mapping[str, Any]) -> tuple[State, str, str, str]:
    """Return the state of an entry whose files are as its checksums say, as `_wrong_state` does."""
    if facts.get("schema", SCHEMA) != SCHEMA:
        reason = f"{RUN} has schema {facts['schema']}, this version knows {SCHEMA}"
        return "kept", reason, "use the version that wrote it", "other_schema"
    try:
        read_run(entry.place)
    except RunFileError as error:
        return "damaged", error.within(entry.place), "", "no_description"
    fingerprint = str(facts.get("hardware", {}).get("fingerprint"))
    folder = rf"run-{entry.run}(@{re.escape(fingerprint)}(-[0-9]+)?)?"
    hashed, covered = content_hash(specification(facts)), listed(entry.place)
    reports = [level["report"] for level in facts["levels"] if level.get("report")]
    uncovered = [report for report in reports if report not in covered]
    described = f"{RUN} describes run {facts['run']} of {facts['measurement']}"
    elsewhere = f"{RUN} names hardware {fingerprint}, its folder another"
    for wrong, reason, code in (
        (
            (facts["measurement"], facts["run"]) != (entry.measurement, entry.run),
            described,
            "other_run",
        ),
        (not re.fullmatch(folder, entry.place.name), elsewhere, "other_hardware"),
        (
            hashed != entry.measurement,
            f"the specification in {RUN} hashes to {hashed}",
            "other_specification",
        ),
        (
            bool(uncovered),
            f"{RUN} refers to {', '.join(uncovered[:1])}, which is missing",
            "report_missing",
        ),
    ):
        if wrong:
            return "damaged", reason, "", code
    with contextlib.suppress(KeyError, TypeError):
        computed = hardware.fingerprint(facts["hardware"])
        if facts["engine"] == "local" and computed != fingerprint:
            # How fingerprints are computed may change with the program, so this need not be damage.
            reason = f"its hardware has the fingerprint {computed}, but {fingerprint} is recorded"
            return (
                "kept",
                reason,
                "find out which program wrote it; it is adopted all the same",
                "other_fingerprint",
            )
    return "sound", "", "", ""


def _wrong_files(place: Path) -> list[StoreError]:
    try:
        names = listed(place)
    except StoreError as error:
        return [error]
    errors = []
    for name, expected in names.items():
        try:
            verify_file(place, name, expected)
        except StoreError as error:
            errors.append(error)
    return errors


def specification(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a run's id is the hash of; of an imported run the checksums of its sources and its levels as well."""
    content: dict[str, Any] = facts["specification"]
    if facts["engine"] != IMPORTED:
        return content
    sources = {source["path"]: source["sha256"] for source in facts["sources"]}
    levels = [
        [level["level"], level.get("benchmark", 0), level["status"] == "ok"]
        for level in facts["levels"]
    ]
    return {**content, "sources": sorted(sources.values()), "levels": levels}
