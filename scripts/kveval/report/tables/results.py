"""The report's tables of results: arms, peaks, comparisons and what they rest on, strategies, latencies in the form of
llm-d's guide.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from kveval.campaign.cell import Cell
from kveval.load.workload import workload_of
from kveval.report.data import numbers as numerals
from kveval.report.data.arm_links import arm_link
from kveval.report.data.campaign import (
    Table,
)
from kveval.report.data.comparisons import (
    effect_text,
    naming_of,
    qualifier,
    verdict_cell,
)
from kveval.report.data.level_units import LevelUnit, unit_of
from kveval.report.data.metric_titles import METRIC_TITLES
from kveval.report.data.vocabulary import verdict_words
from kveval.report.result.model import (
    CampaignResult,
    Peak,
    ReportedCell,
    ReportedComparison,
    ReportedFinding,
    ReportedMean,
)
from kveval.tables.cells import THROUGHPUT, rank_of
from kveval.verdict import verdict_words as words
from kveval.verdict import wording
from kveval.verdict.findings import ComparisonFinding
from kveval.verdict.wording import SideNames

TTFT = "ttft_ms_p50"
_NONE_CHANCE = "chance of showing none, %"


def arms_table(result: CampaignResult, model: str) -> Table:
    """Return every arm of a model at the compared level: throughput and median TTFT, each with its verdict.

    A value beside a change is that of the runs that the change rests on; where these are other runs of the baseline, or
    another level, than the baseline's row shows, the value is followed by that of the baseline.
    """
    against = baselines_of(result, model)
    baseline_name = against[0] if len(against) == 1 else "the baseline"
    header = [
        "arm",
        "runs",
        "output tok/s",
        f"change, % of {baseline_name} (95 %)",
        "verdict",
    ]
    header += ["median TTFT, ms", f"change, % of {baseline_name} (95 %)", "verdict"]
    compared = {metric: result.with_baselines(metric) for metric in (THROUGHPUT, TTFT)}
    rows = []
    for cell in result.cells_of(model):
        row = [arm_link(cell), f"{_runs_text(cell)}{_compared_runs(cell)}"]
        for metric, comparisons in compared.items():
            comparison = comparisons.get(cell.cell)
            if comparison:
                row.append(_beside_change(result, comparison))
                row += [effect_text(comparison.row), verdict_cell(comparison.row)]
            else:
                row += [_own_value(result, cell, metric), "", ""]
        if not cell.runs:
            row[4] = row[4] or "not measured"
        rows.append(row)
    return Table(header, rows, frozenset({1, 2, 3, 5, 6}))


def _runs_text(cell: ReportedCell) -> str:
    """The number of a cell's runs, with that of those requested where it is another."""
    runs, requested = len(cell.runs), cell.runs_requested
    return f"{runs}" if runs == requested else f"{runs} of {requested}"


def _compared_runs(cell: ReportedCell) -> str:
    """The number of runs that a cell's verdicts on throughput and TTFT rest on, where that is not all of them."""
    kept = [
        cell.kept_means[metric]
        for metric in (THROUGHPUT, TTFT)
        if metric in cell.kept_means
    ]
    few = list(dict.fromkeys(len(mean.runs) for mean in kept))
    if not few or min(few) >= len(cell.runs):
        return ""
    return f" ({' and '.join(map(str, few))} compared)"


def _own_value(
    result: CampaignResult, cell: ReportedCell, metric: str
) -> numerals.NumberText:
    """A cell's mean at the common level over the runs that its comparisons rest on; over all runs without any."""
    level = result.common_levels[cell.model]
    return _mean_text(cell, level, metric, cell.kept_means.get(metric, ReportedMean()))


def _mean_text(
    cell: ReportedCell, level: int | None, metric: str, kept: ReportedMean
) -> numerals.NumberText:
    """The mean over the runs kept, rounded by their spread at a level; that over all runs there where none are."""
    if kept.mean is None:
        return numerals.mean_of(cell.values(level, metric))
    values = cell.values(level, metric, kept.runs)
    return numerals.rounded_mean(kept.mean, values) if values else numerals.MISSING


def _beside_change(result: CampaignResult, comparison: ReportedComparison) -> str:
    """The value of an arm as its change has it, with that of its baseline if the baseline's own row shows another."""
    arm = result.by_cell[comparison.cell]
    metric, level = comparison.metric, comparison.level
    if comparison.against is None or comparison.effect_percent.value is None:
        return _own_value(result, arm, metric)
    baseline = result.by_cell[comparison.against.cell]
    value, baseline_value = values_text(result, comparison)
    elsewhere = level != result.common_levels[arm.model]
    at = f", {level_unit_of(result).label(level)}" if elsewhere else ""
    if not at and baseline_value == _own_value(result, baseline, metric):
        return value
    return value.with_text(f"{value} (against {baseline_value}{at})")


