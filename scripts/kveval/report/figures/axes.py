"""Common parts of all figures: panels with a footer that describes the campaign, axes, legends, lines over levels."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.text import Annotation
from matplotlib.ticker import (
    FixedLocator,
    LogLocator,
    MaxNLocator,
    NullLocator,
    StrMethodFormatter,
)
from matplotlib.transforms import Bbox

from kveval.campaign.cell import Cell
from kveval.campaign.size import GIB
from kveval.campaign.types import BLOCK_TOKENS
from kveval.estimators.correlations import recorded_columns
from kveval.estimators.intervals import mean_interval
from kveval.report.data.figures import FigureData
from kveval.report.data.run_facts import tier_sizes, tier_sizes_in_words

GREY = "#666666"
PALE = "#8A8A8A"
# Inches, the same for every figure, so that text has the same size at the width of a page, or of a phone's screen.
WIDTH, NARROW_WIDTH = 10.0, 3.6
PLAIN = StrMethodFormatter("{x:,.10g}")
_TITLE = 0.32
# The line of the tiers' sizes, at 8 points: its height, and the letters that fit an inch.
_SIZES_ROW = 0.16
_LETTERS = 15
_LEGEND_ROW = 0.19
_LETTER = 0.075
Array = npt.NDArray[np.float64]
# Behind a text that may cover a line.
BOX = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.8}
# A mark in a legend that stands for marks of all colours.
DOT: dict[str, Any] = {"color": "#444444", "marker": "o", "linestyle": ""}
# Where a text stands to the right of a panel, at a value of y.
BESIDE = ("axes fraction", "data")
# Levels x (low, high) of a column over the runs, from the rows of one cell.
Bounds = Callable[[pd.DataFrame, str], pd.DataFrame]


class NothingToDraw(Exception):
    """A figure has no data; the message says what is missing."""


def panels(
    data: FigureData | None,
    shape: tuple[int, int],
    height: float,
    *,
    legend: Sequence[Cell] = (),
    handles: Sequence[Artist] = (),
    model: str | None = None,
) -> tuple[Figure, npt.NDArray[Any]]:
    """Return a figure of rows x columns panels, each `height` inches high, with a footer and room for a title above.

    Below the title are the sizes of the tiers, only those of `model` if the figure is about one, and the legend, which
    shows `handles`, then the cells of `legend`. Without `data`, of no campaign, there are neither sizes nor a footer. Where
    `data` are for a narrow figure, the panels of a row lie below each other, and there is no room for a title.
    """
    narrow = data is not None and data.narrow
    width, room_of_title = (NARROW_WIDTH, 0.05) if narrow else (WIDTH, _TITLE)
    rows, columns = (shape[0] * shape[1], 1) if narrow else shape
    # At 6.5 points an inch holds some 20 letters, and a line is 0.13 inches high.
    note = textwrap.wrap(data.footer, int(20 * width)) if data and not narrow else []
    sizes = textwrap.wrap(_sizes_of_tiers(data, model), int(_LETTERS * width))
    cells = (
        {cell.label: data.style_of(cell).line_style() for cell in legend}
        if data
        else {}
    )
    shown = [
        *handles,
        *(Line2D([], [], label=label, **style) for label, style in cells.items()),
    ]
    longest = max((len(str(handle.get_label())) for handle in shown), default=0)
    down = math.ceil(len(shown) / max(1, int(width / (_LETTER * longest + 0.55))))
    across = math.ceil(len(shown) / max(down, 1))
    bottom, heading = 0.15 + 0.13 * len(note), room_of_title + _SIZES_ROW * len(sizes)
    top = heading + (_LEGEND_ROW * down + 0.1 if shown else 0.0)
    total = rows * height + bottom + top
    layout = ConstrainedLayoutEngine(
        rect=(0, bottom / total, 1, 1 - (bottom + top) / total)
    )
    # Not through pyplot, which would keep every figure in memory.
    figure = Figure(figsize=(width, total), layout=layout)
    axes = figure.subplots(rows, columns, squeeze=False)
    figure.text(
        0.005, 0.05 / total, "\n".join(note), fontsize=6.5, color=GREY, va="bottom"
    )
    if sizes:
        below_title = 1 - (room_of_title - 0.03) / total
        figure.text(
            0.005, below_title, "\n".join(sizes), fontsize=8, color=GREY, va="top"
        )
    if shown:
        place = (0.0, 1 - heading / total)
        figure.legend(
            handles=shown,
            loc="upper left",
            ncols=across,
            bbox_to_anchor=place,
            borderaxespad=0.3,
        )
    return figure, axes.reshape(shape)


def _sizes_of_tiers(data: FigureData | None, model: str | None) -> str:
    runs = data.runs if data else ()
    named = tier_sizes(run for run in runs if model in (None, run.cell.model))
    sizes = tier_sizes_in_words(named)
    return f"tiers in host memory: {sizes}" if sizes else ""


def write_title(figure: Figure, title: str) -> None:
    """Write a figure's title into the space that `panels` leaves for it."""
    place = 1 - 0.06 / figure.get_figheight()
    figure.text(0.005, place, title, fontsize=11.5, fontweight="bold", va="top")


