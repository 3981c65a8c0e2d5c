"""The basis of the verdict of a comparison, as the result of a campaign lists it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kveval.report.data.campaign import text_or_blank
from kveval.report.result.model import ReportedFinding
from kveval.verdict.codes import INPUTS
from kveval.verdict.findings import read_findings


def basis_of(row: Mapping[Any, Any]) -> dict[str, str]:
    """Return input -> what is known of it, of a row of comparison.csv."""
    return {name: text_or_blank(row[f"basis_{name}"]) for name in INPUTS}


def findings_of(row: Mapping[Any, Any]) -> list[ReportedFinding]:
    """Return the findings on inputs in a row of comparison.csv: those that are not sound, and grounds of the verdict."""
    return [
        ReportedFinding(
            input=finding.input,
            code=finding.code,
            severity=finding.severity,
            facts=dict(finding.facts),
        )
        for finding in read_findings(row)
        if finding.input
    ]
