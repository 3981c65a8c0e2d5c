"""The Parquet file: what it holds is what was written, whoever reads it, and what it says of itself is true."""

import json
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pcp_parquet.conversion.chunks import Chunk
from pcp_parquet.conversion.conversion import convert
from pcp_parquet.conversion.table import LongWriter
from pcp_parquet.parquet.reading import archive_info, describe, series
from pcp_parquet.tests.test_archive_writer import (
    NULL,
    U32,
    Metric,
    Writer,
    all_types,
    indom,
    pmid,
)

SECOND = 10**9
START = 1_700_000_000 * SECOND
DICTIONARY = pa.dictionary(pa.int32(), pa.string())
DISKS, READS = indom(60, 1), pmid(60, 0, 1)


class Names:
    """Stands in for a catalog: series k belongs to metric k // 10, k % 10 is its instance; from 100 on they repeat."""

    def names(self, series: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        numbers = [number % 100 for number in series.tolist()]
        instances = [
            f"instance {number % 10} é" if number % 10 else None for number in numbers
        ]
        return np.array(
            [f"metric.{number // 10}" for number in numbers], object
        ), np.array(instances, object)


cell = st.one_of(
    st.floats(),
    st.integers(2**53, 2**64 - 1),
    st.integers(-(2**63), -(2**53)),
    st.text(max_size=8),
)
tables = st.dictionaries(
    st.integers(0, 130),
    st.lists(cell, min_size=1, max_size=20),
    min_size=1,
    max_size=12,
)


def chunk_of(table: dict[int, list], times: np.ndarray) -> Chunk:
    cells = [value for _, values in sorted(table.items()) for value in values]
    series = np.array(sorted(table))
    text_at = np.array(
        [at for at, value in enumerate(cells) if isinstance(value, str)], dtype=np.int64
    )
    exact_at = np.array(
        [at for at, value in enumerate(cells) if isinstance(value, int)], dtype=np.int64
    )
    exact = [
        [(cells[at] + 2**63) % 2**64 - 2**63, -(cells[at] < 0)]
        for at in exact_at.tolist()
    ]
    return Chunk(
        series=series,
        counts=np.array([len(table[number]) for number in series.tolist()]),
        times=times,
        values=np.array(
            [0.0 if isinstance(value, str) else float(value) for value in cells]
        ),
        texts=(
            text_at,
            np.array([*(cells[at] for at in text_at), None], dtype=object)[:-1],
        ),
        exact=(exact_at, np.array(exact, dtype=np.int64).reshape(-1, 2)),
    )


def rows_of(table: dict[int, list], times: np.ndarray) -> list[tuple]:
    """The rows that the chunk should become: sorted by metric, instance and time."""
    owners = np.repeat(sorted(table), [len(table[number]) for number in sorted(table)])
    metrics, instances = Names().names(owners)
    cells = [value for _, values in sorted(table.items()) for value in values]
    rows = [
        (
            *(time, metric, instance),
            None if isinstance(value, str) else float(value).hex(),
            value if isinstance(value, int) else None,
            value if isinstance(value, str) else None,
        )
        for time, metric, instance, value in zip(
            times.tolist(), metrics, instances, cells, strict=True
        )
    ]
    return sorted(rows, key=lambda row: (row[1], row[2] or "", row[0]))


@settings(max_examples=40, deadline=None)
@given(
    tables,
    tables,
    st.integers(1, 40),
    st.booleans(),
    st.tuples(*[st.sampled_from([1000, 1_000_003])] * 2),
)
def test_a_file_holds_its_chunks(
    first, second, group_rows: int, with_host: bool, steps: tuple[int, int]
) -> None:
    """Two chunks, the times of either in whole microseconds or not."""
    expected, sizes = [], []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "chunk.parquet")
        with LongWriter(path, with_host=with_host, group_rows=group_rows) as writer:
            for table, step in ((first, steps[0]), (second, steps[1])):
                count = sum(map(len, table.values()))
                times = START + step * np.arange(count)
                writer.write(chunk_of(table, times), Names(), "hé")
                expected += rows_of(table, times)
                sizes += [
                    min(group_rows, count - begin)
                    for begin in range(0, count, group_rows)
                ]
            writer.finish({"key": "välue"})
        read, metadata = pq.read_table(path), pq.read_metadata(path)
        assert [path.name for path in Path(folder).iterdir()] == ["chunk.parquet"]
    read.validate(full=True)
    unit = "us" if all(time % 1000 == 0 for time, *_ in expected) else "ns"
    assert writer.time_unit == unit
    fields = [
        pa.field("timestamp", pa.timestamp(unit, tz="UTC"), nullable=False),
        *(
            pa.field("metric", DICTIONARY, nullable=False),
            pa.field("instance", DICTIONARY),
        ),
        *(
            pa.field("value", pa.float64()),
            pa.field("value_int", pa.decimal128(20, 0)),
            pa.field("text", DICTIONARY),
        ),
        *([pa.field("host", DICTIONARY, nullable=False)] if with_host else []),
    ]
    assert read.schema.remove_metadata() == pa.schema(fields)
    assert metadata.metadata[b"key"].decode() == "välue"
    times = (
        read["timestamp"]
        .cast(pa.timestamp("ns", tz="UTC"))
        .cast(pa.int64())
        .to_pylist()
    )
    columns = [times, *(read[name].to_pylist() for name in read.column_names[1:6])]
    found = [
        (*row[:3], None if row[3] is None else row[3].hex(), *row[4:])
        for row in zip(*columns, strict=True)
    ]
    assert found == expected
    assert not with_host or read["host"].to_pylist() == ["hé"] * len(expected)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    assert [group.num_rows for group in groups] == sizes
    begin = 0
    for group in groups:
        part, begin = expected[begin : begin + group.num_rows], begin + group.num_rows
        timestamp, metric, instance = (
            group.column(number).statistics for number in range(3)
        )
        scale = 1000 if unit == "us" else 1
        assert (timestamp.min_raw * scale, timestamp.max_raw * scale) == (
            min(row[0] for row in part),
            max(row[0] for row in part),
        )
        assert (metric.min, metric.max) == (part[0][1], part[-1][1])
        assert instance.null_count == sum(row[2] is None for row in part)


