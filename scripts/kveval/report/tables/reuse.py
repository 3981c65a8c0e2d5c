"""The report's table of predicted and measured hit shares."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from kveval.analysis.reuse import TOLERANCE_POINTS, ServedShare, served_shares
from kveval.report.data import numbers as numerals
from kveval.report.data.campaign import Measured, ReportPlan, Table, cell_label

_FINDING = f"beyond {TOLERANCE_POINTS:g} points: what the counters show"
# Ranges narrower than the first are shown as one number; counts beyond the others are mentioned.
_ALIKE = 0.05
_MUCH_IN_PROGRESS = 25.0
_SAME_TOKENS = 2.0


def reuse_table(plan: ReportPlan, measured: Measured, *, compared: bool) -> Table:
    """Return a row per cell and level with a prediction, means over runs.

    `compared`: only at the level at which a model's cells are compared, without the column of the level.
    """
    found = {(one.cell, one.level): one for one in served_shares(measured.levels, measured.runs)}
    shown = [
        found[cell, level]
        for cell in plan.ordered
        for level in sorted({level for of, level in found if of == cell})
        if not compared or level == measured.common_level(cell[0])
    ]
    told = any(one.is_finding for one in shown)
    rows = [
        [
            *(one.cell[0], cell_label(one.cell), *([] if compared else [f"{one.level}"])),
            *(text(one) for text in _COLUMNS.values()),
            *([likely_cause(one) if one.is_finding else ""] if told else []),
        ]
        for one in shown
    ]
    header = ["model", "arm", *([] if compared else [measured.unit.heading]), *_COLUMNS, *([_FINDING] if told else [])]
    first = len(header) - told - len(_COLUMNS)
    return Table(header, rows, frozenset(range(first, first + len(_COLUMNS))))


def likely_cause(share: ServedShare) -> str:
    """Return the servers' counts that may explain a finding, or that there are none."""
    return "; ".join(_counted(share)) or "nothing that was counted explains it: a finding about the server"


def _counted(share: ServedShare) -> Iterator[str]:
    counted = share.counted
    if counted["preempted"] > 0:
        yield f"{counted['preempted']:,.0f} preempted requests, which looked up their tokens again"
    if counted["failed"] > 0:
        yield f"{counted['failed']:,.0f} stores or loads failed"
    if counted["unfinished"] > 0:
        yield f"{counted['unfinished']:,.0f} stores unfinished at the level's end"
    if share.tier_blocks and counted["not_stored_percent"] > TOLERANCE_POINTS:
        yield f"{counted['not_stored_percent']:.0f} % of the number of prompt tokens was computed but not stored"
    if counted["evicted"] > 0:
        yield f"LMCache dropped {counted['evicted']:,.0f} chunks"
    if counted["in_progress_percent"] > _MUCH_IN_PROGRESS:
        yield f"requests in progress took up to {min(counted['in_progress_percent'], 100):.0f} % of the device"
    if max(TOLERANCE_POINTS, abs(share.difference) / 2) < counted["one_request_points"]:
        yield f"few requests: each is {counted['one_request_points']:.1f} points"
    if abs(counted["asked_percent"] - 100) > _SAME_TOKENS:
        yield f"the caches were asked for {counted['asked_percent']:.0f} % of the tokens sent"
    if share.varied:
        yield "lengths vary, and the computation uses their means"


def _range(low: float, high: float) -> str:
    return f"{high:.1f}" if high - low < _ALIKE else f"{low:.1f} to {high:.1f}"


def _difference(share: ServedShare) -> str:
    return numerals.points(share.difference, share.difference - share.half_width, share.difference + share.half_width)


_COLUMNS: Mapping[str, Callable[[ServedShare], str]] = {
    "device, computed %": lambda one: f"{one.device_predicted:.1f}",
    "device, found %": lambda one: f"{one.device:.1f}",
    "device and tier, computed %": lambda one: _range(*one.predicted) if one.tier_blocks else "",
    "device and tier, found %": lambda one: f"{one.served:.1f}" if one.tier_blocks else "",
    "found minus computed, points": _difference,
}
