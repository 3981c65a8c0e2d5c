"""Checks: how many were made of what a report rests on, which of them did not pass, and where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from kveval.campaign.cell import Cell
from kveval.report.result.model import CampaignResult, CheckFinding


@dataclass(frozen=True)
class CheckCounts:
    """The checks of a result: how many apply to what was measured, and the findings of those that did not pass."""

    result: CampaignResult

    @property
    def made(self) -> int:
        """How many checks apply to what was measured."""
        return self.result.checks_made

    @property
    def passed(self) -> int:
        """How many checks neither failed nor warned anywhere."""
        return self.made - len({*self.failed, *self.warned})

    @cached_property
    def failed(self) -> list[str]:
        """The checks that failed, the most frequent first."""
        return self._names("fail")

    @cached_property
    def warned(self) -> list[str]:
        """The checks that warned, the most frequent first."""
        return self._names("warn")

    @property
    def example(self) -> Cell | None:
        """A cell with a level that failed a check, None without."""
        for finding in self.result.checks:
            if finding.severity == "fail" and finding.levels and finding.cell:
                return finding.cell.cell
        return None

    def times(self, severity: str, name: str) -> int:
        """How often a check failed or warned: levels of runs, and parts of the campaign."""
        return _total(self._findings(severity, name))

    def of_levels(self, severity: str, name: str) -> bool:
        """Whether a check is one of levels, each counted in every run that has it."""
        return all(finding.levels for finding in self._findings(severity, name))

    def cells_of(self, severity: str, name: str) -> list[str]:
        """The arms at which a check failed or warned, with their model if there are several."""
        findings = self._findings(severity, name)
        cells = [finding.cell.cell for finding in findings if finding.cell]
        several = len(self.result.common_levels) > 1
        names = (cell.full_label if several else cell.label for cell in cells)
        return [*dict.fromkeys(names)]

    def message(self, severity: str, name: str) -> str:
        """The first finding of a check in words."""
        return self._findings(severity, name)[0].message

    def _findings(self, severity: str, name: str) -> list[CheckFinding]:
        kind = severity, name
        return [
            finding
            for finding in self.result.checks
            if (finding.severity, finding.check) == kind
        ]

    def _names(self, severity: str) -> list[str]:
        counts: dict[str, int] = {}
        for finding in self.result.checks:
            if finding.severity == severity:
                counts[finding.check] = counts.get(finding.check, 0) + finding.count
        return sorted(counts, key=lambda name: counts[name], reverse=True)


@dataclass(frozen=True)
class CheckRemark:
    """A warning or note: its first finding, and how often it was found."""

    first: CheckFinding
    count: int


def check_remarks(result: CampaignResult) -> list[CheckRemark]:
    """Return warnings and notes, each once for levels and once for the campaign's tables."""
    remarks: dict[tuple[str, str, bool], list[CheckFinding]] = {}
    for finding in result.checks:
        if finding.severity != "fail":
            key = (finding.severity, finding.check, not finding.levels)
            remarks.setdefault(key, []).append(finding)
    ordered = [remarks[key] for key in sorted(remarks, reverse=True)]
    return [CheckRemark(alike[0], _total(alike)) for alike in ordered]


def _total(findings: Sequence[CheckFinding]) -> int:
    return sum(finding.count for finding in findings)
