"""The report's tables of goodput, within declared latency limits, and of costs, at declared prices."""

from __future__ import annotations

import math
from collections.abc import Mapping
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

NONE_MET = "none met"
UNKNOWN = "not known"


def goodput_table(plan: ReportPlan, measured: Measured, model: str) -> Table:
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
    rows = []
    for cell in measured.cells_with_peak(plan.cells_of(model)):
        at = measured.levels_of(cell, level)
        shares = 100 * at["goodput_share"].dropna()
        beside = _kept(measured.comparison, cell, at)
        row = [
            cell.label,
            beside or goodput_text(at[GOODPUT]),
            numerals.mean_of(list(shares), most_decimals=1) if len(shares) else "",
        ]
        row += [*_verdict(plan, measured.all_comparisons, cell), _best(measured, cell)]
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
    measured: Measured, cell: Cell, unit: str = "", mean: float | None = None
) -> str:
    """A cell's largest goodput with `unit` behind it, and the level.

    `mean`: that of the runs that a comparison rests on, instead of those that most of the cell's comparisons rest on.
    """
    peak = measured.peak_of(cell)
    if peak is None or pd.isna(peak[GOODPUT]):
        return UNKNOWN
    if math.isnan(peak["goodput_level"]):
        return f"{NONE_MET} at any level"
    level = int(peak["goodput_level"])
    at = measured.levels_of(cell, level)
    if mean is None:
        mean = kept_runs(measured.peak_comparison, cell, GOODPUT).mean
    shown = _rounded(mean, at) or numerals.mean_of(list(at[GOODPUT]))
    return shown.with_text(f"{shown}{unit} ({measured.level_unit.label(level)})")


def _kept(
    table: pd.DataFrame, cell: Cell, at: pd.DataFrame
) -> numerals.NumberText | None:
    """The goodput of a cell whose ratio is the change in `table`, None without one; rounded by its runs `at` the level.

    That is the geometric mean over the runs that the change rests on.
    """
    return _rounded(kept_runs(table, cell, GOODPUT).mean, at)


def _rounded(mean: float, at: pd.DataFrame) -> numerals.NumberText | None:
    """A geometric mean of goodput, rounded by the runs `at` its level; None without one."""
    known = math.isfinite(mean) and (at[GOODPUT] > 0).any()
    return numerals.rounded_mean(mean, list(at[GOODPUT])) if known else None


def goodput_sentence(plan: ReportPlan, measured: Measured, model: str) -> str:
    """Return a sentence on the arm with the largest goodput of a model, each at its best; "" without goodput."""
    table = measured.peak_comparison
    if not plan.goodput or GOODPUT not in measured.levels or table.empty:
        return ""
    rows = [
        row
        for row in baseline_comparisons(plan, table, GOODPUT)
        if row["model"] == model and row["baseline"]
    ]
    within, counted = (
        f"Within the limits ({limits_text(plan.goodput)})",
        plan.goodput["of"],
    )
    better = [row for row in rows if row["verdict"] == words.BETTER]
    if better:
        row = max(better, key=lambda candidate: float(candidate["effect_percent"]))
        arm, base = Cell.from_row(row), Cell.from_path(row["baseline"])
        return (
            f"{within} {arm.label} served at its best"
            f" {_best(measured, arm, f' {counted} a second', row['mean'])},"
            f" {base.label} {_best(measured, base, mean=row['baseline_mean'])}:"
            f" {effect_text(row)}."
        )
    if not rows:
        return ""
    against = " or ".join(
        dict.fromkeys(Cell.from_path(row["baseline"]).label for row in rows)
    )
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
