"""Impossible descriptors and times in .meta, which pmlogcheck(1) looks for in its second pass; times out of order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pcp_parquet.archive.meta import INDOM_NULL, Desc, Metadata
from pcp_parquet.archive.problems import ProblemLog
from pcp_parquet.archive.records import Block
from pcp_parquet.archive.units import SEMANTICS, TYPES, indom_string, type_name
from pcp_parquet.archive.wire import Label, iso

NOT_SUPPORTED = -1
# Logged derived metrics have PMIDs of this domain, but instance domains of other domains.
DYNAMIC = 511
# PM_SPACE_EBYTE and PM_TIME_HOUR, the largest for pmlogcheck; libpcp prints Zbyte and Ybyte, but does not convert them.
_LARGEST_SPACE, _LARGEST_TIME = 6, 5
_LARGEST_DIMENSION = 2
# A single time is damaged if it is off by more than this many intervals; a clock step keeps the intervals.
_OFF = 1.5


def check_metadata(
    metadata: Metadata,
    where: str,
    label: Label,
    end_ns: int | None,
    problems: ProblemLog,
) -> None:
    """Report what is impossible in an archive's .meta; `end_ns` is the time of the last record, None if unknown."""
    for desc in metadata.descs.values():
        if desc.type not in range(NOT_SUPPORTED, len(TYPES)):
            problems.add(
                "bad metadata", where, f"{desc.names[0]} has {type_name(desc.type)}"
            )
        for oddity in _oddities(desc) if desc.type != NOT_SUPPORTED else ():
            problems.add("odd metadata", where, f"{desc.names[0]} has {oddity}")
    for indom, history in metadata.domains.items():
        damaged = [name for _, _, name in history.events if not _is_text(name)]
        if damaged:
            message = f"domain {indom_string(indom)} has {len(damaged):,} names that are not text"
            problems.add(
                "odd metadata", where, f"{message}, such as {damaged[0]!r:.60}"
            )
    last = 0
    for offset, time in metadata.stamps:
        if time < label.start_ns:
            problems.add(
                "odd metadata",
                where,
                "a record is older than the archive's start",
                offset,
            )
        elif end_ns is not None and time > end_ns:
            problems.add(
                "odd metadata",
                where,
                "a record is later than the last one with values",
                offset,
            )
        elif time < last:
            problems.add(
                "odd metadata",
                where,
                "a record is older than the one before it",
                offset,
            )
        last = time


def _is_text(name: str) -> bool:
    """Whether a name is printable and its bytes were UTF-8 (other bytes appear as backslash escapes)."""
    return bool(name) and name.isprintable() and "\\x" not in name


def _oddities(desc: Desc) -> Iterator[str]:
    if not all(_is_text(name) and " " not in name for name in desc.names):
        yield "an invalid name"
    if desc.semantics not in SEMANTICS:
        yield f"unknown semantics {desc.semantics}"
    domain = desc.pmid >> 22 & 0x1FF
    if desc.indom != INDOM_NULL and domain not in (desc.indom >> 22 & 0x1FF, DYNAMIC):
        yield f"instances of domain {desc.indom >> 22 & 0x1FF} and is of domain {domain}"
    scales = (desc.units >> 16 & 15, desc.units >> 12 & 15, desc.units >> 8 & 15)
    for name, shift, scale, largest in zip(
        ("space", "time", "count"),
        (28, 24, 20),
        scales,
        (_LARGEST_SPACE, _LARGEST_TIME, 15),
        strict=True,
    ):
        dimension = (desc.units >> shift & 15 ^ 8) - 8
        if abs(dimension) > _LARGEST_DIMENSION:
            yield f"dimension {dimension} of {name}"
        if scale and not dimension:
            yield f"a scale of {name} without the dimension"
        if scale > largest:
            yield f"scale {scale} of {name}"


@dataclass
class Order:
    """Watches the times of one archive's records, which go back only where the clock was set or a time is damaged."""

    problems: ProblemLog
    start_ns: int

    def __post_init__(self) -> None:
        self._before = [self.start_ns]

    def watch(self, block: Block, where: str) -> None:
        """Check the times of a block, and report those that go back."""
        possible = np.flatnonzero(block.times >= 0)
        known = len(self._before)
        times = np.concatenate(
            [np.array(self._before, dtype=np.int64), block.times[possible]]
        )
        self._before = times[-2:].tolist()
        for number in (
            np.flatnonzero(times[known:] < times[known - 1 : -1]) + known
        ).tolist():
            last, now = times[number - 1].item(), times[number].item()
            before_last = times[number - 2].item() if number > 1 else None
            following = times[number + 1].item() if number + 1 < len(times) else None
            offset = block.offset + int(block.starts[possible[number - known]])
            back = f"time goes back by {(last - now) / 1e9:.6f} s to {iso(now)}"
            if before_last is None or following is None:
                single = following is not None and following >= last
            else:
                forward = before_last <= now and last - before_last > _OFF * abs(
                    following - now
                )
                single = forward or (
                    following >= last and following - now > _OFF * (last - before_last)
                )
            kind = "bad record" if single else "clock step"
            self.problems.add(
                kind, where, f"{back}{', in a single record' if single else ''}", offset
            )
