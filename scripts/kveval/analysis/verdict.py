"""A verdict, step by step: from the runs of two cells to a word and its grounds, as docs/verdicts.md describes it.

    questions ─► paired runs ─► usable runs ─► basis ─► estimate ─► verdict ─► row of comparison.csv
                 pairing.py     exclusions.py  inputs.py estimates.py  here     comparison_rows.py

Every step makes a frozen record from that of the step before. Runs that are left out have a code (`exclusions.REASONS`),
and so has everything that is found of a comparison and decides on it (`findings.CODES`); decisions follow codes.

A comparison is a difference of logarithms between two cells of a model at one common level, over runs as blocks: all
cells were measured once per block, in random order within it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from kveval.analysis.cells import THROUGHPUT
from kveval.analysis.estimators.intervals import (
    Contrast,
    holm,
    percent,
)
from kveval.analysis.estimators.power import parity_power, runs_to_resolve
from kveval.analysis.levels.checks_level import STARVED
from kveval.analysis.levels.goodput import GOODPUT
from kveval.analysis.statistics import limits_met
from kveval.analysis.statistics.campaign import CampaignCells
from kveval.analysis.statistics.comparison import (
    ComparisonBasis,
    ComparisonVerdict,
    Estimate,
    Judgement,
    Kind,
    Question,
)
from kveval.analysis.statistics.comparison_rows import comparison_table
from kveval.analysis.statistics.estimates import estimates
from kveval.analysis.statistics.findings import ComparisonFinding, by_input, new_finding
from kveval.analysis.statistics.inputs import tier_gain
from kveval.analysis.statistics.verdict_words import (
    BETTER,
    DIFFERENT,
    IDLE,
    IDLE_FAMILY,
    INCONCLUSIVE,
    NOT_ASSESSED,
    NOT_EXERCISED,
    NOT_JUDGED,
    PARITY,
    SINGLE_RUN,
    SIZES_FAMILY,
    WORSE,
    WORSE_IDLE,
    indicative,
)
from kveval.campaign.campaign_file import Comparison
from kveval.campaign.cell import Cell
from kveval.host.hashing import content_hash

METHOD = 7
"""Version of the comparison method; part of the method's hash, raised when verdicts may change."""
# Metric -> True if more is better.
METRICS: dict[str, bool] = {
    THROUGHPUT: True,
    "ttft_ms_p50": False,
    "ttft_ms_p90": False,
    "tpot_ms_p50": False,
    "itl_ms_p50": False,
    "e2e_ms_p50": False,
    "e2e_ms_p90": False,
}


def method_hash(settings: Comparison) -> str:
    """Return 12 hex digits that change with anything that may change a verdict on the same data."""
    facts = {"method": METHOD, "metrics": METRICS, "settings": settings.model_dump()}
    return content_hash(facts, 12, spaced=True)


class Verdicts(NamedTuple):
    """The verdicts of a campaign.

    `baseline`: cells against their baselines; `contrasts`: declared pairs, then neighbouring sizes of an arm; `peaks`:
    peaks against the baselines' peaks, with effect and interval, not judged.
    """

    baseline: list[ComparisonVerdict]
    contrasts: list[ComparisonVerdict]
    peaks: list[ComparisonVerdict]


class Comparisons(NamedTuple):
    """Verdicts as tables with equal columns."""

    baseline: pd.DataFrame
    contrasts: pd.DataFrame
    peaks: pd.DataFrame


def compare_all(
    complete: pd.DataFrame,
    baselines: Mapping[str, str | None],
    settings: Comparison | None = None,
    metrics: Mapping[str, bool] | None = None,
    requested_runs: Mapping[Cell, int] | None = None,
) -> Comparisons:
    """Return the verdicts of `judge_all`, which describes the parameters, as tables."""
    settings = settings or Comparison()
    verdicts = judge_all(complete, baselines, settings, metrics, requested_runs)
    margin, method = settings.margin, method_hash(settings)
    return Comparisons(*(comparison_table(each, margin, method) for each in verdicts))


