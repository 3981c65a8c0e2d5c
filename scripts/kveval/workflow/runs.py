"""The runs of a campaign as the rules need them: one record for each, wherever the run is from.

A run is measured, imported, or compared: linked to in the results of another campaign. In a report on the runs so far
every run is one that exists. The records differ in their `source` alone.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
from snakemake.exceptions import WorkflowError

from kveval.campaign.cell import CELL_COLUMNS, Cell
from kveval.configuration.config import Config
from kveval.host.errors import Failure
from kveval.store.run_file import POINTER
from kveval.workflow.compared import CombinedRun, combination, require_measured
from kveval.workflow.elsewhere import RunsElsewhere
from kveval.workflow.planning.due import due_tables
from kveval.workflow.planning.order import planned_runs, priority
from kveval.workflow.planning.stored import (
    can_adopt,
    levels_found,
    measuring_hardware,
    named_measurement,
    stored_runs,
)
from kveval.workflow.plugin import installed
from kveval.workflow.so_far import SoFar, measured_so_far

SO_FAR = "so-far/"
"""Value of the wildcard `so_far` in paths of a report on the runs that exist; it is "" in all other paths."""
PILOT = "pilot"
"""Name of the run that searches the levels of others, and of its folder."""
# More than the priority of any run of a block.
_BEFORE_ALL = 10**13
_LEVELS = "levels.json"

# A plan's objects live until it ends: garbage collection with Python's default thresholds took a sixth of the time.
gc.set_threshold(100_000, 10, 10)


@contextmanager
def as_workflow_error() -> Iterator[None]:
    """Turn a Failure into Snakemake's own error, which ends planning with the message and no traceback."""
    try:
        yield
    except Failure as failure:
        raise WorkflowError(str(failure)) from None


@dataclass(frozen=True)
class MeasuredSource:
    """The source of a run that is measured. `levels`: the file of those that a pilot finds; "" where they are given."""

    levels: str = ""


@dataclass(frozen=True)
class ImportedSource:
    """The source of a run whose files lie in another folder. `plan`: all that importing it needs, as plain values."""

    plan: dict[str, Any]


@dataclass(frozen=True)
class ComparedSource:
    """The source of a run that another campaign has measured."""

    run: CombinedRun
    content: Mapping[str, Any] = field(default_factory=dict)

    @property
    def pointer(self) -> str:
        """The run's pointer in the results of its campaign."""
        return self.run.pointer

    @property
    def inputs(self) -> tuple[str, ...]:
        """The pointer, which has to be there. Raises WorkflowError, which says how to make it, where it is not."""
        with as_workflow_error():
            return (require_measured(self.run),)


@dataclass(frozen=True)
class ExistingSource:
    """The source of a run in a report so far: the campaign's own pointer, and what that says, whose change counts.

    `inputs` are none: an input could make Snakemake measure the run again, which a report must not do; and while a
    campaign is measured, Snakemake has locked its pointers.
    """

    pointer: str
    inputs: tuple[str, ...] = ()

    @property
    def content(self) -> dict[str, Any]:
        """The content of the pointer."""
        return dict(json.loads(Path(self.pointer).read_bytes()))


@dataclass(frozen=True)
class RunRecord:
    """A run.

    `id`: of what defines its measurement, without the levels where a pilot finds them; "" if it was measured elsewhere.
    `name`: of its folder, run-1 if it is measured, run-i1 if it is from elsewhere. `priority`: of its job. `pointer`:
    the file that stands for it in the results. `required`: the counters that its arm requires, as JSON; null for
    an imported run, which has its own.
    """

    id: str
    cell: Cell
    name: str
    priority: int
    pointer: str
    required: str
    source: MeasuredSource | ImportedSource | ComparedSource | ExistingSource

    @property
    def number(self) -> int:
        """The number of the run; 1 for a pilot."""
        return 1 if self.name == PILOT else int(self.name.removeprefix("run-"))


