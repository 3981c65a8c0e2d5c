"""The figures: a registry of names, each a function from the data to a matplotlib Figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from kveval import numerals, stats
from kveval.errors import Failure
from kveval.figure_names import curve_model, figure_names
from kveval.plotting import Cell, FigureData, cell_legend, concurrency_axis, mean_over_runs, panels

STYLE = Path(__file__).with_name("style.mplstyle")

METRIC_TITLES = {
    "throughput_tok_s": "Throughput",
    "ttft_ms_p50": "TTFT, median",
    "ttft_ms_p90": "TTFT, 90th percentile",
    "tpot_ms_p50": "TPOT, median",
    "e2e_ms_p50": "End-to-end latency, median",
    "e2e_ms_p90": "End-to-end latency, 90th percentile",
}
_VERDICT_COLOURS = {stats.BETTER: "#0072B2", stats.WORSE: "#D55E00", stats.PARITY: "#009E73"}
_UNDECIDED_COLOUR = "#8A8A8A"


# Title and what the reader should know, by figure.
CAPTIONS = {
    "peak_throughput_all_scenarios": (
        "Peak throughput",
        "Bars are means over runs, lines 95 % intervals, dots the runs. The peak is the best of the levels measured.",
    ),
    "latency_comparison_all": (
        "Latency at the common level",
        "Median (filled) and 90th percentile (hollow), means over runs, at the level where cells are compared.",
    ),
    "effect_plot": (
        "Effect of every arm on its baseline",
        "95 % intervals over runs; the grey band is the margin. Hollow: no verdict, for the reason in the table.",
    ),
    "pcp_kv_cache_usage": (
        "KV-cache usage of the device",
        "Share of the device's KV blocks that running requests use, mean over the level; idle ones do not count.",
    ),
    "pcp_prefix_cache_hits": (
        "Prefix-cache hits",
        "Device: prompt tokens found in its cache, of all. External: found in the tier, of those the device lacked.",
    ),
    "pcp_request_queues": (
        "Requests in the server",
        "Requests running and waiting, mean over the level. Together they cannot exceed the concurrency.",
    ),
    "pcp_memory_usage": (
        "Memory",
        "Means over the level of what was recorded; memory that server processes share is counted in each of them.",
    ),
}


class FigureError(Failure):
    """There is no figure of that name."""


def caption(name: str) -> tuple[str, str]:
    """Return a figure's title and what its reader should know."""
    if name in CAPTIONS:
        return CAPTIONS[name]
    return f"Throughput against concurrency, {curve_model(name)}", "Lines are means over runs, faint points the runs."


def draw(name: str, data: FigureData) -> Figure:
    """Return the figure `name` (one of `figure_names`). Raises FigureError for any other name."""
    with mpl.rc_context(fname=STYLE):
        if name in REGISTRY:
            return REGISTRY[name](data)
        model = curve_model(name)
        if model in data.models:
            return throughput_curve(data, str(model))
    raise FigureError(f"no figure {name!r}; there are {', '.join(figure_names(data.models))}")


def write_figure(name: str, data: FigureData, outputs: Sequence[Path]) -> None:
    """Draw `name` and write it to every path, the format by its suffix (.png, .svg, .pdf); same data, same bytes."""
    figure = draw(name, data)
    with mpl.rc_context(fname=STYLE):
        for output in outputs:
            stamp = {"Software": None} if output.suffix == ".png" else {"Date": None}
            figure.savefig(output, metadata=stamp)


def peak_throughput_all_scenarios(data: FigureData) -> Figure:
    """Peak throughput of every cell with its interval and its runs."""
    figure, grid = _model_rows(data, 1)
    for axes, model in zip(grid[:, 0], data.models, strict=True):
        cells = data.cells_of(model)
        for place, cell in enumerate(cells):
            peak = data.rows(data.peaks, model, cell)
            if peak.empty:
                continue
            row, colour = peak.iloc[0], data.look(cell).colour
            axes.barh(place, row["throughput_tok_s"], height=0.62, color=colour, alpha=0.28)
            runs = data.rows(data.levels, model, cell)
            points = runs[runs["level"] == row["level"]]["throughput_tok_s"]
            axes.plot(points, np.full(len(points), place), ".", color=colour, alpha=0.55, markersize=4)
            if row["throughput_high_tok_s"] > 0:
                ends = [row["throughput_low_tok_s"], row["throughput_high_tok_s"]]
                axes.plot(ends, [place, place], color=colour, linewidth=2.2, solid_capstyle="butt")
            edge = "" if row["bracketed"] else " (edge of the grid)"
            right = np.nanmax([row["throughput_tok_s"], row["throughput_high_tok_s"], points.max()])
            axes.annotate(
                f"{numerals.mean_of(list(points))} at {row['level']:.0f}{edge}",
                (right, place),
                xytext=(5, 0),
                textcoords="offset points",
                va="center",
                fontsize=7.5,
            )
        _cell_axis(axes, cells)
        axes.set_title(model)
        axes.set_xlim(0, axes.get_xlim()[1] * 1.3)
    grid[-1, 0].set_xlabel(
        "peak output throughput, tok/s (bar: mean, line: 95 % interval, dots: runs; at N concurrent)"
    )
    return figure