def judge_all(
    complete: pd.DataFrame,
    baselines: Mapping[str, str | None],
    settings: Comparison | None = None,
    metrics: Mapping[str, bool] | None = None,
    requested_runs: Mapping[Cell, int] | None = None,
    peaks: bool = True,
) -> Verdicts:
    """Compare every cell with its baseline, every declared pair, and every size of a CPU tier with the next smaller
    one of its arm, at a common level; then peaks with peaks, which are not judged.

    `complete`: the rows of complete_metrics.csv. `baselines`: scenario -> the scenario it is compared with, None for
    a baseline itself. The baseline's cell is that of the same model with the same cpu_blocks, else the only one.
    Effects are per cent of the reference. For the primary metric `p_holm` is adjusted over all comparisons of all
    models, else over those of one model and metric; neighbouring sizes, unless declared, are adjusted apart, and change
    no other comparison.
    `metrics`: by default METRICS, and goodput where the levels have it. `requested_runs`: the number of runs that the
    campaign asks for, by cell; without it, a run is missing that a cell compared has and the other does not.
    `peaks`: whether peaks are compared as well, which changes no other verdict.
    """
    settings = settings or Comparison()
    metrics = metrics or METRICS | ({GOODPUT: True} if GOODPUT in complete else {})
    campaign = CampaignCells(complete, baselines, settings, metrics, requested_runs)
    at_levels = [(metric, False) for metric in metrics]
    of_peaks = (THROUGHPUT, GOODPUT) if peaks else ()
    at_peaks = [(metric, True) for metric in of_peaks if metric in metrics]
    estimated = [
        each
        for model in campaign.models
        for metric, own_peaks in (*at_levels, *at_peaks)
        for each in _estimates(campaign, model, metric, own_peaks)
    ]
    of_kind: dict[Kind, list[ComparisonVerdict]] = defaultdict(list)
    peak_estimates = [each for each in estimated if each.question.kind == "peak"]
    others = [each for each in estimated if each.question.kind != "peak"]
    for verdict in _verdicts(others, metrics, settings):
        of_kind[verdict.question.kind].append(verdict)
    return Verdicts(
        of_kind["baseline"],
        [*of_kind["contrast"], *of_kind["sizes"]],
        [_not_judged(each, settings) for each in peak_estimates],
    )


# --- From questions to estimates


def _estimates(
    campaign: CampaignCells, model: str, metric: str, own_peaks: bool
) -> list[Estimate]:
    """Return the comparisons of a model in a metric with their effects and errors, before any verdict.

    Cells that ran the same configuration are estimated with them, and are not among the result. Neighbouring sizes are
    estimated as if they were declared; the other comparisons without them, so that nothing of these depends on them.
    """

    def bases(questions: Iterable[Question]) -> list[ComparisonBasis]:
        return [campaign.basis(question) for question in questions]

    compared = bases(campaign.questions(model, metric, own_peaks))
    copies = bases(campaign.copies(model, metric, own_peaks))
    sizes = bases(campaign.size_questions(model, metric, own_peaks))
    alpha, pauses = campaign.settings.alpha, campaign.pauses
    estimated = estimates([*compared, *copies], alpha, pauses)[: len(compared)]
    if not sizes:
        return estimated
    pairs = {basis.question.cells for basis in sizes}
    others = [basis for basis in copies if basis.question.cells not in pairs]
    with_sizes = estimates([*compared, *sizes, *others], alpha, pauses)
    return [*estimated, *with_sizes[len(compared) : len(compared) + len(sizes)]]


# --- From estimates to verdicts: families that are judged together


def _verdicts(
    estimated: Sequence[Estimate], metrics: Mapping[str, bool], settings: Comparison
) -> list[ComparisonVerdict]:
    """Return the verdict of each estimate, in their order.

    The comparisons of a family are adjusted for each other. What an idle arm costs is another question than what an
    active one gains, with a family of its own. So have neighbouring sizes, which nobody declared.
    """
    families: dict[tuple[str, str, Kind | None, bool], list[int]] = {}
    for place, each in enumerate(estimated):
        metric, kind = each.question.metric, each.question.kind
        model = "" if metric == settings.primary else each.question.arm.model
        apart: Kind | None = kind if kind == "sizes" else None
        key = (metric, model, apart, each.basis.idle)
        families.setdefault(key, []).append(place)
    verdicts: dict[int, ComparisonVerdict] = {}
    for (metric, model, apart, idle), places in families.items():
        name = "exploratory" if model else "primary"
        name += SIZES_FAMILY if apart == "sizes" else ""
        name += IDLE_FAMILY if idle else ""
        members = [estimated[place] for place in places]
        judged = _family_verdicts(members, name, metrics[metric], settings)
        verdicts |= dict(zip(places, judged, strict=True))
    return [verdicts[place] for place in range(len(estimated))]