@dataclass(frozen=True, eq=False)
class Runs:
    """The runs of a campaign, and records of others that are requested by path.

    `elsewhere`: the runs that the campaign compares or a plug-in brings, in place of measuring. Records are made when
    they are asked for: a campaign has thousands, and most calls of snakemake concern few.
    """

    config: Config
    elsewhere: RunsElsewhere
    _records: dict[tuple[str, str], RunRecord] = field(default_factory=dict, init=False)
    _required: dict[Cell, str] = field(default_factory=dict, init=False)

    @classmethod
    def of(cls, config: Config, *, jobs_share_folder: bool) -> Runs:
        """Return the runs of a campaign. `jobs_share_folder`: whether the jobs see this machine's folder.

        Raises WorkflowError where jobs without it would need it, and where a file to import is gone.
        """
        with as_workflow_error():
            brought = (plugin.runs(config) for plugin in installed() if plugin.runs)
            elsewhere = (
                combination(config)
                if config.compared
                else next(filter(None, brought), RunsElsewhere())
            )
        if elsewhere.runs and not jobs_share_folder:
            raise WorkflowError(
                f"Campaign {config.campaign.name} reads results that only this machine has: make its report here,"
                " without the profile that runs the analysis elsewhere"
            )
        return cls(config, elsewhere)

    # --- which runs there are

    @cached_property
    def cells(self) -> list[Cell]:
        """The cells that the report is about."""
        return [*self.config.cells, *self.elsewhere.cells]

    @cached_property
    def planned(self) -> list[tuple[Cell, str]]:
        """Every run of the campaign, as its cell and its name."""
        measured = [(cell, f"run-{run}") for cell, run in planned_runs(self.config)]
        return measured + [(run.cell, f"run-i{run.run}") for run in self.elsewhere.runs]

    @cached_property
    def so_far(self) -> SoFar:
        """The runs that exist. Raises WorkflowError, with the known reasons, if there are none."""
        campaign = self.config.campaign
        logs = Path("logs", campaign.name)
        results = Path(campaign.results)
        existing = measured_so_far(self.planned, results, logs, self._is_outdated)
        if not existing.runs:
            reasons = "".join(
                f"\n  {cell.path}: {reason}"
                for cell, reason in existing.failures.items()
            )
            raise WorkflowError(
                f"campaign {campaign.name}: no run is finished, there is nothing to report{reasons}"
            )
        return existing

    def require_something_so_far(self) -> None:
        """End snakemake with one line, and why runs are absent below it, if no run exists; its exit code is then 1.

        Snakemake prints a traceback for an error of an input function, but not for the end of the program.
        """
        try:
            _ = self.so_far
        except WorkflowError as error:
            sys.exit(str(error))

    def names(self, wildcards: Any) -> Sequence[str]:
        """Return the names of the runs of a job's cell; for a report so far, of those that exist."""
        path = _path(wildcards)
        if getattr(wildcards, "so_far", ""):
            return [name for cell, name in self.so_far.runs if cell.path == path]
        elsewhere = self.elsewhere.runs_of(path)
        if elsewhere:
            return [f"run-i{run.run}" for run in elsewhere]
        return [f"run-{run}" for run in self.config.runs_of(self._cell(path))]

    @cached_property
    def pilots(self) -> list[str]:
        """The levels of every pilot, as files; none unless the workload's levels are searched."""
        pilots = dict.fromkeys(self.config.pilot(cell) for cell in self.config.cells)
        return [self._levels(cell) for cell in pilots if cell is not None]

    @property
    def pointers(self) -> list[Path]:
        """The pointers of all runs, those of pilots first."""
        results = self.config.campaign.results
        return [
            *(Path(levels).with_name(POINTER) for levels in self.pilots),
            *(Path(results, cell.path, name, POINTER) for cell, name in self.planned),
        ]

    # --- what a run is

    def run_of(self, wildcards: Any, name: str = "") -> RunRecord:
        """Return the run that a job is about; of the job of a cell, its first. `name`: that of another run of the cell.

        Raises WorkflowError, with the reason, if the campaign cannot have it.
        """
        path, number = _path(wildcards), getattr(wildcards, "run", "")
        if not number:
            return self._run(path, name or self._first(path))
        run = self._run(path, name or f"run-{number}")
        if getattr(wildcards, "so_far", ""):
            return replace(run, source=ExistingSource(run.pointer))
        return run

    def measurement(self, run: RunRecord) -> str | None:
        """Return the id that the pointer of a run has to name; None while it is not known.

        It is not while a pilot has levels to find, and of runs that are from elsewhere and not there yet.
        """
        match run.source:
            case ComparedSource(run=compared):
                return named_measurement(compared.pointer)
            case ImportedSource() | ExistingSource():
                return named_measurement(run.pointer)
            case MeasuredSource(levels=""):
                return run.id
        pilot = self.config.pilot(run.cell) or run.cell
        levels = levels_found(self.config, pilot, Path(self.config.campaign.results))
        return None if levels is None else self.config.measurement_id(run.cell, levels)

    def adoptable(self, run: RunRecord, store: Path) -> bool:
        """Tell whether the job of a measured run finds its result in the store."""
        measurement = self.measurement(run)
        if measurement is None:
            return False
        stored = stored_runs(store, measurement, run.number)
        return bool(stored) and can_adopt(stored, self._hardware)

    def required_counters(self, cell: Cell) -> list[dict[str, Any]]:
        """Return the counters that a cell's arm requires. They judge a measurement and do not define it."""
        elsewhere = self.elsewhere.runs_of(cell.path)
        if elsewhere:
            return list(elsewhere[0].required)
        return [dict(counter) for counter in self.config.required_counters(cell)]

    # --- what is planned although Snakemake's records and the times of files may not ask for it

    def due(self, wildcards: Any) -> list[str]:
        """Return the pointers of a cell's runs that are absent or name another measurement than is planned.

        None for a report so far, which makes no runs.
        """
        if wildcards.so_far:
            return []
        path = _path(wildcards)
        runs = [self._run(path, name) for name in self.names(wildcards)]
        return [run.pointer for run in runs if not self._is_there(run, run.pointer)]

    def due_pilot(self, wildcards: Any) -> list[str]:
        """Return the files of a pilot, pointer and levels, that are absent or of another pilot than is planned."""
        pilot = self.run_of(wildcards, PILOT)
        levels = self._levels(pilot.cell)
        if self._is_there(pilot, levels):
            return []
        files = [levels, pilot.pointer]
        return [file for file in files if not self._is_there(pilot, file)]

    def due_tables(self, collected: str) -> list[str]:
        """Return the tables to make again because the report is not of the runs that are planned; see `due_tables`.

        `collected`: the table of all runs.
        """
        planned: dict[Cell, list[str | None]] = {}
        for cell, name in self.planned:
            measurement = self.measurement(self._run(cell.path, name))
            planned.setdefault(cell, []).append(measurement)
        return due_tables(self.config.campaign.results, planned, collected)

    def _is_there(self, run: RunRecord, file: str) -> bool:
        """Tell whether a file of a run is there and names its measurement; it names none that is not known."""
        named = named_measurement(file)
        return named is not None and named == self.measurement(run)

    def _is_outdated(self, cell: Cell, name: str) -> bool:
        """Tell whether the pointer of a run names another measurement than is planned; not if either is not known."""
        run = self._run(cell.path, name)
        named, planned = named_measurement(run.pointer), self.measurement(run)
        return None not in (named, planned) and named != planned

    @cached_property
    def _hardware(self) -> str | None:
        return measuring_hardware(self.config)

    def _first(self, path: str) -> str:
        elsewhere = self.elsewhere.runs_of(path)
        return f"run-i{elsewhere[0].run}" if elsewhere else "run-1"

    def _levels(self, pilot: Cell) -> str:
        return f"{self.config.campaign.results}/{pilot.path}/{PILOT}/{_LEVELS}"

    def _cell(self, path: str) -> Cell:
        """Return the cell of a path. Raises WorkflowError, with the reason, if the campaign cannot have it."""
        if self.elsewhere.rules is not None:
            name = self.config.campaign.name
            raise WorkflowError(
                f"{path}: not among the imported results, and campaign {name} only imports"
            )
        with as_workflow_error():
            return self.config.cell(path)

    def _run(self, path: str, name: str) -> RunRecord:
        if (path, name) not in self._records:
            self._records[path, name] = self._record(path, name)
        return self._records[path, name]

    def _record(self, path: str, name: str) -> RunRecord:
        if name == PILOT:
            return self._pilot(path)
        if name.startswith("run-i"):
            return self._from_elsewhere(path, name)
        return self._measured(path, name)

    def _measured(self, path: str, name: str) -> RunRecord:
        config, cell = self.config, self._cell(path)
        number = int(name.removeprefix("run-"))
        pilot = config.pilot(cell)
        levels = "" if pilot is None else self._levels(pilot)
        return RunRecord(
            id=config.measurement_id(cell),
            cell=cell,
            name=name,
            priority=priority(config, cell, number),
            pointer=self._pointer(path, name),
            required=self._required_json(cell),
            source=MeasuredSource(levels),
        )

    def _pilot(self, path: str) -> RunRecord:
        cell = self._cell(path)
        return RunRecord(
            id=self.config.pilot_specification(cell).measurement_id,
            cell=cell,
            name=PILOT,
            priority=_BEFORE_ALL,
            pointer=self._pointer(path, PILOT),
            required=self._required_json(cell),
            source=MeasuredSource(),
        )

    def _from_elsewhere(self, path: str, name: str) -> RunRecord:
        number = int(name.removeprefix("run-i"))
        runs = {run.run: run for run in self.elsewhere.runs_of(path)}
        if number not in runs:
            raise WorkflowError(f"{path}: no run i{number} found")
        run = runs[number]
        source: ComparedSource | ImportedSource
        if isinstance(run, CombinedRun):
            source, required = ComparedSource(run), self._required_json(run.cell)
        else:
            # Imported runs of a cell may be of several releases, whose counters have different names.
            source, required = ImportedSource(msgspec.to_builtins(run)), "null"
        return RunRecord(
            id="",
            cell=run.cell,
            name=name,
            priority=0,
            pointer=self._pointer(path, name),
            required=required,
            source=source,
        )

    def _required_json(self, cell: Cell) -> str:
        if cell not in self._required:
            required = self.required_counters(cell)
            self._required[cell] = json.dumps(required, sort_keys=True)
        return self._required[cell]

    def _pointer(self, path: str, name: str) -> str:
        return f"{self.config.campaign.results}/{path}/{name}/{POINTER}"


def _path(wildcards: Any) -> str:
    return Cell.from_row({name: getattr(wildcards, name) for name in CELL_COLUMNS}).path
