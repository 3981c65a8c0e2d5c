"""Requests, memory, device utilisation, and what moves together with throughput."""

from __future__ import annotations

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from kveval.analysis.cells import THROUGHPUT
from kveval.analysis.estimators.correlations import recorded, within_level
from kveval.report.data.figures import FigureData
from kveval.report.figures.axes import NothingToDraw, from_zero, model_panels, panels, thousands
from kveval.report.figures.level_axes import against_concurrency, not_recorded

_DEVICE = {
    "GPU": ("gpu_utilisation_percent", "GPU active, %"),
    "CPU": ("cpu_utilisation_percent", "CPU time not idle, % (the CPU is the device)"),
}
_CORRELATED = {
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


def pcp_request_queues(data: FigureData) -> Figure:
    """Requests running and waiting in the server against concurrency."""
    return against_concurrency(data, {"requests_running": "requests running", "requests_waiting": "requests waiting"})


def pcp_memory_usage(data: FigureData) -> Figure:
    """Memory of host, server and GPU against concurrency, as far as it was recorded."""
    columns = {
        "memory_used_gib": "host memory used, GiB",
        "server_rss_gib": "server resident, GiB",
        "gpu_memory_used_gib": "GPU memory used, GiB",
    }
    return against_concurrency(data, columns)


def pcp_gpu_vs_throughput(data: FigureData) -> Figure:
    """Throughput against the utilisation of the device: a point per cell and level, a panel per model."""
    column, label = _DEVICE[data.device]
    if not recorded(data.levels, [column]):
        raise NothingToDraw(not_recorded([column]))
    figure, shown = model_panels(data, (4.6, 2.6), legend=data.cells)
    for panel in shown:
        axes, model = panel.axes, panel.model
        for cell in data.cells_of(model):
            means = data.rows(data.levels, model, cell).groupby("level")[[column, THROUGHPUT]].mean().dropna()
            axes.plot(means[column], means[THROUGHPUT], linewidth=0.6, alpha=0.85, **data.look(cell).line_style())
        axes.set_xlim(min(axes.get_xlim()[0], 90), 101.5)
        from_zero(axes)
        thousands(axes.yaxis)
        axes.set_title(model)
        axes.set_xlabel(label if panel.bottom else "")
        axes.set_ylabel("output tok/s" if panel.left else "")
    return figure


def pcp_correlation_heatmap(data: FigureData) -> Figure:
    """Correlation of system metrics with throughput at equal concurrency, within each model, with interval and n."""
    metrics = recorded(data.levels, list(_CORRELATED))
    found = {
        (name, model): within_level(data.levels[data.levels["model"] == model], name, THROUGHPUT)
        for name in metrics
        for model in data.models
    }
    metrics = [name for name in metrics if any(np.isfinite(found[name, model].r) for model in data.models)]
    if not metrics:
        raise NothingToDraw("no model has enough cells and levels for a correlation, or no metric varies")
    figure, grid = panels(data, (1, 1), (1.6 * len(data.models) + 2.6, 0.36 * len(metrics) + 1.2))
    axes, norm = grid[0, 0], Normalize(-1, 1)
    values = np.array([[found[name, model].r for model in data.models] for name in metrics])
    axes.imshow(values, cmap="PuOr_r", norm=norm, aspect="auto")
    for place, name in enumerate(metrics):
        for at, model in enumerate(data.models):
            one = found[name, model]
            known, open_ = np.isfinite(one.r), one.low <= 0 <= one.high
            text = f"{_signed(one.r)} ({_signed(one.low)} to {_signed(one.high)}), n {one.points}" if known else "–"
            colour = "white" if abs(one.r) > 0.7 else "#555555" if open_ or not known else "#111111"
            style = {"fontsize": 7, "color": colour, "fontweight": "normal" if open_ or not known else "bold"}
            axes.text(at, place, text, ha="center", va="center", **style)
    axes.set_xticks(range(len(data.models)), data.models)
    axes.set_yticks(range(len(metrics)), [_CORRELATED[name] for name in metrics])
    axes.grid(visible=False)
    label = "correlation with ln throughput at equal concurrency"
    figure.colorbar(
        ScalarMappable(norm, "PuOr_r"), ax=axes, location="top", label=label, aspect=45, ticks=[-1, -0.5, 0, 0.5, 1]
    )
    return figure


def _signed(value: float) -> str:
    return f"{value:+.1f}" if round(value, 1) else "0.0"
