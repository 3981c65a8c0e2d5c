"""The answer of a campaign: its question, at most five sentences, the comparisons behind them, and next steps."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from kveval.analysis.cells import THROUGHPUT, rows_of
from kveval.analysis.levels.goodput import GOODPUT
from kveval.analysis.statistics import verdict_words as words
from kveval.analysis.statistics.exclusions import SET_BY_THE_LOAD
from kveval.analysis.statistics.findings import read_exclusions
from kveval.campaign.cell import Cell
from kveval.report.data import numbers as numerals
from kveval.report.data import vocabulary
from kveval.report.data.campaign import (
    Measured,
    ReportPlan,
    Table,
    abbreviate,
    text_or_blank,
)
from kveval.report.data.comparisons import (
    baseline_comparisons,
    baseline_label,
    effect_text,
    gain_text,
    is_large,
    qualifier,
    values_text,
)
from kveval.report.data.metric_titles import METRIC_TITLES
from kveval.report.data.run_facts import machine_descriptions
from kveval.report.next_steps import next_steps
from kveval.report.sections import Tile
from kveval.report.tables.caches import tier_text
from kveval.report.tables.value import goodput_sentence
from kveval.report.tiles import TTFT, model_tiles, models_table, smaller_sizes

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
# A row of comparison.csv.
Row = Mapping[Any, Any]


@dataclass(frozen=True)
class CampaignAnswer:
    """The question of a campaign and its answer, understandable without the rest of the report.

    `figure`: the name of the figure that shows it, "" if none does; `next_steps`: what would make it more certain;
    `command`: the one to paste for the first of these, "" if no command takes it. `tiles`: the answer of one
    model at a glance; `models`: of several, a row each.
    """

    question: str
    sentences: tuple[str, ...]
    figure: str
    next_steps: tuple[str, ...]
    command: str = ""
    tiles: tuple[Tile, ...] = ()
    models: Table | None = None


def answer_of(
    plan: ReportPlan, measured: Measured, figures: Sequence[str] = ()
) -> CampaignAnswer:
    """Return the answer, which rests on the verdicts only. `figures`: the names of the figures that are not empty."""
    metric = _answer_metric(measured)
    rows = baseline_comparisons(plan, measured.comparison, metric)
    models = {row["model"] for row in rows}
    if not models:
        sentences = [*_sentences_without_baseline(plan, measured)]
    elif len(models) == 1:
        sentences = [*_sentences_on_one_model(plan, measured, rows, metric)]
    else:
        sentences = [*_sentences_on_models(plan, measured, rows, metric)]
    steps = next_steps(plan, measured, metric)
    several = len(models) > 1
    preferred = (OF_MODELS, *FIGURES) if several else FIGURES
    return CampaignAnswer(
        _question(plan, rows, metric),
        (*sentences[: MOST_SENTENCES - 1], _basis(plan, measured, rows)),
        next((name for name in preferred if name in figures), ""),
        tuple(step.text for step in steps),
        steps[0].command if steps else "",
        () if several else model_tiles(plan, measured, rows),
        models_table(plan, measured, rows) if several else None,
    )


def _answer_metric(measured: Measured) -> str:
    """The metric that the question is about: throughput, or TTFT where the load sets throughput."""
    rows = measured.comparison[measured.comparison["metric"] == THROUGHPUT]
    set_by_the_load = [_is_set_by_the_load(row) for row in rows.to_dict("records")]
    return TTFT if set_by_the_load and all(set_by_the_load) else THROUGHPUT


def _is_set_by_the_load(row: Row) -> bool:
    return any(found.code in SET_BY_THE_LOAD for found in read_exclusions(row))


def _arm(row: Row) -> str:
    return Cell.from_row(row).label


def _against(rows: Sequence[Row]) -> str:
    return _listed(
        _distinct(baseline_label(row) for row in rows if row["baseline"]), "or"
    )


def _change(row: Row) -> str:
    return ", ".join(filter(None, (effect_text(row), qualifier(row))))


def _means(measured: Measured, row: Row) -> str:
    return " against ".join(values_text(measured, row))


def _question(plan: ReportPlan, rows: Sequence[Row], metric: str) -> str:
    arms, against = _distinct(map(_arm, rows)), _against(rows)
    models = _distinct(str(row["model"]) for row in rows) or plan.models_by_size
    on = _listed(models) if len(models) <= _NAMED else f"{len(models)} models"
    if not arms:
        measured = _listed(_distinct(cell.label for cell in plan.cells))
        return f"How many output tokens per second does {measured} deliver on {on}?"
    who, s = (
        (f"Does {_listed(arms, 'or')}", "")
        if len(arms) <= _NAMED
        else (f"Which of {len(arms)} arms", "s")
    )
    does, also = f"answer{s} with a shorter time to first token", ""
    if metric == THROUGHPUT:
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
    plan: ReportPlan, measured: Measured, rows: Sequence[Row], metric: str
) -> Iterator[str]:
    """Yield sentences on the best arm, its TTFT, goodput, the other arms, and the tokens that tiers served."""
    better = _by_size_of_effect(rows, words.BETTER)
    if better:
        most = (
            f"; it gained the most of the {len(better)} arms that are better"
            if len(better) > 1
            else ""
        )
        yield f"{_better(measured, better[0])}{most}{_smaller(measured, better[0])}."
        if metric == THROUGHPUT:
            yield from _first_token(plan, measured, better[0])
    else:
        yield _none_better(rows, metric)
    if within := goodput_sentence(plan, measured, rows[0]["model"]):
        yield within
    others = "; ".join(
        _verdict_clauses(plan, [row for row in rows if row not in better[:1]])
    )
    if others:
        yield f"{others[0].upper()}{others[1:]}."
    yield from _hits(measured, rows)


def _none_better(rows: Sequence[Row], metric: str) -> str:
    if not any(row["verdict"] in words.VERDICTS for row in rows):
        return "There is no verdict yet."
    what = (
        "deliver more output tokens per second"
        if metric == THROUGHPUT
        else "answer sooner"
    )
    return f"No arm was shown to {what} than {_against(rows)}."


def _by_size_of_effect(rows: Sequence[Row], verdict: str) -> list[Row]:
    return sorted(
        (row for row in rows if row["verdict"] == verdict),
        key=lambda row: -abs(row["effect_percent"]),
    )


def _better(measured: Measured, row: Row) -> str:
    arm, against, means = _arm(row), baseline_label(row), _means(measured, row)
    if row["metric"] != THROUGHPUT:
        return f"{arm} had a shorter median TTFT than {against}, {_change(row)}: {means} ms"
    if is_large(row):
        gain = ", ".join(
            filter(None, (f"{gain_text(row)} as much as {against}", qualifier(row)))
        )
    else:
        gain = f"more than {against}, {_change(row)}"
    return f"{arm} delivered {gain}: {means} output tok/s"


def _smaller(measured: Measured, best: Row) -> str:
    """The smallest tier of the same arm at parity with the best one, or not shown to differ from it."""
    rows_by_blocks = smaller_sizes(measured, best)
    if not rows_by_blocks:
        return ""
    row = rows_by_blocks[min(rows_by_blocks)]
    relation = (
        f"shows {vocabulary.NO_RELEVANT_DIFFERENCE} from"
        if row["verdict"] == words.PARITY
        else "is not shown to differ from"
    )
    return f"; it {relation} the smaller {baseline_label(row)}, {effect_text(row)}"


def _first_token(plan: ReportPlan, measured: Measured, best: Row) -> Iterator[str]:
    """Yield a sentence on the median TTFT of the best arm, whatever its verdict."""
    phrases = {
        words.BETTER: "was shorter",
        words.WORSE: "was longer",
        words.PARITY: f"shows {vocabulary.NO_RELEVANT_DIFFERENCE}",
    }
    for row in baseline_comparisons(plan, measured.comparison, TTFT):
        if (
            Cell.from_row(row) == Cell.from_row(best)
            and row["baseline"]
            and math.isfinite(row["effect_percent"])
        ):
            verdict = phrases.get(
                row["verdict"], f"has no verdict ({vocabulary.verdict_text(row)})"
            )
            yield f"Its median TTFT {verdict}, {_change(row)}: {_means(measured, row)} ms."


def _verdict_clauses(plan: ReportPlan, rows: Sequence[Row]) -> Iterator[str]:
    """Yield one clause per verdict with the arms that have it; arms with a reason are grouped by it."""
    phrases = {
        vocabulary.BETTER: "better as well",
        vocabulary.NO_RELEVANT_DIFFERENCE: _within_margin(plan),
    }
    grouped: dict[str, list[str]] = {}
    order = [*vocabulary.VERDICTS]
    for row in sorted(rows, key=lambda row: order.index(vocabulary.verdict_of(row))):
        change = f" {_change(row)}" if math.isfinite(row["effect_percent"]) else ""
        verdict = vocabulary.verdict_text(row)
        arms = grouped.setdefault(phrases.get(verdict, verdict), [])
        arms.append(f"{_arm(row)}{change}")
    yield from (f"{title}: {abbreviate(names)}" for title, names in grouped.items())


def _within_margin(plan: ReportPlan) -> str:
    return f"{vocabulary.NO_RELEVANT_DIFFERENCE}, within {100 * plan.margin:g} %"


def _hits(measured: Measured, rows: Sequence[Row]) -> Iterator[str]:
    """Yield a sentence on the prompt tokens that tiers served at the compared level, or reloaded after preemptions."""
    shares, reloads = [], []
    for row in rows:
        at = rows_of(measured.activity, Cell.from_row(row))
        at = at[at["level"] == row["level"]]
        share, preempted, reloaded = at[
            ["external_hit_percent", "requests_preempted", "reloaded_tokens"]
        ].mean()
        shares += [f"{tier_text(share)} % with {_arm(row)}"] if pd.notna(share) else []
        if share == 0 and preempted > 0 and reloaded > 0:
            reloads.append(
                f"{tier_text(reloaded)} tokens for {tier_text(preempted)} requests with {_arm(row)}"
            )
    if reloads:
        yield f"For preempted requests, tokens were loaded from the tier, not computed again: {abbreviate(reloads)}."
    elif shares:
        yield f"Share of the prompt tokens that the tier behind the device served: {abbreviate(shares)}."


def _sentences_on_models(
    plan: ReportPlan, measured: Measured, rows: Sequence[Row], metric: str
) -> Iterator[str]:
    """Yield sentences on the best arm of each model, worse arms, counts of other verdicts, and verdicts on latency."""
    better: dict[str, list[Row]] = {row["model"]: [] for row in rows}
    for row in _by_size_of_effect(rows, words.BETTER):
        better[row["model"]].append(row)
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
        yield f"{more} than {_against(rows)}: {best}{f'; no arm for {_listed(nothing)}' if nothing else ''}."
    else:
        yield _none_better(rows, metric)
    for verdict in (words.WORSE, words.WORSE_IDLE):
        of_verdict = _by_size_of_effect(rows, verdict)
        worse = [
            f"{row['model']} with {_arm(row)} {_change(row)}" for row in of_verdict
        ]
        if worse:
            title = vocabulary.verdict_text(of_verdict[0])
            yield f"{title[0].upper()}{title[1:]}: {abbreviate(worse)}."
    yield from _count_sentence(plan, rows, [*vocabulary.VERDICTS][2:])
    decided = [*vocabulary.VERDICTS][:3]
    for further_metric in (GOODPUT, TTFT) if metric == THROUGHPUT else (GOODPUT,):
        compared = baseline_comparisons(plan, measured.comparison, further_metric)
        yield from _count_sentence(plan, compared, decided)


def _count_sentence(
    plan: ReportPlan, rows: Sequence[Row], verdicts: Sequence[str]
) -> Iterator[str]:
    """Yield a sentence with the number of comparisons that have each of these verdicts, of `vocabulary.VERDICTS`.

    Arms that are worse although idle have a sentence of their own.
    """
    grouped: dict[str, list[Row]] = {}
    for row in (row for row in rows if row["verdict"] != words.WORSE_IDLE):
        grouped.setdefault(vocabulary.verdict_of(row), []).append(row)
    shown = [
        f"{len(grouped[verdict])} {_counted(plan, verdict, grouped[verdict])}"
        for verdict in verdicts
        if verdict in grouped
    ]
    if shown:
        title = METRIC_TITLES[rows[0]["metric"]]
        count = f"of {len(rows)} comparisons with a baseline"
        yield f"{title}, {count}: {', '.join(shown)}."


def _counted(plan: ReportPlan, verdict: str, rows: Sequence[Row]) -> str:
    """The verdict of several comparisons: with the largest cost of idle arms, or the most frequent reason."""
    if verdict == vocabulary.NO_RELEVANT_DIFFERENCE:
        return _within_margin(plan)
    bounded = [row for row in rows if row["verdict"] == words.IDLE]
    if len(bounded) == len(rows):
        return vocabulary.cost_text(
            max(bounded, key=lambda row: float(row["cost_percent"]))
        )
    without = (row for row in rows if row["verdict"] not in words.VERDICTS)
    reasons = Counter(filter(None, (text_or_blank(row["reason"]) for row in without)))
    if not reasons:
        return verdict
    ((reason, count),) = reasons.most_common(1)
    of_some = f"{count} of these: " if count < len(rows) else ""
    return f"{verdict} ({of_some}{reason})"


def _best_arm(rows: Sequence[Row]) -> str:
    """The first of a model's arms that are better."""
    best = rows[0]
    gain = f"{gain_text(best)} as much" if is_large(best) else effect_text(best)
    most = f"the most of {len(rows)} arms" if len(rows) > 1 else ""
    parts = (f"{best['model']} with {_arm(best)} {gain}", qualifier(best), most)
    return ", ".join(filter(None, parts))


