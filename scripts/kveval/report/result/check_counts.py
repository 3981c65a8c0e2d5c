"""How many checks were made of what a report rests on, and which of them did not pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kveval.campaign.cell import Cell
from kveval.report.data.campaign import (
    Measured,
    ReportPlan,
    abbreviate,
)
from kveval.report.result.model import CampaignResult, CheckFinding
from kveval.store.run_file import IMPORTED
from kveval.tables.levels import checks_import, checks_level, checks_run
from kveval.tables.levels.outcomes import Severity, checks_in
from kveval.tables.system.metrics import SYSTEM_CHECKS
from kveval.verdict import checks_campaign

# The most checks that are named; of the others there is a number.
_MOST = 2


@dataclass(frozen=True)
class CheckCounts:
    """`made`: how many checks apply to what was measured; `findings`: what did not pass; `models`: how many there are."""

    made: int
    findings: Sequence[CheckFinding]
    models: int = 1

    @property
    def failed(self) -> dict[str, int]:
        """A check's name -> how often it failed; the most frequent first."""
        return self._times("fail")

    @property
    def warned(self) -> dict[str, int]:
        """A check's name -> how often it warned; the most frequent first."""
        return self._times("warn")

    @property
    def passed(self) -> int:
        """How many checks neither failed nor warned anywhere."""
        return self.made - len({*self.failed, *self.warned})

    @property
    def in_words(self) -> str:
        """The number of those that passed, such as "all 61 checks passed"."""
        if self.passed == self.made:
            return f"all {self.made} checks passed"
        return f"{self.passed} of {self.made} checks passed"

    def remarks(self) -> Iterator[str]:
        """Yield what failed in words, the command that shows one, and how many others warned, with the most frequent."""
        failed, warned = self.failed, self.warned
        for name in [*failed][:_MOST]:
            yield f"[failed](#checks): {self._finding('fail', name)}"
        if len(failed) > _MOST:
            yield f"{len(failed) - _MOST} more [failed](#checks)"
        if example := self._example():
            yield f"what failed, level by level: `kveval show {example.path}`"
        others = [name for name in warned if name not in failed]
        if others:
            often = self._finding("warn", others[0])
            most = "" if len(others) == 1 else ", the most frequent"
            yield f"{len(others)} [warned](#checks){most}: {often}"

    def _times(self, severity: Severity) -> dict[str, int]:
        """How many levels of runs, and parts of the campaign, each check was found at."""
        counts: Counter[str] = Counter()
        for finding in self.findings:
            if finding.severity == severity:
                counts[finding.check] += finding.count
        return dict(counts.most_common())

    def _example(self) -> Cell | None:
        """A cell with a level that failed a check, None without."""
        for finding in self.findings:
            if finding.severity == "fail" and finding.levels and finding.cell:
                return finding.cell.cell
        return None

    def _finding(self, severity: Severity, name: str) -> str:
        """Where a check was found, how often, and the first finding in words."""
        kind = severity, name
        found = [each for each in self.findings if (each.severity, each.check) == kind]
        cells = [self._name(each.cell.cell) for each in found if each.cell]
        count = sum(each.count for each in found)
        named = abbreviate([*dict.fromkeys(cells)], most=_MOST)
        where = f"{named}, {_times_in_words(count)}: " if cells else ""
        return f"{where}{found[0].message}"

    def _name(self, cell: Cell) -> str:
        """A cell's arm, with its model if there are several."""
        return cell.full_label if self.models > 1 else cell.label


def _times_in_words(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def check_counts(result: CampaignResult) -> CheckCounts:
    """Return the counts over all levels of all runs, and over the campaign's tables."""
    return CheckCounts(result.checks_made, result.checks, len(result.common_levels))


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
