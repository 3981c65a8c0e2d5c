"""All comparisons of a campaign: is a scenario better, worse, at parity, or is the result inconclusive?

Every comparison is a difference of logarithms between two cells of a model at one common level, over runs as blocks:
all cells were measured once per block, in random order within it. One comparison is one row; a row without a verdict
gives the reason. The only inputs are complete_metrics.csv and the settings.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from kveval.analysis.cells import KEYS, THROUGHPUT, CellKey, partner
from kveval.analysis.estimators.intervals import Contrast
from kveval.analysis.levels.checks import STARVED
from kveval.analysis.levels.goodput import GOODPUT
from kveval.analysis.statistics import limits_met
from kveval.analysis.statistics.comparison import (
    NO_BASELINE,
    OTHER_HARDWARE,
    PAST_THE_PEAK,
    CellRows,
    ComparedCell,
    Kind,
    Selection,
    common_selection,
    contrast_cells,
    fill,
)
from kveval.analysis.statistics.estimates import (
    claim_beyond_copies,
    describe,
    estimate,
    uncompared_copies,
)
from kveval.analysis.statistics.evidence import NAMES, Evidence
from kveval.analysis.statistics.inputs import COLUMNS as INPUT_COLUMNS
from kveval.analysis.statistics.level_selection import Chosen, common_level, declared, falls_with_load, own_peak
from kveval.analysis.statistics.pairing import Pairing, pair_runs, run_spans
from kveval.analysis.statistics.replicates import configurations, pooled_spread, replicate_groups
from kveval.analysis.statistics.run_times import pauses
from kveval.analysis.statistics.uncertainty import COLUMNS
from kveval.analysis.statistics.verdicts import judge, overview
from kveval.config.campaign import Comparison

METHOD = 4
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
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]


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
) -> Comparisons:
    """Compare every cell with its baseline and every declared pair, at a common level; then peaks with peaks.

    `complete`: the rows of complete_metrics.csv. `baselines`: scenario -> the scenario it is compared with, None for
    a baseline itself. The baseline's cell is that of the same model with the same cpu_blocks, else the only one.
    Effects are per cent of the reference. For the primary metric `p_holm` is adjusted over all comparisons of all
    models, else over those of one model and metric. `q_value` is over all models of a metric (Benjamini, Hochberg).
    `metrics`: by default METRICS, and goodput where the levels have it.
    """
    settings = settings or Comparison()
    metrics = metrics or METRICS | ({GOODPUT: True} if GOODPUT in complete else {})
    campaign = _Campaign(complete, baselines, settings, metrics)
    common: list[ComparedCell] = []
    peaks: list[ComparedCell] = []
    families: dict[tuple[str, ...], list[ComparedCell]] = {}
    for model in campaign.models:
        questions, copies = campaign.questions(model), campaign.copies(model)
        for metric in metrics:
            entries = [campaign.at_common_level(question, metric) for question in questions]
            _estimate(entries, [campaign.at_common_level(question, metric) for question in copies], campaign, metric)
            families.setdefault((metric,) if metric == settings.primary else (metric, model), []).extend(entries)
            common += entries
        for metric in (name for name in (THROUGHPUT, GOODPUT) if name in metrics):
            entries = [campaign.at_own_peaks(question, metric) for question in questions if question[2] == "baseline"]
            _estimate(entries, [campaign.at_own_peaks(question, metric) for question in copies], campaign, metric)
            families["peaks", metric, model] = entries
            peaks += entries
    for family, members in families.items():
        name = "primary" if family == (settings.primary,) else "exploratory"
        judge(members, metrics, name, settings.margin, settings.alpha)
    against_baseline = [entry for entry in common if entry.kind == "baseline"]
    overview(against_baseline, settings.q)
    overview(peaks, settings.q)
    return Comparisons(
        _table(against_baseline), _table([entry for entry in common if entry.kind == "contrast"]), _table(peaks)
    )


_COLUMNS = [
    *(*KEYS, "metric", "level", "baseline", "effect_percent", "low_percent", "high_percent"),
    *("interval_percent", "bound", "p_value", "p_parity", "family", "p_holm", "p_parity_holm", "q_value", "discovery"),
    *("verdict", "qualifier", "indication", "reason"),
    *("runs", "sd_percent", "runs_to_resolve", "parity_power_percent", "margin_percent", "method"),
    *("levels_compared", "replicate", "method_hash"),
    *(f"basis_{name}" for name in NAMES),
]
_NEEDED = (
    *(*KEYS, "run", "level", THROUGHPUT, "exercised", "checks_failed", "output_tokens", "ttft_count"),
    *("requests_completed", "rate_req_s", "configuration", "hardware", "run_started", "run_finished"),
    *(*COLUMNS, *INPUT_COLUMNS, *limits_met.COLUMNS),
)
Question = tuple[CellKey, CellKey | None, Kind]


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
    ) -> None:
        self.settings = settings
        self.hash = method_hash(settings)
        self._baselines = baselines
        complete = limits_met.comparable(complete)
        needed = complete[[name for name in complete if _needed(str(name), metrics)]].astype(object)
        self._tables: dict[CellKey, pd.DataFrame] = {
            _cell(key): table for key, table in needed.groupby(list(KEYS), sort=False)
        }
        self.rows: dict[CellKey, CellRows] = {cell: _by_run_and_level(table) for cell, table in self._tables.items()}
        self.models = list(dict.fromkeys(cell[0] for cell in self._tables))
        self._spans = {cell: run_spans(rows.values()) for cell, rows in self.rows.items()}
        self.pauses = pauses(span for spans in self._spans.values() for span in spans.values())
        self._peaks = {
            (cell, metric): own_peak(table, metric)
            for cell, table in self._tables.items()
            for metric in (THROUGHPUT, GOODPUT)
            if metric == THROUGHPUT or (metric in table and not limits_met.nothing_met(table))
        }
        self._common: dict[tuple[CellKey, str], Chosen] = {}
        self._pairings: dict[tuple[CellKey, CellKey], Pairing] = {}
        self._configurations = configurations(self.rows)
        self.replicates = replicate_groups(self.rows)

    def questions(self, model: str) -> list[Question]:
        """Return the comparisons of a model: every cell with its baseline, and the declared contrasts."""
        cells = [cell for cell in self._tables if cell[0] == model]
        asked: list[Question] = [
            (cell, self._baseline(cell), "baseline") for cell in cells if self._baselines.get(cell[1]) is not None
        ]
        for one, other in self.settings.contrasts:
            asked += [(arm, reference, "contrast") for arm, reference in contrast_cells(cells, one, other)]
        return asked

    def copies(self, model: str) -> list[Question]:
        """Return the pairs of a model's cells that ran the same configuration and are not in `questions`."""
        groups = [group for group in self.replicates if group[0][0] == model]
        asked = [(arm, reference) for arm, reference, _ in self.questions(model)]
        return [(arm, reference, "copies") for arm, reference in uncompared_copies(groups, asked)]

    def _baseline(self, cell: CellKey) -> CellKey | None:
        """Return the baseline of a cell, None if it is missing or not unique."""
        name = self._baselines.get(cell[1])
        return partner(cell, [other for other in self._tables if other[0] == cell[0] and other[1] == name])

    def pairing(self, arm: CellKey, reference: CellKey) -> Pairing:
        """Return which runs of two cells are compared with each other."""
        if (arm, reference) not in self._pairings:
            self._pairings[arm, reference] = pair_runs(self._spans[arm], self._spans[reference])
        return self._pairings[arm, reference]

    def common_level(self, cell: CellKey, metric: str = THROUGHPUT) -> tuple[CellKey, Chosen]:
        """Return the level of all comparisons with `cell` as the reference, and the cell whose peak that is.

        Goodput is compared where the baseline's goodput is best, everything else at the peak of its throughput.
        """
        base, of = self._baseline(cell) or cell, GOODPUT if metric == GOODPUT else THROUGHPUT
        if (base, of) not in self._common:
            others = [table for other, table in self._tables.items() if self._baseline(other) == base]
            level = self.settings.level
            chosen = declared(self._tables[base], level) if isinstance(level, int) else None
            self._common[base, of] = chosen or common_level(self._tables[base], others, of)
        return base, self._common[base, of]

    def level_of_model(self, model: str) -> int | None:
        """Return the level that most of a model's comparisons with a baseline use."""
        levels = [
            self.common_level(reference)[1].level
            for _, reference, kind in self.questions(model)
            if reference is not None and kind == "baseline"
        ]
        return max(levels, key=levels.count) if levels else None

    def at_common_level(self, question: Question, metric: str) -> ComparedCell:
        """Return a comparison at the level of the baseline's peak, or the declared one."""
        arm, reference, kind = question
        entry = self._entry(question, metric)
        if reference is None:
            return entry
        base, common = self.common_level(reference, metric)
        of_base = None if base == reference else dict(self.pairing(reference, base).pairs)
        selection = common_selection(self.pairing(arm, reference), common, of_base)
        entry.row["level"] = common.level
        fill(entry, selection, self.rows[reference], self.rows[arm], metric)
        _leave_out_apart(entry, selection.pairing)
        self._same_machine(entry)
        self._below_the_peak(entry)
        if metric == GOODPUT:
            limits_met.require_comparable(entry)
        entry.kind = kind
        return entry

    def at_own_peaks(self, question: Question, metric: str) -> ComparedCell:
        """Return a comparison at each cell's own peak; the level of a run is chosen by the other half of the runs."""
        arm, reference, _ = question
        entry = self._entry((arm, reference, "peak"), metric)
        if reference is None:
            return entry
        pairing = self.pairing(arm, reference)
        ours, theirs = self._peak(arm, reference, metric), self._peak(reference, arm, metric)
        entry.row["level"] = ours.level
        selection = Selection(
            pairing,
            {run: ours.by_run.get(run, 0) for run, _ in pairing.pairs},
            {run: theirs.by_run.get(run, 0) for _, run in pairing.pairs},
        )
        fill(entry, selection, self.rows[reference], self.rows[arm], metric)
        _leave_out_apart(entry, selection.pairing)
        used = sorted(
            {level for levels in (selection.arm_levels, selection.reference_levels) for level in levels.values()}
        )
        entry.row["levels_compared"] = ";".join(map(str, used))
        self._same_machine(entry)
        entry.group = (entry.group[0], reference, *entry.group[2:4])
        if metric == GOODPUT:
            limits_met.require_comparable(entry)
        return entry

    def _peak(self, cell: CellKey, other: CellKey, metric: str) -> Chosen:
        """A cell's own peak; the other cell's peak for a cell in which nothing met the limits at any level."""
        found = self._peaks.get((cell, metric))
        if found is None and (other, metric) in self._peaks:
            found = declared(self._tables[cell], self._peaks[other, metric].level or 0)
        return found or Chosen(None, {})

    def _same_machine(self, entry: ComparedCell) -> None:
        arm, reference = (
            {row.get("hardware") for row in self.rows[cell].values()} for cell in (entry.arm, entry.reference) if cell
        )
        if arm == reference:
            entry.rest_on(Evidence("hardware", "one machine"))
        else:
            entry.rest_on(Evidence("hardware", "other hardware", "refuses", OTHER_HARDWARE))

    def _below_the_peak(self, entry: ComparedCell) -> None:
        """Refuse a verdict if too few requests were in flight at a level above the cell's peak."""
        held, level = entry.pair.starvation, entry.row["level"]
        if not held or entry.obstacle or level is None:
            return
        for cell, share in ((entry.arm, held.arm), (entry.reference, held.reference)):
            if cell and share > STARVED and falls_with_load(self._tables[cell], int(level), THROUGHPUT):
                entry.obstacle = PAST_THE_PEAK

    def _entry(self, question: Question, metric: str) -> ComparedCell:
        arm, reference, kind = question
        row: dict[str, Any] = {
            **dict(zip(KEYS, arm, strict=True)),
            "metric": metric,
            "level": None,
            "baseline": "/".join(map(str, reference)) if reference else "",
            "margin_percent": 100 * self.settings.margin,
            "runs": 0,
            "levels_compared": "",
            "indication": "",
            "bound": "",
            "method_hash": self.hash,
        }
        entry = ComparedCell(arm, reference, kind, row)
        if reference is None:
            entry.obstacle = NO_BASELINE
        else:
            known = self._configurations[arm]
            entry.replicate = bool(known) and known == self._configurations[reference]
        row["replicate"] = entry.replicate
        return entry


