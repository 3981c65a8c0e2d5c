"""The content of a report: the campaign as planned, and its measurements."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from kveval.campaign.cell import Cell
from kveval.campaign.size import Size
from kveval.load.workload import workload_of
from kveval.report.data.level_units import LevelUnit, unit_of
from kveval.report.data.run_facts import tier_sizes
from kveval.store.run_file import Run
from kveval.tables.cells import (
    THROUGHPUT,
    common_level,
    models_by_size,
    rank_of,
    tables_by_cell,
)
from kveval.tables.levels.pilot import Pilot
from kveval.tables.system.tier_activity import tier_activity


@dataclass(frozen=True)
class ReportPlan:
    """The cells and runs that the campaign asked for, and their settings.

    `scenarios`: name -> title, baseline (None for a baseline itself) and `required`, the counters that the arm
    requires; `metrics`: content of config/metrics.yaml; `models`: name -> parameters and kv_bytes_per_token of the
    named model, even if a miniature was served; `goodput`: latency limits, see
    `levels.goodput`, and `prices`, USD per hour; empty if none are declared.
    """

    name: str
    title: str
    description: str
    runs: int
    cells: Sequence[Cell]
    scenarios: Mapping[str, Mapping[str, Any]]
    metrics: Mapping[str, Mapping[str, Any]]
    margin: float = 0.05
    alpha: float = 0.05
    primary: str = THROUGHPUT
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    goodput: Mapping[str, Any] = field(default_factory=dict)
    prices: Mapping[str, float] = field(default_factory=dict)
    # Runs of each of `cells`, if they differ: a baseline that is measured again has more.
    cell_runs: Sequence[int] = ()
    # The command that writes this report, "" if it is not known; whether it measures what is missing, which it does
    # not for runs that were imported or compared.
    command: str = ""
    measures: bool = True
    # The commit of the workflow that writes it, see `host.shipped.library_commit`.
    workflow_commit: str = ""

    def command_with(self, settings: str) -> str:
        """The command that measures and writes this report with other settings (KEY=VALUE, "" for none).

        "" if it is not known, or measures nothing.
        """
        if not self.command or not self.measures:
            return ""
        if not settings:
            return self.command
        option = "" if " --config " in self.command else " --config"
        return f"{self.command}{option} {settings}"

    def runs_of(self, cell: Cell) -> int:
        """The number of runs that the campaign asks for in a cell."""
        return dict(zip(self.cells, self.cell_runs, strict=False)).get(cell, self.runs)

    @property
    def parameters(self) -> dict[str, int]:
        """The number of parameters of the models, by which they are ordered."""
        return {
            name: int(facts["parameters"])
            for name, facts in self.models.items()
            if "parameters" in facts
        }

    @property
    def models_by_size(self) -> list[str]:
        """The models in the order of every table and figure."""
        return models_by_size([cell.model for cell in self.cells], self.parameters)

    def cells_of(self, model: str) -> list[Cell]:
        """The campaign's cells of a model, in the order of every table and figure."""
        return sorted(
            (cell for cell in self.cells if cell.model == model),
            key=lambda cell: (rank_of(cell.scenario), cell.cpu_blocks),
        )

    @property
    def ordered_cells(self) -> list[Cell]:
        """The campaign's cells in the order of every table and figure."""
        return [cell for model in self.models_by_size for cell in self.cells_of(model)]

    @property
    def baseline_of(self) -> dict[str, str | None]:
        """Scenario -> the one it is compared with, None for a baseline itself."""
        return {name: entry.get("baseline") for name, entry in self.scenarios.items()}

    @property
    def baselines(self) -> frozenset[str]:
        """The scenarios that others are compared with."""
        return frozenset(
            str(entry["baseline"])
            for entry in self.scenarios.values()
            if entry.get("baseline")
        )

    @property
    def intermediate_baselines(self) -> frozenset[str]:
        """The baselines that have a baseline themselves: arms with which another build of the arm is compared."""
        return frozenset(name for name in self.baselines if self.baseline_of.get(name))


