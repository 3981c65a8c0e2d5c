"""The arms side by side at one level: throughput, time to the first token, latencies."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from kveval.campaign.cell import Cell
from kveval.estimators.intervals import mean_interval
from kveval.report.data import numbers as numerals
from kveval.report.data.figures import FigureData
from kveval.report.figures.axes import (
    BOX,
    GREY,
    NothingToDraw,
    axis_maximum,
    cell_axis,
    geometric_interval,
    mark_ends_beyond,
    model_rows,
    scale_to_values,
    seconds_or_ms,
    separate_thousands,
)
from kveval.tables.cells import THROUGHPUT, kept_runs, rows_of

_LATENCIES = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "end-to-end latency"}
_RUNS = [
    Line2D([], [], color="#BBBBBB", linewidth=7, label="mean over runs"),
    Line2D([], [], color=GREY, linewidth=1.6, label="95 % interval"),
    Line2D(
        [],
        [],
        color="#444444",
        marker="o",
        linestyle="",
        markeredgecolor="white",
        label="single run",
    ),
]


def throughput_by_arm(data: FigureData) -> Figure:
    """Output throughput of every cell at every level, with its interval and its runs."""
    columns = [
        (THROUGHPUT, level, f"output tok/s, {data.level_unit.label(level)}", 1.0)
        for level in data.all_levels
    ]
    return _by_arm(data, columns)


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
    figure, grid = model_rows(data, len(columns), cells=data.cells_of, handles=_RUNS)
    for of_model, model in zip(grid, data.models, strict=True):
        cells, levels = data.cells_of(model), data.levels[data.levels["model"] == model]
        for axes, (column, level, title, size) in zip(of_model, columns, strict=True):
            rows = levels[levels["level"] == level]
            values = rows[column] / size
            behind = values.where(_compared(data, rows, column, level))
            _bars(
                axes,
                data,
                cells,
                rows.assign(value=values, averaged=behind),
                [""] * len(cells),
                _geometric_mean,
            )
            cell_axis(axes, cells, labels=data.narrow or axes is of_model[0])
            axes.set_title(model if axes is of_model[0] else " ")
            labelled = data.narrow or model == data.models[-1]
            axes.set_xlabel(title if labelled else "")
    return figure


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


def peak_throughput_all_scenarios(data: FigureData) -> Figure:
    """Peak throughput of every cell with its interval and its runs."""
    figure, grid = model_rows(data, 1, cells=data.cells_of, handles=_RUNS)
    for axes, model in zip(grid[:, 0], data.models, strict=True):
        cells, at_peak, notes = data.cells_of(model), [], []
        for cell in cells:
            peak, runs = (
                rows_of(data.peaks, cell),
                data.levels_of(cell),
            )
            level, note = np.nan, ""
            if len(peak):
                level = peak.iloc[0]["level"]
                edge = "" if peak.iloc[0]["bracketed"] else ", edge"
                note = f" at {level:.0f}{edge}"
            at_peak.append(runs[runs["level"] == level])
            notes.append(note)
        rows = pd.concat(at_peak)
        _bars(
            axes,
            data,
            cells,
            rows.assign(value=rows[THROUGHPUT], averaged=rows[THROUGHPUT]),
            notes,
            np.mean,
        )
        cell_axis(axes, cells)
        axes.set_title(model)
    grid[-1, 0].set_xlabel(
        f"peak output throughput, tok/s (label: mean {data.level_unit.heading})"
    )
    return figure


def _bars(
    axes: Axes,
    data: FigureData,
    cells: Sequence[Cell],
    rows: pd.DataFrame,
    notes: Sequence[str],
    mean_of: Callable[[pd.Series[float]], float],
) -> None:
    """Draw `rows`, one per run: a bar for the mean of the column `averaged`, a line for its interval, a dot for each
    `value`.

    The mean is written beside the bar, with the cell's note. Of an interval that extends beyond the panel an arrow at
    its edge is drawn, and the mean stands behind that.
    """
    known = rows.dropna(subset=["value"])
    labels = [Cell.from_row(row).label for row in known.to_dict("records")]
    arms = pd.Series(labels, known.index, dtype=object)
    highest = axis_maximum(known["value"]) if len(known) else 1.0
    texts: dict[int, tuple[str, float, tuple[float, float]]] = {}
    for place, (cell, note) in enumerate(zip(cells, notes, strict=True)):
        of_arm = known[arms == cell.label]
        colour = data.style_of(cell).colour
        axes.scatter(
            of_arm["value"],
            [place] * len(of_arm),
            s=20,
            color=colour,
            edgecolor="white",
            linewidth=0.6,
            zorder=3,
        )
        runs = of_arm["averaged"].dropna()
        if len(runs):
            mean, interval = mean_of(runs), _interval(runs)
            axes.barh(place, mean, height=0.66, color=colour, alpha=0.35)
            axes.plot(interval, [place, place], color=GREY, linewidth=1.6)
            text = f"{numerals.rounded_mean(mean, list(runs))}{note}"
            texts[place] = text, of_arm["value"].max(), interval
    # In a narrow panel a label needs a larger share of the width.
    spec = axes.get_subplotspec()
    columns = spec.get_gridspec().ncols if spec else 1
    room = 1.12 + 0.08 * (3 if data.narrow else columns)
    axes.set_xlim(0, room * min(axes.dataLim.x1, highest) if len(known) else 1.0)
    for place, (text, most, interval) in texts.items():
        goes_on = mark_ends_beyond(axes, place, interval, GREY)
        right = axes.get_xlim()[1] if goes_on else np.nanmax([most, interval[1]])
        _write_beside(axes, (right, place), text)
    separate_thousands(axes.xaxis)


def _write_beside(axes: Axes, place: tuple[float, float], text: str) -> None:
    """Write a text to the right of a place, outside the panel if that is at its edge."""
    axes.annotate(
        text,
        place,
        xytext=(5, 0),
        textcoords="offset points",
        va="center",
        fontsize=7.5,
        bbox=BOX,
    )


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


def latency_comparison_all(data: FigureData) -> Figure:
    """TTFT, TPOT and end-to-end latency of every cell at its model's common level."""
    handles = [
        Line2D([], [], color="#444444", marker="o", label="median"),
        Line2D(
            [], [], color="#444444", marker="o", markerfacecolor="white", label="P90"
        ),
    ]
    tables = []
    for model in data.models:
        levels = data.levels[data.levels["model"] == model]
        tables.append(levels[levels["level"] == data.common_level(model)])
    known = {
        name: title for name, title in _LATENCIES.items() if _is_observed(name, tables)
    }
    if not known:
        raise NothingToDraw(
            "no latencies are known at the level where cells are compared"
        )
    figure, grid = model_rows(data, len(known), cells=data.cells_of, handles=handles)
    for column_of_axes, (name, title) in zip(grid.T, known.items(), strict=True):
        slowest = max(table[f"{name}_ms_p90"].max() for table in tables)
        unit, unit_ms = seconds_or_ms(slowest)
        for axes, model, table in zip(column_of_axes, data.models, tables, strict=True):
            cells = data.cells_of(model)
            drawn = []
            for place, cell in enumerate(cells):
                rows, colour = rows_of(table, cell), data.style_of(cell).colour
                intervals = _latency_marks(axes, place, rows, name, unit_ms, colour)
                drawn += [(*of_mark, colour) for of_mark in intervals]
            shown = pd.concat([table[column] for column in _latency_columns(name)])
            scale_to_values(axes.xaxis, shown / unit_ms, shown / unit_ms)
            for beside, interval, colour in drawn:
                mark_ends_beyond(axes, beside, interval, colour)
            first = name == next(iter(known))
            cell_axis(axes, cells, labels=data.narrow or first)
            axes.set_title(
                f"{model}, {data.level_unit.label(data.common_level(model))}"
                if first
                else " "
            )
            labelled = data.narrow or model == data.models[-1]
            axes.set_xlabel(f"{title}, {unit}" if labelled else "")
    return figure


def _latency_columns(name: str) -> list[str]:
    return [f"{name}_ms_p50", f"{name}_ms_p90"]


def _is_observed(name: str, tables: Sequence[pd.DataFrame]) -> bool:
    """Whether any row of these tables has a latency."""
    columns = _latency_columns(name)
    return any(table[columns].notna().to_numpy().any() for table in tables)


def _latency_marks(
    axes: Axes, place: int, rows: pd.DataFrame, name: str, unit_ms: float, colour: str
) -> list[tuple[float, tuple[float, float]]]:
    """Draw a cell's median and P90 of a latency, each with its interval, a little above and below its place.

    Return the intervals, each with where it is on y.
    """
    intervals = []
    marks = zip(_latency_columns(name), (-0.16, 0.16), (colour, "white"), strict=True)
    for column, aside, face in marks:
        for _, low, high in geometric_interval(rows, column).itertuples():
            interval = (low / unit_ms, high / unit_ms)
            axes.plot(interval, [place + aside] * 2, color=colour, linewidth=1.3)
            intervals.append((place + aside, interval))
        axes.plot(
            rows[column].mean() / unit_ms,
            place + aside,
            "o",
            color=colour,
            markerfacecolor=face,
            markersize=4,
        )
    return intervals
