"""One file of an archive, on disk or within a tar, and the bytes in it."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from pcp_parquet.archive.compression import (
    READ_ERRORS,
    Decompressed,
    Readable,
    TooLarge,
)
from pcp_parquet.archive.problems import ProblemLog
from pcp_parquet.archive.wire import LABEL_SIZE, Label, parse_label

PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes `begin` .. `begin + size` of an open file."""

    descriptor: int
    begin: int
    size: int


class ByteRange:
    """A part of a file, read by position, so that several readers may share the file."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self.position = 0

    def read(self, size: int) -> bytes:
        """Up to `size` bytes from the current position."""
        size = min(size, self._part.size - self.position)
        data = (
            os.pread(self._part.descriptor, size, self._part.begin + self.position)
            if size > 0
            else b""
        )
        self.position += len(data)
        return data


@dataclass(frozen=True, slots=True)
class Member:
    """One file of an archive; `suffix` names its compression, "" if plain; `part` says where in a tar it lies."""

    path: Path
    suffix: str
    name: str
    part: Part | None = None

    @property
    def stored_size(self) -> int:
        """Bytes on disk; 0 if the file is gone."""
        if self.part is not None:
            return self.part.size
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    @property
    def identity(self) -> tuple[object, ...]:
        """A key that is equal for two names (links) of one file."""
        if self.part is not None:
            return (
                (self.part.descriptor, self.part.begin, self.part.size)
                if self.part.size
                else (self.name,)
            )
        try:
            status = self.path.stat()
        except OSError:
            return (self.name,)
        return status.st_dev, status.st_ino

    def head(self, size: int) -> bytes:
        """The first `size` uncompressed bytes, fewer if the file is shorter or damaged."""
        stream = Stream(self, ProblemLog())
        data = stream.read_all(size)
        stream.close()
        return data

    def copy_to(self, target: Path) -> None:
        """Write the file as it is stored, compressed or not."""
        stream = Stream(replace(self, suffix=""), ProblemLog())
        with target.open("wb") as file:
            while piece := stream.read(PIECE):
                file.write(piece)
        stream.close()

    def label(self) -> Label | None:
        """The label at the start of the file, None if it has none."""
        return parse_label(self.head(LABEL_SIZE[3]))


class Stream:
    """Sequential bytes of one member. Never raises while reading: damage ends the stream and is recorded."""

    def __init__(self, member: Member, problems: ProblemLog) -> None:
        self._member, self._problems = member, problems
        self._file: Readable | None = None
        self._own: int | None = None
        self.position = 0
        # True if the stream ended at the end of the file, False if at damage.
        self.whole = False
        try:
            part = member.part
            if part is None:
                # A FIFO must not make the reader wait.
                self._own = os.open(
                    member.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
                )
                part = Part(self._own, 0, os.fstat(self._own).st_size)
            self._range = ByteRange(part)
            self._file = (
                Decompressed(self._range, member.suffix, part.size)
                if member.suffix
                else self._range
            )
        except READ_ERRORS as error:
            problems.add("unreadable", member.name, f"cannot be opened: {error}")

    def read(self, size: int) -> bytes:
        """Up to `size` bytes, b"" at the end."""
        if self._file is None or size <= 0:
            return b""
        try:
            data = self._file.read(size)
        except TooLarge as error:
            return self._stop("too large", str(error))
        except READ_ERRORS as error:
            return self._stop(
                "truncated",
                f"{'decompression' if self._member.suffix else 'reading'} stopped: {error}",
            )
        self.whole = not data
        self.position += len(data)
        return data

    def read_into(self, room: memoryview) -> int:
        """Fill `room` from its start; returns the number of bytes, less than its size only at the end."""
        have = 0
        while have < len(room) and (piece := self.read(min(PIECE, len(room) - have))):
            room[have : have + len(piece)] = piece
            have += len(piece)
        return have

    def _stop(self, kind: str, why: str) -> bytes:
        self._problems.add(kind, self._member.name, why, self.position)
        self.close()
        return b""

    def skip_to(self, offset: int) -> None:
        """Skip forward to `offset` (uncompressed bytes); in a compressed file by decompressing up to there."""
        if isinstance(self._file, ByteRange):
            self.position = self._file.position = min(offset, self._member.stored_size)
        while self.position < offset and self.read(min(PIECE, offset - self.position)):
            pass

    def read_all(self, size: int) -> bytes:
        """`size` bytes, fewer only at the end."""
        pieces, have = [], 0
        while have < size and (piece := self.read(min(PIECE, size - have))):
            pieces.append(piece)
            have += len(piece)
        return b"".join(pieces)

    def close(self) -> None:
        """Close the file; later reads return b""."""
        if self._own is not None:
            os.close(self._own)
            self._own = None
        self._file = None
