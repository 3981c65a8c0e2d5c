"""The fixed parts of the archive format: labels and time stamps (LOGARCHIVE(5)). Everything is big-endian."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MAGIC_BASE = 0x50052600
MAGIC = {0x50052602: 2, 0x50052603: 3}
LABEL_SIZE = {2: 132, 3: 808}
# Bytes of a data record before its first value set: the length, the time and the number of metrics.
HEADER_SIZE = {2: 16, 3: 20}
INDEX_ENTRY = {2: struct.Struct(">IIIII"), 3: struct.Struct(">IIIIQQ")}
IN_NULL = 0xFFFFFFFF
NANOSECONDS = 1_000_000_000
MICROSECONDS = 1_000_000
# int64 nanoseconds end in the year 2262; a larger number of seconds is damage, not a time.
MAX_SECONDS = 9_223_372_036
IMPOSSIBLE = -1


@dataclass(frozen=True, slots=True)
class Label:
    """The label at the start of each file of an archive; times in ns since 1970, UTC."""

    version: int
    pid: int
    start_ns: int
    volume: int
    host: str
    timezone: str
    zoneinfo: str


def parse_label(data: bytes) -> Label | None:
    """The label at the start of `data` (at least 132 bytes, 808 for version 3), or None if there is none."""
    if len(data) < 12:
        return None
    size, magic, pid = struct.unpack_from(">III", data)
    version = MAGIC.get(magic)
    if version is None or size != LABEL_SIZE[version] or len(data) < size:
        return None
    if version == 2:
        seconds, micros, volume = struct.unpack_from(">IIi", data, 12)
        return Label(
            2,
            pid,
            seconds * NANOSECONDS + micros * 1000,
            volume,
            _text(data[24:88]),
            _text(data[88:128]),
            "",
        )
    low, high, nanos, volume = struct.unpack_from(">IIIi", data, 12)
    start = nanoseconds_v3(low, high, nanos)
    return Label(
        3,
        pid,
        start,
        volume,
        _text(data[36:292]),
        _text(data[292:548]),
        _text(data[548:804]),
    )


def pcp_version(data: bytes) -> int | None:
    """The archive format version that the start of a file names, supported or not; None if it names none."""
    magic = int.from_bytes(data[4:8], "big")
    return magic & 0xFF if len(data) >= 8 and magic & 0xFFFFFF00 == MAGIC_BASE else None


def nanoseconds_v3(low: int, high: int, nanos: int) -> int:
    """A version 3 time stamp; its 64-bit seconds are stored low word first. Impossible times become -1."""
    seconds = high << 32 | low
    return (
        seconds * NANOSECONDS + nanos
        if seconds < MAX_SECONDS and nanos < NANOSECONDS
        else IMPOSSIBLE
    )


def stamp(data: bytes | memoryview, offset: int, version: int) -> tuple[int, int]:
    """The time at `offset` in ns, and the offset after it."""
    if version == 2:
        seconds, micros = struct.unpack_from(">II", data, offset)
        return seconds * NANOSECONDS + micros * 1000, offset + 8
    return nanoseconds_v3(*struct.unpack_from(">III", data, offset)), offset + 12


def iso(time_ns: int) -> str:
    """A time in ns since 1970 as text, UTC."""
    return f"{np.datetime64(time_ns, 'ns')}Z"


def record_times(words: NDArray[np.uint32], version: int) -> NDArray[np.int64]:
    """Times in ns of data records (rows), given their words after the length; -1 where a time is impossible."""
    seconds = words[:, 0].astype(np.int64)
    if version == 2:
        micros = words[:, 1].astype(np.int64)
        return np.where(
            micros < MICROSECONDS, seconds * NANOSECONDS + micros * 1000, IMPOSSIBLE
        )
    nanos = words[:, 2].astype(np.int64)
    good = (words[:, 1] <= MAX_SECONDS >> 32) & (nanos < NANOSECONDS)
    seconds = np.where(good, seconds + (words[:, 1].astype(np.int64) << 32), 0)
    good &= (seconds < MAX_SECONDS) & (seconds >= 0)
    return np.where(good, np.where(good, seconds, 0) * NANOSECONDS + nanos, IMPOSSIBLE)


def _text(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode("utf-8", "backslashreplace")
