"""Archives packed in a tar: members are copied once to an unnamed temporary file, which goes when the process ends."""

from __future__ import annotations

import posixpath
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Self

from pcp_parquet.archive.compression import (
    READ_ERRORS,
    SUFFIXES,
    TooLarge,
    credible,
    too_large,
)
from pcp_parquet.archive.member import Member, Part, Stream
from pcp_parquet.archive.problems import ProblemLog

TARS = (
    ".tar",
    ".tgz",
    ".txz",
    ".tzst",
    ".tbz",
    ".tbz2",
    *(f".tar{suffix}" for suffix in SUFFIXES),
)
_MAGIC = {
    b"\x1f\x8b": ".gz",
    b"BZh": ".bz2",
    b"\xfd7zXZ\0": ".xz",
    b"\x28\xb5\x2f\xfd": ".zst",
}
# A piece that is cut off by the end of the tar is lost as a whole, so pieces are small.
_PIECE = 4096
_LINKS = 40


def is_tar(name: str) -> bool:
    """Whether a file is named as a tar, compressed or not."""
    return name.lower().endswith(TARS) and not name.startswith(".")


def _compression(source: Path) -> str:
    """The compression of a file by its first bytes, "" if they are of no known one."""
    with source.open("rb") as file:
        head = file.read(6)
    return next(
        (suffix for magic, suffix in _MAGIC.items() if head.startswith(magic)), ""
    )


@contextmanager
def unpacked(
    source: Path, accepts: Callable[[str], bool], problems: ProblemLog
) -> Iterator[dict[str, Part | str]]:
    """The files whose names `accepts` takes, or what else has such a name, in words; valid until the exit."""
    with TemporaryFile(prefix="pcp-parquet-") as file:
        unpacking = _Unpacking(source, accepts, problems, file)
        unpacking.read()
        yield unpacking.members


class _Unpacking:
    """One tar; damage in it is recorded, and what follows is still read."""

    def __init__(
        self,
        source: Path,
        accepts: Callable[[str], bool],
        problems: ProblemLog,
        file: IO[bytes],
    ) -> None:
        self._source, self._accepts, self._problems, self._file = (
            source,
            accepts,
            problems,
            file,
        )
        self.members: dict[str, Part | str] = {}
        self._links: dict[str, str] = {}
        self._stored = source.stat().st_size
        self._left = credible(self._stored)

    def read(self) -> None:
        """Copy the members, then follow the links between them."""
        stream = Stream(
            Member(self._source, _compression(self._source), self._source.name),
            self._problems,
        )
        headers = _Headers()
        try:
            for tar, entry in _entries(stream, headers):
                self._take(tar, entry)
        except TooLarge as error:
            self._problems.add("too large", self._source.name, str(error))
        except (*READ_ERRORS, tarfile.TarError, ValueError, RecursionError) as error:
            self._problems.add(
                "truncated",
                self._source.name,
                f"the tar cannot be read to its end: {error}",
            )
        else:
            # Reading the rest verifies the checksum of the compressed file.
            while stream.read(1 << 20):
                pass
            if headers.damaged:
                message = f"{headers.damaged:,} blocks of 512 bytes are not valid tar headers; what they held is lost"
                self._problems.add("truncated", self._source.name, message)
            elif not headers.ended:
                self._problems.add(
                    "truncated", self._source.name, "the tar ends without its end mark"
                )
        finally:
            stream.close()
        self._follow()

    def _take(self, tar: tarfile.TarFile, entry: tarfile.TarInfo) -> None:
        name = _inside(entry.name)
        if name is None or not self._accepts(posixpath.basename(name)):
            return
        # A later entry replaces an earlier one of the same name, as when a tar is unpacked.
        self.members.pop(name, None)
        self._links.pop(name, None)
        if entry.isreg():
            content = tar.extractfile(entry)
            assert content is not None
            self._copy(name, content)
        elif entry.islnk():
            self._links[name] = _inside(entry.linkname) or ""
        elif entry.issym():
            target = posixpath.join(posixpath.dirname(name), entry.linkname)
            self._links[name] = (
                ""
                if posixpath.isabs(entry.linkname)
                else _inside(target, climbing=False) or ""
            )
        else:
            self.members[name] = (
                "a folder"
                if entry.isdir()
                else "not a regular file (a FIFO or a device)"
            )

    def _copy(self, name: str, content: IO[bytes]) -> None:
        begin = self._file.tell()
        try:
            while piece := content.read(_PIECE):
                self._left -= len(piece)
                if self._left < 0:
                    raise too_large(self._stored)
                self._file.write(piece)
        finally:
            self._file.flush()
            self.members[name] = Part(
                self._file.fileno(), begin, self._file.tell() - begin
            )

    def _follow(self) -> None:
        for name in self._links:
            target = name
            for _ in range(_LINKS):
                target = self._links.get(target, target)
            reached, place = (
                self.members.get(target),
                self._links[name] or "a place outside",
            )
            self.members[name] = (
                reached
                if isinstance(reached, Part)
                else f"a link to {place}, which is not in the tar"
            )


def _entries(
    stream: Stream, headers: _Headers
) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """The entries of a tar; damaged headers are skipped up to the next sound one."""
    at, tar = -1, None
    while True:
        try:
            if tar is None:
                # This reads the first header. It needs no closing: the stream belongs to the caller.
                reader = headers.reader()
                tar = tarfile.open(  # type: ignore[call-overload]  # noqa: SIM115
                    fileobj=stream, mode="r|", tarinfo=reader, ignore_zeros=True
                )
            entry = tar.next()
        except tarfile.ReadError:
            position = stream.position if tar is None else tar.fileobj.tell()
            if position == at:
                raise
            headers.damaged += 1
            at = position
            if tar is not None:
                tar.offset = position
            continue
        if entry is None:
            return
        yield tar, entry
        # tarfile keeps every entry that it has read, and a tar may hold any number.
        tar.members = []


@dataclass
class _Headers:
    """Facts that tarfile does not report: the number of damaged headers, and whether the end mark was seen."""

    damaged: int = 0
    ended: bool = False

    def reader(self) -> type[tarfile.TarInfo]:
        """A header class for tarfile that records both here."""
        noted = self

        class NotedHeader(tarfile.TarInfo):
            @classmethod
            def frombuf(
                cls, buf: bytes | bytearray, encoding: str, errors: str
            ) -> Self:
                try:
                    return super().frombuf(buf, encoding, errors)
                except tarfile.HeaderError as error:
                    noted.ended |= isinstance(error, tarfile.EOFHeaderError)  # type: ignore[attr-defined]
                    broken = (tarfile.TruncatedHeaderError, tarfile.InvalidHeaderError)  # type: ignore[attr-defined]
                    noted.damaged += isinstance(error, broken)
                    raise

        return NotedHeader


def _inside(name: str, *, climbing: bool = True) -> str | None:
    """A name relative to the tar's root, without ".."; None if nothing is left or, unless `climbing`, if outside it."""
    if not climbing:
        name = posixpath.normpath(name)
        if name.split("/")[0] == "..":
            return None
    return (
        "/".join(part for part in name.split("/") if part not in ("", "..", "."))
        or None
    )
