"""Converts with PCP's own exporter, if installed, to the same long form, for comparison with our own reader."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pcp_parquet.archive.files import opened
from pcp_parquet.archive.loading import Archive, load_all
from pcp_parquet.archive.problems import ProblemLog
from pcp_parquet.conversion.catalog import Ints
from pcp_parquet.conversion.chunks import Chunk, assemble
from pcp_parquet.conversion.conversion import ConversionSummary, Scan
from pcp_parquet.conversion.decode import EXACT_LIMIT, Piece, wide_integers
from pcp_parquet.conversion.footer import encode
from pcp_parquet.conversion.table import LongWriter

TOOL = "pcp2arrow"
# The tool's files have one column per series: reading one whole would take as much memory as the tool did.
COLUMNS_AT_ONCE = 500


class ToolError(RuntimeError):
    """pcp2arrow is missing or failed."""


class ColumnNames:
    """Series numbers of the tool's columns, `metric` or `metric[instance]`, in sorted order."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = sorted(columns, key=_split)
        parts = [_split(column) for column in self.columns]
        self.metrics = [metric for metric, _ in parts]
        self._parts = np.array(
            [(metric, name or None) for metric, name in parts], dtype=np.object_
        ).reshape(-1, 2)

    def names(self, series: Ints) -> tuple[NDArray[np.object_], NDArray[np.object_]]:
        """Metric and instance of each series; None for the instance of a singular metric."""
        return self._parts[series, 0], self._parts[series, 1]


def _split(column: str) -> tuple[str, str]:
    metric, _, rest = column.partition("[")
    return metric, rest.removesuffix("]")


def from_pcp2arrow(source: str | Path, output: str | Path) -> ConversionSummary:
    """Convert with `pcp2arrow -r` (raw values, one row per record) and write the long form.

    Values that the tool leaves out - in raw mode all singular metrics - are counted in
    the summary's problems. Units, semantics, help and labels, which it drops, are read from the archive. ToolError if
    the tool is not installed (it comes with PCP 6.2 and later) or fails.
    """
    if shutil.which(TOOL) is None:
        raise ToolError(
            f"{TOOL} is not installed (it comes with PCP 6.2 and later): use the own converter"
        )
    problems, written = ProblemLog(), Counter[str]()
    with (
        opened(Path(source), problems) as file_sets,
        tempfile.TemporaryDirectory(prefix="pcp-parquet-") as folder,
    ):
        archives = load_all(file_sets, source, problems)
        scan = Scan(problems)
        scan.run(archives)
        with LongWriter(
            Path(output),
            with_host=len({archive.label.host for archive in archives}) > 1,
        ) as writer:
            for number, archive in enumerate(archives):
                result = Path(folder, str(number))
                _run(archive, result)
                for chunk, names in _chunks(result):
                    writer.write(chunk, names, archive.label.host)
                    for series, count in zip(
                        chunk.series.tolist(), chunk.counts.tolist(), strict=True
                    ):
                        written[names.metrics[series]] += count
            for name, metric in scan.metrics.items():
                if metric.samples > written[name]:
                    lost = f"{metric.samples - written[name]:,} of {metric.samples:,} values of {name}"
                    problems.add("not converted", TOOL, f"{lost} are not in its output")
                scan.metrics[name] = replace(metric, samples=written[name])
            info = scan.info(archives, writer.rows)
            writer.finish(encode(info, scan.metrics, scan.labels, writer.time_unit))
    return ConversionSummary(info, scan.metrics)


def _run(archive: Archive, result: Path) -> None:
    copies = result.with_name(f"{result.name}-archive")
    copies.mkdir()
    base = archive.files.on_disk(copies)
    command = [TOOL, "-a", str(base), "-r", "-Z", "UTC", "-o", str(result)]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode or not result.exists():
        raise ToolError(
            f"{' '.join(command[:7])} failed with status {run.returncode}: {run.stderr.strip()[-500:]}"
        )


def _chunks(result: Path) -> Iterator[tuple[Chunk, ColumnNames]]:
    """The tool's table as sorted chunks, some columns at a time."""
    for path in sorted(result.rglob("*.parquet")) if result.is_dir() else [result]:
        file = pq.ParquetFile(path)
        names = ColumnNames(
            [
                name
                for name in dict.fromkeys(file.schema_arrow.names)
                if name != "timestamp"
            ]
        )
        times = (
            file.read(columns=["timestamp"])["timestamp"]
            .cast(pa.timestamp("ns"))
            .cast(pa.int64())
            .to_numpy()
        )
        for begin in range(0, len(names.columns), COLUMNS_AT_ONCE):
            part = names.columns[begin : begin + COLUMNS_AT_ONCE]
            table = file.read(columns=part)
            # Of several columns with the same name (two instances may share one) the last is taken.
            last = {name: at for at, name in enumerate(table.column_names)}
            columns = (table.column(last[name]) for name in part)
            pieces = [
                _piece(column, number, times)
                for number, column in enumerate(columns, begin)
            ]
            if filled := [piece for piece in pieces if len(piece.times)]:
                yield assemble(filled), names


def _piece(column: pa.ChunkedArray, series: int, times: Ints) -> Piece:
    """The cells of a column that are not empty."""
    at = np.flatnonzero(pc.is_valid(column).to_numpy())
    cells, piece = column.take(pa.array(at)), Piece(np.array([series]), times[at], None)
    if pa.types.is_string(cells.type):
        piece.texts = np.array(cells.to_pylist(), dtype=np.object_).reshape(1, -1)
        return piece
    piece.values = cells.cast(pa.float64(), safe=False).to_numpy().reshape(1, -1)
    if pa.types.is_integer(cells.type):
        big = np.flatnonzero(np.abs(piece.values[0]) >= EXACT_LIMIT)
        piece.exact = (big, wide_integers(cells.to_numpy()[big]))
    return piece