def _not_judged(estimate: Estimate, settings: Comparison) -> ComparisonVerdict:
    """Return a comparison of peaks with effect and interval: no test says what levels that differ show of an arm."""
    judgement = _without_verdict(estimate)
    if estimate.can_have_verdict:
        grounds = new_finding("peaks_not_judged"), *_limits(estimate)
        judgement = Judgement(NOT_JUDGED, grounds)
    of_goodput = estimate.question.metric == GOODPUT
    at_least = of_goodput and limits_met.is_none_met_on_one_side(estimate.sides)
    return ComparisonVerdict(
        estimate,
        "exploratory",
        judgement,
        bound="at least" if at_least else "",
        confidence=1 - settings.alpha,
    )


def _family_verdicts(
    members: Sequence[Estimate],
    name: str,
    more_is_better: bool,
    settings: Comparison,
) -> list[ComparisonVerdict]:
    """Adjust the comparisons of a family for each other (Holm), and give each its verdict."""
    tests = {
        place: _Tests.of(each, more_is_better, settings)
        for place, each in enumerate(members)
        if each.can_have_verdict
    }
    family = _Family(name, more_is_better, len(tests))
    adjusted = zip(
        tests.items(),
        holm([test.p_value for test in tests.values()]),
        holm([test.p_parity for test in tests.values()]),
        strict=True,
    )
    for (place, test), p_holm, p_parity_holm in adjusted:
        adjusted_test = replace(test, p_holm=p_holm, p_parity_holm=p_parity_holm)
        gain = _beyond_the_tier(adjusted_test, settings)
        tests[place] = adjusted_test.with_findings(gain)
    return [
        _verdict(
            tests[place].estimate if place in tests else each,
            tests.get(place),
            family,
            settings,
        )
        for place, each in enumerate(members)
    ]


class _Family(NamedTuple):
    """Comparisons that are judged together; `judged`: how many of them can have a verdict."""

    name: str
    more_is_better: bool
    judged: int


@dataclass(frozen=True)
class _Tests:
    """The tests of a comparison that can have a verdict.

    `p_parity`: of an idle arm that it costs less than the margin, and `cost_percent` the most that it costs.
    """

    estimate: Estimate
    contrast: Contrast
    p_value: float
    p_parity: float
    cost_percent: float = np.nan
    p_holm: float = np.nan
    p_parity_holm: float = np.nan

    def with_findings(self, added: Iterable[ComparisonFinding]) -> _Tests:
        """Return the tests with further findings of their comparison."""
        findings = (*self.estimate.findings, *added)
        return replace(self, estimate=replace(self.estimate, findings=findings))

    @classmethod
    def of(
        cls, estimate: Estimate, more_is_better: bool, settings: Comparison
    ) -> _Tests:
        """Return the tests of an estimate, not adjusted."""
        contrast, margin = estimate.contrast, settings.margin
        assert contrast is not None
        p_value = contrast.p_difference()
        if not estimate.basis.idle:
            return cls(estimate, contrast, p_value, contrast.p_equivalence(margin))
        low, high = contrast.interval(1 - 2 * settings.alpha)
        cost = -percent(low) if more_is_better else percent(high)
        p_cost = contrast.p_cost(margin, more_is_better=more_is_better)
        return cls(estimate, contrast, p_value, p_cost, max(0.0, cost))