def lay_out(figure: Figure) -> None:
    """Place the panels of `panels`, all of the same size with room for the texts around them; long titles of x wrap.

    The room is told from the number of letters and lines: measuring texts, as layout engines do, takes a third of the
    drawing time. Positions are rounded, because ids in an SVG are hashes of them.
    """
    engine = figure.get_layout_engine()
    _, bottom, _, share = engine.get()["rect"] if engine else (0, 0, 1, 1)
    # Not "none", which is an engine, too: a figure with an engine is drawn twice for each file.
    figure.set_layout_engine(None)
    placed: dict[tuple[int, int], Axes] = {}
    for axes in figure.axes:
        spec = axes.get_subplotspec()
        if spec and axes.axison:
            placed[spec.rowspan.start, spec.colspan.start] = axes
    rows, columns = (1 + max(places) for places in zip(*placed, strict=True))
    left, right, above, below = map(np.zeros, (columns, columns, rows, rows))
    width, height = figure.get_size_inches()
    for (_, column), axes in placed.items():
        if width == NARROW_WIDTH:
            title = textwrap.fill(axes.get_title(loc="left"), 42)
            axes.set_title(title, loc="left")
        left[column] = max(left[column], _room_left(axes))
        right[column] = max(right[column], _room_right(axes))
    across = (width - left.sum() - right.sum()) / columns
    for (row, _), axes in placed.items():
        lines = axes.get_xlabel().splitlines()
        axes.set_xlabel(
            "\n".join(textwrap.fill(line, _letters(across)) for line in lines)
        )
        room = _rooms_above_and_below(axes)
        above[row], below[row] = max(above[row], room[0]), max(below[row], room[1])
    down = (height * share - above.sum() - below.sum()) / rows
    top = height * (bottom + share)
    for (row, column), axes in placed.items():
        x = left[: column + 1].sum() + right[:column].sum() + column * across
        y = top - above[: row + 1].sum() - below[:row].sum() - (row + 1) * down
        bounds = np.round([x / width, y / height, across / width, down / height], 6)
        axes.set_position(Bbox.from_bounds(*bounds))
        if width == NARROW_WIDTH:
            # The names of arms leave too little room above the panel.
            title = axes.get_title(loc="left")
            axes.set_title(title, loc="left", x=(0.05 - x) / across)


def _letters(inches: float) -> int:
    """The letters of a title of x that fit below a panel of this width; they may stand a little beyond it."""
    return max(8, int(inches / 0.068) + 3)


