"""Common parts of all figures: panels with a footer that describes the campaign, axes, legends."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter

from kveval.analysis.cells import ArmSize
from kveval.report.data.figures import FigureData

GREY = "#666666"
PALE = "#8A8A8A"
# Inches, the same for every figure, so that text has the same size at the width of a page.
WIDTH = 10.0
PLAIN = StrMethodFormatter("{x:,.10g}")
_TITLE = 0.32
_LEGEND_ROW = 0.19
_LETTER = 0.075


def panels(
    data: FigureData,
    shape: tuple[int, int],
    height: float,
    *,
    legend: Sequence[ArmSize] = (),
    handles: Sequence[Artist] = (),
) -> tuple[Figure, npt.NDArray[Any]]:
    """Return a figure of rows x columns panels, each `height` inches high, with a footer and room for a title above.

    The legend is below the title and shows `handles`, then the cells of `legend`.
    """
    # Not through pyplot, which would keep every figure in memory.
    rows, columns = shape
    # At 6.5 points an inch holds some 20 letters, and a line is 0.13 inches high.
    note = textwrap.wrap(data.footer, int(20 * WIDTH))
    shown = [*handles, *(cell_handle(data, cell) for cell in legend)]
    across, down = _legend_shape([str(handle.get_label()) for handle in shown])
    bottom, top = 0.15 + 0.13 * len(note), _TITLE + (_LEGEND_ROW * down + 0.1 if shown else 0.0)
    total = rows * height + bottom + top
    layout = ConstrainedLayoutEngine(rect=(0, bottom / total, 1, 1 - (bottom + top) / total))
    figure = Figure(figsize=(WIDTH, total), layout=layout)
    axes = figure.subplots(rows, columns, squeeze=False)
    figure.text(0.005, 0.05 / total, "\n".join(note), fontsize=6.5, color=GREY, va="bottom")
    if shown:
        place = (0.0, 1 - _TITLE / total)
        figure.legend(handles=shown, loc="upper left", ncols=across, bbox_to_anchor=place, borderaxespad=0.3)
    return figure, axes


def write_title(figure: Figure, title: str) -> None:
    """Write a figure's title into the space that `panels` leaves for it."""
    place = 1 - 0.06 / figure.get_figheight()
    figure.text(0.005, place, title, fontsize=11.5, fontweight="bold", va="top")


def _legend_shape(labels: Sequence[str]) -> tuple[int, int]:
    """Return the columns and rows of a legend with these entries."""
    if not labels:
        return 1, 0
    across = max(1, min(len(labels), int(WIDTH / (_LETTER * max(map(len, labels)) + 0.55))))
    down = math.ceil(len(labels) / across)
    return math.ceil(len(labels) / down), down


def cell_handle(data: FigureData, cell: ArmSize) -> Line2D:
    """Return a cell's entry in a legend."""
    return Line2D([], [], label=cell.label, **data.look(cell).line_style())


@dataclass(frozen=True)
class ModelPanel:
    """The panel of one model; `left` and `bottom`: whether it is at that edge of the figure."""

    axes: Axes
    model: str
    left: bool
    bottom: bool


def model_panels(data: FigureData, height: float, **legend: Any) -> tuple[Figure, list[ModelPanel]]:
    """Return a figure with a panel per model, two in a row."""
    count = len(data.models)
    across = min(2, count)
    figure, grid = panels(data, (math.ceil(count / across), across), height, **legend)
    for axes in grid.flat[count:]:
        axes.set_axis_off()
    places = enumerate(zip(grid.flat, data.models, strict=False))
    return figure, [
        ModelPanel(axes, model, place % across == 0, place >= count - across) for place, (axes, model) in places
    ]


def say_not_recorded(axes: Axes, **style: Any) -> None:
    """Write into an empty panel why it is empty."""
    axes.text(0.5, 0.5, "not recorded", transform=axes.transAxes, ha="center", color=GREY, **style)


def model_rows(
    data: FigureData, columns: int, *, cells: Callable[[str], Sequence[ArmSize]], **legend: Any
) -> tuple[Figure, npt.NDArray[Any]]:
    """Return one row of panels per model, high enough for a line of text per cell."""
    most = max((len(cells(model)) for model in data.models), default=1)
    return panels(data, (len(data.models), columns), max(0.24 * most + 0.85, 1.5), **legend)


