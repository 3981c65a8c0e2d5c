"""Goodput and costs, as the result of a campaign lists them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kveval.campaign.cell import Cell
from kveval.report.data.campaign import Measured, ReportPlan
from kveval.report.result.model import ReportedCost, ReportedInterval
from kveval.tables.levels.goodput import GOODPUT
from kveval.verdict.costs import BREAK_EVEN, CHANGE, REQUESTS, TOKENS, costs


def goodput_levels(plan: ReportPlan, measured: Measured) -> dict[str, int | None]:
    """Return model -> the level at which its arms are compared by goodput; nothing where no limits were declared."""
    if not plan.goodput or GOODPUT not in measured.levels:
        return {}
    return {model: _goodput_level(measured, model) for model in plan.models_by_size}


def _goodput_level(measured: Measured, model: str) -> int | None:
    """The level at which most of a model's arms are compared by goodput; else the most frequent best level."""
    table, peaks = measured.comparison, measured.peaks
    of_model = (table["model"] == model) & (table["metric"] == GOODPUT)
    levels = table[of_model]["level"].dropna()
    if levels.empty:
        levels = peaks[peaks["model"] == model]["goodput_level"].dropna()
    return None if levels.empty else int(levels.mode().iloc[0])


def cost_results(plan: ReportPlan, measured: Measured) -> list[ReportedCost]:
    """Return the costs of each cell that was measured, see `verdict.costs`; none without declared prices."""
    if not plan.prices:
        return []
    table = costs(
        measured.levels,
        measured.peaks,
        measured.comparison,
        measured.runs,
        plan.prices,
        plan.stores,
    )
    by_cell = {Cell.from_row(row): row for row in table.to_dict("records")}
    return [_cost(by_cell[cell]) for cell in plan.ordered_cells if cell in by_cell]


def _cost(row: Mapping[Any, Any]) -> ReportedCost:
    baseline = row["baseline"]
    against = Cell.from_path(baseline).row if isinstance(baseline, str) else None
    intervals = {
        **{name: [name, f"{name}_low", f"{name}_high"] for name in (TOKENS, REQUESTS)},
        "change_percent": CHANGE,
        "break_even_usd_per_gib_hour": BREAK_EVEN,
    }
    parts = {name: _interval(row, columns) for name, columns in intervals.items()}
    return ReportedCost.model_validate({**row, **parts, "against": against})


def _interval(row: Mapping[Any, Any], columns: Sequence[str]) -> ReportedInterval:
    value, low, high = (row[name] for name in columns)
    return ReportedInterval(value=value, low=low, high=high)
