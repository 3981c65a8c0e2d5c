"""Writes chunks to one Parquet file in the long form, with pyarrow."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pcp_parquet.conversion.catalog import Ints
from pcp_parquet.conversion.chunks import Chunk, in_order

# Each column of a row group is one page: smaller pages take a quarter longer to write, and more space.
ROW_GROUP_ROWS = 131_072
_WORDS = pa.dictionary(pa.int32(), pa.string())
# Every signed and unsigned 64-bit integer fits in 20 digits.
_EXACT = pa.decimal128(20, 0)


class Naming(Protocol):
    """The names that the writer asks of a catalog."""

    def names(self, series: Ints) -> tuple[NDArray[np.object_], NDArray[np.object_]]:
        """Metric and instance of each series; None for the instance of a singular metric."""


class LongWriter:
    """Writes chunks as row groups. The file appears under its name when it is complete, never half written.

    Times are in microseconds, which every Parquet reader supports, until one needs nanoseconds; then all rows
    written so far are written again in nanoseconds.
    """

    def __init__(
        self, path: Path, *, with_host: bool, group_rows: int = ROW_GROUP_ROWS
    ) -> None:
        self.rows, self.time_unit = 0, "us"
        self._path, self._with_host, self._group_rows = path, with_host, group_rows
        self._partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        self._writer = self._opened()

    def _opened(self) -> pq.ParquetWriter:
        fields = [
            pa.field(
                "timestamp", pa.timestamp(self.time_unit, tz="UTC"), nullable=False
            )
        ]
        fields += [
            pa.field("metric", _WORDS, nullable=False),
            pa.field("instance", _WORDS),
        ]
        fields += [
            pa.field("value", pa.float64()),
            pa.field("value_int", _EXACT),
            pa.field("text", _WORDS),
        ]
        fields += [pa.field("host", _WORDS, nullable=False)] if self._with_host else []
        return pq.ParquetWriter(
            self._partial,
            pa.schema(fields),
            compression="zstd",
            compression_level=1,
            use_dictionary=["metric", "instance", "text", "host"],
            use_byte_stream_split=["value"],
            # pyarrow writes none for names longer than 4 KiB.
            write_statistics=["timestamp", "metric", "instance", "host", "value_int"],
            write_page_index=True,
            max_rows_per_page=self._group_rows,
            write_batch_size=self._group_rows,
            sorting_columns=[
                pq.SortingColumn(1),
                pq.SortingColumn(2, nulls_first=True),
                pq.SortingColumn(0),
            ],
        )

    def write(self, chunk: Chunk, catalog: Naming, host: str) -> None:
        """Append one chunk as row groups of at most `group_rows` rows, sorted by metric, instance and time."""
        (metrics, _), (instances, names) = ranked = _ranked(chunk, catalog)
        key = metrics.astype(np.int64) * (len(names) + 1) + instances
        if not (np.diff(key) > 0).all():
            # Instances without a name of their own are numbered after all others.
            ranked = _ranked(chunk := in_order(chunk, key), catalog)
        if self.time_unit == "us" and (chunk.times % 1000).any():
            self._refine()
        times = chunk.times // 1000 if self.time_unit == "us" else chunk.times
        if self._with_host:
            ranked.append(
                (
                    np.zeros(len(chunk.series), dtype=np.int32),
                    np.array([host], dtype=np.object_),
                )
            )
        schema, ends = self._writer.schema, np.cumsum(chunk.counts)
        for begin in range(0, len(times), self._group_rows):
            end = min(begin + self._group_rows, len(times))
            first, last = np.searchsorted(ends, [begin, end - 1], side="right").tolist()
            counts = np.diff(np.minimum(ends[first : last + 1], end), prepend=begin)
            metric, instance, *others = (
                _words(codes[first : last + 1], words, counts)
                for codes, words in ranked
            )
            stamps = _column(schema.field("timestamp").type, times[begin:end])
            columns = [stamps, metric, instance, *_values(chunk, begin, end), *others]
            self._writer.write_table(
                pa.Table.from_arrays(columns, schema=schema), self._group_rows
            )
        self.rows += len(times)

    def _refine(self) -> None:
        """Switch to nanoseconds: write the earlier rows again, and continue."""
        self._writer.close()
        self.time_unit = "ns"
        with self._partial.open("rb") as written, pq.ParquetFile(written) as file:
            self._partial.unlink()
            self._writer = self._opened()
            for number in range(file.num_row_groups):
                self._writer.write_table(
                    file.read_row_group(number).cast(self._writer.schema),
                    self._group_rows,
                )

    def finish(self, metadata: dict[str, str]) -> None:
        """Write the footer with this key-value metadata, and give the file its name."""
        self._writer.add_key_value_metadata(metadata)
        self._writer.close()
        self._partial.replace(self._path)

    def __enter__(self) -> LongWriter:
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self._writer.close()
        finally:
            self._partial.unlink(missing_ok=True)


def _ranked(
    chunk: Chunk, catalog: Naming
) -> list[tuple[NDArray[np.int32], NDArray[np.object_]]]:
    """For metrics and instances: each series' position among the sorted words, -1 where it has none; the words."""
    ranked = []
    for names in catalog.names(chunk.series):
        words = sorted(set(names.tolist()) - {None})
        ranks: dict[str | None, int] = {
            None: -1,
            **{word: number for number, word in enumerate(words)},
        }
        codes = np.fromiter(
            map(ranks.__getitem__, names.tolist()), np.int32, len(names)
        )
        ranked.append((codes, np.array(words, dtype=np.object_)))
    return ranked


