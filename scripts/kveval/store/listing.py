"""The content of a store, and the pointers to it below results/: listed, not verified."""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kveval.store.lock import LOCK
from kveval.store.run_file import IMPORTED, POINTER
from kveval.store.store import DAMAGED, FAILED, PARTIAL, REASON, RUN, SUMS

INCOMING, PRUNED = "incoming", "pruned"
_ID = re.compile(r"[0-9a-f]{16}")
_RUN_FOLDER = re.compile(r"run-(?P<run>[1-9][0-9]*)(@.+)?")
_REST = re.compile(r"(?P<id>[0-9a-f]{16})-run-(?P<run>[1-9][0-9]*)(@[^/]*|-.*)?")


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
        cell = facts.get("cell")
        if isinstance(cell, dict) and cell.keys() >= {"model", "scenario", "cpu_blocks"}:
            kind = "i" if facts.get("engine") == IMPORTED else ""
            path = f"{cell['model']}/{cell['scenario']}/{cell['cpu_blocks']}"
            return f"{path} run {kind}{facts.get('run', self.run)}"
        return f"{self.measurement or self.place.name} run {self.run}" if self.run else self.place.name

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
    found = Contents()
    for path in _children(root):
        if path.name == LOCK or (path.name.startswith(".") and path.is_file()):
            continue
        if _ID.fullmatch(path.name) and path.is_dir():
            _add_runs(path, found.measurements, found.strange)
        elif path.name in (INCOMING, PRUNED) and path.is_dir():
            for folder in _children(path):
                _add_runs(folder, getattr(found, path.name), found.strange)
        elif path.name in (PARTIAL, FAILED, DAMAGED) and path.is_dir():
            getattr(found, path.name).extend(_rest(folder) for folder in _children(path))
        else:
            found.strange.append(path)
    return found


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


def _add_runs(folder: Path, found: list[StoreEntry], strange: list[Path]) -> None:
    if not (folder.is_dir() and _ID.fullmatch(folder.name)):
        strange.append(folder)
        return
    for path in _children(folder):
        named = _RUN_FOLDER.fullmatch(path.name)
        if named is None or not path.is_dir():
            strange.append(path)
        else:
            found.append(StoreEntry(path, folder.name, int(named["run"])))


def _rest(folder: Path) -> StoreEntry:
    named = _REST.fullmatch(folder.name)
    return StoreEntry(folder, named and named["id"], int(named["run"]) if named else None)


def _children(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _pointer_files(results: Path, store: Path) -> Iterator[Path]:
    within = os.path.realpath(store)
    for folder, folders, files in os.walk(results):
        folders[:] = sorted(name for name in folders if os.path.realpath(Path(folder, name)) != within)
        if POINTER in files:
            yield Path(folder, POINTER)


def _pointer(path: Path, base: Path) -> Pointer:
    try:
        content = json.loads(path.read_text())
        sha256 = content.get("sha256")
        return Pointer(path, str(content["measurement"]), int(content["run"]), base / content["path"], sha256)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Pointer(path, None, None, None, None)
