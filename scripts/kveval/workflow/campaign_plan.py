"""A campaign as the rules need it: cells and runs, what defines their measurements, inputs and params of jobs."""

from __future__ import annotations

import gc
import json
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from snakemake.exceptions import WorkflowError

from kveval.analysis.cells import models_by_size
from kveval.analysis.levels.pilot import frozen_levels
from kveval.campaign.cell import Cell
from kveval.campaign.config import Config
from kveval.campaign.loading import load_config
from kveval.campaign.sizing import kv_bytes_per_token, parameter_count
from kveval.host.errors import Failure
from kveval.host.findings import counted
from kveval.importing.campaign import import_plan
from kveval.importing.compared import (
    Combination,
    CombinedRun,
    combination,
    require_measured,
)
from kveval.importing.table import findings
from kveval.report.figures.names import FAMILIES, Extent, families_of
from kveval.store.run_file import POINTER
from kveval.workflow.planning.due import due_tables
from kveval.workflow.planning.order import planned_runs, priority
from kveval.workflow.planning.stored import (
    can_adopt,
    levels_found,
    measuring_hardware,
    named_measurement,
    stored_runs,
)
from kveval.workflow.so_far import SoFar, measured_so_far

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kveval.importing.plan import ImportPlan, RunElsewhere

SO_FAR = "so-far/"
"""Value of the wildcard `so_far` in paths of a report on the runs that exist; it is "" in all other paths."""

# A plan's objects live until it ends: garbage collection with Python's default thresholds took a sixth of the time.
gc.set_threshold(100_000, 10, 10)


@contextmanager
def refusing() -> Iterator[None]:
    """Turn a Failure into Snakemake's own error, which ends planning with the message and no traceback."""
    try:
        yield
    except Failure as failure:
        raise WorkflowError(str(failure)) from None


