"""Levels of goodput, as the result of a campaign lists them."""

from __future__ import annotations

from kveval.report.data.campaign import Measured, ReportPlan
from kveval.tables.levels.goodput import GOODPUT


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
