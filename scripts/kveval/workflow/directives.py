"""Values of directives that several rules have: resources that grow with the campaign, captions for --report."""

import math
from collections.abc import Callable, Iterable
from typing import Any

from kveval.report.figures.names import figures_of


def per_run_resource(
    least: float, per_run: float, runs: int
) -> Callable[[object, int], int]:
    """Return a resource function for Snakemake: (least + per_run x runs), rounded up, times the number of the attempt.

    What jobs request from batch systems: docs/execution.md. Only for rules with one job per campaign, because Snakemake
    calls the function once for every planned job.
    """
    first = math.ceil(least + per_run * runs)

    def resource(wildcards: object, attempt: int) -> int:
        return first * attempt

    return resource


class WhenPrinted(str):
    """Text of a rule's message that is made when the message is printed: for every planned job it would take long.

    As a parameter it is "", so that it can be written down like any other.
    """

    text: Callable[[], str]

    def __new__(cls, text: Callable[[], str]) -> "WhenPrinted":
        """Take the function that returns the text."""
        made = super().__new__(cls, "")
        made.text = text
        return made

    def __format__(self, form: str) -> str:
        """Return the text."""
        return format(self.text(), form)


def captioned(models: Iterable[str], family: str) -> dict[str, Any]:
    """Return category, labels, caption and names of files, as Snakemake's `report` takes them for a folder.

    The caption is what `captions_of` has.
    """
    figures = {figure.name: figure for figure in figures_of(models, family)}
    return {
        "patterns": ["{figure}.png"],
        "caption": "../scripts/kveval/workflow/caption.rst",
        "category": family.capitalize(),
        "labels": lambda wildcards: {"figure": figures[wildcards.figure].title},
    }


def captions_of(models: Iterable[str], family: str) -> dict[str, str]:
    """Return figure -> its caption, for the figures of a family."""
    return {figure.name: figure.caption for figure in figures_of(models, family)}