def _needed(name: str, metrics: Collection[str]) -> bool:
    return name in _NEEDED or name in metrics or name.removesuffix("_se") in metrics


def _cell(key: Any) -> CellKey:
    return str(key[0]), str(key[1]), int(key[2])


def _by_run_and_level(table: pd.DataFrame) -> dict[tuple[int, int], dict[str, Any]]:
    return {
        (int(row["run"]), int(row["level"])): {str(k): v for k, v in row.items()} for row in table.to_dict("records")
    }


def _leave_out_apart(entry: ComparedCell, pairing: Pairing) -> None:
    """Name the runs left out because the two cells did not measure them at the same time."""
    if pairing.apart and not entry.obstacle:
        runs = ", ".join(str(run) for run, _ in pairing.apart)
        apart = f"run{'s' * (len(pairing.apart) > 1)} {runs}: measured at another time than those of its baseline"
        entry.left_out = "; ".join(part for part in (entry.left_out, apart) if part)


def _estimate(
    entries: Sequence[ComparedCell], copies: Sequence[ComparedCell], campaign: _Campaign, metric: str
) -> None:
    """Estimate the comparisons of one model and metric together with those of cells that ran the same configuration."""
    settings = campaign.settings
    estimate([*entries, *copies], settings.margin, settings.alpha, settings.method, campaign.pauses)
    claim_beyond_copies([*entries, *copies], settings.margin, settings.alpha)
    _borrow_spread(entries, campaign, metric)


def _borrow_spread(entries: Sequence[ComparedCell], campaign: _Campaign, metric: str) -> None:
    """Use the spread of the campaign's replicates for single runs: of the model's if it has any, else of all."""
    single = [entry for entry in entries if entry.obstacle == "single run"]
    if not single or not campaign.replicates:
        return
    model = single[0].arm[0]
    own = [group for group in campaign.replicates if group[0][0] == model]
    levels = {name: campaign.level_of_model(name) for name in campaign.models}
    spread = pooled_spread(campaign.rows, own, metric, levels) or pooled_spread(
        campaign.rows, campaign.replicates, metric, levels
    )
    if spread is None:
        return
    cells = len({cell for entry in entries for cell in (entry.arm, entry.reference)})
    for entry in single:
        entry.cells = cells
        contrast = Contrast(entry.pair.difference, spread.sd * 2**0.5, spread.df, "replicates")
        describe(entry, contrast, spread.sd, campaign.settings.margin, campaign.settings.alpha)
        entry.obstacle, entry.indicative = "", f"one run; spread from replicates ({spread.df} degrees of freedom)"
