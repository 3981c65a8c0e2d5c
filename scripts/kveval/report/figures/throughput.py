"""Throughput against load, and throughput and latency side by side."""

from __future__ import annotations

from dataclasses import replace

from matplotlib.figure import Figure

from kveval.report.data.figures import FigureData
from kveval.report.figures.axes import (
    NothingToDraw,
    axis_maximum,
    draw_lines,
    geometric_interval,
    panels,
    run_range,
    scale_to_values,
    seconds_or_ms,
    separate_thousands,
    start_at_zero,
)
from kveval.tables.cells import THROUGHPUT
from kveval.tables.levels.goodput import GOODPUT


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


_QUANTITIES = {
    THROUGHPUT: "output tok/s",
    "ttft_ms_p50": "TTFT p50, {unit}",
    "tpot_ms_p50": "TPOT p50, {unit}",
    "e2e_ms_p50": "E2E p50, {unit}",
}


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
            axes.set_title(model if column == THROUGHPUT else " ")
            axes.set_xlabel(data.level_unit.axis if model == data.models[-1] else "")
    return figure


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
            limits if model == data.models[0] else " ",
            fontsize="medium",
            fontweight="normal",
        )
    return figure
