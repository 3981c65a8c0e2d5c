"""Values of arms beside their comparisons, and arms by their verdict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kveval.campaign.cell import Cell
from kveval.estimators.intervals import mean_interval
from kveval.load.workload import workload_of
from kveval.report.data import numbers as numerals
from kveval.report.data.comparisons import naming_of
from kveval.report.data.level_units import LevelUnit, unit_of
from kveval.report.data.metric_titles import METRIC_TITLES
from kveval.report.result.model import (
    CampaignResult,
    ReportedCell,
    ReportedComparison,
    ReportedMean,
)
from kveval.tables.cells import THROUGHPUT, rank_of
from kveval.verdict import verdict_words as words
from kveval.verdict import wording
from kveval.verdict.findings import ComparisonFinding

TTFT = "ttft_ms_p50"


def level_unit_of(result: CampaignResult) -> LevelUnit:
    """Return the unit of the levels."""
    return unit_of(map(workload_of, result.workloads))


def baselines_of(result: CampaignResult, model: str) -> list[Cell]:
    """Return the baselines that the arms of a model were compared with, each once."""
    against = (
        comparison.against
        for comparison in result.with_baselines(THROUGHPUT).values()
        if comparison.model == model
    )
    return list(dict.fromkeys(baseline.cell for baseline in against if baseline))


def values_of(
    result: CampaignResult, comparison: ReportedComparison
) -> tuple[str, str]:
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


def value_beside_change(
    result: CampaignResult,
    cell: ReportedCell,
    metric: str,
    comparison: ReportedComparison | None,
) -> str:
    """Return the value of an arm as its change has it, with that of its baseline if the baseline's own row shows another.

    Without a change, the mean at the common level.
    """
    if (
        comparison is None
        or comparison.against is None
        or comparison.effect_percent.value is None
    ):
        return _own_value(result, cell, metric)
    baseline = result.by_cell[comparison.against.cell]
    value, baseline_value = values_of(result, comparison)
    elsewhere = comparison.level != result.common_levels[cell.model]
    at = f", {level_unit_of(result).label(comparison.level)}" if elsewhere else ""
    if not at and baseline_value == _own_value(result, baseline, metric):
        return value
    return f"{value} (against {baseline_value}{at})"


def _own_value(result: CampaignResult, cell: ReportedCell, metric: str) -> str:
    """A cell's mean at the common level over the runs that its comparisons rest on; over all runs without any."""
    level = result.common_levels[cell.model]
    return _mean_text(cell, level, metric, cell.kept_means.get(metric, ReportedMean()))


def _mean_text(
    cell: ReportedCell, level: int | None, metric: str, kept: ReportedMean
) -> str:
    """The mean over the runs kept, rounded by their spread at a level; that over all runs there where none are."""
    if kept.mean is None:
        return numerals.geometric_mean_of(cell.values(level, metric))
    values = cell.values(level, metric, kept.runs)
    return numerals.rounded_mean(kept.mean, values) if values else numerals.MISSING


def runs_compared(cell: ReportedCell) -> list[int]:
    """Return how many runs a cell's verdicts on throughput and TTFT rest on, each once; none where that is all of them."""
    kept = [
        cell.kept_means[metric]
        for metric in (THROUGHPUT, TTFT)
        if metric in cell.kept_means
    ]
    few = list(dict.fromkeys(len(mean.runs) for mean in kept))
    return few if few and min(few) < len(cell.runs) else []


def peak_means(cell: ReportedCell, *columns: str) -> str:
    """Return the geometric means over runs of columns at a cell's peak."""
    level = cell.peak.level if cell.peak else None
    values = (cell.values(level, name) for name in columns)
    return " / ".join(map(numerals.geometric_mean_of, values))


def peak_throughput(cell: ReportedCell) -> str:
    """Return the geometric mean of the throughput at a cell's peak, with its interval over runs."""
    values = cell.values(cell.peak.level if cell.peak else None, THROUGHPUT)
    if not values or min(values) <= 0:
        return numerals.mean_of(values)
    logs = np.log(values)
    return numerals.with_interval(float(np.exp(logs.mean())), *mean_interval(logs))


@dataclass(frozen=True)
class ArmsByVerdict:
    """The arms of a model by their verdicts on throughput, each as its comparison; what idle arms would gain is open."""

    model: str
    baselines: Sequence[Cell]
    better: list[ReportedComparison] = field(default_factory=list)
    no_relevant_difference: list[ReportedComparison] = field(default_factory=list)
    worse: list[ReportedComparison] = field(default_factory=list)
    undecided: list[ReportedComparison] = field(default_factory=list)


