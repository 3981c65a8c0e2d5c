"""The wide table: one row per time, one column per series, with pcp2arrow's names, order and types."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from kveval.pcp.archive.units import COUNTER, DISCRETE, DOUBLE, FLOAT, I32, I64, STRING, U32, U64
from kveval.pcp.tool.domains import Inventory
from kveval.pcp.tool.interpolation import Flags, Moments, present, rates, sampled
from kveval.pcp.tool.samples import NATIVE, SampleStore
from kveval.pcp.tool.selection import Wanted

# Cells of one batch of columns, and of one row group: nine bytes each.
CELLS = 2_000_000
TYPES = {
    **{I32: pa.int32(), U32: pa.uint32(), I64: pa.int64(), U64: pa.uint64()},
    **{FLOAT: pa.float32(), DOUBLE: pa.float64(), STRING: pa.string()},
}
Cells = tuple[NDArray[Any], Flags]


@dataclass(frozen=True)
class Rows:
    """The rows of the table: values sampled at `moments`, or, if `records`, recorded then; `stamps` are written."""

    moments: Moments
    stamps: NDArray[np.int64]
    records: bool


@dataclass
class Sheet:
    """Makes the columns of a table from stored samples, some at a time."""

    store: SampleStore
    inventory: Inventory
    rows: Rows
    cells: int = CELLS

    def columns(self, metric: Wanted) -> Iterator[pa.Table]:
        """The columns of one metric, in batches of at most `cells` cells."""
        width = max(1, self.cells // max(1, len(self.rows.stamps)))
        batches = [metric.instances[at : at + width] for at in range(0, len(metric.instances), width)]
        any_value = self._any_value(metric, batches)
        for batch in batches:
            values, valid = self._cells(metric, batch, any_value)
            # The metric's own type; double for what is a rate, a scaled value or a sampled counter.
            kind = pa.float64() if metric.rated or metric.scaling.changes else TYPES[metric.desc.type]
            arrays = [
                pa.array(cells, mask=~there, from_pandas=False).cast(kind, safe=False)
                for cells, there in zip(values, valid, strict=True)
            ]
            names = [metric.name if name is None else f"{metric.name}[{name}]" for name in batch]
            yield pa.Table.from_arrays(arrays, schema=pa.schema([(name, kind) for name in names]))

    def _any_value(self, metric: Wanted, batches: Sequence[Sequence[str | None]]) -> Flags | None:
        """Whether any instance has a value in each row, where the values of a row depend on that."""
        interrupted = metric.desc.semantics == COUNTER and self.rows.moments.interrupted.any()
        if self.rows.records or not (interrupted or metric.desc.semantics == DISCRETE):
            return None
        found = np.zeros(len(self.rows.stamps), dtype=np.bool_)
        for batch in batches:
            for name in batch:
                series = self.store.series(metric.desc.pmid, name, metric.desc.type)
                found |= present(series, self.rows.moments, metric.desc.semantics, *self._life(metric, name))
        return found

    def _life(self, metric: Wanted, name: str | None) -> tuple[int, int]:
        domain = self.inventory.instances(metric.desc)
        if domain is None or name is None:
            return -1, -1
        return domain.born_ns.get(name, -1), domain.died_ns.get(name, -1)

    def _cells(self, metric: Wanted, batch: Sequence[str | None], any_value: Flags | None) -> Cells:
        shape = (len(batch), len(self.rows.stamps))
        values, valid = np.zeros(shape, dtype=NATIVE[metric.desc.type]), np.zeros(shape, dtype=np.bool_)
        for number, name in enumerate(batch):
            series = self.store.series(metric.desc.pmid, name, metric.desc.type)
            if self.rows.records:
                at = _rows_of(series.times_ns, self.rows.moments.at_ns)
                values[number, at[at >= 0]], valid[number, at[at >= 0]] = series.values[at >= 0], True
            else:
                semantics, life = metric.desc.semantics, self._life(metric, name)
                values[number], valid[number] = sampled(series, self.rows.moments, semantics, *life)
        if any_value is not None and metric.desc.semantics == COUNTER:
            valid &= ~_silenced(self.rows.moments.interrupted, any_value)
        elif any_value is not None:
            values, valid = _held(values, valid, any_value)
        if metric.scaling.rate:
            values, valid = rates(values, valid, self.rows.moments.at_ns)
        if metric.scaling.changes:
            values = values.astype(np.float64) * metric.scaling.ratio * metric.scaling.multiplier
        return values, valid


def _rows_of(times: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """The row of each time, -1 if it has none; of equal times only the first gets the row."""
    at = np.searchsorted(rows, times)
    inside = (at < len(rows)) & (np.diff(times, prepend=-1) > 0)
    inside[inside] = rows[at[inside]] == times[inside]
    return np.where(inside, at, -1)


def _silenced(interrupted: Flags, any_value: Flags) -> Flags:
    """Rows in which libpcp gives no counter: the first after an interruption, if the row before it had values."""
    silent = np.zeros(len(interrupted), dtype=np.bool_)
    for row in np.flatnonzero(interrupted).tolist():
        silent[row] = any_value[row - 1] and not silent[row - 1]
    return silent


def _held(values: NDArray[Any], valid: Flags, any_value: Flags) -> Cells:
    """Discrete metrics: a row in which no instance has a value repeats the last one that had some."""
    last = np.maximum.accumulate(np.where(any_value, np.arange(len(any_value)), -1))
    source = np.maximum(last, 0)
    return values[:, source], valid[:, source] & (last >= 0)


def write_wide(sheet: Sheet, metrics: Sequence[Wanted], output: Path, facts: dict[str, str]) -> int:
    """Write the table to the folder `output`, which must not exist, and return the number of columns.

    It holds part-0.parquet, as pcp2arrow's does, and appears only when complete. If there are many columns, they are
    collected in temporary files.
    """
    stamps = pa.array(sheet.rows.stamps).cast(pa.timestamp("ns"))
    with ExitStack() as stack:
        part = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=".pcp-parquet-", dir=output.parent)))
        waiting: list[pa.Table | Path] = [pa.Table.from_arrays([stamps], names=["timestamp"])]
        cells = 0
        for metric in metrics:
            for table in sheet.columns(metric):
                cells += table.num_rows * table.num_columns
                waiting.append(table if cells <= sheet.cells else _spilled(table, part / str(len(waiting))))
        tables = [
            pa.ipc.open_file(stack.enter_context(pa.memory_map(str(one)))).read_all() if isinstance(one, Path) else one
            for one in waiting
        ]
        schema = pa.schema([field for table in tables for field in table.schema], metadata=facts)
        step = max(1, sheet.cells // len(schema))
        (part / "table").mkdir()
        with pq.ParquetWriter(
            part / "table" / "part-0.parquet", schema, compression="zstd", compression_level=1
        ) as file:
            for begin in range(0, len(stamps), step):
                columns = [column.combine_chunks() for table in tables for column in table.slice(begin, step).columns]
                file.write_table(pa.Table.from_arrays(columns, schema=schema))
        shutil.move(part / "table", output)
    return len(schema)


def _spilled(table: pa.Table, path: Path) -> Path:
    with pa.ipc.new_file(str(path), table.schema) as file:
        file.write_table(table)
    return path
