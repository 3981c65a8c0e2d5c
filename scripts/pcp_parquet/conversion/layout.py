"""Record layouts: most records differ from the one before only in values, so positions are computed once."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pcp_parquet.archive import units
from pcp_parquet.archive.meta import INDOM_NULL
from pcp_parquet.archive.wire import HEADER_SIZE
from pcp_parquet.conversion.catalog import Catalog

# What to do with a value, from its metric's type and where the record keeps it.
(
    IN_I32,
    IN_U32,
    IN_F32,
    B_I32,
    B_U32,
    B_F32,
    B_I64,
    B_U64,
    B_F64,
    B_TEXT,
    B_OTHER,
    UNREADABLE,
    SKIP,
) = range(13)
IN_PLACE = frozenset({IN_I32, IN_U32, IN_F32})
BLOCK_BYTES = {B_I32: 8, B_U32: 8, B_F32: 8, B_I64: 12, B_U64: 12, B_F64: 12}
BLOCK_WORDS = [BLOCK_BYTES.get(kind, 4) // 4 for kind in range(13)]
_IS_NUMBER = np.isin(np.arange(13), list(BLOCK_BYTES))
_IS_UNSIZED = np.isin(np.arange(13), [SKIP, UNREADABLE])
_IS_LOST = np.isin(np.arange(13), [B_OTHER, UNREADABLE])
BLOCK_TYPE = {
    **{B_I32: units.I32, B_U32: units.U32, B_I64: units.I64, B_U64: units.U64},
    **{B_F32: units.FLOAT, B_F64: units.DOUBLE, B_TEXT: units.STRING},
}
_IN_PLACE_CLASS = {units.I32: IN_I32, units.U32: IN_U32, units.FLOAT: IN_F32}
_BLOCK_CLASS = {
    **{
        units.I32: B_I32,
        units.U32: B_U32,
        units.FLOAT: B_F32,
        units.I64: B_I64,
        units.U64: B_U64,
    },
    **{
        units.DOUBLE: B_F64,
        units.STRING: B_TEXT,
        units.AGGREGATE: B_OTHER,
        units.AGGREGATE_STATIC: B_OTHER,
    },
    **{units.EVENT: B_OTHER, units.HIGHRES_EVENT: B_OTHER},
}
# PM_VAL_DPTR and PM_VAL_SPTR are both stored as blocks; 0 is a value in place.
POINTER_FORMATS = 2
_PAIR = struct.Struct(">Ii")


@dataclass
class ValueSets:
    """The value sets of one record: arrays over sets, and the word where the last one ends."""

    pmids: list[int]
    counts: list[int]
    formats: list[int]
    positions: list[int]
    end: int
    complaint: str


def walk(record: memoryview, version: int) -> ValueSets:
    """Go through the value sets of one framed record; the first that does not fit sets `complaint` and ends it."""
    pos, end = HEADER_SIZE[version], len(record) - 4
    (promised,) = struct.unpack_from(">I", record, pos - 4)
    sets = ValueSets([], [], [], [], pos // 4, "")
    unpack = _PAIR.unpack_from
    for number in range(promised):
        if end - pos < 8:
            sets.complaint = (
                f"{promised - number:,} of {promised:,} value sets lie beyond its end"
            )
            break
        pmid, count = unpack(record, pos)
        pos += 8
        form = 0
        if count > 0:
            if count * 8 > end - pos - 4:
                sets.complaint = f"value set {number} claims {count:,} values"
                break
            (form,) = struct.unpack_from(">I", record, pos)
            if form > POINTER_FORMATS:
                sets.complaint = f"value set {number} has the unknown format {form}"
                break
            pos += 4
        sets.pmids.append(pmid)
        sets.counts.append(count)
        sets.formats.append(form)
        sets.positions.append(pos // 4)
        pos += 8 * max(count, 0)
        sets.end = pos // 4
    return sets


@dataclass
class Layout:
    """Positions of all values in the records that have this layout.

    `mask` and `expected` cover the words that must be equal (raw byte order). In a `fixed` layout every block wanted
    is a number and stands at the same place in every record (its index and header are covered by the mask); `reach`
    is the number of words that a record needs to have, `end` the word after the last set, where blocks may begin.
    Columns are the selected values, sorted by class: word of the value or of the block's index, class, metric,
    instance number. `seen` and `lost` count, for each metric, a record's values and those without a column; `errors`
    are (metric, error code) of value sets without values, `unknown` the PMIDs without a descriptor. `complaint` says
    where a broken record ends, `remarks` what is impossible in a whole one. `exact` tells that its sets and blocks
    must fill the record, since all of them are known; `length` is then that of every record of a fixed layout.
    `formats` are those of the metrics' value sets.
    """

    reach: int
    end: int
    fixed: bool
    mask: NDArray[np.uint32]
    expected: NDArray[np.uint32]
    words: NDArray[np.int64]
    classes: NDArray[np.int8]
    metrics: NDArray[np.int64]
    instances: NDArray[np.int64]
    errors: list[tuple[int, int]]
    unknown: list[int]
    complaint: str
    remarks: list[str]
    exact: bool
    length: int | None
    formats: dict[int, int]
    seen: NDArray[np.int64]
    lost: NDArray[np.int64]
    series: NDArray[np.int64] | None = None
    epoch: int = -1

    def fits(self, words: int) -> bool:
        """Whether a record of `words` words may have this layout."""
        return words > self.reach if self.length is None else words == self.length

    def spans(self) -> list[tuple[int, slice]]:
        """(class, columns) for each class present."""
        edges = np.flatnonzero(np.diff(self.classes)) + 1
        bounds = [0, *edges.tolist(), len(self.classes)]
        return [
            (int(self.classes[a]), slice(a, b)) for a, b in pairwise(bounds) if b > a
        ]

    def series_at(self, catalog: Catalog, time: int) -> NDArray[np.int64]:
        """Series number of each column at `time`."""
        epoch = int(catalog.epochs(np.array([time]))[0])
        if self.series is None or epoch != self.epoch:
            self.series = catalog.series(self.metrics, self.instances, time)
            self.epoch = epoch
        return self.series


def build(record: NDArray[np.uint32], version: int, catalog: Catalog) -> Layout:
    """The layout of one record (its words, big-endian)."""
    sets = walk(memoryview(record.tobytes()), version)
    counts = np.maximum(np.array(sets.counts, dtype=np.int64), 0)
    metric_of_set = np.array(
        [catalog.metric_of(pmid) for pmid in sets.pmids], dtype=np.int64
    )
    class_of_set = np.array(
        [
            _class_of(catalog, metric, form)
            for metric, form in zip(metric_of_set.tolist(), sets.formats, strict=True)
        ],
        dtype=np.int8,
    )
    total = int(counts.sum())
    within = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    at = np.repeat(np.array(sets.positions, dtype=np.int64), counts) + 2 * within
    in_place = np.repeat(np.array(sets.formats, dtype=np.int64), counts) == 0
    classes = np.repeat(class_of_set, counts)
    metrics = np.repeat(metric_of_set, counts)
    words = record.astype(np.int64)
    mask = np.full(sets.end, 0xFFFFFFFF, dtype=np.uint32)
    mask[: HEADER_SIZE[version] // 4 - 1] = 0
    mask[at[in_place] + 1] = 0
    position = at + 1
    in_blocks = ~in_place & (classes != SKIP)
    mask[at[~in_place] + 1] = 0
    types = np.array([desc.type for desc in catalog.metrics], dtype=np.int64)[
        metrics[in_blocks]
    ]
    fixed, blocks = _fixed_blocks(
        words, at[in_blocks], classes[in_blocks], types, sets.end
    )
    if fixed and len(blocks):
        mask = np.concatenate(
            [mask, np.zeros(max(0, int(blocks.max()) + 1 - sets.end), dtype=np.uint32)]
        )
        mask[blocks] = mask[at[in_blocks] + 1] = 0xFFFFFFFF
        position[in_blocks] = blocks + 1
        reach = int(
            (blocks + np.array(BLOCK_WORDS, dtype=np.int64)[classes[in_blocks]]).max()
        )
    else:
        reach = sets.end
    exact = not sets.complaint and not (~in_place & _IS_UNSIZED[classes]).any()
    remarks = _remarks(sets, catalog, metric_of_set, counts, words[at])
    if exact and fixed:
        filled = sets.end + int(
            np.array(BLOCK_WORDS, dtype=np.int64)[classes[in_blocks]].sum()
        )
        if repeats(blocks[:, None])[0]:
            remarks.append("two of its values are in one place")
        remarks += unfilled(filled, len(record) - 1)
    keep = np.flatnonzero(classes != SKIP)
    keep = keep[np.argsort(classes[keep], kind="stable")]
    return Layout(
        reach=reach,
        end=sets.end,
        fixed=fixed,
        mask=mask,
        expected=record[: len(mask)].view(np.uint32) & mask,
        words=position[keep],
        classes=classes[keep],
        metrics=metrics[keep],
        instances=words[at[keep]],
        errors=[
            (metric, count)
            for metric, count in zip(metric_of_set.tolist(), sets.counts, strict=True)
            if metric >= 0 and count < 0
        ],
        unknown=[
            pmid
            for pmid, metric, count in zip(
                sets.pmids, metric_of_set.tolist(), sets.counts, strict=True
            )
            if metric < 0 and (count > 0 or not pmid) and pmid not in catalog.known
        ],
        complaint=sets.complaint,
        remarks=remarks,
        exact=exact,
        length=len(record) if exact and fixed else None,
        formats={
            metric: form
            for metric, count, form in zip(
                metric_of_set.tolist(), sets.counts, sets.formats, strict=True
            )
            if count > 0
        },
        seen=np.bincount(metrics[keep], minlength=len(catalog.metrics)),
        lost=np.bincount(
            metrics[keep][_IS_LOST[classes[keep]]], minlength=len(catalog.metrics)
        ),
    )


def _remarks(
    sets: ValueSets,
    catalog: Catalog,
    metrics: NDArray[np.int64],
    counts: NDArray[np.int64],
    instances: NDArray[np.int64],
) -> list[str]:
    """Properties that no sound record has: a metric or instance twice, values without instances or of a wrong size."""
    remarks = []
    if len(set(sets.pmids)) < len(sets.pmids):
        remarks.append("a metric occurs in it more than once")
    pairs = np.repeat(np.arange(len(counts), dtype=np.int64), counts) << 32 | instances
    if repeats(pairs[:, None])[0]:
        remarks.append("a metric has more than one value of an instance in it")
    for metric, count, form in zip(
        metrics.tolist(), sets.counts, sets.formats, strict=True
    ):
        if metric >= 0 and count > 0:
            desc = catalog.metrics[metric]
            if count > 1 and desc.indom == INDOM_NULL:
                remarks.append(f"{desc.names[0]} has {count:,} values and no instances")
            if form == 0 and desc.type not in _IN_PLACE_CLASS:
                remarks.append(
                    f"{desc.names[0]} has values in place, too small for {units.type_name(desc.type)}"
                )
    return remarks


def repeats(numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each column holds a number twice; most columns are sorted, which is fast to check."""
    if (numbers[1:] > numbers[:-1]).all():
        return np.zeros(numbers.shape[1], dtype=np.bool_)
    ordered = np.sort(numbers, axis=0)
    return np.asarray((ordered[1:] == ordered[:-1]).any(axis=0))