def cell_axis(axes: Axes, cells: Sequence[ArmSize], *, labels: bool = True) -> None:
    """Make y an axis of cells, the first on top."""
    axes.set_yticks(range(len(cells)), [cell.label for cell in cells] if labels else [""] * len(cells))
    axes.set_ylim(len(cells) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")


def level_axis(axes: Axes, levels: Sequence[int], title: str) -> None:
    """Make x an axis of levels with the measured levels as its ticks, spread as evenly as possible.

    Logarithmic for levels that double, linear for equal steps, square root for a grid such as 1, 50, 100, 200, ..., of
    which a logarithmic axis would compress the larger half.
    """
    ticks = sorted(set(levels))
    place: Callable[[float], float] = max(math.log, math.sqrt, float, key=lambda scale: _narrowest(ticks, scale))
    back: Callable[[float], float] = float
    if place is math.log:
        axes.set_xscale("log", base=2)
        back = math.exp
    elif place is math.sqrt:
        axes.set_xscale("function", functions=(_square_root, np.square))
        back = np.square
    if ticks:
        ends = place(ticks[0]), place(ticks[-1])
        room = 0.05 * (ends[1] - ends[0]) or 0.5 * ends[0] or 0.5
        axes.set_xlim(back(max(ends[0] - room, 0) if back is not math.exp else ends[0] - room), back(ends[1] + room))
    axes.set_xticks(ticks, _spaced([place(tick) for tick in ticks], ticks, axes))
    axes.minorticks_off()
    axes.set_xlabel(title)


def _square_root(values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    return np.sqrt(np.maximum(np.asarray(values, dtype=np.float64), 0))


def _narrowest(ticks: Sequence[int], scale: Callable[[float], float]) -> float:
    """The smallest gap between neighbours as a share of the whole axis."""
    places = [scale(tick) for tick in ticks]
    gaps = [after - before for before, after in itertools.pairwise(places)]
    return min(gaps) / (places[-1] - places[0]) if gaps else 1.0


def _spaced(places: Sequence[float], ticks: Sequence[int], axes: Axes) -> list[str]:
    """Label the ticks, except those whose label would overlap the next one; the last tick is always labelled."""
    figure = axes.get_figure(root=True)
    inches = 0.9 * float(axes.get_position().width * figure.get_figwidth()) if figure else 3.0
    span = places[-1] - places[0] if len(places) > 1 else 1.0
    labels, free = [""] * len(ticks), math.inf
    for at in range(len(ticks) - 1, -1, -1):
        middle, half = inches * (places[at] - places[0]) / span, 0.04 * len(str(ticks[at])) + 0.02
        if middle + half < free:
            labels[at], free = str(ticks[at]), middle - half
    return labels


def thousands(axis: Axis, count: int = 5) -> None:
    """Show an axis's tick labels with thousands separators, at most about `count` ticks."""
    axis.set_major_locator(MaxNLocator(count, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(PLAIN)


def logarithmic(axis: Axis) -> None:
    """Make an axis logarithmic, with numbers written out."""
    axes = axis.axes
    (axes.set_xscale if axis is axes.xaxis else axes.set_yscale)("log")
    axis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=6))
    axis.set_major_formatter(PLAIN)
    axis.set_minor_formatter(NullFormatter())


def seconds_or_ms(highest_ms: float) -> tuple[str, float]:
    """Return the unit in which latencies up to `highest_ms` are readable, and how many ms it has."""
    return ("s", 1000.0) if highest_ms >= 10_000 else ("ms", 1.0)


def from_zero(axes: Axes, highest: float | None = None) -> None:
    """Start y at zero and leave space above `highest`, by default everything drawn, so that no marker is cut."""
    top = axes.dataLim.y1 if highest is None else min(highest, axes.dataLim.y1)
    axes.set_ylim(0, 1.08 * top if np.isfinite(top) and top > 0 else 1.0)


class NothingToDraw(Exception):
    """A figure has no data; the message says what is missing."""
