"""Blocks of whole data records from one volume: framing, damage and resynchronisation, in bounded memory."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pcp_parquet.archive.member import Member, Stream
from pcp_parquet.archive.problems import ProblemLog
from pcp_parquet.archive.wire import (
    HEADER_SIZE,
    LABEL_SIZE,
    parse_label,
    record_times,
    stamp,
)

# A block is decoded at once, so its size bounds memory; one larger record is still read, up to MAX_RECORD.
BLOCK = 16 << 20
SMALLEST_BLOCK = 4096
MAX_RECORD = 64 << 20
_SIZE = struct.Struct(">I")


@dataclass
class Block:
    """Whole records: starts and sizes in bytes within `words` (big-endian 32-bit words), and times in ns.

    The words are overwritten by the next block.
    """

    words: NDArray[np.uint32]
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    times: NDArray[np.int64]
    offset: int
    version: int

    @property
    def counts(self) -> NDArray[np.int64]:
        """Number of metrics in each record; 0 marks an interruption of the recording."""
        at = self.starts // 4 + HEADER_SIZE[self.version] // 4 - 1
        return self.words[at].astype(np.int64)


class Volume:
    """Reads the records of one volume."""

    def __init__(
        self, member: Member, problems: ProblemLog, version: int | None
    ) -> None:
        self.member, self._problems = member, problems
        head = member.head(LABEL_SIZE[3])
        label = parse_label(head)
        if label is None:
            problems.add(
                "bad record", member.name, "no label at the start of the file", 0
            )
        self.version = label.version if label else version or 2
        # A damaged label still takes up its bytes.
        labelled = label or int.from_bytes(head[:4], "big") == LABEL_SIZE[self.version]
        self._first = LABEL_SIZE[self.version] if labelled else 0
        self._earliest = label.start_ns if label else 0
        # Uncompressed size, once the volume has been read to its end.
        self.size: int | None = None

    def blocks(
        self,
        start: int | None = None,
        end: int | None = None,
        finish_ns: int | None = None,
    ) -> Iterator[Block]:
        """Blocks of records from byte offset `start` (default: after the label).

        Reading pauses at byte offset `end` and stops there if the last record is later than `finish_ns`.
        """
        stream = Stream(self.member, self._problems)
        stream.skip_to(max(self._first, start or 0))
        # A small file does not need a large block (compression rarely saves more than 15/16).
        buffer = bytearray(
            min(BLOCK, max(SMALLEST_BLOCK, 16 * self.member.stored_size))
        )
        base, have, ended = stream.position, 0, False
        while not ended or have:
            want = len(buffer)
            if (
                have >= 4
                and len(buffer) < (size := _SIZE.unpack_from(buffer)[0]) <= MAX_RECORD
            ):
                # Grow the buffer as bytes arrive, so that a false length costs no more memory than the file is long.
                want = min(size, 2 * len(buffer)) if have == len(buffer) else want
                buffer = (
                    buffer + bytes(want - len(buffer)) if want > len(buffer) else buffer
                )
            limit = want if end is None or end <= base + have else min(want, end - base)
            with memoryview(buffer) as room:
                have += stream.read_into(room[have:limit])
                ended = ended or have < limit
            starts, used = self._frame(buffer, have, base, ended=ended)
            if len(starts):
                yield (block := self._block(buffer, have, starts, base))
                if (
                    end is not None
                    and base + used >= end
                    and finish_ns is not None
                    and block.times[-1] > finish_ns
                ):
                    stream.close()
                    return
            have -= used
            base += used
            buffer[:have] = buffer[used : used + have]
        if stream.whole:
            self.size = stream.position
        stream.close()

    def _block(self, data: bytearray, have: int, starts: list[int], base: int) -> Block:
        words = np.frombuffer(data, dtype=">u4", count=have // 4)
        at = np.array(starts, dtype=np.int64)
        header = words[(at // 4)[:, None] + np.arange(1, 4)]
        times = record_times(header, self.version)
        return Block(
            words, at, words[at // 4].astype(np.int64), times, base, self.version
        )

    def _frame(
        self, data: bytearray, have: int, base: int, *, ended: bool
    ) -> tuple[list[int], int]:
        """Starts of the whole records in `data`, continuing after damage, and the number of bytes used.

        Stops at a record whose offset is not a multiple of four bytes; the caller continues from there.
        """
        starts: list[int] = []
        pos, bad = _frame(data, have, 0, self.version, starts)
        while bad or (ended and pos < have):
            next_pos = _resync(data, have, pos + 1, self.version, self._earliest)
            if next_pos is None:
                return starts, self._give_up(have, pos, base, ended=ended, bad=bad)
            message = f"{next_pos - pos:,} bytes skipped to the next record"
            self._problems.add("bad record", self.member.name, message, base + pos)
            if next_pos & 3:
                return starts, next_pos
            pos, bad = _frame(data, have, next_pos, self.version, starts)
        return starts, pos

    def _give_up(
        self, have: int, pos: int, base: int, *, ended: bool, bad: bool
    ) -> int:
        """Where to continue when no record follows in the bytes at hand; reports what is lost."""
        where, offset = self.member.name, base + pos
        if ended:
            what = "no whole record" if bad else "the beginning of a record"
            self._problems.add(
                "truncated", where, f"the last {have - pos:,} bytes hold {what}", offset
            )
            return have
        # Keep the tail: the next record may have begun in it.
        skipped = max(4, (have - pos) // 2 & ~3)
        self._problems.add("bad record", where, f"{skipped:,} bytes skipped", offset)
        return pos + skipped


def _frame(
    data: bytearray, have: int, pos: int, version: int, starts: list[int]
) -> tuple[int, bool]:
    """Append the starts of the whole records from `pos` on; returns their end, and whether a bad record is there."""
    smallest = HEADER_SIZE[version] + 4
    unpack = _SIZE.unpack_from
    while have - pos >= smallest:
        (size,) = unpack(data, pos)
        if size < smallest or size > MAX_RECORD or size & 3:
            return pos, True
        if size > have - pos:
            break
        if data[pos : pos + 4] != data[pos + size - 4 : pos + size]:
            return pos, True
        starts.append(pos)
        pos += size
    return pos, False


def _resync(
    data: bytearray, have: int, start: int, version: int, earliest: int
) -> int | None:
    """The next offset of a whole record whose time is not before `earliest`; None if there is none.

    The steps of the search grow, so that the time taken is proportional to the distance.
    """
    # No record has a size of 0: a tail that was never written is passed at once, up to the first bytes of a size.
    zeros = have - start - len(data[start:have].lstrip(b"\0"))
    room, start = SMALLEST_BLOCK, start + max(0, zeros - _SIZE.size)
    while start < have:
        stop = min(have, start + room)
        # Most damage keeps the distance to the next record a multiple of four bytes.
        for shift in (3, 0, 1, 2):
            candidate = _candidate(data, have, (start + shift, stop), version, earliest)
            if candidate is not None:
                return candidate
        start, room = stop, min(4 * room, BLOCK)
    return None


def _candidate(
    data: bytearray, have: int, bounds: tuple[int, int], version: int, earliest: int
) -> int | None:
    begin, stop = bounds
    count, smallest = (have - begin) // 4, HEADER_SIZE[version] + 4
    if count * 4 < smallest:
        return None
    words = np.frombuffer(data, ">u4", count, begin)
    size = words[: (stop - begin + 3) // 4].astype(np.int64)
    at = np.flatnonzero(
        (size >= smallest)
        & (size & 3 == 0)
        & (size // 4 <= count - np.arange(len(size)))
    )
    at = at[words[at + size[at] // 4 - 1] == size[at]]
    header = words[at[:, None] + np.arange(1, HEADER_SIZE[version] // 4)]
    likely = (record_times(header, version) >= earliest) & (
        header[:, -1].astype(np.int64) * 8 <= size[at] - smallest
    )
    # Another record follows it, as far as the data at hand shows.
    after = words[np.minimum(at + size[at] // 4, count - 1)]
    likely &= (at + size[at] // 4 >= count) | (
        (after >= smallest) & (after <= MAX_RECORD)
    )
    at = at[likely]
    return begin + int(at[0]) * 4 if len(at) else None


def time_at(member: Member, offset: int, version: int) -> int | None:
    """The time (ns) of the record at a byte offset of a volume; None if there is no whole record."""
    stream = Stream(member, ProblemLog())
    try:
        stream.skip_to(offset)
        head = stream.read(HEADER_SIZE[version])
        size = _SIZE.unpack_from(head)[0] if len(head) == HEADER_SIZE[version] else 0
        if size < HEADER_SIZE[version] + 4 or size > MAX_RECORD:
            return None
        stream.skip_to(offset + size - 4)
        return stamp(head, 4, version)[0] if stream.read(4) == head[:4] else None
    finally:
        stream.close()
