"""One comparison: which values it rests on, and what keeps it from a verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pandas as pd

from kveval.analysis.cells import THROUGHPUT, CellKey
from kveval.analysis.estimators.intervals import Contrast
from kveval.analysis.estimators.spreads import Array
from kveval.analysis.levels.checks import STARVED
from kveval.analysis.levels.goodput import GOODPUT
from kveval.analysis.levels.noise import needed_for
from kveval.analysis.levels.outcomes import failed_checks
from kveval.analysis.statistics.evidence import Evidence, Rows, Sides
from kveval.analysis.statistics.inputs import of_levels
from kveval.analysis.statistics.level_selection import Chosen
from kveval.analysis.statistics.pairing import Pairing
from kveval.analysis.statistics.uncertainty import IN_FLIGHT, Starvation, starvation
from kveval.load.enough import MIN_RUNS

# (run, level) -> row of complete_metrics.csv
CellRows = Mapping[tuple[int, int], Mapping[str, Any]]
Kind = Literal["baseline", "contrast", "peak", "copies"]
MIN_SETTLED = 10
"""The fewest settled requests, or sessions, of a level for a verdict on its goodput."""
# Why there is no verdict, whole or in part; by these the report chooses its advice.
OPEN_LOOP = "the throughput of an open loop is the rate at which requests are sent: compare latencies"
NO_BASELINE = "its baseline was not measured, or is not unique"
FEW_RUNS = f"both cells, {MIN_RUNS} needed"
FEW_LATENCIES = "latencies observed"
FEW_SETTLED = "met or missed the limits"
FAILED = "failed"
OTHER_HARDWARE = "measured on other hardware than its baseline"
_BLOCKS = {
    "blocks": Evidence("blocks", "shared blocks"),
    "bridge": Evidence("blocks", "bridged by the baseline"),
    "repeated": Evidence("blocks", "one run repeated late"),
    "other time": Evidence("blocks", "measured at another time", "indicates"),
}
PAST_THE_PEAK = (
    f"fewer requests were {IN_FLIGHT}, at a level above the cell's peak, where fewer deliver more: "
    "compare at a lower level, or give the load generator more processors"
)


@dataclass(frozen=True)
class Pair:
    """ln of a metric in reference and arm, by run of the reference, and the rows of levels.csv it comes from."""

    runs: tuple[int, ...] = ()
    reference: Array = field(default_factory=lambda: np.empty(0))
    arm: Array = field(default_factory=lambda: np.empty(0))
    reference_rows: Rows = ()
    arm_rows: Rows = ()

    def __len__(self) -> int:
        return len(self.runs)

    @property
    def difference(self) -> float:
        """Mean difference, arm - reference."""
        return float(np.mean(self.arm - self.reference))

    @property
    def starvation(self) -> Starvation:
        """By how much requests in flight fell short of those asked for, on either side."""
        return starvation(self.reference_rows, self.arm_rows)


@dataclass
class ComparedCell:
    """A comparison that is being computed.

    `obstacle`: why it gets no verdict, "" if it may; `other_time`: the two were not measured in the same blocks;
    `evidence`: its inputs by name; `cells`: how many cells were measured in its blocks.
    """

    arm: CellKey
    reference: CellKey | None
    kind: Kind
    row: dict[str, Any]
    pair: Pair = field(default_factory=Pair)
    obstacle: str = ""
    left_out: str = ""
    exercised: bool | None = None
    replicate: bool = False
    other_time: bool = False
    group: tuple[Any, ...] = ()
    cells: int = 2
    contrast: Contrast | None = None
    indicative: str = ""
    evidence: dict[str, Evidence] = field(default_factory=dict)

    def rest_on(self, *found: Evidence) -> None:
        """Add inputs; of two with one name the more severe one is kept. One that refuses becomes the obstacle."""
        for evidence in found:
            known = self.evidence.get(evidence.name)
            if known is None or evidence.weight > known.weight:
                self.evidence[evidence.name] = evidence
                if evidence.severity == "refuses":
                    self.obstacle = evidence.reason

    @property
    def judged(self) -> bool:
        """Whether the comparison can have a verdict."""
        return self.contrast is not None and not self.obstacle and not self.replicate and self.exercised is not False


@dataclass(frozen=True)
class Selection:
    """The data that a comparison uses: pairs of runs, and the level of each cell in each of its runs."""

    pairing: Pairing
    arm_levels: Mapping[int, int]
    reference_levels: Mapping[int, int]


def contrast_cells(cells: Sequence[CellKey], one: str, other: str) -> list[tuple[CellKey, CellKey]]:
    """Return the pairs of a model's cells that a declared contrast means: SCENARIO/CPU_BLOCKS names one cell; SCENARIO
    alone names all sizes, each paired with the same size of the other side, or with its only cell.
    """
    found = []
    for arm in _named(cells, one):
        references = _named(cells, other)
        same = [cell for cell in references if cell[2] == arm[2]]
        chosen = references if "/" in other else same or (references if len(references) == 1 else [])
        found += [(arm, reference) for reference in chosen if reference != arm]
    return found


def _named(cells: Sequence[CellKey], name: str) -> list[CellKey]:
    scenario, _, blocks = name.partition("/")
    return [cell for cell in cells if cell[1] == scenario and (not blocks or cell[2] == int(blocks))]


def common_selection(pairing: Pairing, common: Chosen, base_of_reference: Mapping[int, int] | None) -> Selection:
    """Return the selection at a common level. `base_of_reference`: run of the reference -> run of the cell whose peak
    the level is, None if that is the reference itself.
    """

    def level_of(run: int) -> int:
        base = run if base_of_reference is None else base_of_reference.get(run, run)
        return common.by_run.get(base, common.level or 0)

    return Selection(
        pairing,
        {arm: level_of(reference) for arm, reference in pairing.pairs},
        {reference: level_of(reference) for _, reference in pairing.pairs},
    )


def usable(row: Mapping[str, Any], metric: str) -> bool:
    """Whether a level's value of a metric may enter a verdict."""
    value = row.get(metric)
    return value is not None and bool(value > 0) and unfit(row, metric) == ""


