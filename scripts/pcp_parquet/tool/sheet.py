"""The wide table: one row per time, one column per series, with pcp2arrow's names, order and types."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pcp_parquet.archive.units import (
    COUNTER,
    DISCRETE,
    DOUBLE,
    FLOAT,
    I32,
    I64,
    STRING,
    U32,
    U64,
)
from pcp_parquet.tool.domains import Inventory
from pcp_parquet.tool.interpolation import Flags, Moments, present, rates, sampled
from pcp_parquet.tool.samples import NATIVE, SampleStore
from pcp_parquet.tool.selection import RequestedMetric

# Cells of one batch of columns, and of one row group: nine bytes each.
CELLS = 2_000_000
TYPES = {
    **{I32: pa.int32(), U32: pa.uint32(), I64: pa.int64(), U64: pa.uint64()},
    **{FLOAT: pa.float32(), DOUBLE: pa.float64(), STRING: pa.string()},
}
Cells = tuple[NDArray[Any], Flags]


@dataclass
class Sheet:
    """Makes the columns of a table from stored samples, some at a time.

    Its rows are values sampled at `moments`, or, if `records`, recorded then; `stamps` are written.
    """

    store: SampleStore
    inventory: Inventory
    moments: Moments
    stamps: NDArray[np.int64]
    records: bool
    cells: int = CELLS

    def columns(self, metric: RequestedMetric) -> Iterator[pa.Table]:
        """The columns of one metric, in batches of at most `cells` cells."""
        # The ranks of a metric need all its instances.
        width = (
            len(metric.instances)
            if metric.rank
            else self.cells // max(1, len(self.stamps))
        )
        any_value = self._any_value(metric)
        for at in range(0, len(metric.instances), max(1, width)):
            batch = metric.instances[at : at + max(1, width)]
            values, valid = self._cells(metric, batch, any_value)
            valid = _filtered(metric, values, valid)
            shown = [
                number for number, name in enumerate(batch) if name not in metric.hidden
            ]
            # The metric's own type; double for what is a rate, a scaled value or a sampled counter.
            kind = (
                pa.float64()
                if metric.rated or metric.scaling.changes
                else TYPES[metric.desc.type]
            )
            arrays = [
                pa.array(values[number], mask=~valid[number], from_pandas=False).cast(
                    kind, safe=False
                )
                for number in shown
            ]
            names = [
                metric.name
                if batch[number] is None
                else f"{metric.name}[{batch[number]}]"
                for number in shown
            ]
            if names:
                yield pa.Table.from_arrays(
                    arrays, schema=pa.schema([(name, kind) for name in names])
                )

    def _any_value(self, metric: RequestedMetric) -> Flags | None:
        """Whether any instance has a value in each row, where the values of a row depend on that."""
        desc = metric.desc
        interrupted = desc.semantics == COUNTER and self.moments.interrupted.any()
        if self.records or not (interrupted or desc.semantics == DISCRETE):
            return None
        flags = np.zeros(len(self.stamps), dtype=np.bool_)
        for name in metric.instances:
            series = self.store.series(desc.pmid, name, desc.type)
            flags |= present(
                series,
                self.moments,
                desc.semantics,
                *self.inventory.lifetime(desc, name),
            )
        return flags

    def _cells(
        self,
        metric: RequestedMetric,
        batch: Sequence[str | None],
        any_value: Flags | None,
    ) -> Cells:
        desc, shape = metric.desc, (len(batch), len(self.stamps))
        values, valid = (
            np.zeros(shape, dtype=NATIVE[desc.type]),
            np.zeros(shape, dtype=np.bool_),
        )
        for number, name in enumerate(batch):
            series = self.store.series(desc.pmid, name, desc.type)
            if self.records:
                at = _rows_of(series.times_ns, self.moments.at_ns)
                values[number, at[at >= 0]], valid[number, at[at >= 0]] = (
                    series.values[at >= 0],
                    True,
                )
            else:
                life = self.inventory.lifetime(desc, name)
                values[number], valid[number] = sampled(
                    series, self.moments, desc.semantics, *life
                )
        if any_value is not None and desc.semantics == COUNTER:
            valid &= ~_silenced(self.moments.interrupted, any_value)
        elif any_value is not None:
            values, valid = _held(values, valid, any_value)
        if metric.scaling.rate:
            values, valid = rates(values, valid, self.moments.at_ns)
        if metric.scaling.changes:
            values = (
                values.astype(np.float64)
                * metric.scaling.ratio
                * metric.scaling.multiplier
            )
        return values, valid


def _filtered(metric: RequestedMetric, values: NDArray[Any], valid: Flags) -> Flags:
    """Return a flag for each value: whether it is within the metric's limit and among its ranks."""
    if metric.limit:
        valid = valid & (
            values >= metric.limit if metric.limit > 0 else values <= -metric.limit
        )
    if metric.rank and metric.instances != (None,):
        numbers = np.where(valid, values.astype(np.float64), np.nan)
        order = np.argsort(
            -numbers if metric.rank > 0 else numbers, axis=0, kind="stable"
        )
        valid = valid & (np.argsort(order, axis=0) < abs(metric.rank))
    return valid


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


def write_wide(
    sheet: Sheet,
    metrics: Sequence[RequestedMetric],
    output: Path,
    facts: dict[str, str],
) -> int:
    """Write the table to the folder `output`, which must not exist, and return the number of columns.

    It holds part-0.parquet, as pcp2arrow's does, and appears only when complete. Until then the columns are in
    temporary files.
    """
    stamps = pa.array(sheet.stamps).cast(pa.timestamp("ns"))
    with tempfile.TemporaryDirectory(
        prefix=".pcp-parquet-", dir=output.parent
    ) as folder:
        part = Path(folder)
        tables = [pa.Table.from_arrays([stamps], names=["timestamp"])]
        for columns in (
            columns for metric in metrics for columns in sheet.columns(metric)
        ):
            path = str(part / str(len(tables)))
            with pa.ipc.new_file(path, columns.schema) as file:
                file.write_table(columns)
            # The pages stay mapped as long as the table exists; an open file for each could be too many.
            with pa.memory_map(path) as mapped:
                tables.append(pa.ipc.open_file(mapped).read_all())
        schema = pa.schema(
            [field for table in tables for field in table.schema], metadata=facts
        )
        step = max(1, sheet.cells // len(schema))
        (part / "table").mkdir()
        with pq.ParquetWriter(
            part / "table" / "part-0.parquet",
            schema,
            compression="zstd",
            compression_level=1,
        ) as file:
            for begin in range(0, len(stamps), step):
                columns = [
                    column.combine_chunks()
                    for table in tables
                    for column in table.slice(begin, step).columns
                ]
                file.write_table(pa.Table.from_arrays(columns, schema=schema))
        shutil.move(part / "table", output)
    return len(schema)
