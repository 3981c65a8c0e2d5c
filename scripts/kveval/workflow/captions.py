"""How `snakemake --report` shows the figures of a family."""

from collections.abc import Iterable
from typing import Any

from kveval.report.figures.names import figures_of


def captioned(models: Iterable[str], family: str) -> dict[str, Any]:
    """Return the category, labels, caption and names of files, as Snakemake's `report` takes them for a folder.

    The caption includes the file that `captions_of` names.
    """
    figures = {figure.name: figure for figure in figures_of(models, family)}
    return {
        "patterns": ["{figure}.png"],
        "caption": "../scripts/kveval/workflow/caption.rst",
        "category": family.capitalize(),
        "labels": lambda wildcards: {"figure": figures[wildcards.figure].title},
    }


def captions_of(models: Iterable[str], family: str, folder: str) -> dict[str, str]:
    """Return figure -> file of its caption in `folder`, for the figures of a family."""
    return {figure.name: f"{folder}/{figure.entry.key}.rst" for figure in figures_of(models, family)}
