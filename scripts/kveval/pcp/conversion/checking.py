"""Is a recording whole? Damage, gaps and clock steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kveval.pcp.archive.files import split_name
from kveval.pcp.archive.problems import ArchiveProblem, ProblemLog
from kveval.pcp.archive.records import Block
from kveval.pcp.conversion.conversion import ConversionSummary, survey

# A recording's own rhythm varies by less than this; a longer silence is a gap.
GAP_FACTOR = 5.0
MIN_GAP_SECONDS = 2.0


@dataclass
class Rhythm:
    """Watches the times of all records of a source; eight bytes a record."""

    _times: dict[str, list[NDArray[np.int64]]] = field(default_factory=dict)
    _marks: dict[str, list[NDArray[np.bool_]]] = field(default_factory=dict)

    def __call__(self, block: Block, where: str) -> None:
        """Take in the times of a block, and which of its records are marks."""
        possible = block.times >= 0
        parts = split_name(where)
        archive = parts[0] if parts else where
        self._times.setdefault(archive, []).append(block.times[possible])
        self._marks.setdefault(archive, []).append((block.counts == 0)[possible])

    def findings(self) -> list[ArchiveProblem]:
        """Clock steps (time runs backwards) and gaps (silence much longer than the archive's usual interval)."""
        found = ProblemLog()
        for archive, parts in self._times.items():
            times, marks = np.concatenate(parts), np.concatenate(self._marks[archive])
            seconds = np.diff(times) / 1e9
            for at in np.flatnonzero(seconds < 0).tolist():
                to = _iso(int(times[at + 1]))
                found.add("clock step", archive, f"time goes back by {-seconds[at]:.6f} s to {to}")
            usual = seconds[seconds > 0]
            limit = max(MIN_GAP_SECONDS, GAP_FACTOR * float(np.quantile(usual, 0.9))) if len(usual) else np.inf
            # Beside a mark the interruption is known.
            for at in np.flatnonzero((seconds > limit) & ~marks[1:] & ~marks[:-1]).tolist():
                after = _iso(int(times[at]))
                found.add("gap", archive, f"nothing recorded for {seconds[at]:.3f} s after {after}")
        return found.all()


def _iso(time_ns: int) -> str:
    return f"{np.datetime64(time_ns, 'ns')}Z"


def check(source: str | Path) -> tuple[ConversionSummary, list[ArchiveProblem]]:
    """Read an archive through; return what could be read, and what is wrong with it: nothing if it is whole.

    Kinds of damage (`Problem.damage`): missing file, truncated, bad record, bad metadata, bad index, unreadable.
    Properties of the recording: gap, clock step, unnamed instance, not converted, metadata changed, bad label.
    """
    rhythm = Rhythm()
    summary = survey(source, watcher=rhythm)
    return summary, [*summary.problems, *rhythm.findings()]