def values_text(
    result: CampaignResult, comparison: ReportedComparison
) -> tuple[numerals.NumberText, numerals.NumberText]:
    """Return the values behind an effect, of the arm and of the cell it is compared with, as text.

    They are the geometric means over the runs that the comparison rests on, so that their ratio is the effect. Without
    an effect they are the means over all runs at the level.
    """
    metric, level = comparison.metric, comparison.level
    of_arm, of_other = comparison.means
    value = _mean_text(result.by_cell[comparison.cell], level, metric, of_arm)
    if comparison.against is None:
        return value, numerals.MISSING
    other = result.by_cell[comparison.against.cell]
    return value, _mean_text(other, level, metric, of_other)


def level_unit_of(result: CampaignResult) -> LevelUnit:
    """Return the unit of the levels."""
    return unit_of(map(workload_of, result.workloads))


def baselines_of(result: CampaignResult, model: str) -> list[str]:
    """Return the labels of the baselines that the arms of a model were compared with, each once."""
    return [baseline.label for baseline in _baselines(result, model)]


def baseline_links(result: CampaignResult, model: str) -> list[str]:
    """Return the baselines that the arms of a model were compared with, each once, with links to their runs."""
    return [arm_link(baseline) for baseline in _baselines(result, model)]


def _baselines(result: CampaignResult, model: str) -> list[Cell]:
    against = (
        comparison.against
        for comparison in result.with_baselines(THROUGHPUT).values()
        if comparison.model == model
    )
    return list(dict.fromkeys(baseline.cell for baseline in against if baseline))


def peak_table(result: CampaignResult, model: str) -> Table:
    """Return every cell of a model in the campaign with its peak, or the reason why it was not measured."""
    header = [
        "arm",
        "runs",
        "peak, output tok/s (95 %)",
        level_unit_of(result).heading,
        "TTFT p50 / p90, ms",
        "TPOT p50, ms",
    ]
    header += ["E2E p50 / p90, ms", "remarks"]
    rows = []
    for cell in result.cells_of(model):
        requested, peak = cell.runs_requested, cell.peak
        if peak is None:
            blank = [""] * (len(header) - 3)
            rows.append(
                [arm_link(cell), f"0 of {requested}", *blank, f"**{cell.missing}**"]
            )
            continue
        latencies = [
            _latency_means(cell, peak.level, "ttft_ms_p50", "ttft_ms_p90"),
            _latency_means(cell, peak.level, "tpot_ms_p50"),
            _latency_means(cell, peak.level, "e2e_ms_p50", "e2e_ms_p90"),
        ]
        row = [
            arm_link(cell),
            f"{peak.runs} of {requested}",
            numerals.with_interval(*peak.throughput_tok_s.numbers),
        ]
        rows.append([*row, _peak_level(peak), *latencies, "; ".join(_remarks(peak))])
    return Table(header, rows, frozenset({1, 2, 3, 4, 5, 6}))


def _latency_means(cell: ReportedCell, level: int, *columns: str) -> str:
    """The means over runs of a latency's quantiles."""
    means = [numerals.mean_of(cell.values(level, column)) for column in columns]
    return means[0].with_text(" / ".join(means))


def _remarks(peak: Peak) -> Iterator[str]:
    if peak.active is False:
        yield "**the arm was not active**"
    if peak.checks_failed:
        yield f"failed: {', '.join(f'`{name}`' for name in peak.checks_failed)}"


def _peak_level(peak: Peak) -> str:
    """The level of the peak; in brackets the levels that are as good, and "edge" for the first or last level."""
    others = [f"{level}" for level in peak.plateau if level != peak.level]
    remarks = [f"or {', '.join(others)}"] if others else []
    remarks += [] if peak.bracketed else ["edge"]
    return " ".join([f"{peak.level}", *(f"({remark})" for remark in remarks)])


def completed_table(result: CampaignResult) -> Table:
    """Return the requests completed at each cell's peak, over its runs, and the throughput of only those."""
    header = [
        "model",
        "arm",
        level_unit_of(result).heading,
        "completed",
        "unfinished",
        "failed",
        "unfinished, % of all",
    ]
    header += ["delivered, output tok/s", "of completed requests only, output tok/s"]
    rows = []
    for cell in result.cells:
        if cell.peak is None:
            continue
        level, requests = cell.peak.level, cell.peak.requests
        counts = [requests[state] for state in ("completed", "incomplete", "errored")]
        share = 100 * counts[1] / sum(counts) if sum(counts) else math.nan
        means = [
            numerals.mean_of(cell.values(level, metric))
            for metric in (THROUGHPUT, "throughput_completed_tok_s")
        ]
        row = [cell.model, arm_link(cell), f"{level}", *map(numerals.count, counts)]
        rows.append([*row, numerals.significant(share), *means])
    return Table(header, rows, frozenset(range(2, 9)))


