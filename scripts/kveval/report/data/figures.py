"""The data behind every figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from kveval.campaign.cell import Cell
from kveval.report.data.level_units import STREAMS, LevelUnit
from kveval.report.data.run_facts import Tiers
from kveval.report.data.style import ArmStyle, arm_style
from kveval.store.run_file import Run
from kveval.tables.cells import common_level, models_by_size, rank_of, tables_by_cell


@dataclass(frozen=True)
class FigureData:
    """The data that every figure is drawn from.

    `levels`: complete_metrics.csv, `peaks`: peak_throughput_all.csv, `comparison`: comparison.csv. `footer`: engine,
    weights and hardware in one line. `runs`: the runs behind `levels`. `parameters`: model -> its size, for the order.
    `baselines`: scenarios that others are compared with; `intermediate_baselines`: those that have a baseline themselves.
    `device`: GPU or CPU. `level_unit`: the unit of levels. `tiers`: capacities of the measured cells. `recordings`: cell
    and run -> pcp.parquet; `metrics`: the content of config/metrics.yaml. `goodput_unit`: the unit of goodput, requests
    or sessions. `narrow`: whether a figure is to be as wide as the screen of a phone, with its panels below each other,
    and without title and footer, which the page has beside it. `predicted_hits`, `hits`, `waterfall`: the tables of these
    names, empty where nothing was predicted.
    """

    levels: pd.DataFrame
    peaks: pd.DataFrame
    comparison: pd.DataFrame
    footer: str
    runs: Sequence[Run] = ()
    parameters: Mapping[str, int] = field(default_factory=dict)
    baselines: frozenset[str] = field(default_factory=frozenset)
    intermediate_baselines: frozenset[str] = field(default_factory=frozenset)
    margin: float = 0.05
    device: str = "GPU"
    level_unit: LevelUnit = STREAMS
    tiers: Mapping[Cell, Tiers] = field(default_factory=dict)
    recordings: Mapping[tuple[Cell, int], Path] = field(default_factory=dict)
    metrics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    goodput_unit: str = "requests"
    narrow: bool = False
    predicted_hits: pd.DataFrame = field(default_factory=pd.DataFrame)
    hits: pd.DataFrame = field(default_factory=pd.DataFrame)
    waterfall: pd.DataFrame = field(default_factory=pd.DataFrame)

    @cached_property
    def models(self) -> list[str]:
        """The models by size."""
        return models_by_size(list(self.levels["model"]), self.parameters)

    @cached_property
    def arms(self) -> list[Cell]:
        """A cell of every arm and size that any model has: scenarios in their fixed order, CPU tiers rising."""
        first = {cell.arm: cell for cell in reversed(self._cells)}
        return sorted(
            first.values(), key=lambda cell: (rank_of(cell.scenario), cell.cpu_blocks)
        )

    def cells_of(self, model: str) -> list[Cell]:
        """The cells that were measured for one model, in the order of `arms`."""
        measured = set(self._cells)
        return [cell for arm in self.arms if (cell := arm.on(model)) in measured]

    def levels_of(self, cell: Cell) -> pd.DataFrame:
        """The rows of a cell."""
        return self._levels_by_cell.get(cell, self.levels.iloc[:0])

    @property
    def _cells(self) -> list[Cell]:
        return [*self._levels_by_cell]

    # Cached, as every line of a figure looks up the rows of its cell.
    @cached_property
    def _levels_by_cell(self) -> dict[Cell, pd.DataFrame]:
        return tables_by_cell(self.levels)

    def style_of(self, cell: Cell) -> ArmStyle:
        """The style of a cell, the same in every figure of the campaign."""
        blocks = sorted({sized.cpu_blocks for sized in self.arms if sized.cpu_blocks})
        return arm_style(
            cell.scenario,
            blocks.index(cell.cpu_blocks) if cell.cpu_blocks in blocks else 0,
        )

    def common_level(self, model: str) -> int | None:
        """The level at which most of the model's cells were compared, see `tables.cells.common_level`."""
        return common_level(self.comparison, self.peaks, model)

    @cached_property
    def all_levels(self) -> list[int]:
        """Every level that was measured, rising."""
        return sorted(int(level) for level in self.levels["level"].unique())
