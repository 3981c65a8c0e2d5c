"""Throughput against load, and throughput and latency side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from kveval.campaign.cell import CELL_COLUMNS
from kveval.report.data.figures import FigureData
from kveval.report.figures.axes import (
    DOT,
    NothingToDraw,
    axis_maximum,
    cell_axis,
    draw_lines,
    geometric_interval,
    interval_handle,
    mark_ends_beyond,
    model_rows,
    panels,
    run_range,
    scale_to_values,
    seconds_or_ms,
    separate_thousands,
    start_at_zero,
)
from kveval.report.figures.names import figure
from kveval.tables.cells import THROUGHPUT, rows_of
from kveval.tables.levels.goodput import GOODPUT


@figure(
    template="throughput_curve_{model}_all",
    title="How does throughput grow with load? {model}",
    section="model",
    useful="several",
    caption=(
        "Output tokens delivered per second, those of unfinished requests included. "
        "Means over a cell's runs; where there are several, upright bars are 95 % "
        "intervals. Cells are shifted a little sideways so that coinciding lines can "
        "be seen."
    ),
)
def throughput_curve_all(data: FigureData, model: str) -> Figure:
    """Throughput against concurrency for the cells of one model."""
    cells = data.cells_of(model)
    figure, grid = panels(data, (1, 1), 4.0, legend=cells, model=model)
    axes = grid[0, 0]
    draw_lines(axes, data, model, THROUGHPUT, geometric_interval)
    start_at_zero(
        axes, axis_maximum(data.levels[data.levels["model"] == model][THROUGHPUT])
    )
    separate_thousands(axes.yaxis)
    axes.set_ylabel("output throughput, tok/s")
    return figure


_LATENCIES = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "end-to-end latency"}


@figure(
    title="How long do requests take?",
    section="across models",
    useful="several",
    narrow=True,
    caption=(
        "Median and P90 at the level where the model's cells are compared, means over "
        "a cell's runs. Where a value has no interval, it is from a single run. Where "
        "an interval extends beyond the panel, an arrow stands at its edge."
    ),
)
def latency_comparison_all(data: FigureData) -> Figure:
    """TTFT, TPOT and end-to-end latency of every cell at its model's common level."""
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
    drawn = pd.concat(tables)
    handles = [
        Line2D([], [], label="median", **DOT),
        Line2D([], [], label="P90", markerfacecolor="white", **DOT),
    ]
    if (drawn.groupby([*CELL_COLUMNS])[_columns_of(known)].count() > 1).any(axis=None):
        handles.append(interval_handle("#444444"))
    figure, grid = model_rows(data, len(known), cells=data.cells_of, handles=handles)
    for column_of_axes, (name, title) in zip(grid.T, known.items(), strict=True):
        slowest = max(table[f"{name}_ms_p90"].max() for table in tables)
        unit, unit_ms = seconds_or_ms(slowest)
        for axes, model, table in zip(column_of_axes, data.models, tables, strict=True):
            cells = data.cells_of(model)
            intervals = []
            for place, cell in enumerate(cells):
                rows, colour = rows_of(table, cell), data.style_of(cell).colour
                marks = _latency_marks(axes, place, rows, name, unit_ms, colour)
                intervals += [(*of_mark, colour) for of_mark in marks]
            shown = pd.concat([table[column] for column in _columns_of([name])])
            scale_to_values(axes.xaxis, shown / unit_ms, shown / unit_ms)
            for beside, interval, colour in intervals:
                mark_ends_beyond(axes, beside, interval, colour)
            first = name == next(iter(known))
            cell_axis(axes, cells, labels=data.narrow or first)
            axes.set_title(
                f"{model}, {data.level_unit.label(data.common_level(model))}"
                if first
                else ""
            )
            labelled = data.narrow or model == data.models[-1]
            axes.set_xlabel(f"{title}, {unit}" if labelled else "")
    return figure


def _columns_of(names: Iterable[str]) -> list[str]:
    return [f"{name}_ms_{quantile}" for name in names for quantile in ("p50", "p90")]


