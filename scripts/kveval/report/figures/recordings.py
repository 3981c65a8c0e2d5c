"""Timelines of a level, from the recordings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kveval.campaign.cell import Cell
from kveval.report.data.figures import FigureData
from kveval.report.figures.axes import (
    NothingToDraw,
    panels,
    separate_thousands,
    write_not_recorded,
)
from kveval.tables.system.timelines import timelines

# Title of a column of panels -> the entries of metrics.yaml, or of `_entries`, drawn there -> their line styles.
_COLUMNS: dict[str, dict[str, str]] = {
    "output tok/s": {"server_generation_tok_s": "-"},
    "found, % of prompt tokens:\non device (line), behind it (dots)": {
        "prefix_cache_hit_percent": "-",
        "behind_device_percent": ":",
    },
    "requests: running (line),\nwaiting (dots)": {
        "requests_running": "-",
        "requests_waiting": ":",
    },
    "host CPU time not idle, %": {"cpu_utilisation_percent": "-"},
}
# The unit of shares of a whole, and the top of their scale: a little above the whole, so that its line is seen.
_PERCENT, _TOP_OF_PERCENT = "percent", 105


def level_timeline(data: FigureData, model: str) -> Figure:
    """Timelines of the level at which cells are compared, for the first run of each cell: a row of panels per cell."""
    level, entries = data.common_level(model), _entries(data.metrics)
    cells = [
        (cell, window)
        for cell in data.cells_of(model)
        if (window := _window(data, cell, level))
    ]
    conditions = {(run.cell, run.run): run.described for run in data.runs}
    drawn: dict[tuple[Cell, str], pd.Series[float]] = {}
    for cell, (run, start, end) in cells:
        parquet = data.recordings[cell, run]
        recorded = timelines(parquet, entries, conditions[cell, run], start, end)
        drawn |= {(cell, name): values for name, values in recorded.items()}
    names = {name for _, name in drawn}
    shown = {title: lines for title, lines in _COLUMNS.items() if names & lines.keys()}
    if not shown:
        raise NothingToDraw(
            f"{model}: no recording of the level at which cells are compared"
        )
    figure, grid = panels(
        data, (len(cells), len(shown)), 1.0 if len(cells) > 4 else 1.35
    )
    for place, (cell, (_, start, end)) in enumerate(cells):
        last = place == len(cells) - 1
        for axes, (title, lines) in zip(grid[place], shown.items(), strict=True):
            _draw_series(
                axes,
                data.style_of(cell).colour,
                [(drawn.get((cell, name)), lines[name]) for name in lines],
            )
            axes.set_xlim(0, (end - start) / 1e9)
            axes.set_title(
                title if place == 0 else "", fontsize=8.5, fontweight="normal"
            )
            axes.set_xlabel(
                f"s of the window, {data.level_unit.label(level)}" if last else ""
            )
            axes.tick_params(labelbottom=last)
        grid[place, 0].set_ylabel(
            cell.label.replace(" ", "\n"),
            rotation=0,
            ha="right",
            va="center",
            fontsize=8,
        )
    for column, lines in zip(grid.T, shown.values(), strict=True):
        _share_scale(
            column, {entries[name]["unit"] for name in lines if name in entries}
        )
    return figure


def _share_scale(column: Sequence[Axes], units: set[str]) -> None:
    """Give the panels of a column the same scale, so that cells can be compared; `units`: of the metrics drawn there."""
    highest = max(
        (axes.dataLim.y1 for axes in column if np.isfinite(axes.dataLim.y1)),
        default=1.0,
    )
    top = _TOP_OF_PERCENT if units == {_PERCENT} else 1.1 * highest or 1.0
    for axes in column:
        axes.set_ylim(0, top)
        separate_thousands(axes.yaxis, 3)


def _entries(metrics: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The entries of metrics.yaml in _COLUMNS, with the hits behind the device as a share of all prompt tokens."""
    entries = dict(metrics)
    device = metrics.get("prefix_cache_hit_percent")
    behind = metrics.get("external_cache_hit_percent")
    if device and behind:
        share_of_prompts = {**behind, "denominator": device["denominator"]}
        entries["behind_device_percent"] = share_of_prompts
    names = [name for lines in _COLUMNS.values() for name in lines]
    return {name: entries[name] for name in names if name in entries}


def _draw_series(
    axes: Axes, colour: str, lines: Sequence[tuple[pd.Series[float] | None, str]]
) -> None:
    for values, style in lines:
        if values is not None:
            axes.plot(values.index, values, style, color=colour, linewidth=1.1)
    if all(values is None for values, _ in lines):
        write_not_recorded(axes, va="center", fontsize=8)


def _window(
    data: FigureData, cell: Cell, level: int | None
) -> tuple[int, int, int] | None:
    """Return the first run of a level that has a recording, and its window (ns since 1970, UTC)."""
    rows = data.levels_of(cell)
    for row in rows[rows["level"] == level].sort_values("run").to_dict("records"):
        begin, end = row["window_start"], row["window_end"]
        recorded = (cell, int(row["run"])) in data.recordings
        if recorded and pd.notna(begin) and pd.notna(end):
            return int(row["run"]), begin.value, end.value
    return None