def _sentences_without_baseline(plan: ReportPlan, measured: Measured) -> Iterator[str]:
    yield "Nothing was compared with a baseline, so there is no verdict."
    shown = []
    for cell, _, at in measured.peaks_of(plan.ordered_cells):
        shown.append(
            f"{cell.label} on {cell.model} {numerals.mean_of(list(at[THROUGHPUT]))} output tok/s"
        )
    if shown:
        yield f"Measured at the peak: {abbreviate(shown)}."


def _runs_of(
    plan: ReportPlan, measured: Measured, rows: Sequence[Row], counted: str
) -> str:
    """The phrase for the runs of each arm; `counted`: how many there are. Verdicts may rest on fewer.

    An answer about throughput speaks of TTFT as well.
    """
    metrics = dict.fromkeys([*(row["metric"] for row in rows), TTFT])
    compared = [
        row
        for metric in metrics
        for row in baseline_comparisons(plan, measured.comparison, metric)
    ]
    judged = [
        row
        for row in compared
        if row["verdict"] in words.VERDICTS or text_or_blank(row.get("indication"))
    ]
    if not any(row["runs"] < _paired(measured, row) for row in judged):
        return f"This rests on {counted} run{'s' * (counted != '1')} of each arm"
    kept = sorted(int(row["runs"]) for row in judged)
    few = " to ".join(map(str, dict.fromkeys((kept[0], kept[-1]))))
    return f"The verdicts rest on {few} of the {counted} runs of each arm"


