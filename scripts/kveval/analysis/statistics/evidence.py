"""The basis of a verdict: each input, in a few words, and its effect on the verdict.

An input that follows from the levels' rows is a function in `inputs.INPUTS`; other inputs are passed to
`ComparedCell.add_evidence` where they are computed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from kveval.analysis.estimators.spreads import Array

Rows = Sequence[Mapping[str, Any]]
Severity = Literal["sound", "unknown", "qualifies", "indicates", "refuses"]
SEVERITIES: tuple[Severity, ...] = (
    "sound",
    "unknown",
    "qualifies",
    "indicates",
    "refuses",
)
"""From least to most severe: fine; not known; stated with the verdict; makes it only indicative; prevents a verdict."""
NAMES = (
    *("work", "activity", "build", "hardware", "clocks", "tier"),
    *(
        "runs",
        "blocks",
        "order",
        "errors",
        "replicates",
        "load",
        "visits",
        "latencies",
        "answers",
    ),
)
"""The values of `Evidence.name`. The column of each in comparison.csv is `basis_NAME`."""


@dataclass(frozen=True)
class Evidence:
    """One input of a comparison.

    `summary`: a few words, for tables and beside the verdict; `reason`: if the input is not sound, what is wrong and how
    to avoid it. `bars_parity`: whether the input rules out a verdict of parity. `against`: the sides in whose favour
    it rules out a verdict, of "arm" and "reference".
    """

    name: str
    summary: str
    severity: Severity = "sound"
    reason: str = ""
    bars_parity: bool = False
    against: tuple[str, ...] = ()

    @property
    def weight(self) -> int:
        """The rank of the severity."""
        return SEVERITIES.index(self.severity)

    def __str__(self) -> str:
        return (
            self.summary
            if self.severity == "sound"
            else f"{self.severity}: {self.summary}"
        )


@dataclass(frozen=True)
class Sides:
    """The rows of levels.csv that a comparison of a metric uses, one per run; rows at the same index are a pair."""

    metric: str
    reference: Rows = ()
    arm: Rows = ()

    def __len__(self) -> int:
        return len(self.arm)

    @cached_property
    def logs(self) -> tuple[Array, Array]:
        """ln of the metric by run, in reference and arm."""
        return np.log(numbers(self.reference, self.metric)), np.log(
            numbers(self.arm, self.metric)
        )

    @property
    def difference(self) -> float:
        """Mean difference of ln, arm - reference."""
        reference, arm = self.logs
        return float(np.mean(arm - reference))


def number(row: Mapping[str, Any], column: str) -> float:
    """Return a column of a level's row as a number, NaN where it has none."""
    value = row.get(column)
    return math.nan if value is None else float(value)


def numbers(rows: Rows, column: str) -> Array:
    """Return a column of several rows, NaN where a row has none."""
    return np.array([number(row, column) for row in rows], dtype=np.float64)


def evidence_columns(inputs: Iterable[Evidence]) -> dict[str, str]:
    """Return the inputs as columns of comparison.csv: `basis_NAME`, and `qualifier`, the words beside the verdict."""
    by_name = {evidence.name: evidence for evidence in inputs}
    qualifiers = [
        evidence.summary
        for evidence in by_name.values()
        if evidence.severity == "qualifies"
    ]
    return {f"basis_{name}": str(by_name.get(name, "")) for name in NAMES} | {
        "qualifier": "; ".join(qualifiers)
    }
