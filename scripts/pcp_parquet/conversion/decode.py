"""Decodes blocks of records into pieces: matrices of values, one row per series and one column per sample."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcp_parquet.archive.problems import ProblemLog
from pcp_parquet.archive.records import Block
from pcp_parquet.archive.wire import HEADER_SIZE
from pcp_parquet.conversion import layout as lay
from pcp_parquet.conversion.catalog import Catalog
from pcp_parquet.conversion.layout import Layout

EXACT_LIMIT = 2.0**53
_DTYPE = {
    **{
        lay.IN_I32: ">i4",
        lay.IN_U32: ">u4",
        lay.IN_F32: ">f4",
        lay.B_I32: ">i4",
        lay.B_U32: ">u4",
    },
    **{lay.B_F32: ">f4", lay.B_I64: ">i8", lay.B_U64: ">u8", lay.B_F64: ">f8"},
}
_CANDIDATES = 8
# Layouts kept, in words of their records; an archive has a few dozen, a damaged one may have a new one in every record.
_REMEMBERED_WORDS = 4_000_000
_WORD = 4
_COMPARED_AT_ONCE = 16_384
# Reading one evenly spaced stretch costs as much as reading this many values one by one.
_WORTH_A_STRETCH = 256


@dataclass
class Piece:
    """Values of some series (rows) at some times (columns); `present` is False where a value could not be read.

    `exact` holds (flat positions, `wide_integers`) of integers that a double cannot hold; `texts` replaces `values`,
    `text_bytes` is the size of the distinct ones.
    """

    series: NDArray[np.int64]
    times: NDArray[np.int64]
    values: NDArray[np.float64] | None
    texts: NDArray[np.object_] | None = None
    present: NDArray[np.bool_] | None = None
    exact: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
    text_bytes: int = 0

    @property
    def rows(self) -> int:
        """Number of values, readable or not."""
        return len(self.series) * len(self.times)


@dataclass
class Decoder:
    """Decodes the blocks of one archive and remembers their layouts."""

    catalog: Catalog
    problems: ProblemLog
    where: str = ""
    errors: Counter[tuple[int, int]] = field(default_factory=Counter)
    unknown: Counter[int] = field(default_factory=Counter)
    values_wanted: bool = True
    _families: dict[tuple[int, int], list[Layout]] = field(default_factory=dict)
    _remembered: int = 0
    _formats: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.counts = np.zeros(len(self.catalog.metrics), dtype=np.int64)
        self.not_converted = np.zeros(len(self.catalog.metrics), dtype=np.int64)

    def pieces(self, block: Block, records: NDArray[np.int64]) -> Iterator[Piece]:
        """The values of the numbered records of a block, in order of time within each logging group."""
        raw = block.words.view(np.uint32)
        head = HEADER_SIZE[block.version] // 4
        starts = block.starts[records] // 4
        first = block.words[starts + head].astype(np.int64)
        counts = block.words[starts + head - 1].astype(np.int64)
        families: dict[tuple[int, int], list[int]] = {}
        for number, key in enumerate(zip(counts.tolist(), first.tolist(), strict=True)):
            families.setdefault(key, []).append(number)
        for key, members in families.items():
            yield from self._family(key, block, raw, records[np.array(members)])

    def _family(
        self,
        key: tuple[int, int],
        block: Block,
        raw: NDArray[np.uint32],
        records: NDArray[np.int64],
    ) -> Iterator[Piece]:
        """Decode stretches of records that have one layout and within which no instance changes its name."""
        starts, sizes = block.starts[records] // 4, block.sizes[records] // 4
        epochs = self.catalog.epochs(block.times[records])
        changes = [*(np.flatnonzero(np.diff(epochs)) + 1).tolist(), len(records)]
        begin = 0
        for change in changes:
            while begin < change:
                layout = self._layout(
                    key,
                    block,
                    raw[starts[begin] : starts[begin] + sizes[begin]],
                    int(starts[begin]),
                )
                end = (
                    begin
                    + 1
                    + _followers(
                        layout,
                        raw,
                        starts[begin + 1 : change],
                        sizes[begin + 1 : change],
                    )
                )
                yield from self._run(layout, block, records[begin:end])
                begin = end

    def _layout(
        self, key: tuple[int, int], block: Block, record: NDArray[np.uint32], start: int
    ) -> Layout:
        known = self._families.setdefault(key, [])
        for number, layout in enumerate(known):
            size = len(layout.mask)
            if layout.fits(len(record)) and _equal(record[:size], layout):
                if number:
                    known.insert(0, known.pop(number))
                return layout
        layout = lay.build(
            block.words[start : start + len(record)], block.version, self.catalog
        )
        for metric, form in layout.formats.items():
            if self._formats.setdefault(metric, form) != form and metric >= 0:
                name = self.catalog.metrics[metric].names[0]
                layout.remarks.append(
                    f"{name} has value format {form}, {self._formats[metric]} before"
                )
        # The mask of a broken record ends at the damage, so whole records would match it: it is not kept.
        if not layout.complaint:
            self._remembered += 1000 + len(layout.mask)
            if self._remembered > _REMEMBERED_WORDS:
                self._families = {key: (known := [])}
                self._remembered = len(layout.mask)
            known.insert(0, layout)
            del known[_CANDIDATES:]
        return layout

    def _run(
        self, layout: Layout, block: Block, records: NDArray[np.int64]
    ) -> Iterator[Piece]:
        times = block.times[records]
        self._account(layout, block, records)
        if not len(layout.words):
            return
        series = layout.series_at(self.catalog, int(times[0]))
        starts = block.starts[records] // 4
        ends = starts + block.sizes[records] // 4 - 1
        filled, whole = starts + layout.end, layout.exact and not layout.fixed
        for kind, columns in layout.spans():
            if kind == lay.UNREADABLE or not self.values_wanted:
                whole = False
                continue
            words = layout.words[columns]
            present = None
            if kind not in lay.IN_PLACE and not layout.fixed:
                bounds = (starts + layout.end, ends)
                words, present, sizes = self._find_blocks(
                    block, words, starts, bounds=bounds, kind=kind
                )
                filled = filled + sizes.sum(axis=0)
                if present.all() and (shared := lay.repeats(words)).any():
                    message = f"two of its values are in one place (in {int(shared.sum()):,} records)"
                    self._complain(message, block, records[int(np.argmax(shared))])
            if kind == lay.B_OTHER:
                continue
            piece = Piece(series[columns], times, None, present=present)
            if kind == lay.B_TEXT:
                assert present is not None
                piece.texts, piece.text_bytes = self._texts(block, words, present)
            else:
                self._numbers(piece, block, words, starts, kind)
            if present is not None:
                if present.all():
                    piece.present = None
                else:
                    lost, worst = (
                        int(present.size - present.sum()),
                        int(np.argmin(present.all(axis=0))),
                    )
                    message = f"{lost:,} values are not where their record says"
                    self._complain(message, block, records[worst])
            yield piece
        if whole and not (filled == ends).all():
            worst = int(np.argmin(filled == ends))
            message = lay.unfilled(
                int(filled[worst] - starts[worst]), int(ends[worst] - starts[worst])
            )[0]
            self._complain(
                f"{message} (in {int((filled != ends).sum()):,} records)",
                block,
                records[worst],
            )

    def _complain(self, what: str, block: Block, record: int) -> None:
        self.problems.add(
            "bad record", self.where, what, block.offset + int(block.starts[record])
        )

    def _account(
        self, layout: Layout, block: Block, records: NDArray[np.int64]
    ) -> None:
        rows = len(records)
        self.counts += layout.seen * rows
        self.not_converted += layout.lost * rows
        for error in layout.errors:
            self.errors[error] += rows
        for pmid in layout.unknown:
            self.unknown[pmid] += rows
        if layout.complaint:
            self._complain(layout.complaint, block, records[0])
        for remark in layout.remarks:
            self._complain(
                f"{remark} (in {rows:,} records)" if rows > 1 else remark,
                block,
                records[0],
            )

    def _find_blocks(
        self,
        block: Block,
        words: NDArray[np.int64],
        starts: NDArray[np.int64],
        *,
        bounds: tuple[NDArray[np.int64], NDArray[np.int64]],
        kind: int,
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.int64]]:
        """Word of each value's data (rows: values, columns: records), whether it is sound, and its size in words."""
        at = starts + block.words[words[:, None] + starts].astype(np.int64) - 2
        inside = (at >= bounds[0]) & (at < bounds[1])
        at = np.where(inside, at, 0)
        header = block.words[at].astype(np.int64)
        size = header & 0xFFFFFF
        good = inside & (size >= 4) & (at + (size + 3) // 4 <= bounds[1])
        if kind != lay.B_OTHER:
            expected_size = size if kind == lay.B_TEXT else lay.BLOCK_BYTES[kind]
            good &= lay.sound_block(header, lay.BLOCK_TYPE[kind], expected_size)
        return np.where(good, at + 1, 1), good, np.where(good, (size + 3) // 4, 0)

    def _numbers(
        self,
        piece: Piece,
        block: Block,
        words: NDArray[np.int64],
        starts: NDArray[np.int64],
        kind: int,
    ) -> None:
        # Signed 64-bit integers convert to doubles four times as fast; the unsigned ones that look negative are redone.
        dtype = _DTYPE[lay.B_I64 if kind == lay.B_U64 else kind]
        values = _gather(block.words, dtype, words, starts)
        piece.values = values
        if kind in (lay.B_I64, lay.B_U64) and values.size:
            low, high = float(values.min()), float(values.max())
            if (
                low <= -EXACT_LIMIT
                or high >= EXACT_LIMIT
                or (kind == lay.B_U64 and low < 0)
            ):
                self._exact(
                    piece, _overlapping(block.words, _DTYPE[kind]), words, starts
                )

    def _exact(
        self,
        piece: Piece,
        source: NDArray[np.generic],
        words: NDArray[np.int64],
        starts: NDArray[np.int64],
    ) -> None:
        """Convert 64-bit integers to doubles; those that a double cannot hold go into `exact` as well."""
        raw = source[words if words.ndim == 2 else words[:, None] + starts]
        piece.values = raw.astype(np.float64, order="C")
        big = np.flatnonzero(np.abs(piece.values.reshape(-1)) >= EXACT_LIMIT)
        piece.exact = (big, wide_integers(raw.reshape(-1)[big]))

    def _texts(
        self, block: Block, words: NDArray[np.int64], present: NDArray[np.bool_]
    ) -> tuple[NDArray[np.object_], int]:
        data = block.words.view(np.uint8).data
        sizes = (block.words[np.maximum(words - 1, 0)].astype(np.int64) & 0xFFFFFF) - 4
        begins = words * _WORD
        ends = begins + np.where(present, sizes, 0)
        seen: dict[bytes, str] = {}
        texts = []
        for begin, end in zip(
            begins.reshape(-1).tolist(), ends.reshape(-1).tolist(), strict=True
        ):
            raw = bytes(data[begin:end])
            text = seen.get(raw)
            if text is None:
                text = seen[raw] = raw.split(b"\0", 1)[0].decode(
                    "utf-8", "backslashreplace"
                )
            texts.append(text)
        shaped = np.empty(len(texts), dtype=np.object_)
        shaped[:] = texts
        return shaped.reshape(words.shape), sum(map(len, seen))


def wide_integers(numbers: NDArray[Any]) -> NDArray[np.int64]:
    """64-bit integers, signed or not, as 128 bits in rows of two: the lower half, then the upper."""
    low = numbers.astype(numbers.dtype.newbyteorder("=")).view(np.int64)
    return np.stack([low, -(numbers < 0).astype(np.int64)], axis=1)


def _equal(record: NDArray[np.uint32], layout: Layout) -> bool:
    return bool((record & layout.mask == layout.expected).all())


def _followers(
    layout: Layout,
    raw: NDArray[np.uint32],
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
) -> int:
    """How many records, counted from the first of `starts` up to one that differs, have this layout too."""
    size, count = len(layout.mask), 0
    if layout.complaint:
        return 0
    fits = sizes > layout.reach if layout.length is None else sizes == layout.length
    limit = len(starts) if fits.all() else int(np.argmin(fits))
    # Small records are compared together, ever more of them while they agree; large ones are compared one by one.
    at_once = max(1, _COMPARED_AT_ONCE // size)
    batch = 1
    while count < limit:
        if batch == 1:
            same = np.array([_equal(raw[starts[count] : starts[count] + size], layout)])
        else:
            words = raw[
                starts[count : min(count + batch, limit), None] + np.arange(size)
            ]
            same = (words & layout.mask == layout.expected).all(axis=1)
        if not same.all():
            return count + int(np.argmin(same))
        count += len(same)
        batch = min(2 * batch, at_once)
    return count


def _overlapping(words: NDArray[np.uint32], dtype: str) -> NDArray[np.generic]:
    """The words as numbers of `dtype`, one starting at every word: 64-bit numbers stand at any 32-bit boundary."""
    number_type = np.dtype(dtype)
    count = len(words) + 1 - number_type.itemsize // _WORD
    return np.ndarray((max(0, count),), number_type, words.data, 0, (_WORD,))


def _gather(
    block_words: NDArray[np.uint32],
    dtype: str,
    words: NDArray[np.int64],
    starts: NDArray[np.int64],
) -> NDArray[np.float64]:
    """The numbers of `dtype` at block_words[words + starts], as doubles (rows: words, columns: starts).

    Where the words lie in evenly spaced stretches - the sets of a record - these are read without an index for
    each value.
    """
    source = _overlapping(block_words, dtype)
    if words.ndim == 2:
        return source[words].astype(np.float64)
    across = _step(starts)
    if across is not None:
        along = int(words[1] - words[0]) if len(words) > 1 else 1
        breaks = np.flatnonzero(np.diff(words) != along) + 1
        if (len(breaks) + 1) * _WORTH_A_STRETCH <= len(words) * len(starts):
            values = np.empty((len(words), len(starts)))
            step, buffer = _WORD, block_words.data
            strides = (along * step, across * step)
            edges = [0, *breaks.tolist(), len(words)]
            for begin, end in pairwise(edges):
                at = (int(words[begin]) + int(starts[0])) * step
                # numpy checks that shape and strides stay inside the buffer.
                values[begin:end] = np.ndarray(
                    (end - begin, len(starts)), source.dtype, buffer, at, strides
                )
            return values
    return np.asarray(source[words[:, None] + starts], dtype=np.float64)


def _step(numbers: NDArray[np.int64]) -> int | None:
    """The constant difference of consecutive numbers, None if there is none."""
    if len(numbers) < 2:
        return 1
    step = int(numbers[1] - numbers[0])
    return step if bool((np.diff(numbers) == step).all()) else None
