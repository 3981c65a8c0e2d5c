"""How many checks were made of what a report rests on, and which of them did not pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kveval.analysis import checks_campaign
from kveval.analysis.levels import checks_import, checks_level, checks_run
from kveval.analysis.levels.outcomes import COLUMNS, Severity, checks_in
from kveval.analysis.system.metrics import SYSTEM_CHECKS
from kveval.campaign.cell import Cell
from kveval.report.data.campaign import (
    Measured,
    ReportPlan,
    abbreviate,
    cell_in_sentence,
    with_cell_labels,
)
from kveval.report.result.checks import check_findings
from kveval.store.run_file import IMPORTED

# The most checks that are named; of the others there is a number.
_MOST = 2


@dataclass(frozen=True)
class CheckCounts:
    """`made`: the checks that apply to what was measured; `failed`, `warned`: a check's name -> how often it did.

    `messages`: the first finding of each, in words; `cells`: where each was found, none for the campaign as a whole;
    `example`: a cell with a level that failed one, None without.
    """

    made: int
    failed: Mapping[str, int]
    warned: Mapping[str, int]
    messages: Mapping[tuple[Severity, str], str] = field(default_factory=dict)
    cells: Mapping[tuple[Severity, str], Sequence[str]] = field(default_factory=dict)
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
        """Yield what failed in words, the command that shows one, and how many others warned, with the most frequent."""
        for name, count in [*self.failed.items()][:_MOST]:
            yield f"[failed](#checks): {self._finding('fail', name, count)}"
        if len(self.failed) > _MOST:
            yield f"{len(self.failed) - _MOST} more [failed](#checks)"
        if self.failed and self.example:
            yield f"what failed, level by level: `kveval show {self.example.path}`"
        others = [name for name in self.warned if name not in self.failed]
        if others:
            often = self._finding("warn", others[0], self.warned[others[0]])
            most = "" if len(others) == 1 else ", the most frequent"
            yield f"{len(others)} [warned](#checks){most}: {often}"

    def _finding(self, severity: Severity, name: str, count: int) -> str:
        """Where a check was found, how often, and the first finding in words; its name where the tables have none."""
        message = self.messages.get((severity, name))
        cells = self.cells.get((severity, name), ())
        where = f"{abbreviate(cells, most=_MOST)}, {_times(count)}: " if cells else ""
        return f"{where}{with_cell_labels(message) if message else f'`{name}`'}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


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
    messages: dict[tuple[Severity, str], str] = {}
    cells: dict[tuple[Severity, str], dict[str, None]] = {}
    for finding in check_findings(measured):
        key = finding.severity, finding.check
        messages.setdefault(key, finding.message)
        if finding.cell is not None:
            cells.setdefault(key, {})[_name(plan, finding.cell.cell)] = None
    where = {key: [*names] for key, names in cells.items()}
    return CheckCounts(made, *counts, messages, where, _example(measured))


def _name(plan: ReportPlan, cell: Cell) -> str:
    """A cell's arm, with its model if there are several."""
    return cell_in_sentence(cell) if len(plan.models_by_size) > 1 else cell.label


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
