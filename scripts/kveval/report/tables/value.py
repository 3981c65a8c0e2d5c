"""The report's tables of goodput, within declared latency limits, and of costs, at declared prices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from kveval.campaign.cell import Cell
from kveval.report.data import numbers as numerals
from kveval.report.data.arm_links import arm_link
from kveval.report.data.campaign import Table
from kveval.report.data.comparisons import effect_text, verdict_cell
from kveval.report.result.model import (
    CampaignResult,
    ReportedCell,
    ReportedComparison,
    ReportedCost,
    ReportedMean,
    or_nan,
)
from kveval.report.tables.results import level_unit_of
from kveval.tables.levels.goodput import GOODPUT, limits_text
from kveval.verdict import verdict_words as words

NONE_MET = "none met"
UNKNOWN = "not known"


def goodput_table(result: CampaignResult, model: str) -> Table:
    """Return every arm of a model with its goodput at the baseline's best level, and at its own best level."""
    level, unit = result.goodput_levels[model], level_unit_of(result)
    counted = result.campaign.goodput["of"]
    header = [
        "arm",
        f"{counted} a second",
        "met the limits, %",
        "change, % of the baseline (95 %)",
        "verdict",
    ]
    header += [
        f"at its best ({unit.heading})",
        "change of the best, % of the baseline's (95 %), not judged",
    ]
    compared = result.with_baselines(GOODPUT)
    compared_at_best = result.peaks_with_baselines(GOODPUT)
    rows = []
    for cell in result.cells_of(model):
        if not cell.peak:
            continue
        at = _values(cell, level, GOODPUT)
        shares = [100 * share for share in _values(cell, level, "goodput_share")]
        # Of the runs that the change rests on, so that the two belong together.
        beside = _rounded(_kept_mean(cell.kept_means), at)
        row = [
            arm_link(cell),
            beside or goodput_text(at),
            numerals.mean_of(shares, most_decimals=1) if shares else "",
            *_verdict(compared.get(cell.cell)),
            _best(result, cell.cell, _kept_mean(cell.kept_peak_means)),
        ]
        at_best = compared_at_best.get(cell.cell)
        rows.append([*row, effect_text(at_best.row) if at_best else ""])
    return Table(header, rows, frozenset({1, 2, 3, 5, 6}))


def _values(cell: ReportedCell, level: int | None, metric: str) -> list[float]:
    """The known values of a cell at a level; at all of its levels where its model has none."""
    levels = [each.level for each in cell.levels] if level is None else [level]
    return [value for each in levels for value in cell.values(each, metric)]


def _kept_mean(kept_means: Mapping[str, ReportedMean]) -> float | None:
    return kept_means.get(GOODPUT, ReportedMean()).mean


def goodput_text(values: Sequence[float]) -> str:
    """Return the mean goodput of a cell's runs at a level as text; NONE_MET or UNKNOWN if there is none."""
    if not values:
        return UNKNOWN
    return numerals.mean_of(values) if max(values) > 0 else NONE_MET


def _verdict(comparison: ReportedComparison | None) -> list[str]:
    """The change and the verdict of a cell against its baseline; blank for a baseline."""
    if comparison is None:
        return ["", ""]
    return [effect_text(comparison.row), verdict_cell(comparison.row)]


def _best(result: CampaignResult, cell: Cell, mean: float | None) -> str:
    """A cell's largest goodput, and the level; `mean`: that of the runs that a comparison rests on, None without one."""
    known = result.by_cell[cell]
    if known.peak is None or known.goodput_per_s is None:
        return UNKNOWN
    level = known.goodput_level
    if level is None:
        return f"{NONE_MET} at any level"
    values = known.values(level, GOODPUT)
    shown = _rounded(mean, values) or numerals.mean_of(values)
    return shown.with_text(f"{shown} ({level_unit_of(result).label(level)})")


