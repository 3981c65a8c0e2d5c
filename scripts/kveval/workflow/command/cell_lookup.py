"""Finds the cell that a user names: by its path, by a file of its results, or by the id of its measurement.

A cell is looked for in the results of the default campaign, in those below `results/campaigns`, and in the store. It
reads pointers and run.json alone, and imports nothing heavy, because the answer must come at once.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from kveval.campaign.cell import Cell, CellError
from kveval.host.errors import Failure
from kveval.store.run_file import (
    POINTER,
    Run,
    RunFileError,
    read_run,
    renamed,
    scenario_name,
    stored_run,
)

RESULTS, STORE = "results", "results/measurements"
SO_FAR = "so-far"
"""Folder, below a campaign's results, of what was made from the runs that exist."""
LEVELS, PEAK = "levels.csv", "peak.csv"
_ID = re.compile(r"[0-9a-f]{16}")
_MOST_NAMES = 8


class UnknownCell(Failure):
    """A name is that of no cell, or of several; the message has the nearest names."""


@dataclass(frozen=True)
class StoredRun:
    """A run of a cell, and its folder in the store."""

    run: Run
    place: Path


@dataclass(frozen=True)
class CellFolder:
    """A cell below the `results` of a campaign."""

    results: Path
    cell: Cell

    @property
    def folder(self) -> Path:
        """The folder with the pointers to its runs."""
        return self.results / self.cell.path

    @property
    def tables(self) -> Path:
        """The folder with its levels and its peak: those of all runs, else those of the runs so far."""
        so_far = self.results / SO_FAR / self.cell.path
        if not (self.folder / LEVELS).exists() and (so_far / LEVELS).exists():
            return so_far
        return self.folder

    @property
    def exists(self) -> bool:
        """Whether it has a run or a table."""
        return any(self.pointers()) or (self.tables / LEVELS).exists()

    def pointers(self) -> Iterator[Path]:
        """Yield the pointers to its runs, in the order of their names."""
        yield from sorted(self.folder.glob(f"run-*/{POINTER}"))


@dataclass(frozen=True)
class StoredCell:
    """A cell with its runs.

    `source`: where its results are, None where only the store has it; `elsewhere`: further campaigns that have the cell;
    `unreadable`: what is wrong with runs that cannot be read.
    """

    cell: Cell
    source: CellFolder | None
    runs: tuple[StoredRun, ...]
    elsewhere: tuple[Path, ...] = ()
    unreadable: tuple[str, ...] = ()


def find_cell(name: str, working: Path) -> StoredCell:
    """Return the cell that `name` means, for a working folder with results.

    `name`: MODEL/SCENARIO/CPU_BLOCKS, a path of the cell's results or of a run in a store, or a measurement's id.
    Raises UnknownCell, with the nearest names.
    """
    path = Path(name)
    if path.exists():
        return _cell_at(path.absolute(), working)
    if _ID.fullmatch(name):
        return _measurement(working / STORE / name, working)
    cell = _named_cell(name)
    sources = [] if cell is None else _sources(cell, working)
    if sources:
        return replace(
            _from_results(sources[0], working),
            elsewhere=tuple(source.folder for source in sources[1:]),
        )
    return _only_stored(name, working)


def _cell_at(path: Path, working: Path) -> StoredCell:
    for folder in (path, *path.parents):
        if _ID.fullmatch(folder.name):
            return _measurement(folder, working)
        source = _cell_folder(folder)
        if source is not None and source.exists:
            return _from_results(source, working)
    raise UnknownCell(
        f"{path} is not part of a cell's results, which have {LEVELS} or run-N/{POINTER}, nor of a store",
        code="no_cell_there",
    )


def _cell_folder(folder: Path) -> CellFolder | None:
    """Return the cell whose folder, of all runs or of those so far, is named like this."""
    cell = _named_cell("/".join(folder.parts[-3:]))
    if cell is None:
        return None
    results = folder.parents[2]
    if results.name == SO_FAR:
        results = results.parent
    return CellFolder(results, cell)


def _named_cell(name: str) -> Cell | None:
    try:
        return Cell.from_path(name.strip("/"))
    except CellError:
        return None


def _sources(cell: Cell, working: Path) -> list[CellFolder]:
    """Return the cell in every campaign that has it, the default campaign first."""
    folders = [CellFolder(results, cell) for results in _results_folders(working)]
    return [folder for folder in folders if folder.exists]


