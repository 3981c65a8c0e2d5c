"""Runs that other programs disturbed, and how many blocks a campaign needs in place of theirs.

A block has one run of every cell. A disturbed run says little of its cell, and by it its block little of any
comparison. So further blocks are measured, of all cells alike: no run is repeated because of its result.
"""

from __future__ import annotations

from collections.abc import Iterable

from kveval.host.disturbance import DISTURBED_PERCENT
from kveval.load.sample_sizes import MIN_RUNS
from kveval.store.run_file import Run


def disturbed_runs(runs: Iterable[Run], planned: int) -> list[Run]:
    """Return the runs in which other programs took more than 10 % of the processors' time.

    `planned`: the runs of a cell that the campaign asks for; those of bridges, with higher numbers, are in no block.
    """
    return [
        run
        for run in runs
        if run.run <= planned and run.others_percent > DISTURBED_PERCENT
    ]


def blocks_to_add(disturbed: Iterable[Run], planned: int) -> int:
    """Return how many blocks are needed for as many quiet ones as a verdict rests on, or as the campaign plans.

    Blocks that are not measured yet count as quiet.
    """
    quiet = planned - len({run.run for run in disturbed})
    return max(0, min(planned, MIN_RUNS) - quiet)