def _column(
    kind: pa.DataType, cells: NDArray[Any], valid: NDArray[np.bool_] | None = None
) -> pa.Array:
    """An array that uses the memory of the cells, null where not `valid`. `pa.array` would import pandas for this."""
    bits = (
        None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    )
    return pa.Array.from_buffers(kind, len(cells), [bits, pa.py_buffer(cells)])


def _words(
    codes: NDArray[np.int32], words: NDArray[np.object_], counts: Ints | int
) -> pa.DictionaryArray:
    """A column of the words numbered `codes` (-1: null), each in `counts` rows; its dictionary has only those used."""
    seen = np.zeros(len(words) + 1, dtype=np.bool_)
    seen[codes] = True  # -1 has the last place
    numbers = np.cumsum(seen, dtype=np.int32) - np.int32(1)
    valid = np.repeat(codes >= 0, counts) if seen[-1] else None
    used = [word.encode() for word in words[seen[:-1]].tolist()]
    offsets = pa.py_buffer(np.cumsum([0, *map(len, used)], dtype=np.int32))
    dictionary = pa.StringArray.from_buffers(
        len(used), offsets, pa.py_buffer(b"".join(used))
    )
    return pa.DictionaryArray.from_arrays(
        _column(pa.int32(), np.repeat(numbers[codes], counts), valid), dictionary
    )


def _values(chunk: Chunk, begin: int, end: int) -> list[pa.Array]:
    """The columns value, value_int and text of some rows."""
    size, values = end - begin, chunk.values[begin:end]
    value, value_int, text = (
        _column(pa.float64(), values),
        pa.nulls(size, _EXACT),
        pa.nulls(size, _WORDS),
    )
    at, texts = _inside(chunk.texts, begin, end)
    if len(at):
        codes, words = np.full(size, -1, dtype=np.int32), dict[str, int]()
        codes[at] = [words.setdefault(word, len(words)) for word in texts.tolist()]
        value, text = (
            _column(pa.float64(), values, codes < 0),
            _words(codes, np.array([*words], dtype=np.object_), 1),
        )
    at, exact = _inside(chunk.exact, begin, end)
    if len(at):
        valid, integers = (
            np.zeros(size, dtype=np.bool_),
            np.zeros((size, 2), dtype=np.int64),
        )
        valid[at], integers[at] = True, exact
        value_int = _column(_EXACT, integers, valid)
    return [value, value_int, text]


def _inside(
    cells: tuple[Ints, NDArray[Any]], begin: int, end: int
) -> tuple[Ints, NDArray[Any]]:
    """Those of (row numbers, values) that lie in rows `begin` to `end`, renumbered from `begin`."""
    inside = (cells[0] >= begin) & (cells[0] < end)
    return cells[0][inside] - begin, cells[1][inside]
