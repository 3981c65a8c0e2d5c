"""The rows of comparison.csv, contrasts.csv and peak_comparison.csv, made from verdicts: here they become words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from kveval.campaign.cell import CELL_COLUMNS
from kveval.estimators.intervals import percent
from kveval.verdict import wording
from kveval.verdict.codes import INPUTS
from kveval.verdict.comparison import ComparisonBasis, ComparisonVerdict
from kveval.verdict.exclusions import Exclusion
from kveval.verdict.findings import (
    ComparisonFinding,
    by_input,
    records_json,
)
from kveval.verdict.verdict_words import INCONCLUSIVE
from kveval.verdict.wording import SideNames

_COLUMNS = [
    *(
        *CELL_COLUMNS,
        "metric",
        "level",
        "baseline",
        "effect_percent",
        "low_percent",
        "high_percent",
    ),
    *("interval_percent", "bound", "cost_percent"),
    *("p_value", "p_parity", "family", "p_holm", "p_parity_holm"),
    *("verdict", "qualifier", "indication", "reason"),
    *("grounds", "findings", "exclusions"),
    *("runs", "runs_kept", "baseline_runs_kept", "mean", "baseline_mean"),
    *("sd_percent", "runs_to_decide", "runs_to_resolve", "parity_power_percent"),
    "margin_percent",
    *("levels_compared", "replicate", "method_hash"),
    *(f"basis_{name}" for name in INPUTS),
]


def comparison_table(
    verdicts: Sequence[ComparisonVerdict], margin: float, method: str
) -> pd.DataFrame:
    """Return verdicts as a table; `margin`: that of the tests of equality, `method`: the hash of the method."""
    rows = [{**_row(verdict, margin), "method_hash": method} for verdict in verdicts]
    return pd.DataFrame(rows, columns=_COLUMNS)


def _row(verdict: ComparisonVerdict, margin: float) -> dict[str, Any]:
    question, basis = verdict.question, verdict.estimate.basis
    return {
        **question.arm.row,
        "metric": question.metric,
        "level": basis.level,
        "baseline": question.reference.path if question.reference else "",
        **_effect(verdict, margin),
        **_judgement(verdict),
        **_kept(basis),
        "margin_percent": 100 * margin,
        "replicate": basis.replicate,
    }


def _effect(verdict: ComparisonVerdict, margin: float) -> dict[str, Any]:
    """The effect of a comparison with its interval and tests."""
    estimate, contrast = verdict.estimate, verdict.estimate.contrast
    columns: dict[str, Any] = {"bound": verdict.bound, "family": verdict.family}
    if estimate.effect_ln is not None:
        columns["effect_percent"] = percent(estimate.effect_ln)
    if contrast is None:
        return columns
    low, high = contrast.interval(verdict.confidence)
    p_parity = verdict.p_parity
    return {
        **columns,
        "low_percent": percent(low),
        "high_percent": percent(high),
        "interval_percent": 100 * verdict.confidence,
        "cost_percent": verdict.cost_percent,
        "p_value": verdict.p_value,
        "p_parity": contrast.p_equivalence(margin) if np.isnan(p_parity) else p_parity,
        "p_holm": verdict.p_holm,
        "p_parity_holm": verdict.p_parity_holm,
        "sd_percent": 100 * estimate.sd,
        "runs_to_decide": verdict.runs_to_decide,
        "runs_to_resolve": verdict.runs_to_resolve,
        "parity_power_percent": verdict.parity_power,
    }


def _judgement(verdict: ComparisonVerdict) -> dict[str, Any]:
    """The verdict with its grounds, as codes and in words."""
    judgement, estimate = verdict.judgement, verdict.estimate
    inputs, basis = by_input(estimate.findings), estimate.basis
    names = SideNames(verdict.question.labels, _left_out(basis, _together(basis)))
    qualifiers = [
        wording.summary(finding, names)
        for finding in inputs.values()
        if finding.severity == "qualifies"
    ]
    if basis.idle and INCONCLUSIVE in (judgement.word, judgement.indication):
        qualifiers.insert(0, "idle")
    stated = _left_out(basis, basis.stated_exclusions)
    reasons = [
        wording.reasons_text(judgement.grounds, names),
        f"without {stated}" if stated else "",
    ]
    columns = {f"basis_{name}": _basis_text(inputs.get(name), names) for name in INPUTS}
    return columns | {
        "verdict": judgement.word,
        "qualifier": "; ".join(qualifiers),
        "indication": judgement.indication,
        "reason": "; ".join(filter(None, reasons)),
        "grounds": ";".join(finding.code for finding in judgement.grounds),
        "findings": records_json(_telling(verdict)),
        "exclusions": records_json(basis.usable.exclusions),
    }


def _telling(verdict: ComparisonVerdict) -> Iterator[ComparisonFinding]:
    """Yield the grounds of a verdict, and what else is not sound, each once."""
    grounds = verdict.judgement.grounds
    yield from grounds
    for finding in by_input(verdict.estimate.findings).values():
        if finding.severity != "sound" and finding not in grounds:
            yield finding


def _basis_text(finding: ComparisonFinding | None, names: SideNames) -> str:
    """An input in a few words, after its effect on the verdict if it is not sound."""
    if finding is None:
        return ""
    text = wording.summary(finding, names)
    return text if finding.severity == "sound" else f"{finding.severity}: {text}"


def _together(basis: ComparisonBasis) -> list[Exclusion]:
    """The exclusions of runs that were measured together with those of the other cell."""
    return [
        exclusion
        for exclusion in basis.usable.exclusions
        if exclusion.code != "other_time"
    ]


def _left_out(basis: ComparisonBasis, exclusions: Sequence[Exclusion]) -> str:
    """Exclusions in words. The runs of a pair may have other numbers on the other side."""
    usable = basis.usable
    by_number = usable.paired.pairing.by_number
    both = [pair.reference_run for pair in usable.with_values] if by_number else []
    return wording.exclusions_text(exclusions, basis.question.labels, both)


def _kept(basis: ComparisonBasis) -> dict[str, Any]:
    """The runs that a comparison rests on, and the geometric means over them, whose ratio is the effect."""
    sides = basis.sides
    columns: dict[str, Any] = {
        "runs": len(sides),
        "levels_compared": ";".join(map(str, basis.levels_compared)),
    }
    for side, rows, logs in zip(
        ("baseline_", ""), (sides.reference, sides.arm), sides.logs, strict=True
    ):
        columns[f"{side}runs_kept"] = ";".join(str(row["run"]) for row in rows)
        columns[f"{side}mean"] = float(np.exp(logs.mean())) if len(rows) else np.nan
    return columns
