import base64
from pathlib import Path

import pytest

from kveval.report.html.page import data_uri


def test_the_smaller_file_of_a_figure_is_taken(tmp_path: Path) -> None:
    png, svg = (
        tmp_path / "curve_Qwen3-0.6B_all.png",
        tmp_path / "curve_Qwen3-0.6B_all.svg",
    )
    png.write_bytes(b"png" * 10)
    assert (
        data_uri(png)
        == f"data:image/png;base64,{base64.b64encode(b'png' * 10).decode()}"
    )
    svg.write_bytes(b"<svg/>")
    assert (
        data_uri(png)
        == f"data:image/svg+xml;base64,{base64.b64encode(b'<svg/>').decode()}"
    )
    png.write_bytes(b"p")
    assert data_uri(png).startswith("data:image/png;")


def test_a_figure_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        data_uri(tmp_path / "effect_plot.png")
