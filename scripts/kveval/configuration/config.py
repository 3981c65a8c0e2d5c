"""The configuration of a campaign, checked: its cells, and what defines their measurements."""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from kveval.campaign.builds import NOT_THERE, ArmBuild, BuildError, find_build
from kveval.campaign.campaign_file import Bridge, Campaign, MatrixEntry
from kveval.campaign.catalogue import BuildSource, Catalogue, Gpu
from kveval.campaign.cell import BLOCKS, Cell, CellError
from kveval.campaign.device_estimate import DeviceEstimate, gpu_named_in
from kveval.campaign.import_sheet import ImportSheet
from kveval.campaign.imports import Compared
from kveval.campaign.problems import ConfigError, ConfigProblem
from kveval.campaign.sizing import blocks_within
from kveval.campaign.specification import (
    ServedModel,
    Specification,
    described,
    differences,
)
from kveval.configuration.resolve import resolve_cell, served_model
from kveval.configuration.warnings import warnings_of
from kveval.host.findings import Remark
from kveval.host.hashing import content_hash
from kveval.load.workload import Workload
from kveval.stacks.registry import server_of

# Between the seeds of two runs, see kveval.load.guidellm.levels_of.
_PILOT_SEED = 50_000

PROTOCOL = 2
"""The protocol number: raised when older measurements are no longer comparable and all must be made again."""


def measurement_id(specification: Mapping[str, Any]) -> str:
    """Return the id of what a specification defines: 16 hex digits of the SHA-256 of its canonical JSON."""
    return content_hash(specification)


