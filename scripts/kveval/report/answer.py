"""The answer of a campaign: its question, at most five sentences, the comparisons behind them, and next steps."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from kveval.analysis.cells import THROUGHPUT, CellKey, cell_named, cell_of, rank_of
from kveval.analysis.levels.goodput import GOODPUT
from kveval.analysis.statistics import verdicts as words
from kveval.analysis.statistics.comparison import OPEN_LOOP
from kveval.report.data import numbers as numerals
from kveval.report.data.campaign import Measured, ReportPlan, cell_label, rows_of, shortened, text
from kveval.report.data.contrasts import pair
from kveval.report.data.metric_titles import METRIC_TITLES
from kveval.report.data.run_facts import hardware
from kveval.report.next_steps import next_steps
from kveval.report.tables.goodput import goodput_sentence
from kveval.report.tables.results import effect_text, is_against_baseline, qualifier
from kveval.report.tables.tiers import tier_text

TTFT = "ttft_ms_p50"
MOST_SENTENCES = 5
# Figures that may accompany the answer, the best first.
FIGURES = ("throughput_by_arm", "effect_plot", "peak_throughput_all_scenarios", "benchmark_results")
# The most arms and comparisons that a sentence names one by one.
_NAMED = 3


@dataclass(frozen=True)
class KeyRow:
    """A comparison that the answer rests on.

    `effect`, `low`, `high`: per cent of `against` (NaN: unknown), `change`: the same as text, with the verdict's
    qualifier; `value` and `other`: means over runs as text, in the unit of `metric`; `level` and `runs`: None where
    nothing could be compared; `bound`: "at least" or "at most" where the effect can only be larger or smaller.
    """

    model: str
    arm: str
    against: str
    metric: str
    level: int | None
    effect: float
    low: float
    high: float
    change: str
    value: str
    other: str
    verdict: str
    reason: str
    runs: int | None
    bound: str = ""

    @property
    def times(self) -> str:
        """The effect as a factor, such as "8.1 times", with no more digits than its interval justifies."""
        low, value, high = (1 + percent / 100 for percent in (self.low, self.effect, self.high))
        half = (high - low) / 2
        known = math.isfinite(half) and half > 0
        shown = numerals.rounded(value, min(max(numerals.decimals_for(half), 0), 1)) if known else f"{value:.2g}"
        return " ".join(filter(None, (self.bound, shown, "times")))


@dataclass(frozen=True)
class CampaignAnswer:
    """The question of a campaign and its answer, understandable without the rest of the report.

    `figure`: the name of the figure that shows it, "" if none does; `next_steps`: what would make it more certain.
    """

    question: str
    sentences: tuple[str, ...]
    rows: tuple[KeyRow, ...]
    figure: str
    next_steps: tuple[str, ...]


def answer_of(plan: ReportPlan, measured: Measured, figures: Sequence[str] = ()) -> CampaignAnswer:
    """Return the answer, which rests on the verdicts only. `figures`: the names of the figures that are not empty."""
    metric = _asked(measured)
    rows = _key_rows(plan, measured, metric)
    found = _of_one_model if len({row.model for row in rows}) == 1 else _of_models
    said = list(found(plan, measured, rows, metric) if rows else _without_baseline(plan, measured))
    return CampaignAnswer(
        _question(plan, rows, metric),
        (*said[: MOST_SENTENCES - 1], _basis(plan, measured, rows)),
        tuple(rows + (_key_rows(plan, measured, TTFT) if metric != TTFT else [])),
        next((name for name in FIGURES if name in figures), ""),
        next_steps(plan, measured, metric),
    )


def _asked(measured: Measured) -> str:
    """The metric that the question is about: throughput, or TTFT in an open loop, where the load sets throughput."""
    rows = measured.comparison[measured.comparison["metric"] == THROUGHPUT]
    fixed = [OPEN_LOOP in text(reason) for reason in rows["reason"]]
    return TTFT if fixed and all(fixed) else THROUGHPUT


def _key_rows(plan: ReportPlan, measured: Measured, metric: str) -> list[KeyRow]:
    """The comparisons of arms with their baselines, in the order of every table."""
    table = measured.comparison[measured.comparison["metric"] == metric]
    rows = [row for row in table.to_dict("records") if is_against_baseline(plan, row)]
    order = {model: place for place, model in enumerate(plan.models_by_size)}
    rows.sort(key=lambda row: (order.get(row["model"], len(order)), rank_of(str(row["scenario"])), row["cpu_blocks"]))
    return [_key_row(measured, row, metric) for row in rows]


def _key_row(measured: Measured, row: Mapping[Any, Any], metric: str) -> KeyRow:
    cell = cell_of(row)
    against = cell_named(row["baseline"]) if row["baseline"] else None
    found = pair(measured, cell, against, metric) if against else None
    verdict, indication = str(row["verdict"]), text(row.get("indication"))
    return KeyRow(
        model=cell[0],
        arm=cell_label(cell),
        against=cell_label(against) if against else "",
        metric=metric,
        level=whole(row["level"]),
        effect=float(row["effect_percent"]),
        low=float(row["low_percent"]),
        high=float(row["high_percent"]),
        change=", ".join(filter(None, (effect_text(row), qualifier(row)))),
        value=found.value if found else numerals.MISSING,
        other=found.other_value if found else numerals.MISSING,
        verdict=f"{verdict}: {indication}" if indication else verdict,
        reason=text(row["reason"]),
        runs=whole(row["runs"]),
        bound=text(row.get("bound")),
    )


def whole(value: Any) -> int | None:
    """Return a whole number of a table, None for a missing one."""
    return None if pd.isna(value) else int(value)


def _question(plan: ReportPlan, rows: Sequence[KeyRow], metric: str) -> str:
    arms, against = _distinct(row.arm for row in rows), _distinct(row.against for row in rows if row.against)
    models = _distinct(row.model for row in rows) or plan.models_by_size
    on = _listed(models) if len(models) <= _NAMED else f"{len(models)} models"
    if not arms:
        return (
            f"How many output tokens per second does {_listed(_distinct(map(cell_label, plan.cells)))} deliver on {on}?"
        )
    does = (
        "deliver more output tokens per second" if metric == THROUGHPUT else "answer with a shorter time to first token"
    )
    also = ", and answer sooner" if metric == THROUGHPUT else ""
    than = f" than {_listed(against, 'or')}" if against else ""
    who = f"Does {_listed(arms, 'or')}" if len(arms) <= _NAMED else f"Which of {len(arms)} arms"
    does = does if len(arms) <= _NAMED else does.replace("deliver", "delivers").replace("answer", "answers")
    also = also if len(arms) <= _NAMED else also.replace("answer", "answers")
    return f"{who} {does}{than}{also}, on {on}?"


def _distinct(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _listed(names: Sequence[str], last: str = "and") -> str:
    return f" {last} ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def _of_one_model(plan: ReportPlan, measured: Measured, rows: Sequence[KeyRow], metric: str) -> Iterator[str]:
    """Yield sentences on the best arm, its TTFT, goodput, the other arms, and the tokens that tiers served."""
    better = sorted((row for row in rows if row.verdict == words.BETTER), key=lambda row: -abs(row.effect))
    if better:
        most = f"; it gained the most of the {len(better)} arms that are better" if len(better) > 1 else ""
        yield f"{_better(better[0])}{most}{_smaller(measured, better[0])}."
        if metric == THROUGHPUT:
            yield from _first_token(plan, measured, better[0])
    elif not any(row.verdict in words.VERDICTS for row in rows):
        yield "There is no verdict yet."
    else:
        against = _listed(_distinct(row.against for row in rows if row.against), "or")
        what = "deliver more output tokens per second than" if metric == THROUGHPUT else "answer sooner than"
        yield f"No arm was shown to {what} {against}."
    if within := goodput_sentence(plan, measured, rows[0].model):
        yield within
    others = "; ".join(_said(plan, [row for row in rows if row not in better[:1]]))
    if others:
        yield f"{others[0].upper()}{others[1:]}."
    yield from _hits(measured, rows)


def _better(row: KeyRow) -> str:
    if row.metric != THROUGHPUT:
        return (
            f"{row.arm} had a shorter median TTFT than {row.against}, {row.change}: {row.value} against {row.other} ms"
        )
    much = f"{row.times} as much as" if row.effect > 100 else "more than"
    return f"{row.arm} delivered {much} {row.against}, {row.change}: {row.value} against {row.other} output tok/s"


def _smaller(measured: Measured, best: KeyRow) -> str:
    """The smallest tier of the same arm that a declared comparison did not show to differ from the best one."""
    found = [
        row
        for row in measured.contrasts.to_dict("records")
        if (row["model"], cell_label(cell_of(row)), row["metric"]) == (best.model, best.arm, best.metric)
        and row["verdict"] in (words.PARITY, words.INCONCLUSIVE)
        and cell_named(row["baseline"])[1] == row["scenario"]
        and 0 < cell_named(row["baseline"])[2] < row["cpu_blocks"]
    ]
    if not found:
        return ""
    row = min(found, key=lambda row: cell_named(row["baseline"])[2])
    alike = "at parity with" if row["verdict"] == words.PARITY else "not shown to differ from"
    return f"; it is {alike} the smaller {cell_label(cell_named(row['baseline']))}, {effect_text(row)}"


def _first_token(plan: ReportPlan, measured: Measured, best: KeyRow) -> Iterator[str]:
    """Yield a sentence on the median TTFT of the best arm, whatever its verdict."""
    said = {words.BETTER: "was shorter", words.WORSE: "was longer", words.PARITY: "is at parity"}
    for row in _key_rows(plan, measured, TTFT):
        if (row.model, row.arm) == (best.model, best.arm) and row.against and math.isfinite(row.effect):
            verdict = said.get(row.verdict, f"is undecided ({row.verdict})")
            yield f"Its median TTFT {verdict}, {row.change}: {row.value} against {row.other} ms."


def _said(plan: ReportPlan, rows: Sequence[KeyRow]) -> Iterator[str]:
    """Yield one clause per verdict with the arms that have it; arms without a verdict are grouped by reason."""
    said = {words.BETTER: "better as well", words.WORSE: "worse", words.INCONCLUSIVE: "undecided"}
    said[words.PARITY] = f"at parity within {100 * plan.margin:g} %"
    grouped: dict[str, list[str]] = {}
    for row in sorted(rows, key=lambda row: words.VERDICTS.index(row.verdict) if row.verdict in said else len(said)):
        change = f" {row.change}" if math.isfinite(row.effect) else ""
        title = "no verdict" if row.verdict.startswith("not assessed") else row.verdict
        why = f" ({row.reason})" if row.reason else ""
        grouped.setdefault(said.get(row.verdict, f"{title}{why}"), []).append(f"{row.arm}{change}")
    yield from (f"{title}: {shortened(names)}" for title, names in grouped.items())


def _hits(measured: Measured, rows: Sequence[KeyRow]) -> Iterator[str]:
    """Yield a sentence on the prompt tokens that tiers served at the compared level, or reloaded after preemptions."""
    activity = measured.activity
    cells: dict[str, CellKey] = {cell_label(key): key for key in map(cell_of, measured.peaks.to_dict("records"))}
    shares, reloads = [], []
    for row in rows:
        if row.arm not in cells or row.level is None:
            continue
        at = rows_of(activity, cells[row.arm])
        means = at[at["level"] == row.level][["external_hit_percent", "requests_preempted", "reloaded_tokens"]].mean()
        share, preempted, reloaded = means
        shares += [f"{tier_text(share)} % with {row.arm}"] if pd.notna(share) else []
        if share == 0 and preempted > 0 and reloaded > 0:
            reloads.append(f"{tier_text(reloaded)} tokens for {tier_text(preempted)} requests with {row.arm}")
    if reloads:
        yield f"For preempted requests, tokens were loaded from the tier, not computed again: {shortened(reloads)}."
    elif shares:
        yield f"Share of the prompt tokens that the tier behind the device served: {shortened(shares)}."


def _of_models(plan: ReportPlan, measured: Measured, rows: Sequence[KeyRow], metric: str) -> Iterator[str]:
    """Yield sentences on the best arm of each model, worse arms, counts of other verdicts, and verdicts on latency."""
    against = _listed(_distinct(row.against for row in rows if row.against), "or")
    by_model = {model: [row for row in rows if row.model == model] for model in _distinct(row.model for row in rows)}
    better = {model: [row for row in of if row.verdict == words.BETTER] for model, of in by_model.items()}
    more = "More output tokens per second" if metric == THROUGHPUT else "A shorter median TTFT"
    if any(better.values()):
        best = [_best(model, of) for model, of in better.items() if of]
        nothing = [model for model, of in better.items() if not of]
        yield f"{more} than {against}: {'; '.join(best)}{f'; no arm for {_listed(nothing)}' if nothing else ''}."
    elif any(row.verdict in words.VERDICTS for row in rows):
        yield f"No arm was shown to have {more[0].lower()}{more[1:]} than {against}."
    else:
        yield "There is no verdict yet."
    worse = sorted((row for row in rows if row.verdict == words.WORSE), key=lambda row: -abs(row.effect))
    if worse:
        yield f"Worse: {shortened([f'{row.model} with {row.arm} {row.change}' for row in worse])}."
    rest = {
        f"at parity within {100 * plan.margin:g} %": sum(row.verdict == words.PARITY for row in rows),
        "undecided": sum(row.verdict == words.INCONCLUSIVE for row in rows),
        _without(rows): sum(row.verdict not in words.VERDICTS for row in rows),
    }
    yield from _counted(rows, rest)
    decided = {"better": words.BETTER, "worse": words.WORSE, "at parity": words.PARITY}
    for other in (GOODPUT, TTFT):
        compared = _key_rows(plan, measured, other) if other != metric else []
        verdicts = [row.verdict for row in compared]
        yield from _counted(compared, {said: verdicts.count(word) for said, word in decided.items()})


def _without(rows: Sequence[KeyRow]) -> str:
    """The phrase for comparisons without a verdict, with the most frequent reason."""
    reasons = Counter(row.reason for row in rows if row.verdict not in words.VERDICTS)
    reason, count = next(iter(reasons.most_common(1)), ("", 0))
    mostly = "mostly: " if len(reasons) > 1 else ""
    return f"without a verdict ({mostly}{reason})" if count else "without a verdict"


def _counted(rows: Sequence[KeyRow], counts: Mapping[str, int]) -> Iterator[str]:
    """Yield a sentence with the number of comparisons of a metric for each verdict."""
    shown = ", ".join(f"{count} {said}" for said, count in counts.items() if count)
    if shown:
        quantity = METRIC_TITLES[rows[0].metric]
        yield f"{quantity}, of {len(rows)} comparisons with a baseline: {shown}."


def _best(model: str, rows: Sequence[KeyRow]) -> str:
    best = max(rows, key=lambda row: abs(row.effect))
    times = f" {best.times} as much," if best.metric == THROUGHPUT and best.effect > 100 else ""
    return f"{model} with {best.arm}{times} {best.change}" + (
        f", the most of {len(rows)} arms" if len(rows) > 1 else ""
    )


def _without_baseline(plan: ReportPlan, measured: Measured) -> Iterator[str]:
    yield "Nothing was compared with a baseline, so there is no verdict."
    shown = []
    for cell in measured.with_peak(plan.ordered):
        peak = measured.peak_of(cell)
        assert peak is not None
        at = measured.levels_of(cell, peak["level"])
        shown.append(f"{cell_label(cell)} on {cell[0]} {numerals.mean_of(list(at[THROUGHPUT]))} output tok/s")
    if shown:
        yield f"Measured at the peak: {shortened(shown)}."


_WEIGHTS = {"miniature": ", with random weights", "random": ", with random weights, full geometry"}


def _basis(plan: ReportPlan, measured: Measured, rows: Sequence[KeyRow]) -> str:
    """The runs, the level, the load and the machine that the answer rests on."""
    counts = sorted({len(runs) for cell in plan.cells if (runs := measured.runs_of(cell))})
    number = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    levels = sorted({row.level for row in rows if row.level is not None})
    titles = _distinct(str(run.workload.get("title") or "") for run in measured.runs)
    machines = hardware(measured.runs)
    parts = [
        f"This rests on {number} run{'s' * (counts[-1] > 1)} of each arm",
        *([f" at {measured.unit.said(levels)}"] if levels else []),
        *([f" ({titles[0]})"] if titles[0] and len(titles) == 1 else []),
        _WEIGHTS.get(measured.runs[0].weights, ""),
        f", on {machines[0] if len(machines) == 1 else f'{len(machines)} different machines'}",
        "; intervals are 95 %, over runs" if counts[-1] > 1 else "; the spread between runs is unknown",
    ]
    absent = sum(not measured.runs_of(cell) for cell in plan.cells)
    return f"{''.join(parts)}{f'; {absent} of {len(plan.cells)} cells were not measured' if absent else ''}."
