"""Comparisons that the answer is about, the best arm of them, what is as good, and the tier that is needed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from kveval.campaign.cell import Cell
from kveval.campaign.size import Size
from kveval.load.workload import workload_of
from kveval.report.data import numbers as numerals
from kveval.report.data import vocabulary
from kveval.report.data.comparisons import comparison_from
from kveval.report.data.level_units import load_in_few_words
from kveval.report.data.metric_titles import METRIC_TITLES
from kveval.report.facts.arms import TTFT
from kveval.report.facts.goodput import goodput_at
from kveval.report.result.model import (
    CampaignResult,
    ReportedCellName,
    ReportedComparison,
    ReportedInterval,
)
from kveval.tables.cells import THROUGHPUT
from kveval.tables.levels.goodput import GOODPUT
from kveval.verdict import verdict_words as words
from kveval.verdict.exclusions import SET_BY_THE_LOAD

# Figures that may accompany the answer, the best first; of several models the heat map of models and arms.
FIGURES = (
    "throughput_by_arm",
    "effect_plot",
    "peak_throughput_all_scenarios",
    "benchmark_results",
)
OF_MODELS = "performance_delta_heatmap_all"
Compared = Sequence[ReportedComparison]


def answer_metric(result: CampaignResult) -> str:
    """Return the metric that the question is about: throughput, or TTFT where the load sets throughput."""
    compared = result.with_baselines(THROUGHPUT).values()
    set_by_the_load = [_is_set_by_the_load(each) for each in compared]
    return TTFT if set_by_the_load and all(set_by_the_load) else THROUGHPUT


def _is_set_by_the_load(comparison: ReportedComparison) -> bool:
    return any(left_out.code in SET_BY_THE_LOAD for left_out in comparison.exclusions)


def answer_comparisons(result: CampaignResult) -> list[ReportedComparison]:
    """Return the comparisons with a baseline that the answer is about, in the order of every table."""
    return [*result.with_baselines(answer_metric(result)).values()]


def answer_figure(result: CampaignResult) -> str:
    """Return the name of the figure that shows the answer, "" if none does."""
    models = {each.model for each in answer_comparisons(result)}
    preferred = (OF_MODELS, *FIGURES) if len(models) > 1 else FIGURES
    drawn = {figure.name for figure in result.figures if figure.empty is None}
    return next((name for name in preferred if name in drawn), "")


def any_verdict(compared: Iterable[ReportedComparison]) -> bool:
    """Return whether a comparison was judged, whatever the verdict."""
    return any(each.verdict in words.VERDICTS for each in compared)


def all_decided(compared: Iterable[ReportedComparison]) -> bool:
    """Return whether each comparison has a verdict that decides."""
    return all(each.verdict in words.DECIDED for each in compared)


def size_of_effect(comparison: ReportedComparison) -> float:
    """Return the effect of a comparison in per cent, whatever its sign; NaN where it is not known."""
    return abs(comparison.effect_percent.numbers[0])


def of_verdict(compared: Compared, verdict: str) -> list[ReportedComparison]:
    """Return the comparisons that have a verdict, those with the largest effect first."""
    alike = (each for each in compared if each.verdict == verdict)
    return sorted(alike, key=size_of_effect, reverse=True)


def best_of(compared: Compared) -> ReportedComparison | None:
    """Return the comparison with the largest gain of those that are better; None if none is."""
    return next(iter(of_verdict(compared, words.BETTER)), None)


def latency_of(
    result: CampaignResult, best: ReportedComparison
) -> ReportedComparison | None:
    """Return the comparison of the median TTFT of an arm that another comparison is of; None without a number."""
    latency = result.with_baselines(TTFT).get(best.cell)
    if latency is None or latency.against is None:
        return None
    return latency if math.isfinite(size_of_effect(latency)) else None


def quickest_of(
    result: CampaignResult, compared: Compared
) -> ReportedComparison | None:
    """Return the comparison of the median TTFT of the arm that answers soonest, where none delivers more.

    None if an arm delivers more, or if none answers sooner that is not worse in what the answer is about.
    """
    if best_of(compared) is not None or answer_metric(result) == TTFT:
        return None
    verdicts = {each.cell: each.verdict for each in compared}
    worse = (words.WORSE, words.WORSE_IDLE)
    sooner = [
        latency
        for cell, latency in result.with_baselines(TTFT).items()
        if cell in verdicts and verdicts[cell] not in worse
    ]
    return best_of(sooner)


def smaller_sizes(
    result: CampaignResult, best: ReportedComparison
) -> list[ReportedComparison]:
    """Return the smaller tiers of an arm that are at parity with its best one; if none is, those not shown to differ.

    Each as the comparison of the best one with it, the smallest first.
    """
    smaller: dict[str, dict[int, ReportedComparison]] = {
        words.PARITY: {},
        words.INCONCLUSIVE: {},
    }
    for comparison in result.comparisons:
        compared = _seen_from(best.cell, comparison)
        if compared is None or compared.metric != best.metric:
            continue
        other = compared.against
        if other is None or compared.verdict not in smaller:
            continue
        if other.scenario == best.scenario and 0 < other.cpu_blocks < best.cpu_blocks:
            smaller[compared.verdict][other.cpu_blocks] = compared
    sizes = smaller[words.PARITY] or smaller[words.INCONCLUSIVE]
    return [sizes[blocks] for blocks in sorted(sizes)]


def _seen_from(cell: Cell, comparison: ReportedComparison) -> ReportedComparison | None:
    """A comparison as one of `cell` with the other cell, None if `cell` is neither of them."""
    row = comparison_from(cell, comparison.row)
    if row is None or cell == comparison.cell:
        return None if row is None else comparison
    ends = ("effect_percent", "low_percent", "high_percent")
    value, low, high = (row[end] for end in ends)
    return comparison.model_copy(
        update={
            **cell.row,
            "against": ReportedCellName(**comparison.cell.row),
            "verdict": row["verdict"],
            "bound": row["bound"],
            "effect_percent": ReportedInterval(value=value, low=low, high=high),
        }
    )


def by_verdict(
    compared: Compared, best: ReportedComparison | None
) -> dict[str, list[ReportedComparison]]:
    """Return the comparisons other than the best one by their verdict in words, in the order of the verdicts."""
    grouped: dict[str, list[ReportedComparison]] = {}
    order = [*vocabulary.VERDICTS]
    for each in sorted(compared, key=lambda each: order.index(each.shown_verdict)):
        if each is not best:
            grouped.setdefault(vocabulary.verdict_text(each.row), []).append(each)
    return grouped


def work_at_level(
    result: CampaignResult, compared: Compared
) -> Iterator[tuple[ReportedComparison, dict[str, float | None]]]:
    """Yield each comparison with what the arm's caches did at its level; None for what was not counted."""
    nothing = dict.fromkeys(
        ("external_hit_percent", "requests_preempted", "reloaded_tokens")
    )
    for each in compared:
        work = result.by_cell[each.cell].tier_activity.get(str(each.level), {})
        yield each, nothing | work


