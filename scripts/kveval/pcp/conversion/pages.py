"""Parquet pages made from runs: in sorted data a column is mostly repetition, and need not be spelt out row by row.

https://github.com/apache/parquet-format/blob/master/README.md (pages), Encodings.md, src/main/thrift/parquet.thrift
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import zstandard
from numpy.typing import NDArray

from kveval.pcp.conversion import thrift as t

INT64, DOUBLE, BYTE_ARRAY, FIXED = 2, 5, 6, 7
PLAIN, RLE, RLE_DICTIONARY, BYTE_STREAM_SPLIT = 0, 3, 8, 9
ZSTD = 6
_DATA_PAGE, _DICTIONARY_PAGE = 0, 2

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Column:
    """A column's fixed properties; `logical` is an encoded LogicalType, `converted` the older ConvertedType."""

    name: str
    kind: int
    optional: bool
    logical: bytes | None = None
    converted: int | None = None
    length: int | None = None
    precision: int | None = None


@dataclass
class ColumnChunk:
    """One column of one row group: its pages, compressed, and what the footer has to say about them."""

    column: Column
    rows: int
    encodings: tuple[int, ...]
    pages: list[bytes] = field(default_factory=list)
    uncompressed: int = 0
    dictionary_size: int = 0
    low: bytes | None = None
    high: bytes | None = None
    nulls: int = 0

    @property
    def stored(self) -> int:
        """Bytes in the file."""
        return sum(map(len, self.pages))

    def metadata(self, offset: int) -> bytes:
        """The footer's ColumnChunk for pages that begin at `offset` of the file."""
        statistics = t.struct((3, t.I64, self.nulls), (5, t.BINARY, self.high), (6, t.BINARY, self.low))
        described = t.struct(
            (1, t.I32, self.column.kind),
            (2, t.LIST, (t.I32, [t.integer(encoding) for encoding in self.encodings])),
            (3, t.LIST, (t.BINARY, [t.binary(self.column.name.encode())])),
            (4, t.I32, ZSTD),
            (5, t.I64, self.rows),
            (6, t.I64, self.uncompressed),
            (7, t.I64, self.stored),
            (9, t.I64, offset + self.dictionary_size),
            (11, t.I64, offset if self.dictionary_size else None),
            (12, t.STRUCT, statistics),
        )
        return t.struct((2, t.I64, 0), (3, t.STRUCT, described))


class PageWriter:
    """Builds column chunks; one compressor for all pages."""

    def __init__(self, level: int) -> None:
        self._compressor = zstandard.ZstdCompressor(level=level)
        self._empty: dict[tuple[Column, int], ColumnChunk] = {}

    def plain(self, column: Column, rows: int, levels: bytes, data: bytes | memoryview, **about: int) -> ColumnChunk:
        """Values one after the other."""
        return self._single(column, rows, levels, data, PLAIN, **about)

    def split(self, column: Column, rows: int, levels: bytes, data: NDArray[np.float64], **about: int) -> ColumnChunk:
        """Doubles with their bytes sorted by significance: the upper ones hardly change and compress well."""
        turned = np.ascontiguousarray(data.view(np.uint8).reshape(-1, 8).T)
        return self._single(column, rows, levels, turned.data.cast("B"), BYTE_STREAM_SPLIT, **about)

    def nothing(self, column: Column, rows: int) -> ColumnChunk:
        """A column without a value; made once for each number of rows, for most row groups have the same."""
        if (column, rows) not in self._empty:
            made = self._single(column, rows, one_level(rows, present=False), b"", PLAIN, nulls=rows)
            self._empty[column, rows] = made
        return self._empty[column, rows]

    def _single(
        self, column: Column, rows: int, levels: bytes, data: bytes | memoryview, encoding: int, *, nulls: int = 0
    ) -> ColumnChunk:
        chunk = ColumnChunk(column, rows, (RLE, encoding), nulls=nulls)
        self._data_page(chunk, levels, data, encoding)
        return chunk

    def dictionary(
        self,
        column: Column,
        rows: int,
        levels: bytes,
        words: Sequence[bytes],
        *,
        codes: Ints,
        counts: Ints,
        nulls: int = 0,
    ) -> ColumnChunk:
        """Words (see `word`) by number, in runs of `counts` equal ones. Their extremes are noted: use them all."""
        chunk = ColumnChunk(column, rows, (PLAIN, RLE, RLE_DICTIONARY), nulls=nulls)
        plain = [entry[4:] for entry in words]
        chunk.low, chunk.high = min(plain), max(plain)
        entries = b"".join(words)
        header = t.struct((1, t.I32, len(words)), (2, t.I32, PLAIN))
        self._page(chunk, _DICTIONARY_PAGE, entries, 7, header)
        chunk.dictionary_size = chunk.stored
        width = max(0, len(words) - 1).bit_length()
        self._data_page(chunk, levels, bytes([width]) + runs(codes, counts, width), RLE_DICTIONARY)
        return chunk

    def _data_page(self, chunk: ColumnChunk, levels: bytes, data: bytes | memoryview, encoding: int) -> None:
        header = t.struct((1, t.I32, chunk.rows), (2, t.I32, encoding), (3, t.I32, RLE), (4, t.I32, RLE))
        whole = b"".join((levels, data)) if levels else data
        self._page(chunk, _DATA_PAGE, whole, 5, header)

    def _page(self, chunk: ColumnChunk, kind: int, data: bytes | memoryview, number: int, header: bytes) -> None:
        stored = self._compressor.compress(data)
        about = t.struct((1, t.I32, kind), (2, t.I32, len(data)), (3, t.I32, len(stored)), (number, t.STRUCT, header))
        chunk.pages += [about, stored]
        chunk.uncompressed += len(about) + len(data)