def _is_observed(name: str, tables: Sequence[pd.DataFrame]) -> bool:
    """Whether any row of these tables has a latency."""
    columns = _columns_of([name])
    return any(table[columns].notna().to_numpy().any() for table in tables)


def _latency_marks(
    axes: Axes, place: int, rows: pd.DataFrame, name: str, unit_ms: float, colour: str
) -> list[tuple[float, tuple[float, float]]]:
    """Draw a cell's median and P90 of a latency, each with its interval, a little above and below its place.

    Return the intervals, each with where it is on y.
    """
    intervals = []
    marks = zip(_columns_of([name]), (-0.16, 0.16), (colour, "white"), strict=True)
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


_QUANTITIES = {
    THROUGHPUT: "output tok/s",
    "ttft_ms_p50": "TTFT p50, {unit}",
    "tpot_ms_p50": "TPOT p50, {unit}",
    "e2e_ms_p50": "E2E p50, {unit}",
}


@figure(
    title="What does throughput cost in latency?",
    section="across models",
    useful="several",
    narrow=True,
    caption=(
        "Means over a cell's runs; where there are several, upright bars are 95 % "
        "intervals. Latencies are of the requests observed: a request without a first "
        "token has no TTFT."
    ),
)
def benchmark_results(data: FigureData) -> Figure:
    """Throughput, TTFT, TPOT and end-to-end latency against concurrency, one row of panels per model."""
    known = {
        column: label
        for column, label in _QUANTITIES.items()
        if data.levels[column].notna().any()
    }
    figure, grid = panels(data, (len(data.models), len(known)), 2.1, legend=data.arms)
    for axes_of_column, (column, label) in zip(grid.T, known.items(), strict=True):
        values = data.levels[column]
        unit, size = ("", 1.0) if column == THROUGHPUT else seconds_or_ms(values.max())
        for axes, model in zip(axes_of_column, data.models, strict=True):
            draw_lines(axes, data, model, column, geometric_interval, size)
            shown = values[data.levels["model"] == model] / size
            if column == THROUGHPUT:
                start_at_zero(axes, axis_maximum(shown))
                separate_thousands(axes.yaxis)
            else:
                scale_to_values(axes.yaxis, shown, values)
            axes.set_ylabel(label.format(unit=unit))
            axes.set_title(model if column == THROUGHPUT else "")
            axes.set_xlabel(data.level_unit.axis if model == data.models[-1] else "")
    return figure


@figure(
    title="How much meets the limits?",
    section="across models",
    useful="limited",
    caption=(
        "What met the campaign's latency limits: per second, and as a share of what "
        "met or missed them. Values are means over a cell's runs; where there are "
        "several, upright bars span them. Cells are shifted a little sideways so that "
        "coinciding lines can be seen."
    ),
)
def goodput(data: FigureData) -> Figure:
    """Goodput, and the share of settled requests that met the limits, against load; one row of panels per model."""
    if GOODPUT not in data.levels or not data.levels[GOODPUT].notna().any():
        raise NothingToDraw(
            "no report kept requests with the latencies that are limited"
        )
    figure, grid = panels(data, (len(data.models), 2), 2.6, legend=data.arms)
    levels = data.levels.assign(met_percent=100 * data.levels["goodput_share"])
    limits = str(levels["goodput_limits"].iloc[0])
    for row, model in zip(grid, data.models, strict=True):
        for axes, column in zip(row, (GOODPUT, "met_percent"), strict=True):
            draw_lines(axes, replace(data, levels=levels), model, column, run_range)
            axes.set_xlabel(data.level_unit.axis if model == data.models[-1] else "")
        start_at_zero(row[0])
        row[0].set_ylabel(f"goodput, {data.goodput_unit} a second")
        row[0].set_title(model)
        row[1].set_ylim(-3, 103)
        row[1].set_ylabel("met the limits, %")
        row[1].set_title(
            limits if model == data.models[0] else "",
            fontsize="medium",
            fontweight="normal",
        )
    return figure
