"""The values of an archive by series, as they were recorded, in temporary files."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcp_parquet.archive.records import Block
from pcp_parquet.archive.units import DOUBLE, FLOAT, I32, I64, STRING, U32, U64
from pcp_parquet.conversion.catalog import Catalog, Ints
from pcp_parquet.conversion.chunks import Chunk

NATIVE: dict[int, np.dtype[Any]] = {
    **{
        I32: np.dtype(np.int32),
        U32: np.dtype(np.uint32),
        I64: np.dtype(np.int64),
        U64: np.dtype(np.uint64),
    },
    **{
        FLOAT: np.dtype(np.float32),
        DOUBLE: np.dtype(np.float64),
        STRING: np.dtype(np.object_),
    },
}
"""Type codes that have a column, and the type of its values."""


@dataclass(frozen=True)
class SeriesSamples:
    """The samples of one series in order of time: ns since 1970 UTC, and values of the metric's own type."""

    times_ns: Ints
    values: NDArray[Any]


class SampleStore:
    """Takes the chunks of a scan, and hands out series by PMID and instance name (None for a singular metric)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._chunks: list[Chunk] = []
        self._places: dict[tuple[int, str | None], list[tuple[int, int, int]]] = {}
        self._names: dict[int, dict[str | None, None]] = {}
        self._record_times: list[tuple[Ints, Ints]] = [
            (np.empty(0, dtype=np.int64),) * 2
        ]
        self._latest_ns = self._latest_distinct_ns = -1

    def take(self, chunk: Chunk, catalog: Catalog, _host: str) -> None:
        """Take a chunk of an archive (a sink of `Scan`)."""
        ends = np.cumsum(chunk.counts).tolist()
        seen = set()
        for series, count, end in zip(
            chunk.series.tolist(), chunk.counts.tolist(), ends, strict=True
        ):
            number, name = catalog.name(series)
            pmid = catalog.metrics[number].pmid
            copy = 2
            while (pmid, name) in seen:
                name, copy = f"{catalog.name(series)[1]} #{copy}", copy + 1
            seen.add((pmid, name))
            self._places.setdefault((pmid, name), []).append(
                (len(self._chunks), end - count, end)
            )
            self._names.setdefault(pmid, {})[name] = None
        self._chunks.append(self._kept(chunk))

    def watch(self, block: Block, _where: str) -> None:
        """Note the times of a block's records (a watcher of `Scan`); those of the same time are moved 1 ns apart."""
        ahead = np.maximum.accumulate(np.concatenate([[self._latest_ns], block.times]))
        good = (block.times >= 0) & (block.times >= ahead[1:])
        recorded, place = block.times[good], np.arange(int(good.sum()))
        distinct = (
            np.maximum.accumulate(
                np.maximum(recorded, self._latest_distinct_ns + 1) - place
            )
            + place
        )
        self._record_times.append((recorded, distinct))
        if len(place):
            self._latest_ns, self._latest_distinct_ns = (
                int(recorded[-1]),
                int(distinct[-1]),
            )
        block.times[good] = distinct

    def record_times(self) -> tuple[Ints, Ints]:
        """Times of all records in the order of the archive, ns, without those that go back in time.

        Two arrays: as they were recorded, and as they are in the samples (see `watch`).
        """
        recorded, distinct = (
            np.concatenate(times) for times in zip(*self._record_times, strict=True)
        )
        return recorded, distinct

    def names(self, pmid: int) -> list[str | None]:
        """Instances of a metric that have values."""
        return list(self._names.get(pmid, {}))

    def series(self, pmid: int, name: str | None, kind: int) -> SeriesSamples:
        """One series' samples; empty if it has none. `kind` is the metric's type code."""
        parts = [
            self._part(*place, kind) for place in self._places.get((pmid, name), ())
        ]
        times = np.concatenate(
            [*(part[0] for part in parts), np.empty(0, dtype=np.int64)]
        )
        values = np.concatenate(
            [*(part[1] for part in parts), np.empty(0, dtype=NATIVE[kind])]
        )
        if len(parts) > 1 and (np.diff(times) < 0).any():
            order = np.argsort(times, kind="stable")
            times, values = times[order], values[order]
        return SeriesSamples(times, values)

    def _part(
        self, number: int, begin: int, end: int, kind: int
    ) -> tuple[Ints, NDArray[Any]]:
        chunk = self._chunks[number]
        times, values = chunk.times[begin:end], chunk.values[begin:end]
        rows, exact_values = chunk.texts if kind == STRING else chunk.exact
        some = slice(*np.searchsorted(rows, (begin, end)))
        if kind == STRING:
            texts = np.full(end - begin, None, dtype=np.object_)
            texts[rows[some] - begin] = exact_values[some]
            return times, texts
        if kind not in (I64, U64):
            return times, values.astype(NATIVE[kind])
        # A double that is out of the type's range is replaced by one of `exact`.
        with np.errstate(invalid="ignore"):
            whole = values.astype(NATIVE[kind])
        whole[rows[some] - begin] = exact_values[some][:, 0].view(NATIVE[kind])
        return times, whole

    def _kept(self, chunk: Chunk) -> Chunk:
        """The chunk with its times and values in files."""
        files = [
            self._folder / f"{len(self._chunks)}.{name}.npy"
            for name in ("times", "values")
        ]
        np.save(files[0], chunk.times)
        np.save(files[1], chunk.values)
        times, values = (np.load(path, mmap_mode="r") for path in files)
        return replace(
            chunk,
            times=times,
            values=values,
            texts=_sorted(*chunk.texts),
            exact=_sorted(*chunk.exact),
        )


def _sorted(rows: Ints, values: NDArray[Any]) -> tuple[Ints, NDArray[Any]]:
    order = np.argsort(rows)
    return rows[order], values[order]
