"""All comparisons of a campaign: is a scenario better, worse, at parity, or is the result inconclusive?

Every comparison is a difference of logarithms between two cells of a model at one common level, over runs as blocks:
all cells were measured once per block, in random order within it. One comparison is one row; a row without a verdict
gives the reason. The only inputs are complete_metrics.csv and the settings.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from kveval.analysis.cells import THROUGHPUT, partner, tables_by_cell
from kveval.analysis.estimators.intervals import Contrast
from kveval.analysis.levels.checks_level import STARVED
from kveval.analysis.levels.goodput import GOODPUT
from kveval.analysis.levels.outcomes import MESSAGES
from kveval.analysis.statistics import limits_met
from kveval.analysis.statistics.comparison import (
    NO_BASELINE,
    PAST_THE_PEAK,
    SINGLE,
    CellRows,
    ComparedCell,
    Kind,
    collect_values,
    contrast_pairs,
    refuse_unknown_latencies,
)
from kveval.analysis.statistics.estimates import (
    configurations,
    estimate,
    pooled_spread,
    replicate_groups,
    widen_by_copies,
    write_estimate,
)
from kveval.analysis.statistics.evidence import NAMES, Sides
from kveval.analysis.statistics.inputs import COLUMNS as INPUT_COLUMNS
from kveval.analysis.statistics.level_selection import (
    OwnPeak,
    comparison_level,
    falls_with_load,
    own_peak,
)
from kveval.analysis.statistics.pairing import (
    Pairing,
    absent_runs,
    pair_runs,
    run_spans,
)
from kveval.analysis.statistics.run_times import find_pauses
from kveval.analysis.statistics.uncertainty import COLUMNS
from kveval.analysis.statistics.verdicts import IDLE_FAMILY, add_q_values, give_verdicts
from kveval.campaign.campaign_file import Comparison
from kveval.campaign.cell import CELL_COLUMNS, Cell
from kveval.host.hashing import content_hash

METHOD = 5
"""Version of the comparison method; part of the method's hash, raised when verdicts may change."""
# Metric -> True if more is better.
METRICS: dict[str, bool] = {
    THROUGHPUT: True,
    "ttft_ms_p50": False,
    "ttft_ms_p90": False,
    "tpot_ms_p50": False,
    "itl_ms_p50": False,
    "e2e_ms_p50": False,
    "e2e_ms_p90": False,
}


def method_hash(settings: Comparison) -> str:
    """Return 12 hex digits that change with anything that may change a verdict on the same data."""
    facts = {"method": METHOD, "metrics": METRICS, "settings": settings.model_dump()}
    return content_hash(facts, 12, spaced=True)


class Comparisons(NamedTuple):
    """Cells against their baselines, declared contrasts, and peaks against the baselines' peaks; with equal columns."""

    baseline: pd.DataFrame
    contrasts: pd.DataFrame
    peaks: pd.DataFrame


