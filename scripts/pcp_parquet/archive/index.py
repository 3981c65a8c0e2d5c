"""The .index file: where in the volumes a time window lies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from pcp_parquet.archive.member import Member, Stream
from pcp_parquet.archive.problems import PERHAPS_LOST, ProblemLog
from pcp_parquet.archive.records import Block
from pcp_parquet.archive.wire import (
    IMPOSSIBLE,
    INDEX_ENTRY,
    LABEL_SIZE,
    MICROSECONDS,
    NANOSECONDS,
    iso,
    nanoseconds_v3,
    parse_label,
)

# An entry is written at most every few seconds, so 64 MiB last for decades.
MAX_INDEX = 64 << 20
# pmlogger's closing record is so much later than the one before it.
CLOSING_NS = 1_000_000
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


def read_index(
    member: Member | None, version: int, problems: ProblemLog, start_ns: int = 0
) -> list[IndexEntry]:
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
        problems.add(
            "bad index",
            member.name,
            "no label of this archive at its start; the volumes are read through",
        )
        return []
    layout, begin = INDEX_ENTRY[version], LABEL_SIZE[version]
    whole = (len(data) - begin) // layout.size * layout.size
    if begin + whole < len(data):
        rest = len(data) - begin - whole
        problems.add(
            "bad index",
            member.name,
            f"{rest} bytes at the end are not a whole entry",
            begin + whole,
        )
    entries = [
        _entry(fields, version)
        for fields in layout.iter_unpack(data[begin : begin + whole])
    ]
    if not entries:
        problems.add(
            "no index",
            member.name,
            "it holds no entry: a loss at the end of a volume cannot be seen",
        )
    for number, entry in enumerate(entries):
        complaint = _impossible(entry, start_ns, begin)
        if complaint:
            offset = begin + number * layout.size
            problems.add(
                "bad index",
                member.name,
                f"{complaint}; the volumes are read through",
                offset,
            )
            return []
    for number, (before, entry) in enumerate(pairwise(entries), 1):
        same = entry.volume == before.volume
        if entry.time_ns < before.time_ns or entry.volume < before.volume:
            what = "is earlier, or in an earlier volume"
        elif same and (entry.offset < before.offset or entry.meta < before.meta):
            what = "points to an earlier offset"
        else:
            continue
        message = (
            f"an entry {what} than the one before it; the volumes are read through"
        )
        problems.add("index order", member.name, message, begin + number * layout.size)
        return []
    return entries


def _entry(fields: tuple[int, ...], version: int) -> IndexEntry:
    if version == 2:
        seconds, micros, volume, meta, offset = fields
        time_ns = (
            seconds * NANOSECONDS + micros * 1000
            if micros < MICROSECONDS
            else IMPOSSIBLE
        )
        return IndexEntry(time_ns, volume, offset, meta)
    low, high, nanos, volume, meta, offset = fields
    return IndexEntry(nanoseconds_v3(low, high, nanos), volume, offset, meta)


def _impossible(entry: IndexEntry, start_ns: int, label_size: int) -> str:
    if entry.time_ns < start_ns:
        return "an entry has an impossible time or one before the archive's start"
    if entry.volume > MAX_VOLUME:
        return f"an entry names volume {entry.volume:,}"
    return (
        "an entry points into a label"
        if min(entry.offset, entry.meta) < label_size
        else ""
    )


def check_volumes(
    entries: Sequence[IndexEntry],
    present: Iterable[int],
    base: str,
    problems: ProblemLog,
) -> None:
    """Report each missing volume from 0 to the last one that is present or that the index names."""
    have = set(present)
    if not have:
        problems.add("missing file", base, "no data volume")
        return
    last = max(have | {entry.volume for entry in entries})
    for before, after in pairwise(sorted({-1, *have, last + 1})):
        if after > before + 1:
            gap = (
                str(before + 1)
                if after == before + 2
                else f"{before + 1} to {after - 1}"
            )
            problems.add("missing file", base, f"volume {gap} is missing")


def check_size(
    entries: Sequence[IndexEntry],
    volume: int | None,
    size: int,
    where: str,
    problems: ProblemLog,
) -> None:
    """Report a volume (.meta if None) whose `size` in bytes is less than the index says."""
    reach = [
        entry.meta if volume is None else entry.offset
        for entry in entries
        if volume in (None, entry.volume)
    ]
    if reach and max(reach) > size:
        problems.add(
            "truncated",
            where,
            f"it ends here; by the index it had {max(reach):,} bytes",
            size,
        )


def _sorted_offsets(entries: Iterable[IndexEntry]) -> NDArray[np.int64]:
    """Return the entries' offsets, each once, in ascending order."""
    offsets = np.array([entry.offset for entry in entries], dtype=np.uint64)
    return np.unique(offsets).astype(np.int64)


