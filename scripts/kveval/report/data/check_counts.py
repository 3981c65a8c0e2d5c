"""How many checks were made of what a report rests on, and which of them did not pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kveval.analysis import checks_campaign
from kveval.analysis.levels import checks_import, checks_level, checks_run
from kveval.analysis.levels.outcomes import COLUMNS, Severity, checks_in
from kveval.analysis.system.metrics import SYSTEM_CHECKS
from kveval.campaign.cell import Cell
from kveval.host.findings import pluralize
from kveval.report.data.campaign import Measured, ReportPlan
from kveval.store.run_file import IMPORTED


@dataclass(frozen=True)
class CheckCounts:
    """`made`: the checks that apply to what was measured; `failed`, `warned`: a check's name -> how often it did.

    `example`: a cell with a level that failed one, None without.
    """

    made: int
    failed: Mapping[str, int]
    warned: Mapping[str, int]
    example: Cell | None = None

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
        """Yield what failed, with the number of times and the command that shows one, and how many others warned."""
        names = [
            f"`{name}` {pluralize(count, 'time')}"
            for name, count in self.failed.items()
        ]
        if names:
            where = f"; `kveval show {self.example.path}`" if self.example else ""
            yield f"failed: {', '.join(names)}{where}"
        if others := {*self.warned} - {*self.failed}:
            yield f"{len(others)} [warned](#checks)"


def check_counts(plan: ReportPlan, measured: Measured) -> CheckCounts:
    """Return the counts over all levels of all runs, and over the campaign's tables."""
    levels = measured.levels
    made = len(checks_in(checks_level, checks_run))
    if any(run.engine == IMPORTED for run in measured.runs):
        made += len(checks_in(checks_import))
    recorded = [name for name in plan.metrics if name in levels]
    if levels[recorded].notna().to_numpy().any():
        made += len(SYSTEM_CHECKS)
    if "check" in measured.checks:
        made += len(checks_in(checks_campaign))
    counts = _counts(measured, "fail"), _counts(measured, "warn")
    return CheckCounts(made, *counts, _example(measured))


def _example(measured: Measured) -> Cell | None:
    column = COLUMNS["fail"]
    if column not in measured.levels:
        return None
    failed = measured.levels[measured.levels[column].fillna("") != ""]
    return Cell.from_row(failed.iloc[0].to_dict()) if len(failed) else None


def _counts(measured: Measured, severity: Severity) -> dict[str, int]:
    """How many levels of runs, and parts of the campaign, have an outcome of each check; the most frequent first."""
    counts: Counter[str] = Counter()
    column = COLUMNS[severity]
    if column in measured.levels:
        for names in measured.levels[column].fillna(""):
            counts.update(filter(None, str(names).split(";")))
    if "check" in measured.checks:
        table = measured.checks
        of_campaign = table[table["level"].isna() & (table["severity"] == severity)]
        counts.update(of_campaign["check"].astype(str))
    return dict(counts.most_common())
