"""The arms side by side at one level: throughput, time to the first token."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from kveval.campaign.cell import CELL_COLUMNS, Cell
from kveval.estimators.intervals import mean_interval
from kveval.report.data import numbers as numerals
from kveval.report.data.figures import FigureData
from kveval.report.figures.axes import (
    DOT,
    GREY,
    NothingToDraw,
    axis_maximum,
    cell_axis,
    interval_handle,
    mark_ends_beyond,
    model_rows,
    seconds_or_ms,
    separate_thousands,
    write_beside,
)
from kveval.report.figures.names import figure
from kveval.tables.cells import THROUGHPUT, kept_runs


@figure(
    title="How much does each arm deliver?",
    section="across models",
    useful="few",
    narrow=True,
    caption=(
        "Output tokens delivered per second in the measurement window, those of "
        "unfinished requests included. Where there are several runs, bars are "
        "geometric means over those that comparisons rest on. Where an interval "
        "extends beyond the panel, an arrow stands at its edge."
    ),
)
def throughput_by_arm(data: FigureData) -> Figure:
    """Output throughput of every cell at every level, with its interval and its runs."""
    columns = [
        (THROUGHPUT, level, f"output tok/s, {data.level_unit.label(level)}", 1.0)
        for level in data.all_levels
    ]
    return _by_arm(data, columns)


@figure(
    title="How long does the first token take with each arm?",
    section="across models",
    useful="few",
    narrow=True,
    caption=(
        "Time to the first token of the requests observed; a request without one is "
        "left out. Where there are several runs, bars are geometric means over those "
        "that comparisons rest on. Where an interval extends beyond the panel, an "
        "arrow stands at its edge."
    ),
)
def ttft_by_arm(data: FigureData) -> Figure:
    """Median and P90 of the time to the first token of every cell at every level, with its interval and its runs."""
    unit, size = seconds_or_ms(data.levels["ttft_ms_p90"].max())
    columns = [
        (
            f"ttft_ms_{quantile}",
            level,
            f"{word} TTFT, {unit}, {data.level_unit.label(level)}",
            size,
        )
        for level in data.all_levels
        for quantile, word in (("p50", "median"), ("p90", "P90"))
    ]
    return _by_arm(data, columns)


def _by_arm(data: FigureData, columns: Sequence[tuple[str, int, str, float]]) -> Figure:
    """Draw a row of panels per model; each of `columns`: column of `levels`, level, axis title, divisor of values."""
    if not any(data.levels[column].notna().any() for column, *_ in columns):
        raise NothingToDraw(
            f"not measured: {', '.join(dict.fromkeys(column for column, *_ in columns))}"
        )
    tables = {}
    for column, level, _, size in columns:
        rows = data.levels[data.levels["level"] == level]
        kept = _compared(data, rows, column, level)
        tables[column, level] = rows.assign(
            metric=column, value=rows[column] / size, kept=kept
        )
    handles = _key([*tables.values()])
    figure, grid = model_rows(data, len(columns), cells=data.cells_of, handles=handles)
    for of_model, model in zip(grid, data.models, strict=True):
        cells = data.cells_of(model)
        for axes, (column, level, title, _) in zip(of_model, columns, strict=True):
            table = tables[column, level]
            rows = table[table["model"] == model]
            _bars(axes, data, cells, rows, {}, _geometric_mean)
            cell_axis(axes, cells, labels=data.narrow or axes is of_model[0])
            axes.set_title(model if axes is of_model[0] else "")
            labelled = data.narrow or model == data.models[-1]
            axes.set_xlabel(title if labelled else "")
    return figure


def _key(tables: Sequence[pd.DataFrame]) -> list[Artist]:
    """The entries of the legend for what `_bars` draws of these tables."""
    rows = pd.concat(tables)
    kept = rows[rows["kept"]].groupby([*CELL_COLUMNS, "level", "metric"])["value"]
    counts, least = kept.count(), kept.min()
    handles: list[Artist] = []
    if (counts > 1).any():
        handles.append(Patch(color="#BBBBBB", label="mean over runs"))
    if ((counts > 1) & (least > 0)).any():
        handles.append(interval_handle())
    handles.append(Line2D([], [], markeredgecolor="white", label="single run", **DOT))
    if rows["value"][~rows["kept"]].notna().any():
        label = "run that comparisons leave out"
        handles.append(Line2D([], [], markerfacecolor="white", label=label, **DOT))
    return handles


def _compared(
    data: FigureData, rows: pd.DataFrame, metric: str, level: int
) -> npt.NDArray[np.bool_]:
    """Whether the comparisons of a metric at a level rest on each of `rows`; on all of a cell that was not compared."""
    table = data.comparison[data.comparison["level"] == level]
    cells = list(map(Cell.from_row, rows.to_dict("records")))
    kept = kept_runs(table)
    of_rows = [kept[cell, metric].runs for cell in cells]
    return np.array(
        [
            not runs or run in runs
            for runs, run in zip(of_rows, rows["run"], strict=True)
        ],
        bool,
    )


@figure(
    title="How much does each arm deliver at most?",
    section="across models",
    useful="several",
    narrow=True,
    caption=(
        "The level with the highest mean. Choosing the highest of several noisy "
        "levels favours it; compare arms in the effect plot. Where it says edge, the "
        "peak lies on the first or last level measured, so that the true one may lie "
        "beyond. Where an interval extends beyond the panel, an arrow stands at its "
        "edge."
    ),
)
def peak_throughput_all_scenarios(data: FigureData) -> Figure:
    """Peak throughput of every cell with its interval and its runs."""
    notes: dict[Cell, str] = {}
    at_peak = [data.levels.iloc[:0]]
    for row in data.peaks.dropna(subset=["level"]).to_dict("records"):
        cell, edge = Cell.from_row(row), "" if row["bracketed"] else ", edge"
        notes[cell] = f" at {row['level']:.0f}{edge}"
        runs = data.levels_of(cell)
        at_peak.append(runs[runs["level"] == row["level"]])
    table = pd.concat(at_peak)
    table = table.assign(metric=THROUGHPUT, value=table[THROUGHPUT], kept=True)
    figure, grid = model_rows(data, 1, cells=data.cells_of, handles=_key([table]))
    for axes, model in zip(grid[:, 0], data.models, strict=True):
        cells, rows = data.cells_of(model), table[table["model"] == model]
        _bars(axes, data, cells, rows, notes, np.mean)
        cell_axis(axes, cells)
        axes.set_title(model)
    grid[-1, 0].set_xlabel(
        f"peak output throughput, tok/s (right: mean {data.level_unit.heading})"
    )
    return figure


def _bars(
    axes: Axes,
    data: FigureData,
    cells: Sequence[Cell],
    rows: pd.DataFrame,
    notes: Mapping[Cell, str],
    mean_of: Callable[[pd.Series[float]], float],
) -> None:
    """Draw `rows`, one per run: a bar for the mean of each cell's `value`s, a line for its interval, a dot for each.

    A run that is not `kept` has a hollow dot, and is no part of the mean. Dots lie below each other in the order of the
    runs, so that each is seen. The mean stands to the right of the panel with the cell's note: beside the bar it would
    be behind the interval, and its place be read as the bar's end. Of an interval that extends beyond the panel an
    arrow at its edge is drawn.
    """
    known = rows.dropna(subset=["value"])
    labels = [Cell.from_row(row).label for row in known.to_dict("records")]
    arms = pd.Series(labels, known.index, dtype=object)
    intervals: dict[int, tuple[float, float]] = {}
    for place, cell in enumerate(cells):
        runs = known[arms == cell.label].sort_values("run")
        colour = data.style_of(cell).colour
        kept = runs[runs["kept"]]["value"]
        if len(kept):
            mean, intervals[place] = mean_of(kept), _interval(kept)
            axes.barh(place, mean, height=0.7, color=colour, alpha=0.35)
            axes.plot(intervals[place], [place, place], color=GREY, linewidth=1.6)
            text = f"{numerals.rounded_mean(mean, list(kept))}{notes.get(cell, '')}"
            write_beside(axes, place, text)
        spread = 0.25 * np.linspace(-1, 1, len(runs)) if len(runs) > 1 else 0.0
        axes.scatter(
            runs["value"],
            np.full(len(runs), place) + spread,
            s=18,
            color=np.where(runs["kept"], colour, "white"),
            edgecolor=np.where(runs["kept"], "white", colour),
            linewidth=0.6,
            zorder=3,
        )
    highest = 1.2 * axis_maximum(known["value"])
    axes.set_xlim(0, min(1.04 * axes.dataLim.x1, highest) if len(known) else 1.0)
    for place, interval in intervals.items():
        mark_ends_beyond(axes, place, interval, GREY)
    separate_thousands(axes.xaxis)


def _geometric_mean(values: pd.Series[float]) -> float:
    """The geometric mean over runs, as effects have it; the arithmetic one if a run delivered nothing."""
    return float(np.exp(np.log(values).mean()) if (values > 0).all() else values.mean())


def _interval(values: pd.Series[float]) -> tuple[float, float]:
    """The 95 % t interval of the geometric mean over runs; NaN for a single run."""
    return (
        mean_interval(np.log(values.to_numpy(dtype=np.float64)))
        if (values > 0).all()
        else (np.nan, np.nan)
    )
