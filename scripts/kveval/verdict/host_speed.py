"""How fast the hosts of two sides were, by the fixed work before and after each level."""

from __future__ import annotations

import math

from kveval.verdict.findings import ComparisonFinding, new_finding
from kveval.verdict.sides import Sides, number

COLUMNS = ("host_speed",)
"""Columns of a level that this is read from."""
# A processor's clock moves by less from level to level, and the time of the work by less from one time to the next.
_SAME_SPEED = 0.05


def host_speeds(sides: Sides) -> ComparisonFinding | None:
    """Return the runs whose host was faster than that of the run they are paired with by more than the measured effect.

    Up to 5 % is no difference. Of both directions the one of the largest difference counts: `side` was faster, in
    `runs`, by a factor of `ratio` at most. None if there are no such runs, and where the speed was not measured.
    """
    least = max(abs(sides.difference), math.log1p(_SAME_SPEED)) if len(sides) else 0.0
    faster: dict[str, dict[int, float]] = {"arm": {}, "reference": {}}
    for arm, reference in zip(sides.arm, sides.reference, strict=True):
        speeds = number(arm, "host_speed"), number(reference, "host_speed")
        # Neither is above 0 where it is not known.
        apart = math.log(speeds[0] / speeds[1]) if min(speeds) > 0 else math.nan
        if abs(apart) > least:
            side, row = ("arm", arm) if apart > 0 else ("reference", reference)
            faster[side][int(row["run"])] = math.exp(abs(apart))
    side = max(faster, key=lambda name: max(faster[name].values(), default=0.0))
    if not faster[side]:
        return None
    ratio = max(faster[side].values())
    return new_finding(
        "host_speed_differs", side=side, runs=[*faster[side]], ratio=ratio
    )
