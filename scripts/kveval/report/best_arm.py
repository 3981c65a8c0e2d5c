"""The best arm of a campaign: the comparisons that the answer is about, the best of them, and what is as good."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from kveval.campaign.cell import Cell
from kveval.report.data.comparisons import comparison_from
from kveval.report.result.model import CampaignResult, ReportedComparison
from kveval.report.tables.results import TTFT
from kveval.tables.cells import THROUGHPUT
from kveval.verdict import verdict_words as words
from kveval.verdict.exclusions import SET_BY_THE_LOAD


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


def size_of_effect(comparison: ReportedComparison) -> float:
    """Return the effect of a comparison in per cent, whatever its sign; NaN where it is not known."""
    return abs(comparison.effect_percent.numbers[0])


def best_of(compared: Sequence[ReportedComparison]) -> ReportedComparison | None:
    """Return the comparison with the largest gain of those that are better; None if none is."""
    better = [each for each in compared if each.verdict == words.BETTER]
    return max(better, key=size_of_effect, default=None)


def latency_of(
    result: CampaignResult, best: ReportedComparison
) -> ReportedComparison | None:
    """Return the comparison of the median TTFT of an arm that another comparison is of; None without a number."""
    latency = result.with_baselines(TTFT).get(best.cell)
    if latency is None or latency.against is None:
        return None
    return latency if math.isfinite(size_of_effect(latency)) else None


def quickest_of(
    result: CampaignResult, compared: Sequence[ReportedComparison]
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
) -> dict[int, Mapping[Any, Any]]:
    """Return the smaller tiers of an arm, in blocks, that are at parity with its best one; if none is, those that are
    not shown to differ from it.

    Each has its comparison as a row: of the best one with it.
    """
    of_verdict: dict[str, dict[int, Mapping[Any, Any]]] = {
        words.PARITY: {},
        words.INCONCLUSIVE: {},
    }
    for comparison in result.comparisons:
        if comparison.metric != best.metric or comparison.against is None:
            continue
        row = comparison_from(best.cell, comparison.row)
        if row is None or row["verdict"] not in of_verdict:
            continue
        other = Cell.from_path(row["baseline"])
        smaller = 0 < other.cpu_blocks < best.cpu_blocks
        if other.scenario == best.scenario and smaller:
            of_verdict[row["verdict"]][other.cpu_blocks] = row
    return of_verdict[words.PARITY] or of_verdict[words.INCONCLUSIVE]
