"""The words of the verdicts, the conditions for each, and the families in which comparisons are judged together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from kveval.analysis.estimators.intervals import holm, percent
from kveval.analysis.levels.goodput import GOODPUT
from kveval.analysis.statistics import limits_met
from kveval.analysis.statistics.comparison import SINGLE, ComparedCell, idle_reason
from kveval.analysis.statistics.estimates import add_runs_needed, show_interval
from kveval.analysis.statistics.evidence import Evidence, evidence_columns
from kveval.analysis.statistics.inputs import tier_gain
from kveval.load.sample_sizes import MOST_FAILED

BETTER, WORSE, PARITY, INCONCLUSIVE = "better", "worse", "parity", "inconclusive"
WORSE_IDLE, IDLE = "worse although idle", "idle, cost bounded"
"""Of an arm whose tier served next to nothing: what it costs. Never better, because the tier cannot be why."""
IDLE_FAMILY = ", idle"
"""The end of `family` in the comparisons of idle arms, which are adjusted for each other."""
DECIDED = (BETTER, WORSE, PARITY, WORSE_IDLE, IDLE)
VERDICTS = (*DECIDED, INCONCLUSIVE)
INDICATIVE, INDICATIVE_TIME = "indicative", "indicative (measured at another time)"
INDICATIVE_ACTIVITY = "indicative (activity not shown)"
SINGLE_RUN, NOT_ASSESSED, NOT_EXERCISED = (
    "not assessed (single run)",
    "not assessed",
    "not exercised",
)
REPLICATE = "same configuration as the cell it is compared with: a replicate, its difference is noise"
MANY_FAILED = f"more than {100 * MOST_FAILED:g} % of the runs failed, and the others speak too well of their cell"
NO_COST = "what it costs has no verdict"
WITHOUT_VERDICT = (
    INDICATIVE,
    INDICATIVE_TIME,
    INDICATIVE_ACTIVITY,
    SINGLE_RUN,
    NOT_ASSESSED,
    NOT_EXERCISED,
)


def is_of_idle_arm(row: Mapping[Any, Any]) -> bool:
    """Return whether a row of comparison.csv is about what an idle arm costs."""
    return str(row.get("family")).endswith(IDLE_FAMILY)


def verdict(
    entry: ComparedCell, more_is_better: bool, alpha: float, margin: float
) -> tuple[str, str]:
    """Return the verdict of an estimated comparison, and its reason, "" where it needs none.

    A comparison that is only indicative is labelled so, and the word it indicates becomes the row's `indication`. The
    row's `bound` says whether a difference is at least or at most as large as measured.
    """
    obstacle = _obstacle(entry)
    if obstacle is not None:
        return obstacle
    find = _idle_verdict if entry.idle else _active_verdict
    word, reason = find(entry, more_is_better, alpha, margin)
    if word == NOT_EXERCISED:
        return word, reason
    if word in (BETTER, WORSE, WORSE_IDLE):
        side = entry.starvation.bound * (1 if entry.row["effect_percent"] > 0 else -1)
        entry.row["bound"] = {1: "at least", -1: "at most"}.get(side, "")
    weighty = [
        evidence
        for evidence in entry.evidence.values()
        if evidence.severity in ("qualifies", "indicates")
    ]
    reasons = [entry.indicative, *(evidence.reason for evidence in weighty), reason]
    why = "; ".join(filter(None, reasons))
    only = ", ".join(
        evidence.summary for evidence in weighty if evidence.severity == "indicates"
    )
    if not (entry.indicative or only):
        return word, why
    entry.row["indication"] = word
    return f"{INDICATIVE} ({only})" if only else INDICATIVE, why


def _obstacle(entry: ComparedCell) -> tuple[str, str] | None:
    if entry.active is False and not entry.idle:
        return NOT_EXERCISED, entry.evidence["activity"].reason
    if entry.replicate:
        return NOT_ASSESSED, REPLICATE
    if entry.idle and entry.obstacle:
        return NOT_EXERCISED, f"{idle_reason()}; {NO_COST}: {entry.obstacle}"
    if entry.obstacle == SINGLE:
        return SINGLE_RUN, "the spread between runs is unknown"
    return (NOT_ASSESSED, entry.obstacle) if entry.obstacle else None


def _active_verdict(
    entry: ComparedCell, more_is_better: bool, alpha: float, margin: float
) -> tuple[str, str]:
    """Test equivalence first, then difference; else inconclusive, with the runs that a verdict would take."""
    row = entry.row
    barred = [
        evidence.name for evidence in entry.evidence.values() if evidence.bars_parity
    ]
    against = _too_many_failed(entry)
    if row["p_parity_holm"] < alpha and against:
        return INCONCLUSIVE, f"equality is not shown: {MANY_FAILED}"
    if row["p_parity_holm"] < alpha and barred:
        return (
            INCONCLUSIVE,
            f"equality is not shown where {' and '.join(barred)} differ",
        )
    if row["p_parity_holm"] < alpha:
        return PARITY, f"within +-{100 * margin:g} % (TOST)"
    if row["p_holm"] < alpha:
        word, in_favour = (
            (BETTER, "arm")
            if (row["effect_percent"] > 0) == more_is_better
            else (WORSE, "reference")
        )
        if in_favour in against:
            return INCONCLUSIVE, f"{word} is not shown: {MANY_FAILED}"
        return word, ""
    return _undecided(entry, margin)


def _too_many_failed(entry: ComparedCell) -> set[str]:
    """The sides, "arm" and "reference", of which so many runs failed that nothing is claimed in their favour."""
    return {side for evidence in entry.evidence.values() for side in evidence.against}


def _undecided(entry: ComparedCell, margin: float) -> tuple[str, str]:
    row, needed = entry.row, entry.row["runs_to_resolve"]
    how_many = "more than 1,000" if needed is None else str(needed)
    reason = f"{how_many} runs would resolve {100 * margin:g} % at this spread"
    if entry.starvation:
        reason = "the missing load may matter more than the difference: neither a difference nor equality is shown"
    elif needed is not None and needed <= row["runs"]:
        reason = f"shows neither a difference nor one below {100 * margin:g} %; more precision is needed"
    return INCONCLUSIVE, reason


def _idle_verdict(
    entry: ComparedCell, more_is_better: bool, alpha: float, margin: float
) -> tuple[str, str]:
    """Say what an idle arm costs: less than the margin, more than nothing, or undecided; better is no verdict."""
    row, idle = entry.row, idle_reason()
    better = (row["effect_percent"] > 0) == more_is_better
    differs = row["p_holm"] < alpha
    within = entry.contrast is not None and entry.contrast.p_equivalence(margin) < alpha
    if differs and better and not within:
        return (
            NOT_EXERCISED,
            f"{idle}; it measured better, but the tier cannot be why: see what else differs",
        )
    barred = any(evidence.bars_parity for evidence in entry.evidence.values())
    failing = _too_many_failed(entry)
    if row["p_parity_holm"] < alpha and not barred:
        return (
            (INCONCLUSIVE, f"{idle}; {NO_COST}: {MANY_FAILED}")
            if failing
            else (IDLE, idle)
        )
    if differs and not better and "reference" in failing:
        return INCONCLUSIVE, f"{idle}; {WORSE_IDLE} is not shown: {MANY_FAILED}"
    if differs and not better:
        return WORSE_IDLE, idle
    _, reason = _undecided(entry, margin)
    return INCONCLUSIVE, f"{idle}; {reason}"


def _ask_for_the_cost(
    entry: ComparedCell, more_is_better: bool, alpha: float, margin: float
) -> None:
    """Replace the test of equality by the one-sided test that an idle arm costs less than the margin."""
    assert entry.contrast is not None
    low, high = entry.contrast.interval(1 - 2 * alpha)
    entry.row |= {
        "p_parity": entry.contrast.p_cost(margin, more_is_better=more_is_better),
        "cost_percent": max(0.0, -percent(low) if more_is_better else percent(high)),
    }


def _beyond_the_tier(
    entry: ComparedCell, alpha: float, margin: float
) -> Iterator[Evidence]:
    """Yield a qualifier if the arm is ahead by clearly more than the prompt tokens that its tier served can save."""
    if entry.idle or not entry.can_have_verdict or not entry.row["p_holm"] < alpha:
        return
    gain = tier_gain(entry.sides)
    if gain is None or entry.contrast is None:
        return
    served, most = gain
    low, _ = entry.contrast.interval(1 - alpha)
    if low > most + np.log1p(margin):
        share = f"{100 * served:.2g} % of the prompt tokens"
        reason = f"its tier served {share}, which cannot gain more than {percent(most):.2g} %: see what else differs"
        yield Evidence(
            "activity",
            f"the tier alone cannot be why (it served {share})",
            "qualifies",
            reason,
        )


def give_verdicts(
    entries: Sequence[ComparedCell],
    metrics: Mapping[str, bool],
    family: str,
    margin: float,
    alpha: float,
) -> None:
    """Adjust the comparisons of a family for each other, and give each its verdict.

    `metrics`: metric -> True if more is better; `alpha`: the error rate of the family.
    """
    judged = [entry for entry in entries if entry.can_have_verdict]
    for entry in judged:
        if entry.idle:
            _ask_for_the_cost(entry, metrics[entry.row["metric"]], alpha, margin)
    for source, target in (("p_value", "p_holm"), ("p_parity", "p_parity_holm")):
        for entry, adjusted in zip(
            judged, holm([entry.row[source] for entry in judged]), strict=True
        ):
            entry.row[target] = adjusted
    for entry in entries:
        entry.add_evidence(*_beyond_the_tier(entry, alpha, margin))
        entry.row |= {"family": family, **evidence_columns(entry.evidence.values())}
        add_runs_needed(entry, margin, alpha, len(judged))
        if entry.idle:
            entry.row["parity_power_percent"] = np.nan
        more_is_better = metrics[entry.row["metric"]]
        entry.row["verdict"], reason = verdict(entry, more_is_better, alpha, margin)
        stated = (entry.row["verdict"], entry.row["indication"])
        if entry.idle and INCONCLUSIVE in stated:
            entry.row["qualifier"] = "; ".join(
                filter(None, ("idle", entry.row["qualifier"]))
            )
        if PARITY in stated or IDLE in stated:
            # The interval that corresponds to one-sided tests at alpha has confidence 1 - 2 alpha.
            show_interval(entry, 1 - 2 * alpha)
        of_goodput = entry.row["metric"] == GOODPUT and entry.can_have_verdict
        differs = entry.row["verdict"] in (BETTER, WORSE, WORSE_IDLE)
        if of_goodput and differs and limits_met.is_none_met_on_one_side(entry):
            entry.row["bound"] = "at least"
        reasons = [
            reason,
            entry.starvation.text() if entry.can_have_verdict else "",
            limits_met.none_met_text(entry) if of_goodput else "",
            f"without {entry.left_out}" if entry.left_out else "",
        ]
        entry.row["reason"] = "; ".join(filter(None, reasons))


def add_q_values(entries: Sequence[ComparedCell], q: float) -> None:
    """Add the q values over all models of each metric, idle arms apart, and whether each is a discovery at the false
    rate `q`.
    """
    # Imported here because it is very slow, and many modules need only the names defined here.
    from scipy.stats import false_discovery_control  # noqa: PLC0415

    families = dict.fromkeys((entry.row["metric"], entry.idle) for entry in entries)
    for family in families:
        judged = [
            entry
            for entry in entries
            if (entry.row["metric"], entry.idle) == family and entry.can_have_verdict
        ]
        adjusted = (
            false_discovery_control([entry.row["p_value"] for entry in judged])
            if judged
            else []
        )
        for entry, value in zip(judged, map(float, adjusted), strict=True):
            entry.row |= {"q_value": value, "discovery": value < q}