@dataclass(frozen=True)
class VerdictCount:
    """How many comparisons have a verdict: with the largest cost of idle arms in words, or the most frequent reason
    where there is none, and how many have that.
    """

    verdict: str
    count: int
    cost: str = ""
    reason: str = ""
    of_reason: int = 0


@dataclass(frozen=True)
class MetricCount:
    """How many comparisons with a baseline there are in a metric, and how many have which verdict."""

    title: str
    comparisons: int
    verdicts: Sequence[VerdictCount]


def verdict_counts(result: CampaignResult, compared: Compared) -> Iterator[MetricCount]:
    """Yield the verdicts of the answer's metric that are neither better nor worse, then those of others that are shown.

    Arms that are worse although idle are not counted: they are named.
    """
    order = [*vocabulary.VERDICTS]
    counted = [(compared, order[2:])]
    further = (GOODPUT, TTFT) if answer_metric(result) == THROUGHPUT else (GOODPUT,)
    for metric in further:
        counted.append(([*result.with_baselines(metric).values()], order[:3]))
    for of_metric, verdicts in counted:
        alike: dict[str, list[ReportedComparison]] = {}
        for each in of_metric:
            if each.verdict != words.WORSE_IDLE:
                alike.setdefault(each.shown_verdict, []).append(each)
        counts = [
            _count(verdict, alike[verdict]) for verdict in verdicts if verdict in alike
        ]
        if counts:
            title = METRIC_TITLES[of_metric[0].metric]
            yield MetricCount(title, len(of_metric), counts)


def _count(verdict: str, compared: Compared) -> VerdictCount:
    bounded = [each.row for each in compared if each.verdict == words.IDLE]
    if len(bounded) == len(compared):
        dearest = max(bounded, key=lambda row: float(row["cost_percent"]))
        cost = vocabulary.cost_text(dearest)
        return VerdictCount(verdict, len(compared), cost)
    without = (each for each in compared if each.verdict not in words.VERDICTS)
    reasons = Counter(filter(None, (each.reason for each in without)))
    reason, count = reasons.most_common(1)[0] if reasons else ("", 0)
    return VerdictCount(verdict, len(compared), "", reason, count)


def fewest_runs_of_verdicts(result: CampaignResult, compared: Compared) -> list[int]:
    """Return the least and the most runs that verdicts on the answer's metric and TTFT rest on; none where that is all.

    Equal numbers stand once.
    """
    metrics = dict.fromkeys([*(each.metric for each in compared), TTFT])
    judged = [
        each
        for metric in metrics
        for each in result.with_baselines(metric).values()
        if each.runs is not None and (any_verdict([each]) or each.indication)
    ]
    kept = [each.runs for each in judged if each.runs is not None]
    if not any((each.runs or 0) < _paired(result, each) for each in judged):
        return []
    return [*dict.fromkeys((min(kept), max(kept)))]


