"""The .index file: where in the volumes a time window lies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kveval.pcp.archive.files import Member, Stream
from kveval.pcp.archive.problems import ProblemLog
from kveval.pcp.archive.wire import INDEX_ENTRY, LABEL_SIZE, NANOSECONDS, nanoseconds_v3, parse_label

# An entry is written every few seconds at most: 64 MiB are decades.
MAX_INDEX = 64 << 20


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """No record before `offset` of `volume` is later than `time_ns`; the records from there on are not earlier."""

    time_ns: int
    volume: int
    offset: int


def read_index(member: Member | None, version: int, problems: ProblemLog) -> list[IndexEntry]:
    """The entries, in the order of the file; none if it is missing or damaged (it only saves time)."""
    if member is None:
        return []
    stream = Stream(member, problems)
    data = stream.read_all(MAX_INDEX)
    stream.close()
    label = parse_label(data)
    if label is None or label.version != version:
        problems.add("bad index", member.name, "no label of this archive at its start; the volumes are read through")
        return []
    layout = INDEX_ENTRY[version]
    body = data[LABEL_SIZE[version] :]
    whole = len(body) // layout.size * layout.size
    if whole < len(body):
        problems.add("bad index", member.name, f"{len(body) - whole} bytes at the end are no whole entry")
    entries = [_entry(fields, version) for fields in layout.iter_unpack(body[:whole])]
    order = [(entry.volume, entry.offset) for entry in entries]
    times = [entry.time_ns for entry in entries]
    if order != sorted(order) or times != sorted(times):
        problems.add("bad index", member.name, "entries out of order; the volumes are read through")
        return []
    return entries


def _entry(fields: tuple[int, ...], version: int) -> IndexEntry:
    if version == 2:
        seconds, micros, volume, _, offset = fields
        return IndexEntry(seconds * NANOSECONDS + micros * 1000, volume, offset)
    low, high, nanos, volume, _, offset = fields
    return IndexEntry(nanoseconds_v3(low, high, nanos), volume, offset)


def bounds(
    entries: Sequence[IndexEntry], start_ns: int | None, finish_ns: int | None
) -> tuple[IndexEntry | None, IndexEntry | None]:
    """Where reading may begin and end for a closed window: the last entry before it, the first one after it."""
    before = [entry for entry in entries if start_ns is not None and entry.time_ns < start_ns]
    after = [entry for entry in entries if finish_ns is not None and entry.time_ns > finish_ns]
    return (before[-1] if before else None), (after[0] if after else None)
