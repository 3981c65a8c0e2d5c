"""Blocks of whole data records from one volume: framing, damage and resynchronisation, in bounded memory."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kveval.pcp.archive.files import Member, Stream
from kveval.pcp.archive.problems import ProblemLog
from kveval.pcp.archive.wire import HEADER_SIZE, LABEL_SIZE, record_times, stamp

# A block is decoded at once, so its size bounds memory; one larger record is still read, up to the limit.
BLOCK = 16 << 20
SMALLEST_BLOCK = 4096
MAX_RECORD = 64 << 20
_SIZE = struct.Struct(">I")


@dataclass
class Block:
    """Whole records: byte offsets into `words` (big-endian 32-bit words), and their times in ns.

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

    def __init__(self, member: Member, problems: ProblemLog, version: int | None) -> None:
        self.member, self._problems = member, problems
        self.label = member.label()
        if self.label is None:
            problems.add("bad record", member.name, "no label at the start of the file", 0)
        self.version = self.label.version if self.label else version or 2

    def blocks(self, start: int | None = None, end: int | None = None, finish_ns: int | None = None) -> Iterator[Block]:
        """Blocks of records from byte offset `start` (default: after the label).

        Reading pauses at byte offset `end` and stops there if the last record is later than `finish_ns`.
        """
        first = LABEL_SIZE[self.version] if self.label else 0
        stream = Stream(self.member, self._problems)
        stream.skip_to(max(first, start or 0))
        # A small file does not need a large block (compression rarely saves more than 15/16).
        buffer = bytearray(min(BLOCK, max(SMALLEST_BLOCK, 16 * self.member.stored_size)))
        base, have, ended = stream.position, 0, False
        while not ended or have:
            want = len(buffer)
            if have >= 4 and len(buffer) < (size := _SIZE.unpack_from(buffer)[0]) <= MAX_RECORD:
                # Grown as the bytes come, so that a length that lies costs no more than the file holds.
                want = min(size, 2 * len(buffer)) if have == len(buffer) else want
                buffer = buffer + bytes(want - len(buffer)) if want > len(buffer) else buffer
            limit = want if end is None or end <= base + have else min(want, end - base)
            with memoryview(buffer) as room:
                have += stream.read_into(room[have:limit])
                ended = ended or have < limit
            starts, used, bad = _frame(buffer, have, self.version)
            if len(starts):
                yield (block := self._block(buffer, have, starts, base))
                if end is not None and base + used >= end and finish_ns is not None and block.times[-1] > finish_ns:
                    break
            if bad or (ended and used < have):
                used = self._recover(buffer, have, used, base, ended=ended, bad=bad)
            have -= used
            base += used
            buffer[:have] = buffer[used : used + have]
        stream.close()

    def _block(self, data: bytearray, have: int, starts: list[int], base: int) -> Block:
        words = np.frombuffer(data, dtype=">u4", count=have // 4)
        at = np.array(starts, dtype=np.int64)
        header = words[(at // 4)[:, None] + np.arange(1, 4)]
        times = record_times(header, self.version)
        return Block(words, at, words[at // 4].astype(np.int64), times, base, self.version)

    def _recover(self, data: bytearray, have: int, used: int, base: int, *, ended: bool, bad: bool) -> int:
        """Where to go on after a record that cannot be framed; says what is lost."""
        found = _resync(data, have, used + 4, self.version)
        where, offset = self.member.name, base + used
        if found is not None:
            self._problems.add("bad record", where, f"{found - used:,} bytes skipped to the next record", offset)
            return found
        if ended:
            what = "no whole record" if bad else "the beginning of a record"
            self._problems.add("truncated", where, f"the last {have - used:,} bytes hold {what}", offset)
            return have
        # Keep the tail: the next record may have begun in it.
        skipped = max(4, (have - used) // 2 & ~3)
        self._problems.add("bad record", where, f"{skipped:,} bytes skipped", offset)
        return used + skipped


def _frame(data: bytearray, have: int, version: int) -> tuple[list[int], int, bool]:
    """Starts of the whole records at the front of `data`, bytes used, and whether a bad record stopped it."""
    starts: list[int] = []
    pos, end = 0, have
    smallest = HEADER_SIZE[version] + 4
    unpack = _SIZE.unpack_from
    while end - pos >= smallest:
        (size,) = unpack(data, pos)
        if size < smallest or size > MAX_RECORD or size & 3:
            return starts, pos, True
        if size > end - pos:
            break
        if data[pos : pos + 4] != data[pos + size - 4 : pos + size]:
            return starts, pos, True
        starts.append(pos)
        pos += size
    return starts, pos, False


def _resync(data: bytearray, have: int, start: int, version: int) -> int | None:
    """The next offset at which a whole record with a possible time stands."""
    words = np.frombuffer(data, dtype=">u4", count=have // 4).astype(np.int64)
    first = (start + 3) // 4
    smallest = HEADER_SIZE[version] + 4
    at = np.arange(first, len(words), dtype=np.int64)
    size = words[first:]
    fits = (size >= smallest) & (size & 3 == 0) & (size // 4 <= len(words) - at)
    at, size = at[fits], size[fits]
    at = at[words[at + size // 4 - 1] == size]
    if len(at) == 0:
        return None
    times = record_times(words[at[:, None] + np.arange(1, 4)].astype(np.uint32), version)
    at = at[times >= 0]
    return int(at[0]) * 4 if len(at) else None


def time_at(member: Member, offset: int, version: int) -> int | None:
    """The time (ns) of the record at a byte offset of a volume; None if no whole record stands there."""
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
