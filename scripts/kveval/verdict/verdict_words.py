"""The words of the verdicts, as they are in column `verdict` of comparison.csv and in report.json."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

BETTER, WORSE, PARITY, INCONCLUSIVE = "better", "worse", "parity", "inconclusive"
WORSE_IDLE, IDLE = "worse although idle", "idle, cost bounded"
"""Of an arm whose tier served next to nothing: what it costs. Never better, because the tier cannot be why."""
IDLE_FAMILY = ", idle"
"""The end of `family` in the comparisons of idle arms, which are adjusted for each other."""
SIZES_FAMILY = ", neighbouring sizes"
"""Part of `family` in the comparisons of neighbouring sizes of an arm, which are adjusted for each other."""
DIFFERENT = (BETTER, WORSE, WORSE_IDLE)
DECIDED = (BETTER, WORSE, PARITY, WORSE_IDLE, IDLE)
VERDICTS = (*DECIDED, INCONCLUSIVE)
INDICATIVE_TIME = "indicative (measured at another time)"
INDICATIVE_ACTIVITY = "indicative (activity not shown)"
_INDICATED_BY = {
    "another_time": "measured at another time",
    "activity_not_shown": "activity not shown",
}
NOT_JUDGED = "not judged"
"""Of peaks at levels that differ, which have an effect and an interval, and no test."""
SINGLE_RUN, NOT_ASSESSED, NOT_EXERCISED = (
    "not assessed (single run)",
    "not assessed",
    "not exercised",
)
WITHOUT_VERDICT = (
    INDICATIVE_TIME,
    INDICATIVE_ACTIVITY,
    SINGLE_RUN,
    NOT_ASSESSED,
    NOT_EXERCISED,
    NOT_JUDGED,
)


def is_of_idle_arm(row: Mapping[Any, Any]) -> bool:
    """Return whether a row of comparison.csv is about what an idle arm costs."""
    return str(row.get("family")).endswith(IDLE_FAMILY)


def indicative(codes: Iterable[str]) -> str:
    """Return the word for a verdict that findings with these codes make only indicative.

    >>> indicative(["another_time", "activity_not_shown"])
    'indicative (measured at another time, activity not shown)'
    """
    return f"indicative ({', '.join(indicated_by(codes))})"


def indicated_by(codes: Iterable[str]) -> list[str]:
    """Return what makes a verdict with findings of these codes only indicative, in words; nothing else is named."""
    return [_INDICATED_BY[code] for code in codes if code in _INDICATED_BY]