@dataclass(frozen=True)
class Measured:
    """The measurements: the runs and the tables made from them, for the cells measured so far."""

    runs: Sequence[Run]
    levels: pd.DataFrame
    peaks: pd.DataFrame
    comparison: pd.DataFrame
    failures: Mapping[Cell, str] = field(default_factory=dict)
    # Cell and run -> its pcp.parquet.
    recordings: Mapping[tuple[Cell, int], Path] = field(default_factory=dict)
    # Declared pairs of arms, and neighbouring sizes of an arm, in the form of `comparison`.
    contrasts: pd.DataFrame = field(default_factory=pd.DataFrame)
    # Effects averaged over models, and the outcomes of checks of the campaign as a whole.
    averages: pd.DataFrame = field(default_factory=pd.DataFrame)
    checks: pd.DataFrame = field(default_factory=pd.DataFrame)
    # Peaks against the baselines' peaks, in the form of `comparison`.
    peak_comparison: pd.DataFrame = field(default_factory=pd.DataFrame)
    # The predicted gains from tiers, see `predicted.csv` in docs/results.md.
    predicted: pd.DataFrame = field(default_factory=pd.DataFrame)
    # Hits that were predicted, beside those that were counted, and where hits are lost, see `report.data.hits`.
    predicted_hits: pd.DataFrame = field(default_factory=pd.DataFrame)
    hits: pd.DataFrame = field(default_factory=pd.DataFrame)
    waterfall: pd.DataFrame = field(default_factory=pd.DataFrame)
    # The searches that found the levels, if they were not given.
    pilots: Sequence[Pilot] = ()

    @cached_property
    def all_comparisons(self) -> pd.DataFrame:
        """Every comparison: arms with their baselines, declared pairs of arms, neighbouring sizes."""
        return (
            pd.concat([self.comparison, self.contrasts], ignore_index=True)
            if len(self.contrasts)
            else self.comparison
        )

    @cached_property
    def level_unit(self) -> LevelUnit:
        """The unit of the levels."""
        return unit_of(workload_of(run.workload) for run in self.runs)

    def peak_of(self, cell: Cell) -> pd.Series[Any] | None:
        """The row of a cell's peak, None where it has none."""
        return (
            self._by_cell["peaks"][cell].iloc[0]
            if cell in self._by_cell["peaks"]
            else None
        )

    def cells_with_peak(self, cells: Iterable[Cell]) -> list[Cell]:
        """Those of the cells that have a peak."""
        return [cell for cell in cells if cell in self._by_cell["peaks"]]

    @cached_property
    def peaks_at_edge(self) -> list[Cell]:
        """The cells with their peak at the first or last of several levels, in the order of `peaks`."""
        at_end = ~self.peaks["bracketed"].astype(bool)
        edge = self.peaks[at_end & (self.peaks["levels_measured"] > 1)]
        return [Cell.from_row(row) for row in edge.to_dict("records")]

    def peaks_of(
        self, cells: Iterable[Cell]
    ) -> Iterator[tuple[Cell, pd.Series[Any], pd.DataFrame]]:
        """Yield those of the cells that have a peak, with its row, and the rows of its level."""
        for cell in self.cells_with_peak(cells):
            peak = self._by_cell["peaks"][cell].iloc[0]
            yield cell, peak, self.levels_of(cell, peak["level"])

    def common_level(self, model: str) -> int | None:
        """The level at which most of a model's cells were compared."""
        if model not in self._common_levels:
            level = common_level(self.comparison, self.peaks, model)
            self._common_levels[model] = level
        return self._common_levels[model]

    def levels_of(self, cell: Cell, level: float | None = None) -> pd.DataFrame:
        """The rows of a cell, of one level if asked."""
        rows = (
            self._by_cell["levels"].get(cell)
            if level is None
            else self._by_level.get((cell, level))
        )
        return self.levels.iloc[:0] if rows is None else rows

    def comparisons_of(self, cell: Cell) -> pd.DataFrame:
        """The comparisons of a cell with others."""
        return self._by_cell["comparisons"].get(cell, self.all_comparisons.iloc[:0])

    def runs_of(self, cell: Cell) -> Sequence[Run]:
        """The runs of a cell in their order."""
        return self._runs_by_cell.get(cell, ())

    def why_missing(self, cell: Cell) -> str:
        """The reason why a cell has no run."""
        return self.failures.get(cell, "not measured")

    def tier_sizes(self, model: str | None = None) -> dict[Cell, Size]:
        """The sizes of the tiers in host memory, of the cells that have one; of one model if asked."""
        return tier_sizes(run for run in self.runs if model in (None, run.cell.model))

    @cached_property
    def activity(self) -> pd.DataFrame:
        """The work of the tiers, see `tier_activity`."""
        return tier_activity(self.runs)

    # Cached, as the tables of a report look up the rows of a cell thousands of times.

    @cached_property
    def _common_levels(self) -> dict[str, int | None]:
        return {}

    @cached_property
    def _runs_by_cell(self) -> dict[Cell, list[Run]]:
        runs: dict[Cell, list[Run]] = {}
        for run in sorted(self.runs, key=lambda run: run.run):
            runs.setdefault(run.cell, []).append(run)
        return runs

    @cached_property
    def _by_cell(self) -> dict[str, dict[Cell, pd.DataFrame]]:
        tables = {
            "levels": self.levels,
            "peaks": self.peaks,
            "comparisons": self.all_comparisons,
        }
        return {name: tables_by_cell(table) for name, table in tables.items()}

    @cached_property
    def _by_level(self) -> dict[tuple[Cell, Hashable], pd.DataFrame]:
        return {
            (cell, level): rows
            for cell, table in self._by_cell["levels"].items()
            for level, rows in table.groupby("level", sort=False)
        }


def text_or_blank(value: Any) -> str:
    """Return a text cell of a table, nothing for a missing one."""
    return value if isinstance(value, str) else ""


def abbreviate(names: Sequence[str], most: int = 3, separator: str = ", ") -> str:
    """Return names as a list: all if there are at most one more than `most`, else so many and the number of the rest.

    >>> abbreviate(["a", "b", "c"], 2), abbreviate(["a", "b", "c", "d"], 2)
    ('a, b, c', 'a, b and 2 more')
    """
    shown = names if len(names) <= most + 1 else names[:most]
    rest = len(names) - len(shown)
    return separator.join(shown) + (f" and {rest} more" if rest else "")
