"""The answer of a campaign, made of its result: the question, and at most five sentences, which rest on verdicts only."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from kveval.report.best_arm import (
    answer_comparisons,
    answer_metric,
    best_of,
    latency_of,
    quickest_of,
    size_of_effect,
    smaller_sizes,
)
from kveval.report.data import numbers as numerals
from kveval.report.data import vocabulary
from kveval.report.data.arm_links import arm_link
from kveval.report.data.campaign import abbreviate
from kveval.report.data.comparisons import (
    baseline_link,
    effect_text,
    gain_text,
    is_large,
    qualifier,
)
from kveval.report.data.metric_titles import METRIC_TITLES
from kveval.report.result.model import CampaignResult, ReportedComparison
from kveval.report.tables.caches import tier_text
from kveval.report.tables.results import TTFT, level_unit_of, values_text
from kveval.report.tables.value import goodput_sentence
from kveval.tables.cells import THROUGHPUT
from kveval.tables.levels.goodput import GOODPUT
from kveval.verdict import verdict_words as words

MOST_SENTENCES = 5
# Figures that may accompany the answer, the best first.
FIGURES = (
    "throughput_by_arm",
    "effect_plot",
    "peak_throughput_all_scenarios",
    "benchmark_results",
)
# The figure of several models: a heat map of models and arms.
OF_MODELS = "performance_delta_heatmap_all"
# The most arms and comparisons that a sentence names one by one.
_NAMED = 3
Compared = Sequence[ReportedComparison]


def answer_sentences(result: CampaignResult) -> list[str]:
    """Return the sentences of the answer; the last one says what they rest on."""
    compared, metric = answer_comparisons(result), answer_metric(result)
    models = {each.model for each in compared}
    if not models:
        sentences = [*_sentences_without_baseline(result)]
    elif len(models) == 1:
        sentences = [*_sentences_on_one_model(result, compared, metric)]
    else:
        sentences = [*_sentences_on_models(result, compared, metric)]
    return [*sentences[: MOST_SENTENCES - 1], _basis(result, compared)]


def answer_figure(result: CampaignResult) -> str:
    """Return the name of the figure that shows the answer, "" if none does."""
    models = {each.model for each in answer_comparisons(result)}
    preferred = (OF_MODELS, *FIGURES) if len(models) > 1 else FIGURES
    drawn = {figure.name for figure in result.figures if figure.empty is None}
    return next((name for name in preferred if name in drawn), "")


def _against(compared: Compared) -> str:
    return _listed(
        _distinct(each.against_label for each in compared if each.against), "or"
    )


def _change(comparison: ReportedComparison) -> str:
    row = comparison.row
    return ", ".join(filter(None, (effect_text(row), qualifier(row))))


def _means(result: CampaignResult, comparison: ReportedComparison) -> str:
    return " against ".join(values_text(result, comparison))


def answer_question(result: CampaignResult) -> str:
    """Return the question that the campaign answers."""
    compared = answer_comparisons(result)
    arms, against = _distinct(each.label for each in compared), _against(compared)
    models = _distinct(each.model for each in compared) or [*result.common_levels]
    on = _listed(models) if len(models) <= _NAMED else f"{len(models)} models"
    if not arms:
        measured = _listed(_distinct(cell.label for cell in result.cells))
        return f"How many output tokens per second does {measured} deliver on {on}?"
    who, s = (
        (f"Does {_listed(arms, 'or')}", "")
        if len(arms) <= _NAMED
        else (f"Which of {len(arms)} arms", "s")
    )
    does, also = f"answer{s} with a shorter time to first token", ""
    if answer_metric(result) == THROUGHPUT:
        does, also = (
            f"deliver{s} more output tokens per second",
            f", and answer{s} sooner",
        )
    return f"{who} {does}{f' than {against}' if against else ''}{also}, on {on}?"


def _distinct(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _listed(names: Sequence[str], last: str = "and") -> str:
    return f" {last} ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def _sentences_on_one_model(
    result: CampaignResult, compared: Compared, metric: str
) -> Iterator[str]:
    """Yield sentences on the best arm, its TTFT, goodput, the other arms, and the tokens that tiers served."""
    better = _by_size_of_effect(compared, words.BETTER)
    best = best_of(compared)
    if best:
        most = (
            f"; it gained the most of the {len(better)} arms that are better"
            if len(better) > 1
            else ""
        )
        yield f"{_better(result, best)}{most}{_smaller(result, best)}."
        if metric == THROUGHPUT:
            yield from _first_token(result, best)
    else:
        yield _none_better(compared, metric)
        if quickest := quickest_of(result, compared):
            means = _means(result, quickest)
            yield (
                f"{arm_link(quickest)} answered sooner: its median TTFT was shorter, {_change(quickest)}: {means} ms."
            )
    if within := goodput_sentence(result, compared[0].model):
        yield within
    others = "; ".join(
        _verdict_clauses(result, [each for each in compared if each is not best])
    )
    if others:
        yield f"{others[0].upper()}{others[1:]}."
    yield from _hits(result, compared)


def _none_better(compared: Compared, metric: str) -> str:
    if not any(each.verdict in words.VERDICTS for each in compared):
        return "There is no verdict yet."
    what = (
        "deliver more output tokens per second"
        if metric == THROUGHPUT
        else "answer sooner"
    )
    return f"No arm was shown to {what} than {_against(compared)}."


def _by_size_of_effect(compared: Compared, verdict: str) -> list[ReportedComparison]:
    of_verdict = (each for each in compared if each.verdict == verdict)
    return sorted(of_verdict, key=size_of_effect, reverse=True)


def _better(result: CampaignResult, best: ReportedComparison) -> str:
    arm, means = arm_link(best), _means(result, best)
    against = arm_link(best.against) if best.against else ""
    if best.metric != THROUGHPUT:
        return f"{arm} had a shorter median TTFT than {against}, {_change(best)}: {means} ms"
    if is_large(best.row):
        times = f"{gain_text(best.row)} as much as {against}"
        gain = ", ".join(filter(None, (times, qualifier(best.row))))
    else:
        gain = f"more than {against}, {_change(best)}"
    return f"{arm} delivered {gain}: {means} output tok/s"


def _smaller(result: CampaignResult, best: ReportedComparison) -> str:
    """The smallest tier of the same arm at parity with the best one, or not shown to differ from it."""
    rows_by_blocks = smaller_sizes(result, best)
    if not rows_by_blocks:
        return ""
    row = rows_by_blocks[min(rows_by_blocks)]
    relation = (
        f"shows {vocabulary.NO_RELEVANT_DIFFERENCE} from"
        if row["verdict"] == words.PARITY
        else "is not shown to differ from"
    )
    return f"; it {relation} the smaller {baseline_link(row)}, {effect_text(row)}"


def _first_token(result: CampaignResult, best: ReportedComparison) -> Iterator[str]:
    """Yield a sentence on the median TTFT of the best arm, whatever its verdict."""
    phrases = {
        words.BETTER: "was shorter",
        words.WORSE: "was longer",
        words.PARITY: f"shows {vocabulary.NO_RELEVANT_DIFFERENCE}",
    }
    latency = latency_of(result, best)
    if latency is not None:
        without = f"has no verdict ({vocabulary.verdict_text(latency.row)})"
        verdict = phrases.get(latency.verdict, without)
        means = _means(result, latency)
        yield f"Its median TTFT {verdict}, {_change(latency)}: {means} ms."


def _verdict_clauses(result: CampaignResult, compared: Compared) -> Iterator[str]:
    """Yield one clause per verdict with the arms that have it; arms with a reason are grouped by it."""
    phrases = {
        vocabulary.BETTER: "better as well",
        vocabulary.NO_RELEVANT_DIFFERENCE: _within_margin(result),
    }
    grouped: dict[str, list[str]] = {}
    order = [*vocabulary.VERDICTS]
    for each in sorted(compared, key=lambda each: order.index(each.shown_verdict)):
        known = math.isfinite(size_of_effect(each))
        change = f" {_change(each)}" if known else ""
        verdict = vocabulary.verdict_text(each.row)
        arms = grouped.setdefault(phrases.get(verdict, verdict), [])
        arms.append(f"{arm_link(each)}{change}")
    yield from (f"{title}: {abbreviate(names)}" for title, names in grouped.items())


def _within_margin(result: CampaignResult) -> str:
    margin = f"within {100 * result.campaign.margin:g} %"
    return f"{vocabulary.NO_RELEVANT_DIFFERENCE}, {margin}"


def _hits(result: CampaignResult, compared: Compared) -> Iterator[str]:
    """Yield a sentence on the prompt tokens that tiers served at the compared level, or reloaded after preemptions."""
    shares, reloads = [], []
    for each in compared:
        at = result.by_cell[each.cell].tier_activity.get(str(each.level), {})
        share = at.get("external_hit_percent")
        preempted = at.get("requests_preempted") or 0
        reloaded = at.get("reloaded_tokens") or 0
        if share is not None:
            shares.append(f"{tier_text(share)} % with {arm_link(each)}")
        if share == 0 and preempted > 0 and reloaded > 0:
            reloads.append(
                f"{tier_text(reloaded)} tokens for {tier_text(preempted)} requests with {arm_link(each)}"
            )
    if reloads:
        yield f"For preempted requests, tokens were loaded from the tier, not computed again: {abbreviate(reloads)}."
    elif shares:
        yield f"Share of the prompt tokens that the tier behind the device served: {abbreviate(shares)}."


def _sentences_on_models(
    result: CampaignResult, compared: Compared, metric: str
) -> Iterator[str]:
    """Yield sentences on the best arm of each model, worse arms, counts of other verdicts, and verdicts on latency."""
    better: dict[str, list[ReportedComparison]] = {each.model: [] for each in compared}
    for each in _by_size_of_effect(compared, words.BETTER):
        better[each.model].append(each)
    more = (
        "More output tokens per second"
        if metric == THROUGHPUT
        else "A shorter median TTFT"
    )
    if any(better.values()):
        best = "; ".join(
            _best_arm(of_model) for of_model in better.values() if of_model
        )
        nothing = [model for model, of_model in better.items() if not of_model]
        yield f"{more} than {_against(compared)}: {best}{f'; no arm for {_listed(nothing)}' if nothing else ''}."
    else:
        yield _none_better(compared, metric)
    for verdict in (words.WORSE, words.WORSE_IDLE):
        of_verdict = _by_size_of_effect(compared, verdict)
        worse = [
            f"{each.model} with {arm_link(each)} {_change(each)}" for each in of_verdict
        ]
        if worse:
            title = vocabulary.verdict_text(of_verdict[0].row)
            yield f"{title[0].upper()}{title[1:]}: {abbreviate(worse)}."
    yield from _count_sentence(result, compared, [*vocabulary.VERDICTS][2:])
    decided = [*vocabulary.VERDICTS][:3]
    for further_metric in (GOODPUT, TTFT) if metric == THROUGHPUT else (GOODPUT,):
        further = [*result.with_baselines(further_metric).values()]
        yield from _count_sentence(result, further, decided)


def _count_sentence(
    result: CampaignResult, compared: Compared, verdicts: Sequence[str]
) -> Iterator[str]:
    """Yield a sentence with the number of comparisons that have each of these verdicts, of `vocabulary.VERDICTS`.

    Arms that are worse although idle have a sentence of their own.
    """
    grouped: dict[str, list[ReportedComparison]] = {}
    for each in compared:
        if each.verdict != words.WORSE_IDLE:
            grouped.setdefault(each.shown_verdict, []).append(each)
    shown = [
        f"{len(grouped[verdict])} {_counted(result, verdict, grouped[verdict])}"
        for verdict in verdicts
        if verdict in grouped
    ]
    if shown:
        title = METRIC_TITLES[compared[0].metric]
        count = f"of {len(compared)} comparisons with a baseline"
        yield f"{title}, {count}: {', '.join(shown)}."


def _counted(result: CampaignResult, verdict: str, compared: Compared) -> str:
    """The verdict of several comparisons: with the largest cost of idle arms, or the most frequent reason."""
    if verdict == vocabulary.NO_RELEVANT_DIFFERENCE:
        return _within_margin(result)
    bounded = [each.row for each in compared if each.verdict == words.IDLE]
    if len(bounded) == len(compared):
        return vocabulary.cost_text(
            max(bounded, key=lambda row: float(row["cost_percent"]))
        )
    without = (each for each in compared if each.verdict not in words.VERDICTS)
    reasons = Counter(filter(None, (each.reason for each in without)))
    if not reasons:
        return verdict
    ((reason, count),) = reasons.most_common(1)
    of_some = f"{count} of these: " if count < len(compared) else ""
    return f"{verdict} ({of_some}{reason})"


def _best_arm(better: Compared) -> str:
    """The first of a model's arms that are better."""
    best, row = better[0], better[0].row
    gain = f"{gain_text(row)} as much" if is_large(row) else effect_text(row)
    most = f"the most of {len(better)} arms" if len(better) > 1 else ""
    parts = (f"{best.model} with {arm_link(best)} {gain}", qualifier(row), most)
    return ", ".join(filter(None, parts))


