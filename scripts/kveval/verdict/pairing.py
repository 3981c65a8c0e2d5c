"""Pairs of runs of two cells that are compared with each other.

A block is a time in which every cell is measured once, in random order. Its runs have the same number, unless a cell was
measured again beside new ones. Runs of a later day share no block with earlier runs, whatever their numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

import numpy as np

from kveval.store.run_file import IMPORTED

Row = Mapping[str, Any]
"""A row of complete_metrics.csv."""
CellRows = Mapping[tuple[int, int], Row]
"""Run and level -> row."""
# Start and end, seconds since 1970.
Span = tuple[float, float]
Spans = Mapping[int, Span]
Pairs = tuple[tuple[int, int], ...]
# With this many pairs measured together, a comparison uses blocks even if other pairs were not.
_ENOUGH = 3


@dataclass(frozen=True)
class Pairing:
    """Pairs of runs (arm's, reference's). `together`: whether they are blocks, each measured at one time.

    `separate_pairs`: those that were not, and are left out because enough others were.
    """

    pairs: Pairs
    together: bool = True
    separate_pairs: Pairs = ()

    @property
    def by_number(self) -> bool:
        """Whether the runs of every pair have one number."""
        return all(arm == reference for arm, reference in self.pairs)


@dataclass(frozen=True)
class PairedRuns:
    """The runs of two cells that are compared in a metric, each at its level; pairs of values are of arm and reference.

    `levels`: run -> level; `rows`: all rows of the cells; `absent`: runs that a cell lacks; `labels`: names of the cells;
    `with_smaller`: whether the second cell is a smaller size of the first one's arm; `differs`: the settings in which the
    two are declared to differ.
    """

    metric: str
    pairing: Pairing
    levels: tuple[Mapping[int, int], Mapping[int, int]] = ({}, {})
    rows: tuple[CellRows, CellRows] = ({}, {})
    absent: tuple[frozenset[int], frozenset[int]] = (frozenset(), frozenset())
    labels: tuple[str, str] = ("", "")
    with_smaller: bool = False
    differs: tuple[str, ...] = ()

    def row(self, side: int, run: int) -> Row | None:
        """Return the row of a run of a side, 0 or 1, at its level; None without one."""
        return self.rows[side].get((run, self.levels[side].get(run, 0)))

    @cached_property
    def imported(self) -> bool:
        """Whether results were imported, so that nobody knows how many runs there should be."""
        return any(
            row.get("engine") == IMPORTED for rows in self.rows for row in rows.values()
        )

    @property
    def measured(self) -> tuple[list[int], list[int]]:
        """The numbers of the runs of each cell."""
        return _run_numbers(self.rows[0]), _run_numbers(self.rows[1])


def _run_numbers(rows: CellRows) -> list[int]:
    return sorted({run for run, _ in rows})


def run_spans(rows: Iterable[Mapping[str, Any]]) -> dict[int, Span]:
    """Return when each run of a cell was measured, from run_started and run_finished; NaN where that is not known."""
    return {
        int(row["run"]): (
            epoch_seconds(row.get("run_started")),
            epoch_seconds(row.get("run_finished")),
        )
        for row in rows
    }


def epoch_seconds(text: object) -> float:
    """Return a time in ISO 8601 as seconds since 1970; NaN for any other text."""
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return np.nan


def pair_runs(arm: Spans, reference: Spans, pauses: Sequence[float] = ()) -> Pairing:
    """Pair the runs of two cells: those that were measured together, by number, or else whatever their numbers are.

    `pauses`: when the campaign paused, s since 1970. If too few were measured together, all that could be paired are,
    as runs of different times. Runs of unknown time count as measured together.
    """

    numbered = tuple((run, run) for run in sorted(arm.keys() & reference.keys()))
    nearest = _nearest(arm, reference)
    for pairs in (numbered, nearest):
        blocks = tuple(
            pair for pair in pairs if _in_one_block(*pair, arm, reference, pauses)
        )
        if blocks and len(blocks) >= min(_ENOUGH, len(pairs)):
            separate = tuple(pair for pair in pairs if pair not in blocks)
            return Pairing(blocks, separate_pairs=separate)
    pairs = numbered or nearest
    return Pairing(pairs, together=not pairs)


def absent_runs(
    pairing: Pairing,
    arm: Spans,
    reference: Spans,
    requested_runs: tuple[int, int] | None,
    pauses: Sequence[float],
) -> tuple[set[int], set[int]]:
    """Return the runs that the arm and the reference lack, each: asked for, or measured of the other cell alone.

    `requested_runs`: the numbers of runs that the campaign asks for, of arm and reference. A run that both cells lack is not
    among them, nor is one that only one of them is asked for, to be measured beside other cells. Where they are not
    known, a run is only missing if the cell has others between the same `pauses` of the campaign, s since 1970.
    """
    if not pairing.by_number:
        # The reference's runs have other numbers, and those of other times are not asked for.
        requested_of_arm = requested_runs[0] if requested_runs else 0
        return set(range(1, requested_of_arm + 1)) - arm.keys(), set()
    of_arm, of_reference = reference.keys() - arm.keys(), arm.keys() - reference.keys()
    if requested_runs is not None:
        requested = set(range(1, min(requested_runs) + 1))
        return of_arm & requested, of_reference & requested
    return (
        {run for run in of_arm if _has_run_beside(arm, reference[run], pauses)},
        {run for run in of_reference if _has_run_beside(reference, arm[run], pauses)},
    )


def _has_run_beside(runs: Spans, span: Span, pauses: Sequence[float]) -> bool:
    """Whether any of a cell's runs was measured between the same two pauses as `span`; unknown times may have been."""
    starts = np.array([begin for begin, _ in runs.values()])
    if not np.isfinite([*starts, span[0]]).all():
        return True
    return bool(
        (np.searchsorted(pauses, starts) == np.searchsorted(pauses, span[0])).any()
    )


def _in_one_block(
    arm_run: int,
    reference_run: int,
    arm: Spans,
    reference: Spans,
    pauses: Sequence[float],
) -> bool:
    """Whether two runs may be of one block: neither cell ran again, and the campaign did not pause, between them.

    The machine's state is then about the same for both: what lies between them are runs of other cells of the block.
    """
    ours, theirs = arm[arm_run], reference[reference_run]
    if not np.isfinite([*ours, *theirs]).all():
        return True
    begin, end = min(ours[1], theirs[1]), max(ours[0], theirs[0])
    if any(begin <= pause <= end for pause in pauses):
        return False
    others = [
        span
        for runs, own in ((arm, arm_run), (reference, reference_run))
        for run, span in runs.items()
        if run != own
    ]
    return not any(begin <= first and last <= end for first, last in others)


def _nearest(arm: Spans, reference: Spans) -> Pairs:
    """Pair the arm's successive runs with the successive runs of the reference that are nearest in time."""
    ours, theirs = _by_time(arm), _by_time(reference)
    count = min(len(ours), len(theirs))
    if not count:
        return ()
    windows = [
        (ours[first : first + count], theirs[second : second + count])
        for first in range(len(ours) - count + 1)
        for second in range(len(theirs) - count + 1)
    ]

    def distance(window: tuple[list[int], list[int]]) -> float:
        return sum(
            abs(arm[arm_run][0] - reference[reference_run][0])
            for arm_run, reference_run in zip(*window, strict=True)
        )

    best = min(windows, key=distance)
    return tuple(zip(*best, strict=True))


def _by_time(spans: Spans) -> list[int]:
    return sorted(
        (run for run, (begin, _) in spans.items() if np.isfinite(begin)),
        key=lambda run: spans[run][0],
    )
