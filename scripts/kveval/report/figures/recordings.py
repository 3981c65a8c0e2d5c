"""Straight from the recordings: a level second by second, and the load of every single CPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from kveval.analysis.cells import ArmSize
from kveval.analysis.system.timelines import percpu_busy, timeline
from kveval.report.data.figures import FigureData
from kveval.report.figures.axes import GREY, NothingToDraw, model_panels, panels, say_not_recorded, thousands

# Title of a column of panels, and what is drawn there: entries of metrics.yaml, each with its line.
_COLUMNS: dict[str, dict[str, str]] = {
    "output tok/s": {"server_generation_tok_s": "-"},
    "requests: running (line),\nwaiting (dots)": {"requests_running": "-", "requests_waiting": ":"},
    "KV cache in use, %": {"kv_cache_usage_percent": "-"},
    "offload, MB/s: stores (line),\nloads (dots)": {"offload_store_mb_s": "-", "offload_load_mb_s": ":"},
}
# What counts as saturated, unless the catalogue's cpu_saturated_percent says otherwise.
_SATURATED_PERCENT = 90


def timeseries(data: FigureData, model: str) -> Figure:
    """The level at which cells are compared second by second, first run of each cell: one row of panels per cell."""
    level = data.common_level(model)
    cells = [(cell, window) for cell in data.cells_of(model) if (window := _window(data, model, cell, level))]
    drawn = {}
    for cell, (run, start, end) in cells:
        parquet = data.recordings[(model, cell.scenario, cell.cpu_blocks), run]
        for entries in _COLUMNS.values():
            for name in entries:
                if name in data.metrics:
                    drawn[cell, name] = timeline(parquet, data.metrics[name], data.server_version, start, end)
    shown = {
        title: entries
        for title, entries in _COLUMNS.items()
        if any(drawn.get((cell, name)) is not None for cell, _ in cells for name in entries)
    }
    if not shown:
        raise NothingToDraw(f"{model}: no recording of the level at which cells are compared")
    figure, grid = panels(data, (len(cells), len(shown)), (2.6, 1.0))
    for place, (cell, (_, start, end)) in enumerate(cells):
        last = place == len(cells) - 1
        for axes, (title, entries) in zip(grid[place], shown.items(), strict=True):
            _draw_series(axes, data.look(cell).colour, [(drawn.get((cell, name)), entries[name]) for name in entries])
            axes.set_xlim(0, (end - start) / 1e9)
            axes.set_title(title if place == 0 else "", fontsize=8.5, fontweight="normal")
            axes.set_xlabel("s of the window" if last else "")
            axes.tick_params(labelbottom=last)
        grid[place, 0].set_ylabel(cell.label.replace(" ", "\n"), rotation=0, ha="right", va="center", fontsize=8)
    for column, title in zip(grid.T, shown, strict=True):
        _equal_scale(column, 105 if title.endswith("%") else None)
    figure.suptitle(f"{model}, {data.unit.at(level)}", x=0.005, ha="left", fontsize=10, fontweight="bold")
    return figure


def _draw_series(axes: Axes, colour: str, lines: Sequence[tuple[pd.Series[float] | None, str]]) -> None:
    for values, style in lines:
        if values is not None:
            axes.plot(values.index, values, style, color=colour, linewidth=1.1)
    if all(values is None for values, _ in lines):
        say_not_recorded(axes, va="center", fontsize=8)


def _equal_scale(column: np.ndarray, highest: float | None) -> None:
    """Give the panels of a column one scale, so that cells compare."""
    top = highest or 1.1 * max((axes.dataLim.y1 for axes in column if np.isfinite(axes.dataLim.y1)), default=1.0)
    for axes in column:
        axes.set_ylim(0, top or 1.0)
        thousands(axes.yaxis, 3)


def percpu_saturation(data: FigureData) -> Figure:
    """The single CPUs by their load at the level where cells are compared, first run of each cell."""
    loads = {model: list(_loads(data, model)) for model in data.models}
    if not any(loads.values()):
        raise NothingToDraw("not recorded: kernel.percpu.cpu")
    figure, shown = model_panels(data, (4.6, 2.5), legend=data.cells)
    for panel in shown:
        axes, model = panel.axes, panel.model
        _mark(axes, data.metrics.get("cpu_saturated_percent", {}).get("above", _SATURATED_PERCENT))
        for cell, busy in loads[model]:
            # Many CPUs make a line, few are points.
            points = {"marker": None} if len(busy) > 16 else {}
            axes.plot(np.arange(1, len(busy) + 1), busy, **data.look(cell).line_style() | points)
        if not loads[model]:
            say_not_recorded(axes)
        axes.set_ylim(0, 105)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_title(f"{model}, {data.unit.at(data.common_level(model))}")
        axes.set_xlabel("CPUs, the busiest first" if panel.bottom else "")
        axes.set_ylabel("not idle, %" if panel.left else "")
    return figure


def _mark(axes: Axes, percent: float) -> None:
    axes.axhline(percent, color=GREY, linewidth=0.9, linestyle=":")
    place, style = (0.99, percent), {"ha": "right", "va": "bottom", "fontsize": 7.5, "color": GREY}
    axes.annotate(f"{percent:g} %", place, xycoords=("axes fraction", "data")).set(**style)


def _loads(data: FigureData, model: str) -> Iterator[tuple[ArmSize, np.ndarray]]:
    for cell in data.cells_of(model):
        window = _window(data, model, cell, data.common_level(model))
        if window is None:
            continue
        run, start, end = window
        busy = percpu_busy(data.recordings[(model, cell.scenario, cell.cpu_blocks), run], start, end)
        if busy is not None:
            yield cell, np.sort(busy.to_numpy())[::-1]


def _window(data: FigureData, model: str, cell: ArmSize, level: int | None) -> tuple[int, int, int] | None:
    """Return the first run of a level that has a recording, and its window (ns since 1970, UTC)."""
    rows = data.rows(data.levels, model, cell)
    key = (model, cell.scenario, cell.cpu_blocks)
    for row in rows[rows["level"] == level].sort_values("run").to_dict("records"):
        if (key, int(row["run"])) in data.recordings and pd.notna(row["window_start"]):
            return int(row["run"]), row["window_start"].value, row["window_end"].value
    return None