def _sentences_without_baseline(result: CampaignResult) -> Iterator[str]:
    yield "Nothing was compared with a baseline, so there is no verdict."
    shown = []
    for cell in result.cells:
        if cell.peak:
            mean = numerals.mean_of(cell.values(cell.peak.level, THROUGHPUT))
            shown.append(f"{arm_link(cell)} on {cell.model} {mean} output tok/s")
    if shown:
        yield f"Measured at the peak: {abbreviate(shown)}."


def _runs_of(result: CampaignResult, compared: Compared, counted: str) -> str:
    """The phrase for the runs of each arm; `counted`: how many there are. Verdicts may rest on fewer.

    An answer about throughput speaks of TTFT as well.
    """
    metrics = dict.fromkeys([*(each.metric for each in compared), TTFT])
    kept, fewer = [], False
    for each in (
        one for name in metrics for one in result.with_baselines(name).values()
    ):
        if each.runs is not None and (
            each.verdict in words.VERDICTS or each.indication
        ):
            kept.append(each.runs)
            fewer |= each.runs < _paired(result, each)
    if not fewer:
        return f"This rests on {counted} run{'s' * (counted != '1')} of each arm"
    few = " to ".join(map(str, dict.fromkeys((min(kept), max(kept)))))
    return f"The verdicts rest on {few} of the {counted} runs of each arm"


