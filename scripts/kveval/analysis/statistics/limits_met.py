"""Goodput in comparisons: levels at which no request met the limits, and other peculiarities of this rate.

A goodput of 0 has no logarithm. It counts as half a request in the level, with the standard error of that count
(sqrt(1 / 0.5) on the ln scale): a difference from it is significant only if no request within the limits is improbable
by chance, and the size of the difference is a bound.
"""

from __future__ import annotations

import math

import pandas as pd

from kveval.analysis.levels.goodput import GOODPUT
from kveval.analysis.statistics.comparison import ComparedCell
from kveval.analysis.statistics.evidence import Rows
from kveval.analysis.statistics.uncertainty import FLOOR

COLUMNS = ("goodput_met", "goodput_settled", "goodput_cut", "duration_s")
"""Columns of a level that a comparison of goodput needs in addition."""
_HALF = 0.5
NONE_IN_EITHER = "nothing met the limits in either: use looser limits or a lower level"
UNKNOWN = "goodput is unknown for one of the two: it was not measured, or its report kept no requests"


def replace_zero_goodput(levels: pd.DataFrame) -> pd.DataFrame:
    """Return a table of levels in which a goodput of 0 is replaced by half a request per window."""
    if GOODPUT not in levels:
        return levels
    none = levels[GOODPUT] == 0
    # The floor uses only a part of the noise within runs; here it should use all of it.
    error = math.sqrt(1 / _HALF) / FLOOR
    return levels.assign(
        **{
            GOODPUT: levels[GOODPUT].mask(none, _HALF / levels["duration_s"]),
            f"{GOODPUT}_se": levels[f"{GOODPUT}_se"].mask(none, error),
        }
    )


def add_goodput_obstacles(entry: ComparedCell) -> None:
    """Set the obstacles to a verdict that only goodput has.

    A side in which nothing met the limits has no spread over runs, so it does not share a spread with other cells.
    """
    if is_none_met_on_one_side(entry):
        entry.group = (*entry.group, entry.arm)
    rows = [*entry.sides.arm, *entry.sides.reference]
    if not rows and not any(run.failed for run in entry.runs_left_out.values()):
        entry.obstacle = UNKNOWN
    elif not entry.obstacle and _without(rows) == len(rows):
        entry.obstacle = NONE_IN_EITHER


def none_met_text(entry: ComparedCell) -> str:
    """Return in how many of the compared runs nothing met the limits, by side; "" if there is no such run."""
    sides = {
        "the arm": entry.sides.arm,
        "the cell it is compared with": entry.sides.reference,
    }
    parts = [
        f"{who} in {_without(rows)} of {len(rows)} runs"
        for who, rows in sides.items()
        if _without(rows)
    ]
    return (
        f"nothing met the limits in {' and in '.join(parts)}, which counts as half a request"
        if parts
        else ""
    )


def is_none_met_on_one_side(entry: ComparedCell) -> bool:
    """Whether nothing met the limits in any run of one side: the difference is then at least as large as estimated."""
    return any(
        rows and _without(rows) == len(rows)
        for rows in (entry.sides.arm, entry.sides.reference)
    )


def _without(rows: Rows) -> int:
    return sum(row["goodput_met"] == 0 for row in rows)