def comparison_table(result: CampaignResult, model: str) -> Table:
    """Every comparison of a model in every quantity, with its interval and verdict; by cell, then by quantity.

    The cell that an arm is compared with is named where that is not the one baseline of the model.
    """
    header = [
        *("arm", "quantity", "effect, % (95 %)", "verdict", "why"),
        *("p (Holm)", f"runs, {level_unit_of(result).heading}", _NONE_CHANCE),
    ]
    one_baseline = len(baselines_of(result, model)) == 1
    compared = [each for each in result.comparisons if each.model == model]
    rows = []
    for comparison in sorted(compared, key=_by_cell_and_quantity):
        named = comparison.against
        if one_baseline and comparison.with_baseline:
            named = None
        against = f" against {arm_link(named)}" if named else ""
        arm = f"{arm_link(comparison)}{against}"
        rows.append([arm, *_compared_row(comparison)])
    return Table(header, rows, frozenset({2, 5, 6, 7}))


def _by_cell_and_quantity(comparison: ReportedComparison) -> tuple[Any, ...]:
    quantities, metric = [*METRIC_TITLES], comparison.metric
    place = quantities.index(metric) if metric in quantities else len(quantities)
    return rank_of(comparison.scenario), comparison.cpu_blocks, place


def _compared_row(comparison: ReportedComparison) -> list[str]:
    """One row of `comparison_table`, without its first column."""
    counts = (whole_number(comparison.runs), whole_number(comparison.level))
    # The runs of a comparison without a verdict could show no absence of a difference.
    judged = comparison.verdict in words.VERDICTS
    return [
        METRIC_TITLES.get(comparison.metric, comparison.metric),
        effect_text(comparison.row),
        verdict_cell(comparison.row),
        comparison.reason,
        _p_value(comparison.p_holm),
        " at ".join(filter(None, counts)),
        whole_number(comparison.parity_power_percent) if judged else "",
    ]


def whole_number(value: float | None) -> str:
    """Return a number as a whole number, "" for a missing one."""
    return "" if pd.isna(value) else f"{value:.0f}"


def _p_value(value: float | None) -> str:
    if value is None:
        return ""
    return numerals.NumberText("< 0.001" if value < 0.001 else f"{value:.2g}", value)


# Verdict -> the verdict in whose column an arm is listed; what an idle arm would gain is not decided.
_STRATEGY_COLUMN = {word: word for word in (words.BETTER, words.PARITY, words.WORSE)}
_STRATEGY_COLUMN[words.WORSE_IDLE] = words.WORSE


def strategy_table(result: CampaignResult) -> Table:
    """Return each model's arms by their throughput verdicts, and which latencies of better arms are worse."""
    header = [
        "model",
        "better than the baseline",
        "no relevant difference from it",
        "worse",
        "not decided",
        "conclusion",
    ]
    rows = []
    compared = result.with_baselines(THROUGHPUT).values()
    for model in result.common_levels:
        arms_by_column: dict[str, list[str]] = {}
        for comparison in compared:
            if comparison.model == model:
                column = _STRATEGY_COLUMN.get(comparison.verdict, "open")
                arm = _strategy_arm(result, comparison)
                arms_by_column.setdefault(column, []).append(arm)
        if arms_by_column:
            cells = [
                "; ".join(arms_by_column.get(verdict, ()))
                for verdict in (words.BETTER, words.PARITY, words.WORSE, "open")
            ]
            baselines = ", ".join(baseline_links(result, model))
            rows.append([model, *cells, _conclusion(arms_by_column, baselines)])
    return Table(header, rows)


def _strategy_arm(result: CampaignResult, comparison: ReportedComparison) -> str:
    """An arm as it is named in its column, with what the verdict alone does not say."""
    name, row = arm_link(comparison), comparison.row
    if comparison.verdict == words.BETTER:
        name = " ".join([name, effect_text(row), *_latency_cost(result, comparison)])
    idle = comparison.verdict in (words.WORSE_IDLE, words.IDLE)
    remarks = ", ".join(
        filter(None, (verdict_words(row) if idle else "", qualifier(row)))
    )
    return f"{name} ({remarks})" if remarks else name


