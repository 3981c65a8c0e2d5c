"""Blocks of runs that other programs disturbed, and how many blocks a campaign needs in their place.

A block has one run of every cell. A disturbed run says little of its cell, and by it its block little of any
comparison. So further blocks are measured, of all cells alike: no run is repeated because of its result.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kveval.host.quiet import DISTURBED_PERCENT
from kveval.load.sample_sizes import MIN_RUNS
from kveval.store.run_file import Run


@dataclass(frozen=True)
class DisturbedBlocks:
    """The disturbed runs of a campaign of `planned` runs a cell, in the order of their blocks; none of bridges."""

    planned: int
    runs: tuple[Run, ...]

    @classmethod
    def from_runs(cls, runs: Iterable[Run], planned: int) -> DisturbedBlocks:
        """Return those of a campaign's runs in which other programs took more than 10 % of the processors' time."""
        disturbed = [
            run
            for run in runs
            if run.run <= planned and run.others_percent > DISTURBED_PERCENT
        ]
        return cls(planned, tuple(sorted(disturbed, key=lambda run: run.run)))

    @property
    def blocks(self) -> list[int]:
        """The numbers of the blocks with a disturbed run; they are the numbers of its runs."""
        return list(dict.fromkeys(run.run for run in self.runs))

    @property
    def quiet(self) -> int:
        """How many blocks have no disturbed run, those included that are not measured yet."""
        return self.planned - len(self.blocks)

    @property
    def needed(self) -> int:
        """How many further blocks are needed for as many quiet ones as a verdict rests on, or the campaign plans."""
        return max(0, min(self.planned, MIN_RUNS) - self.quiet)
