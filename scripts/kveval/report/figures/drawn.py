"""Reads which figures were drawn, from the MANIFEST in each family's folder."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kveval.host.errors import Failure
from kveval.report.figures.names import MANIFEST


class NotDrawnError(Failure):
    """A figure has nothing to show in this campaign."""


def drawn_figures(folders: Iterable[Path]) -> tuple[list[Path], dict[str, str]]:
    """Return the figures (PNG) in the folders of families, and name -> missing data of those that were not drawn."""
    drawn: list[Path] = []
    lacking: dict[str, str] = {}
    for folder in folders:
        listed = _listed(folder)
        drawn += [folder / f"{name}.png" for name in listed["drawn"]]
        lacking |= listed["lacking"]
    return drawn, lacking


def drawn_figure(folder: Path, file: str) -> Path:
    """Return a family's figure by the name of its file. Raises NotDrawnError, with the reason, where there is none."""
    listed, name = _listed(folder), Path(file).stem
    if name not in listed["drawn"]:
        reason = listed["lacking"].get(name) or listed["left_out"].get(name) or "nothing of its model was measured"
        raise NotDrawnError(
            f"{file}: not drawn: {reason}; drawn with it: {', '.join(listed['drawn']) or 'nothing'}",
            code="not_drawn",
            figure=name,
            reason=reason,
        )
    return folder / file


def _listed(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    return content