def _verdict(
    estimate: Estimate,
    tests: _Tests | None,
    family: _Family,
    settings: Comparison,
) -> ComparisonVerdict:
    """Return the verdict of a comparison; `tests`: None if it can have none."""
    needed, power = _runs_needed(estimate, family.judged, settings)
    verdict = ComparisonVerdict(
        estimate,
        family.name,
        _without_verdict(estimate),
        runs_to_resolve=needed,
        parity_power=np.nan if estimate.basis.idle else power,
        confidence=1 - settings.alpha,
    )
    if tests is None:
        return verdict
    judge = _idle_judgement if estimate.basis.idle else _active_judgement
    judgement = judge(tests, family.more_is_better, needed, settings)
    final = _as_far_as_indicated(judgement, estimate)
    # The interval that corresponds to one-sided tests at alpha has confidence 1 - 2 alpha.
    one_sided = judgement.word in (PARITY, IDLE)
    return replace(
        verdict,
        judgement=final,
        bound=_bound(estimate, judgement.word, final.word),
        p_parity=tests.p_parity,
        p_holm=tests.p_holm,
        p_parity_holm=tests.p_parity_holm,
        cost_percent=tests.cost_percent,
        confidence=1 - (2 if one_sided else 1) * settings.alpha,
    )


def _runs_needed(
    estimate: Estimate, judged: int, settings: Comparison
) -> tuple[int | None, float]:
    """The runs that would resolve the margin, and the chance that these show parity, percent, in a family of `judged`."""
    if estimate.contrast is None:
        return None, np.nan
    family = (estimate.cells, settings.alpha, max(judged, 1))
    runs = max(len(estimate.sides), 2)
    sd, margin = estimate.sd, settings.margin
    power = 100 * parity_power(sd, margin, runs, *family)
    return runs_to_resolve(sd, margin, *family), power


# --- One comparison: the word and its grounds


def _without_verdict(estimate: Estimate) -> Judgement:
    """Why a comparison has no verdict."""
    basis, obstacle = estimate.basis, estimate.obstacle
    if basis.not_exercised:
        return Judgement(NOT_EXERCISED, (by_input(estimate.findings)["activity"],))
    if basis.replicate:
        return Judgement(NOT_ASSESSED, (new_finding("replicate"),))
    if obstacle is None:
        return Judgement(NOT_ASSESSED, ())
    if basis.idle:
        return Judgement(NOT_EXERCISED, (_IDLE, _NO_COST, obstacle))
    if obstacle.code == "single_run":
        return Judgement(SINGLE_RUN, (new_finding("spread_unknown"),))
    return Judgement(NOT_ASSESSED, (obstacle,))


_IDLE, _NO_COST, _MANY_FAILED = map(new_finding, ("idle", "no_cost", "many_failed"))


def _active_judgement(
    tests: _Tests, more_is_better: bool, needed: int | None, settings: Comparison
) -> Judgement:
    """Test equivalence first, then difference; else inconclusive, with the runs that a verdict would take."""
    estimate, alpha = tests.estimate, settings.alpha
    against = _too_many_failed(estimate)
    if tests.p_parity_holm < alpha:
        return _equal(estimate, against, settings)
    if tests.p_holm < alpha:
        better = (tests.contrast.theta > 0) == more_is_better
        word, in_favour = (BETTER, "arm") if better else (WORSE, "reference")
        if in_favour in against:
            return _not_shown(word)
        return Judgement(word)
    return _undecided(estimate, needed, settings)


def _equal(estimate: Estimate, against: set[str], settings: Comparison) -> Judgement:
    """Parity, unless too many runs failed, or an input differs that rules it out."""
    barred = [finding.input for finding in _inputs(estimate) if finding.bars_parity]
    if against:
        return _not_shown("equality")
    if barred:
        return Judgement(INCONCLUSIVE, (new_finding("other_inputs", inputs=barred),))
    return Judgement(PARITY, (new_finding("within_margin", margin=settings.margin),))


def _not_shown(what: str) -> Judgement:
    """The judgement that something is not shown although the tests say it, because too many runs failed."""
    return Judgement(INCONCLUSIVE, (new_finding("not_shown", what=what), _MANY_FAILED))


def _undecided(
    estimate: Estimate, needed: int | None, settings: Comparison
) -> Judgement:
    margin = settings.margin
    ground = new_finding("more_runs", runs=needed, margin=margin)
    if estimate.basis.starvation:
        ground = new_finding("missing_load")
    elif needed is not None and needed <= len(estimate.sides):
        ground = new_finding("more_precision", margin=margin)
    return Judgement(INCONCLUSIVE, (ground,))


