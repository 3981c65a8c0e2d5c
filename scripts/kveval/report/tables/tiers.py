"""The report's table of the work of every cell's caches, from the counters that explain why an arm wins or loses."""

from __future__ import annotations

import pandas as pd

from kveval.analysis.system.tier_activity import COLUMNS
from kveval.report.data.campaign import Measured, ReportPlan, Table, cell_label, rows_of

_HEADER = {
    "device_hit_percent": "found on the device, % of prompt tokens",
    "external_hit_percent": "found behind it, %",
    "store_hit_percent": "of that only in the store, %",
    "loaded_mb": "tier to device, MB",
    "stored_mb": "device to tier, MB",
    "requests_preempted": "requests preempted",
    "reloaded_tokens": "loaded again for them, tokens",
    "second_read_mb": "read from behind the tier, MB",
    "second_written_mb": "written there, MB",
    "second_entries": "keys or files there at the end",
}
_PREEMPTION = {"requests_preempted", "reloaded_tokens"}


def tiers_table(plan: ReportPlan, measured: Measured, model: str = "", level: int | None = None) -> Table:
    """Return a row per cell and level, means over runs; columns that no arm of the campaign counts are left out.

    With `model` and `level`, only their rows, without the columns that name them.
    """
    activity = measured.activity
    told = _HEADER.keys() - (set() if (activity["requests_preempted"] > 0).any() else _PREEMPTION)
    columns = [name for name in COLUMNS if name in told and activity[name].notna().any()]
    rows = []
    for cell in plan.ordered if not model else plan.cells_of(model):
        for found, values in rows_of(activity, cell).groupby("level"):
            if level in (None, found):
                named = [cell_label(cell)] if model else [cell[0], cell_label(cell), f"{found}"]
                rows.append([*named, *(tier_text(values[name].mean()) for name in columns)])
    header = ["arm"] if model else ["model", "arm", measured.unit.heading]
    first = len(header)
    header += [_HEADER[name] for name in columns]
    return Table(header, rows if len(columns) > 1 else [], frozenset(range(first - (not model), len(header))))


def tier_text(value: float) -> str:
    """Return a number with at least three digits as text, "" for a missing one."""
    if pd.isna(value):
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
