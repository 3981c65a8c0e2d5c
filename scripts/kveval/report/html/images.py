"""Embeds figures in the page as data URIs, from the smaller of a figure's files."""

from __future__ import annotations

import base64
from pathlib import Path

_TYPES = {".svg": "image/svg+xml", ".png": "image/png"}


def data_uri(figure: Path) -> str:
    """Return the smaller of a figure's PNG and SVG as a data URI; `figure` is the path of either.

    Raises FileNotFoundError where neither exists.
    """
    found = [path for kind in _TYPES if (path := figure.with_suffix(kind)).is_file()]
    if not found:
        raise FileNotFoundError(f"{figure}: no such figure as {' or '.join(_TYPES)}")
    smallest = min(found, key=lambda path: path.stat().st_size)
    return f"data:{_TYPES[smallest.suffix]};base64,{base64.b64encode(smallest.read_bytes()).decode()}"
