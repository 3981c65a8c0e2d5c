"""The words of the verdicts, the conditions for each, and the families in which comparisons are judged together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kveval.analysis.estimators.intervals import holm
from kveval.analysis.levels.goodput import GOODPUT
from kveval.analysis.statistics import limits_met
from kveval.analysis.statistics.comparison import SINGLE, ComparedCell
from kveval.analysis.statistics.estimates import plan_runs, show_interval
from kveval.analysis.statistics.evidence import columns as evidence_columns
from kveval.load.enough import MOST_FAILED

BETTER, WORSE, PARITY, INCONCLUSIVE = "better", "worse", "parity", "inconclusive"
DECIDED = (BETTER, WORSE, PARITY)
VERDICTS = (*DECIDED, INCONCLUSIVE)
INDICATIVE, INDICATIVE_TIME = "indicative", "indicative (measured at another time)"
INDICATIVE_ACTIVITY = "indicative (activity not shown)"
SINGLE_RUN, NOT_ASSESSED, NOT_EXERCISED = "not assessed (single run)", "not assessed", "not exercised"
REPLICATE = "same configuration as the cell it is compared with: a replicate, its difference is noise"
MANY_FAILED = f"more than {100 * MOST_FAILED:g} % of the runs failed, and the others speak too well of their cell"
WITHOUT_VERDICT = (INDICATIVE, INDICATIVE_TIME, INDICATIVE_ACTIVITY, SINGLE_RUN, NOT_ASSESSED, NOT_EXERCISED)


def verdict(entry: ComparedCell, more_is_better: bool, alpha: float, margin: float) -> tuple[str, str]:
    """Return the verdict of an estimated comparison, and its reason, "" where it needs none.

    A comparison that is only indicative is labelled so, and the word it indicates becomes the row's `indication`. The
    row's `bound` says whether a difference is at least or at most as large as measured.
    """
    obstacle = _obstacle(entry)
    if obstacle is not None:
        return obstacle
    word, reason = _word(entry, more_is_better, alpha, margin)
    if word in (BETTER, WORSE):
        side = entry.starvation.bound * (1 if entry.row["effect_percent"] > 0 else -1)
        entry.row["bound"] = {1: "at least", -1: "at most"}.get(side, "")
    weighty = [found for found in entry.evidence.values() if found.severity in ("qualifies", "indicates")]
    why = "; ".join(part for part in (entry.indicative, *(found.reason for found in weighty), reason) if part)
    only = ", ".join(found.says for found in weighty if found.severity == "indicates")
    if not (entry.indicative or only):
        return word, why
    entry.row["indication"] = word
    return f"{INDICATIVE} ({only})" if only else INDICATIVE, why


def _obstacle(entry: ComparedCell) -> tuple[str, str] | None:
    if entry.exercised is False:
        return NOT_EXERCISED, entry.evidence["activity"].reason
    if entry.replicate:
        return NOT_ASSESSED, REPLICATE
    if entry.obstacle == SINGLE:
        return SINGLE_RUN, "the spread between runs is unknown"
    return (NOT_ASSESSED, entry.obstacle) if entry.obstacle else None


def _word(entry: ComparedCell, more_is_better: bool, alpha: float, margin: float) -> tuple[str, str]:
    """Test equivalence first, then difference; else inconclusive, with the runs that a verdict would take."""
    row = entry.row
    barred = [found.name for found in entry.evidence.values() if found.bars_parity]
    against = {side for found in entry.evidence.values() for side in found.against}
    if row["p_parity_holm"] < alpha and against:
        return INCONCLUSIVE, f"equality is not shown: {MANY_FAILED}"
    if row["p_parity_holm"] < alpha and barred:
        return INCONCLUSIVE, f"equality is not shown where {' and '.join(barred)} differ"
    if row["p_parity_holm"] < alpha:
        return PARITY, f"within +-{100 * margin:g} % (TOST)"
    if row["p_holm"] < alpha:
        word, in_favour = (BETTER, "arm") if (row["effect_percent"] > 0) == more_is_better else (WORSE, "reference")
        if in_favour in against:
            return INCONCLUSIVE, f"{word} is not shown: {MANY_FAILED}"
        return word, ""
    needed = row["runs_to_resolve"]
    how_many = "more than 1,000" if needed is None else str(needed)
    reason = f"{how_many} runs would resolve {100 * margin:g} % at this spread"
    if entry.starvation:
        reason = "the missing load may matter more than the difference: neither a difference nor equality is shown"
    elif needed is not None and needed <= row["runs"]:
        reason = f"shows neither a difference nor one below {100 * margin:g} %; more precision is needed"
    return INCONCLUSIVE, reason


def judge(
    entries: Sequence[ComparedCell], metrics: Mapping[str, bool], family: str, margin: float, alpha: float
) -> None:
    """Adjust the comparisons of a family for each other, and give each its verdict.

    `metrics`: metric -> True if more is better; `alpha`: the error rate of the family.
    """
    judged = [entry for entry in entries if entry.judged]
    for source, target in (("p_value", "p_holm"), ("p_parity", "p_parity_holm")):
        for entry, adjusted in zip(judged, holm([entry.row[source] for entry in judged]), strict=True):
            entry.row[target] = adjusted
    for entry in entries:
        entry.row |= {"family": family, **evidence_columns(entry.evidence.values())}
        plan_runs(entry, margin, alpha, len(judged))
        more_is_better = metrics[entry.row["metric"]]
        entry.row["verdict"], reason = verdict(entry, more_is_better, alpha, margin)
        if PARITY in (entry.row["verdict"], entry.row["indication"]):
            # The interval that corresponds to two one-sided tests at alpha has confidence 1 - 2 alpha.
            show_interval(entry, 1 - 2 * alpha)
        remarks = [entry.starvation.text() if entry.judged else ""]
        if entry.row["metric"] == GOODPUT and entry.judged:
            remarks.append(limits_met.none_met(entry))
            if limits_met.one_side_only(entry) and entry.row["verdict"] in (BETTER, WORSE):
                entry.row["bound"] = "at least"
        remarks.append(f"without {entry.left_out}" if entry.left_out else "")
        entry.row["reason"] = "; ".join(part for part in (reason, *remarks) if part)


def overview(entries: Sequence[ComparedCell], q: float) -> None:
    """Add the q values over all models of each metric, and whether each is a discovery at the false rate `q`."""
    # Imported here because it is very slow, and many modules need only the names defined here.
    from scipy.stats import false_discovery_control  # noqa: PLC0415

    for metric in dict.fromkeys(entry.row["metric"] for entry in entries):
        judged = [entry for entry in entries if entry.row["metric"] == metric and entry.judged]
        adjusted = false_discovery_control([entry.row["p_value"] for entry in judged]) if judged else []
        for entry, value in zip(judged, map(float, adjusted), strict=True):
            entry.row |= {"q_value": value, "discovery": value < q}