def arms_by_verdict(result: CampaignResult) -> list[ArmsByVerdict]:
    """Return the arms by their verdicts, of each model with an arm that was compared."""
    by_model: dict[str, ArmsByVerdict] = {}
    for comparison in result.with_baselines(THROUGHPUT).values():
        model = comparison.model
        strategy = by_model.setdefault(
            model, ArmsByVerdict(model, baselines_of(result, model))
        )
        columns = {
            words.BETTER: strategy.better,
            words.PARITY: strategy.no_relevant_difference,
            words.WORSE: strategy.worse,
            words.WORSE_IDLE: strategy.worse,
        }
        columns.get(comparison.verdict, strategy.undecided).append(comparison)
    return [by_model[model] for model in result.common_levels if model in by_model]


def any_decided(of_models: Iterable[ArmsByVerdict]) -> bool:
    """Return whether an arm of a model has a verdict that decides."""
    return any(
        each.better or each.no_relevant_difference or each.worse for each in of_models
    )


def worse_latencies(
    result: CampaignResult, comparison: ReportedComparison
) -> list[str]:
    """Return the latencies in which an arm is worse, of those that speak against it."""
    names = {TTFT: "median TTFT", "e2e_ms_p50": "median end-to-end latency"}
    worse = []
    for metric, name in names.items():
        latency = result.with_baselines(metric).get(comparison.cell)
        if latency is not None and latency.verdict == words.WORSE:
            worse.append(name)
    return worse


def comparisons_of(result: CampaignResult, model: str) -> list[ReportedComparison]:
    """Return every comparison of a model in every quantity; by cell, then by quantity."""
    return sorted(
        (each for each in result.comparisons if each.model == model),
        key=_by_cell_and_quantity,
    )


def _by_cell_and_quantity(comparison: ReportedComparison) -> tuple[Any, ...]:
    quantities, metric = [*METRIC_TITLES], comparison.metric
    place = quantities.index(metric) if metric in quantities else len(quantities)
    return rank_of(comparison.scenario), comparison.cpu_blocks, place


def comparisons_with_basis(result: CampaignResult) -> list[ReportedComparison]:
    """Return the comparisons of throughput whose inputs are known, by model."""
    order = [*result.common_levels]
    grounded = [
        each
        for each in result.comparisons
        if each.model in order and each.against and "work" in each.basis
    ]
    return sorted(grounded, key=lambda each: order.index(each.model))


_MARKS = {"qualifies": "*", "indicates": "*", "refuses": "**"}


def inputs(comparison: ReportedComparison, *names: str) -> str:
    """Return inputs of a comparison in words, without those of which nothing is known.

    In bold those that prevent a verdict, in italics those that weaken or qualify it.
    """
    texts = (_input(comparison, name) for name in names)
    return "; ".join(filter(None, texts))


def _input(comparison: ReportedComparison, name: str) -> str:
    text, mark, code = comparison.basis.get(name, ""), "", ""
    finding = next((each for each in comparison.findings if each.input == name), None)
    if finding is not None:
        code, severity = finding.code, finding.severity
        of_finding = ComparisonFinding(code, severity, finding.facts)
        text = wording.summary(of_finding, naming_of(comparison.row))
        mark = _MARKS.get(severity, "")
    if name == "order" and text and code in ("", "order_unknown"):
        # "varied" alone would be unclear, since the column is shared.
        text = f"order {text}"
    return f"{mark}{text}{mark}"


@dataclass(frozen=True)
class Alone:
    """A quantity of a cell that was not compared, at the common level."""

    metric: str
    level: int
    runs_kept: Sequence[int] = ()
    against: None = None


def compared_or_alone(
    result: CampaignResult, cell: ReportedCell
) -> list[ReportedComparison] | list[Alone]:
    """Return the comparisons of a cell; of one without any, its quantities at the common level."""
    compared = [each for each in result.comparisons if each.cell == cell.cell]
    level = result.common_levels[cell.model]
    if compared or level is None:
        return compared
    metrics = [
        metric
        for metric in METRIC_TITLES
        if metric != "goodput_per_s" or result.goodput_levels
    ]
    return [Alone(metric, level) for metric in metrics]


def run_values(
    result: CampaignResult,
    addresses: Mapping[tuple[Cell, int], str],
    cell: Cell,
    level: int | None,
    metric: str,
    kept: Sequence[int] = (),
) -> str:
    """Return the values of a cell's runs, each with a link to its run; those that a comparison left out are named.

    `addresses`: cell and run -> what a link to the run's folder has, of those that have one; `kept`: the runs that the
    comparison rests on, none for all.
    """
    at = result.by_cell[cell].at(level)
    by_run = at.by_run_of(metric) if at else {}
    links = []
    for run in result.runs_by_cell.get(cell, ()):
        value = by_run.get(run.run)
        shown = f"run {run.run}" if value is None else numerals.significant(value, 3)
        address = addresses.get((cell, run.run))
        linked = f"[{shown}](<{address}/>)" if address else shown
        left_out = " (left out)" if kept and run.run not in kept else ""
        links.append(f"{linked}{left_out}")
    return ", ".join(links)
