"""A metric over builds: means with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator

from kveval.plugins.builds.series import BuildSeries
from kveval.report.data.metric_titles import METRIC_TITLES
from kveval.report.data.style import arm_style
from kveval.report.figures.axes import GREY, panels, separate_thousands
from kveval.report.figures.draw import write_single_figure

# The most labels that fit along the axis.
_LABELS = 24
# The most panels of a figure, since an image is limited to 65,536 pixels per side.
_PANELS = 40


def draw_history(series: Sequence[BuildSeries]) -> Figure:
    """Return one metric of several cells over builds, a panel for each series."""
    mean = Line2D(
        [],
        [],
        color=GREY,
        marker="o",
        linestyle="",
        label="mean of a build's runs, 95 % interval",
    )
    figure, grid = panels(None, (len(series), 1), 2.6, handles=[mean])
    for axes, cell_series in zip(grid[:, 0], series, strict=True):
        _panel(axes, cell_series)
    return figure


def _panel(axes: Axes, series: BuildSeries) -> None:
    means = np.array([build.mean for build in series.builds])
    ends = np.array([(build.low, build.high) for build in series.builds]).T
    colour = arm_style(series.cell.scenario).colour
    away = np.abs(np.where(np.isfinite(ends), ends, means) - means)
    axes.errorbar(
        range(len(means)),
        means,
        yerr=away,
        fmt="o",
        markersize=3,
        linewidth=0.8,
        color=colour,
    )
    step = max(1, -(-len(means) // _LABELS))
    shown = range(0, len(means), step)
    axes.set_xticks(
        shown,
        [series.builds[number].label for number in shown],
        rotation=45,
        ha="right",
        fontsize=7,
    )
    axes.xaxis.set_minor_locator(FixedLocator(list(range(len(means)))))
    axes.set_xlim(-0.7, len(means) - 0.3)
    axes.margins(y=0.2)
    separate_thousands(axes.yaxis)
    axes.set_ylabel(series.metric)
    axes.set_title(series_title(series))


def series_title(series: BuildSeries) -> str:
    """Return the name of a series: its cell, the level, the hardware."""
    cell = series.cell
    title = f"{cell.model} {cell.label}, level {series.level}"
    return (
        f"{title}, hardware {series.conditions['hardware']}"
        if series.conditions["hardware"]
        else title
    )


def select_series(series: Sequence[BuildSeries]) -> Sequence[BuildSeries]:
    """Return the series that a figure shows: at most 40, those with the most builds."""
    if len(series) <= _PANELS:
        return series
    return sorted(series, key=lambda cell_series: -len(cell_series.builds))[:_PANELS]


def write_history(series: Sequence[BuildSeries], folder: Path) -> list[Path]:
    """Draw one figure for each metric, and return their paths: FOLDER/METRIC.png."""
    paths = []
    folder.mkdir(parents=True, exist_ok=True)
    for metric in dict.fromkeys(cell_series.metric for cell_series in series):
        path = folder / f"{metric}.png"
        shown = select_series(
            [cell_series for cell_series in series if cell_series.metric == metric]
        )
        title = f"{METRIC_TITLES.get(metric, metric)} from build to build"
        write_single_figure(title, partial(draw_history, shown), path)
        paths.append(path)
    return paths
