"""Findings of checks, and how many were made, as the result of a campaign lists them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kveval.campaign.cell import Cell
from kveval.report.data.campaign import Measured, ReportPlan
from kveval.report.result.model import CheckFinding, known_facts
from kveval.store.run_file import IMPORTED
from kveval.tables.levels import checks_import, checks_level, checks_run
from kveval.tables.levels.outcomes import checks_in, outcomes_of, read_facts
from kveval.tables.system.metrics import SYSTEM_CHECKS
from kveval.verdict import checks_campaign


class _At(NamedTuple):
    """An outcome of a check in a run and at a level, 0 for one of the campaign's tables."""

    run: int
    level: int
    message: str
    facts: Mapping[str, Any]


def check_findings(measured: Measured) -> list[CheckFinding]:
    """Return what checks found: of levels by check and cell, as they come; then of the campaign's tables."""
    of_levels: dict[tuple[str, str, Cell], list[_At]] = {}
    for row in measured.levels.to_dict("records"):
        for outcome in outcomes_of(row):
            key = (outcome.code, outcome.severity, Cell.from_row(row))
            run, level = int(row["run"]), int(row["level"])
            at = _At(run, level, outcome.message, outcome.facts)
            of_levels.setdefault(key, []).append(at)
    findings = [_check_finding(*key, places) for key, places in of_levels.items()]
    checks = measured.checks
    of_tables = checks[checks["level"].isna()] if len(checks) else checks
    for row in of_tables.to_dict("records"):
        cell = Cell.from_row(row) if isinstance(row["model"], str) else None
        at = _At(0, 0, str(row["message"]), read_facts(row["facts"]))
        findings.append(_check_finding(row["check"], row["severity"], cell, [at]))
    return findings


def _check_finding(
    check: str, severity: str, cell: Cell | None, places: Sequence[_At]
) -> CheckFinding:
    """The finding of a check, with the message and facts of the first of its outcomes."""
    return CheckFinding.model_validate(
        {
            "check": check,
            "severity": severity,
            "cell": cell and cell.row,
            "runs": sorted({at.run for at in places} - {0}),
            "levels": sorted({at.level for at in places} - {0}),
            "count": len(places),
            "message": places[0].message,
            "facts": known_facts(places[0].facts),
            "messages": len({at.message for at in places}),
        }
    )


def checks_made(plan: ReportPlan, measured: Measured) -> int:
    """Return how many checks apply to what was measured."""
    levels = measured.levels
    made = len(checks_in(checks_level, checks_run))
    if any(run.engine == IMPORTED for run in measured.runs):
        made += len(checks_in(checks_import))
    recorded = [name for name in plan.metrics if name in levels]
    if levels[recorded].notna().to_numpy().any():
        made += len(SYSTEM_CHECKS)
    if "check" in measured.checks:
        made += len(checks_in(checks_campaign))
    return made