def _paired(result: CampaignResult, comparison: ReportedComparison) -> int:
    """The number of runs that both sides of a comparison have."""
    sides = [comparison, *filter(None, [comparison.against])]
    return min(len(result.by_cell[side.cell].runs) for side in sides)


_WEIGHTS = {
    "miniature": ", with random weights",
    "random": ", with random weights, full geometry",
}


def _intervals_of(compared: Compared) -> str:
    """The confidence of the intervals: of comparisons that are adjusted for each other, that of all together."""
    together = any((each.interval_percent or 0) > 95 for each in compared)
    whose = ", for all arms together" if together else ""
    return f"; intervals are 95 %, over runs{whose}"


def _basis(result: CampaignResult, compared: Compared) -> str:
    """The runs, the level, the load and the machine that the answer rests on."""
    counts = sorted({len(cell.runs) for cell in result.cells if cell.runs})
    number = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    levels = sorted({each.level for each in compared if each.level is not None})
    titles = _distinct(str(load.get("title") or "") for load in result.workloads)
    machines = result.origin.machines
    parts = [
        _runs_of(result, compared, number),
        *([f" at {level_unit_of(result).in_sentence(levels)}"] if levels else []),
        *([f" ({titles[0]})"] if titles[0] and len(titles) == 1 else []),
        _WEIGHTS.get(result.weights, ""),
        f", on {machines[0] if len(machines) == 1 else f'{len(machines)} different machines'}",
        _intervals_of(compared)
        if counts[-1] > 1
        else "; the spread between runs is unknown",
    ]
    absent = sum(not cell.runs for cell in result.cells)
    return f"{''.join(parts)}{f'; {absent} of {len(result.cells)} cells were not measured' if absent else ''}."