def unfit(row: Mapping[str, Any], metric: str) -> str:
    """Return why a level may not enter a verdict on a metric, "" if it may."""
    if failed := failed_checks(row, metric == THROUGHPUT):
        return f"{FAILED} {', '.join(failed)}"
    if metric == THROUGHPUT and row.get("rate_req_s", np.nan) > 0:
        return OPEN_LOOP
    if metric == THROUGHPUT:
        return ""
    if metric == GOODPUT:
        return _unfit_for_goodput(row)
    counted = row["ttft_count" if metric.startswith("ttft") else "requests_completed"]
    needed = needed_for(metric.rsplit("_", 1)[1])
    return "" if counted >= needed else f"{counted:.0f} {FEW_LATENCIES}, {needed} needed"


def _unfit_for_goodput(row: Mapping[str, Any]) -> str:
    """Return why a level's goodput gets no verdict: under too little load, limits are easier to meet."""
    if row["concurrency_shortfall"] > STARVED:
        return f"{100 * row['concurrency_shortfall']:.0f} % fewer requests {IN_FLIGHT}"
    few = row["goodput_settled"] < MIN_SETTLED
    return f"{row['goodput_settled']:.0f} {FEW_SETTLED}, {MIN_SETTLED} needed" if few else ""


@dataclass
class _PairedRuns:
    """The pairs of runs with a value on both sides, by run of the reference.

    `unusable`: pairs with a level that may not enter a verdict; `moved`: whether the counters that prove arms active
    rose on both sides, for pairs with such counters; `reasons`: why runs are left out.
    """

    values: dict[int, tuple[float, float]] = field(default_factory=dict)
    rows: dict[int, tuple[Mapping[str, Any], Mapping[str, Any]]] = field(default_factory=dict)
    unusable: set[int] = field(default_factory=set)
    moved: dict[int, bool] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)

    @property
    def idle(self) -> set[int]:
        """The pairs in which an arm was not active."""
        return {run for run, active in self.moved.items() if not active}


