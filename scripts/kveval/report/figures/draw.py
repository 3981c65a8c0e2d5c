"""Draws figures by name. A figure is a function of the data, and of the model if it is about one, in the module of its
family, which is imported when one of its figures is drawn.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from kveval.host.errors import Failure
from kveval.report.data.figures import FigureData
from kveval.report.figures.axes import (
    NothingToDraw,
    lay_out,
    write_title,
)
from kveval.report.figures.names import (
    MANIFEST,
    Extent,
    figure_names,
    figures_of,
    find_figure,
    narrow_file,
)
from kveval.tables.levels.goodput import GOODPUT

STYLE = Path(__file__).with_name("style.mplstyle")


class FigureError(Failure):
    """There is no figure of that name."""


def draw(name: str, data: FigureData) -> Figure:
    """Return the figure `name` (one of `figure_names`), with the question that it answers above it if it is not narrow.

    Raises FigureError for any other name, and NothingToDraw where the data have nothing for it.
    """
    figure = find_figure(name, data.models)
    if figure is None:
        raise FigureError(
            f"no figure {name!r}; there are {', '.join(figure_names(data.models))}"
        )
    function = getattr(
        import_module(f"kveval.report.figures.{figure.family}"), figure.entry.key
    )
    with mpl.rc_context(fname=STYLE):
        drawn: Figure = function(data, figure.model) if figure.model else function(data)
        if not data.narrow:
            write_title(drawn, figure.title)
        lay_out(drawn)
    return drawn


def write_figure(name: str, data: FigureData, outputs: Sequence[Path]) -> None:
    """Draw `name` once and write it to every path, in the format of its suffix (.png, .svg, .pdf); same data, same bytes.

    Raises as `draw`.
    """
    figure = draw(name, data)
    with mpl.rc_context(fname=STYLE):
        for output in outputs:
            stamp = {"Software": None} if output.suffix == ".png" else {"Date": None}
            figure.savefig(output, metadata=stamp)


def write_single_figure(
    title: str, draw_figure: Callable[[], Figure], output: Path
) -> None:
    """Draw a figure that belongs to no family into a PNG, with its title above it."""
    with mpl.rc_context(fname=STYLE):
        figure = draw_figure()
        write_title(figure, title)
        figure.savefig(output, metadata={"Software": None})


def write_family(family: str, data: FigureData, folder: Path) -> None:
    """Write a family's figures that are not empty into `folder`, as PNG and SVG, and a MANIFEST.

    Of those that are for narrow screens, too, there is a further SVG (`narrow_file`).
    It has three entries: `drawn`, names; `lacking`, name -> the missing data; `left_out`, name -> the campaign's extent
    (levels, models, limits), for figures that are not useful with this extent.
    """
    extent = Extent(len(data.all_levels), len(data.models), GOODPUT in data.levels)
    of_extent = (
        f"not for {', '.join(f'{what}: {of}' for what, of in extent._asdict().items())}"
    )
    figures = figures_of(data.models, family)
    left_out = {
        figure.name: of_extent
        for figure in figures
        if not figure.entry.is_useful_for(extent)
    }
    drawn, lacking, narrow_data = [], {}, replace(data, narrow=True)
    folder.mkdir(parents=True, exist_ok=True)
    for figure in figures:
        name = figure.name
        if name in left_out:
            continue
        try:
            write_figure(
                name, data, [folder / f"{name}.{suffix}" for suffix in ("png", "svg")]
            )
            if figure.entry.narrow:
                write_figure(name, narrow_data, [narrow_file(folder / f"{name}.svg")])
            drawn.append(name)
        except NothingToDraw as nothing:
            lacking[name] = str(nothing)
    listed = {"drawn": drawn, "lacking": lacking, "left_out": left_out}
    (folder / MANIFEST).write_text(
        json.dumps(listed, indent=1) + "\n", encoding="utf-8"
    )
