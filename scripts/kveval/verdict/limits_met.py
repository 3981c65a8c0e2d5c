"""Goodput in comparisons: levels at which no request met the limits, and other peculiarities of this rate.

A goodput of 0 has no logarithm. It counts as half a request in the level, with the standard error of that count
(sqrt(1 / 0.5) on the ln scale): a difference from it is significant only if no request within the limits is improbable
by chance, and the size of the difference is a bound.
"""

from __future__ import annotations

import math

import pandas as pd

from kveval.tables.levels.goodput import GOODPUT, nonzero_goodput
from kveval.verdict.sides import Rows, Sides
from kveval.verdict.uncertainty import FLOOR

COLUMNS = ("goodput_met", "goodput_settled", "goodput_cut", "duration_s")
"""Columns of a level that a comparison of goodput needs in addition."""
_HALF = 0.5


def replace_zero_goodput(levels: pd.DataFrame) -> pd.DataFrame:
    """Return a table of levels in which a goodput of 0 is replaced by half a request per window."""
    if GOODPUT not in levels:
        return levels
    none = levels[GOODPUT] == 0
    # The floor uses only a part of the noise within runs; here it should use all of it.
    error = math.sqrt(1 / _HALF) / FLOOR
    return levels.assign(
        **{
            GOODPUT: nonzero_goodput(levels),
            f"{GOODPUT}_se": levels[f"{GOODPUT}_se"].mask(none, error),
        }
    )


def runs_without(sides: Sides) -> tuple[int, int]:
    """Return in how many of the compared runs nothing met the limits, of arm and reference."""
    return _without(sides.arm), _without(sides.reference)


def is_none_met_on_one_side(sides: Sides) -> bool:
    """Whether nothing met the limits in any run of one side: the difference is then at least as large as estimated."""
    return any(
        rows and _without(rows) == len(rows) for rows in (sides.arm, sides.reference)
    )


def _without(rows: Rows) -> int:
    return sum(row["goodput_met"] == 0 for row in rows)
