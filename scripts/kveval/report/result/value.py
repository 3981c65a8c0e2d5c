"""Goodput and costs, as the result of a campaign lists them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from kveval.campaign.cell import Cell
from kveval.report.data.campaign import Measured, ReportPlan
from kveval.report.result.model import ReportedCost, ReportedInterval
from kveval.tables.levels.goodput import GOODPUT

# Columns of costs.csv: values with the ends of their intervals.
_INTERVALS = (
    (
        "usd_per_million_tokens",
        "usd_per_million_tokens_low",
        "usd_per_million_tokens_high",
    ),
    (
        "device_s_per_1000_requests",
        "device_s_per_1000_requests_low",
        "device_s_per_1000_requests_high",
    ),
    ("change_percent", "change_low_percent", "change_high_percent"),
    ("break_even_usd_per_gib_hour", "break_even_low", "break_even_high"),
)


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


def cost_results(plan: ReportPlan, costs: pd.DataFrame) -> list[ReportedCost]:
    """Return the costs of each cell that was measured, of costs.csv, which is empty without declared prices."""
    by_cell = {Cell.from_row(row): row for row in costs.to_dict("records")}
    return [_cost(by_cell[cell]) for cell in plan.ordered_cells if cell in by_cell]


def _cost(row: Mapping[Any, Any]) -> ReportedCost:
    baseline = row["baseline"]
    against = Cell.from_path(baseline).row if baseline else None
    parts = {
        name: ReportedInterval(value=row[name], low=row[low], high=row[high])
        for name, low, high in _INTERVALS
    }
    return ReportedCost.model_validate({**row, **parts, "against": against})