def polars_rows(path: Path) -> list[tuple]:
    frame = pl.read_parquet(path)
    return frame.with_columns(
        pl.col("timestamp").cast(pl.Datetime("ns", "UTC")).cast(pl.Int64)
    ).rows()


def duckdb_rows(path: Path) -> list[tuple]:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        names = [
            row[0]
            for row in connection.execute(f"DESCRIBE SELECT * FROM '{path}'").fetchall()
        ]
        columns = ["epoch_ns(timestamp)", *names[1:]]
        return connection.execute(
            f"SELECT {', '.join(columns)} FROM '{path}'"
        ).fetchall()


@pytest.mark.parametrize("reader", [polars_rows, duckdb_rows])
@pytest.mark.parametrize("version", [2, 3])
def test_polars_and_duckdb_read_what_pyarrow_reads(
    tmp_path: Path, version: int, reader: Callable[[Path], list[tuple]]
) -> None:
    writer = all_types(tmp_path / "a", version)
    if version == 3:
        writer.record(writer.start + 10 * SECOND + 1, {pmid(60, 0, 1): {NULL: 7}})
    convert(writer.close(), tmp_path / "out.parquet")
    table = pq.read_table(tmp_path / "out.parquet")
    times = table["timestamp"].cast(pa.timestamp("ns", tz="UTC")).cast(pa.int64())
    table = table.set_column(0, "timestamp", times)
    expected = list(
        zip(*(table[name].to_pylist() for name in table.column_names), strict=True)
    )
    assert reader(tmp_path / "out.parquet") == expected
    assert len(expected) == 5 * 7 * 4 + (version == 3)


def disks(
    folder: Path, version: int, step_ns: int, records: int = 4, name: str = "sda"
) -> Path:
    writer = Writer(folder, version=version)
    writer.metric(Metric(READS, ("disk.read",), U32, DISKS))
    writer.domain(writer.start, DISKS, {0: name})
    for step in range(records):
        writer.record(writer.start + step * step_ns, {READS: {0: step}})
    return writer.close()


@pytest.mark.parametrize(
    ("version", "step_ns", "unit"),
    [(2, SECOND, "us"), (3, 5000, "us"), (3, 5001, "ns")],
)
def test_times_are_in_microseconds_where_nothing_is_lost(
    tmp_path: Path, version: int, step_ns: int, unit: str
) -> None:
    path = tmp_path / "out.parquet"
    convert(disks(tmp_path, version, step_ns), path)
    assert pq.read_schema(path).field("timestamp").type == pa.timestamp(unit, tz="UTC")
    assert (
        json.loads(pq.read_metadata(path).metadata[b"kveval.pcp"])["time_unit"] == unit
    )
    times = series(path, "disk.read")["timestamp"].astype("int64").tolist()
    assert times == [START + step * step_ns for step in range(4)]
    window = series(
        path, "disk.read", start_ns=START + step_ns, finish_ns=START + 2 * step_ns
    )
    assert window["value"].tolist() == [1, 2]
    assert len(series(path, "disk.read", start_ns=START + 3 * step_ns + 1)) == 0


