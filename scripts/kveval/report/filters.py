"""The filters and functions of the templates: values as text, and what they ask of a result."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from kveval.campaign.arm_kinds import kinds_of
from kveval.campaign.cell import Cell
from kveval.host.findings import pluralize
from kveval.load.levels import OPEN_LOOP
from kveval.report.data import numbers as numerals
from kveval.report.data.arm_links import NamedArm, arm_link
from kveval.report.data.campaign import abbreviate
from kveval.report.data.comparisons import (
    change_text,
    effect_text,
    is_large,
    qualifier,
    verdict_cell,
)
from kveval.report.data.metric_titles import METRIC_TITLES
from kveval.report.data.run_facts import tier_sizes_in_words
from kveval.report.data.vocabulary import verdict_text, verdict_words
from kveval.report.facts import (
    answer,
    arms,
    caches,
    checks,
    goodput,
    levels,
    origin,
    system,
)
from kveval.report.result.model import (
    ReportedInterval,
    ReportedLeak,
    known_number,
    or_nan,
)
from kveval.tables.levels.goodput import limits_text
from kveval.tables.system.failed_transfers import FAILED_TRANSFERS


def listed(names: Sequence[str], last: str = "and") -> str:
    """Return names as a list in a sentence.

    >>> listed(["a", "b", "c"], "or")
    'a, b or c'
    """
    return f" {last} ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def significant(number: float | None, digits: int = 2) -> str:
    """Return a number with significant digits; "" for None, n/a for NaN."""
    return "" if number is None else numerals.significant(number, digits)


def rounded(number: float | None, decimals: int) -> str:
    """Return a number rounded to decimal places; "" for None, n/a for NaN."""
    return "" if number is None else numerals.rounded(number, decimals)


def whole(number: float | None) -> str:
    """Return a number as a whole one with thousands separated; "" for None."""
    return "" if number is None else f"{number:,.0f}"


def tenths(number: float | None) -> str:
    """Return a number with one decimal place; "" for None."""
    return "" if number is None else f"{number:.1f}"


def next_whole(number: float | None) -> str:
    """Return the next larger whole number; "" for None."""
    return "" if number is None else numerals.count(math.ceil(number))


def percent_of(part: float | None, total: float | None) -> float | None:
    """Return a part in per cent of the total; None where one is not known, or the total is nothing."""
    if part is None or not total:
        return None
    return 100 * part / total


def range_to(low: float, high: float) -> str:
    """Return a range with one decimal place, as one number where its ends are nearly alike."""
    return f"{high:.1f}" if high - low < 0.05 else f"{low:.1f} to {high:.1f}"


def p_value(probability: float | None) -> str:
    """Return a probability as text."""
    if probability is None:
        return ""
    return "< 0.001" if probability < 0.001 else f"{probability:.2g}"


def delay(end_ms: float | str | None) -> str:
    """Return the end of a bucket in ms."""
    return f"{end_ms:g}" if isinstance(end_ms, float) else end_ms or ""


def interval_of(value: Any, low: Any, high: Any) -> ReportedInterval:
    """Return a value of a table with the ends of its interval; what is missing is not known."""
    return ReportedInterval(value=value, low=low, high=high)


def positive_interval(interval: ReportedInterval) -> str:
    """Return a value with its interval, whose lower end is not below 0."""
    number, low, high = interval.numbers
    return numerals.with_interval(number, max(low, 0.0), high)


def stage(leak: ReportedLeak, name: str) -> str:
    """Return a stage in per cent; "" where it is not known, in bold where it has more than the stage before."""
    of_leak = leak.stages.get(name)
    if of_leak is None or of_leak.percent_of_prompts is None:
        return ""
    text = f"{of_leak.percent_of_prompts:.1f}"
    return text if of_leak.excess_points is None else f"**{text}**"


_BEGINS_A_BLOCK = re.compile(r"^([#>|`~+*<-])")


@dataclass(frozen=True)
class Description:
    """A campaign's description by its author: running text, and remarks on runs that were not measured for it."""

    text: str
    remarks: Sequence[str]


def description(text: str) -> Description:
    """Return a description taken apart: lines that begin with a hyphen are remarks."""
    lines = text.splitlines()
    remarks = [line.removeprefix("- ") for line in lines if line.startswith("- ")]
    rest = [line for line in lines if not line.startswith("- ")]
    running = " ".join(" ".join(rest).split())
    # What stands first would make a heading, a quotation, a table or code of it.
    return Description(_BEGINS_A_BLOCK.sub(r"\\\1", running), remarks)


def lines_of(text: str) -> list[str]:
    """Return the lines of a text that are not blank."""
    return [line.strip() for line in text.splitlines() if line.strip()]


def model_and_arm(cell: NamedArm) -> str:
    """Return a cell by its model and its arm with a link to its runs."""
    return f"{cell.model}, {arm_link(cell)}"


