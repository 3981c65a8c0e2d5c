"""Timelines of a level, from the recordings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kveval.campaign.cell import Cell
from kveval.report.data.figures import FigureData
from kveval.report.figures.axes import (
    NothingToDraw,
    cell_name,
    panels,
    separate_thousands,
    write_not_recorded,
)
from kveval.report.figures.names import figure
from kveval.tables.cells import THROUGHPUT, kept_runs, parse_names
from kveval.tables.system.timelines import timelines

# Title of a column of panels -> the entries of metrics.yaml, or of `_entries`, drawn there -> how the title names them.
_COLUMNS: dict[str, dict[str, str]] = {
    "output tok/s": {"server_generation_tok_s": ""},
    "found, % of prompt tokens": {
        "prefix_cache_hit_percent": "on device",
        "behind_device_percent": "behind it",
    },
    "requests": {"requests_running": "running", "requests_waiting": "waiting"},
    "host CPU time not idle, %": {"cpu_utilisation_percent": ""},
}
# Of the first and the second entry of a column: line style, and how the title names it.
_STYLES = (("-", "line"), (":", "dots"))
# The unit of shares of a whole, and the top of their scale: a little above the whole, so that its line is seen.
_PERCENT, _TOP_OF_PERCENT = "percent", 105


@figure(
    template="level_timeline_{model}",
    title="What happens during a level? {model}",
    section="system",
    caption=(
        "The measurement window of the level where cells are compared, second by second, "
        "of the run named beside it: the first one recorded that passed its checks and "
        "that comparisons rest on. Where another is shown, the name says why. Panels of a "
        "column share their scale. Where there are shares of prompt tokens, they are "
        "over 5 samples each."
    ),
)
def level_timeline(data: FigureData, model: str) -> Figure:
    """Timelines of the level at which cells are compared, of one run of each cell: a row of panels per cell."""
    level, entries = data.common_level(model), _entries(data.metrics)
    kept = kept_runs(data.comparison[data.comparison["level"] == level])
    rows = []
    for cell in data.cells_of(model):
        window = _window(data, cell, level, kept[cell, THROUGHPUT].runs)
        if window:
            rows.append((cell, window))
    conditions = {(run.cell, run.run): run.described for run in data.runs}
    drawn: dict[tuple[Cell, str], pd.Series[float]] = {}
    for cell, window in rows:
        parquet, ran = data.recordings[cell, window.run], conditions[cell, window.run]
        recorded = timelines(parquet, entries, ran, window.start, window.end)
        drawn |= {(cell, name): values for name, values in recorded.items()}
    names = {name for _, name in drawn}
    shown = {title: lines for title, lines in _COLUMNS.items() if names & lines.keys()}
    if not shown:
        raise NothingToDraw(
            f"{model}: no recording of the level at which cells are compared"
        )
    figure, grid = panels(data, (len(rows), len(shown)), 1.0 if len(rows) > 4 else 1.35)
    for of_cell, (cell, window) in zip(grid, rows, strict=True):
        for axes, lines in zip(of_cell, shown.values(), strict=True):
            _draw_series(
                axes,
                data.style_of(cell).colour,
                [drawn.get((cell, name)) for name in lines],
            )
            axes.set_xlim(0, (window.end - window.start) / 1e9)
            axes.tick_params(labelbottom=cell == rows[-1][0])
        of_cell[0].set_ylabel(
            f"{cell_name(cell)}\n{window.name}",
            rotation=0,
            ha="right",
            va="center",
            fontsize=8,
        )
    for column, (title, lines) in zip(grid.T, shown.items(), strict=True):
        keys = [
            f"{word} ({key})"
            for (name, word), (_, key) in zip(lines.items(), _STYLES, strict=False)
            if word and name in names
        ]
        heading = [f"{title}:" if keys else title, ",\n".join(keys)]
        column[0].set_title(
            "\n".join(filter(None, heading)), fontsize=8.5, fontweight="normal"
        )
        _share_scale(
            column, {entries[name]["unit"] for name in lines if name in entries}
        )
    for axes in grid[-1]:
        axes.set_xlabel(f"seconds of the window,\n{data.level_unit.label(level)}")
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
    axes: Axes, colour: str, lines: Sequence[pd.Series[float] | None]
) -> None:
    for values, (style, _) in zip(lines, _STYLES, strict=False):
        if values is not None:
            axes.plot(values.index, values, style, color=colour, linewidth=1.1)
    if all(values is None for values in lines):
        write_not_recorded(axes, va="center", fontsize=8)


# Of the run of a timeline, the best first.
_REMARKS = ("", "failed checks", "left out")


class _Window(NamedTuple):
    """A run's window of a level (ns since 1970, UTC), and how the figure names the run."""

    run: int
    name: str
    start: int
    end: int


def _window(
    data: FigureData, cell: Cell, level: int | None, kept: Sequence[int]
) -> _Window | None:
    """Return the window of the first recorded run that passed its checks and is `kept` by comparisons.

    Without such a run, of one that failed checks, and at last of one that comparisons leave out; the name says so.
    """
    rows = data.levels_of(cell)
    rows = rows[(rows["level"] == level) & rows["window_start"].notna()]
    rows = rows[rows["window_end"].notna()].sort_values("run")
    recorded = [
        row
        for row in rows.to_dict("records")
        if (cell, int(row["run"])) in data.recordings
    ]
    if not recorded:
        return None

    def remark(row: Mapping[Any, Any]) -> str:
        if kept and row["run"] not in kept:
            return _REMARKS[2]
        return _REMARKS[bool(parse_names(row.get("checks_failed")))]

    row = min(recorded, key=lambda row: _REMARKS.index(remark(row)))
    run = int(row["run"])
    name = ", ".join(filter(None, (f"run {run}", remark(row))))
    return _Window(run, name, row["window_start"].value, row["window_end"].value)