def test_it_says_how_it_is_sorted_and_where_its_pages_are(tmp_path: Path) -> None:
    path = tmp_path / "out.parquet"
    convert(all_types(tmp_path / "a", 3).close(), path)
    group = pq.read_metadata(path).row_group(0)
    places = [
        pq.SortingColumn(1),
        pq.SortingColumn(2, nulls_first=True),
        pq.SortingColumn(0),
    ]
    assert list(group.sorting_columns) == places
    columns = [group.column(number) for number in range(group.num_columns)]
    assert all(column.has_offset_index for column in columns)
    assert [column.path_in_schema for column in columns if column.has_column_index][
        :3
    ] == [
        "timestamp",
        "metric",
        "instance",
    ]
    assert {column.compression for column in columns} == {"ZSTD"}
    assert "BYTE_STREAM_SPLIT" in columns[3].encodings


def test_a_name_too_long_for_statistics_is_found(tmp_path: Path) -> None:
    writer, name = Writer(tmp_path), "disk." + 5000 * "x"
    writer.metric(Metric(READS, (name,), U32, DISKS))
    writer.domain(writer.start, DISKS, {0: 5000 * "y"})
    writer.record(writer.start, {READS: {0: 7}})
    convert(writer.close(), tmp_path / "out.parquet")
    assert series(tmp_path / "out.parquet", name)["value"].tolist() == [7]
    statistics = (
        pq.read_metadata(tmp_path / "out.parquet").row_group(0).column(2).statistics
    )
    assert not statistics.has_min_max


def test_two_instances_of_one_name_are_sorted_by_time(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.metric(Metric(READS, ("disk.read",), U32, DISKS))
    writer.domain(writer.start, DISKS, {0: "sda", 1: "sda"})
    for step in range(3):
        # The third has no name in the archive.
        writer.record(
            writer.start + step * SECOND, {READS: {0: step, 1: 10 + step, 2: 20 + step}}
        )
    convert(writer.close(), tmp_path / "out.parquet")
    read = pq.read_table(tmp_path / "out.parquet")
    assert read["instance"].to_pylist() == 3 * ["[2]"] + 6 * ["sda"]
    assert read["value"].to_pylist() == [20, 21, 22, 0, 10, 1, 11, 2, 12]


def test_a_long_text_that_repeats_takes_its_place_once(tmp_path: Path) -> None:
    """Spelt out they would be 3 GB, more than one column of plain strings can hold."""
    text, path = 50_000 * "x", tmp_path / "out.parquet"
    with LongWriter(path, with_host=False) as writer:
        writer.write(
            chunk_of({1: [text] * 60_000}, START + 1000 * np.arange(60_000)),
            Names(),
            "",
        )
        writer.finish({})
    read = pq.read_table(path)["text"]
    assert [chunk.dictionary.to_pylist() for chunk in read.chunks] == [[text]]
    assert len(read) == 60_000
    assert read.null_count == 0
    assert path.stat().st_size < 100_000


def test_what_it_says_of_itself_is_small(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    for item in range(500):
        writer.metric(
            Metric(pmid(60, 0, item), (f"a.metric.of.number.{item}",), U32),
            "what it is",
            100 * "and more ",
        )
    writer.labels(
        writer.start, 1, NULL, {NULL: {"hostname": "testhost", "machineid": 32 * "a"}}
    )
    writer.record(
        writer.start, {pmid(60, 0, item): {NULL: item} for item in range(500)}
    )
    path = tmp_path / "out.parquet"
    summary = convert(writer.close(), path)
    assert describe(path) == summary.metrics
    assert sum(len(info.help) for info in summary.metrics.values()) > 400_000
    assert path.stat().st_size < 40_000


def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "out.parquet"
    convert(disks(tmp_path, 3, SECOND), path)
    table = pq.read_table(path)
    facts = json.loads(pq.read_metadata(path).metadata[b"kveval.pcp"])
    older = {**facts, "format": 1}
    del older["time_unit"]
    pq.write_table(
        table.replace_schema_metadata({"kveval.pcp": json.dumps(older)}), path
    )
    with pytest.raises(ValueError, match=r"out\.parquet: .*format 1"):
        archive_info(path)


def test_the_first_chunk_decides_until_a_later_one_is_finer(tmp_path: Path) -> None:
    """Written in microseconds, then again in nanoseconds: nothing is lost and nothing is left."""
    path = tmp_path / "out.parquet"
    moments = [START, START + 1000, START + 2001]
    with LongWriter(path, with_host=False) as writer:
        for moment in moments:
            writer.write(
                chunk_of({1: [1.0], 2: ["x"]}, np.array([moment, moment])), Names(), ""
            )
        writer.finish({})
    assert [path.name for path in tmp_path.iterdir()] == ["out.parquet"]
    read = pq.read_table(path)
    assert read["timestamp"].cast(pa.int64()).to_pylist() == [
        moment for moment in moments for _ in range(2)
    ]
    assert read["timestamp"][0].as_py() == datetime(1970, 1, 1, tzinfo=UTC) + timedelta(
        seconds=START // SECOND
    )
    assert read["instance"].to_pylist() == 3 * ["instance 1 é", "instance 2 é"]
    assert pq.read_metadata(path).num_row_groups == 3
