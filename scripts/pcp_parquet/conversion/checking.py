"""Checks whether a recording is complete: damage, gaps and clock steps."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pcp_parquet.archive.files import split_name
from pcp_parquet.archive.problems import ArchiveProblem, ProblemLog
from pcp_parquet.archive.records import Block
from pcp_parquet.archive.units import COUNTER, I32, I64, U32, U64
from pcp_parquet.archive.wire import iso
from pcp_parquet.conversion.catalog import Catalog
from pcp_parquet.conversion.chunks import Chunk
from pcp_parquet.conversion.conversion import ConversionSummary, survey

# A recording's interval varies by less than this factor; a longer silence is a gap.
GAP_FACTOR = 5.0
MIN_GAP_SECONDS = 2.0


@dataclass
class Rhythm:
    """Collects the times of all records of a source, at eight bytes per record."""

    _parts: dict[str, list[tuple[NDArray[np.int64], NDArray[np.bool_]]]] = field(
        default_factory=dict
    )
    """By archive: times, and whether the record is a mark."""

    def __call__(self, block: Block, where: str) -> None:
        """Take in the times of a block, and which of its records are marks."""
        possible = block.times >= 0
        parts = split_name(where)
        archive = parts[0] if parts else where
        self._parts.setdefault(archive, []).append(
            (block.times[possible], (block.counts == 0)[possible])
        )

    def findings(self) -> list[ArchiveProblem]:
        """Gaps: silence much longer than the archive's usual interval."""
        problems = ProblemLog()
        for archive, parts in self._parts.items():
            times, marks = (np.concatenate(part) for part in zip(*parts, strict=True))
            seconds = np.diff(times) / 1e9
            usual = seconds[seconds > 0]
            limit = (
                # Of few intervals the one below: the longest may be the gap itself.
                max(
                    MIN_GAP_SECONDS,
                    GAP_FACTOR * float(np.quantile(usual, 0.9, method="lower")),
                )
                if len(usual)
                else np.inf
            )
            # Next to a mark, the interruption is already known.
            for at in np.flatnonzero(
                (seconds > limit) & ~marks[1:] & ~marks[:-1]
            ).tolist():
                after = iso(int(times[at]))
                problems.add(
                    "gap",
                    archive,
                    f"nothing recorded for {seconds[at]:.3f} s after {after}",
                )
        return problems.all()


@dataclass
class Falls:
    """Counts the falls of integer counters: wraps or resets (pmlogcheck(1) reports all of them as wraps)."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    _last: dict[int, float] = field(default_factory=dict)
    _catalog: Catalog | None = None

    def __call__(self, chunk: Chunk, catalog: Catalog, host: str) -> None:
        """Count the falls in a chunk, and between it and the one before."""
        if catalog is not self._catalog:
            # Each archive numbers its series from 0.
            self._catalog, self._last = catalog, {}
        ends = np.cumsum(chunk.counts)
        before = np.concatenate([[np.nan], chunk.values[:-1]])
        begins = ends - chunk.counts
        before[begins] = [
            self._last.get(series, np.nan) for series in chunk.series.tolist()
        ]
        series = chunk.series[
            np.searchsorted(ends, np.flatnonzero(chunk.values < before), side="right")
        ]
        for number in series.tolist():
            desc = catalog.metrics[catalog.name(number)[0]]
            if desc.semantics == COUNTER and desc.type in (I32, U32, I64, U64):
                self.counts[host, desc.names[0]] += 1
        self._last.update(
            zip(chunk.series.tolist(), chunk.values[ends - 1].tolist(), strict=True)
        )

    def findings(self) -> list[ArchiveProblem]:
        """One finding for each metric."""
        return [
            ArchiveProblem(
                "counter fall",
                host,
                f"{name} is lower than before {count:,} times: wrapped or reset",
            )
            for (host, name), count in sorted(self.counts.items())
        ]


def check(source: str | Path) -> tuple[ConversionSummary, list[ArchiveProblem]]:
    """Read a whole archive; return what could be read, and all problems: none if it is complete.

    Kinds of damage (`ArchiveProblem.damage`): missing file, foreign file, truncated, bad record, bad metadata,
    bad index, unreadable, too large. Properties of the recording: gap, clock step, counter fall, no data, no index,
    index order, odd index, odd metadata, bad label, unnamed instance, not converted, metadata changed.
    """
    rhythm, falls = Rhythm(), Falls()
    summary = survey(source, watcher=rhythm, sink=falls)
    return summary, [*summary.problems, *rhythm.findings(), *falls.findings()]
