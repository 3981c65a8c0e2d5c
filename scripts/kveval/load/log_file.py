"""Entries of a log file: JSON objects, one a line or in a document, or CSV with a header; plain or packed by gzip or zstd."""

import csv
import io
import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec
import zstandard

from kveval.host.errors import Failure

_CHUNK_BYTES = 2**18
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
FORMS = "kveval trace reads one JSON object a line, a JSON list, or CSV with a header"
"""The forms of logs, as messages say what would be right."""
# A header of CSV: enough of it to see which character separates its names.
_SEPARATORS = ",;\t|"
# A line of CSV may hold a prompt.
_LONGEST_FIELD = 2**27


class TraceError(Failure):
    """A trace, or the log that it is to be made of, cannot be read, or is not valid."""


class Entry(NamedTuple):
    """An entry of a log: its line, counted from 1 (in a JSON document, its number), and its values; None for no object."""

    line: int
    values: Mapping[str, Any] | None


class _Unpacked(io.RawIOBase):
    """The content of a file that gzip or zstd has packed, in one frame or several; an EOFError where it is cut off."""

    def __init__(self, file: BinaryIO, *, zstd: bool) -> None:
        self._file, self._zstd = file, zstd
        self._frame: Any = None
        self._packed, self._content = b"", memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._content:
            if not self._packed:
                self._packed = self._file.read(_CHUNK_BYTES)
            if not self._packed:
                if self._frame is not None:
                    raise EOFError("it ends too early, as a copy that was cut off does")
                return 0
            self._unpack()
        count = min(len(buffer), len(self._content))
        buffer[:count] = self._content[:count]
        self._content = self._content[count:]
        return count

    def _unpack(self) -> None:
        if self._frame is None:
            if self._zstd:
                self._frame = zstandard.ZstdDecompressor().decompressobj()
            else:
                self._frame = zlib.decompressobj(wbits=31)
        self._content = memoryview(self._frame.decompress(self._packed))
        self._packed = self._frame.unused_data
        if self._frame.eof:
            self._frame = None


def opened(path: Path) -> BinaryIO:
    """Open a file, unpacked if it is packed. Raises TraceError if there is none; reading it may raise DAMAGED."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise TraceError(
            f"no trace {path}: {error.strerror}", code="no_trace", path=path
        ) from error
    begin = file.peek(4)[:4]
    if begin[:2] == _GZIP or begin == _ZSTD:
        return io.BufferedReader(_Unpacked(file, zstd=begin == _ZSTD), _CHUNK_BYTES)
    return file


DAMAGED = (OSError, EOFError, zlib.error, zstandard.ZstdError)
"""What reading an opened file raises where it is damaged."""


def unreadable(path: Path, why: Exception, line: int = 0) -> TraceError:
    """Return the error for a file of which nothing can be read after a line."""
    place = f" after line {line:,}" if line else ""
    message = f"{path} cannot be read{place}: {why}"
    return TraceError(message, code="unreadable", path=path, line=line)


def entries(path: Path) -> Iterator[Entry]:
    """Yield a log's entries in the order of the file, read as they are needed; of a JSON document, all at once.

    Raises TraceError for a file that is none of these, is empty, or is damaged.
    """
    with opened(path) as file:
        line = 0
        try:
            first = _first_line(file)
            if not first:
                raise TraceError(f"{path} is empty", code="empty", path=path)
            kind = _kind(path, first)
            for entry in kind(path, first, file):
                line = entry.line
                yield entry
        except DAMAGED as error:
            raise unreadable(path, error, line) from error


def number_word(path: Path) -> str:
    """Return what the number of an entry counts: lines, or the entries of a JSON list."""
    with opened(path) as file:
        first = _first_line(file).strip()
    return "entry" if _is_document(first) else "line"


def _is_document(first: bytes) -> bool:
    """Return whether a file whose first line is this is one JSON document: a list, or an object over several lines."""
    return first[:1] == b"[" or first == b"{"


def _first_line(file: BinaryIO) -> bytes:
    """Return the lines up to the first that is not blank, without a byte order mark; empty if there is none."""
    begin = b""
    for line in file:
        begin = (begin + line).removeprefix(b"\xef\xbb\xbf")
        if begin.strip():
            return begin
    return b""


def _kind(path: Path, first: bytes) -> Any:
    """Return what yields the entries of a file that begins so."""
    begin = first.strip()
    if _is_document(begin):
        return _of_document
    if begin[:1] == b"{":
        return _of_lines
    if _separator(begin) is not None:
        return _of_csv
    begins = begin[:60].decode(errors="replace")
    line = first.count(b"\n", 0, len(first.rstrip())) + 1
    message = (
        f"{path} line {line} is neither JSON nor the header of CSV: {begins!r}; {FORMS}"
    )
    raise TraceError(message, code="no_log", path=path, line=line)


def _separator(header: bytes) -> str | None:
    counts = {mark: header.count(mark.encode()) for mark in _SEPARATORS}
    mark = max(_SEPARATORS, key=lambda mark: counts[mark])
    return mark if counts[mark] >= 2 else None


def _of_lines(_path: Path, first: bytes, file: BinaryIO) -> Iterator[Entry]:
    number = 0
    for lines in (first.splitlines(), file):
        for line in lines:
            number += 1
            if line.strip():
                yield Entry(number, _object(line))


def _object(line: bytes) -> Mapping[str, Any] | None:
    try:
        values = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # Python's own reader takes NaN, too, which others write.
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            return None
    return values if isinstance(values, Mapping) else None


def _of_document(path: Path, first: bytes, file: BinaryIO) -> Iterator[Entry]:
    try:
        values = json.loads(first + file.read())
    except (ValueError, RecursionError) as error:
        message = f"{path} begins as a JSON document and is none: {error}; {FORMS}"
        raise TraceError(message, code="no_log", path=path) from error
    values = values if isinstance(values, list) else [values]
    for number, value in enumerate(values, 1):
        yield Entry(number, value if isinstance(value, Mapping) else None)


def _of_csv(path: Path, first: bytes, file: BinaryIO) -> Iterator[Entry]:
    csv.field_size_limit(_LONGEST_FIELD)
    blank = first.count(b"\n", 0, len(first) - len(first.lstrip()))
    text = io.TextIOWrapper(file, encoding="utf-8", errors="replace", newline="")
    header_text = first.lstrip().decode(errors="replace")
    separator = _separator(first.strip())
    assert separator is not None
    rows = csv.reader(text, delimiter=separator)
    line = blank + 1
    try:
        (header,) = csv.reader([header_text], delimiter=separator)
        names = [name.strip() for name in header]
        line += 1
        for row in rows:
            if row:
                whole = len(row) == len(names)
                yield Entry(line, dict(zip(names, row, strict=True)) if whole else None)
            line = blank + 2 + rows.line_num
    except csv.Error as error:
        message = f"{path} line {line}: {error}; {FORMS}"
        raise TraceError(message, code="no_log", path=path, line=line) from error
    finally:
        # The file is closed by who opened it.
        text.detach()
