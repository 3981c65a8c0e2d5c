"""Lookups and failed transfers by the servers' counters, and levels that pilots tried, as a campaign's result lists them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal

from kveval.campaign.cell import Cell
from kveval.report.data.campaign import Measured, ReportPlan
from kveval.report.result.model import (
    ReportedFailedTransfers,
    ReportedLookups,
    TriedLevel,
)
from kveval.store.run_file import LevelRun
from kveval.tables.levels.pilot import Pilot
from kveval.tables.system.failed_transfers import failed_transfers
from kveval.tables.system.lookups import lookups


def lookup_results(plan: ReportPlan, measured: Measured) -> Iterator[ReportedLookups]:
    """Yield the lookups of each cell, level and tier that a server counts."""
    for cell, level, entries in _levels_of_cells(plan, measured):
        for of_tier in lookups(entries):
            yield ReportedLookups(
                **cell.row,
                level=level,
                tier=of_tier.tier,
                chunks=of_tier.chunks,
                hits=of_tier.hits,
                blocked_ms=[*map(_end_ms, of_tier.blocked_s)],
                deferred_ms=[*map(_end_ms, of_tier.deferred_s)],
            )


def failed_transfer_results(
    plan: ReportPlan, measured: Measured
) -> Iterator[ReportedFailedTransfers]:
    """Yield the transfers of each cell, level and kind that failed or were left out."""
    for cell, level, entries in _levels_of_cells(plan, measured):
        for kind, count in failed_transfers(entries).items():
            yield ReportedFailedTransfers(
                **cell.row, level=level, kind=kind, count=count
            )


def tried_levels(pilots: Sequence[Pilot]) -> Iterator[TriedLevel]:
    """Yield every level that pilots tried, in the order of the search."""
    for pilot in pilots:
        peak: Literal["peak", "highest"] = (
            "peak" if pilot.above is not None else "highest"
        )
        places: dict[int | None, Literal["peak", "highest", "below", "above"]] = {
            pilot.below: "below",
            pilot.above: "above",
            pilot.peak: peak,
        }
        for order, (level, throughput_tok_s) in enumerate(pilot.tried, start=1):
            yield TriedLevel(
                cell=pilot.cell,
                order=order,
                level=level,
                throughput_tok_s=throughput_tok_s,
                place=places.get(level),
                measured=level in pilot.levels,
                ending=pilot.ending if order == len(pilot.tried) else None,
            )


def _levels_of_cells(
    plan: ReportPlan, measured: Measured
) -> Iterator[tuple[Cell, int, list[LevelRun]]]:
    """Yield each cell and level that was measured, with what its runs have of it."""
    for cell in plan.ordered_cells:
        entries = [
            level
            for run in measured.runs_of(cell)
            for level in run.levels
            if level.status == "ok"
        ]
        for number in sorted({level.level for level in entries}):
            yield cell, number, [level for level in entries if level.level == number]


def _end_ms(seconds: float) -> float | Literal["longer"] | None:
    """The end of a bucket in ms; infinite: beyond the last one."""
    if math.isnan(seconds):
        return None
    return "longer" if math.isinf(seconds) else 1000 * seconds
