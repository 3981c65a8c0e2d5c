"""Writes report.html: the tree of a report, the runs behind its verdicts and all figures, in one HTML file."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import jinja2
from markupsafe import Markup

from kveval.report.data.campaign import Measured, ReportPlan
from kveval.report.html.arm_runs import runs_section
from kveval.report.html.cells import cell_attributes, inline
from kveval.report.html.links import ClaimLinks
from kveval.report.sections import Picture, Section

_HERE = Path(__file__).parent
_TYPES = {".svg": "image/svg+xml", ".png": "image/png"}
_SCRIPTS = ("vendor/sortable.js", "vendor/sortable.a11y.js", "page.js")


def write_page(
    plan: ReportPlan,
    measured: Measured,
    root: Section,
    figures: Iterable[Path],
    output: Path,
) -> None:
    """Write report.html.

    `root`: the report's tree; `figures`: one file of each figure in it. Raises FileNotFoundError for a missing figure.
    """
    files = {path.stem: path for path in figures}
    links = ClaimLinks([cell for cell in plan.cells if measured.runs_of(cell)])
    page = links.link_report(
        replace(
            root, blocks=[*root.blocks, runs_section(plan, measured, output.parent)]
        )
    )
    pictures = [
        block
        for section in root.tree()
        for block in section.blocks
        if isinstance(block, Picture)
    ]
    images = {picture.name: data_uri(files[picture.name]) for picture in pictures}
    output.write_text(render_page(page, images), encoding="utf-8")


def render_page(root: Section, images: Mapping[str, str]) -> str:
    """Return a tree as an HTML page.

    `images`: name of each figure in the tree -> its data URI. Raises jinja2.UndefinedError for a figure without one.
    """
    texts = {"style": _text("page.css"), "scripts": _text(*_SCRIPTS)}
    return (
        _environment()
        .get_template("page.html.j2")
        .render(texts, root=root, images=images, identity=_identities(root))
    )


def data_uri(figure: Path) -> str:
    """Return the smaller of a figure's PNG and SVG as a data URI; `figure` is the path of either.

    Raises FileNotFoundError where neither exists.
    """
    files = [path for kind in _TYPES if (path := figure.with_suffix(kind)).is_file()]
    if not files:
        raise FileNotFoundError(f"{figure}: no such figure as {' or '.join(_TYPES)}")
    smallest = min(files, key=lambda path: path.stat().st_size)
    return f"data:{_TYPES[smallest.suffix]};base64,{base64.b64encode(smallest.read_bytes()).decode()}"


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=True,
    )
    environment.filters |= {
        "kind": lambda part: type(part).__name__,
        "is_folded": lambda section: section.folded or bool(section.appendix),
        "inline": inline,
        "cell_attributes": cell_attributes,
    }
    return environment


def _identities(root: Section) -> Callable[[Section], str]:
    """Return a function that gives a section's id: its anchor, with a number if an earlier section has the same."""
    identities: dict[int, str] = {}
    seen: dict[str, int] = {}
    for section in root.tree():
        times = seen[section.anchor] = seen.get(section.anchor, -1) + 1
        identities[id(section)] = (
            f"{section.anchor}-{times}" if times else section.anchor
        )
    return lambda section: identities[id(section)]


def _text(*names: str) -> Markup:
    """The content of files of this package, to be inserted unchanged."""
    return Markup(
        "\n".join((_HERE / name).read_text(encoding="utf-8") for name in names)
    )