def throughput_curve(data: FigureData, model: str) -> Figure:
    """Throughput against concurrency for the cells of one model: means over runs as lines, the runs as points."""
    figure, grid = panels(data, (1, 1), (5.6, 3.7), legend=True)
    axes, cells = grid[0, 0], data.cells_of(model)
    _curves(axes, data, model, cells, "throughput_tok_s", runs=True)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("output throughput, tok/s")
    axes.set_title(model)
    cell_legend(figure, data, cells)
    return figure


def latency_comparison_all(data: FigureData) -> Figure:
    """TTFT, TPOT and end-to-end latency of every cell at its model's common level."""
    quantities = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "end-to-end latency"}
    figure, grid = _model_rows(data, len(quantities))
    for line, model in zip(grid, data.models, strict=True):
        cells, level = data.cells_of(model), data.common_level(model)
        at = data.levels[(data.levels["model"] == model) & (data.levels["level"] == level)]
        for axes, (name, title) in zip(line, quantities.items(), strict=True):
            shown = []
            for place, cell in enumerate(cells):
                rows = data.rows(at, model, cell)
                middle, high = rows[f"{name}_ms_p50"].mean(), rows[f"{name}_ms_p90"].mean()
                colour = data.look(cell).colour
                axes.plot([middle, high], [place, place], color=colour, alpha=0.5, linewidth=1.4)
                axes.plot(middle, place, "o", color=colour)
                axes.plot(high, place, "o", markerfacecolor="white", color=colour)
                shown += [middle, high]
            _latency_axis(axes, np.array(shown))
            _cell_axis(axes, cells, labels=name == "ttft")
            axes.set_title(f"{model}, {level} concurrent" if name == "ttft" else " ")
            axes.set_xlabel(f"{title}, ms")
    handles = [
        Line2D([], [], color="#444444", marker="o", linestyle="", label="median"),
        Line2D([], [], color="#444444", marker="o", linestyle="", markerfacecolor="white", label="90th percentile"),
    ]
    figure.legend(handles=handles, loc="outside upper right", ncols=2)
    return figure


def effect_plot(data: FigureData) -> Figure:
    """The effect of every arm on its baseline with its interval, and the margin; hollow where there is no verdict."""
    metrics = [
        name for name in ("throughput_tok_s", "ttft_ms_p50", "e2e_ms_p50") if name in set(data.comparison["metric"])
    ]
    if not metrics:
        return _nothing(data, "no comparison: the campaign has no arm with a baseline")
    figure, grid = _model_rows(data, len(metrics), without_baselines=True)
    for line, model in zip(grid, data.models, strict=True):
        cells = [cell for cell in data.cells_of(model) if cell.scenario not in data.baselines]
        for axes, metric in zip(line, metrics, strict=True):
            axes.axvspan(-100 * data.margin, 100 * data.margin, color="#000000", alpha=0.06, linewidth=0)
            axes.axvline(0, color="#666666", linewidth=0.9)
            table = data.comparison[data.comparison["metric"] == metric]
            for place, cell in enumerate(cells):
                rows = data.rows(table, model, cell)
                if len(rows) and np.isfinite(rows.iloc[0]["effect_percent"]):
                    _effect(axes, place, rows.iloc[0])
            _cell_axis(axes, cells, labels=metric == metrics[0])
            low, high = axes.get_xlim()
            widest = max(abs(low), abs(high), 250 * data.margin)
            axes.set_xlim(-widest, widest)
            level = data.common_level(model)
            axes.set_title(f"{model}, {level} concurrent" if metric == metrics[0] else " ")
            better = "right" if stats.METRICS[metric] else "left"
            axes.set_xlabel(f"{METRIC_TITLES[metric]}: effect, %\n(better to the {better})")
    handles = [
        Line2D([], [], color=colour, marker="o", linestyle="-", label=verdict)
        for verdict, colour in {**_VERDICT_COLOURS, stats.INCONCLUSIVE: _UNDECIDED_COLOUR}.items()
    ]
    handles.append(
        Line2D([], [], color=_UNDECIDED_COLOUR, marker="o", markerfacecolor="white", label="no verdict", linestyle="-")
    )
    figure.legend(handles=handles, loc="outside upper right", ncols=len(handles))
    return figure


def pcp_kv_cache_usage(data: FigureData) -> Figure:
    """KV-cache usage of the device against concurrency."""
    return _system(data, {"kv_cache_usage_percent": "KV cache in use, %"}, limits=(0, 105))


def pcp_prefix_cache_hits(data: FigureData) -> Figure:
    """Hit rates of the device's prefix cache and of the tier behind it against concurrency."""
    columns = {
        "prefix_cache_hit_percent": "device hits, % of\nprompt tokens",
        "external_cache_hit_percent": "external hits, % of\ntokens asked for there",
    }
    return _system(data, columns, limits=(0, 105))