def _room_left(axes: Axes) -> float:
    label = axes.yaxis.label
    turned = bool(label.get_rotation())
    aside = _height(label.get_text()) if turned else _width(label.get_text())
    return 0.16 + max(map(_width, _tick_labels(axes.yaxis)), default=0.0) + aside


def _room_right(axes: Axes) -> float:
    texts = [
        0.1 + _width(text.get_text())
        for text in axes.texts
        if isinstance(text, Annotation) and (text.xycoords, text.xy[0]) == (BESIDE, 1)
    ]
    # The last label of x may stand below the panel's edge.
    label = max(map(_width, _tick_labels(axes.xaxis)), default=0.0)
    return max([min(0.3, 0.06 + label / 2), *texts])


def _rooms_above_and_below(axes: Axes) -> tuple[float, float]:
    title = axes.get_title(loc="left")
    above, below = (0.13 + _height(title) if title else 0.1), 0.04
    for axis in (axes.xaxis, *(child.xaxis for child in axes.child_axes)):
        shown, name = axis.get_tick_params(), axis.label.get_text()
        room = 0.05 + _height(name) if name else 0.0
        if shown.get("labelbottom", True) or shown.get("labeltop"):
            room += 0.06 + max(map(_height, _tick_labels(axis)), default=0.0)
        if axis.get_label_position() == "top":
            above += room
        else:
            below += room
    return above, below


def _tick_labels(axis: Axis) -> Sequence[str]:
    """The labels of an axis's ticks as far as they are set, else one that is as long as its longest may be."""
    formatter, locator = axis.get_major_formatter(), axis.get_major_locator()
    if isinstance(locator, FixedLocator):
        return [formatter(place) for place in locator()]
    return [max(f"{max(axis.get_view_interval()):,.0f}", "0.25", key=len)]


def _width(text: str) -> float:
    """The inches that a text of 8 points takes."""
    return 0.064 * max(map(len, text.splitlines()), default=0)


def _height(text: str) -> float:
    return 0.165 * len(text.splitlines())


@dataclass(frozen=True)
class ModelPanel:
    """The panel of one model; `left` and `bottom`: whether it is at that edge of the figure."""

    axes: Axes
    model: str
    left: bool
    bottom: bool


def model_panels(
    data: FigureData, height: float, **legend: Any
) -> tuple[Figure, list[ModelPanel]]:
    """Return a figure with a panel per model, two in a row."""
    count = len(data.models)
    across = min(2, count)
    figure, grid = panels(data, (math.ceil(count / across), across), height, **legend)
    for axes in grid.flat[count:]:
        axes.set_axis_off()
    places = enumerate(zip(grid.flat, data.models, strict=False))
    return figure, [
        ModelPanel(axes, model, place % across == 0, place >= count - across)
        for place, (axes, model) in places
    ]


def write_not_recorded(axes: Axes, **style: Any) -> None:
    """Write into an empty panel why it is empty."""
    axes.text(
        0.5,
        0.5,
        "not recorded",
        transform=axes.transAxes,
        ha="center",
        color=GREY,
        **style,
    )


def model_rows(
    data: FigureData,
    columns: int,
    *,
    cells: Callable[[str], Sequence[Cell]],
    **legend: Any,
) -> tuple[Figure, npt.NDArray[Any]]:
    """Return one row of panels per model, high enough for a line of text per cell."""
    most = max((len(cells(model)) for model in data.models), default=1)
    return panels(
        data, (len(data.models), columns), max(0.24 * most + 0.85, 1.5), **legend
    )


def cell_name(cell: Cell) -> str:
    """Return the label of a cell, in lines that leave room for a panel however long it is."""
    return textwrap.fill(cell.label, 28)


