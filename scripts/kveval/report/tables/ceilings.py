"""The report's table of what limits a tier: its load rate beside the machine's copy bandwidth and the prefill rate."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from kveval.analysis.cells import CellKey
from kveval.analysis.system.ceilings import Served, break_even_tokens, copy_gb_s, overhead_s, served
from kveval.load.levels import streams_at
from kveval.load.workload import workload_of
from kveval.report.data import numbers as numerals
from kveval.report.data.campaign import Measured, ReportPlan, Table, cell_label

PREFILL = "prefill, tokens/s"
"""The column of the rate at which the baseline computes prompts; absent where it is not known."""
_HEADER = (
    *("tier loads, GB/s", "probe copies, GB/s", "loads, % of the probe", "loaded, tokens/s", PREFILL),
    *("other time, ms a request", "loading is faster from, tokens", "measured: faster at"),
)


def ceilings_table(plan: ReportPlan, measured: Measured, model: str) -> Table:
    """Return a row for each arm of a model whose tier's loads were counted, with its baseline's prefill rate.

    At the longest prefix if the workload varies it, else at the lowest level. The computed length from which loading is
    faster needs a level with one request at a time; the measured one needs a workload that varies the prefix.
    """
    header = ["arm", measured.unit.heading, *_HEADER]
    rows = []
    for cell in plan.cells_of(model):
        baseline = plan.baseline_of.get(cell[1])
        runs = measured.runs_of(cell)
        levels = sorted({entry.level for run in runs for entry in run.levels})
        if not levels or baseline is None:
            continue
        plain = [other for other in plan.cells_of(model) if other[1] == baseline]
        lengths = workload_of(runs[0].workload).profile == "prefix-length"
        level = levels[-1] if lengths else levels[0]
        arm, without = _served(measured, [cell], level), _served(measured, plain, level)
        if math.isnan(arm.load_gb_s):
            continue
        alone = streams_at(workload_of(runs[0].workload), level) == 1
        faster = [
            length
            for length in (levels if lengths else ())
            if _served(measured, [cell], length).ttft_s < _served(measured, plain, length).ttft_s
        ]
        values = [*_values(arm, without, copy_gb_s(runs), alone=alone), ", ".join(map(str, faster))]
        rows.append([cell_label(cell), f"{level}", *values])
    shown = [*range(2), *(place for place in range(2, len(header)) if any(row[place] for row in rows))]
    kept = [[row[place] for place in shown] for row in rows]
    return Table([header[place] for place in shown], kept, frozenset(range(1, len(shown))))


def _served(measured: Measured, cells: Sequence[CellKey], level: int) -> Served:
    """Return the means over these cells' runs at a level."""
    runs = [run for cell in cells for run in measured.runs_of(cell)]
    rows = [measured.levels_of(cell, level) for cell in cells if measured.runs_of(cell)]
    return served(runs, pd.concat(rows) if rows else pd.DataFrame(), level)


def _values(arm: Served, without: Served, ceiling: float, *, alone: bool) -> list[str]:
    prefill_tok_s = without.prefill_tok_s if alone else math.nan
    besides = overhead_s(arm, without) if alone else math.nan
    length = break_even_tokens(prefill_tok_s, arm.load_tok_s, besides)
    return [
        *(_text(value) for value in (arm.load_gb_s, ceiling, 100 * arm.load_gb_s / ceiling, arm.load_tok_s)),
        *(_text(prefill_tok_s), _text(1000 * besides)),
        "never" if math.isinf(length) else "" if math.isnan(length) else f"{math.ceil(length):,}",
    ]


def _text(value: float) -> str:
    return "" if math.isnan(value) else numerals.significant(value, 3)
