"""Pairs of runs: those of two cells that belong together.

Runs of one number are a block: every cell is measured once in it, in random order. A cell measured later than its
baseline shares no blocks with it, unless the baseline was measured again among the new cells.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import numpy as np

Kind = Literal["blocks", "bridge", "other time"]
# Start and end, seconds since 1970.
Span = tuple[float, float]


@dataclass(frozen=True)
class Pairing:
    """Pairs of runs (arm's, reference's). `kind`: blocks - run by run; bridge - with the runs that the reference has at
    the arm's time; other time - run by run, but measured apart, so that blocks do not hold.
    """

    pairs: tuple[tuple[int, int], ...]
    kind: Kind


def run_spans(rows: Iterable[Mapping[str, Any]]) -> dict[int, Span]:
    """Return when each run of a cell was measured, from run_started and run_finished; NaN where that is not known."""
    spans: dict[int, Span] = {}
    for row in rows:
        if int(row["run"]) not in spans:
            spans[int(row["run"])] = (_seconds(row.get("run_started")), _seconds(row.get("run_finished")))
    return spans


def _seconds(text: object) -> float:
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return np.nan


def pair_runs(arm: Mapping[int, Span], reference: Mapping[int, Span]) -> Pairing:
    """Pair the runs of two cells.

    Cells measured in the same blocks were measured over the same time: their spans overlap, from the first run's start
    to the last one's end. A single run has no block and is paired as it is. Runs of unknown time count as together.
    """
    common = sorted(arm.keys() & reference.keys())
    numbered = tuple((run, run) for run in common)
    if len(common) == 1 or (common and _together([arm[run] for run in common], [reference[run] for run in common])):
        return Pairing(numbered, "blocks")
    bridge = _nearest(arm, reference)
    if len(bridge) >= 2 and _together([arm[run] for run, _ in bridge], [reference[run] for _, run in bridge]):
        return Pairing(bridge, "bridge")
    return Pairing(numbered or bridge, "other time" if numbered or bridge else "blocks")


def _together(one: Sequence[Span], other: Sequence[Span]) -> bool:
    if not np.isfinite([*one, *other]).all():
        return True
    begins = max(min(begin for begin, _ in spans) for spans in (one, other))
    ends = min(max(end for _, end in spans) for spans in (one, other))
    return not begins > ends


def _nearest(arm: Mapping[int, Span], reference: Mapping[int, Span]) -> tuple[tuple[int, int], ...]:
    """Pair runs in the order of time with those successive runs of the reference that lie nearest."""
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
        return sum(abs(arm[one][0] - reference[other][0]) for one, other in zip(*window, strict=True))

    best = min(windows, key=distance)
    return tuple(zip(*best, strict=True))


def _by_time(spans: Mapping[int, Span]) -> list[int]:
    return sorted((run for run, (begin, _) in spans.items() if np.isfinite(begin)), key=lambda run: spans[run][0])