def compare_all(
    complete: pd.DataFrame,
    baselines: Mapping[str, str | None],
    settings: Comparison | None = None,
    metrics: Mapping[str, bool] | None = None,
    requested_runs: Mapping[Cell, int] | None = None,
) -> Comparisons:
    """Compare every cell with its baseline and every declared pair, at a common level; then peaks with peaks.

    `complete`: the rows of complete_metrics.csv. `baselines`: scenario -> the scenario it is compared with, None for
    a baseline itself. The baseline's cell is that of the same model with the same cpu_blocks, else the only one.
    Effects are per cent of the reference. For the primary metric `p_holm` is adjusted over all comparisons of all
    models, else over those of one model and metric. `q_value` is over all models of a metric (Benjamini, Hochberg).
    `metrics`: by default METRICS, and goodput where the levels have it. `requested_runs`: the number of runs that the
    campaign asks for, by cell; without it, a run is missing that a cell compared has and the other does not.
    """
    settings = settings or Comparison()
    metrics = metrics or METRICS | ({GOODPUT: True} if GOODPUT in complete else {})
    campaign = _Campaign(complete, baselines, settings, metrics, requested_runs)
    common: list[ComparedCell] = []
    peaks: list[ComparedCell] = []
    # What an idle arm costs is another question than what an active one gains, with a family of its own.
    families: dict[tuple[str, str, bool, bool], list[ComparedCell]] = {}
    everywhere = [(metric, False) for metric in metrics]
    at_peaks = [(metric, True) for metric in (THROUGHPUT, GOODPUT) if metric in metrics]
    for model in campaign.models:
        for metric, own_peaks in (*everywhere, *at_peaks):
            entries = _comparisons_of(campaign, model, metric, own_peaks)
            primary = metric == settings.primary and not own_peaks
            for entry in entries:
                family = (metric, "" if primary else model, own_peaks, entry.idle)
                families.setdefault(family, []).append(entry)
            (peaks if own_peaks else common).extend(entries)
    for (_, model, _, idle), members in families.items():
        name = "exploratory" if model else "primary"
        give_verdicts(
            members,
            metrics,
            f"{name}{IDLE_FAMILY if idle else ''}",
            settings.margin,
            settings.alpha,
        )
    against_baseline = [entry for entry in common if entry.kind == "baseline"]
    add_q_values(against_baseline, settings.q)
    add_q_values(peaks, settings.q)
    return Comparisons(
        _table(against_baseline),
        _table([entry for entry in common if entry.kind == "contrast"]),
        _table(peaks),
    )


def _comparisons_of(
    campaign: _Campaign, model: str, metric: str, own_peaks: bool
) -> list[ComparedCell]:
    """Return the comparisons of a model in a metric with their effects and errors, before any verdict.

    Cells that ran the same configuration are estimated with them, and are not among the result.
    """
    questions = campaign.questions(model)
    if own_peaks:
        questions = [question for question in questions if question[2] == "baseline"]
    entries = [campaign.compare(question, metric, own_peaks) for question in questions]
    copies = [
        campaign.compare(pair, metric, own_peaks) for pair in campaign.copies(model)
    ]
    settings = campaign.settings
    together = [*entries, *copies]
    estimate(
        together, settings.margin, settings.alpha, settings.method, campaign.pauses
    )
    widen_by_copies(together, settings.margin, settings.alpha)
    _borrow_spread(entries, campaign, metric)
    return entries


_COLUMNS = [
    *(
        *CELL_COLUMNS,
        "metric",
        "level",
        "baseline",
        "effect_percent",
        "low_percent",
        "high_percent",
    ),
    *("interval_percent", "bound", "cost_percent"),
    *(
        "p_value",
        "p_parity",
        "family",
        "p_holm",
        "p_parity_holm",
        "q_value",
        "discovery",
    ),
    *("verdict", "qualifier", "indication", "reason"),
    *("runs", "runs_kept", "baseline_runs_kept", "mean", "baseline_mean"),
    *(
        "sd_percent",
        "runs_to_resolve",
        "parity_power_percent",
        "margin_percent",
        "method",
    ),
    *("levels_compared", "replicate", "method_hash"),
    *(f"basis_{name}" for name in NAMES),
]
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
    *("engine", "not_reached", MESSAGES),
    *(*COLUMNS, *INPUT_COLUMNS, *limits_met.COLUMNS),
)
Question = tuple[Cell, Cell | None, Kind]


def _table(entries: Sequence[ComparedCell]) -> pd.DataFrame:
    return pd.DataFrame([entry.row for entry in entries], columns=_COLUMNS)


