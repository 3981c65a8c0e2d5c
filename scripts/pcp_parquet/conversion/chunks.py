"""Turns pieces in order of time into chunks: a bounded number of rows, sorted by metric, instance and time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pcp_parquet.conversion.catalog import Ints
from pcp_parquet.conversion.decode import Piece

# Rows held until they are written; some 60 bytes each while sorting.
CHUNK_ROWS = 3_000_000
DENSE_SERIES = 1_000_000


@dataclass
class Chunk:
    """Rows sorted by series and time. `counts[k]` rows belong to `series[k]`.

    `texts` and `exact` are (row numbers, values) of what a double cannot hold: rows in `texts` have no number,
    integers beyond 2^53 are rounded in `values` and given in `exact` as `wide_integers`.
    """

    series: Ints
    counts: Ints
    times: Ints
    values: NDArray[np.float64]
    texts: tuple[Ints, NDArray[np.object_]]
    exact: tuple[Ints, Ints]


def chunks_of(pieces: Iterable[Piece]) -> Iterator[Chunk]:
    """Collects pieces and yields a chunk whenever there are enough rows."""
    held: list[Piece] = []
    rows = 0
    for piece in pieces:
        held.append(piece)
        # A row takes some 16 bytes; long texts count for more.
        rows += piece.rows + piece.text_bytes // 16
        if rows >= CHUNK_ROWS:
            yield assemble(held)
            held, rows = [], 0
    if held:
        yield assemble(held)


def assemble(pieces: list[Piece]) -> Chunk:
    """Sort pieces into a chunk: a counting sort that moves all samples of a series in a piece together."""
    series, counts, local = _numbered(pieces)
    total = int(counts.sum())
    times = np.empty(total, dtype=np.int64)
    values = np.zeros(total)
    present = (
        np.ones(total, dtype=bool)
        if any(piece.present is not None for piece in pieces)
        else None
    )
    even = int(counts[0]) if len(counts) and (counts == counts[0]).all() else 0
    starts = np.cumsum(counts) - counts
    filled = np.zeros_like(counts)
    latest = np.full(len(series), np.iinfo(np.int64).min)
    disordered = np.zeros(len(series), dtype=bool)
    extras = _Extras()
    for piece, which in zip(pieces, local, strict=True):
        width = len(piece.times)
        done = filled[which]
        disordered[which] |= (latest[which] > piece.times[0]) | bool(
            (np.diff(piece.times) < 0).any()
        )
        latest[which] = np.maximum(latest[which], piece.times.max())
        filled[which] = done + width
        plain = (
            piece.values is not None and piece.present is None and piece.exact is None
        )
        if even and plain and (done == done[0]).all():
            # Every series has the same number of rows: the samples are a block of columns of one matrix.
            columns = slice(int(done[0]), int(done[0]) + width)
            whole = _range(which)
            times.reshape(-1, even)[whole, columns] = piece.times
            values.reshape(-1, even)[whole, columns] = piece.values
            continue
        rows = (starts[which] + done)[:, None] + np.arange(width)
        times[rows] = piece.times
        if piece.values is not None:
            values[rows] = piece.values
        if present is not None and piece.present is not None:
            present[rows] = piece.present
        extras.add(piece, rows)
    chunk = Chunk(series, counts, times, values, *extras.joined())
    if present is None and not disordered.any():
        return chunk
    order = np.arange(total)
    for number in np.flatnonzero(disordered).tolist():
        begin, end = int(starts[number]), int(starts[number] + counts[number])
        order[begin:end] = begin + np.argsort(times[begin:end], kind="stable")
    return _rearranged(
        chunk, order if present is None else order[present[order]], series
    )


def _numbered(pieces: list[Piece]) -> tuple[Ints, Ints, list[Ints]]:
    """The series of all pieces, their numbers of rows, and for each piece the positions of its series among them."""
    top = max(int(piece.series.max()) for piece in pieces) + 1
    lengths = [len(piece.series) for piece in pieces]
    if top > max(DENSE_SERIES, 4 * sum(lengths)):
        # A table of all series would be mostly empty: a long recording of short-lived processes.
        everything, inverse = np.unique(
            np.concatenate([piece.series for piece in pieces]), return_inverse=True
        )
        widths = np.repeat([len(piece.times) for piece in pieces], lengths)
        counts = np.bincount(inverse, weights=widths).astype(np.int64)
        return everything, counts, np.split(inverse, np.cumsum(lengths)[:-1])
    rows = np.zeros(top, dtype=np.int64)
    for piece in pieces:
        rows[piece.series] += len(piece.times)
    series = np.flatnonzero(rows)
    position = np.empty(top, dtype=np.int64)
    position[series] = np.arange(len(series))
    return series, rows[series], [position[piece.series] for piece in pieces]


def _range(numbers: Ints) -> slice | Ints:
    """Consecutive numbers as a slice, which numpy copies faster."""
    first, last = int(numbers[0]), int(numbers[-1])
    if last - first == len(numbers) - 1 and (np.diff(numbers) == 1).all():
        return slice(first, last + 1)
    return numbers


class _Extras:
    """Texts and large integers of a chunk, with their rows."""

    def __init__(self) -> None:
        self._text_at: list[Ints] = []
        self._texts: list[NDArray[np.object_]] = []
        self._exact_at: list[Ints] = []
        self._exact: list[Ints] = []

    def add(self, piece: Piece, rows: Ints) -> None:
        """Add those of a piece, whose values go to `rows`."""
        if piece.texts is not None:
            self._text_at.append(rows.reshape(-1))
            self._texts.append(piece.texts.reshape(-1))
        if piece.exact is not None:
            self._exact_at.append(rows.reshape(-1)[piece.exact[0]])
            self._exact.append(piece.exact[1])

    def joined(self) -> tuple[tuple[Ints, NDArray[np.object_]], tuple[Ints, Ints]]:
        """(rows, texts) and (rows, integers)."""
        none = np.empty(0, dtype=np.int64)
        texts = np.concatenate([*self._texts, np.empty(0, dtype=np.object_)])
        return (np.concatenate([*self._text_at, none]), texts), (
            np.concatenate([*self._exact_at, none]),
            np.concatenate([*self._exact, np.empty((0, 2), dtype=np.int64)]),
        )


def in_order(chunk: Chunk, key: Ints) -> Chunk:
    """The rows sorted by the key of their series, then by time; series with equal keys become one."""
    order = np.lexsort((chunk.times, np.repeat(key, chunk.counts)))
    _, first, position = np.unique(key, return_index=True, return_inverse=True)
    return _rearranged(chunk, order, chunk.series[first][position])


def _rearranged(chunk: Chunk, order: Ints, series: Ints) -> Chunk:
    """The rows of a chunk in `order`, which keeps rows of a series adjacent; `series` are the new series numbers."""
    owner = np.repeat(series, chunk.counts)
    row = np.full(len(owner), -1, dtype=np.int64)
    row[order] = np.arange(len(order))
    owner = owner[order]
    starts = np.flatnonzero(np.diff(owner, prepend=-1))
    text_at, exact_at = row[chunk.texts[0]], row[chunk.exact[0]]
    return Chunk(
        series=owner[starts],
        counts=np.diff(starts, append=len(owner)),
        times=chunk.times[order],
        values=chunk.values[order],
        texts=(text_at[text_at >= 0], chunk.texts[1][text_at >= 0]),
        exact=(exact_at[exact_at >= 0], chunk.exact[1][exact_at >= 0]),
    )