def _paired_runs(selection: Selection, reference: CellRows, arm: CellRows, metric: str) -> _PairedRuns:
    found = _PairedRuns()
    for arm_run, reference_run in selection.pairing.pairs:
        ours = arm.get((arm_run, selection.arm_levels[arm_run]))
        theirs = reference.get((reference_run, selection.reference_levels[reference_run]))
        sides = [row for row in (ours, theirs) if row is not None]
        active = [bool(row["exercised"]) for row in sides if not pd.isna(row["exercised"])]
        if active:
            found.moved[reference_run] = all(active)
        if active and not all(active):
            found.reasons[arm_run] = "not active"
        if ours is None or theirs is None or not (ours[metric] > 0 and theirs[metric] > 0):
            continue
        found.values[reference_run] = float(np.log(theirs[metric])), float(np.log(ours[metric]))
        found.rows[reference_run] = theirs, ours
        if reason := unfit(theirs, metric) or unfit(ours, metric):
            found.reasons[arm_run if unfit(ours, metric) else reference_run] = reason
            found.unusable.add(reference_run)
    return found


def fill(entry: ComparedCell, selection: Selection, reference: CellRows, arm: CellRows, metric: str) -> None:
    """Fill in an entry's values, and its obstacle if it gets no verdict.

    Runs in which an arm was not active, or with a level that failed a check, are left out. If too few remain for a
    verdict, all runs with active arms are kept to describe the effect; if there are none, all runs.
    """
    found = _paired_runs(selection, reference, arm, metric)
    known, idle = found.values.keys(), found.idle
    usable = sorted(known - found.unusable - idle)
    fit = len(usable)
    kept = usable if fit >= MIN_RUNS else sorted(known - idle) or sorted(known)
    # Inactive arms are the reason for no verdict if their runs would otherwise have been enough.
    too_idle = bool(idle) and fit < MIN_RUNS and (fit + len(idle - found.unusable) >= MIN_RUNS or not known - idle)
    entry.exercised = not too_idle if found.moved else None
    entry.left_out = "; ".join(f"run {run}: {reason}" for run, reason in sorted(found.reasons.items()))
    columns = np.array([found.values[run] for run in kept], dtype=np.float64).reshape(-1, 2)
    of_reference, of_arm = ([found.rows[run][which] for run in kept] for which in (0, 1))
    entry.pair = Pair(tuple(kept), columns[:, 0], columns[:, 1], of_reference, of_arm)
    entry.other_time = selection.pairing.kind == "other time"
    if fit < MIN_RUNS:
        entry.obstacle, entry.left_out = _obstacle(len(known), fit, entry.left_out), ""
    if found.moved:
        entry.rest_on(_activity(len(found.moved) - len(idle), len(found.moved), enough=not too_idle))
    entry.rest_on(_BLOCKS[selection.pairing.kind], *of_levels(Sides(metric, of_reference, of_arm)))
    levels = sorted({selection.reference_levels[run] for run in kept})
    entry.row |= {"runs": len(kept), "levels_compared": ";".join(map(str, levels))}
    kind, runs = selection.pairing.kind, tuple(kept)
    # Cells are estimated together, with a shared residual, if they were measured in the same blocks.
    entry.group = (
        kind,
        {"bridge": entry.reference, "repeated": entry.arm}.get(kind),
        runs,
        len(known - found.unusable) < MIN_RUNS,
        tuple(selection.reference_levels[run] for run in runs),
    )


def _activity(active: int, known: int, *, enough: bool) -> Evidence:
    """The evidence from the counters that prove arms active; `enough`: whether the active runs allow a verdict."""
    if not active:
        return Evidence(
            "activity", "not active", "refuses", "by its own counters the arm served next to nothing at this level"
        )
    said = f"active in {active} of {known} runs"
    if enough:
        return Evidence("activity", said)
    reason = f"the arm's own counters rose in {active} of {known} runs at this level, {MIN_RUNS} needed"
    return Evidence("activity", said, "refuses", reason)


def _obstacle(known: int, fit: int, reasons: str) -> str:
    if not known:
        return "the level was not measured in both cells"
    if reasons:
        return f"{fit} of {known} runs usable in {FEW_RUNS}: {reasons}"
    return "single run" if fit == 1 else f"{fit} runs of {FEW_RUNS}"