@dataclass(frozen=True, eq=False)
class WorkflowPlan:
    """A campaign as cells, runs and files. `elsewhere`: runs that it does not measure, but imports or compares.

    Methods that take `wildcards` are input functions, or functions for params, of the rules.
    """

    config: Config
    elsewhere: ImportPlan | Combination

    @classmethod
    def of(
        cls,
        source: Path | Mapping[str, Any],
        catalogues: Path,
        index: Path,
        *,
        jobs_share_folder: bool,
    ) -> WorkflowPlan:
        """Read and check the campaign; `index`: folder that caches what was read from existing results.

        `jobs_share_folder`: whether the jobs see this machine's folder.
        Raises WorkflowError with all mistakes of the campaign, and where jobs without this folder would need it.
        """
        try:
            config = load_config(source, catalogues)
        except Failure as error:
            raise WorkflowError(f"The configuration cannot be used:\n{error}") from None
        if not jobs_share_folder and (config.imports or config.compared):
            raise WorkflowError(
                f"Campaign {config.campaign.name} reads results that only this machine has: make its report here,"
                " without the profile that runs the analysis elsewhere"
            )
        with refusing():
            return cls(
                config,
                combination(config) if config.compared else import_plan(config, index),
            )

    # --- cells, runs and their files

    @property
    def results(self) -> str:
        """The folder of the campaign's results."""
        return self.config.campaign.results

    @property
    def logs(self) -> str:
        """The folder of the campaign's logs."""
        return f"logs/{self.config.campaign.name}"

    @cached_property
    def cells(self) -> list[Cell]:
        """The cells that the report is about."""
        return [*self.config.cells, *self.elsewhere.cells]

    @property
    def taken(self) -> str:
        """The number of cells and runs that are imported or compared in place of measuring; "" if it measures."""
        runs = self.elsewhere.runs
        if not runs:
            return ""
        done = "imported" if self.config.imports else "compared"
        return f"{counted(len(self.elsewhere.cells), 'cell')}, {counted(len(runs), 'run')}: {done}; nothing is measured"

    @cached_property
    def cell_folders(self) -> list[str]:
        """The folder of each of `cells`."""
        return [f"{self.results}/{cell.path}" for cell in self.cells]

    @cached_property
    def runs(self) -> list[tuple[Cell, str]]:
        """Every run, as its cell and its folder's name: run-1 if it is measured, run-i1 if it is from elsewhere."""
        measured = [(cell, f"run-{run}") for cell, run in planned_runs(self.config)]
        return measured + [(run.cell, f"run-i{run.run}") for run in self.elsewhere.runs]

    @cached_property
    def pointers(self) -> list[str]:
        """The pointer of every run into the measurement store."""
        return [
            f"{self.results}/{cell.path}/{name}/{POINTER}" for cell, name in self.runs
        ]

    @cached_property
    def pilots(self) -> list[str]:
        """The levels.json of every pilot; none unless the workload's levels are searched."""
        searched = dict.fromkeys(
            pilot
            for cell in self.config.cells
            if (pilot := self.config.pilot(cell)) is not None
        )
        return [f"{self.results}/{cell.path}/pilot/levels.json" for cell in searched]

    @property
    def attempted(self) -> list[Path]:
        """The pointers of all measurements, pilots included."""
        return [
            *(Path(levels).with_name(POINTER) for levels in self.pilots),
            *map(Path, self.pointers),
        ]

    @cached_property
    def models(self) -> list[str]:
        """The models, ordered by size."""
        return models_by_size(list(self._parameters), self._parameters)

    @property
    def figure_families(self) -> list[str]:
        """The families of figures for which this campaign has data; all if the number of levels is not known yet."""
        workload = self.config.catalogue.workloads.get(self.config.campaign.workload)
        if (
            self.elsewhere.runs
            or workload is None
            or workload.searched
            or not workload.given_levels
        ):
            return [*FAMILIES]
        return families_of(
            Extent(
                len(workload.given_levels),
                len(self.models),
                bool(self.config.campaign.goodput),
            )
        )

    @cached_property
    def so_far(self) -> SoFar:
        """The runs that exist. Raises WorkflowError, with the known reasons, if there are none."""
        found = measured_so_far(self.runs, Path(self.results), Path(self.logs))
        if not found.runs:
            reasons = "".join(
                f"\n  {cell.path}: {reason}" for cell, reason in found.failures.items()
            )
            name = self.config.campaign.name
            raise WorkflowError(
                f"campaign {name}: no run is finished, there is nothing to report{reasons}"
            )
        return found

    def require_something_so_far(self) -> None:
        """End snakemake with one line, and why runs are absent below it, if no run exists; its exit code is then 1.

        Snakemake prints a traceback for an error of an input function, but not for the end of the program.
        """
        try:
            _ = self.so_far
        except WorkflowError as error:
            sys.exit(str(error))

    def cell_tables(self, name: str) -> Callable[[Any], list[str]]:
        """Input function: a table of every cell; for a report so far, of the cells that have a run."""

        def paths(wildcards: Any) -> list[str]:
            if not wildcards.so_far:
                return [f"{folder}/{name}" for folder in self.cell_folders]
            cells = dict.fromkeys(cell for cell, _ in self.so_far.runs)
            return [f"{self.results}/{SO_FAR}{cell.path}/{name}" for cell in cells]

        return paths

    def peaks_so_far(self, wildcards: Any) -> list[str]:
        """Input function: for a report so far, peak.csv of its cells, which may hold a reason instead; else nothing."""
        return self.cell_tables("peak.csv")(wildcards) if wildcards.so_far else []

    def run_files(self, *names: str) -> Callable[[Any], list[str]]:
        """Input function: files of every run; for a report so far, of the runs that exist."""

        def paths(wildcards: Any) -> list[str]:
            runs = self.so_far.runs if wildcards.so_far else self.runs
            top = f"{self.results}/{wildcards.so_far}"
            return [
                f"{top}{cell.path}/{run}/{name}" for name in names for cell, run in runs
            ]

        return paths

    def files_of_cell(self, *names: str) -> Callable[[Any], list[str]]:
        """Input function: files of every run of a job's cell; for a report so far, of the runs that exist."""

        def paths(wildcards: Any) -> list[str]:
            path = _path(wildcards)
            runs: Sequence[str] = [
                f"run-i{run.run}" for run in self.elsewhere.runs_of(path)
            ]
            if wildcards.so_far:
                runs = [run for cell, run in self.so_far.runs if cell.path == path]
            elif not runs:
                runs = [
                    f"run-{run}" for run in self.config.runs_of(self.cell(wildcards))
                ]
            return [
                f"{self.results}/{wildcards.so_far}{path}/{run}/{name}"
                for name in names
                for run in runs
            ]

        return paths

    # --- what defines a measurement

    def cell(self, wildcards: Any) -> Cell:
        """Return a job's cell. Raises WorkflowError, with the reason, if the campaign cannot have it."""
        if self.config.imports:
            name = self.config.campaign.name
            raise WorkflowError(
                f"{_path(wildcards)}: not among the imported results, and campaign {name} only imports"
            )
        with refusing():
            return self.config.cell(_path(wildcards))

    def specification(self, wildcards: Any) -> str:
        """Return what defines the cell's measurement, as JSON."""
        return json.dumps(
            self.config.specification(self.cell(wildcards)).to_json(), sort_keys=True
        )

    def measurement(self, wildcards: Any) -> str:
        """Return the id of the cell's measurement; where its levels are searched, the id without the levels."""
        return self.config.measurement_id(self.cell(wildcards))

    def searched_measurement(self, wildcards: Any, input: Any) -> str:
        """Return the id with the levels that a pilot found; unknown to Snakemake until the pilot has run."""
        return self.config.measurement_id(
            self.cell(wildcards), frozen_levels(Path(input.levels))
        )

    def levels_option(self, wildcards: Any, input: Any) -> str:
        """Return the command-line option that names the file with the pilot's levels."""
        return f"--levels {shlex.quote(input.levels)}"

    def pilot_measurement(self, wildcards: Any) -> str:
        """Return the id of the search for levels on a baseline."""
        return self.config.pilot_specification(self.cell(wildcards)).measurement_id

    def pilot_levels(self, wildcards: Any) -> str:
        """Input function: the levels.json of the pilot on the cell's baseline."""
        cell = self.cell(wildcards)
        return (
            f"{self.results}/{(self.config.pilot(cell) or cell).path}/pilot/levels.json"
        )

    def block_priority(self, wildcards: Any) -> int:
        """Return the priority of a measurement: block after block, in random order within a block."""
        return priority(self.config, self.cell(wildcards), int(wildcards.run))

    # --- what is planned although Snakemake's records and the times of files may not ask for it

    def due_runs(self, wildcards: Any) -> list[str]:
        """Return the pointers of a cell's runs that are absent or name another measurement than is planned.

        None for a report so far, which makes no runs.
        """
        if wildcards.so_far:
            return []
        path = _path(wildcards)
        elsewhere = self.elsewhere.runs_of(path)
        planned = {
            f"run-i{run.run}": self._measurement_elsewhere(run) for run in elsewhere
        }
        if not elsewhere:
            cell = self.cell(wildcards)
            planned = dict.fromkeys(
                (f"run-{run}" for run in self.config.runs_of(cell)),
                self._planned_measurement(cell),
            )
        pointers = {
            f"{self.results}/{path}/{run}/{POINTER}": measurement
            for run, measurement in planned.items()
        }
        return [
            pointer
            for pointer, measurement in pointers.items()
            if not _names(pointer, measurement)
        ]

    def due_pilot(self, wildcards: Any) -> list[str]:
        """Return the files of a pilot, pointer and levels, that are absent or of another pilot than is planned."""
        folder = f"{self.results}/{_path(wildcards)}/pilot"
        files = [f"{folder}/levels.json", f"{folder}/{POINTER}"]
        planned = self.pilot_measurement(wildcards)
        if named_measurement(files[0]) == planned:
            return []
        return [file for file in files if named_measurement(file) != planned]

    def due_tables(self, collected: str) -> list[str]:
        """Return the tables to make again because the report is not of the runs that are planned; see `due_tables`.

        `collected`: the table of all runs.
        """
        planned: dict[Cell, list[str | None]] = {
            cell: [self._planned_measurement(cell)] * len(self.config.runs_of(cell))
            for cell in self.config.cells
        }
        for run in self.elsewhere.runs:
            planned.setdefault(run.cell, []).append(self._measurement_elsewhere(run))
        return due_tables(self.results, planned, collected)

    def adoptable(self, wildcards: Any, store: Path) -> bool:
        """Tell whether the job of a run, or of a pilot if there is no wildcard `run`, finds its result in the store."""
        run = getattr(wildcards, "run", None)
        cell = self.cell(wildcards)
        measurement = (
            self.pilot_measurement(wildcards)
            if run is None
            else self._planned_measurement(cell)
        )
        if measurement is None:
            return False
        stored = stored_runs(store, measurement, int(run or 1))
        return bool(stored) and can_adopt(stored, self._hardware)

    @cached_property
    def _hardware(self) -> str | None:
        return measuring_hardware(self.config)

    def _planned_measurement(self, cell: Cell) -> str | None:
        """The id of a measured cell; None while the levels that a pilot searches are not known."""
        pilot = self.config.pilot(cell)
        if pilot is None:
            return self.config.measurement_id(cell)
        levels = levels_found(self.config, pilot, Path(self.results))
        return None if levels is None else self.config.measurement_id(cell, levels)

    def _measurement_elsewhere(self, run: RunElsewhere) -> str | None:
        """The id that a compared campaign's pointer names; of an import, which defines none, that of its own."""
        pointer = f"{self.results}/{run.cell.path}/run-i{run.run}/{POINTER}"
        return named_measurement(
            run.pointer if isinstance(run, CombinedRun) else pointer
        )

    # --- runs that were measured elsewhere

    def imported_run(self, wildcards: Any) -> dict[str, Any]:
        """Return the plan of an imported run, as plain values."""
        return dict(msgspec.to_builtins(self._from_elsewhere(wildcards)))

    def compared_pointer(self, wildcards: Any) -> list[str]:
        """Input function: the run's pointer in the campaign that measured it; none for a report so far.

        There, an input could make Snakemake measure the run again, which a report must not do; and while a campaign is
        measured, Snakemake has locked its pointers.
        """
        if wildcards.so_far:
            return []
        run = self._from_elsewhere(wildcards)
        with refusing():
            return [require_measured(run)]

    def linked(self, wildcards: Any) -> dict[str, Any]:
        """Return the pointer to link to, and for a report so far its content, whose change reruns the tables."""
        if not wildcards.so_far:
            return {"pointer": self._from_elsewhere(wildcards).pointer}
        pointer = Path(self.results, _path(wildcards), f"run-{wildcards.run}", POINTER)
        return {"pointer": pointer.as_posix(), **json.loads(pointer.read_bytes())}

    def _from_elsewhere(self, wildcards: Any) -> Any:
        for run in self.elsewhere.runs_of(_path(wildcards)):
            if f"i{run.run}" == wildcards.run:
                return run
        raise WorkflowError(f"{_path(wildcards)}: no run {wildcards.run} found")

    # --- what the analysis is told

    def required_counters(self, wildcards: Any) -> str:
        """Return the counters that prove a cell's arm active, as JSON; null for imported runs: they have their own."""
        imported = self.elsewhere.runs_of(_path(wildcards))
        return json.dumps(
            None if imported else self._proof(self.cell(wildcards)), sort_keys=True
        )

    def server_version(self, wildcards: Any) -> str:
        """Return the version of the server that a cell ran with; the names of its metrics depend on it."""
        imported = self.elsewhere.runs_of(_path(wildcards))
        return (
            imported[0].vllm
            if imported
            else self.config.server_version(self.cell(wildcards))
        )

    def failures(self, wildcards: Any) -> list[list[Any]]:
        """Return model, scenario, cpu_blocks and reason of cells that lack a run; empty unless for a report so far."""
        found = self.so_far.failures if wildcards.so_far else {}
        return [
            [cell.model, cell.scenario, cell.cpu_blocks, reason]
            for cell, reason in found.items()
        ]

    def pilots_so_far(self, wildcards: Any) -> list[str]:
        """Return the existing levels.json of pilots, for a report so far, which does not wait for pilots."""
        return (
            [path for path in self.pilots if Path(path).exists()]
            if wildcards.so_far
            else []
        )

    @cached_property
    def comparison(self) -> dict[str, Any]:
        """The settings of the comparison, each scenario's baseline, and how many runs the campaign asks for by cell.

        Nobody asked for a number of imported runs.
        """
        scenarios = self.config.catalogue.scenarios
        planned = (
            []
            if self.elsewhere.runs
            else [cell for cell, _ in planned_runs(self.config)]
        )
        return {
            "settings": self.config.campaign.comparison.model_dump(),
            "baselines": {
                name: scenario.baseline for name, scenario in scenarios.items()
            },
            "runs": [[*cell.key, count] for cell, count in Counter(planned).items()],
        }

    @cached_property
    def asked(self) -> dict[str, Any]:
        """The plan with which the report compares the measurements, as plain values: kveval.report.data.campaign."""
        campaign, catalogue = self.config.campaign, self.config.catalogue
        runs = Counter(cell for cell, _ in self.runs)
        scenarios = {
            cell.scenario: (catalogue.scenarios[cell.scenario], self._proof(cell))
            for cell in self.cells
        }
        return {
            "name": campaign.name,
            "title": campaign.title,
            "description": "\n\n".join(
                filter(None, [campaign.description, self._found_elsewhere])
            ),
            # Imported runs were not planned: the number is that of the cell with the most.
            "runs": max(
                (run.run for run in self.elsewhere.runs), default=campaign.runs
            ),
            "cells": [cell.key for cell in self.cells],
            "cell_runs": [runs[cell] for cell in self.cells],
            "scenarios": {
                name: {
                    **{
                        key: getattr(each, key)
                        for key in ("title", "baseline", "arm", "store")
                    },
                    "exercised": proof,
                }
                for name, (each, proof) in scenarios.items()
            },
            "models": {
                name: {
                    "hf_id": model.hf_id,
                    "parameters": self._parameters[name],
                    "kv_bytes_per_token": kv_bytes_per_token(
                        model.geometry, model.kv_cache_dtype, 1, model.dtype
                    ),
                }
                for name, model in catalogue.models.items()
                if name in self._parameters
            },
            "server_version": campaign.server.declared_version,
            "margin": campaign.comparison.margin,
            "alpha": campaign.comparison.alpha,
            "primary": campaign.comparison.primary,
            "goodput": campaign.goodput.declared if campaign.goodput else {},
            "prices": campaign.prices.declared if campaign.prices else {},
        }

    @cached_property
    def _parameters(self) -> dict[str, int]:
        models = self.config.catalogue.models
        return {
            name: parameter_count(models[name].geometry)
            for name in dict.fromkeys(cell.model for cell in self.cells)
        }

    @property
    def _found_elsewhere(self) -> str:
        """The report's remarks on runs that were not measured for this campaign."""
        if isinstance(self.elsewhere, Combination):
            return self.elsewhere.remarks
        return findings(self.elsewhere) if self.elsewhere.runs else ""

    def _proof(self, cell: Cell) -> list[dict[str, Any]]:
        """The counters that prove a cell's arm active. They judge a measurement and do not define it."""
        imported = self.elsewhere.runs_of(cell.path)
        if imported:
            return list(imported[0].required)
        return [dict(entry) for entry in self.config.required_counters(cell)]


def _names(pointer: str, measurement: str | None) -> bool:
    """Tell whether a pointer is there and names a measurement; it names none that is not known."""
    named = named_measurement(pointer)
    return named is not None and named == measurement


def _path(wildcards: Any) -> str:
    return f"{wildcards.model}/{wildcards.scenario}/{wildcards.cpu_blocks}"
