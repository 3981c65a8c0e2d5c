"""The report's tables of goodput, within declared latency limits, and of costs, at declared prices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from kveval.analysis.cells import kept_runs
from kveval.analysis.costs import BREAK_EVEN, CHANGE, REQUESTS, TOKENS, costs
from kveval.analysis.levels.goodput import GOODPUT, limits_text
from kveval.analysis.statistics import verdict_words as words
from kveval.campaign.cell import Cell
from kveval.report.data import numbers as numerals
from kveval.report.data.campaign import (
    Measured,
    ReportPlan,
    Table,
    text_or_blank,
)
from kveval.report.data.comparisons import (
    baseline_comparisons,
    effect_text,
    verdict_cell,
)
from kveval.report.result.model import CampaignResult
from kveval.report.tables.results import level_unit_of

NONE_MET = "none met"
UNKNOWN = "not known"


def goodput_table(
    plan: ReportPlan, measured: Measured, result: CampaignResult, model: str
) -> Table:
    """Return every arm of a model with its goodput at the baseline's best level, and at its own best level."""
    level = goodput_level(plan, measured, model)
    counted = plan.goodput["of"]
    header = [
        "arm",
        f"{counted} a second",
        "met the limits, %",
        "change, % of the baseline (95 %)",
        "verdict",
    ]
    header += [
        f"at its best ({measured.level_unit.heading})",
        "change of the best, % of the baseline's (95 %)",
        "verdict",
    ]
    kept, kept_at_best = (
        kept_runs(table) for table in (measured.comparison, measured.peak_comparison)
    )
    rows = []
    for cell in measured.cells_with_peak(plan.cells_of(model)):
        at = measured.levels_of(cell, level)
        shares = 100 * at["goodput_share"].dropna()
        # Of the runs that the change rests on, so that the two belong together.
        beside = _rounded(kept[cell, GOODPUT].mean, list(at[GOODPUT]))
        row = [
            cell.label,
            beside or goodput_text(at[GOODPUT]),
            numerals.mean_of(list(shares), most_decimals=1) if len(shares) else "",
        ]
        row += _verdict(plan, measured.all_comparisons, cell)
        row.append(_best(result, cell, kept_at_best[cell, GOODPUT].mean))
        rows.append(
            [*row, *_verdict(plan, measured.peak_comparison, cell, explained=True)]
        )
    return Table(header, rows, frozenset({1, 2, 3, 5, 6}))


def goodput_level(plan: ReportPlan, measured: Measured, model: str) -> int | None:
    """Return the level at which most of a model's arms are compared by goodput; else the most frequent best level."""
    table = measured.comparison
    levels = table[(table["model"] == model) & (table["metric"] == GOODPUT)][
        "level"
    ].dropna()
    if levels.empty:
        peaks = measured.peaks
        levels = peaks[peaks["model"] == model]["goodput_level"].dropna()
    return None if levels.empty else int(levels.mode().iloc[0])


def goodput_text(values: pd.Series[float]) -> str:
    """Return the mean goodput of a cell's runs at a level as text; NONE_MET or UNKNOWN if there is none."""
    known = values.dropna()
    if known.empty:
        return UNKNOWN
    return numerals.mean_of(list(known)) if (known > 0).any() else NONE_MET


def _verdict(
    plan: ReportPlan, table: pd.DataFrame, cell: Cell, *, explained: bool = False
) -> list[str]:
    """The change and the verdict of a cell against its baseline; blank for a baseline.

    `explained`: with the reason where there is no verdict.
    """
    rows = [
        row
        for row in baseline_comparisons(plan, table, GOODPUT)
        if Cell.from_row(row) == cell
    ]
    if not rows:
        return ["", ""]
    reason = (
        text_or_blank(rows[0]["reason"])
        if explained and rows[0]["verdict"] not in words.VERDICTS
        else ""
    )
    stated = verdict_cell(rows[0])
    return [effect_text(rows[0]), f"{stated}: {reason}" if reason else stated]


