"""Sizes and use of the caches of a campaign, as its result lists them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kveval.campaign.cell import Cell
from kveval.report.data.campaign import Measured, ReportPlan
from kveval.report.result.model import ReportedCounter, ReportedKvBytes
from kveval.store.run_file import Run
from kveval.tables.levels.activity import CounterRise, activity_at, required_counters


def kv_bytes_of_models(
    plan: ReportPlan, measured: Measured
) -> dict[str, ReportedKvBytes]:
    """Return model -> the bytes of a token in its KV cache."""
    served: dict[str, int | None] = {}
    for run in measured.runs:
        served.setdefault(run.cell.model, run.kv_bytes_per_token)
    return {
        model: ReportedKvBytes(
            named=plan.models.get(model, {}).get("kv_bytes_per_token"),
            served=served.get(model),
        )
        for model in plan.models_by_size
    }


def pinned_bytes(run: Run) -> int | None:
    """Return the host memory that a run's tier takes, bytes; None where it is no more than its size."""
    held, size = run.budget.get("held_bytes"), run.budget.get("tier_bytes")
    return held if held and size and held > size else None


def counter_results(plan: ReportPlan, measured: Measured) -> Iterator[ReportedCounter]:
    """Yield the counters that each arm requires, of the cells that were measured."""
    for cell in plan.ordered_cells:
        required = required_counters(plan.scenarios[cell.scenario].get("required", ()))
        activities = [
            (level.level, activity_at(run, level, required))
            for run in measured.runs_of(cell)
            for level in run.levels
            if level.status == "ok"
        ]
        for place in range(len(required) if activities else 0):
            rises = [(level, activity.rises[place]) for level, activity in activities]
            yield _counter(cell, rises)


def _counter(cell: Cell, rises: Sequence[tuple[int, CounterRise]]) -> ReportedCounter:
    """The need and the rise of a required counter; `rises`: by level, over all runs."""
    first = rises[0][1]
    needed = [rise.needed for _, rise in rises]
    amounts = [rise.rise for _, rise in rises if rise.rise is not None]
    return ReportedCounter(
        **cell.row,
        counter=first.counter,
        unit=first.unit,
        needed_least=min(needed),
        needed_most=max(needed),
        rise_least=min(amounts, default=None),
        rise_most=max(amounts, default=None),
        enough_levels=sorted({level for level, rise in rises if rise.enough is True}),
        too_little_levels=sorted(
            {level for level, rise in rises if rise.enough is False}
        ),
    )
