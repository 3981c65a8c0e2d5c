"""Requests, memory, device utilisation, and correlations with throughput."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from kveval.estimators.correlations import (
    CORRELATED,
    correlations_by_model,
    recorded_columns,
)
from kveval.report.data.figures import FigureData
from kveval.report.figures.axes import (
    NothingToDraw,
    draw_heatmap,
    lines_over_levels,
    model_panels,
    not_recorded_message,
    panels,
    separate_thousands,
    start_at_zero,
)
from kveval.report.figures.names import figure
from kveval.tables.cells import THROUGHPUT

_DEVICE = {
    "GPU": ("gpu_utilisation_percent", "GPU active, %"),
    "CPU": ("cpu_utilisation_percent", "CPU time not idle, % (the CPU is the device)"),
}
_NAMES = {
    "kv_cache_usage_percent": "KV cache in use",
    "prefix_cache_hit_percent": "device hit rate",
    "external_cache_hit_percent": "external hit rate",
    "requests_running": "requests running",
    "requests_waiting": "requests waiting",
    "offload_load_mb_s": "offload loads",
    "offload_store_mb_s": "offload stores",
    "cpu_utilisation_percent": "CPU utilisation",
    "gpu_utilisation_percent": "GPU utilisation",
    "gpu_power_w": "GPU power",
    "memory_used_gib": "host memory used",
}


@figure(
    title="Do requests wait in the server?",
    section="system",
    useful="several",
    caption=(
        "Requests running and waiting in the server, means over the level's window. "
        "In a closed loop both together cannot be more than its streams. Values are "
        "means over a cell's runs; where there are several, upright bars span them."
    ),
)
def pcp_request_queues(data: FigureData) -> Figure:
    """Requests running and waiting in the server against concurrency."""
    return lines_over_levels(
        data,
        {
            "requests_running": "requests running",
            "requests_waiting": "requests waiting",
        },
    )


@figure(
    title="How much memory does each arm take?",
    section="system",
    useful="several",
    caption=(
        "Means over the level's window of what was recorded. Memory that processes of "
        "the server share is counted in each of them. Values are means over a cell's "
        "runs; where there are several, upright bars span them."
    ),
)
def pcp_memory_usage(data: FigureData) -> Figure:
    """Memory of host, server and GPU against concurrency, as far as it was recorded."""
    columns = {
        "memory_used_gib": "host memory used, GiB",
        "server_rss_gib": "server resident, GiB",
        "gpu_memory_used_gib": "GPU memory used, GiB",
    }
    return lines_over_levels(data, columns)


@figure(
    title="Is the device busy?",
    section="system",
    useful="several",
    caption=(
        "A point per cell and level, means over its runs, levels of a cell joined in "
        "their order. Utilisation says how much of the time the device was busy, not "
        "how much work it did."
    ),
)
def pcp_gpu_vs_throughput(data: FigureData) -> Figure:
    """Throughput against the utilisation of the device: a point per cell and level, a panel per model."""
    column, label = _DEVICE[data.device]
    if not recorded_columns(data.levels, [column]):
        raise NothingToDraw(not_recorded_message([column]))
    figure, shown = model_panels(data, 2.6, legend=data.arms)
    for panel in shown:
        axes, model = panel.axes, panel.model
        for cell in data.cells_of(model):
            means = (
                data.levels_of(cell)
                .groupby("level")[[column, THROUGHPUT]]
                .mean()
                .dropna()
            )
            axes.plot(
                means[column],
                means[THROUGHPUT],
                linewidth=0.6,
                alpha=0.85,
                **data.style_of(cell).line_style(),
            )
        axes.set_xlim(min(axes.get_xlim()[0], 90), 101.5)
        start_at_zero(axes)
        separate_thousands(axes.yaxis)
        axes.set_title(model)
        axes.set_xlabel(label if panel.bottom else "")
        axes.set_ylabel("output tok/s" if panel.left else "")
    return figure


@figure(
    title="What is correlated with throughput?",
    section="system",
    useful="several",
    caption=(
        "Pearson's correlation of each metric with the logarithm of throughput over "
        "the cells of one model at equal concurrency, with its interval and the "
        "number of points (a cell at a level, mean over runs); bold where both ends "
        "of the interval have the same sign. Levels of a cell count as separate "
        "points, so the intervals are somewhat too narrow. A correlation is only a "
        "description."
    ),
)
def pcp_correlation_heatmap(data: FigureData) -> Figure:
    """Correlation of system metrics with throughput at equal concurrency, within each model, with interval and n."""
    table = correlations_by_model(data.levels, CORRELATED, THROUGHPUT)
    correlations = {(row["x"], row["model"]): row for row in table.to_dict("records")}
    metrics = list(dict.fromkeys(table["x"]))
    if not metrics:
        raise NothingToDraw(
            "no model has enough cells and levels for a correlation, or no metric varies"
        )
    figure, grid = panels(data, (1, 1), 0.32 * len(metrics) + 0.8)
    axes = grid[0, 0]
    shape = len(metrics), len(data.models)
    values, labels = np.full(shape, np.nan), np.full(shape, "", dtype=object)
    clear = np.zeros(shape, dtype=bool)
    for place in np.ndindex(shape):
        correlation = correlations.get((metrics[place[0]], data.models[place[1]]))
        if correlation:
            values[place], labels[place] = correlation["r"], _label(correlation)
            clear[place] = not correlation["low"] <= 0 <= correlation["high"]
    names = data.models, [_NAMES[name] for name in metrics]
    draw_heatmap(axes, values, labels, names, widest=1, cmap="PuOr_r")
    axes.set_xlabel("correlation with ln throughput at equal concurrency")
    for letters, bold in zip(axes.texts, clear.flat, strict=True):
        letters.set_fontweight("bold" if bold else "normal")
    return figure


def _label(correlation: Mapping[Any, Any]) -> str:
    r, low, high = (_signed(correlation[end]) for end in ("r", "low", "high"))
    return f"{r} ({low} to {high}), n {correlation['n']}"


def _signed(value: float) -> str:
    return f"{value:+.1f}" if round(value, 1) else "0.0"
