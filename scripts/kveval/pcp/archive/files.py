"""Finding the files of archives: folder, base name, member, or a tar of them; plain or compressed one by one."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import re
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Protocol

import zstandard

from kveval.pcp.archive.problems import ArchiveError, ProblemLog
from kveval.pcp.archive.wire import LABEL_SIZE, Label, parse_label

MEMBER = re.compile(r"(?P<base>.+)\.(?P<part>meta|index|\d{1,9})(?P<suffix>\.xz|\.gz|\.bz2|\.zst)?", re.DOTALL)
TAR = re.compile(r".+\.(tar|tgz|txz|tzst|tar\.(zst|gz|xz|bz2))", re.DOTALL)
# A compressed member may ask its reader for a window of gigabytes: refuse more than this.
WINDOW_LIMIT = 256 << 20
PIECE = 1 << 20
TAR_PIECE = 4096
READ_ERRORS = (OSError, EOFError, lzma.LZMAError, zlib.error, zstandard.ZstdError, MemoryError)


class Readable(Protocol):
    """An opened member; only a plain file can seek."""

    def read(self, size: int, /) -> bytes | None:
        """Up to `size` bytes, nothing at the end."""


class Stream:
    """Sequential bytes of one member. Never raises while reading: damage ends the stream and is recorded."""

    def __init__(self, member: Member, problems: ProblemLog) -> None:
        self._member, self._problems = member, problems
        self._file: Readable | None = None
        self._raw: io.FileIO | None = None
        self.position = 0
        try:
            self._raw = io.FileIO(member.path)
            self._file = member.decoded(self._raw)
        except READ_ERRORS as error:
            problems.add("unreadable", member.name, f"cannot be opened: {error}")

    def read(self, size: int) -> bytes:
        """Up to `size` bytes, b"" at the end."""
        if self._file is None or size <= 0:
            return b""
        try:
            data = self._file.read(size) or b""
        except READ_ERRORS as error:
            self._problems.add("truncated", self._member.name, f"decompression stopped: {error}", self.position)
            self.close()
            return b""
        self.position += len(data)
        return data

    def read_into(self, room: memoryview) -> int:
        """Fill `room` from its start; the number of bytes, fewer only at the end."""
        have = 0
        while have < len(room):
            if isinstance(self._file, io.FileIO):
                count = self._fill(self._file, room[have:])
            else:
                piece = self.read(len(room) - have)
                count = len(piece)
                room[have : have + count] = piece
            if not count:
                break
            have += count
        return have

    def _fill(self, file: io.FileIO, room: memoryview) -> int:
        try:
            count = file.readinto(room) or 0
        except OSError as error:
            self._problems.add("truncated", self._member.name, f"reading stopped: {error}", self.position)
            return 0
        self.position += count
        return count

    def skip_to(self, offset: int) -> None:
        """Go forward to `offset` (uncompressed bytes): a seek in a plain file, reading on in a compressed one."""
        if isinstance(self._file, io.FileIO):
            self.position = self._file.seek(min(offset, self._member.stored_size))
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
        """Close the file; reading on gives b""."""
        if self._raw is not None:
            self._raw.close()
        self._file = None


class _Xz:
    """An .xz file read piece by piece with a limit on memory, which lzma.LZMAFile does not offer."""

    def __init__(self, raw: io.FileIO) -> None:
        self._raw = raw
        self._decoder = lzma.LZMADecompressor(memlimit=WINDOW_LIMIT)

    def read(self, size: int = -1) -> bytes:
        while True:
            if self._decoder.eof:
                rest = self._decoder.unused_data.lstrip(b"\0") or self._raw.read(PIECE).lstrip(b"\0")
                if not rest:
                    return b""
                self._decoder = lzma.LZMADecompressor(memlimit=WINDOW_LIMIT)
                data = self._decoder.decompress(rest, size)
            else:
                piece = self._raw.read(PIECE) if self._decoder.needs_input else b""
                if self._decoder.needs_input and not piece:
                    raise EOFError("compressed data ends before its end marker")
                data = self._decoder.decompress(piece, size)
            if data:
                return data


class _OneStep:
    """gzip and bz2 files read one step at a time, so that what precedes the damage is not lost with it."""

    def __init__(self, file: gzip.GzipFile | bz2.BZ2File) -> None:
        self._inner = file

    def read(self, size: int = -1) -> bytes:
        return self._inner.read1(size)


@dataclass(frozen=True, slots=True)
class Member:
    """One file of an archive; `suffix` names its compression, "" if plain."""

    path: Path
    suffix: str
    name: str

    @property
    def stored_size(self) -> int:
        """Bytes on disk; 0 if the file is gone."""
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    def decoded(self, raw: io.FileIO) -> Readable:
        """The uncompressed bytes of the opened file, forwards only."""
        if self.suffix == ".xz":
            return _Xz(raw)
        if self.suffix == ".gz":
            return _OneStep(gzip.GzipFile(fileobj=raw))
        if self.suffix == ".bz2":
            return _OneStep(bz2.BZ2File(raw))
        if self.suffix == ".zst":
            decoder = zstandard.ZstdDecompressor(max_window_size=WINDOW_LIMIT)
            return decoder.stream_reader(raw, read_across_frames=True, closefd=False)
        return raw

    def head(self, size: int) -> bytes:
        """The first `size` uncompressed bytes, fewer if the file is shorter or damaged."""
        stream = Stream(self, ProblemLog())
        data = stream.read_all(size)
        stream.close()
        return data

    def label(self) -> Label | None:
        """The label at the start of the file, None if it has none."""
        return parse_label(self.head(LABEL_SIZE[3]))


@dataclass
class ArchiveFiles:
    """The files of one archive; what is missing is None or absent."""

    base: str
    meta: Member | None = None
    index: Member | None = None
    volumes: dict[int, Member] = field(default_factory=dict)

    def add(self, part: str, member: Member) -> None:
        """Take a file in; a plain file wins over a compressed one of the same name."""
        if part == "meta":
            self.meta = _plainest(self.meta, member)
        elif part == "index":
            self.index = _plainest(self.index, member)
        else:
            self.volumes[int(part)] = _plainest(self.volumes.get(int(part)), member)

    def members(self) -> list[Member]:
        """Every file present, volumes in order."""
        files = [self.meta, self.index, *(self.volumes[number] for number in sorted(self.volumes))]
        return [member for member in files if member is not None]

    def is_archive(self) -> bool:
        """True if at least one of the files starts with a PCP label (a log file "x.1" is no archive)."""
        return any(member.label() for member in self.members())


def _plainest(old: Member | None, new: Member) -> Member:
    return new if old is None or (old.suffix and not new.suffix) else old


def split_name(name: str) -> tuple[str, str, str] | None:
    """(base, part, compression suffix) of a member's file name, or None."""
    match = MEMBER.fullmatch(name)
    return (match["base"], match["part"], match["suffix"] or "") if match else None


