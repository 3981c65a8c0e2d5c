"""Runs of a campaign that were not measured, as its result lists them."""

from __future__ import annotations

from collections.abc import Iterator

from kveval.report.data.campaign import Measured, ReportPlan
from kveval.report.result.model import MissingRuns


def missing_runs(plan: ReportPlan, measured: Measured) -> Iterator[MissingRuns]:
    """Yield the cells with fewer runs than the campaign asks for."""
    for cell in plan.cells:
        runs, requested = len(measured.runs_of(cell)), plan.runs_of(cell)
        if runs < requested:
            known = measured.failures.get(cell)
            yield MissingRuns(
                **cell.row,
                runs=runs,
                runs_requested=requested,
                reason=known if runs else measured.why_missing(cell),
            )