def cell_axis(axes: Axes, cells: Sequence[Cell], *, labels: bool = True) -> None:
    """Make y an axis of cells, the first on top."""
    axes.set_yticks(
        range(len(cells)),
        [cell_name(cell) for cell in cells] if labels else [""] * len(cells),
    )
    axes.set_ylim(len(cells) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")


def level_axis(axes: Axes, levels: Sequence[int], title: str) -> None:
    """Make x an axis of levels with the measured levels as its ticks; logarithmic if that spreads them more evenly."""
    ticks = sorted(set(levels))
    linear, logs = np.array(ticks, dtype=np.float64), np.log(ticks)
    places = max(logs, linear, key=_narrowest)
    if places is logs:
        axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, _spaced(places, ticks, axes))
    axes.minorticks_off()
    if len(ticks) == 1:
        # As cells are shifted a little, the axis would be as wide as that.
        axes.set_xlim(0.5 * ticks[0], 1.5 * ticks[0])
    axes.set_xlabel(title)


def _narrowest(places: Array) -> float:
    """The smallest gap between neighbours as a share of the whole axis."""
    return float(np.diff(places).min() / np.ptp(places)) if len(places) > 1 else 1.0


def _spaced(places: Array, ticks: Sequence[int], axes: Axes) -> list[str]:
    """Label the ticks, except those whose label would overlap the next one; the last tick is always labelled."""
    figure, spec = axes.get_figure(root=True), axes.get_subplotspec()
    columns = spec.get_gridspec().ncols if spec else 1
    inches = float(figure.get_figwidth() if figure else WIDTH) / columns - 0.75
    span = places[-1] - places[0] if len(places) > 1 else 1.0
    labels, free = [""] * len(ticks), math.inf
    for at in range(len(ticks) - 1, -1, -1):
        middle, half = (
            inches * (places[at] - places[0]) / span,
            0.04 * len(str(ticks[at])) + 0.02,
        )
        if middle + half < free:
            labels[at], free = str(ticks[at]), middle - half
    return labels


def separate_thousands(axis: Axis, count: int = 5) -> None:
    """Show an axis's tick labels with thousands separators, at most about `count` ticks."""
    axis.set_major_locator(MaxNLocator(count, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(PLAIN)


def make_logarithmic(axis: Axis) -> None:
    """Make an axis logarithmic, with numbers written out."""
    axes = axis.axes
    (axes.set_xscale if axis is axes.xaxis else axes.set_yscale)("log")
    axis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=6))
    axis.set_major_formatter(PLAIN)
    # At 1, 2 and 5 there are enough.
    axis.set_minor_locator(NullLocator())


def tier_size_axis(axes: Axes, kv_bytes_per_token: float | None) -> None:
    """Make x, which has sizes of tiers in blocks of 16 tokens, a logarithmic axis with GiB below and blocks above.

    With blocks alone where it is not known how many bytes a token takes.
    """
    if not kv_bytes_per_token:
        make_logarithmic(axes.xaxis)
        axes.set_xlabel("size of the tier, blocks")
        return
    gib = BLOCK_TOKENS * kv_bytes_per_token / GIB
    functions = (
        (lambda blocks: np.multiply(blocks, gib)),
        (lambda size: np.divide(size, gib)),
    )
    below = axes.secondary_xaxis("bottom", functions=functions)
    below.set_xlabel("size of the tier, GiB")
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set_xlabel("blocks")
    make_logarithmic(axes.xaxis)
    make_logarithmic(below.xaxis)


def seconds_or_ms(highest_ms: float) -> tuple[str, float]:
    """Return the unit in which latencies up to `highest_ms` are readable, and how many ms it has."""
    return ("s", 1000.0) if highest_ms >= 10_000 else ("ms", 1.0)


def start_at_zero(axes: Axes, highest: float | None = None) -> None:
    """Start y at zero and leave space above `highest`, by default everything drawn, so that no marker is cut."""
    top = axes.dataLim.y1 if highest is None else min(highest, axes.dataLim.y1)
    axes.set_ylim(0, 1.08 * top if np.isfinite(top) and top > 0 else 1.0)