def _of_row(function: Any) -> Any:
    """A function of a row of comparison.csv as one of a comparison."""
    return lambda comparison: function(comparison.row)


def _of_interval(function: Any) -> Any:
    """A function of a value and the ends of its interval as one of an interval."""
    return lambda interval: function(*interval.numbers)


FILTERS: dict[str, Any] = {
    # Names.
    "arm": arm_link,
    "model_and_arm": model_and_arm,
    "cell_of_path": Cell.from_path,
    "code": "`{}`".format,
    "metric_title": lambda metric: METRIC_TITLES.get(metric, metric),
    "tier_size": caches.tier_size,
    "in_words_of_sizes": tier_sizes_in_words,
    # Comparisons.
    "effect": _of_row(effect_text),
    "is_large": _of_row(is_large),
    "qualifier": _of_row(qualifier),
    "verdict": _of_row(verdict_cell),
    "verdict_words": _of_row(verdict_words),
    "verdict_in_words": _of_row(verdict_text),
    "any_verdict": answer.any_verdict,
    "all_decided": answer.all_decided,
    "of_verdict": answer.of_verdict,
    "by_verdict": answer.by_verdict,
    "any_decided": arms.any_decided,
    "inputs": arms.inputs,
    "mark": answer.mark_of,
    # Numbers.
    "significant": significant,
    "rounded": rounded,
    "whole": whole,
    "tenths": tenths,
    "next_whole": next_whole,
    "signed_whole": "{:+.0f}".format,
    "general": lambda number, digits: f"{number:.{digits}g}",
    "of_tier": caches.three_digits,
    "count": lambda number: "" if number is None else numerals.count(number),
    "or_nan": or_nan,
    "number": known_number,
    "percent_of": percent_of,
    "range_to": range_to,
    "p_value": p_value,
    "delay": delay,
    "minutes": numerals.minutes,
    "geometric_mean": numerals.geometric_mean_of,
    "mean": lambda values, most=400: numerals.mean_of(values, most_decimals=most),
    "mean_s": lambda values: numerals.geometric_mean_of([ms / 1000 for ms in values]),
    "average": fmean,
    "interval": _of_interval(numerals.with_interval),
    "positive_interval": positive_interval,
    "change": _of_interval(change_text),
    "points": _of_interval(numerals.points),
    "time": caches.time_of,
    "stage": stage,
    "needed_size": caches.needed_size,
    "most_frequent": lambda counts: max(counts, key=counts.get),
    # Texts.
    "listed": listed,
    "abbreviate": abbreviate,
    "plural": pluralize,
    "lines": lines_of,
    "description": description,
    "limits": limits_text,
    "lower_first": lambda text: f"{text[:1].lower()}{text[1:]}",
    "upper_first": lambda text: f"{text[:1].upper()}{text[1:]}",
    "peak_means": arms.peak_means,
    "peak_throughput": arms.peak_throughput,
}


def _functions(*named: Any) -> dict[str, Any]:
    return {function.__name__: function for function in named}


FUNCTIONS: dict[str, Any] = {
    **_functions(
        answer.answer_comparisons,
        answer.answer_figure,
        answer.answer_metric,
        answer.best_of,
        answer.enough_tier,
        answer.fewest_runs_of_verdicts,
        answer.goodput_answer,
        answer.latency_of,
        answer.loads_of,
        answer.quickest_of,
        answer.smaller_sizes,
        answer.smallest_as_good,
        answer.tier_needed,
        answer.verdict_counts,
        answer.work_at_level,
        arms.baselines_of,
        arms.comparisons_of,
        arms.comparisons_with_basis,
        arms.compared_or_alone,
        arms.level_unit_of,
        arms.run_values,
        arms.runs_compared,
        arms.arms_by_verdict,
        arms.value_beside_change,
        arms.values_of,
        arms.worse_latencies,
        levels.effect_of_quiet_runs,
        levels.effects_elsewhere,
        caches.block_sizes,
        caches.device_hits,
        caches.memory_by_size,
        caches.shown_leaks,
        caches.tier_guide,
        caches.tier_guides,
        caches.tier_work,
        caches.timed_requests,
        caches.working_set,
        checks.check_remarks,
        origin.machine_facts,
        origin.models_by_gpus,
        origin.seconds_by_phase,
        origin.workload_facts,
        origin.workloads_in_words,
        system.gpu_metrics,
        system.system_tables,
        goodput.best_goodput,
        goodput.goodput_beside_change,
        goodput.goodput_shares,
    ),
    "check_counts": checks.CheckCounts,
    "failed_transfers": FAILED_TRANSFERS,
    "index_kinds": kinds_of("indexing"),
    "interval_of": interval_of,
    "open_loop": OPEN_LOOP,
}
TESTS: dict[str, Any] = {
    "of_idle_arm": answer.is_of_idle_arm,
    "adjusted": answer.adjusted,
}
