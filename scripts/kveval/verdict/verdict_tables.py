"""The campaign's verdicts as tables, the rules that keep a report from known mistakes, and the checks of the rules.

Each rule prevents mistakes that published evaluations of KV-cache offload made. A check is a pure function, marked
`@check(RULES)`, of a level (`levels.checks_level`, `levels.checks_run`, `levels.checks_import`), of a level's system
metrics (`system.checks_system`) or of the campaign's tables (`checks_campaign`). Tests of the report's template check
the report's own sentences. docs/comparisons.md lists all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from kveval.campaign.campaign_file import Comparison
from kveval.campaign.cell import CELL_COLUMNS, Cell
from kveval.estimators.correlations import CORRELATED, correlations_by_model
from kveval.tables.cells import THROUGHPUT
from kveval.tables.levels.outcomes import (
    COLUMNS,
    Check,
    Outcome,
    checks_in,
    facts_text,
    outcomes_of,
    run_checks,
)
from kveval.tables.levels.rows import LEVEL_CHECKS
from kveval.tables.system.metrics import SYSTEM_CHECKS
from kveval.verdict import checks_campaign
from kveval.verdict.averages import averages
from kveval.verdict.verdicts import compare_all

RULES: Mapping[str, str] = {
    "R1": "units and scales come from the recording, and values are physically possible",
    "R2": "cells are identified by their runs' own description, exactly",
    "R3": "system metrics are those of the level's window, with enough samples",
    "R4": "a closed loop obeys its invariants, an open loop its schedule",
    "R5": "averages over models are geometric means of ratios over a balanced panel",
    "R6": "every percentage says of what",
    "R7": "tokens of unfinished requests count, and what was not observed is missing",
    "R8": "rates are steady and quantiles rest on enough observations",
    "R9": "verdicts rest on repeated blocks",
    "R10": "peaks are bracketed and cross-fitted, and comparisons are at a common level",
    "R11": "verdicts are adjusted for their number",
    "R12": "equality is said only where an equivalence test passed",
    "R13": "the workload exercises the feature",
    "R14": "what ran is recorded, and equal configurations are replicates",
    "R15": "sizes of KV caches follow from the model's geometry",
    "R16": "hardware is as probed, and it and the server's build are the same for what is compared",
    "R17": "correlations are within models, with their interval",
    "R18": "sentences claim what verdicts say and no more",
    "R19": "metrics have the names and meanings of their tool's version",
    "R20": "distributions are possible",
    "R21": "no digit is finer than the uncertainty",
    "R22": "the document's counts, links, names and encoding are right",
}

CHECKS: Mapping[str, tuple[Check, ...]] = {
    "level": LEVEL_CHECKS,
    "system": SYSTEM_CHECKS,
    "campaign": checks_in(checks_campaign),
}
"""What is checked -> all functions that are marked as its checks, each with the rules that it enforces."""

_COLUMNS = [
    *CELL_COLUMNS,
    "run",
    "level",
    "severity",
    "rule",
    "check",
    "message",
    "facts",
]


def with_offered(levels: pd.DataFrame, predicted: pd.DataFrame) -> pd.DataFrame:
    """Return levels with the share of their prompt tokens that had come before, as predicted of the requests sent.

    `predicted`: predicted_hits.csv of cells. Without it verdicts go by an expectation, of which few requests differ much.
    """
    keys = [*CELL_COLUMNS, "run", "level"]
    offered = predicted[[*keys, "predicted_offered_ratio"]]
    return levels.merge(offered, on=keys, how="left")


def verdict_tables(
    complete: pd.DataFrame,
    peaks: pd.DataFrame,
    baselines: Mapping[str, str | None],
    settings: Comparison,
    requested_runs: Mapping[Cell, int] | None = None,
) -> dict[str, pd.DataFrame]:
    """Return comparison, contrasts, peak_comparison, averages and checks, by the names of their files.

    `complete` and `peaks`: complete_metrics.csv and peak_throughput_all.csv; `baselines`: scenario -> its baseline;
    `requested_runs`: cell -> the number of runs that the campaign asks for.
    """
    compared = compare_all(complete, baselines, settings, requested_runs=requested_runs)
    means = averages(compared.baseline, settings.alpha)
    related = correlations_by_model(complete, CORRELATED, THROUGHPUT)
    tables = checks_campaign.Tables(
        complete, peaks, *compared, means, related, settings.alpha
    )
    return {
        "comparison": compared.baseline,
        "contrasts": compared.contrasts,
        "peak_comparison": compared.peaks,
        "averages": means,
        "checks": check_table(complete, run_checks(CHECKS["campaign"], tables)),
    }


def rules_of(name: str) -> str:
    """Return the rules that a check enforces, `;`-joined; "" for a check without rules."""
    rules = {
        rule
        for checks in CHECKS.values()
        for check in checks
        if check.name == name
        for rule in check.rules
    }
    return ";".join(rule for rule in RULES if rule in rules)


def check_table(levels: pd.DataFrame, outcomes: Sequence[Outcome] = ()) -> pd.DataFrame:
    """Return checks.csv: a row for every outcome of a level, then those of the campaign's tables (no run, no level)."""
    rows: list[dict[str, Any]] = []
    for level in levels.to_dict("records"):
        place = {name: level[name] for name in (*CELL_COLUMNS, "run", "level")}
        by_severity = sorted(
            outcomes_of(level),
            key=lambda outcome: list(COLUMNS).index(outcome.severity),
        )
        rows += [{**place, **_row(outcome, outcome.message)} for outcome in by_severity]
    for outcome in outcomes:
        place, message = {}, outcome.message
        if isinstance(outcome.where, Cell):
            place = outcome.where.row
        elif outcome.where:
            message = f"{outcome.where}: {message}"
        rows.append({**place, **_row(outcome, message)})
    table = pd.DataFrame(rows, columns=_COLUMNS)
    return table.astype({"cpu_blocks": "Int64", "run": "Int64", "level": "Int64"})


def _row(outcome: Outcome, message: str) -> dict[str, str]:
    rule = rules_of(outcome.code)
    return {
        "severity": outcome.severity,
        "rule": rule,
        "check": outcome.code,
        "message": message,
        "facts": facts_text(outcome.facts),
    }
