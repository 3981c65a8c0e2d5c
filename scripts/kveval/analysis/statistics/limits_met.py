"""Goodput in comparisons: no request within the limits is a result, and other peculiarities of this rate.

A logarithm needs a number above 0. A level at which nothing met the limits counts as half a request, with the standard
error that goes with it (sqrt(1 / 0.5) on the ln scale): a difference from it is claimed where chance alone would not
leave none, and its size is a bound.
"""

from __future__ import annotations

import math

import pandas as pd

from kveval.analysis.levels.goodput import GOODPUT
from kveval.analysis.statistics.comparison import ComparedCell
from kveval.analysis.statistics.evidence import Rows
from kveval.analysis.statistics.uncertainty import FLOOR

COLUMNS = ("goodput_met", "goodput_settled", "goodput_cut", "duration_s")
"""Columns of a level that a comparison of goodput needs beside it."""
_HALF = 0.5
NONE_IN_EITHER = "nothing met the limits in either: use looser limits or a lower level"
UNKNOWN = "for one of the two it is unknown what met the limits: not measured, or its report kept no requests"


def comparable(levels: pd.DataFrame) -> pd.DataFrame:
    """Return a table of levels with half a request in place of none that met the limits."""
    if GOODPUT not in levels:
        return levels
    none = levels[GOODPUT] == 0
    # The floor takes a part of the noise within runs; here it is to take all.
    error = math.sqrt(1 / _HALF) / FLOOR
    return levels.assign(
        **{
            GOODPUT: levels[GOODPUT].mask(none, _HALF / levels["duration_s"]),
            f"{GOODPUT}_se": levels[f"{GOODPUT}_se"].mask(none, error),
        }
    )


def nothing_met(levels: pd.DataFrame) -> bool:
    """Whether nothing met the limits at any level of any run; of levels as `comparable` returns them."""
    return not bool((levels["goodput_met"] > 0).any())


def require_comparable(entry: ComparedCell) -> None:
    """Say what keeps two cells' goodput from a verdict beyond what keeps any quantity from one.

    A side without any that met the limits has no spread over runs: it does not share one with other cells.
    """
    if one_side_only(entry):
        entry.group = (*entry.group, entry.arm)
    arm, reference = entry.pair.arm_rows, entry.pair.reference_rows
    if not len(entry.pair):
        entry.obstacle = UNKNOWN
    elif entry.obstacle:
        return
    elif _without(arm) == len(arm) and _without(reference) == len(reference):
        entry.obstacle = NONE_IN_EITHER


def none_met(entry: ComparedCell) -> str:
    """Return where nothing met the limits in how many of the runs compared; "" if there is no such run."""
    sides = {"the arm": entry.pair.arm_rows, "what it is compared with": entry.pair.reference_rows}
    said = [f"{who} in {_without(rows)} of {len(rows)} runs" for who, rows in sides.items() if _without(rows)]
    return f"nothing met the limits in {' and in '.join(said)}, which counts as half a request" if said else ""


def one_side_only(entry: ComparedCell) -> bool:
    """Whether nothing met the limits in any run of one of the two: the difference is then at least as large."""
    return any(rows and _without(rows) == len(rows) for rows in (entry.pair.arm_rows, entry.pair.reference_rows))


def _without(rows: Rows) -> int:
    return sum(row["goodput_met"] == 0 for row in rows)