def pcp_request_queues(data: FigureData) -> Figure:
    """Requests running and waiting in the server against concurrency."""
    return _system(data, {"requests_running": "requests running", "requests_waiting": "requests waiting"})


def pcp_memory_usage(data: FigureData) -> Figure:
    """Memory of host, server and GPU against concurrency, as far as it was recorded."""
    columns = {
        "memory_used_gib": "host memory used, GiB",
        "server_rss_gib": "server resident, GiB",
        "gpu_memory_used_gib": "GPU memory used, GiB",
    }
    return _system(data, columns)


REGISTRY: dict[str, Callable[[FigureData], Figure]] = {
    function.__name__: function
    for function in (
        peak_throughput_all_scenarios,
        latency_comparison_all,
        effect_plot,
        pcp_kv_cache_usage,
        pcp_prefix_cache_hits,
        pcp_request_queues,
        pcp_memory_usage,
    )
}


def _model_rows(data: FigureData, columns: int, *, without_baselines: bool = False) -> tuple[Figure, npt.NDArray[Any]]:
    """Return one row of panels per model, as high as its cells need."""
    counts = [
        sum(not (without_baselines and cell.scenario in data.baselines) for cell in data.cells_of(model))
        for model in data.models
    ]
    size = (2.9 if columns > 1 else 7.5, max(0.26 * max(counts) + 0.95, 1.5))
    return panels(data, (len(data.models), columns), size, legend=columns > 1)


def _cell_axis(axes: Axes, cells: Sequence[Cell], *, labels: bool = True) -> None:
    axes.set_yticks(range(len(cells)), [cell.label for cell in cells] if labels else [""] * len(cells))
    axes.set_ylim(len(cells) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")


def _latency_axis(axes: Axes, values: npt.NDArray[np.float64]) -> None:
    """Start at zero, or use a logarithmic axis where the values span more than a decade and a half."""
    observed = values[np.isfinite(values)]
    if len(observed) and observed.max() > 30 * observed.min():
        axes.set_xscale("log")
    else:
        axes.set_xlim(left=0)


def _effect(axes: Axes, place: int, row: pd.Series[float]) -> None:
    verdict = str(row["verdict"])
    decided = verdict in (*_VERDICT_COLOURS, stats.INCONCLUSIVE)
    colour = _VERDICT_COLOURS.get(verdict, _UNDECIDED_COLOUR)
    if np.isfinite(row["low_percent"]):
        axes.plot([row["low_percent"], row["high_percent"]], [place, place], color=colour, linewidth=1.8)
    axes.plot(row["effect_percent"], place, "o", color=colour, markerfacecolor=colour if decided else "white")


def _curves(axes: Axes, data: FigureData, model: str, cells: Sequence[Cell], column: str, *, runs: bool) -> bool:
    """Draw one line per cell; return whether anything was recorded."""
    drawn = False
    for place, cell in enumerate(cells):
        rows, look = data.rows(data.levels, model, cell), data.look(cell)
        # Moved a little sideways, so that lines that coincide can be seen.
        aside = 2 ** (0.025 * (place - (len(cells) - 1) / 2))
        means = mean_over_runs(rows, column)
        if means.empty:
            continue
        drawn = True
        axes.plot(means.index * aside, means, color=look.colour, marker=look.marker, linestyle=look.line)
        if runs and rows["run"].nunique() > 1:
            axes.plot(rows["level"] * aside, rows[column], ".", color=look.colour, alpha=0.3, markersize=4)
    concurrency_axis(axes, [int(level) for level in data.levels["level"].unique()])
    return drawn


def _system(data: FigureData, columns: dict[str, str], limits: tuple[float, float] | None = None) -> Figure:
    """One row of panels per recorded quantity, one column per model."""
    levels = data.levels
    recorded = {name: label for name, label in columns.items() if name in levels and levels[name].notna().any()}
    if not recorded:
        return _nothing(data, f"not recorded: {', '.join(columns)}")
    figure, grid = panels(data, (len(recorded), len(data.models)), (3.1, 2.3), legend=True)
    for number, (line, (name, label)) in enumerate(zip(grid, recorded.items(), strict=True)):
        for axes, model in zip(line, data.models, strict=True):
            if not _curves(axes, data, model, data.cells_of(model), name, runs=False):
                axes.text(0.5, 0.5, "not recorded", transform=axes.transAxes, ha="center", color="#888888")
            # Room above the highest marker, which would be cut in half otherwise.
            axes.set_ylim(*(limits or (0, 1.08 * axes.dataLim.y1 or 1.0)))
            axes.set_title(model if number == 0 else "")
            axes.set_ylabel(label if model == data.models[0] else "")
            if number < len(grid) - 1:
                axes.set_xlabel("")
    cell_legend(figure, data, data.cells)
    return figure


def _nothing(data: FigureData, message: str) -> Figure:
    """A figure that says why it is empty."""
    figure, grid = panels(data, (1, 1), (5.5, 1.6), legend=False)
    grid[0, 0].set_axis_off()
    grid[0, 0].text(0.5, 0.5, message, ha="center", va="center", color="#666666", wrap=True)
    return figure