class _Campaign:
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
        self.hash = method_hash(settings)
        self._baselines = baselines
        complete = limits_met.replace_zero_goodput(complete)
        column_names = {*_NEEDED, *metrics, *(f"{name}_se" for name in metrics)}
        needed = complete[[name for name in complete if name in column_names]].astype(
            object
        )
        self._tables = tables_by_cell(needed)
        self.rows: dict[Cell, CellRows] = {
            cell: _by_run_and_level(table) for cell, table in self._tables.items()
        }
        self.models = list(dict.fromkeys(cell.model for cell in self._tables))
        self._spans = {
            cell: run_spans(rows.values()) for cell, rows in self.rows.items()
        }
        self.pauses = find_pauses(
            span for spans in self._spans.values() for span in spans.values()
        )
        self._peaks = {
            (cell, metric): own_peak(table, metric)
            for cell, table in self._tables.items()
            for metric in (THROUGHPUT, GOODPUT)
            # No level is the best for goodput where nothing met the limits.
            if metric == THROUGHPUT
            or (metric in table and (table["goodput_met"] > 0).any())
        }
        self._levels: dict[tuple[Cell, str], int | None] = {}
        self._pairing = cache(
            lambda arm, reference: pair_runs(self._spans[arm], self._spans[reference])
        )
        self._configurations = configurations(self.rows)
        self.replicates = replicate_groups(self.rows)

    def questions(self, model: str) -> list[Question]:
        """Return the comparisons of a model: every cell with its baseline, and the declared contrasts."""
        cells = [cell for cell in self._tables if cell.model == model]
        questions: list[Question] = [
            (cell, self._baseline(cell), "baseline")
            for cell in cells
            if self._baselines.get(cell.scenario) is not None
        ]
        for arm_name, reference_name in self.settings.contrasts:
            questions += [
                (arm, reference, "contrast")
                for arm, reference in contrast_pairs(cells, arm_name, reference_name)
            ]
        return questions

    def copies(self, model: str) -> list[Question]:
        """Return the pairs of a model's cells that ran the same configuration and are not in `questions`."""
        compared_pairs = {
            frozenset((arm, reference)) for arm, reference, _ in self.questions(model)
        }
        pairs = (
            pair
            for group in self.replicates
            if group[0].model == model
            for pair in combinations(group, 2)
        )
        return [
            (arm, reference, "copies")
            for reference, arm in pairs
            if {arm, reference} not in compared_pairs
        ]

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

    def level_of_model(self, model: str) -> int | None:
        """Return the level that most of a model's comparisons with a baseline use."""
        levels = [
            self._comparison_level(reference)
            for _, reference, kind in self.questions(model)
            if reference is not None and kind == "baseline"
        ]
        return max(levels, key=levels.count) if levels else None

    def compare(self, question: Question, metric: str, own_peaks: bool) -> ComparedCell:
        """Return a comparison at the level of the baseline's peak, or the declared one; or at each cell's own peak.

        At its own peak, each run is compared at the level chosen by the other half of the cell's runs.
        """
        arm, reference, kind = question
        entry = self._entry((arm, reference, "peak" if own_peaks else kind), metric)
        if reference is None:
            return entry
        pairing = self._pairing(arm, reference)
        if own_peaks:
            ours, theirs = (
                self._peak(arm, reference, metric),
                self._peak(reference, arm, metric),
            )
            level, levels = ours.level, (ours.by_run, theirs.by_run)
        else:
            level = self._comparison_level(reference, metric)
            # Without a level that all could be compared at, the runs say at the highest one what they lack.
            at = level or max(at for _, at in self.rows[reference])
            levels = (
                dict.fromkeys(self._spans[arm], at),
                dict.fromkeys(self._spans[reference], at),
            )
        entry.row["level"] = level
        rows = self.rows[arm], self.rows[reference]
        collect_values(
            entry, pairing, levels, rows, self._absent(arm, reference, pairing)
        )
        refuse_unknown_latencies(entry, pairing, levels, rows)
        entry.row |= _kept(entry.sides)
        if pairing.separate_pairs and not entry.obstacle:
            numbers = [str(run) for run, _ in pairing.separate_pairs]
            runs = f"run{'s' * (len(numbers) > 1)} {', '.join(numbers)}"
            late = f"{runs}: measured at another time than those of its baseline"
            entry.left_out = "; ".join(filter(None, (entry.left_out, late)))
        if own_peaks:
            used = {
                levels[side].get(run, 0)
                for pair in pairing.pairs
                for side, run in enumerate(pair)
            }
            entry.row["levels_compared"] = ";".join(map(str, sorted(used)))
            entry.group = (entry.group[0], reference, *entry.group[2:4])
        else:
            self._below_the_peak(entry)
        if metric == GOODPUT:
            limits_met.add_goodput_obstacles(entry)
        return entry

    def _absent(
        self, arm: Cell, reference: Cell, pairing: Pairing
    ) -> tuple[set[int], set[int]]:
        known = arm in self._requested_runs and reference in self._requested_runs
        requested_runs = (
            (self._requested_runs[arm], self._requested_runs[reference])
            if known
            else None
        )
        return absent_runs(
            pairing,
            self._spans[arm],
            self._spans[reference],
            requested_runs,
            self.pauses,
        )

    def _peak(self, cell: Cell, other_cell: Cell, metric: str) -> OwnPeak:
        """A cell's own peak; the other cell's peak for a cell in which nothing met the limits at any level."""
        peak = self._peaks.get((cell, metric))
        if peak is None and (other_cell, metric) in self._peaks:
            level = self._peaks[other_cell, metric].level or 0
            peak = OwnPeak(level, dict.fromkeys(self._spans[cell], level))
        return peak or OwnPeak(None, {})

    def _below_the_peak(self, entry: ComparedCell) -> None:
        """Refuse a verdict if too few requests were in flight at a level above the cell's peak."""
        held, level = entry.starvation, entry.row["level"]
        if not held or entry.obstacle or level is None:
            return
        for cell, share in ((entry.arm, held.arm), (entry.reference, held.reference)):
            if (
                cell
                and share > STARVED
                and falls_with_load(self._tables[cell], int(level), THROUGHPUT)
            ):
                entry.obstacle = PAST_THE_PEAK

    def _entry(self, question: Question, metric: str) -> ComparedCell:
        arm, reference, kind = question
        row: dict[str, Any] = {
            **arm.row,
            "metric": metric,
            "level": None,
            "baseline": reference.path if reference else "",
            "margin_percent": 100 * self.settings.margin,
            "runs": 0,
            "levels_compared": "",
            "indication": "",
            "bound": "",
            "method_hash": self.hash,
        }
        entry = ComparedCell(arm, reference, kind, row, Sides(metric))
        if reference is None:
            entry.obstacle = NO_BASELINE
        else:
            known = self._configurations[arm]
            entry.replicate = bool(known) and known == self._configurations[reference]
        row["replicate"] = entry.replicate
        return entry