def _paired(result: CampaignResult, comparison: ReportedComparison) -> int:
    """The number of runs that both sides of a comparison have."""
    sides = [comparison, *filter(None, [comparison.against])]
    return min(len(result.by_cell[side.cell].runs) for side in sides)


def tier_needed(result: CampaignResult, model: str) -> str:
    """Return the size for 90 % of the hits that a tier without a limit adds, "" if that was not computed."""
    needed = result.tiers_needed.get(model)
    return size_text(result, model, needed.size) if needed else ""


def size_text(result: CampaignResult, model: str, size: Size) -> str:
    """Return the size of a tier; of a miniature with that word, and with the size for as many tokens of the model."""
    token_bytes = result.kv_bytes_per_token.get(model)
    named = token_bytes.named if token_bytes else None
    served = token_bytes.served if token_bytes else None
    if result.weights != "miniature":
        return str(size)
    if not named or not served:
        return f"{size} of the miniature"
    of_model = numerals.significant(size.gib * named / served, 3)
    return f"{of_model} GiB of {model}, {size} of the miniature"


@dataclass(frozen=True)
class EnoughTier:
    """A size of a tier that is enough, as text, and whether it was measured to be as good as the best, or computed."""

    size: str
    measured: bool


def enough_tier(
    result: CampaignResult, model: str, best: ReportedComparison | None
) -> EnoughTier | None:
    """Return the smaller one of the size that is computed for a model's load and of the measured ones as good as the best.

    None where neither is known.
    """
    needed = result.tiers_needed.get(model)
    computed = needed.size if needed else None
    measured = _smallest_as_good(result, best) if best else None
    if measured and (computed is None or measured.cpu_blocks <= computed.cpu_blocks):
        return EnoughTier(size_text(result, model, measured), measured=True)
    if computed:
        return EnoughTier(size_text(result, model, computed), measured=False)
    return None


def smallest_as_good(result: CampaignResult, best: ReportedComparison) -> str:
    """Return the smallest tier of the best arm that is at parity with its best one.

    "" without a tier in host memory, and where the arm was measured with one size alone: no other was compared with it.
    """
    size = _smallest_as_good(result, best)
    return "" if size is None else size_text(result, best.model, size)


def _smallest_as_good(result: CampaignResult, best: ReportedComparison) -> Size | None:
    sizes_of_arm = {
        cell.cpu_blocks
        for cell in result.cells_of(best.model)
        if cell.scenario == best.scenario and cell.runs
    }
    if len(sizes_of_arm) == 1:
        return None
    smaller = smaller_sizes(result, best)
    blocks = best.cpu_blocks
    if smaller and smaller[0].verdict == words.PARITY and smaller[0].against:
        blocks = smaller[0].against.cpu_blocks
    return result.tier_sizes(best.model).get(replace(best.cell, cpu_blocks=blocks))


@dataclass(frozen=True)
class GoodputAnswer:
    """The comparison of the arm with the largest gain in goodput, with both values as text; None where none is better."""

    best: ReportedComparison | None
    of_arm: str
    of_baseline: str
    baselines: Sequence[Cell]


def goodput_answer(result: CampaignResult, model: str) -> GoodputAnswer | None:
    """Return the answer of a model within the latency limits; None without limits, or where nothing was compared."""
    compared = [
        each
        for each in result.with_baselines(GOODPUT).values()
        if each.model == model and each.against
    ]
    if not result.campaign.goodput or not compared:
        return None
    baselines = [each.against.cell for each in compared if each.against]
    best = best_of(compared)
    if best is None or best.against is None:
        return GoodputAnswer(None, "", "", [*dict.fromkeys(baselines)])
    of_arm, of_baseline = (
        goodput_at(result.by_cell[cell], best.level, means.mean)
        for cell, means in zip((best.cell, best.against.cell), best.means, strict=True)
    )
    return GoodputAnswer(best, of_arm, of_baseline, [])


def loads_of(result: CampaignResult) -> list[str]:
    """Return the loads in a few words, each once."""
    loads = map(load_in_few_words, map(workload_of, result.workloads))
    return [*dict.fromkeys(filter(None, loads))]


def adjusted(comparison: ReportedComparison) -> bool:
    """Return whether the interval of a comparison is that of several together."""
    return (comparison.interval_percent or 0) > 95


def is_of_idle_arm(comparison: ReportedComparison) -> bool:
    """Return whether a comparison is about what an idle arm costs."""
    return words.is_of_idle_arm(comparison.row)


def mark_of(comparison: ReportedComparison) -> str:
    """Return the mark of a comparison that is better or worse, "" for any other."""
    decided = comparison.verdict in (words.BETTER, words.WORSE)
    return f" {{.{comparison.verdict}}}" if decided else ""
