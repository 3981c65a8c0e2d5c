"""One comparison: which values it rests on, and what keeps it from a verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pandas as pd

from kveval.analysis.cells import THROUGHPUT, CellKey
from kveval.analysis.estimators.intervals import Contrast
from kveval.analysis.levels.checks import STARVED
from kveval.analysis.levels.goodput import GOODPUT
from kveval.analysis.levels.noise import needed_for
from kveval.analysis.levels.outcomes import failed_checks
from kveval.analysis.statistics.evidence import Evidence, Sides
from kveval.analysis.statistics.inputs import of_levels, wrong_answers
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
    sides: Sides
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
    def starvation(self) -> Starvation:
        """By how much requests in flight fell short of those asked for, on either side."""
        return starvation(self.sides.reference, self.sides.arm)

    @property
    def judged(self) -> bool:
        """Whether the comparison can have a verdict."""
        return self.contrast is not None and not self.obstacle and not self.replicate and self.exercised is not False


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


def unfit(row: Mapping[str, Any], metric: str) -> str:
    """Return why a level may not enter a verdict on a metric, "" if it may."""
    if failed := failed_checks(row, metric == THROUGHPUT):
        return f"{FAILED} {', '.join(failed)}"
    if metric == THROUGHPUT:
        return OPEN_LOOP if row.get("rate_req_s", np.nan) > 0 else ""
    if metric != GOODPUT:
        counted = row["ttft_count" if metric.startswith("ttft") else "requests_completed"]
        needed, few = needed_for(metric.rsplit("_", 1)[1]), FEW_LATENCIES
    elif row["concurrency_shortfall"] > STARVED:
        # Under too little load, limits are easier to meet.
        return f"{100 * row['concurrency_shortfall']:.0f} % fewer requests {IN_FLIGHT}"
    else:
        counted, needed, few = row["goodput_settled"], MIN_SETTLED, FEW_SETTLED
    return "" if counted >= needed else f"{counted:.0f} {few}, {needed} needed"


def fill(
    entry: ComparedCell,
    pairing: Pairing,
    levels: tuple[Mapping[int, int], Mapping[int, int]],
    cells: tuple[CellRows, CellRows],
) -> None:
    """Fill in an entry's values, and its obstacle if it gets no verdict.

    `levels`: run -> level that is compared, and `cells`: rows, each of arm and reference. Runs in which an arm was not
    active, or with a level that failed a check, are left out. If too few remain for a verdict, all runs with active
    arms are kept to describe the effect; if there are none, all runs.
    """
    metric: str = entry.row["metric"]
    # By run of the reference: rows with a value on both sides; whether the counters that prove arms active rose.
    rows: dict[int, tuple[Mapping[str, Any], Mapping[str, Any]]] = {}
    moved: dict[int, bool] = {}
    unusable: set[int] = set()
    reasons: dict[int, str] = {}
    for arm_run, run in pairing.pairs:
        ours, theirs = (cells[n].get((at, levels[n].get(at, 0))) for n, at in enumerate((arm_run, run)))
        known = [row["exercised"] for row in (ours, theirs) if row is not None]
        active = [bool(shown) for shown in known if not pd.isna(shown)]
        if active:
            moved[run] = all(active)
        if not all(active):
            reasons[arm_run] = "not active"
        if ours is None or theirs is None or not (ours[metric] > 0 and theirs[metric] > 0):
            continue
        rows[run] = ours, theirs
        if reason := unfit(theirs, metric) or unfit(ours, metric):
            reasons[arm_run if unfit(ours, metric) else run] = reason
            unusable.add(run)
    idle = {run for run, of_both in moved.items() if not of_both}
    usable = sorted(rows.keys() - unusable - idle)
    enough = len(usable) >= MIN_RUNS
    kept = usable if enough else sorted(rows.keys() - idle) or sorted(rows)
    # Inactive arms are the reason for no verdict if their runs would otherwise have been enough.
    otherwise_enough = len(usable) + len(idle - unusable) >= MIN_RUNS or not rows.keys() - idle
    too_idle = bool(idle) and not enough and otherwise_enough
    entry.exercised = not too_idle if moved else None
    entry.left_out = "; ".join(f"run {run}: {reason}" for run, reason in sorted(reasons.items()))
    entry.sides = Sides(metric, [rows[run][1] for run in kept], [rows[run][0] for run in kept])
    entry.other_time = pairing.kind == "other time"
    if not enough:
        entry.obstacle, entry.left_out = _obstacle(len(rows), len(usable), entry.left_out), ""
    if moved:
        entry.rest_on(_activity(len(moved) - len(idle), len(moved), enough=not too_idle))
    entry.rest_on(_BLOCKS[pairing.kind], *of_levels(entry.sides))
    paired = (cells[n].get((at, levels[n].get(at, 0))) for pair in pairing.pairs for n, at in enumerate(pair))
    changed = wrong_answers([row for row in paired if row is not None])
    if changed is not None:
        entry.rest_on(changed)
    compared = [levels[1].get(run, 0) for run in kept]
    entry.row |= {"runs": len(kept), "levels_compared": ";".join(map(str, sorted(set(compared))))}
    # Cells are estimated together, with a shared residual, if they were measured in the same blocks.
    entry.group = (
        pairing.kind,
        {"bridge": entry.reference, "repeated": entry.arm}.get(pairing.kind),
        tuple(kept),
        len(rows.keys() - unusable) < MIN_RUNS,
        tuple(compared),
    )


def _activity(active: int, known: int, *, enough: bool) -> Evidence:
    """The evidence from the counters that prove arms active; `enough`: whether the active runs allow a verdict."""
    said, reason = f"active in {active} of {known} runs", ""
    if not active:
        said, reason = "not active", "by its own counters the arm served next to nothing at this level"
    elif not enough:
        reason = f"the arm's own counters rose in {active} of {known} runs at this level, {MIN_RUNS} needed"
    return Evidence("activity", said, "refuses" if reason else "sound", reason)


def _obstacle(known: int, fit: int, reasons: str) -> str:
    if not known:
        return "the level was not measured in both cells"
    if reasons:
        return f"{fit} of {known} runs usable in {FEW_RUNS}: {reasons}"
    return "single run" if fit == 1 else f"{fit} runs of {FEW_RUNS}"
