"""What a verdict rests on: every input of a claim, in a few words, and what it does to the verdict.

An input that holds for a pair of levels is a function in `INPUTS`; one that needs more than those is given to
`ComparedCell.rest_on` by whoever knows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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
    """What one input of a comparison is.

    `says`: a few words, as they stand in a table and beside the verdict's word; `reason`: the whole of it, where it is
    not sound, with what would do away with it.
    """

    name: str
    says: str
    severity: Severity = "sound"
    reason: str = ""

    @property
    def weight(self) -> int:
        """How much it does to the verdict."""
        return SEVERITIES.index(self.severity)

    def __str__(self) -> str:
        return self.says if self.severity == "sound" else f"{self.severity}: {self.says}"


@dataclass(frozen=True)
class Sides:
    """The rows of levels.csv that a comparison of a metric rests on, one a run."""

    metric: str
    reference: Rows
    arm: Rows


Input = Callable[[Sides], Evidence | None]
INPUTS: tuple[Input, ...] = ()
"""What is looked at in every pair of levels that is compared."""


def of_levels(sides: Sides) -> list[Evidence]:
    """Return what the levels themselves say; nothing where there is none on one of the sides."""
    if not sides.reference or not sides.arm:
        return []
    return [found for look in INPUTS if (found := look(sides)) is not None]


def columns(found: Iterable[Evidence]) -> dict[str, str]:
    """Return the inputs as columns of comparison.csv: `basis_NAME`, and `qualifier`, what is said beside the word."""
    by_name = {evidence.name: evidence for evidence in found}
    said = [evidence.says for evidence in by_name.values() if evidence.severity == "qualifies"]
    return {f"basis_{name}": str(by_name.get(name, "")) for name in NAMES} | {"qualifier": "; ".join(said)}