def scale_to_values(
    axis: Axis, values: pd.Series[float], all_values: pd.Series[float]
) -> None:
    """Start an axis of positive values at zero, or make it logarithmic if `all_values`, of which they are a part, span
    more than a factor of 30. Very wide intervals may extend beyond the panel.
    """
    limits = axis.axes.set_xlim if axis is axis.axes.xaxis else axis.axes.set_ylim
    known = values[np.isfinite(values) & (values > 0)]
    if known.empty:
        limits(0, 1)
    elif all_values.max() > 30 * all_values.min() > 0:
        make_logarithmic(axis)
        limits(known.min() / 1.5, axis_maximum(known))
    else:
        drawn = (
            axis.axes.dataLim.x1 if axis is axis.axes.xaxis else axis.axes.dataLim.y1
        )
        limits(0, min(1.08 * drawn, axis_maximum(known)))
        separate_thousands(axis)


def draw_heatmap(
    axes: Axes,
    values: Array,
    labels: npt.NDArray[Any],
    names: tuple[Sequence[str], Sequence[str]],
    *,
    widest: float,
    cmap: str,
) -> None:
    """Draw values from -widest to widest as coloured cells, grey where NaN, with `labels` in them.

    `names`: of the columns and of the rows.
    """
    # It brings scipy.stats, which takes two seconds of processor time that figures without coloured cells do not need.
    import seaborn as sns  # noqa: PLC0415

    columns, rows = names
    colours = {"vmin": -widest, "vmax": widest, "cmap": cmap, "cbar": False}
    texts = {"annot": labels, "fmt": "", "annot_kws": {"fontsize": 8}}
    sns.heatmap(values, ax=axes, linewidths=0.5, **texts, **colours)
    for place, at in np.argwhere(~np.isfinite(values)):
        middle, text = (at + 0.5, place + 0.5), labels[place, at]
        axes.text(*middle, text, ha="center", va="center", fontsize=8, color=GREY)
    figure, spec = axes.get_figure(root=True), axes.get_subplotspec()
    across = spec.get_gridspec().ncols if spec else 1
    inches = ((figure.get_figwidth() if figure else WIDTH) - 1.6) / across - 0.4
    letters = max(6, int(_LETTERS * inches / len(columns)) - 1)
    axes.set_xticks(
        np.arange(len(columns)) + 0.5,
        [textwrap.fill(name, letters) for name in columns],
    )
    axes.set_yticks(np.arange(len(rows)) + 0.5, rows, rotation=0)
    axes.set_ylim(len(rows), 0)
    axes.set_facecolor("#EDEDED")
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def write_beside(axes: Axes, place: float, text: str) -> None:
    """Write a text to the right of a panel, at a place on y."""
    axes.annotate(
        text,
        (1, place),
        xycoords=BESIDE,
        xytext=(5, 0),
        textcoords="offset points",
        va="center",
        fontsize=7.5,
    )


def interval_handle(colour: str = GREY) -> Line2D:
    """Return the entry of a legend for the intervals of means."""
    return Line2D([], [], color=colour, linewidth=1.6, label="95 % interval")


