"""What all figures share: the data, one look per cell, panels per model, the footer that says what was measured."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D

LineStyle = Literal["-", "--", ":", "-."]

# Okabe and Ito's palette without its yellow, which white paper swallows, and darker tones of it for a long catalogue.
_COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00"),
    *("#004C77", "#8F3F00", "#00634A", "#8A4B72", "#7F7F00", "#5B5B8C"),
)
_BASELINE_COLOUR = "#333333"
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_LINES: tuple[LineStyle, ...] = ("-", "--", ":", "-.")


@dataclass(frozen=True, order=True)
class Cell:
    """A cell of one model, as a figure names it."""

    scenario: str
    cpu_blocks: int

    @property
    def label(self) -> str:
        """The cell's name with its CPU tier, 10K for 10,000 blocks."""
        if not self.cpu_blocks:
            return self.scenario
        thousands, rest = divmod(self.cpu_blocks, 1000)
        return f"{self.scenario} {f'{thousands}K' if thousands and not rest else self.cpu_blocks}"


@dataclass(frozen=True)
class Look:
    """How a cell is drawn: the colour is the scenario's, marker and line the number of CPU blocks."""

    colour: str
    marker: str
    line: LineStyle


@dataclass(frozen=True)
class FigureData:
    """The tables behind every figure.

    `levels`: complete_metrics.csv, `peaks`: peak_throughput_all.csv, `comparison`: comparison.csv. `baselines`:
    scenarios drawn as the reference. `footer`: engine, weights and hardware in one line.
    """

    levels: pd.DataFrame
    peaks: pd.DataFrame
    comparison: pd.DataFrame
    footer: str
    baselines: frozenset[str] = field(default_factory=frozenset)
    margin: float = 0.05

    @cached_property
    def models(self) -> list[str]:
        """The models in the order of the tables."""
        return list(dict.fromkeys(self.levels["model"]))

    @cached_property
    def cells(self) -> list[Cell]:
        """All cells of any model: scenarios in the order of the tables, their CPU tiers rising."""
        scenarios = list(dict.fromkeys(self.levels["scenario"]))
        pairs = self.levels[["scenario", "cpu_blocks"]].drop_duplicates().itertuples(index=False)
        found = [Cell(str(scenario), int(blocks)) for scenario, blocks in pairs]
        return sorted(found, key=lambda cell: (scenarios.index(cell.scenario), cell.cpu_blocks))

    def cells_of(self, model: str) -> list[Cell]:
        """The cells that were measured for one model."""
        rows = self.levels[self.levels["model"] == model]
        present = set(zip(rows["scenario"], rows["cpu_blocks"], strict=True))
        return [cell for cell in self.cells if (cell.scenario, cell.cpu_blocks) in present]

    def rows(self, table: pd.DataFrame, model: str, cell: Cell) -> pd.DataFrame:
        """The rows of one cell in a table."""
        of_cell = (table["scenario"] == cell.scenario) & (table["cpu_blocks"] == cell.cpu_blocks)
        return table[of_cell & (table["model"] == model)]

    def look(self, cell: Cell) -> Look:
        """The same look for the same cell in every figure."""
        scenarios = [name for name in dict.fromkeys(self.levels["scenario"]) if name not in self.baselines]
        blocks = sorted({other.cpu_blocks for other in self.cells if other.cpu_blocks})
        if cell.scenario in self.baselines:
            colour = _BASELINE_COLOUR
        else:
            colour = _COLOURS[scenarios.index(cell.scenario) % len(_COLOURS)]
        tier = 0 if not cell.cpu_blocks else blocks.index(cell.cpu_blocks)
        return Look(colour, _MARKERS[tier % len(_MARKERS)], _LINES[tier % len(_LINES)])

    def common_level(self, model: str) -> int | None:
        """The level at which the model's cells were compared, else the most frequent peak level."""
        for table in (self.comparison, self.peaks):
            levels: pd.Series[Any] = table[table["model"] == model]["level"].dropna()
            if len(levels):
                return int(levels.mode().iloc[0])
        return None


def mean_over_runs(rows: pd.DataFrame, column: str) -> pd.Series[float]:
    """Return the mean of a column over runs, by level; levels without a value are left out."""
    means: pd.Series[float] = rows.groupby("level")[column].mean().dropna()
    return means


def panels(
    data: FigureData, shape: tuple[int, int], size: tuple[float, float], *, legend: bool
) -> tuple[Figure, npt.NDArray[Any]]:
    """Return a figure of rows x columns panels, each width x height inches, with room for the footer."""
    # Not from pyplot: nothing is shown, and pyplot would keep every figure.
    rows, columns = shape
    width = max(columns * size[0] + (2.0 if legend else 0.0), 5.5)
    # At 6.5 points an inch holds some 20 letters, and a line is 0.13 inches high.
    note = textwrap.wrap(data.footer, int(20 * width))
    margin = 0.15 + 0.13 * len(note)
    height = rows * size[1] + 0.15 + margin
    bottom = margin / height
    layout = ConstrainedLayoutEngine(rect=(0, bottom, 1, 1 - bottom))
    figure = Figure(figsize=(width, height), layout=layout)
    axes = figure.subplots(rows, columns, squeeze=False)
    figure.text(0.005, 0.05 / height, "\n".join(note), fontsize=6.5, color="#666666", va="bottom")
    return figure, axes


def cell_legend(figure: Figure, data: FigureData, cells: Sequence[Cell]) -> None:
    """Draw one legend for the whole figure, right of the panels."""
    handles = []
    for cell in cells:
        look = data.look(cell)
        handles.append(Line2D([], [], color=look.colour, marker=look.marker, linestyle=look.line, label=cell.label))
    figure.legend(handles=handles, loc="outside right upper")


def concurrency_axis(axes: Axes, levels: Sequence[int]) -> None:
    """Make x a logarithmic axis of concurrent requests with the measured levels as its ticks."""
    axes.set_xscale("log", base=2)
    ticks = sorted(set(levels))
    # Neighbours closer than a seventh of an octave grid would print over each other.
    shown = [tick for number, tick in enumerate(ticks) if number == 0 or tick / ticks[number - 1] > 1.15]
    axes.set_xticks(shown, [f"{tick:g}" for tick in shown])
    axes.minorticks_off()
    axes.set_xlabel("concurrent requests")
