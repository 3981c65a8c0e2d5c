"""The cells of a campaign: what is compared with what, at which level, over which runs.

The only inputs are complete_metrics.csv and the settings.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from kveval.campaign.campaign_file import Comparison
from kveval.campaign.cell import CELL_COLUMNS, Cell
from kveval.store.run_file import IMPORTED
from kveval.tables.cells import THROUGHPUT, partner, tables_by_cell
from kveval.tables.level_selection import (
    SELECTION_COLUMNS,
    OwnPeak,
    comparison_level,
    falls_with_load,
    own_peak,
)
from kveval.tables.levels.checks_level import STARVED
from kveval.tables.levels.goodput import GOODPUT
from kveval.tables.levels.outcomes import FINDINGS
from kveval.verdict import limits_met
from kveval.verdict.comparison import (
    ComparisonBasis,
    Kind,
    Question,
    contrast_pairs,
    findings_of,
    neighbouring_sizes,
)
from kveval.verdict.estimates import configurations, replicate_groups
from kveval.verdict.exclusions import UsableRuns, usable_runs
from kveval.verdict.findings import ComparisonFinding, new_finding
from kveval.verdict.inputs import COLUMNS as INPUT_COLUMNS
from kveval.verdict.pairing import (
    CellRows,
    PairedRuns,
    Pairing,
    Row,
    absent_runs,
    pair_runs,
    run_spans,
)
from kveval.verdict.run_times import BLOCK_PAUSE, find_pauses
from kveval.verdict.sides import without_impossible
from kveval.verdict.uncertainty import COLUMNS

_NEEDED = (
    *(
        *CELL_COLUMNS,
        "run",
        "level",
        THROUGHPUT,
        "exercised",
        "checks_failed",
        "output_tokens",
        "ttft_count",
    ),
    *(
        "requests_completed",
        "rate_req_s",
        "configuration",
        "hardware",
        "run_started",
        "run_finished",
    ),
    *("engine", "not_reached", FINDINGS),
    *(*COLUMNS, *INPUT_COLUMNS, *limits_met.COLUMNS),
)
# The times of imported results are those of the load alone. With the start of a server, which nobody recorded, a run
# takes this long, even if its load took a minute.
_IMPORTED_RUN_S = 1200.0
# What is compared with what.
Pair = tuple[Cell, Cell | None, Kind]


class CampaignCells:
    """The campaign's cells, and cached facts about them."""

    def __init__(
        self,
        complete: pd.DataFrame,
        baselines: Mapping[str, str | None],
        settings: Comparison,
        metrics: Collection[str],
        requested_runs: Mapping[Cell, int] | None = None,
    ) -> None:
        self.settings = settings
        self._requested_runs = requested_runs or {}
        self._baselines = baselines
        complete = limits_met.replace_zero_goodput(complete)
        complete = without_impossible(complete, metrics)
        column_names = {*_NEEDED, *metrics, *(f"{name}_se" for name in metrics)}
        self._tables = tables_by_cell(_columns(complete, SELECTION_COLUMNS))
        self.rows = _rows_of_cells(_columns(complete, column_names))
        self.models = list(dict.fromkeys(cell.model for cell in self._tables))
        self._spans = {
            cell: run_spans(rows.values()) for cell, rows in self.rows.items()
        }
        spans = [span for of_cell in self._spans.values() for span in of_cell.values()]
        imported = any(
            row.get("engine") == IMPORTED
            for rows in self.rows.values()
            for row in rows.values()
        )
        least_s = _IMPORTED_RUN_S if imported else 0.0
        self.pauses = find_pauses(spans, least_s=least_s)
        ends_of_blocks = find_pauses(spans, BLOCK_PAUSE, least_s)
        self._own_peaks: dict[tuple[Cell, str], OwnPeak | None] = {}
        self._levels: dict[tuple[Cell, str], int | None] = {}
        self._pairing = cache(
            lambda arm, reference: pair_runs(
                self._spans[arm], self._spans[reference], ends_of_blocks
            )
        )
        self._configurations = configurations(self.rows)
        self.replicates = replicate_groups(self.rows)

    def questions(self, model: str, metric: str, own_peaks: bool) -> list[Question]:
        """Return what is compared of a model in a metric; of peaks, cells with their baselines alone."""
        pairs = self._pairs(model)
        if own_peaks:
            return [
                Question(arm, reference, "peak", metric)
                for arm, reference, kind in pairs
                if kind == "baseline"
            ]
        return [Question(*pair, metric) for pair in pairs]

    def size_questions(
        self, model: str, metric: str, own_peaks: bool
    ) -> list[Question]:
        """Return the neighbouring sizes of a model's arms that are not in `questions`; of peaks, none."""
        if own_peaks:
            return []
        compared = self._compared_pairs(model)
        cells = (cell for cell in self._tables if cell.model == model)
        return [
            Question(larger, smaller, "sizes", metric)
            for larger, smaller in neighbouring_sizes(cells)
            if {larger, smaller} not in compared
        ]

    def _pairs(self, model: str) -> list[Pair]:
        """Return the pairs of a model's cells: every cell with its baseline, and the declared contrasts."""
        cells = [cell for cell in self._tables if cell.model == model]
        pairs: list[Pair] = [
            (cell, self._baseline(cell), "baseline")
            for cell in cells
            if self._baselines.get(cell.scenario) is not None
        ]
        baselines = {(arm, reference) for arm, reference, _ in pairs}
        for arm_name, reference_name, _ in self.settings.declared_pairs:
            declared = contrast_pairs(cells, arm_name, reference_name)
            pairs += [(*pair, "contrast") for pair in declared if pair not in baselines]
        return pairs

    def _differs(self, arm: Cell, reference: Cell) -> tuple[str, ...]:
        """The settings in which two cells are declared to differ, whichever is compared with the other."""
        return tuple(
            setting
            for names in self.settings.declared_pairs
            for pair in ((arm, reference), (reference, arm))
            if pair in contrast_pairs(pair, *names[:2])
            for setting in names[2]
        )

    def copies(self, model: str, metric: str, own_peaks: bool) -> list[Question]:
        """Return the pairs of a model's cells that ran the same configuration and are not in `questions`."""
        kind: Kind = "peak" if own_peaks else "copies"
        compared = self._compared_pairs(model)
        pairs = (
            pair
            for group in self.replicates
            if group[0].model == model
            for pair in combinations(group, 2)
        )
        return [
            Question(arm, reference, kind, metric)
            for reference, arm in pairs
            if {arm, reference} not in compared
        ]

    def _compared_pairs(self, model: str) -> set[frozenset[Cell | None]]:
        """The pairs of `questions`, in either direction."""
        return {frozenset((arm, reference)) for arm, reference, _ in self._pairs(model)}

    def _baseline(self, cell: Cell) -> Cell | None:
        """Return the baseline of a cell, None if it is missing or not unique."""
        name = self._baselines.get(cell.scenario)
        return partner(
            cell,
            [
                candidate
                for candidate in self._tables
                if candidate.model == cell.model and candidate.scenario == name
            ],
        )

    def _comparison_level(self, cell: Cell, metric: str = THROUGHPUT) -> int | None:
        """The level of all comparisons with `cell` as the reference: the declared one, or its baseline's peak.

        Goodput is compared where the baseline's goodput is best, everything else at the peak of its throughput.
        """
        base, of = (
            self._baseline(cell) or cell,
            GOODPUT if metric == GOODPUT else THROUGHPUT,
        )
        if isinstance(self.settings.level, int):
            return self.settings.level
        if (base, of) not in self._levels:
            others = [
                table
                for candidate, table in self._tables.items()
                if self._baseline(candidate) == base
            ]
            self._levels[base, of] = comparison_level(self._tables[base], others, of)
        return self._levels[base, of]

    def basis(self, question: Question) -> ComparisonBasis:
        """Return the runs that a comparison rests on, and what is found of them.

        They are compared at the level of the baseline's peak, or the declared one; or each cell at its own peak, where
        each run is compared at the level chosen by the other half of the cell's runs.
        """
        arm, reference = question.arm, question.reference
        if reference is None:
            paired = PairedRuns(question.metric, Pairing(()))
            return ComparisonBasis(
                question, None, UsableRuns(paired), (new_finding("no_baseline"),)
            )
        question = replace(question, differs=self._differs(arm, reference))
        level, levels = self._levels_of(question, reference)
        pairing = self._pairing(arm, reference)
        paired = PairedRuns(
            question.metric,
            pairing,
            levels,
            (self.rows[arm], self.rows[reference]),
            self._absent(arm, reference, pairing),
            question.labels,
            with_smaller=arm.scenario == reference.scenario
            and reference.cpu_blocks < arm.cpu_blocks,
            differs=question.differs,
        )
        usable = usable_runs(paired)
        configuration = self._configurations[arm]
        replicate = (
            bool(configuration) and configuration == self._configurations[reference]
        )
        basis = ComparisonBasis(question, level, usable, (), replicate)
        basis = replace(basis, findings=tuple(findings_of(usable, basis.sides)))
        refusing = None if basis.obstacle else next(self._of_the_level(basis), None)
        if refusing is None:
            return basis
        return replace(basis, findings=(*basis.findings, refusing))

    def _levels_of(
        self, question: Question, reference: Cell
    ) -> tuple[int | None, tuple[Mapping[int, int], Mapping[int, int]]]:
        """The level of a comparison, and the level of each run of both cells."""
        arm, metric = question.arm, question.metric
        if question.kind == "peak":
            ours = self._peak(arm, reference, metric)
            theirs = self._peak(reference, arm, metric)
            return ours.level, (ours.by_run, theirs.by_run)
        level = self._comparison_level(reference, metric)
        # Without a level that all could be compared at, the runs say at the highest one what they lack.
        at = level or max(at for _, at in self.rows[reference])
        of_arm = dict.fromkeys(self._spans[arm], at)
        return level, (of_arm, dict.fromkeys(self._spans[reference], at))

    def _of_the_level(self, basis: ComparisonBasis) -> Iterator[ComparisonFinding]:
        """Yield what refuses a comparison of runs that are all right.

        Too few requests were in flight at a level above the cell's peak; or nothing met the limits on either side.
        """
        question, level = basis.question, basis.level
        shortfall = basis.starvation if question.kind != "peak" else None
        if shortfall and level is not None:
            short = (
                (question.arm, shortfall.arm),
                (question.reference, shortfall.reference),
            )
            for cell, share in short:
                if (
                    cell
                    and share > STARVED
                    and falls_with_load(self._tables[cell], int(level), THROUGHPUT)
                ):
                    yield new_finding("past_the_peak")
        if question.metric == GOODPUT:
            without = limits_met.runs_without(basis.sides)
            if sum(without) == 2 * len(basis.sides):
                yield new_finding("limits_never_met")

    def _absent(
        self, arm: Cell, reference: Cell, pairing: Pairing
    ) -> tuple[frozenset[int], frozenset[int]]:
        numbers = self._requested_runs
        requested_runs: tuple[int, int] | None = None
        if arm in numbers and reference in numbers:
            requested_runs = numbers[arm], numbers[reference]
        absent = absent_runs(
            pairing,
            self._spans[arm],
            self._spans[reference],
            requested_runs,
            self.pauses,
        )
        return frozenset(absent[0]), frozenset(absent[1])

    def _peak(self, cell: Cell, other_cell: Cell, metric: str) -> OwnPeak:
        """A cell's own peak; the other cell's peak for a cell in which nothing met the limits at any level."""
        if peak := self._own_peak(cell, metric):
            return peak
        if other_peak := self._own_peak(other_cell, metric):
            level = other_peak.level or 0
            return OwnPeak(level, dict.fromkeys(self._spans[cell], level))
        return OwnPeak(None, {})

    def _own_peak(self, cell: Cell, metric: str) -> OwnPeak | None:
        """A cell's own peak; None for goodput where nothing met the limits: no level is the best then."""
        if (cell, metric) not in self._own_peaks:
            table = self._tables[cell]
            some = metric in table and (
                metric == THROUGHPUT or bool((table["goodput_met"] > 0).any())
            )
            self._own_peaks[cell, metric] = own_peak(table, metric) if some else None
        return self._own_peaks[cell, metric]


def _columns(table: pd.DataFrame, names: Collection[str]) -> pd.DataFrame:
    return table[[name for name in table if name in names]]


def _rows_of_cells(table: pd.DataFrame) -> Mapping[Cell, CellRows]:
    rows: dict[Cell, dict[tuple[int, int], Row]] = {}
    names = [str(name) for name in table]
    for values in zip(*(_plain_values(table[name]) for name in names), strict=True):
        row = dict(zip(names, values, strict=True))
        of_cell = rows.setdefault(Cell.from_row(row), {})
        of_cell[int(row["run"]), int(row["level"])] = row
    return rows


def _plain_values(column: pd.Series[Any]) -> list[Any]:
    """The values of a column as Python's own, never numpy's."""
    values: list[Any] = column.tolist()
    if column.dtype != object:
        return values
    return [
        value.item() if isinstance(value, np.generic) else value for value in values
    ]