def run_range(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return the lowest and the highest value over runs by level, for levels with several runs."""
    known = rows.groupby("level")[column]
    bounds = pd.DataFrame({"low": known.min(), "high": known.max()})
    return bounds[known.count() > 1]


def geometric_interval(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return the 95 % t interval of the geometric mean over runs by level, for levels with several runs."""
    known = rows[rows[column] > 0]
    bounds = {
        level: mean_interval(np.log(values.to_numpy(dtype=np.float64)))
        for level, values in known.groupby("level")[column]
        if len(values) > 1
    }
    return pd.DataFrame.from_dict(
        bounds, orient="index", columns=["low", "high"], dtype=float
    )


def draw_lines(
    axes: Axes,
    data: FigureData,
    model: str,
    column: str,
    bounds: Bounds,
    unit: float = 1.0,
) -> bool:
    """Draw one line of means over runs per cell, with its bounds; return whether there was anything to draw.

    Values are divided by `unit`.
    """
    shown, grid = data.cells_of(model), data.all_levels
    # Of all cells together not so far that a level could be taken for another one.
    step = min(
        (grid[-1] / grid[0]) ** 0.002 if len(grid) > 1 else 1.01,
        1.06 ** (1 / max(len(shown) - 1, 1)),
    )
    drawn = False
    for place, cell in enumerate(shown):
        rows = data.levels_of(cell)
        means = rows.groupby("level")[column].mean().dropna()
        if means.empty:
            continue
        drawn = True
        # Shifted a little sideways, so that coinciding lines can be seen.
        aside = step ** (place - (len(shown) - 1) / 2)
        look = data.style_of(cell)
        ends = bounds(rows, column) / unit
        axes.vlines(
            ends.index.to_numpy() * aside,
            ends["low"],
            ends["high"],
            colors=look.colour,
            linewidth=1,
        )
        axes.plot(means.index * aside, means / unit, **look.line_style())
    level_axis(axes, grid, data.level_unit.axis)
    return drawn


def axis_maximum(values: pd.Series[float]) -> float:
    """Return the highest value that an axis must show; very wide intervals may extend beyond the panel."""
    return 1.5 * float(values.max())


def mark_ends_beyond(
    axes: Axes, place: float, interval: tuple[float, float], colour: str
) -> bool:
    """Draw an arrow at the panel's edge for each end of a horizontal interval that lies beyond it.

    `place`: of the interval, on y. The limits of x are to be set before. Return whether the upper end lies beyond.
    """
    left, right = axes.get_xlim()
    low, high = interval
    for beyond, edge, marker in ((low < left, left, "<"), (high > right, right, ">")):
        if beyond:
            axes.plot(edge, place, marker, color=colour, clip_on=False, markersize=4)
    return high > right


def lines_over_levels(
    data: FigureData,
    columns: Mapping[str, str],
    limits: tuple[float, float] | None = None,
) -> Figure:
    """One row of panels per recorded quantity, one column per model; a single quantity wraps to two columns."""
    shown = recorded_columns(data.levels, list(columns))
    if not shown:
        raise NothingToDraw(not_recorded_message(columns))
    known = data.levels[data.levels[shown].notna().any(axis=1)]
    cells_known = set(zip(known["scenario"], known["cpu_blocks"], strict=True))
    cells = [
        cell for cell in data.arms if (cell.scenario, cell.cpu_blocks) in cells_known
    ]
    placed: list[tuple[ModelPanel, str, bool]] = []
    if len(shown) == 1:
        figure, places = model_panels(data, 2.4, legend=cells)
        placed += [(panel, shown[0], True) for panel in places]
    else:
        figure, grid = panels(data, (len(shown), len(data.models)), 2.2, legend=cells)
        for row, name in zip(grid, shown, strict=True):
            for axes, model in zip(row, data.models, strict=True):
                left, bottom = model == data.models[0], name == shown[-1]
                panel = ModelPanel(axes, model, left, bottom)
                placed.append((panel, name, name == shown[0]))
    for panel, name, titled in placed:
        if not draw_lines(panel.axes, data, panel.model, name, run_range):
            write_not_recorded(panel.axes)
        if limits:
            panel.axes.set_ylim(*limits)
        else:
            start_at_zero(panel.axes)
        panel.axes.set_title(panel.model if titled else "")
        panel.axes.set_ylabel(columns[name] if panel.left else "")
        if not panel.bottom:
            panel.axes.set_xlabel("")
    return figure


def not_recorded_message(columns: Iterable[str]) -> str:
    """Return the message that these columns have nothing to draw."""
    return (
        f"not recorded, or too few samples in the levels' windows: {', '.join(columns)}"
    )