def _rounded(mean: float | None, values: Sequence[float]) -> numerals.NumberText | None:
    """A geometric mean of goodput, rounded by the values of runs; None without one."""
    if mean is None or not math.isfinite(mean) or not any(each > 0 for each in values):
        return None
    return numerals.rounded_mean(mean, values)


def goodput_sentence(result: CampaignResult, model: str) -> str:
    """Return a sentence on the arm with the largest goodput of a model at the compared level; "" without goodput."""
    limits = result.campaign.goodput
    compared = [
        (each, each.against.cell)
        for each in result.with_baselines(GOODPUT).values()
        if each.model == model and each.against
    ]
    if not limits or not compared:
        return ""
    within, counted = f"Within the limits ({limits_text(limits)})", limits["of"]
    better = [pair for pair in compared if pair[0].verdict == words.BETTER]
    if better:
        best, base = max(better, key=lambda pair: pair[0].effect_percent.numbers[0])
        of_arm, of_base = (
            _at_level(result, cell, best.level, means.mean)
            for cell, means in zip((best.cell, base), best.means, strict=True)
        )
        return (
            f"{within} {arm_link(best)} served {of_arm} {counted} a second,"
            f" {arm_link(base)} {of_base}: {effect_text(best.row)}."
        )
    against = " or ".join(dict.fromkeys(arm_link(base) for _, base in compared))
    return f"{within} no arm was shown to serve more {counted} a second than {against}."


def _at_level(
    result: CampaignResult, cell: Cell, level: int | None, mean: float | None
) -> str:
    """A cell's goodput at a level, and the level; `mean`: that of the runs that a comparison rests on."""
    values = _values(result.by_cell[cell], level, GOODPUT)
    shown = _rounded(mean, values) or goodput_text(values)
    return f"{shown} ({level_unit_of(result).label(level)})" if level else f"{shown}"


NEVER = "not at any price"


def cost_table(result: CampaignResult) -> Table:
    """Return every cell's costs at the level where its model's cells are compared; no rows without declared prices."""
    costs = {cost.cell: cost for cost in result.costs}
    on_gpus = any(or_nan(cost.gpus) > 0 for cost in costs.values())
    device = "GPU" if on_gpus else "host"
    header = [
        "model",
        "arm",
        f"{device}s",
        "tier, GiB",
        "$ an hour",
        "$ a million output tokens (95 %)",
    ]
    against = {cost.against.label for cost in costs.values() if cost.against}
    header += [
        f"change, % of {against.pop() if len(against) == 1 else 'the baseline'} (95 %)",
        f"{device} s per 1,000 requests (95 %)",
    ]
    header += ["the tier pays below, $ a GiB-hour (95 %)"]
    rows = [
        [cell.model, arm_link(cell), *_cost_cells(costs[cell.cell])]
        for cell in result.cells
        if cell.peak and cell.cell in costs
    ]
    return Table(header, rows, frozenset(range(2, 9)))


def _cost_cells(cost: ReportedCost) -> list[str]:
    """The costs of a cell as text."""
    change = cost.change_percent
    return [
        numerals.rounded(or_nan(cost.gpus) or or_nan(cost.servers), 0),
        "" if cost.tier_gib == 0 else numerals.significant(or_nan(cost.tier_gib), 3),
        numerals.significant(or_nan(cost.usd_per_hour), 3),
        numerals.with_interval(*cost.usd_per_million_tokens.numbers),
        "" if change.value is None else numerals.effect(*change.numbers),
        numerals.with_interval(*cost.device_s_per_1000_requests.numbers),
        _break_even(cost),
    ]


def _break_even(cost: ReportedCost) -> str:
    """The break-even price with its interval, whose lower end is 0 if the tier may make tokens more expensive."""
    value, low, high = cost.break_even_usd_per_gib_hour.numbers
    if math.isnan(value):
        return ""
    if value <= 0:
        return (
            NEVER if high <= 0 else f"{NEVER}, or {numerals.significant(high)} at most"
        )
    return numerals.with_interval(value, max(low, 0.0), high)
