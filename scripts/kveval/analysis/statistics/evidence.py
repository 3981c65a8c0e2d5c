"""The basis of a verdict: each input, in a few words, and its effect on the verdict.

An input that the levels' rows tell is a function in `inputs.INPUTS`; one that needs more than those is given to
`ComparedCell.rest_on` by whoever knows it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Rows = Sequence[Mapping[str, Any]]
Severity = Literal["sound", "unknown", "qualifies", "indicates", "refuses"]
SEVERITIES: tuple[Severity, ...] = ("sound", "unknown", "qualifies", "indicates", "refuses")
"""From the least to the most: fine; not known; said beside the verdict; only indicative; no verdict."""
NAMES = (
    *("work", "activity", "build", "hardware", "clocks", "tier"),
    *("blocks", "order", "errors", "replicates"),
)
"""The inputs, as `Evidence.name` has them. The column of each in comparison.csv is `basis_NAME`."""


@dataclass(frozen=True)
class Evidence:
    """One input of a comparison.

    `says`: a few words, for a table and beside the verdict; `reason`: the full reason, where the input is not sound,
    and what would remove it. `bars_parity`: equality cannot be shown over it.
    """

    name: str
    says: str
    severity: Severity = "sound"
    reason: str = ""
    bars_parity: bool = False

    @property
    def weight(self) -> int:
        """How much it does to the verdict."""
        return SEVERITIES.index(self.severity)

    def __str__(self) -> str:
        return self.says if self.severity == "sound" else f"{self.severity}: {self.says}"


@dataclass(frozen=True)
class Sides:
    """The rows of levels.csv that a comparison of a metric rests on, one a run; those of one place are a pair."""

    metric: str
    reference: Rows
    arm: Rows


def number(row: Mapping[str, Any], column: str) -> float:
    """Return a number of a level's row, NaN where it has none."""
    value = row.get(column)
    return math.nan if value is None else float(value)


def columns(found: Iterable[Evidence]) -> dict[str, str]:
    """Return the inputs as columns of comparison.csv: `basis_NAME`, and `qualifier`, what is said beside the word."""
    by_name = {evidence.name: evidence for evidence in found}
    said = [evidence.says for evidence in by_name.values() if evidence.severity == "qualifies"]
    return {f"basis_{name}": str(by_name.get(name, "")) for name in NAMES} | {"qualifier": "; ".join(said)}
