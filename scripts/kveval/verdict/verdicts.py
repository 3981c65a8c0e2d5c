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

from kveval.campaign.campaign_file import Comparison
from kveval.campaign.cell import Cell
from kveval.estimators.intervals import holm, holm_levels, percent
from kveval.estimators.power import (
    parity_power,
    runs_to_differ,
    runs_to_equal,
    runs_to_resolve,
)
from kveval.host.hashing import content_hash
from kveval.tables.cells import THROUGHPUT
from kveval.tables.levels.checks_level import STARVED
from kveval.tables.levels.goodput import GOODPUT
from kveval.verdict import limits_met
from kveval.verdict.campaign_cells import CampaignCells
from kveval.verdict.comparison import (
    ComparisonBasis,
    ComparisonVerdict,
    Estimate,
    Judgement,
    Kind,
    Question,
)
from kveval.verdict.comparison_rows import comparison_table
from kveval.verdict.estimates import estimates
from kveval.verdict.findings import ComparisonFinding, by_input, new_finding
from kveval.verdict.inputs import tier_gain
from kveval.verdict.verdict_words import (
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
    models; neighbouring sizes, unless declared, are adjusted apart, and change no other comparison. On other metrics
    each comparison is judged alone.
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

    A campaign decides on its primary metric: these comparisons are adjusted for each other. What an idle arm costs is
    another question than what an active one gains, with a family of its own. So have neighbouring sizes, which nobody
    declared. On any other metric every comparison is judged alone.
    """
    families: dict[tuple[str, bool, bool, int | None], list[int]] = {}
    for place, each in enumerate(estimated):
        metric, sizes = each.question.metric, each.question.kind == "sizes"
        alone = None if metric == settings.primary else place
        key = (metric, sizes, each.basis.idle, alone)
        families.setdefault(key, []).append(place)
    verdicts: dict[int, ComparisonVerdict] = {}
    for (metric, sizes, idle, alone), places in families.items():
        name = "primary" if alone is None else "exploratory"
        name += SIZES_FAMILY if sizes else ""
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
    alpha = settings.alpha
    places = [place for place, each in enumerate(members) if each.can_have_verdict]
    of_tests = [_p_values(members[place], more_is_better, settings) for place in places]
    p_values, p_parities = zip(*of_tests, strict=True) if places else ((), ())
    columns = (
        p_values,
        p_parities,
        holm(p_values),
        holm(p_parities),
        holm_levels(p_values, alpha),
        holm_levels(p_parities, alpha),
    )
    tests = {
        place: _Tests(*numbers)
        for place, *numbers in zip(places, *columns, strict=True)
    }
    family = _Family(name, more_is_better, len(tests))
    return [
        _verdict(each, tests.get(place), family, settings)
        for place, each in enumerate(members)
    ]


def _p_values(
    estimate: Estimate, more_is_better: bool, settings: Comparison
) -> tuple[float, float]:
    """Return the p values of no difference and of one beyond the margin: of an idle arm, of such a cost."""
    contrast = estimate.contrast
    assert contrast is not None
    margin = settings.margin
    if estimate.basis.idle:
        p_parity = contrast.p_cost(margin, more_is_better=more_is_better)
    else:
        p_parity = contrast.p_equivalence(margin)
    return contrast.p_difference(), p_parity


class _Family(NamedTuple):
    """Comparisons that are judged together; `judged`: how many of them can have a verdict."""

    name: str
    more_is_better: bool
    judged: int


@dataclass(frozen=True)
class _Tests:
    """The tests of a comparison in its family; `level`, `parity_level`: at which p Holm tested it."""

    p_value: float
    p_parity: float
    p_holm: float
    p_parity_holm: float
    level: float
    parity_level: float

    def confidence(self, word: str) -> float:
        """Return the confidence of the interval that shows why the tests lead to this word.

        It lies within the margin if they show parity (one-sided tests), and leaves 0 out if they show a difference.
        Where they show neither, it does neither.
        """
        two_sided, one_sided = 1 - self.level, 1 - 2 * self.parity_level
        if word in (PARITY, IDLE):
            return one_sided
        if word in DIFFERENT:
            return two_sided
        return max(two_sided, one_sided)


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
    contrast = estimate.contrast
    if tests is None or contrast is None:
        return verdict
    gain = _beyond_the_tier(estimate, tests, settings)
    estimate = replace(estimate, findings=(*estimate.findings, *gain))
    judge = _idle_judgement if estimate.basis.idle else _active_judgement
    judgement = judge(estimate, tests, family.more_is_better, settings)
    final = _as_far_as_indicated(judgement, estimate)
    cost = np.nan
    if estimate.basis.idle:
        low, high = map(percent, contrast.interval(1 - 2 * tests.parity_level))
        cost = max(0.0, -low if family.more_is_better else high)
    return replace(
        verdict,
        estimate=estimate,
        judgement=final,
        bound=_bound(estimate, judgement.word, final.word),
        p_parity=tests.p_parity,
        p_holm=tests.p_holm,
        p_parity_holm=tests.p_parity_holm,
        cost_percent=cost,
        confidence=tests.confidence(judgement.word),
    )


def _runs_needed(
    estimate: Estimate, judged: int, settings: Comparison
) -> tuple[int | None, float]:
    """The runs that would resolve the margin, and the chance that those there are show parity, per cent.

    `judged`: the comparisons of the family that can have a verdict.
    """
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
    estimate: Estimate, tests: _Tests, more_is_better: bool, settings: Comparison
) -> Judgement:
    """Test equivalence first, then difference; else inconclusive, with the runs that a verdict would take."""
    alpha, against = settings.alpha, _too_many_failed(estimate)
    if tests.p_parity_holm < alpha:
        return _equal(estimate, against, settings)
    if tests.p_holm < alpha:
        better = _is_better(estimate, more_is_better)
        word, in_favour = (BETTER, "arm") if better else (WORSE, "reference")
        if in_favour in against:
            return _not_shown(word)
        return Judgement(word)
    return _undecided(estimate, tests, settings)


def _is_better(estimate: Estimate, more_is_better: bool) -> bool:
    return ((estimate.effect_ln or 0.0) > 0) == more_is_better


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


def _undecided(estimate: Estimate, tests: _Tests, settings: Comparison) -> Judgement:
    """Neither a difference nor equality is shown: say how many runs would show one of them, at the measured effect."""
    if estimate.basis.starvation:
        return Judgement(INCONCLUSIVE, (new_finding("missing_load"),))
    contrast, runs = estimate.contrast, len(estimate.sides)
    assert contrast is not None
    shows: dict[str, int | None] = {
        "difference": runs_to_differ(contrast, runs, tests.level),
        "equality": runs_to_equal(contrast, runs, settings.margin, tests.parity_level),
    }
    known = {what: count for what, count in shows.items() if count is not None}
    what = min(known, key=known.__getitem__, default="difference")
    facts = {"runs": known.get(what), "shows": what, "margin": settings.margin}
    return Judgement(INCONCLUSIVE, (new_finding("more_runs", **facts),))


def _idle_judgement(
    estimate: Estimate, tests: _Tests, more_is_better: bool, settings: Comparison
) -> Judgement:
    """Say what an idle arm costs: less than the margin, more than nothing, or undecided; better is no verdict."""
    alpha, contrast = settings.alpha, estimate.contrast
    assert contrast is not None
    better, differs = _is_better(estimate, more_is_better), tests.p_holm < alpha
    within = contrast.p_equivalence(settings.margin) < alpha
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
    undecided = _undecided(estimate, tests, settings)
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
    estimate: Estimate, tests: _Tests, settings: Comparison
) -> Iterator[ComparisonFinding]:
    """Yield that an arm is ahead by clearly more than the prompt tokens that its tier served can save."""
    alpha, contrast = settings.alpha, estimate.contrast
    if contrast is None or estimate.basis.idle or not tests.p_holm < alpha:
        return
    gain = tier_gain(estimate.sides)
    if gain is None:
        return
    served, most = gain
    low, _ = contrast.interval(1 - alpha)
    if low > most + np.log1p(settings.margin):
        yield new_finding("beyond_the_tier", served=served, most_ln=most)
