import base64
import io
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from PIL import Image

from kveval.report.html.page import data_uri

DRAWING = "data:image/svg+xml,"


def test_a_drawing_is_taken_before_an_image_unless_it_is_large(tmp_path: Path) -> None:
    png, svg = (
        tmp_path / "curve_Qwen3-0.6B_all.png",
        tmp_path / "curve_Qwen3-0.6B_all.svg",
    )
    Image.new("RGB", (3, 2), "#00634a").save(png)
    kind, _, content = data_uri(png).partition(",")
    assert kind == "data:image/webp;base64"
    shown = Image.open(io.BytesIO(base64.b64decode(content))).convert("RGB")
    assert (shown.size, shown.getpixel((1, 1))) == ((3, 2), (0, 0x63, 0x4A))
    svg.write_bytes(b"<svg/>")
    assert data_uri(png) == f"{DRAWING}%3Csvg/%3E"
    svg.write_bytes(b"<svg/>" * 100_000)
    assert data_uri(png).startswith("data:image/webp;")
    png.unlink()
    assert data_uri(png).startswith(DRAWING)


def test_a_drawing_keeps_what_shows(tmp_path: Path) -> None:
    svg = (
        '<svg>\n <metadata>\n a </metadata>\n  <path d="M 1.23456 2\n L 3 4"/>'
        " 5 % 0.00763 GiB #a &amp; \N{DEGREE SIGN}</svg>"
    )
    (tmp_path / "a.svg").write_text(svg, encoding="utf-8")
    shown = unquote(data_uri(tmp_path / "a.svg").removeprefix(DRAWING))
    kept = '<path d="M 1.23 2 L 3 4"/> 5 % 0.00763 GiB #a &amp; \N{DEGREE SIGN}</svg>'
    assert shown == f"<svg> {kept}"


def test_a_large_image_has_few_colours(tmp_path: Path) -> None:
    pixels = np.linspace(0, 255, 300 * 300 * 3).reshape(300, 300, 3).astype("uint8")
    noisy = pixels ^ np.random.default_rng(1).integers(0, 8, pixels.shape, "uint8")
    Image.fromarray(noisy).save(tmp_path / "a.png")
    shown = base64.b64decode(data_uri(tmp_path / "a.png").partition(",")[2])
    assert len(shown) < (tmp_path / "a.png").stat().st_size / 2
    assert Image.open(io.BytesIO(shown)).size == (300, 300)


def test_white_stays_white_where_lines_fade_into_it(tmp_path: Path) -> None:
    faded = np.full((300, 300, 3), 255, "uint8")
    faded[:, 100:200] = np.linspace(0, 255, 100).astype("uint8")[:, None]
    faded[:100, 200:210] = (0x00, 0x72, 0xB2)
    Image.fromarray(faded).save(tmp_path / "a.png")
    shown = base64.b64decode(data_uri(tmp_path / "a.png").partition(",")[2])
    pixels = np.asarray(Image.open(io.BytesIO(shown)).convert("RGB"))
    assert (pixels[:, :100] == 255).all()
    assert np.abs(pixels.astype(int) - faded).max() <= 16


def test_a_figure_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        data_uri(tmp_path / "effect_plot.png")
