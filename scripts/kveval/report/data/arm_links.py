"""Links from the text of a report to the runs behind it: a text that names a cell links to the runs of that cell.

Only report.html has the runs; everywhere else the text is shown without these links.
"""

from __future__ import annotations

import re
from typing import Protocol

_TO_RUNS = re.compile(r"\[([^\[\]]*)\]\(#runs-of-[\w-]+\)")


class NamedArm(Protocol):
    """A cell, by the model and the name of its arm with its size."""

    @property
    def model(self) -> str:
        """The model."""

    @property
    def label(self) -> str:
        """The arm with its size, as tables and figures name it."""


def runs_title(arm: NamedArm) -> str:
    """Return the title of the section with the runs of a cell."""
    return f"Runs of {arm.label} on {arm.model}"


def arm_link(arm: NamedArm) -> str:
    """Return a cell's label as inline Markdown that links to its runs.

    >>> from kveval.campaign.cell import Cell
    >>> arm_link(Cell("Qwen3-0.6B", "native-offload", 10_000))
    '[native-offload 10K](#runs-of-native-offload-10k-on-qwen3-06b)'
    """
    return f"[{arm.label}](#{anchor_of(runs_title(arm))})"


def anchor_of(title: str) -> str:
    """Return the anchor that GitHub gives a heading: lower case, words joined by hyphens.

    >>> anchor_of("Qwen3-0.6B: what was measured")
    'qwen3-06b-what-was-measured'
    """
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def plain_text(text: str) -> str:
    """Return inline Markdown without its links to runs: the labels alone.

    >>> plain_text("[idle 10K](#runs-of-idle-10k-on-qwen3-8b), [checked](#checks)")
    'idle 10K, [checked](#checks)'
    """
    return _TO_RUNS.sub(r"\1", text)
