"""Writes report.html: the Markdown of a report, the runs behind its verdicts and all figures, in one HTML file."""

from __future__ import annotations

import base64
import io
import os
import re
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from urllib.parse import quote

import jinja2
from markupsafe import Markup
from PIL import Image

from kveval.campaign.cell import Cell
from kveval.report.data.arm_links import anchor_of
from kveval.report.figures.names import narrow_file
from kveval.report.html.body import Body, picture
from kveval.report.render import Rendering
from kveval.report.result.model import CampaignResult

_HERE = Path(__file__).parent
# Bytes. A page of all figures is to be small enough to be sent: a drawing of many points becomes an image.
_LARGEST_DRAWING, _LARGEST_NARROW = 60_000, 90_000
_COLOURS = 64
_IMAGES_AT_ONCE = 2
# An octree's palette has means of similar colours: what was nearly white is white again.
_NEARLY_WHITE = 250
_PICTURE = re.compile(r"^!\[.*\]\((.*)\)$", re.MULTILINE)
_UNSEEN = (
    (re.compile(r"<metadata>.*?</metadata>", re.DOTALL), ""),
    (re.compile(r"\s*\n\s*"), " "),
)
_TAG, _LONG_NUMBER = re.compile(r"<[^>]*>"), re.compile(r"(\d\.\d\d)\d+")
# What may stand in a URI in quotation marks as it is.
_UNQUOTED = " /:=;,()!*?+~-_.@'"
_SCRIPTS = ("vendor/sortable.js", "vendor/sortable.a11y.js", "page.js")


def write_page(
    files: Mapping[str, str],
    result: CampaignResult,
    places: Mapping[tuple[Cell, int], Path],
    output: Path,
) -> None:
    """Write report.html.

    `files`: the report's Markdown with marks, see `render_report`, `result`: what it shows; `places`: cell and run -> the
    run's folder, of those that are on this machine. Paths of pictures are from its folder. Raises FileNotFoundError for a
    missing figure.
    """
    addresses = addresses_of(places, output.parent)
    runs = Rendering(result, addresses).text("runs.md.j2")
    pictures = [
        output.parent / path
        for text in files.values()
        for path in _PICTURE.findall(text)
    ]
    names = [picture.stem for picture in pictures]
    # Most of the time is Pillow's, which lets another thread work meanwhile.
    with ThreadPoolExecutor(_IMAGES_AT_ONCE) as pool:
        images = dict(zip(names, pool.map(data_uri, pictures), strict=True))
    narrow = dict(zip(names, map(narrow_data_uri, pictures), strict=True))
    page = render_page([*files.values()], runs, images, narrow)
    output.write_text(page, encoding="utf-8")


def addresses_of(
    places: Mapping[tuple[Cell, int], Path], folder: Path
) -> dict[tuple[Cell, int], str]:
    """Return what links from a page in `folder` to the folders of runs have."""
    return {
        run: Path(os.path.relpath(place, folder)).as_posix()
        for run, place in places.items()
    }


def render_page(
    files: Sequence[str],
    runs: str,
    images: Mapping[str, str],
    narrow: Mapping[str, str] | None = None,
) -> str:
    """Return a report as an HTML page: its first file, the others folded, and the runs behind it.

    `images`: name of each figure in the files -> its data URI; `narrow`: of those for narrow screens, "" for none. Raises
    KeyError for a figure without an image.
    """

    def with_image(path: str, title: str, caption: str) -> str:
        name = Path(path).stem
        of_narrow = (narrow or {}).get(name, "")
        return picture(name, title, caption, images[name], of_narrow)

    main, *appendices = files
    title = main.partition("\n")[0].removeprefix("# ")
    body = Body(with_image, anchor_of(runs.partition("\n")[0].removeprefix("# ")))
    body.write(main)
    for appendix in appendices:
        body.write(appendix, shift=1, folded=True)
    body.write(runs, shift=1)
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            title=title,
            style=_text("page.css"),
            scripts=_text(*_SCRIPTS),
            contents=body.contents,
            body=Markup("\n".join(body.parts)),
        )
    )


def data_uri(figure: Path) -> str:
    """Return a figure's SVG as a data URI, its PNG as WebP where there is no SVG or a large one; `figure`: of either.

    Raises FileNotFoundError where neither exists.
    """
    svg, png = figure.with_suffix(".svg"), figure.with_suffix(".png")
    if drawing := _drawing_uri(svg, _LARGEST_DRAWING if png.is_file() else sys.maxsize):
        return drawing
    if not png.is_file():
        raise FileNotFoundError(f"{figure}: no such figure as .svg or .png")
    return f"data:image/webp;base64,{base64.b64encode(_with_few_colours(png)).decode()}"


def narrow_data_uri(figure: Path) -> str:
    """Return a figure's drawing for narrow screens as a data URI, "" where there is none or a large one."""
    return _drawing_uri(narrow_file(figure), _LARGEST_NARROW)


def _drawing_uri(file: Path, most: int) -> str:
    """A drawing as a data URI; "" where there is none, or it has more than `most` bytes.

    It lacks what does not show: its description, indentation, digits below 0.01 points. Numbers in its texts keep all
    their digits: they are no places. A file of twice the size is not read: none becomes that much shorter.
    """
    if not file.is_file() or file.stat().st_size > 2 * most:
        return ""
    svg = file.read_text(encoding="utf-8")
    for pattern, replacement in _UNSEEN:
        svg = pattern.sub(replacement, svg)
    svg = _TAG.sub(lambda tag: _LONG_NUMBER.sub(r"\1", tag[0]), svg)
    uri = f"data:image/svg+xml,{quote(svg, safe=_UNQUOTED)}"
    return uri if len(uri) <= most else ""


def _with_few_colours(png: Path) -> bytes:
    """An image with a palette, as lossless WebP: a quarter of its size."""
    octree = Image.Quantize.FASTOCTREE
    few = Image.open(png).convert("RGB").quantize(_COLOURS, method=octree)
    palette = few.getpalette() or []
    few.putpalette([255 if part >= _NEARLY_WHITE else part for part in palette])
    content = io.BytesIO()
    few.convert("RGB").save(content, "WEBP", lossless=True, quality=50)
    return content.getvalue()


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
    )


def _text(*names: str) -> Markup:
    """The content of files of this package, to be inserted unchanged."""
    return Markup(
        "\n".join((_HERE / name).read_text(encoding="utf-8") for name in names)
    )
