"""The report's table of costs: what tokens and requests cost at the declared prices, and when a tier pays off."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from kveval.analysis.cells import cell_named, cell_of
from kveval.analysis.costs import BREAK_EVEN, CHANGE, REQUESTS, TOKENS, costs
from kveval.report.data import numbers as numerals
from kveval.report.data.campaign import Measured, ReportPlan, Table, cell_label

NEVER = "not at any price"


def cost_table(plan: ReportPlan, measured: Measured) -> Table:
    """Return every cell's costs at the level where its model's cells are compared; no rows without declared prices."""
    if not plan.prices:
        return Table([], [])
    found = costs(measured.levels, measured.peaks, measured.comparison, measured.runs, plan.prices, plan.stores)
    device = "GPU" if (found["gpus"] > 0).any() else "host"
    header = ["model", "arm", f"{device}s", "tier, GiB", "$ an hour", "$ a million output tokens (95 %)"]
    against = {cell_label(cell_named(name)) for name in found["baseline"].dropna()}
    header += [
        f"change, % of {against.pop() if len(against) == 1 else 'the baseline'} (95 %)",
        f"{device} s per 1,000 requests (95 %)",
    ]
    header += ["the tier pays below, $ a GiB-hour (95 %)"]
    by_cell = {cell_of(row): row for row in found.to_dict("records")}
    rows = []
    for cell in measured.with_peak(plan.ordered):
        row = by_cell[cell]
        rows.append(
            [
                *(cell[0], cell_label(cell), numerals.rounded(row["gpus"] or row["servers"], 0)),
                numerals.significant(row["tier_gib"], 3) if row["tier_gib"] else "",
                numerals.significant(row["usd_per_hour"], 3),
                numerals.with_interval(*(row[f"{TOKENS}{end}"] for end in ("", "_low", "_high"))),
                _change(row),
                numerals.with_interval(*(row[f"{REQUESTS}{end}"] for end in ("", "_low", "_high"))),
                _break_even(row),
            ]
        )
    return Table(header, rows, frozenset(range(2, 9)))


def _change(row: Mapping[Any, Any]) -> str:
    return "" if pd.isna(row[CHANGE[0]]) else numerals.effect(*(row[name] for name in CHANGE))


def _break_even(row: Mapping[Any, Any]) -> str:
    """The break-even price with its interval, whose lower end is 0 if the tier may make tokens more expensive."""
    value, low, high = (row[name] for name in BREAK_EVEN)
    if math.isnan(value):
        return ""
    if value <= 0:
        return NEVER if high <= 0 else f"{NEVER}, or {numerals.significant(high)} at most"
    return numerals.with_interval(value, max(low, 0.0), high)