def unfilled(filled: int, words: int) -> list[str]:
    """A remark unless value sets and blocks exactly fill a record of `words` words (without the last length)."""
    if filled == words:
        return []
    if filled < words:
        return [f"{4 * (words - filled):,} bytes of it belong to no value"]
    return [f"its values share {4 * (filled - words):,} bytes"]


def _class_of(catalog: Catalog, metric: int, form: int) -> int:
    if metric < 0:
        return SKIP
    kind = catalog.metrics[metric].type
    return (_IN_PLACE_CLASS if form == 0 else _BLOCK_CLASS).get(kind, UNREADABLE)


def _fixed_blocks(
    words: NDArray[np.int64],
    at: NDArray[np.int64],
    classes: NDArray[np.int8],
    types: NDArray[np.int64],
    first: int,
) -> tuple[bool, NDArray[np.int64]]:
    """Whether every block is a number of the size that its class demands, and the words of the block headers."""
    blocks = words[at + 1] - 2
    if not _IS_NUMBER[classes].all():
        return False, blocks
    need = np.array(BLOCK_WORDS, dtype=np.int64)[classes]
    if not ((blocks >= first) & (blocks + need <= len(words) - 1)).all():
        return False, blocks
    return bool(sound_block(words[blocks], types, 4 * need).all()), blocks


def sound_block(
    header: NDArray[np.int64], types: ArrayLike, size: ArrayLike
) -> NDArray[np.bool_]:
    """Whether a block's first word names its metric's type - very old archives leave it 0 - and its size in bytes."""
    kind = header >> 24
    return np.asarray((header & 0xFFFFFF == size) & ((kind == types) | (kind == 0)))
