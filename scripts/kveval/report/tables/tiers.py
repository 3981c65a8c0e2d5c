"""The report's table of what every cell's caches did: the counters behind a win or a loss."""

from __future__ import annotations

import pandas as pd

from kveval.analysis.system.tier_activity import COLUMNS, tier_activity
from kveval.report.data.campaign import Measured, ReportPlan, Table, cell_label, rows_of

_HEADER = {
    "device_hit_percent": "found on the device, % of prompt tokens",
    "external_hit_percent": "found behind it, %",
    "store_hit_percent": "of that only in the store, %",
    "loaded_mb": "tier to device, MB",
    "stored_mb": "device to tier, MB",
    "second_read_mb": "read from behind the tier, MB",
    "second_written_mb": "written there, MB",
    "second_entries": "keys or files there at the end",
}


def tiers_table(plan: ReportPlan, measured: Measured) -> Table:
    """Return a row per cell and level, means over runs; columns that no arm of the campaign counts are left out."""
    activity = tier_activity(measured.runs)
    columns = [name for name in COLUMNS if name in _HEADER and activity[name].notna().any()]
    header = ["model", "arm", measured.unit.heading, *(_HEADER[name] for name in columns)]
    rows = []
    for cell in plan.cells:
        for level, values in rows_of(activity, cell).groupby("level"):
            means = [values[name].mean() for name in columns]
            rows.append([cell[0], cell_label(cell), f"{level}", *(_text(mean) for mean in means)])
    return Table(header, rows if len(columns) > 1 else [], frozenset(range(2, len(header))))


def _text(value: float) -> str:
    if pd.isna(value):
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
