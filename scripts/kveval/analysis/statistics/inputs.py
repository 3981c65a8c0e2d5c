"""The inputs of a comparison that follow from the rows of its levels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from kveval.analysis.statistics import failed_requests, same_work
from kveval.analysis.statistics.evidence import Evidence, Rows, Sides, number

COLUMNS = (
    *same_work.COLUMNS,
    *failed_requests.COLUMNS,
    *("server_build", "arm_settings", "tier_tokens", "tier_reported_tokens", "activity"),
    *("gpus", "gpu_power_limit_w", "gpu_clock_limit_mhz", "gpu_clock_mhz", "gpu_throttled"),
)
"""Columns of a level that the inputs are read from."""
# The check that fails if a tier does not have the cell's size.
TIER_CHECK = "tier_capacity"
NO_COUNTER = "no counter of the server was recorded that shows the arm active: record the server's metrics"
_LIMITS = {"gpu_power_limit_w": ("power limits", "W"), "gpu_clock_limit_mhz": ("clock limits", "MHz")}
# Limits are set; clocks move a little with temperature and load.
_SAME_LIMIT = 0.01
_SAME_CLOCK = 0.05
# A GPU's load changes its clock as well; a difference beyond this is a setting.
_OTHER_CLOCK = 0.15


def of_levels(sides: Sides) -> list[Evidence]:
    """Return the inputs that the levels give; none if one of the sides has no level."""
    if not sides.reference or not sides.arm:
        return []
    return [found for look in INPUTS if (found := look(sides)) is not None]


def build(sides: Sides) -> Evidence:
    """Return whether both sides ran the same build of the server, or differ in nothing but the build."""
    ours, theirs = _texts(sides.arm, "server_build"), _texts(sides.reference, "server_build")
    if not ours or not theirs:
        return Evidence("build", "build not recorded", "unknown")
    if ours == theirs:
        return Evidence("build", "one build")
    settings = _texts(sides.arm, "arm_settings")
    if len(settings) == 1 and settings == _texts(sides.reference, "arm_settings"):
        return Evidence("build", "builds compared")
    ran = f"{' and '.join(ours)}, against {' and '.join(theirs)}"
    return Evidence("build", "other build", "qualifies", f"the effect is that of arm and build together: it ran {ran}")


def _texts(rows: Rows, column: str) -> list[str]:
    return sorted({str(row.get(column) or "") for row in rows} - {"", "nan"})


def activity(sides: Sides) -> Evidence | None:
    """Return a problem if the activity of the arm or of the reference was not recorded; None if there is none."""
    for rows in (sides.arm, sides.reference):
        found = {str(row.get("activity") or "") for row in rows}
        if "not shown" in found and not found & {"shown", "none"}:
            return Evidence("activity", "activity not shown", "indicates", NO_COUNTER)
    return None


def tier(sides: Sides) -> Evidence:
    """Return whether tiers have the sizes of their cells."""
    for row in (*sides.arm, *sides.reference):
        if TIER_CHECK in str(row.get("checks_failed") or "").split(";"):
            asked = f"{number(row, 'tier_tokens'):,.0f} tokens"
            has = number(row, "tier_reported_tokens")
            said = f"{has:,.0f} tokens for {asked}" if has > 0 else "other than asked for"
            reason = f"a tier of another size ({said}): see the check, and measure with a tier of the size asked for"
            return Evidence("tier", said, "refuses", reason)
    sizes = {number(row, "tier_tokens") for row in sides.arm}
    if sizes == {0.0}:
        return Evidence("tier", "none")
    if any(math.isnan(size) for size in sizes):
        return Evidence("tier", "size not recorded", "unknown")
    return Evidence("tier", "as asked for")


def clocks(sides: Sides) -> Evidence:
    """Return whether the GPUs of both sides had the same power limits and clocks."""
    everything = (*sides.arm, *sides.reference)
    if all(number(row, "gpus") == 0 for row in everything):
        return Evidence("clocks", "no GPU")
    if differing := [*_limits(sides), *_clock(sides, _OTHER_CLOCK)]:
        said = "; ".join(differing)
        reason = f"the GPUs of the two cells differ in {said}: set both to the same (nvidia-smi -pl, -lgc)"
        return Evidence("clocks", f"other {said}", "refuses", reason)
    if other := next(_clock(sides, _SAME_CLOCK), ""):
        return Evidence(
            "clocks", "other GPU clocks", "qualifies", f"the GPUs of the two cells ran at different {other}"
        )
    held = _held_back(sides.arm), _held_back(sides.reference)
    if held[0] != held[1]:
        only = [
            f"{', '.join(sorted(one - other))} {where}"
            for one, other, where in ((*held, "in the arm only"), (*held[::-1], "in the cell it is compared with only"))
            if one - other
        ]
        return Evidence("clocks", "GPU throttled on one side", "qualifies", f"GPUs throttled: {'; '.join(only)}")
    if all(math.isnan(number(row, "gpu_power_limit_w")) for row in everything):
        return Evidence("clocks", "clocks not recorded", "unknown")
    return Evidence("clocks", "equal clocks")


def _limits(sides: Sides) -> Iterator[str]:
    for column, (words, unit) in _LIMITS.items():
        ours, theirs = _known(sides.arm, column), _known(sides.reference, column)
        both = [*ours, *theirs]
        if ours and theirs and max(both) > (1 + _SAME_LIMIT) * min(both):
            yield f"{words}: {_range(ours)} against {_range(theirs)} {unit}"


def _clock(sides: Sides, limit: float) -> Iterator[str]:
    """Clocks that differ although the slower side is not known to have been throttled: it was set lower."""
    ours, theirs = _known(sides.arm, "gpu_clock_mhz"), _known(sides.reference, "gpu_clock_mhz")
    if not ours or not theirs:
        return
    one, other = float(np.mean(ours)), float(np.mean(theirs))
    slower = sides.arm if one < other else sides.reference
    if abs(math.log(one / other)) > limit and not _held_back(slower) - {"applications_clocks_setting"}:
        yield f"clocks: {one:,.0f} against {other:,.0f} MHz"


def _held_back(rows: Rows) -> set[str]:
    """The reasons for which GPUs were throttled in any of the runs."""
    texts = [row.get("gpu_throttled") for row in rows]
    return {reason for text in texts if isinstance(text, str) for reason in text.split(";") if reason}


def _known(rows: Rows, column: str) -> list[float]:
    return [value for row in rows if not math.isnan(value := number(row, column))]


def _range(values: list[float]) -> str:
    return " to ".join(f"{value:,.0f}" for value in sorted({min(values), max(values)}))


Input = Callable[[Sides], Evidence | None]
INPUTS: tuple[Input, ...] = (same_work.same_work, activity, build, clocks, tier, failed_requests.failed_requests)
"""The functions that give the inputs of every comparison from its levels."""