def _kept(sides: Sides) -> dict[str, Any]:
    """The runs that a comparison rests on, and the geometric means over them, whose ratio is the effect."""
    columns: dict[str, Any] = {}
    for side, rows, logs in zip(
        ("baseline_", ""), (sides.reference, sides.arm), sides.logs, strict=True
    ):
        columns[f"{side}runs_kept"] = ";".join(str(row["run"]) for row in rows)
        columns[f"{side}mean"] = float(np.exp(logs.mean())) if len(rows) else np.nan
    return columns


def _by_run_and_level(table: pd.DataFrame) -> dict[tuple[int, int], dict[str, Any]]:
    rows = {}
    for record in table.to_dict("records"):
        row = {str(name): value for name, value in record.items()}
        rows[int(row["run"]), int(row["level"])] = row
    return rows


def _borrow_spread(
    entries: Sequence[ComparedCell], campaign: _Campaign, metric: str
) -> None:
    """Use the spread of the campaign's replicates for single runs: of the model's if it has any, else of all."""
    single = [entry for entry in entries if entry.obstacle == SINGLE]
    if not single or not campaign.replicates:
        return
    model = single[0].arm.model
    own = [group for group in campaign.replicates if group[0].model == model]
    levels = {name: campaign.level_of_model(name) for name in campaign.models}
    spreads = (
        pooled_spread(campaign.rows, groups, metric, levels)
        for groups in (own, campaign.replicates)
    )
    sd, df = next(filter(None, spreads), (None, 0))
    if sd is None:
        return
    cells = len({cell for entry in entries for cell in (entry.arm, entry.reference)})
    for entry in single:
        entry.cells = cells
        contrast = Contrast(entry.sides.difference, sd * 2**0.5, df, "replicates")
        write_estimate(
            entry, contrast, sd, campaign.settings.margin, campaign.settings.alpha
        )
        entry.obstacle, entry.indicative = (
            "",
            f"one run; spread from replicates ({df} degrees of freedom)",
        )
