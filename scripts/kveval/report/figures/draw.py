"""Drawing a figure by its name: a function of the data, and of the model if the figure is about one, in its family's
module, which is imported when one of its figures is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from kveval.host.errors import Failure
from kveval.report.data.figures import FigureData
from kveval.report.figures.axes import NothingToDraw, placeholder
from kveval.report.figures.names import figure_names, find_figure

STYLE = Path(__file__).with_name("style.mplstyle")


class FigureError(Failure):
    """There is no figure of that name."""


def draw(name: str, data: FigureData) -> Figure:
    """Return the figure `name` (one of `figure_names`).

    Raises FigureError for any other name, and NothingToDraw where the data have nothing for it.
    """
    figure = find_figure(name, [*data.models, *data.parameters])
    if figure is None:
        raise FigureError(f"no figure {name!r}; there are {', '.join(figure_names(data.models))}")
    if figure.model is not None and figure.model not in data.models:
        raise NothingToDraw(f"nothing of {figure.model} was measured")
    function = getattr(import_module(f"kveval.report.figures.{figure.family}"), figure.entry.key)
    with mpl.rc_context(fname=STYLE):
        drawn: Figure = function(data, figure.model) if figure.model else function(data)
    return drawn


def write_figure(name: str, data: FigureData, outputs: Sequence[Path]) -> str | None:
    """Draw `name` and write it to every path, the format by its suffix (.png, .svg, .pdf); same data, same bytes.

    Where there is nothing to draw the files say so, and the reason is returned.
    """
    reason = None
    try:
        figure = draw(name, data)
    except NothingToDraw as nothing:
        reason = str(nothing)
        with mpl.rc_context(fname=STYLE):
            figure = placeholder(data, reason)
    with mpl.rc_context(fname=STYLE):
        _lay_out(figure)
        for output in outputs:
            stamp = {"Software": None} if output.suffix == ".png" else {"Date": None}
            figure.savefig(output, metadata=stamp)
    return reason


def write_figures(data: FigureData, files: Mapping[str, Sequence[Path]]) -> dict[str, str]:
    """Write figures by name, each to its files; return those with nothing to show, each with the reason."""
    reasons = {name: write_figure(name, data, paths) for name, paths in files.items()}
    return {name: reason for name, reason in reasons.items() if reason}


def _lay_out(figure: Figure) -> None:
    """Lay the figure out once for all its files, to positions that do not depend on what was drawn before it.

    The layout's last digits do (cached text sizes), and the ids in an SVG are hashes of positions.
    """
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        axes.set_position(tuple(round(value, 6) for value in axes.get_position().bounds))
