"""Findings of checks, as the result of a campaign lists them."""

from __future__ import annotations

from collections.abc import Sequence

from kveval.analysis.levels.outcomes import outcomes_of
from kveval.campaign.cell import Cell
from kveval.report.data.campaign import Measured
from kveval.report.result.model import CheckFinding


def check_findings(measured: Measured) -> list[CheckFinding]:
    """Return what checks found: of levels by check and cell, as they come; then of the campaign's tables."""
    of_levels: dict[tuple[str, str, Cell], list[tuple[int, int, str]]] = {}
    for row in measured.levels.to_dict("records"):
        for outcome in outcomes_of(row):
            key = (outcome.code, outcome.severity, Cell.from_row(row))
            where = (int(row["run"]), int(row["level"]), outcome.message)
            of_levels.setdefault(key, []).append(where)
    findings = [_check_finding(*key, at) for key, at in of_levels.items()]
    checks = measured.checks
    of_tables = checks[checks["level"].isna()] if len(checks) else checks
    for row in of_tables.to_dict("records"):
        cell = Cell.from_row(row) if isinstance(row["model"], str) else None
        at = [(0, 0, str(row["message"]))]
        findings.append(_check_finding(row["check"], row["severity"], cell, at))
    return findings


def _check_finding(
    check: str, severity: str, cell: Cell | None, at: Sequence[tuple[int, int, str]]
) -> CheckFinding:
    """The finding of a check; `at`: run, level and message of each outcome, 0 for one of the campaign's tables."""
    return CheckFinding.model_validate(
        {
            "check": check,
            "severity": severity,
            "cell": cell and cell.row,
            "runs": sorted({run for run, _, _ in at} - {0}),
            "levels": sorted({level for _, level, _ in at} - {0}),
            "count": len(at),
            "message": at[0][2],
            "messages": len({message for _, _, message in at}),
        }
    )