def _latency_cost(result: CampaignResult, comparison: ReportedComparison) -> list[str]:
    quantities = {
        TTFT: "median TTFT",
        "e2e_ms_p50": "median end-to-end latency",
    }
    worse = []
    for metric, name in quantities.items():
        latency = result.with_baselines(metric).get(comparison.cell)
        if latency is not None and latency.verdict == words.WORSE:
            worse.append(name)
    return [f"(but a worse {' and '.join(worse)})"] if worse else []


def _conclusion(arms_by_column: Mapping[str, Sequence[str]], baseline: str) -> str:
    better, pending = (
        arms_by_column.get(words.BETTER, ()),
        arms_by_column.get("open", ()),
    )
    if len(better) == 1:
        return "the arm that is better" + (
            " (others have no verdict yet)" if pending else ""
        )
    if better:
        return "one of the arms that are better; the tables of arms against each other compare them"
    if pending:
        return f"undecided: {baseline} until an arm is shown to be better"
    return f"{baseline}: no arm is better"


def guide_table(result: CampaignResult) -> Table:
    """Return mean and P90 of TTFT and end-to-end latency, and the throughput of all tokens, at the common level."""
    latencies = ("ttft_ms_mean", "ttft_ms_p90", "e2e_ms_mean", "e2e_ms_p90")
    header = [
        *("model", "arm", level_unit_of(result).heading),
        *("mean TTFT, s", "P90 TTFT, s", "mean E2E latency, s", "P90 E2E latency, s"),
        "prompt and output tokens, tok/s",
    ]
    rows = []
    for cell in result.cells:
        if cell.peak is None:
            continue
        level = result.common_levels[cell.model]
        seconds = [_mean_seconds(cell, level, latency) for latency in latencies]
        total = numerals.mean_of(cell.values(level, "total_tok_s"))
        rows.append([cell.model, arm_link(cell), whole_number(level), *seconds, total])
    return Table(header, rows, frozenset(range(2, 8)))


def _mean_seconds(
    cell: ReportedCell, level: int | None, latency_ms: str
) -> numerals.NumberText:
    """The mean over runs of a latency, in seconds."""
    return numerals.mean_of([ms / 1000 for ms in cell.values(level, latency_ms)])


# Heading -> the inputs that share a column of the page.
_COLUMNS = {
    "same work": ("work", "load", "visits"),
    "arm active": ("activity",),
    "server and machine": ("build", "hardware", "clocks"),
    "tier": ("tier",),
    "blocks and order": ("runs", "blocks", "order"),
    "failed requests": ("errors", "answers"),
    "A/A": ("replicates",),
}
_MARKS = {"qualifies": "*", "indicates": "*", "refuses": "**"}


def basis_table(result: CampaignResult) -> Table:
    """Return every comparison of throughput with its inputs: in bold those that prevent a verdict, in italics those
    that weaken or qualify it.
    """
    order = [*result.common_levels]
    known = [
        each
        for each in result.comparisons
        if each.model in order and each.against and "work" in each.basis
    ]
    rows = []
    for comparison in sorted(known, key=lambda each: order.index(each.model)):
        named = None if comparison.with_baseline else comparison.against
        against = f" against {arm_link(named)}" if named else ""
        findings = {each.input: each for each in comparison.findings}
        names = naming_of(comparison.row)
        cells = [
            _inputs(comparison, findings, names, inputs) for inputs in _COLUMNS.values()
        ]
        rows.append([comparison.model, f"{arm_link(comparison)}{against}", *cells])
    return Table(["model", "arm", *_COLUMNS], rows)


def _inputs(
    comparison: ReportedComparison,
    findings: Mapping[str, ReportedFinding],
    names: SideNames,
    inputs: Sequence[str],
) -> str:
    """Inputs of a comparison that share a column, without those of which nothing is known."""
    texts = (
        _input(name, comparison.basis.get(name, ""), findings.get(name), names)
        for name in inputs
    )
    return "; ".join(filter(None, texts))


def _input(
    name: str, text: str, finding: ReportedFinding | None, names: SideNames
) -> str:
    """An input of a comparison, marked by its severity; `text`: what is known of one that is sound, `finding` None."""
    mark, code = "", ""
    if finding is not None:
        code, severity = finding.code, finding.severity
        text = wording.summary(ComparisonFinding(code, severity, finding.facts), names)
        mark = _MARKS.get(severity, "")
    if name == "order" and text and code in ("", "order_unknown"):
        # "varied" alone would be unclear, since the column is shared.
        text = f"order {text}"
    return f"{mark}{text}{mark}"
