"""Metrics against concurrency: means over runs as lines, with intervals or ranges over runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kveval.analysis.cells import ArmSize
from kveval.analysis.estimators.correlations import recorded
from kveval.analysis.estimators.intervals import mean_interval
from kveval.report.data.figures import FigureData
from kveval.report.figures.axes import (
    ModelPanel,
    NothingToDraw,
    from_zero,
    level_axis,
    model_panels,
    panels,
    say_not_recorded,
)


def mean_over_runs(rows: pd.DataFrame, column: str) -> pd.Series[float]:
    """Return the mean of a column over runs, by level; levels without a value are left out."""
    means: pd.Series[float] = rows.groupby("level")[column].mean().dropna()
    return means


# Levels x (low, high) of a column over the runs, from the rows of one cell.
Bounds = Callable[[pd.DataFrame, str], pd.DataFrame]


def run_range(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return the lowest and the highest value over runs by level, for levels with several runs."""
    known = rows.dropna(subset=[column]).groupby("level")[column]
    bounds = pd.DataFrame({"low": known.min(), "high": known.max()})
    return bounds[known.count() > 1]


def geometric_interval(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return the 95 % t interval of the geometric mean over runs by level, for levels with several runs."""
    known = rows[rows[column] > 0]
    found = {
        level: mean_interval(np.log(values.to_numpy(dtype=np.float64)))
        for level, values in known.groupby("level")[column]
        if len(values) > 1
    }
    return pd.DataFrame.from_dict(found, orient="index", columns=["low", "high"], dtype=float)


def curves(axes: Axes, data: FigureData, model: str, column: str, bounds: Bounds, unit: float = 1.0) -> bool:
    """Draw one line of means over runs per cell, with its bounds; return whether there was anything to draw.

    Values are divided by `unit`.
    """
    shown = data.cells_of(model)
    drawn = False
    for place, cell in enumerate(shown):
        rows = data.rows(data.levels, model, cell)
        means = mean_over_runs(rows, column)
        if means.empty:
            continue
        drawn = True
        # Shifted a little sideways, so that coinciding lines can be seen.
        aside = _step(data.grid) ** (place - (len(shown) - 1) / 2)
        look = data.look(cell)
        ends = bounds(rows, column) / unit
        axes.vlines(ends.index.to_numpy() * aside, ends["low"], ends["high"], colors=look.colour, linewidth=1)
        axes.plot(means.index * aside, means / unit, **look.line_style())
    level_axis(axes, data.grid, data.unit.axis)
    return drawn


def highest_shown(values: pd.Series[float]) -> float:
    """Return the highest value that an axis must show; very wide intervals may extend beyond the panel."""
    return 1.5 * float(values.max())


def _step(levels: Sequence[int]) -> float:
    return float((levels[-1] / levels[0]) ** 0.002) if len(levels) > 1 else 1.01


def against_concurrency(
    data: FigureData, columns: Mapping[str, str], limits: tuple[float, float] | None = None
) -> Figure:
    """One row of panels per recorded quantity, one column per model; a single quantity wraps to two columns."""
    shown = recorded(data.levels, list(columns))
    if not shown:
        raise NothingToDraw(not_recorded(columns))
    cells = [cell for cell in data.cells if _measured(data.levels, cell, shown)]
    if len(shown) == 1:
        figure, places = model_panels(data, 2.4, legend=cells)
        placed = [(panel, shown[0], True) for panel in places]
    else:
        figure, grid = panels(data, (len(shown), len(data.models)), 2.2, legend=cells)
        placed = [
            (ModelPanel(axes, model, model == data.models[0], name == shown[-1]), name, name == shown[0])
            for row, name in zip(grid, shown, strict=True)
            for axes, model in zip(row, data.models, strict=True)
        ]
    for panel, name, titled in placed:
        if not curves(panel.axes, data, panel.model, name, run_range):
            say_not_recorded(panel.axes)
        if limits:
            panel.axes.set_ylim(*limits)
        else:
            from_zero(panel.axes)
        panel.axes.set_title(panel.model if titled else "")
        panel.axes.set_ylabel(columns[name] if panel.left else "")
        if not panel.bottom:
            panel.axes.set_xlabel("")
    return figure


def not_recorded(columns: Iterable[str]) -> str:
    """Return the message that these columns have nothing to draw."""
    return f"not recorded, or too few samples in the levels' windows: {', '.join(columns)}"


def _measured(levels: pd.DataFrame, cell: ArmSize, columns: Sequence[str]) -> bool:
    of_cell = levels[(levels["scenario"] == cell.scenario) & (levels["cpu_blocks"] == cell.cpu_blocks)]
    return bool(of_cell[list(columns)].notna().to_numpy().any())