@contextmanager
def opened(source: Path, problems: ProblemLog) -> Iterator[list[ArchiveFiles]]:
    """The archives of `source`: a folder (searched to the bottom), a base name, one member, or a tar of these.

    A tar is unpacked to a temporary folder that is gone afterwards. Raises ArchiveError if there is no archive.
    """
    if source.is_file() and TAR.fullmatch(source.name.lower()):
        with tempfile.TemporaryDirectory(prefix="kveval-pcp-") as folder:
            _unpack(source, Path(folder), problems)
            yield _in_folder(Path(folder), source)
    elif source.is_dir():
        yield _in_folder(source, source)
    else:
        yield [_by_name(source)]


def _in_folder(folder: Path, source: Path) -> list[ArchiveFiles]:
    archives: dict[str, ArchiveFiles] = {}
    for root, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            _take(archives, Path(root), name, folder)
    found = [archive for _, archive in sorted(archives.items()) if archive.is_archive()]
    if not found:
        raise ArchiveError(f"{source}: no PCP archive here (expected files like NAME.meta, NAME.index, NAME.0)")
    return found


def _take(archives: dict[str, ArchiveFiles], root: Path, name: str, folder: Path) -> None:
    parts = split_name(name)
    path = root / name
    if parts is None or not path.is_file():
        return
    base = str((root / parts[0]).relative_to(folder))
    archive = archives.setdefault(base, ArchiveFiles(base))
    archive.add(parts[1], Member(path, parts[2], str(path.relative_to(folder))))


def _by_name(source: Path) -> ArchiveFiles:
    if not source.parent.is_dir():
        raise ArchiveError(f"{source}: no such file or folder")
    archives: dict[str, ArchiveFiles] = {}
    for path in sorted(source.parent.iterdir()):
        _take(archives, source.parent, path.name, source.parent)
    parts = split_name(source.name) if source.is_file() else None
    for base in (source.name, parts[0] if parts else ""):
        if base in archives and archives[base].is_archive():
            return archives[base]
    if source.exists() or source.name in archives:
        raise ArchiveError(f"{source}: not a PCP archive (no file of it starts with a PCP label)")
    raise ArchiveError(f"{source}: no such archive (expected {source.name}.meta, {source.name}.0)")


def _unpack(source: Path, folder: Path, problems: ProblemLog) -> None:
    """Write the archive files in a tar below `folder`, as far as the tar can be read."""
    with source.open("rb") as raw:
        plain: IO[bytes] = raw
        if source.name.lower().endswith(("zst", "tzst")):
            plain = zstandard.ZstdDecompressor(max_window_size=WINDOW_LIMIT).stream_reader(raw, read_across_frames=True)
        try:
            mode = "r|" if plain is not raw else "r|*"
            with tarfile.open(fileobj=plain, mode=mode) as tar:  # type: ignore[call-overload]
                for entry in tar:
                    _unpack_one(tar, entry, folder)
        except (*READ_ERRORS, tarfile.TarError, ValueError) as error:
            problems.add("truncated", source.name, f"the tar cannot be read to its end: {error}")


def _unpack_one(tar: tarfile.TarFile, entry: tarfile.TarInfo, folder: Path) -> None:
    relative = PurePosixPath(entry.name)
    inside = [part for part in relative.parts if part not in ("/", "..", ".")]
    content = tar.extractfile(entry) if entry.isreg() and inside and split_name(inside[-1]) else None
    if content is None:
        return
    target = folder.joinpath(*inside)
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as out:
        # A piece that the tar does not hold to its end is lost as a whole: small pieces.
        while piece := content.read(TAR_PIECE):
            out.write(piece)
