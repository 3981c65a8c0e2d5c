"""One comparison: which values it rests on, and what keeps it from a verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field
from textwrap import shorten
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from kveval.analysis.cells import THROUGHPUT
from kveval.analysis.estimators.intervals import Contrast
from kveval.analysis.levels.checks_level import STARVED, completed, errors
from kveval.analysis.levels.goodput import GOODPUT
from kveval.analysis.levels.noise import latencies_needed
from kveval.analysis.levels.outcomes import (
    LEVEL_FAILED,
    MESSAGES,
    failed_checks,
    outcomes_of,
)
from kveval.analysis.statistics.evidence import Evidence, Sides, number
from kveval.analysis.statistics.inputs import (
    MEASURED,
    declared_work,
    evidence_of_levels,
    unknown_latency,
    wrong_answers,
)
from kveval.analysis.statistics.pairing import Pairing
from kveval.analysis.statistics.uncertainty import IN_FLIGHT, Starvation, starvation
from kveval.campaign.cell import Cell
from kveval.load.sample_sizes import MIN_RUNS, MOST_FAILED
from kveval.store.run_file import IMPORTED

# (run, level) -> row of complete_metrics.csv
CellRows = Mapping[tuple[int, int], Mapping[str, Any]]
Kind = Literal["baseline", "contrast", "peak", "copies"]
Side = Literal["arm", "reference"]
SIDES: tuple[Side, Side] = ("arm", "reference")
MIN_SETTLED = 10
"""The fewest settled requests, or sessions, of a level for a verdict on its goodput."""
# Why there is no verdict, whole or in part; by these the report chooses its advice.
OPEN_LOOP = "the throughput of an open loop is the rate at which requests are sent: compare latencies"
PAUSES = (
    "the throughput of users with pauses follows from their pauses: compare latencies"
)
SET_BY_THE_LOAD = (OPEN_LOOP, PAUSES)
"""Reasons why throughput is not compared: the load sets it, and no run is to blame."""
NO_BASELINE = "its baseline was not measured, or is not unique"
FEW_RUNS = f"both cells, {MIN_RUNS} needed"
FEW_LATENCIES = "latencies observed"
FEW_SETTLED = "met or missed the limits"
FAILED = "failed"
OTHER_HARDWARE = "measured on other hardware than its baseline"
DELIVERED_NOTHING = "delivered nothing"
NOT_MEASURED = "not measured"
NO_ROW = f"{NOT_MEASURED} at this level"
NO_LEVEL = "the level was not measured in both cells"
SINGLE = "single run"
NO_VALUE = "without a value"
NOT_REACHED = "too slow to be seen before the window closed"
# Failed checks that say that the server failed, and not that the level was measured badly.
_OF_SERVER = (LEVEL_FAILED, completed.name, errors.name)
_CUT_MESSAGE = 120
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


class Exclusion(NamedTuple):
    """The reason why a run is left out of a comparison.

    `summary`: the same for several runs beside a verdict, "" if it is not worth saying there. `failed`: the run would have
    counted against its cell, so that the cell's other runs make it look better than it is.
    """

    reason: str
    summary: str = ""
    failed: bool = False


@dataclass
class ComparedCell:
    """A comparison that is being computed.

    `obstacle`: why it gets no verdict, "" if it may; `active`: whether enough runs were active, None if that is not
    known of any; `idle`: the arm was not active in any run, and is judged on what it costs; `other_time`: the two were
    not measured in the same blocks; `evidence`: its inputs by name; `cells`: how many cells were measured in its blocks;
    `runs_left_out`: side and number of each run that is left out, and `left_out` the same in words.
    """

    arm: Cell
    reference: Cell | None
    kind: Kind
    row: dict[str, Any]
    sides: Sides
    obstacle: str = ""
    left_out: str = ""
    runs_left_out: dict[tuple[Side, int], Exclusion] = field(default_factory=dict)
    active: bool | None = None
    idle: bool = False
    replicate: bool = False
    other_time: bool = False
    group: tuple[Any, ...] = ()
    cells: int = 2
    contrast: Contrast | None = None
    indicative: str = ""
    evidence: dict[str, Evidence] = field(default_factory=dict)

    def add_evidence(self, *inputs: Evidence) -> None:
        """Add inputs; of two with one name the more severe one is kept. One that refuses becomes the obstacle."""
        for evidence in inputs:
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
    def can_have_verdict(self) -> bool:
        """Whether the comparison can have a verdict."""
        inactive = self.active is False and not self.idle
        return (
            self.contrast is not None
            and not self.obstacle
            and not self.replicate
            and not inactive
        )


def contrast_pairs(
    cells: Sequence[Cell], arm_name: str, reference_name: str
) -> list[tuple[Cell, Cell]]:
    """Return the pairs of a model's cells that a declared contrast means: SCENARIO/CPU_BLOCKS names one cell; SCENARIO
    alone names all sizes, each paired with the same size of the other side, or with its only cell.
    """
    pairs = []
    references = [cell for cell in cells if cell.is_named(reference_name)]
    for arm in (cell for cell in cells if cell.is_named(arm_name)):
        chosen = references
        if "/" not in reference_name and len(references) > 1:
            chosen = [cell for cell in references if cell.cpu_blocks == arm.cpu_blocks]
        pairs += [(arm, reference) for reference in chosen if reference != arm]
    return pairs


def missing_value_reason(row: Mapping[str, Any], metric: str) -> str:
    """Return why a level has no value of a metric that can be compared, "" if it has one: finite and above 0."""
    if LEVEL_FAILED in failed_checks(row, True):
        messages = [
            outcome.message
            for outcome in outcomes_of({MESSAGES: "", **row})
            if outcome.name == LEVEL_FAILED
        ]
        return f"{FAILED} at this level{''.join(f' ({shorten(message, _CUT_MESSAGE)})' for message in messages)}"
    value = number(row, metric)
    # A level that delivered nothing has a goodput: nothing met the limits.
    if value == 0 or (metric != GOODPUT and number(row, THROUGHPUT) == 0):
        return (
            DELIVERED_NOTHING if number(row, THROUGHPUT) == 0 else "with a value of 0"
        )
    if np.isnan(value):
        return (
            NOT_REACHED
            if metric in str(row.get("not_reached")).split(";")
            else NO_VALUE
        )
    if np.isinf(value):
        return "with an infinite value"
    return "with a negative value" if value < 0 else ""


def unfit_reason(row: Mapping[str, Any], metric: str) -> str:
    """Return why a level may not enter a verdict on a metric, "" if it may."""
    if failed := failed_checks(row, metric == THROUGHPUT):
        return f"{FAILED} {', '.join(failed)}"
    if metric == THROUGHPUT:
        if declared_work(row).get("pause_s", "0") != "0":
            return PAUSES
        return OPEN_LOOP if row.get("rate_req_s", np.nan) > 0 else ""
    if metric != GOODPUT:
        counted = row[
            "ttft_count" if metric.startswith("ttft") else "requests_completed"
        ]
        needed, few = latencies_needed(metric.rsplit("_", 1)[1]), FEW_LATENCIES
    elif row["concurrency_shortfall"] > STARVED:
        # Under too little load, limits are easier to meet.
        return f"{100 * row['concurrency_shortfall']:.0f} % fewer requests {IN_FLIGHT}"
    else:
        counted, needed, few = row["goodput_settled"], MIN_SETTLED, FEW_SETTLED
    return "" if counted >= needed else f"{counted:.0f} {few}, {needed} needed"


@dataclass
class _PairedRuns:
    """The pairs of runs of a comparison, by the run of the reference, and why runs of it are not compared.

    `rows`: pairs with a value on both sides; `states`: whether counters show arm and reference active, as far as both
    delivered something; `unusable`: pairs that may enter no verdict; `inactive`, `reasons`: side and run -> why.
    `arm_was_active`: whether counters show the arm active in any run.
    """

    rows: dict[int, tuple[Mapping[str, Any], Mapping[str, Any]]] = field(
        default_factory=dict
    )
    states: dict[int, tuple[bool | None, bool | None]] = field(default_factory=dict)
    unusable: set[int] = field(default_factory=set)
    inactive: dict[tuple[Side, int], Exclusion] = field(default_factory=dict)
    reasons: dict[tuple[Side, int], Exclusion] = field(default_factory=dict)
    arm_was_active: bool = False

    @property
    def never_active(self) -> bool:
        """Whether counters show the arm idle wherever they were read, against a reference without an active tier."""
        idle = all(
            arm is False and not reference for arm, reference in self.states.values()
        )
        return bool(self.states) and idle and not self.arm_was_active

    @property
    def idle(self) -> set[int]:
        """The runs in which counters show a side idle."""
        return {run for run, state in self.states.items() if False in state}

    @property
    def aside(self) -> Set[int]:
        """The runs that do not show what is asked of the arm: what it gains, or what it costs if it never was active.

        Only runs that are known to be idle show what an idle arm costs.
        """
        return self.rows.keys() - self.idle if self.never_active else self.idle

    @property
    def usable(self) -> list[int]:
        """The runs that may enter a verdict."""
        return sorted(self.rows.keys() - self.unusable - self.aside)

    @property
    def enough(self) -> bool:
        """Whether the usable runs are enough for a verdict."""
        return len(self.usable) >= MIN_RUNS

    @property
    def kept(self) -> list[int]:
        """The runs that give the effect: the usable ones; of too few, all that show what is asked, else all."""
        if self.enough:
            return self.usable
        return sorted(self.rows.keys() - self.aside) or sorted(self.rows)

    @property
    def too_idle(self) -> bool:
        """Whether idle runs are the reason for no verdict, as with them there would have been enough."""
        if self.never_active:
            return True
        with_idle = len(self.usable) + len(self.idle - self.unusable)
        otherwise_enough = with_idle >= MIN_RUNS or not self.rows.keys() - self.idle
        return bool(self.idle) and not self.enough and otherwise_enough

    def exclusions(self, pairing: Pairing) -> dict[tuple[Side, int], Exclusion]:
        """Return why runs are left out, by side and run."""
        if not self.never_active:
            return self.inactive | self.reasons
        unknown = Exclusion("activity not known")
        aside = self.aside
        not_known: dict[tuple[Side, int], Exclusion] = {
            ("arm", arm_run): unknown for arm_run, run in pairing.pairs if run in aside
        }
        return not_known | self.reasons


def _gather(
    entry: ComparedCell,
    pairing: Pairing,
    levels: tuple[Mapping[int, int], Mapping[int, int]],
    cells: tuple[CellRows, CellRows],
    absent: tuple[Collection[int], Collection[int]],
) -> _PairedRuns:
    """Return the pairs of runs of a comparison, each with a value or with the reason why it has none."""
    metric: str = entry.row["metric"]
    missing = _not_measured(cells)
    gathered = _PairedRuns()
    for side, numbers in zip(SIDES, absent, strict=True):
        gathered.reasons |= {(side, run): missing for run in numbers}
    originals: dict[tuple[float | None, ...], tuple[Side, int]] = {}
    for arm_run, run in pairing.pairs:
        ours, theirs = (
            cells[n].get((at, levels[n].get(at, 0)))
            for n, at in enumerate((arm_run, run))
        )
        state = is_active(ours), is_active(theirs)
        gathered.arm_was_active |= bool(state[0])
        gaps = _gaps((arm_run, run), (ours, theirs), metric, missing)
        # Counters at rest do not show an idle arm where nothing was delivered.
        if state != (None, None) and not any(gap.failed for gap in gaps.values()):
            gathered.states[run] = state
        if False in state:
            gathered.inactive["arm", arm_run] = Exclusion("not active")
        if not gaps and ours is not None and theirs is not None:
            gaps = _copies((arm_run, run), (ours, theirs), originals, entry)
        gathered.reasons |= gaps
        if gaps or ours is None or theirs is None:
            continue
        gathered.rows[run] = ours, theirs
        if defects := _defects((arm_run, run), (ours, theirs), metric):
            gathered.reasons |= defects
            gathered.unusable.add(run)
    return gathered


def collect_values(
    entry: ComparedCell,
    pairing: Pairing,
    levels: tuple[Mapping[int, int], Mapping[int, int]],
    cells: tuple[CellRows, CellRows],
    absent: tuple[Collection[int], Collection[int]] = ((), ()),
) -> None:
    """Fill in an entry's values, and its obstacle if it gets no verdict.

    `levels`: run -> level that is compared, `cells`: rows, and `absent`: runs that were not measured, each of arm and
    reference. Runs in which an arm was not active, without a value, on unlike machines, equal to another to the digit,
    or with a level that failed a check, are left out, each with its reason. If too few remain for a verdict, all runs
    with active arms are kept to describe the effect; if there are none, all runs. An arm that was not active in any
    run, against a cell that was not either, is idle: its runs show what it costs.
    """
    gathered = _gather(entry, pairing, levels, cells, absent)
    rows, kept = gathered.rows, gathered.kept
    entry.idle = gathered.never_active
    entry.active = not gathered.too_idle if gathered.states else None
    entry.runs_left_out = gathered.exclusions(pairing)
    # The runs of a bridge have other numbers on the other side.
    numbered = set() if pairing.kind == "bridge" else rows.keys()
    entry.left_out = exclusions_text(entry, entry.runs_left_out, of_both=numbered)
    arm_rows, reference_rows = (
        [rows[run][0] for run in kept],
        [rows[run][1] for run in kept],
    )
    entry.sides = Sides(entry.row["metric"], reference_rows, arm_rows)
    entry.other_time = pairing.kind == "other time"
    blocks = (
        len(pairing.pairs) + len(pairing.separate_pairs) + len({*absent[0], *absent[1]})
    )
    if not gathered.enough:
        entry.obstacle = _obstacle(entry, blocks, len(gathered.usable), len(rows))
    few_runs = entry.obstacle
    entry.add_evidence(*_hardware(rows, len(gathered.usable)))
    entry.add_evidence(*_activity(gathered))
    entry.add_evidence(
        _BLOCKS[pairing.kind], *evidence_of_levels(entry.sides), *_runs(entry, blocks)
    )
    if changed := wrong_answers(_rows_of_pairs(pairing, levels, cells)):
        entry.add_evidence(changed)
    if few_runs not in ("", SINGLE):
        # The obstacle lists all; if it is another one now, what failed is still named.
        failed = {key: run for key, run in entry.runs_left_out.items() if run.failed}
        entry.left_out = (
            exclusions_text(entry, failed, of_both=numbered)
            if entry.obstacle != few_runs
            else ""
        )
    compared = [levels[1].get(run, 0) for run in kept]
    entry.row |= {
        "runs": len(kept),
        "levels_compared": ";".join(map(str, sorted(set(compared)))),
    }
    # Cells are estimated together, with a shared residual, if they were measured in the same blocks.
    entry.group = (
        pairing.kind,
        {"bridge": entry.reference, "repeated": entry.arm}.get(pairing.kind),
        tuple(kept),
        len(rows.keys() - gathered.unusable) < MIN_RUNS,
        tuple(compared),
    )


def _rows_of_pairs(
    pairing: Pairing,
    levels: tuple[Mapping[int, int], Mapping[int, int]],
    cells: tuple[CellRows, CellRows],
) -> list[Mapping[str, Any]]:
    """The rows of all paired runs, of arm and reference, as far as the levels were measured."""
    rows = []
    for pair in pairing.pairs:
        for run, levels_of_side, rows_of_side in zip(pair, levels, cells, strict=True):
            row = rows_of_side.get((run, levels_of_side.get(run, 0)))
            if row is not None:
                rows.append(row)
    return rows


def is_active(row: Mapping[str, Any] | pd.Series[Any] | None) -> bool | None:
    """Return whether the arm was active, by a row of levels.csv or peak.csv; None without a row, or if it is not known.

    It is what `analysis.levels.activity` decided of the level, or of all runs at the peak.
    """
    if row is None or pd.isna(row["exercised"]):
        return None
    return bool(row["exercised"])


def refuse_unknown_latencies(
    entry: ComparedCell,
    pairing: Pairing,
    levels: tuple[Mapping[int, int], Mapping[int, int]],
    cells: tuple[CellRows, CellRows],
) -> None:
    """Refuse a filled entry its verdict if too few runs have a known latency.

    `levels` and `cells`: as for `collect_values`.
    """
    sides = ("the arm", "the cell it is compared with")
    reasons: dict[tuple[int, int], str] = {}
    for pair in pairing.pairs:
        for side, of_runs, of_level, run in zip(
            sides, cells, levels, pair, strict=True
        ):
            row = of_runs.get((run, of_level.get(run, 0)))
            if row is not None and (
                reason := unknown_latency(row, entry.row["metric"])
            ):
                reasons.setdefault(pair, f"in {side}, {reason}")
    if reasons and len(pairing.pairs) - len(reasons) < MIN_RUNS:
        many = f"{len(reasons)} of {len(pairing.pairs)} runs"
        entry.add_evidence(
            Evidence(
                "latencies",
                "not known",
                "refuses",
                f"{next(iter(reasons.values()))} ({many})",
            )
        )
        entry.left_out = ""


def _activity(gathered: _PairedRuns) -> list[Evidence]:
    """The evidence from whether the arms were active; none where that is not known."""
    if gathered.never_active:
        return [Evidence("activity", "not active")]
    if not gathered.states:
        return []
    arm_idle = any(arm is False for arm, _ in gathered.states.values())
    whose = "the arm" if arm_idle else "the cell it is compared with"
    known = len(gathered.states)
    active = known - len(gathered.idle)
    summary, reason = f"active in {active} of {known} runs", ""
    if not active:
        summary, reason = "not active", idle_reason(whose)
    elif gathered.too_idle:
        reason = f"{whose}'s own counters rose in {active} of {known} runs at this level, {MIN_RUNS} needed"
    return [Evidence("activity", summary, "refuses" if reason else "sound", reason)]


def idle_reason(whose: str = "the arm") -> str:
    """Return the reason that counters give where a tier was idle."""
    return f"by its own counters {whose} served next to nothing at this level"


def _obstacle(entry: ComparedCell, blocks: int, fit: int, known: int) -> str:
    """The reason why too few of the `blocks` are fit for a verdict; `known`: how many have a value on both sides."""
    reasons = entry.runs_left_out.values()
    if not known:
        return (
            f"no run has a value in both cells: {entry.left_out}"
            if any(run.summary for run in reasons)
            else NO_LEVEL
        )
    if fit == 1 and all(run.reason == NOT_MEASURED for run in reasons):
        return SINGLE
    return (
        f"{fit} of {blocks} runs usable in {FEW_RUNS}: {entry.left_out}"
        if reasons
        else f"{fit} runs of {FEW_RUNS}"
    )


def _not_measured(cells: tuple[CellRows, CellRows]) -> Exclusion:
    """The reason of a run that was not measured; nobody knows how many imported runs there should have been."""
    imported = any(
        row.get("engine") == IMPORTED for rows in cells for row in rows.values()
    )
    return Exclusion(NOT_MEASURED, NOT_MEASURED, failed=not imported)


def _machine(row: Mapping[str, Any]) -> str:
    """A text that is equal on equal machines, "" if it was not recorded."""
    hardware = row.get("hardware")
    return hardware if isinstance(hardware, str) else ""


def _gaps(
    runs: tuple[int, int],
    pair: tuple[Mapping[str, Any] | None, Mapping[str, Any] | None],
    metric: str,
    missing: Exclusion,
) -> dict[tuple[Side, int], Exclusion]:
    """The reasons why runs of a pair, of arm and reference, have no value, by side and run; empty if both have one."""
    exclusions: dict[tuple[Side, int], Exclusion] = {}
    for side, run, row in zip(SIDES, runs, pair, strict=True):
        reason = NO_ROW if row is None else missing_value_reason(row, metric)
        if row is None:
            exclusions[side, run] = missing._replace(reason=NO_ROW)
        elif reason:
            # A latency that was not recorded says nothing of how long it was.
            failed = reason != NO_VALUE or metric == THROUGHPUT
            unknown = unknown_latency(row, metric) if reason == NO_VALUE else ""
            exclusions[side, run] = Exclusion(
                unknown or reason, reason.partition(" (")[0], failed
            )
    reasons = {exclusion.reason for exclusion in exclusions.values()}
    lacks_alike = reasons in ({NO_ROW}, {NO_VALUE})
    if len(exclusions) == len(SIDES) and (
        lacks_alike or not any(exclusion.failed for exclusion in exclusions.values())
    ):
        # What neither side has is no finding about one of them.
        return {
            key: Exclusion(exclusion.reason) for key, exclusion in exclusions.items()
        }
    return exclusions


def _copies(
    runs: tuple[int, int],
    pair: tuple[Mapping[str, Any], Mapping[str, Any]],
    originals: dict[tuple[float | None, ...], tuple[Side, int]],
    entry: ComparedCell,
) -> dict[tuple[Side, int], Exclusion]:
    """The runs of a pair that repeat one of `originals` to the digit, as only a copy does; others are added to it."""
    exclusions: dict[tuple[Side, int], Exclusion] = {}
    for side, run, row in zip(SIDES, runs, pair, strict=True):
        measured = [number(row, name) for name in MEASURED]
        # NaN is not equal to itself.
        values = tuple(None if np.isnan(value) else value for value in measured)
        first = originals.setdefault(values, (side, run))
        if first != (side, run):
            whose = f" of {_label(entry, first[0])}" if first[0] != side else ""
            exclusions[side, run] = Exclusion(
                f"equal to run {first[1]}{whose} to the digit", "copied"
            )
    return exclusions


def _defects(
    runs: tuple[int, int],
    pair: tuple[Mapping[str, Any], Mapping[str, Any]],
    metric: str,
) -> dict[tuple[Side, int], Exclusion]:
    """The reasons why values of a pair, of arm and reference, may enter no verdict, by side and run; {} if they may."""
    exclusions: dict[tuple[Side, int], Exclusion] = {}
    if _machine(pair[0]) != _machine(pair[1]):
        exclusions["arm", runs[0]] = Exclusion("on another machine")
    for side, run, row in zip(SIDES, runs, pair, strict=True):
        if reason := unfit_reason(row, metric):
            failed = failed_checks(row, metric == THROUGHPUT)
            summary = "failed a check" if failed else "left out"
            if reason in SET_BY_THE_LOAD:
                summary = ""
            exclusions[side, run] = Exclusion(
                reason, summary, failed=any(name in _OF_SERVER for name in failed)
            )
    return exclusions


def _hardware(
    rows: Mapping[int, Sequence[Mapping[str, Any]]], usable: int
) -> list[Evidence]:
    """The evidence from the machines of the pairs of each run, of which so many are `usable`; none without a pair."""
    pairs = [tuple(map(_machine, pair)) for pair in rows.values()]
    if not pairs:
        return []
    unlike = sum(ours != theirs for ours, theirs in pairs)
    where = f" in {unlike} of {len(pairs)} runs" if unlike < len(pairs) else ""
    if unlike and (not where or usable < MIN_RUNS <= usable + unlike):
        return [
            Evidence(
                "hardware", "other hardware", "refuses", f"{OTHER_HARDWARE}{where}"
            )
        ]
    if unlike:
        return [Evidence("hardware", f"other hardware{where}", "qualifies")]
    machines = {name for pair in pairs for name in pair}
    if "" in machines:
        return [Evidence("hardware", "machine not recorded", "unknown")]
    return [
        Evidence(
            "hardware",
            "one machine" if len(machines) < 2 else "one machine in each run",
        )
    ]


def _runs(entry: ComparedCell, blocks: int) -> list[Evidence]:
    """The evidence from the runs that are left out; none if no run is, or if it says nothing of either cell."""
    counts = Counter(
        (side, run.summary)
        for (side, _), run in entry.runs_left_out.items()
        if run.summary
    )
    if not counts:
        return []
    summary = ", ".join(
        f"{count} of {blocks} runs of {_label(entry, side)} {what}"
        for (side, what), count in counts.items()
    )
    failed = Counter(
        side for (side, _), run in entry.runs_left_out.items() if run.failed
    )
    many = tuple(side for side in SIDES if failed[side] > MOST_FAILED * blocks)
    return [Evidence("runs", summary, "qualifies", against=many)]


def exclusions_text(
    entry: ComparedCell,
    runs: Mapping[tuple[Side, int], Exclusion],
    of_both: Collection[int] = (),
) -> str:
    """Return which runs are left out and why; those `of_both` have a value in both cells, and name none."""
    both = {
        (run, exclusion.reason): None
        for (_, run), exclusion in sorted(runs.items())
        if run in of_both
    }
    sided: dict[tuple[Side, str], list[str]] = {}
    for (side, run), exclusion in sorted(runs.items()):
        if run not in of_both:
            sided.setdefault((side, exclusion.reason), []).append(str(run))
    parts = [f"run {run}: {reason}" for run, reason in sorted(both)]
    for (side, reason), numbers in sided.items():
        parts.append(
            f"run{'s' * (len(numbers) > 1)} {', '.join(numbers)} of {_label(entry, side)}: {reason}"
        )
    return "; ".join(parts)


def _label(entry: ComparedCell, side: Side) -> str:
    cell = entry.arm if side == "arm" or entry.reference is None else entry.reference
    return cell.label
