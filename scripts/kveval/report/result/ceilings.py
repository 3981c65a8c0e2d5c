"""Limits of the loads of tiers, as the result of a campaign lists them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import pandas as pd

from kveval.campaign.cell import Cell
from kveval.load.levels import streams_at
from kveval.load.workload import workload_of
from kveval.report.data.campaign import Measured, ReportPlan
from kveval.report.result.model import ReportedCeiling
from kveval.tables.system.ceilings import (
    RequestMeans,
    break_even_tokens,
    copy_gb_s,
    overhead_s,
    request_means,
)


def ceiling_results(plan: ReportPlan, measured: Measured) -> Iterator[ReportedCeiling]:
    """Yield the limits of each arm whose tier's loads were counted, with its baseline's prefill rate.

    At the longest prefix if the workload varies it, else at the lowest level. The computed length from which loading is
    faster needs a level with one request at a time; the measured one needs a workload that varies the prefix.
    """
    for cell in plan.ordered_cells:
        runs = measured.runs_of(cell)
        levels = sorted({entry.level for run in runs for entry in run.levels})
        baseline = plan.baseline_of.get(cell.scenario)
        if not levels or baseline is None:
            continue
        cells = plan.cells_of(cell.model)
        baselines = [base for base in cells if base.scenario == baseline]
        workload = workload_of(runs[0].workload)
        lengths = levels if workload.profile == "prefix-length" else []
        level = lengths[-1] if lengths else levels[0]
        arm = _served(measured, [cell], level)
        if math.isnan(arm.load_gb_s):
            continue
        yield _ceiling(
            cell,
            level,
            arm,
            _served(measured, baselines, level),
            copy_gb_s(runs),
            alone=streams_at(workload, level) == 1,
            faster_levels=[
                length
                for length in lengths
                if _served(measured, [cell], length).ttft_s
                < _served(measured, baselines, length).ttft_s
            ],
        )


def _served(measured: Measured, cells: Sequence[Cell], level: int) -> RequestMeans:
    """Return the means over these cells' runs at a level."""
    runs = [run for cell in cells for run in measured.runs_of(cell)]
    rows = [measured.levels_of(cell, level) for cell in cells if measured.runs_of(cell)]
    return request_means(runs, pd.concat(rows) if rows else pd.DataFrame(), level)


def _ceiling(
    cell: Cell,
    level: int,
    arm: RequestMeans,
    without: RequestMeans,
    copied_gb_s: float,
    *,
    alone: bool,
    faster_levels: list[int],
) -> ReportedCeiling:
    """The limits of an arm's loads; `alone`: whether requests were sent one at a time."""
    prefill_tok_s = without.prefill_tok_s if alone else math.nan
    besides = overhead_s(arm, without) if alone else math.nan
    length = break_even_tokens(prefill_tok_s, arm.load_tok_s, besides)
    return ReportedCeiling(
        **cell.row,
        level=level,
        load_gb_s=arm.load_gb_s,
        copy_gb_s=copied_gb_s,
        load_tok_s=arm.load_tok_s,
        prefill_tok_s=prefill_tok_s,
        overhead_ms=1000 * besides,
        break_even_tokens=length,
        never_faster=math.isinf(length),
        faster_levels=faster_levels,
    )
