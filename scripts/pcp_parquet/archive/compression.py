"""Decompression in steps, with bounded memory, a limit on the output, and every checksum verified."""

from __future__ import annotations

import bz2
import lzma
import os
import zlib
from typing import Any, Protocol

import zstandard

# A compressed file can demand a window of gigabytes; files written by `zstd` and `xz` need at most this.
WINDOW_LIMIT = 128 << 20
# Even idle counters compress less than a thousandfold; ALWAYS_ALLOWED bytes are accepted whatever the file's size.
MAX_RATIO = 1000
ALWAYS_ALLOWED = 64 << 20
# Multiplies the bounds on what a file may expand to, for a recording that is known to be sound.
ALLOWANCE = "PCP_PARQUET_ALLOWANCE"
PIECE = 1 << 16
# zstd cannot limit the output of a step, so the input is limited: one byte of it makes at most 32 KiB.
ZSTD_PIECE = 1 << 11
SUFFIXES = (".xz", ".gz", ".bz2", ".zst")
READ_ERRORS = (
    OSError,
    EOFError,
    lzma.LZMAError,
    zlib.error,
    zstandard.ZstdError,
    MemoryError,
)


class TooLarge(Exception):
    """A file expands to more bytes than `credible` allows for its size."""


class Readable(Protocol):
    """An opened file."""

    def read(self, size: int, /) -> bytes:
        """Up to `size` bytes, nothing at the end."""


def allowance() -> float:
    """The factor on all bounds, from the environment (PCP_PARQUET_ALLOWANCE); 1 if unset or not a number."""
    try:
        return max(0.0, float(os.environ.get(ALLOWANCE, "1")))
    except ValueError:
        return 1.0


def allowance_hint() -> str:
    """How to raise the bounds, for the message of one that was exceeded."""
    return f"if that is right, set {ALLOWANCE} to more than {allowance():g}"


def credible(stored: int) -> int:
    """How many bytes a file or tar of `stored` bytes may expand to."""
    return int(max(ALWAYS_ALLOWED, MAX_RATIO * stored) * allowance())


def too_large(stored: int) -> TooLarge:
    """The error of a file of `stored` bytes that expands to more than it may."""
    return TooLarge(
        f"{stored:,} bytes expand to more than {credible(stored):,}: {allowance_hint()}"
    )


class _Zstd:
    """zstandard's decoder with the interface of the standard library's, which limit the output of a step."""

    def __init__(self) -> None:
        self._inner = zstandard.ZstdDecompressor(
            max_window_size=WINDOW_LIMIT
        ).decompressobj()
        self._spare = memoryview(b"")

    @property
    def eof(self) -> bool:
        return not self._spare and self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    @property
    def needs_input(self) -> bool:
        return not self._spare

    def decompress(self, data: bytes, size: int) -> bytes:
        if not self._spare:
            self._spare = memoryview(self._inner.decompress(data))
        piece, self._spare = bytes(self._spare[:size]), self._spare[size:]
        return piece


class _Gzip:
    """zlib's decoder for gzip with the same interface; it verifies the checksum and the length at the end."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=31)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    @property
    def needs_input(self) -> bool:
        return not self._inner.unconsumed_tail

    def decompress(self, data: bytes, size: int) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, size)


def _decoder(suffix: str) -> Any:
    if suffix == ".xz":
        return lzma.LZMADecompressor(memlimit=WINDOW_LIMIT)
    return {".gz": _Gzip, ".bz2": bz2.BZ2Decompressor, ".zst": _Zstd}[suffix]()


class Decompressed:
    """The uncompressed bytes of a file of compressed frames; between and after them only zeros are allowed.

    `read` raises one of READ_ERRORS where the data is damaged or ends within a frame, TooLarge beyond the bound.
    """

    def __init__(self, raw: Readable, suffix: str, stored: int) -> None:
        self._raw, self._suffix, self._stored = raw, suffix, stored
        self._left = credible(stored)
        self._step = ZSTD_PIECE if suffix == ".zst" else PIECE
        self._unread = b""
        self._decoder = _decoder(suffix)

    def read(self, size: int) -> bytes:
        """Up to `size` bytes, nothing at the end."""
        while size > 0:
            if self._decoder.eof and not self._next_frame():
                return b""
            piece = self._more() if self._decoder.needs_input else b""
            data: bytes = self._decoder.decompress(piece, size)
            if data:
                self._left -= len(data)
                if self._left < 0:
                    raise too_large(self._stored)
                return data
            if not piece and not self._decoder.eof and self._decoder.needs_input:
                raise EOFError("compressed data ends before its end marker")
        return b""

    def _more(self) -> bytes:
        if not self._unread:
            return self._raw.read(self._step)
        piece, self._unread = self._unread[: self._step], self._unread[self._step :]
        return piece

    def _next_frame(self) -> bool:
        """Begin the next frame; False at the end of the file."""
        self._unread = self._decoder.unused_data + self._unread
        while not (rest := self._unread.lstrip(b"\0")):
            self._unread = self._raw.read(PIECE)
            if not self._unread:
                return False
        self._unread = rest
        self._decoder = _decoder(self._suffix)
        return True
