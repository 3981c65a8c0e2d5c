"""Findings on a comparison, as codes with facts: on the inputs of a verdict, what keeps it from one, its grounds.

`codes.CODES` is the complete list, with the words; docs/verdicts.md shows it. Whatever is decided follows a code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from kveval.host.findings import Finding
from kveval.tables.cells import parse_names
from kveval.verdict.codes import CODES, SEVERITIES, Severity
from kveval.verdict.exclusions import Exclusion


@dataclass(frozen=True)
class ComparisonFinding(Finding):
    """A finding on a comparison; `code`: one of CODES, `severity`: its effect on the verdict."""

    severity: Severity

    @property
    def input(self) -> str:
        """The input that it is found of, "" for none."""
        return CODES[self.code].input

    @property
    def weight(self) -> int:
        """The rank of the severity."""
        return SEVERITIES.index(self.severity)

    @property
    def bars_parity(self) -> bool:
        """Whether it rules out a verdict of parity."""
        return bool(self.facts.get("bars_parity"))

    @property
    def against(self) -> tuple[str, ...]:
        """The sides in whose favour it rules out a verdict, of "arm" and "reference"."""
        return tuple(self.facts.get("against", ()))


def new_finding(code: str, **facts: Any) -> ComparisonFinding:
    """Return a finding with the severity that its code has."""
    return ComparisonFinding(code, CODES[code].severity, facts)


def by_input(findings: Iterable[ComparisonFinding]) -> dict[str, ComparisonFinding]:
    """Return the findings of inputs by input, each input once: of several the first among the most severe."""
    strongest: dict[str, ComparisonFinding] = {}
    for finding in findings:
        known = strongest.get(finding.input)
        if finding.input and (known is None or finding.weight > known.weight):
            strongest[finding.input] = finding
    return strongest


def obstacle(findings: Iterable[ComparisonFinding]) -> ComparisonFinding | None:
    """Return what keeps a comparison from a verdict, None if nothing does: of several, the one found last.

    What is found last is the most fundamental: too few usable runs come first, wrong answers and unknown values last.
    """
    seen: dict[str, ComparisonFinding] = {}
    last = None
    for finding in findings:
        known = seen.get(finding.input) if finding.input else None
        if known is None or finding.weight > known.weight:
            seen[finding.input] = finding
            last = finding if finding.severity == "refuses" else last
    return last


def records_json(records: Iterable[ComparisonFinding] | Iterable[Exclusion]) -> str:
    """Return findings or exclusions as a cell of comparison.csv, "" for none."""
    listed = [*records]
    return msgspec.json.encode(listed).decode() if listed else ""


def read_findings(row: Mapping[Any, Any]) -> list[ComparisonFinding]:
    """Return the findings in a row of comparison.csv: those that are not sound, and the grounds of the verdict.

    Raises msgspec.DecodeError for a cell that `records_json` did not make.
    """
    text = row.get("findings")
    if not isinstance(text, str) or not text:
        return []
    return msgspec.json.decode(text, type=list[ComparisonFinding])


def read_exclusions(row: Mapping[Any, Any]) -> list[Exclusion]:
    """Return the exclusions in a row of comparison.csv.

    Raises msgspec.DecodeError for a cell that `records_json` did not make.
    """
    text = row.get("exclusions")
    if not isinstance(text, str) or not text:
        return []
    return msgspec.json.decode(text, type=list[Exclusion])


def ground_codes(row: Mapping[Any, Any]) -> list[str]:
    """Return the codes of the grounds of a verdict, or of none, in a row of comparison.csv."""
    return parse_names(row.get("grounds"))
