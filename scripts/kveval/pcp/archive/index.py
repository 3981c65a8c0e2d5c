"""The .index file: where in the volumes a time window lies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from kveval.pcp.archive.member import Member, Stream
from kveval.pcp.archive.problems import ProblemLog
from kveval.pcp.archive.wire import (
    IMPOSSIBLE,
    INDEX_ENTRY,
    LABEL_SIZE,
    MICROSECONDS,
    NANOSECONDS,
    nanoseconds_v3,
    parse_label,
)

# An entry is written at most every few seconds, so 64 MiB last for decades.
MAX_INDEX = 64 << 20
# A larger number is damage, not a volume.
MAX_VOLUME = 999_999_999


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """No record before `offset` of `volume` is later than `time_ns`; the records from there on are not earlier.

    `meta` is the size that the .meta file had at that time.
    """

    time_ns: int
    volume: int
    offset: int
    meta: int


def read_index(member: Member | None, version: int, problems: ProblemLog, start_ns: int = 0) -> list[IndexEntry]:
    """The entries in file order; none if the file is missing or damaged, since the index only saves time.

    An entry before `start_ns`, the start of the archive, counts as damage.
    """
    if member is None:
        return []
    stream = Stream(member, problems)
    data = stream.read_all(MAX_INDEX)
    stream.close()
    label = parse_label(data)
    if label is None or label.version != version:
        problems.add("bad index", member.name, "no label of this archive at its start; the volumes are read through")
        return []
    layout, begin = INDEX_ENTRY[version], LABEL_SIZE[version]
    whole = (len(data) - begin) // layout.size * layout.size
    if begin + whole < len(data):
        rest = len(data) - begin - whole
        problems.add("bad index", member.name, f"{rest} bytes at the end are not a whole entry", begin + whole)
    entries = [_entry(fields, version) for fields in layout.iter_unpack(data[begin : begin + whole])]
    if not entries:
        problems.add("no index", member.name, "it holds no entry: a loss at the end of a volume cannot be seen")
    for number, entry in enumerate(entries):
        complaint = _impossible(entry, start_ns, begin)
        if complaint:
            offset = begin + number * layout.size
            problems.add("bad index", member.name, f"{complaint}; the volumes are read through", offset)
            return []
    for number, (before, entry) in enumerate(pairwise(entries), 1):
        same = entry.volume == before.volume
        if entry.time_ns < before.time_ns or entry.volume < before.volume:
            what = "is earlier, or in an earlier volume"
        elif same and (entry.offset < before.offset or entry.meta < before.meta):
            what = "points to an earlier offset"
        else:
            continue
        said = f"an entry {what} than the one before it; the volumes are read through"
        problems.add("index order", member.name, said, begin + number * layout.size)
        return []
    return entries


def _entry(fields: tuple[int, ...], version: int) -> IndexEntry:
    if version == 2:
        seconds, micros, volume, meta, offset = fields
        time_ns = seconds * NANOSECONDS + micros * 1000 if micros < MICROSECONDS else IMPOSSIBLE
        return IndexEntry(time_ns, volume, offset, meta)
    low, high, nanos, volume, meta, offset = fields
    return IndexEntry(nanoseconds_v3(low, high, nanos), volume, offset, meta)


def _impossible(entry: IndexEntry, start_ns: int, label_size: int) -> str:
    if entry.time_ns < start_ns:
        return "an entry has an impossible time or one before the archive's start"
    if entry.volume > MAX_VOLUME:
        return f"an entry names volume {entry.volume:,}"
    return "an entry points into a label" if min(entry.offset, entry.meta) < label_size else ""


def check_volumes(entries: Sequence[IndexEntry], present: Iterable[int], base: str, problems: ProblemLog) -> None:
    """Report each missing volume from 0 to the last one that is present or that the index names."""
    have = set(present)
    if not have:
        problems.add("missing file", base, "no data volume")
        return
    last = max(have | {entry.volume for entry in entries})
    for before, after in pairwise(sorted({-1, *have, last + 1})):
        if after > before + 1:
            gap = str(before + 1) if after == before + 2 else f"{before + 1} to {after - 1}"
            problems.add("missing file", base, f"volume {gap} is missing")


def check_size(entries: Sequence[IndexEntry], volume: int | None, size: int, where: str, problems: ProblemLog) -> None:
    """Report a volume (.meta if None) whose `size` in bytes is less than the index says."""
    reach = [entry.meta if volume is None else entry.offset for entry in entries if volume in (None, entry.volume)]
    if reach and max(reach) > size:
        problems.add("truncated", where, f"it ends here; by the index it had {max(reach):,} bytes", size)
