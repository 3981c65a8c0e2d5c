"""Throughput: the peaks, the curves over concurrency, and throughput and latency side by side."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from kveval.analysis.cells import THROUGHPUT
from kveval.report.data import numbers as numerals
from kveval.report.data.figures import FigureData
from kveval.report.figures.axes import cell_axis, from_zero, logarithmic, model_rows, panels, seconds_or_ms, thousands
from kveval.report.figures.level_axes import curves, geometric_interval, highest_shown


def peak_throughput_all_scenarios(data: FigureData) -> Figure:
    """Peak throughput of every cell with its interval and its runs."""
    figure, grid = model_rows(data, 1, width=8.5, cells=data.cells_of)
    for axes, model in zip(grid[:, 0], data.models, strict=True):
        cells = data.cells_of(model)
        highest = highest_shown(data.levels[data.levels["model"] == model][THROUGHPUT])
        for place, cell in enumerate(cells):
            peak = data.rows(data.peaks, model, cell)
            if peak.empty:
                continue
            row, colour = peak.iloc[0], data.look(cell).colour
            axes.barh(place, row[THROUGHPUT], height=0.62, color=colour, alpha=0.3)
            runs = data.rows(data.levels, model, cell)
            points = runs[runs["level"] == row["level"]][THROUGHPUT]
            axes.plot(points, np.full(len(points), place), ".", color=colour, alpha=0.7, markersize=4)
            if row["throughput_high_tok_s"] > 0:
                ends = [row["throughput_low_tok_s"], row["throughput_high_tok_s"]]
                axes.plot(ends, [place, place], color=colour, linewidth=2.0, solid_capstyle="butt")
            edge = "" if row["bracketed"] else ", edge"
            right = np.nanmax([row[THROUGHPUT], row["throughput_high_tok_s"], points.max()])
            right = min(right, highest)
            axes.annotate(
                f"{numerals.mean_of(list(points))} at {row['level']:.0f}{edge}",
                (right, place),
                xytext=(5, 0),
                textcoords="offset points",
                va="center",
                fontsize=7.5,
                # An interval may go on behind it.
                bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.8},
            )
        cell_axis(axes, cells)
        axes.set_title(model)
        axes.set_xlim(0, 1.2 * min(axes.get_xlim()[1], highest))
        thousands(axes.xaxis)
    grid[-1, 0].set_xlabel(f"peak output throughput, tok/s (label: mean {data.unit.heading})")
    return figure


def throughput_curve_all(data: FigureData, model: str) -> Figure:
    """Throughput against concurrency for the cells of one model."""
    cells = data.cells_of(model)
    figure, grid = panels(data, (1, 1), (7.5, 4.0), legend=cells)
    axes = grid[0, 0]
    curves(axes, data, model, THROUGHPUT, geometric_interval)
    from_zero(axes, highest_shown(data.levels[data.levels["model"] == model][THROUGHPUT]))
    thousands(axes.yaxis)
    axes.set_ylabel("output throughput, tok/s")
    axes.set_title(model)
    return figure


_QUANTITIES = {
    THROUGHPUT: "output tok/s",
    "ttft_ms_p50": "TTFT p50, {unit}",
    "tpot_ms_p50": "TPOT p50, {unit}",
    "e2e_ms_p50": "E2E p50, {unit}",
}


def benchmark_results(data: FigureData) -> Figure:
    """Throughput, TTFT, TPOT and end-to-end latency against concurrency, one row of panels per model."""
    figure, grid = panels(data, (len(data.models), len(_QUANTITIES)), (2.7, 2.0), legend=data.cells)
    for axes_of_column, (column, label) in zip(grid.T, _QUANTITIES.items(), strict=True):
        values = data.levels[column]
        unit, size = ("", 1.0) if column == THROUGHPUT else seconds_or_ms(values.max())
        for axes, model in zip(axes_of_column, data.models, strict=True):
            curves(axes, data, model, column, geometric_interval, size)
            shown = values[data.levels["model"] == model] / size
            if column != THROUGHPUT and values.max() > 30 * values.min() > 0:
                logarithmic(axes.yaxis)
                axes.set_ylim(shown.min() / 1.5, highest_shown(shown))
            else:
                from_zero(axes, highest_shown(shown))
                thousands(axes.yaxis)
            axes.set_ylabel(label.format(unit=unit))
            axes.set_title(model if column == THROUGHPUT else " ")
            axes.set_xlabel(data.unit.axis if model == data.models[-1] else "")
    return figure