class IndexedRecords:
    """Compares the records of an archive, read from its first to its last, with what the index says of them.

    An entry is written at the start of a record, with that record's time; some old programs write it behind the
    record. It points to a record's start or to the end of the data in every sound archive. A record of its time need
    not be there: pmlogrewrite leaves out records whose metrics it deletes, but writes their entries.
    """

    def __init__(self, entries: Sequence[IndexEntry], problems: ProblemLog) -> None:
        self._problems = problems
        self._entries: dict[int, list[IndexEntry]] = {}
        for entry in entries:
            self._entries.setdefault(entry.volume, []).append(entry)
        self._offsets = {
            volume: _sorted_offsets(group) for volume, group in self._entries.items()
        }
        self._last_entry = entries[-1] if entries else None
        # Volume and indexed offset of a record -> its time and that of the record before it.
        self._times: dict[tuple[int, int], tuple[int, int]] = {}
        self._last_time = IMPOSSIBLE
        self._written_at_starts = False

    def watch(self, block: Block, volume: int) -> None:
        """Note the times around the indexed offsets in a block of a volume."""
        starts = block.offset + block.starts
        offsets = self._offsets.get(volume, np.empty(0, dtype=np.int64))
        offsets = offsets[(offsets >= starts[0]) & (offsets <= starts[-1])]
        for offset, number in zip(
            offsets.tolist(), np.searchsorted(starts, offsets).tolist(), strict=True
        ):
            if starts[number] == offset:
                before = block.times[number - 1].item() if number else self._last_time
                self._times[volume, offset] = block.times[number].item(), before
        self._last_time = block.times[-1].item()

    def check_volume(self, volume: int, size: int, where: str) -> None:
        """Report each entry of a volume, read to its end at `size` bytes, that its records contradict.

        A volume of which damage is known is left out: an entry may point to what is lost.
        """
        if self._is_damaged(where):
            return
        for number, entry in enumerate(self._entries.get(volume, [])):
            kind, complaint = self._contradiction(entry, size, first=number == 0)
            if complaint:
                message = f"by the index a record of {iso(entry.time_ns)} begins here; {complaint}"
                self._problems.add(kind, where, message, entry.offset)

    def _contradiction(
        self, entry: IndexEntry, size: int, *, first: bool
    ) -> tuple[str, str]:
        """A kind of problem and what is wrong with the record of an entry; ("", "") if nothing is."""
        lost = (
            PERHAPS_LOST,
            "it is lost, or a program such as pmlogrewrite has left it out",
        )
        if entry.offset >= size:
            return lost if entry.time_ns > self._last_time > IMPOSSIBLE else ("", "")
        if (entry.volume, entry.offset) not in self._times:
            return (
                "bad record",
                "no record does: a part of the file is lost, or the entry is damaged",
            )
        time, before = self._times[entry.volume, entry.offset]
        if time == entry.time_ns:
            self._written_at_starts |= before != time and not first
            return "", ""
        last = entry == self._last_entry
        if entry.time_ns == before:
            closing = last and time - before <= CLOSING_NS
            if closing or not self._written_at_starts:
                return "", ""
            return (
                "bad record",
                f"it begins earlier, and one of {iso(time)} begins here: a part of the file is lost",
            )
        # pmlogger's last entry may be later than the record that it points to.
        return ("", "") if last and time < entry.time_ns else lost

    def check_archive(self, where: str) -> None:
        """Report an archive, by the name of its first volume, that holds no record although its index has entries."""
        if (
            self._last_entry is not None
            and self._last_time == IMPOSSIBLE
            and not self._is_damaged(where)
        ):
            self._problems.add(
                "truncated", where, "it holds no record; by the index it had some"
            )

    def _is_damaged(self, where: str) -> bool:
        return any(
            problem.damage and problem.where == where
            for problem in self._problems.items
        )