def word(text: str) -> bytes:
    """A text as it stands in a dictionary: its length in UTF-8, little-endian, then the text."""
    data = text.encode()
    return len(data).to_bytes(4, "little") + data


def nine_bytes(numbers: NDArray[np.int64] | NDArray[np.uint64]) -> NDArray[np.uint8]:
    """64-bit integers, signed or not, as big-endian decimals of 20 digits: a row of nine bytes each."""
    out = np.empty((len(numbers), 9), dtype=np.uint8)
    out[:, 0] = np.where(numbers < 0, 0xFF, 0)
    out[:, 1:] = numbers.astype(numbers.dtype.newbyteorder(">")).view(np.uint8).reshape(-1, 8)
    return out


def levels(present: NDArray[np.bool_], counts: Ints) -> bytes:
    """Definition levels of an optional column: runs of rows that have a value or none."""
    encoded = runs(present.astype(np.int64), counts, 1)
    return len(encoded).to_bytes(4, "little") + encoded


def one_level(rows: int, *, present: bool) -> bytes:
    """Definition levels where all rows have a value, or none has."""
    encoded = t.varint(rows << 1) + bytes([present])
    return len(encoded).to_bytes(4, "little") + encoded


def merged(codes: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """The same rows with neighbouring runs of one code joined."""
    edges = np.flatnonzero(np.concatenate(([True], codes[1:] != codes[:-1])))
    return codes[edges], np.add.reduceat(counts, edges)


def runs(codes: Ints, counts: Ints, width: int) -> bytes:
    """Runs in the RLE hybrid encoding for codes of `width` bits: LEB128 of twice the length, then the code."""
    if not len(codes):
        return b""
    codes, counts = merged(codes, counts)
    code_bytes = (width + 7) // 8
    if len(codes) == 1:
        return t.varint(int(counts[0]) << 1) + int(codes[0]).to_bytes(code_bytes, "little")
    head = counts << 1
    # Lengths have at most five groups of seven bits: a row group has fewer than 2^31 rows.
    groups = np.arange(5)
    parts = head[:, None] >> 7 * groups
    sizes = 1 + (parts[:, 1:] > 0).sum(axis=1)
    used = groups < sizes[:, None]
    out = np.zeros((len(codes), 5 + code_bytes), dtype=np.uint8)
    out[:, :5] = (parts & 0x7F) | np.where(groups + 1 < sizes[:, None], 0x80, 0)
    out[:, 5:] = codes[:, None] >> 8 * np.arange(code_bytes) & 0xFF
    keep = np.concatenate([used, np.ones((len(codes), code_bytes), dtype=bool)], axis=1)
    return bytes(out[keep])