def _results_folders(working: Path) -> list[Path]:
    results = working / RESULTS
    return [results, *sorted((results / "campaigns").glob("*"))]


def _from_results(source: CellFolder, working: Path) -> StoredCell:
    runs, unreadable = [], []
    for pointer in source.pointers():
        try:
            place = _from_pointer(pointer, working)
            run = renamed(read_run(place), scenario_name(pointer))
        except RunFileError as error:
            unreadable.append(str(error))
        else:
            runs.append(StoredRun(run, place))
    return StoredCell(
        source.cell, source, _in_order(runs), unreadable=tuple(unreadable)
    )


def _from_pointer(pointer: Path, working: Path) -> Path:
    """Return the folder that a pointer names, relative to the folder in which its campaign was run."""
    place = stored_run(pointer)
    for folder in (*pointer.parents, working):
        if (folder / place).is_dir():
            return folder / place
    return place


def _measurement(folder: Path, working: Path) -> StoredCell:
    """Return the cell of a measurement, which is a folder of a store, with its results where a campaign has them."""
    runs, unreadable = _stored_runs(folder)
    if not runs:
        ids = [
            path.name for path in folder.parent.glob("*") if _ID.fullmatch(path.name)
        ]
        raise UnknownCell(
            f"{folder.name}: {'; '.join(unreadable) or 'no such measurement'}"
            + _suggestion(folder.name, ids),
            code="no_such_measurement",
        )
    cell = runs[0].run.cell
    sources = [
        source
        for source in _sources(cell, working)
        if folder.name in map(_named_measurement, source.pointers())
    ]
    return StoredCell(
        cell, sources[0] if sources else None, runs, unreadable=tuple(unreadable)
    )


def _stored_runs(folder: Path) -> tuple[tuple[StoredRun, ...], list[str]]:
    """Return the runs of a measurement, and what is wrong with those that cannot be read."""
    runs, unreadable = [], []
    for place in sorted(folder.glob("run-*")):
        try:
            runs.append(StoredRun(read_run(place), place))
        except RunFileError as error:
            unreadable.append(str(error))
    return _in_order(runs), unreadable


def _in_order(runs: Iterable[StoredRun]) -> tuple[StoredRun, ...]:
    return tuple(sorted(runs, key=lambda stored: (stored.run.run, stored.place)))


def _named_measurement(pointer: Path) -> str:
    """Return the id that a pointer names, "" if it cannot be read."""
    try:
        return str(json.loads(pointer.read_text())["measurement"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _only_stored(name: str, working: Path) -> StoredCell:
    """Return the cell of this name that the store has, and no campaign. Raises UnknownCell."""
    measurements: dict[str, list[Path]] = {}
    for folder in sorted((working / STORE).glob("*")):
        if _ID.fullmatch(folder.name) and (runs := _stored_runs(folder)[0]):
            measurements.setdefault(runs[0].run.cell.path, []).append(folder)
    folders = measurements.get(name.strip("/"), [])
    if len(folders) == 1:
        return _measurement(folders[0], working)
    if folders:
        ids = ", ".join(folder.name for folder in folders)
        raise UnknownCell(
            f"{name}: the store has several measurements of this cell; name one: {ids}",
            code="several_measurements",
        )
    cells = {source.cell.path for source in _all_cells(working)} | measurements.keys()
    raise UnknownCell(
        f"{name}: no such cell in {working / RESULTS} and its store"
        + _suggestion(name, cells),
        code="unknown_cell",
    )


def _all_cells(working: Path) -> Iterator[CellFolder]:
    for results in _results_folders(working):
        for folder in results.glob("*/*/*"):
            source = _cell_folder(folder)
            if source is not None and source.exists:
                yield source


def _suggestion(name: str, names: Iterable[str]) -> str:
    """Return the names most like this one, as the end of a sentence; "" without any."""
    known = sorted(names)
    beginning = [other for other in known if other.startswith(name)]
    like = difflib.get_close_matches(name, known, n=_MOST_NAMES, cutoff=0.4)
    nearest = list(dict.fromkeys([*beginning, *like]))[:_MOST_NAMES]
    return f". The nearest: {', '.join(nearest)}" if nearest else ""