@dataclass(frozen=True, eq=False)
class Config:
    """A campaign with the catalogues it chooses from, checked.

    `compared`: the campaigns that it compares; `sheet`: the levels that it imports, None unless it does.
    """

    campaign: Campaign
    catalogue: Catalogue
    compared: "Sequence[tuple[Compared, Config]]" = ()
    sheet: ImportSheet | None = None
    _resolved: dict[Cell, tuple[Specification, tuple[dict[str, Any], ...]]] = field(
        default_factory=dict, init=False
    )
    _builds: dict[BuildSource, ArmBuild] = field(default_factory=dict, init=False)
    _ids: dict[tuple[Cell, tuple[int, ...] | None], str] = field(
        default_factory=dict, init=False
    )

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """The campaign's cells in the matrix's order, each once."""
        return tuple(
            dict.fromkeys(
                cell
                for entry in self.campaign.matrix
                for cell, _ in self.cells_of(entry)
            )
        )

    def cells_of(self, entry: MatrixEntry) -> Iterator[tuple[Cell, str]]:
        """Yield the cells of an entry of the matrix, and the key in the entry that gives each its size.

        A size in bytes is translated for each model, as the scenario serves it; there is none while a name is unknown.
        """
        for model, scenario in itertools.product(entry.models, entry.scenarios):
            for index, blocks in enumerate(entry.cpu_blocks):
                yield Cell(model, scenario, blocks), f"cpu_blocks[{index}]"
            for index, size_bytes in enumerate(entry.cpu_gib):
                fitting = self._blocks_within(size_bytes, model, scenario)
                if fitting is not None:
                    yield Cell(model, scenario, fitting), f"cpu_gib[{index}]"

    def _blocks_within(self, size_bytes: int, model: str, scenario: str) -> int | None:
        """Return the blocks of a size in bytes; None if the model or the scenario is unknown."""
        served = self._served(model, scenario)
        if served is None:
            return None
        block_size = self.campaign.server.block_size
        return blocks_within(size_bytes, served.kv_bytes_per_token, block_size)

    def _served(self, model: str, scenario: str) -> ServedModel | None:
        known = self.catalogue.scenarios.get(scenario)
        if known is None:
            return None
        written = self.catalogue.models.get(known.serves.get(model, model))
        if written is None:
            return None
        return served_model(model, written, known, self.campaign.server)

    def runs_of(self, cell: Cell) -> range:
        """Return the numbers of a cell's runs; a bridge is measured in more runs than other cells."""
        rounds = sum(bridge.rounds for bridge in self._bridges.get(cell, ()))
        return range(1, self.campaign.runs * (1 + rounds) + 1)

    @cached_property
    def _bridges(self) -> dict[Cell, list[Bridge]]:
        bridges: dict[Cell, list[Bridge]] = {}
        for bridge in self.campaign.bridges:
            for cell in dict(self.cells_of(bridge)):
                bridges.setdefault(cell, []).append(bridge)
        return bridges

    def unlisted_cells(self) -> list[Cell]:
        """Return the cells of bridges that the matrix does not have."""
        return [cell for cell in self._bridges if cell not in self.cells]

    def unlisted_arms(self) -> list[str]:
        """Return the arms that contrasts name, with or without a size, and that the matrix does not have."""
        contrasts = self.campaign.comparison.declared_pairs
        names = dict.fromkeys(name for *pair, _ in contrasts for name in pair)
        arms = {cell.scenario for cell in self.cells} | {
            cell.arm for cell in self.cells
        }
        return sorted(name for name in names if name not in arms)

    def cell(self, path: str) -> Cell:
        """Return the cell of a path, listed in the matrix or not, checked. Raises ConfigError."""
        try:
            cell = Cell.from_path(path)
        except CellError as error:
            key = "cpu_blocks" if error.code == "no_number" else ""
            valid = "0, 500, 10000, ..." if key else ""
            problem = ConfigProblem(f"cell {path}", key, str(error), valid, error.code)
            raise ConfigError([problem]) from None
        self.specification(cell)
        return cell

    def specification(
        self, cell: Cell, levels: Sequence[int] | None = None
    ) -> Specification:
        """Return what defines the cell's measurement. Raises ConfigError, with everything that is wrong with the cell.

        `levels`: those that the pilot chose, if the workload has them searched; the measurement is then the same as
        if they had been given.
        """
        if cell not in self._resolved:
            try:
                self._resolved[cell] = resolve_cell(
                    cell, self.campaign, self.catalogue, PROTOCOL, self.build(cell)
                )
            except ConfigError as error:
                raise ConfigError(
                    replace(one, file=f"cell {cell.path}") for one in error.problems
                ) from None
        specification, _ = self._resolved[cell]
        if levels is not None and self.workload.searched is not None:
            return specification.with_workload(levels=tuple(levels))
        return specification

    def required_counters(self, cell: Cell) -> tuple[dict[str, Any], ...]:
        """Return the counters that a cell's arm requires; they judge a measurement and do not define it."""
        self.specification(cell)
        return self._resolved[cell][1]

    def build(self, cell: Cell) -> ArmBuild | None:
        """Return the build that a cell runs in place of what is installed, as it is now. Raises ConfigError.

        None if it runs what is installed, or if the scenario is unknown.
        """
        scenario = self.catalogue.scenarios.get(cell.scenario)
        if (
            scenario is None
            or scenario.server is None
            or self.campaign.engine != "local"
        ):
            return None
        if scenario.server not in self._builds:
            try:
                self._builds[scenario.server] = find_build(
                    scenario.server, self.campaign.server
                )
            except BuildError as error:
                message = f"{cell.scenario}: server: {error}"
                right = ""
                if error.code in NOT_THERE:
                    right = "a path from the folder that snakemake works in"
                problem = ConfigProblem(
                    f"cell {cell.path}", "scenarios", message, right, error.code
                )
                raise ConfigError([problem]) from None
        return self._builds[scenario.server]

    def measurement_id(self, cell: Cell, levels: Sequence[int] | None = None) -> str:
        """Return the id of the cell's measurement; see `specification`."""
        key = cell, None if levels is None else tuple(levels)
        if key not in self._ids:
            self._ids[key] = self.specification(cell, levels).measurement_id
        return self._ids[key]

    def pilot(self, cell: Cell) -> Cell | None:
        """Return the cell whose pilot finds the levels: the cell's last baseline or itself; None if they are given."""
        if self.workload.searched is None:
            return None
        return self.last_baseline(cell) or cell

    def pilot_specification(self, cell: Cell) -> Specification:
        """Return what defines the pilot of a baseline."""
        specification, search = self.specification(cell), self.workload.searched
        if search is None:
            return specification
        # Prompts of its own: levels must not be chosen by the very requests that they are then measured with.
        workload = specification.workload
        return specification.with_workload(
            seconds=search.seconds or workload.seconds, seed=workload.seed + _PILOT_SEED
        )

    def baseline(self, cell: Cell) -> Cell | None:
        """Return the cell that `cell` is compared with, or None for a baseline."""
        scenarios = self.catalogue.scenarios
        name = scenarios[cell.scenario].baseline
        if name is None:
            return None
        # A baseline with a tier has the cell's size; one that does not exist is reported elsewhere.
        sized = name in scenarios and scenarios[name].cpu_tier
        return Cell(cell.model, name, cell.cpu_blocks if sized else 0)

    def last_baseline(self, cell: Cell) -> Cell | None:
        """Return the end of a cell's chain of baselines: for another build of an arm, the baseline of that arm."""
        last = None
        while (baseline := self.baseline(last or cell)) is not None:
            last = baseline
        return last

    @cached_property
    def gpu(self) -> tuple[str, Gpu] | None:
        """The GPU of the campaign's servers with its name, as declared or as `hardware` names it; None if neither."""
        campaign, gpus = self.campaign, self.catalogue.gpus
        name = campaign.gpu or gpu_named_in(campaign.hardware, gpus)
        known = gpus.get(name or "")
        memory_gib = campaign.device_gib
        if name is None or known is None:
            unnamed = memory_gib and Gpu(
                memory_gib=memory_gib, hardware=(), source="device_gib"
            )
            return ("a GPU", unnamed) if unnamed else None
        if memory_gib is not None:
            known = known.model_copy(update={"memory_gib": memory_gib})
        return name, known

    def device_estimate(self, cell: Cell) -> DeviceEstimate | None:
        """Return an estimate of what the device of one of a cell's servers holds.

        None where its size is given, and where there is no estimate: no GPU is named, or not of this server.
        """
        if self.gpu is None:
            return None
        name, gpu = self.gpu
        specification = self.specification(cell)
        program = server_of(specification.versions)
        return program.device_estimate(specification, gpu, name)

    @property
    def workload(self) -> Workload:
        """The campaign's workload."""
        return self.catalogue.workloads[self.campaign.workload]

    @property
    def searches(self) -> bool:
        """Whether a pilot searches the levels; a campaign that measures nothing has no workload of its own."""
        workload = self.catalogue.workloads.get(self.campaign.workload)
        return workload is not None and workload.searched is not None

    @property
    def wildcard_constraints(self) -> dict[str, str]:
        """Regular expressions for the parts of a cell's path: every name of the catalogues, escaped."""
        return {
            "model": "|".join(map(re.escape, self.catalogue.models)),
            "scenario": "|".join(map(re.escape, self.catalogue.scenarios)),
            "cpu_blocks": BLOCKS,
            # A measured run is run-1, an imported one run-i1.
            "run": "i?[1-9][0-9]*",
        }

    @cached_property
    def warnings(self) -> tuple[Remark, ...]:
        """Warnings of cells that can be measured but will not show what they seem to."""
        if self.sheet is not None or self.compared:
            return ()
        specifications = {cell: self.specification(cell) for cell in self.cells}
        baselines = {cell: self.baseline(cell) for cell in self.cells}
        estimates = {cell: self.device_estimate(cell) for cell in self.cells}
        least_tokens = {
            cell: estimate.low_tokens
            for cell, estimate in estimates.items()
            if estimate is not None
        }
        return tuple(
            warnings_of(
                self.campaign,
                self.catalogue,
                specifications,
                baselines,
                least_tokens,
            )
        )

    def replicate_problems(self, cell: Cell) -> list[ConfigProblem]:
        """Report how a replicate differs from the cell it repeats: their comparison would not show noise alone."""
        scenario, baseline = (
            self.catalogue.scenarios[cell.scenario],
            self.baseline(cell),
        )
        if (
            not scenario.replicate
            or baseline is None
            or baseline.scenario not in self.catalogue.scenarios
        ):
            return []
        before, after = (self.specification(one).to_json() for one in (baseline, cell))
        other = [
            one for one in differences(before, after) if not one[0].startswith("cell.")
        ]
        if not other:
            return []
        message = f"{cell.scenario} is a replicate of {baseline.scenario}, and differs: {described(other)}"
        return [
            ConfigProblem(
                f"cell {cell.path}",
                "scenarios",
                message,
                "replicate: false",
                "no_replicate",
            )
        ]
