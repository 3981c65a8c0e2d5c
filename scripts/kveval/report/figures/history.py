"""A metric over builds: means with their intervals, and where they change."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator

from kveval.analysis.estimators.change_points import ChangePoint
from kveval.analysis.estimators.intervals import percent
from kveval.analysis.history import HIGHER_IS_BETTER, BuildSeries
from kveval.report.data.metric_titles import METRIC_TITLES
from kveval.report.data.style import arm_style
from kveval.report.figures.axes import GREY, panels, separate_thousands
from kveval.report.figures.draw import write_single_figure

_BETTER, _WORSE = "#009E73", "#D55E00"
# The most labels that fit along the axis.
_LABELS = 24
# The most panels of a figure, since an image is limited to 65,536 pixels per side.
_PANELS = 40


def draw_history(series: Sequence[BuildSeries]) -> Figure:
    """Return one metric of several cells over builds, a panel for each series."""
    handles = [
        Line2D(
            [],
            [],
            color=GREY,
            marker="o",
            linestyle="",
            label="mean of a build's runs, 95 % interval",
        ),
        Line2D([], [], color=GREY, label="mean between changes"),
        Patch(color=_BETTER, alpha=0.3, label="better: the change lies here (95 %)"),
        Patch(color=_WORSE, alpha=0.3, label="worse"),
    ]
    figure, grid = panels(None, (len(series), 1), 2.6, handles=handles)
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
    changes = series.changes
    bounds = [0, *(change.index for change in changes), len(means)]
    for start, end in itertools.pairwise(bounds):
        level = float(np.exp(np.log(means[start:end]).mean()))
        axes.hlines(level, start - 0.5, end - 0.5, color=GREY, linewidth=1.6)
    for change in changes:
        _mark_change(axes, series, change)
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


def _mark_change(axes: Axes, series: BuildSeries, change: ChangePoint) -> None:
    """Shade where a change lies: it happened between the build before its index and the build there."""
    theta = change.difference.theta
    better = (theta > 0) == HIGHER_IS_BETTER.get(series.metric, True)
    shade = _BETTER if better else _WORSE
    axes.axvspan(
        change.earliest - 1, change.latest, color=shade, alpha=0.3, linewidth=0
    )
    axes.annotate(
        f"{percent(theta):+.1f} %\n{series.builds[change.index].label}",
        (change.index, 1),
        xycoords=("data", "axes fraction"),
        xytext=(3, -2),
        textcoords="offset points",
        va="top",
        fontsize=7,
        color=shade,
    )


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
    """Return the series that a figure shows: at most 40, those with the most changes, then the most builds."""
    if len(series) <= _PANELS:
        return series
    return sorted(
        series,
        key=lambda cell_series: (-len(cell_series.changes), -len(cell_series.builds)),
    )[:_PANELS]


def write_history(series: Sequence[BuildSeries], folder: Path) -> list[Path]:
    """Draw one figure for each metric, and return their paths: FOLDER/METRIC.png."""
    paths = []
    folder.mkdir(parents=True, exist_ok=True)
    for metric in dict.fromkeys(cell_series.metric for cell_series in series):
        path = folder / f"{metric}.png"
        shown = select_series(
            [cell_series for cell_series in series if cell_series.metric == metric]
        )
        title = f"{METRIC_TITLES.get(metric, metric)} from build to build: where does it change?"
        write_single_figure(title, partial(draw_history, shown), path)
        paths.append(path)
    return paths