def _paired(measured: Measured, row: Row) -> int:
    """The number of runs that both sides of a comparison have."""
    return min(
        len(measured.runs_of(cell))
        for cell in (Cell.from_row(row), Cell.from_path(row["baseline"]))
    )


_WEIGHTS = {
    "miniature": ", with random weights",
    "random": ", with random weights, full geometry",
}


def _basis(plan: ReportPlan, measured: Measured, rows: Sequence[Row]) -> str:
    """The runs, the level, the load and the machine that the answer rests on."""
    counts = sorted(
        {len(runs) for cell in plan.cells if (runs := measured.runs_of(cell))}
    )
    number = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    levels = sorted({int(row["level"]) for row in rows if pd.notna(row["level"])})
    titles = _distinct(str(run.workload.get("title") or "") for run in measured.runs)
    machines = machine_descriptions(measured.runs)
    parts = [
        _runs_of(plan, measured, rows, number),
        *([f" at {measured.level_unit.in_sentence(levels)}"] if levels else []),
        *([f" ({titles[0]})"] if titles[0] and len(titles) == 1 else []),
        _WEIGHTS.get(measured.runs[0].weights, ""),
        f", on {machines[0] if len(machines) == 1 else f'{len(machines)} different machines'}",
        "; intervals are 95 %, over runs"
        if counts[-1] > 1
        else "; the spread between runs is unknown",
    ]
    absent = sum(not measured.runs_of(cell) for cell in plan.cells)
    return f"{''.join(parts)}{f'; {absent} of {len(plan.cells)} cells were not measured' if absent else ''}."
