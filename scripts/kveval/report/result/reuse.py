"""Shares of tokens from caches, computed and found, and where hits are lost, as the result of a campaign lists them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from kveval.campaign.cell import Cell
from kveval.report.data.campaign import Measured, ReportPlan
from kveval.report.data.hits import (
    TOLERANCE_POINTS,
    ServedShare,
    read_leaks,
    read_served,
)
from kveval.report.result.model import ReportedInterval, ReportedLeak, ReportedReuse
from kveval.tables.cells import tables_by_cell

# Counts beyond these may explain a difference.
_MUCH_IN_PROGRESS = 25.0
_SAME_TOKENS = 2.0


def reuse_results(plan: ReportPlan, measured: Measured) -> list[ReportedReuse]:
    """Return the shares of each cell and level with a prediction, in the order of every table."""
    shares: dict[Cell, list[ServedShare]] = {}
    for share in read_served(measured.hits):
        shares.setdefault(share.cell, []).append(share)
    return [
        _reuse(share)
        for cell in plan.ordered_cells
        for share in sorted(shares.get(cell, ()), key=lambda share: share.level)
    ]


def _reuse(share: ServedShare) -> ReportedReuse:
    low, high = share.predicted
    difference = ReportedInterval(
        value=share.difference,
        low=share.difference - share.half_width,
        high=share.difference + share.half_width,
    )
    return ReportedReuse(
        **share.cell.row,
        level=share.level,
        runs=share.runs,
        has_tier=bool(share.tier_blocks),
        device_computed_percent=share.device_predicted,
        device_found_percent=share.device_measured,
        computed_percent_low=low,
        computed_percent_high=high,
        found_percent=share.measured,
        difference_points=difference,
        is_finding=share.is_finding,
        clues=clues_to(share),
    )


def clues_to(share: ServedShare) -> dict[str, float]:
    """Return what may explain the difference between computed and found tokens, a name of `share.clues` -> its number.

    `lengths_vary`, which has no number, is 1.
    """
    counted = {**share.clues, "lengths_vary": 1.0}
    counted["in_progress_percent"] = min(counted["in_progress_percent"], 100.0)
    few_requests = max(TOLERANCE_POINTS, abs(share.difference) / 2)
    not_stored = counted["not_stored_percent"] > TOLERANCE_POINTS
    explains = {
        "preempted": counted["preempted"] > 0,
        "failed": counted["failed"] > 0,
        "unfinished": counted["unfinished"] > 0,
        "not_stored_percent": bool(share.tier_blocks) and not_stored,
        "evicted": counted["evicted"] > 0,
        "in_progress_percent": counted["in_progress_percent"] > _MUCH_IN_PROGRESS,
        "one_request_points": counted["one_request_points"] > few_requests,
        "asked_percent": abs(counted["asked_percent"] - 100) > _SAME_TOKENS,
        "lengths_vary": share.lengths_vary,
    }
    return {name: counted[name] for name, does in explains.items() if does}


def leak_results(
    measured: Measured, reuse: Sequence[ReportedReuse]
) -> list[ReportedLeak]:
    """Return where each cell loses most of its hits, with its stages, and the clues to what was found."""
    if measured.waterfall.empty:
        return []
    rows_by_cell = tables_by_cell(measured.waterfall)
    clues = {
        shares.cell: shares.clues
        for shares in reuse
        if shares.level == measured.common_level(shares.model)
    }
    leaks = []
    for cell, leak in read_leaks(measured.waterfall).items():
        rows = rows_by_cell[cell]
        of_all_places = rows[rows["place"] == ""].to_dict("records")
        stages = {row["stage"]: row for row in of_all_places}
        saved_s = stages.pop("saved")["seconds"]
        found = {"stages": stages, "saved_s": saved_s, "clues": clues.get(cell)}
        leaks.append(ReportedLeak.model_validate(cell.row | asdict(leak) | found))
    return leaks