def _best(
    result: CampaignResult, cell: Cell, mean: float | None, unit: str = ""
) -> str:
    """A cell's largest goodput with `unit` behind it, and the level.

    `mean`: that of the runs that a comparison rests on; None or NaN without one.
    """
    known = result.by_cell[cell]
    if known.peak is None or known.goodput_per_s is None:
        return UNKNOWN
    level = known.goodput_level
    if level is None:
        return f"{NONE_MET} at any level"
    values = known.values(level, GOODPUT)
    shown = _rounded(mean, values) or numerals.mean_of(values)
    return shown.with_text(f"{shown}{unit} ({level_unit_of(result).label(level)})")


def _rounded(mean: float | None, values: Sequence[float]) -> numerals.NumberText | None:
    """A geometric mean of goodput, rounded by the values of runs; None without one."""
    if mean is None or not math.isfinite(mean) or not any(each > 0 for each in values):
        return None
    return numerals.rounded_mean(mean, values)


def goodput_sentence(result: CampaignResult, model: str) -> str:
    """Return a sentence on the arm with the largest goodput of a model, each at its best; "" without goodput."""
    limits = result.campaign.goodput
    compared = [
        (each, each.against.cell)
        for each in result.peaks_with_baselines(GOODPUT).values()
        if each.model == model and each.against
    ]
    if not limits or not compared:
        return ""
    within, counted = f"Within the limits ({limits_text(limits)})", limits["of"]
    better = [pair for pair in compared if pair[0].verdict == words.BETTER]
    if better:
        best, base = max(better, key=lambda pair: pair[0].effect_percent.numbers[0])
        of_arm, of_base = best.means
        return (
            f"{within} {best.label} served at its best"
            f" {_best(result, best.cell, of_arm.mean, f' {counted} a second')},"
            f" {base.label} {_best(result, base, of_base.mean)}:"
            f" {effect_text(best.row)}."
        )
    against = " or ".join(dict.fromkeys(base.label for _, base in compared))
    return f"{within} no arm was shown to serve more {counted} a second at its best than {against}."


NEVER = "not at any price"


def cost_table(plan: ReportPlan, measured: Measured) -> Table:
    """Return every cell's costs at the level where its model's cells are compared; no rows without declared prices."""
    if not plan.prices:
        return Table([], [])
    table = costs(
        measured.levels,
        measured.peaks,
        measured.comparison,
        measured.runs,
        plan.prices,
        plan.stores,
    )
    device = "GPU" if (table["gpus"] > 0).any() else "host"
    header = [
        "model",
        "arm",
        f"{device}s",
        "tier, GiB",
        "$ an hour",
        "$ a million output tokens (95 %)",
    ]
    against = {Cell.from_path(name).label for name in table["baseline"].dropna()}
    header += [
        f"change, % of {against.pop() if len(against) == 1 else 'the baseline'} (95 %)",
        f"{device} s per 1,000 requests (95 %)",
    ]
    header += ["the tier pays below, $ a GiB-hour (95 %)"]
    by_cell = {Cell.from_row(row): row for row in table.to_dict("records")}
    rows = []
    for cell in measured.cells_with_peak(plan.ordered_cells):
        rows.append([cell.model, cell.label, *_cost_cells(by_cell[cell])])
    return Table(header, rows, frozenset(range(2, 9)))


def _cost_cells(row: Mapping[Any, Any]) -> list[str]:
    """The costs of a cell as text, from its row of costs.csv."""
    change = ""
    if pd.notna(row[CHANGE[0]]):
        change = numerals.effect(*(row[name] for name in CHANGE))
    return [
        numerals.rounded(row["gpus"] or row["servers"], 0),
        numerals.significant(row["tier_gib"], 3) if row["tier_gib"] else "",
        numerals.significant(row["usd_per_hour"], 3),
        _with_interval(row, TOKENS),
        change,
        _with_interval(row, REQUESTS),
        _break_even(row),
    ]


def _with_interval(row: Mapping[Any, Any], name: str) -> str:
    return numerals.with_interval(row[name], row[f"{name}_low"], row[f"{name}_high"])


def _break_even(row: Mapping[Any, Any]) -> str:
    """The break-even price with its interval, whose lower end is 0 if the tier may make tokens more expensive."""
    value, low, high = (row[name] for name in BREAK_EVEN)
    if math.isnan(value):
        return ""
    if value <= 0:
        return (
            NEVER if high <= 0 else f"{NEVER}, or {numerals.significant(high)} at most"
        )
    return numerals.with_interval(value, max(low, 0.0), high)
