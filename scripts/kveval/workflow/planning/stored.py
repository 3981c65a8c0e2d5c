"""The contents of a store and the pointers into it, as far as a plan needs them: read quickly, not verified."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from kveval.campaign.cell import Cell
from kveval.configuration.config import Config
from kveval.host.hardware import probe
from kveval.store.entries import contents, size_bytes
from kveval.store.run_file import (
    POINTER,
    Run,
    RunFileError,
    pointer_of,
    read_run,
    stored_run,
)
from kveval.store.store import SUMS
from kveval.tables.levels.pilot import frozen_levels


def facts_of(place: Path) -> Run | None:
    """Return a stored run's description; None if it cannot be read, as such a run is planned again."""
    try:
        return read_run(place)
    except RunFileError:
        return None


@dataclass(frozen=True)
class StoredRuns:
    """The runs of one measurement id: `places` by number of run."""

    places: Mapping[int, tuple[Path, ...]]

    @cached_property
    def first(self) -> Run | None:
        """The description of one of the runs; all have the same specification."""
        found = (facts_of(place) for places in self.places.values() for place in places)
        return next((facts for facts in found if facts is not None), None)

    def runs(self, number: int) -> list[Run]:
        """Return the descriptions of the runs with a number: one for each machine that measured it."""
        found = (facts_of(place) for place in self.places.get(number, ()))
        return [facts for facts in found if facts is not None]

    def bytes(self) -> int:
        """Return the size of one run in bytes."""
        places = next(iter(self.places.values()), ())
        return size_bytes(places[0]) if places else 0


@dataclass(frozen=True)
class StoreIndex:
    """A store by measurement id."""

    index: Mapping[str, StoredRuns] = field(default_factory=dict)

    @classmethod
    def read(cls, root: Path) -> "StoreIndex":
        """Index a store, without runs that are not sealed; empty for a folder that does not exist."""
        places: dict[str, dict[int, tuple[Path, ...]]] = {}
        for entry in contents(root).measurements:
            if (
                entry.measurement is not None
                and entry.run is not None
                and (entry.place / SUMS).is_file()
            ):
                runs = places.setdefault(entry.measurement, {})
                runs[entry.run] = (*runs.get(entry.run, ()), entry.place)
        return cls({name: StoredRuns(runs) for name, runs in places.items()})

    @cached_property
    def by_cell(self) -> dict[Cell, list[Run]]:
        """One run of every measurement id, by its cell."""
        found: dict[Cell, list[Run]] = {}
        for shelf in self.index.values():
            if shelf.first is not None and shelf.first.specification:
                found.setdefault(shelf.first.cell, []).append(shelf.first)
        return found

    def like(self, specification: Mapping[str, Any]) -> Iterator[list[Run]]:
        """Yield lists of runs similar to a specification, most similar first: of its cell, of its arm, of its model.

        Each has one run per id; all are of the same model on the same kind of engine and device.
        """
        cell = specification["cell"]
        for key in _likeness(specification, cell["scenario"], cell["cpu_blocks"]):
            yield self._by_likeness.get(key, [])

    @cached_property
    def _by_likeness(self) -> dict[tuple[Any, ...], list[Run]]:
        found: dict[tuple[Any, ...], list[Run]] = {}
        for facts in self.all():
            for key in _likeness(
                facts.specification, facts.cell.scenario, facts.cell.cpu_blocks
            ):
                found.setdefault(key, []).append(facts)
        return found

    def all(self) -> Iterator[Run]:
        """Yield one run of every measurement id."""
        for several in self.by_cell.values():
            yield from several

    def get(self, measurement: str) -> StoredRuns:
        """Return the runs of a measurement id, none if it was never measured."""
        return self.index.get(measurement, StoredRuns({}))


def stored_runs(root: Path, measurement: str, run: int) -> list[Run]:
    """Return the descriptions of the sealed runs of one measurement with a number; reads nothing else of the store."""
    try:
        folders = list((root / measurement).iterdir())
    except OSError:
        return []
    places = [
        folder for folder in folders if folder.name.partition("@")[0] == f"run-{run}"
    ]
    found = [facts_of(place) for place in places if (place / SUMS).is_file()]
    return [facts for facts in found if facts is not None]


def can_adopt(runs: Iterable[Run], machine: str | None) -> bool:
    """Tell whether a job adopts one of the stored runs of its measurement.

    `machine`: fingerprint of the job's machine, None where it is not known: any run counts then.
    """
    return any(
        machine is None or run.hardware.get("fingerprint") == machine for run in runs
    )


def measuring_hardware(config: Config) -> str | None:
    """Return the fingerprint of the machine that would measure; None on a cluster, which is not asked."""
    return str(probe()["fingerprint"]) if config.campaign.engine == "local" else None


def _likeness(
    specification: Mapping[str, Any], scenario: str, blocks: int
) -> list[tuple[Any, ...]]:
    """Return what runs have in common: a cell, an arm, a model; each on one kind of engine and device."""
    kind = [
        specification.get("model", {}).get("hf_id"),
        *map(specification.get, ("engine", "weights", "build")),
    ]
    return [(*kind, scenario, blocks), (*kind, scenario), (*kind,)]


def frozen(config: Config, results: Path) -> dict[Cell, tuple[int, ...]]:
    """Return the levels that pilots found, by the pilot's cell; nothing where the workload gives its levels."""
    found = {}
    for cell in dict.fromkeys(config.pilot(cell) for cell in config.cells):
        if (
            cell is not None
            and (levels := levels_found(config, cell, results)) is not None
        ):
            found[cell] = levels
    return found


def levels_found(config: Config, pilot: Cell, results: Path) -> tuple[int, ...] | None:
    """Return the levels that the pilot on a cell found; None before, and where another pilot than the planned did."""
    levels = results / pilot.path / "pilot" / "levels.json"
    if named_measurement(levels) != _pilot_measurement(config, pilot):
        return None
    return frozen_levels(levels)


@cache
def _pilot_measurement(config: Config, pilot: Cell) -> str:
    return config.pilot_specification(pilot).measurement_id


def named_measurement(path: Path | str) -> str | None:
    """Return the id that a pointer or a pilot's levels name; None if the file is absent, "" if it cannot be read."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123  (of thousands of files, Path.open takes the most time)
            return str(json.loads(file.read())["measurement"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def read_pointers(
    results: Path, runs: Iterable[tuple[Cell, int]]
) -> dict[tuple[str, int], str]:
    """Return (cell's path, run) -> measurement id of every run that has a pointer below `results`."""
    found = {}
    for cell, run in runs:
        # An unreadable pointer counts as one to something else than what is planned.
        named = named_measurement(pointer_of(results, cell, run))
        if named is not None:
            found[cell.path, run] = named
    return found


def deleted_runs(
    results: Path, pointers: Iterable[tuple[str, int]]
) -> frozenset[tuple[str, int]]:
    """Return which runs, as (cell's path, run), have a pointer to a folder that no store has any more."""
    return frozenset(
        (path, run)
        for path, run in pointers
        if not _is_stored(results / path / f"run-{run}" / POINTER)
    )


def _is_stored(pointer: Path) -> bool:
    try:
        return stored_run(pointer).is_dir()
    except RunFileError:
        # Another question: such a pointer names no measurement, and is planned for that.
        return True