def _idle_judgement(
    tests: _Tests, more_is_better: bool, needed: int | None, settings: Comparison
) -> Judgement:
    """Say what an idle arm costs: less than the margin, more than nothing, or undecided; better is no verdict."""
    estimate, alpha = tests.estimate, settings.alpha
    better = (tests.contrast.theta > 0) == more_is_better
    differs = tests.p_holm < alpha
    within = tests.contrast.p_equivalence(settings.margin) < alpha
    if differs and better and not within:
        return Judgement(NOT_EXERCISED, (_IDLE, new_finding("better_though_idle")))
    barred = any(finding.bars_parity for finding in _inputs(estimate))
    against = _too_many_failed(estimate)
    if tests.p_parity_holm < alpha and not barred:
        if against:
            return Judgement(INCONCLUSIVE, (_IDLE, _NO_COST, _MANY_FAILED))
        return Judgement(IDLE, (_IDLE,))
    if differs and not better and "reference" not in against:
        return Judgement(WORSE_IDLE, (_IDLE,))
    undecided = _undecided(estimate, needed, settings)
    if differs and not better:
        undecided = _not_shown(WORSE_IDLE)
    return Judgement(INCONCLUSIVE, (_IDLE, *undecided.grounds))


def _inputs(estimate: Estimate) -> list[ComparisonFinding]:
    return [*by_input(estimate.findings).values()]


def _too_many_failed(estimate: Estimate) -> set[str]:
    """The sides, "arm" and "reference", of which so many runs failed that nothing is claimed in their favour."""
    return {side for finding in _inputs(estimate) for side in finding.against}


def _as_far_as_indicated(judgement: Judgement, estimate: Estimate) -> Judgement:
    """Add the findings that qualify a verdict to its grounds; those that make it only indicative make it that."""
    if judgement.word == NOT_EXERCISED:
        return replace(judgement, grounds=(*judgement.grounds, *_limits(estimate)))
    weighty = [
        finding
        for finding in _inputs(estimate)
        if finding.severity in ("qualifies", "indicates")
    ]
    grounds = (*weighty, *judgement.grounds, *_limits(estimate))
    indicating = [
        finding.code for finding in weighty if finding.severity == "indicates"
    ]
    if not indicating:
        return replace(judgement, grounds=grounds)
    return Judgement(indicative(indicating), grounds, judgement.word)


def _limits(estimate: Estimate) -> Iterator[ComparisonFinding]:
    """Yield what makes an effect a bound: requests that were not in flight, runs in which nothing met the limits."""
    held, sides = estimate.basis.starvation, estimate.sides
    shares = {
        side: share if share > STARVED else 0.0
        for side, share in (("arm", held.arm), ("reference", held.reference))
    }
    if any(shares.values()):
        yield new_finding("starved", **shares)
    if sides.metric != GOODPUT:
        return
    arm, reference = limits_met.runs_without(sides)
    if arm or reference:
        yield new_finding("none_met", arm=arm, reference=reference, runs=len(sides))


def _bound(estimate: Estimate, word: str, final_word: str) -> str:
    """Whether a difference is at least, or at most, as large as measured; "" where that is not known."""
    effect = estimate.effect_ln
    if word not in DIFFERENT or effect is None:
        return ""
    sides = estimate.sides
    of_goodput = sides.metric == GOODPUT and final_word in DIFFERENT
    if of_goodput and limits_met.is_none_met_on_one_side(sides):
        return "at least"
    direction = estimate.basis.starvation.bound * (1 if effect > 0 else -1)
    return {1: "at least", -1: "at most"}.get(direction, "")


def _beyond_the_tier(
    tests: _Tests, settings: Comparison
) -> Iterator[ComparisonFinding]:
    """Yield that an arm is ahead by clearly more than the prompt tokens that its tier served can save."""
    estimate, alpha = tests.estimate, settings.alpha
    if estimate.basis.idle or not tests.p_holm < alpha:
        return
    gain = tier_gain(estimate.sides)
    if gain is None:
        return
    served, most = gain
    low, _ = tests.contrast.interval(1 - alpha)
    if low > most + np.log1p(settings.margin):
        yield new_finding("beyond_the_tier", served=served, most_ln=most)
