"""The report's table of the gain from tiers: predicted from the baseline's runs, and measured."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from kveval.analysis.cells import THROUGHPUT, cell_of
from kveval.report.data import numbers as numerals
from kveval.report.data.campaign import Measured, ReportPlan, Table, cell_label
from kveval.report.data.comparisons import against_baselines, effect_text

_HEADER = (
    *("model", "arm", "throughput, predicted change (9 of 10 simulations)", "measured change (95 %)"),
    *("mean TTFT, predicted, ms (9 of 10)", "measured, ms"),
)


def predicted_table(plan: ReportPlan, measured: Measured) -> Table:
    """Return a row for each cell with a tier whose gain was predicted, at the level where its model is compared."""
    found = {cell_of(row): row for row in measured.predicted.to_dict("records")}
    compared = {cell_of(row): row for row in against_baselines(plan, measured.comparison, THROUGHPUT)}
    rows = []
    for cell in plan.ordered:
        if cell not in found or not len(at := measured.levels_of(cell, found[cell]["level"])):
            continue
        row = found[cell]
        rows.append(
            [
                *(cell[0], cell_label(cell)),
                numerals.effect(*(row[f"throughput_percent{end}"] for end in ("", "_low", "_high"))),
                effect_text(compared[cell]) if cell in compared else numerals.MISSING,
                numerals.with_interval(*(row[f"ttft_ms_mean{end}"] for end in ("", "_low", "_high"))),
                numerals.mean_of(list(at["ttft_ms_mean"])),
            ]
        )
    return Table(_HEADER, rows, frozenset(range(2, 6)))


def enough(measured: Measured) -> Iterator[str]:
    """Yield a sentence per model on the host memory that a tier needs for this load."""
    rows = measured.predicted
    known = rows[rows["enough_blocks"].notna()] if len(rows) else pd.DataFrame()
    for row in known.drop_duplicates("model").to_dict("records") if len(known) else ():
        at = measured.unit.said([row["level"]])
        yield (
            f"{row['model']}: at {at}, {numerals.significant(row['enough_gib'], 3)} GiB of host memory"
            f" ({row['enough_blocks']:,.0f} blocks) add 90 % of what a tier of any size adds."
        )
