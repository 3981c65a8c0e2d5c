"""Chunks to one Parquet file in the long form.

pyarrow's writer takes 50 ns a row for these columns, most of it on repeating what the sorted runs already say; built
from the runs, a row costs the compression of its time and value. The files are read with pyarrow, and tested with it.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Protocol

import numpy as np

from kveval.pcp.conversion import thrift as t
from kveval.pcp.conversion.arrow_schema import ARROW_SCHEMA, ARROW_SCHEMA_WITH_HOST
from kveval.pcp.conversion.catalog import Words
from kveval.pcp.conversion.chunks import Chunk
from kveval.pcp.conversion.pages import (
    BYTE_ARRAY,
    DOUBLE,
    FIXED,
    INT64,
    Column,
    ColumnChunk,
    Ints,
    PageWriter,
    levels,
    one_level,
    word,
)

ROW_GROUP_ROWS = 131_072
# Negative levels trade size for speed; on columns sorted by significance -1 is as small as 1 and a quarter faster.
COMPRESSION_LEVEL = -1
MAGIC = b"PAR1"
_TEXT = t.struct((1, t.STRUCT, t.struct()))
_UTC_NANOSECONDS = t.struct(
    (8, t.STRUCT, t.struct((1, t.TRUE, True), (2, t.STRUCT, t.struct((3, t.STRUCT, t.struct())))))
)
# Every signed and unsigned 64-bit integer fits in 20 digits, these in 9 bytes.
_EXACT = t.struct((5, t.STRUCT, t.struct((1, t.I32, 0), (2, t.I32, 20))))
_UTF8, _DECIMAL = 0, 5

TIMESTAMP = Column("timestamp", INT64, optional=False, logical=_UTC_NANOSECONDS)
METRIC = Column("metric", BYTE_ARRAY, optional=False, logical=_TEXT, converted=_UTF8)
INSTANCE = Column("instance", BYTE_ARRAY, optional=True, logical=_TEXT, converted=_UTF8)
VALUE = Column("value", DOUBLE, optional=True)
VALUE_INT = Column("value_int", FIXED, optional=True, logical=_EXACT, converted=_DECIMAL, length=9, precision=20)
TEXT = Column("text", BYTE_ARRAY, optional=True, logical=_TEXT, converted=_UTF8)
HOST = Column("host", BYTE_ARRAY, optional=False, logical=_TEXT, converted=_UTF8)


class Naming(Protocol):
    """The names that the writer asks of a catalog."""

    metric_words: Words
    name_words: Words

    def parts(self, series: Ints) -> tuple[Ints, Ints]:
        """Numbers of the metric and instance words of each series, -1 where there is no instance."""


class LongWriter:
    """Writes chunks as row groups. The file appears under its name when it is complete, never half written."""

    def __init__(self, path: Path, *, with_host: bool, group_rows: int = ROW_GROUP_ROWS) -> None:
        self._path = path
        self._partial = path.with_name(path.name + ".partial")
        self._columns = [TIMESTAMP, METRIC, INSTANCE, VALUE, VALUE_INT, TEXT, *([HOST] if with_host else [])]
        self._group_rows = group_rows
        self._pages = PageWriter(COMPRESSION_LEVEL)
        self._groups: list[bytes] = []
        self._file = self._partial.open("wb")
        self._offset = self._file.write(MAGIC)
        self.rows = 0

    def write(self, chunk: Chunk, catalog: Naming, host: str) -> None:
        """Append one chunk as row groups of at most `group_rows` rows."""
        ends = np.cumsum(chunk.counts)
        metrics, names = catalog.parts(chunk.series)
        for begin in range(0, len(chunk.times), self._group_rows):
            end = min(begin + self._group_rows, len(chunk.times))
            first, last = np.searchsorted(ends, [begin, end - 1], side="right").tolist()
            counts = np.minimum(ends[first : last + 1], end)
            counts = np.diff(counts, prepend=begin)
            group = _Group(self._pages, chunk, slice(begin, end), counts)
            part = slice(first, last + 1)
            self._append(
                [
                    group.timestamps(),
                    group.names(METRIC, metrics[part], catalog.metric_words),
                    group.names(INSTANCE, names[part], catalog.name_words),
                    group.values(),
                    group.exact(),
                    group.texts(),
                    group.names(HOST, np.zeros(len(counts), dtype=np.int64), [word(host)]),
                ][: len(self._columns)],
                end - begin,
            )

    def _append(self, chunks: list[ColumnChunk], rows: int) -> None:
        described = []
        begin = self._offset
        for chunk in chunks:
            described.append(chunk.metadata(self._offset))
            for page in chunk.pages:
                self._offset += self._file.write(page)
        self._groups.append(
            t.struct(
                (1, t.LIST, (t.STRUCT, described)),
                (2, t.I64, sum(chunk.uncompressed for chunk in chunks)),
                (3, t.I64, rows),
                (5, t.I64, begin),
                (6, t.I64, self._offset - begin),
            )
        )
        self.rows += rows

    def finish(self, metadata: dict[str, str]) -> None:
        """Write the footer with this key-value metadata, and give the file its name."""
        schema = [t.struct((4, t.BINARY, b"schema"), (5, t.I32, len(self._columns)))]
        arrow = ARROW_SCHEMA_WITH_HOST if HOST in self._columns else ARROW_SCHEMA
        entries = {**metadata, "ARROW:schema": arrow}
        footer = t.struct(
            (1, t.I32, 2),
            (2, t.LIST, (t.STRUCT, schema + [_element(column) for column in self._columns])),
            (3, t.I64, self.rows),
            (4, t.LIST, (t.STRUCT, self._groups)),
            (5, t.LIST, (t.STRUCT, [_key_value(key, value) for key, value in entries.items()])),
            (6, t.BINARY, b"kveval.pcp"),
            # Minimum and maximum are in the order of the type.
            (7, t.LIST, (t.STRUCT, [t.struct((1, t.STRUCT, t.struct()))] * len(self._columns))),
        )
        self._file.write(footer + len(footer).to_bytes(4, "little") + MAGIC)
        self._file.close()
        self._partial.replace(self._path)

    def __enter__(self) -> LongWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._partial.unlink(missing_ok=True)


def _element(column: Column) -> bytes:
    return t.struct(
        (1, t.I32, column.kind),
        (2, t.I32, column.length),
        (3, t.I32, int(column.optional)),
        (4, t.BINARY, column.name.encode()),
        (6, t.I32, column.converted),
        (7, t.I32, None if column.precision is None else 0),
        (8, t.I32, column.precision),
        (10, t.STRUCT, column.logical),
    )


def _key_value(key: str, value: str) -> bytes:
    return t.struct((1, t.BINARY, key.encode()), (2, t.BINARY, value.encode("utf-8", "backslashreplace")))


class _Group:
    """The columns of one row group: rows `rows` of a chunk, of which `counts[k]` belong to the k-th series in it."""

    def __init__(self, pages: PageWriter, chunk: Chunk, rows: slice, counts: Ints) -> None:
        self._pages, self._chunk, self._rows, self._counts = pages, chunk, rows, counts
        self._size = rows.stop - rows.start

    def timestamps(self) -> ColumnChunk:
        """Times with their extremes, for skipping."""
        times = np.ascontiguousarray(self._chunk.times[self._rows], dtype="<i8")
        column = self._pages.plain(TIMESTAMP, self._size, b"", times.data.cast("B"))
        column.low, column.high = times.min().tobytes(), times.max().tobytes()
        return column

    def names(self, column: Column, numbers: Ints, words: list[bytes]) -> ColumnChunk:
        """A column of names, one a series; -1 has none."""
        named = numbers >= 0
        used, codes = np.unique(numbers[named], return_inverse=True)
        counts = self._counts[named]
        defined = levels(named, self._counts) if column.optional else b""
        nulls = int(self._size - counts.sum())
        if not len(used):
            return self._pages.nothing(column, self._size)
        chosen = [words[number] for number in used.tolist()]
        return self._pages.dictionary(column, self._size, defined, chosen, codes=codes, counts=counts, nulls=nulls)

    def values(self) -> ColumnChunk:
        """The numbers; none in rows of text."""
        values = self._chunk.values[self._rows]
        at = _inside(self._chunk.texts[0], self._rows)
        if not len(at):
            return self._pages.split(VALUE, self._size, one_level(self._size, present=True), values)
        if len(at) == self._size:
            return self._pages.nothing(VALUE, self._size)
        keep = np.ones(self._size, dtype=bool)
        keep[self._chunk.texts[0][at] - self._rows.start] = False
        return self._pages.split(VALUE, self._size, _levels_of(keep), values[keep], nulls=len(at))

    def exact(self) -> ColumnChunk:
        """Integers that a double cannot hold, big-endian in nine bytes."""
        where, exact = self._chunk.exact
        at = _inside(where, self._rows)
        if not len(at):
            return self._pages.nothing(VALUE_INT, self._size)
        at = at[np.argsort(where[at], kind="stable")]
        data = exact[at].tobytes()
        nulls = self._size - len(at)
        return self._pages.plain(VALUE_INT, self._size, self._present(where[at]), data, nulls=nulls)

    def texts(self) -> ColumnChunk:
        """Text, as a dictionary."""
        where, texts = self._chunk.texts
        at = _inside(where, self._rows)
        if not len(at):
            return self._pages.nothing(TEXT, self._size)
        at = at[np.argsort(where[at], kind="stable")]
        codes: dict[str, int] = {}
        numbers = np.array([codes.setdefault(text, len(codes)) for text in texts[at]], dtype=np.int64)
        words = [word(text) for text in codes]
        ones = np.ones(len(numbers), dtype=np.int64)
        nulls = self._size - len(at)
        return self._pages.dictionary(
            TEXT, self._size, self._present(where[at]), words, codes=numbers, counts=ones, nulls=nulls
        )

    def _present(self, where: Ints) -> bytes:
        present = np.zeros(self._size, dtype=bool)
        present[where - self._rows.start] = True
        return _levels_of(present)


def _levels_of(present: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> bytes:
    return levels(present, np.ones(len(present), dtype=np.int64))


def _inside(where: Ints, rows: slice) -> Ints:
    """Positions in `where` of the row numbers that lie in `rows`."""
    if not len(where):
        return np.empty(0, dtype=np.int64)
    return np.flatnonzero((where >= rows.start) & (where < rows.stop))
