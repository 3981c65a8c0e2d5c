"""The table of series: what SQL can join to the values."""

from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest

from pcp_parquet.conversion.conversion import convert
from pcp_parquet.parquet.series_table import write_series_table
from pcp_parquet.tests.test_archive_writer import (
    COUNTER,
    NULL,
    U32,
    U64,
    Metric,
    Writer,
    indom,
    pmid,
    units,
)
from pcp_parquet.tool.command import main

SECOND = 10**9
OPS, LOAD = pmid(60, 0, 1), pmid(60, 0, 2)
DISKS = indom(60, 1)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """Two disks and a gauge; after three seconds the second disk's number is another's, and the first's label another."""
    writer = Writer(tmp_path / "archive")
    kinds = (U32, DISKS, COUNTER, units(0, 0, 1))
    writer.metric(Metric(OPS, ("disk.ops",), *kinds), "operations")
    writer.metric(Metric(LOAD, ("load",), U64))
    writer.domain(writer.start, DISKS, {0: "sda", 1: "sdb"})
    writer.labels(writer.start, 1, NULL, {NULL: {"rack": 7}})
    writer.labels(writer.start, 32, DISKS, {0: {"bus": "sata"}, 1: {"bus": "scsi"}})
    for step in range(6):
        now = writer.start + step * SECOND
        if step == 3:
            writer.domain(now, DISKS, {1: "nvme"}, delta=True)
            writer.labels(now, 32, DISKS, {0: {"bus": "usb"}, 1: {"bus": "pci"}})
        writer.record(now, {OPS: {0: step, 1: 2 * step}, LOAD: {NULL: step}})
    return writer.close()


def test_sql_sums_by_unit_and_label(base: Path, tmp_path: Path) -> None:
    values, series = tmp_path / "values.parquet", tmp_path / "series.parquet"
    words = ["-a", str(base), "-o", str(values), "--series", str(series)]
    assert main(words) == 0
    query = f"""
        SELECT labels['bus'] AS bus, units, max(value)
        FROM '{values}' AS v JOIN '{series}' AS s
            ON v.metric = s.metric AND v.instance IS NOT DISTINCT FROM s.instance
        WHERE semantics = 'counter' GROUP BY ALL ORDER BY bus
    """
    assert duckdb.sql(query).fetchall() == [
        ("pci", "count", 10.0),
        ("scsi", "count", 4.0),
        ("usb", "count", 5.0),
    ]


def test_a_row_has_what_the_archive_says_of_a_series(
    base: Path, tmp_path: Path
) -> None:
    convert(base, tmp_path / "values.parquet")
    series = tmp_path / "series.parquet"
    assert write_series_table(tmp_path / "values.parquet", series) == 4
    rows = pq.read_table(series).to_pylist()
    names = [(row["metric"], row["instance"]) for row in rows]
    assert names == [
        ("disk.ops", "nvme"),
        ("disk.ops", "sda"),
        ("disk.ops", "sdb"),
        ("load", None),
    ]
    assert rows[2] == {
        "metric": "disk.ops",
        "instance": "sdb",
        "host": "testhost",
        "type": "U32",
        "semantics": "counter",
        "units": "count",
        "labels": [("rack", "7"), ("bus", "scsi")],
        "help": "operations",
    }
    assert rows[3]["labels"] == [("rack", "7")]


def test_it_is_made_of_a_file_that_exists(base: Path, tmp_path: Path) -> None:
    values, series = tmp_path / "values.parquet", tmp_path / "series.parquet"
    convert(base, values)
    assert main(["-a", str(values), "--series", str(series)]) == 0
    assert pq.read_metadata(series).num_rows == 4
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["archive", "series.parquet", "values.parquet"]


def test_every_host_has_its_series(tmp_path: Path) -> None:
    for host in ("first", "second"):
        writer = Writer(tmp_path / host, host=host)
        writer.metric(Metric(LOAD, ("load",), U64))
        writer.record(writer.start, {LOAD: {NULL: 1}})
        writer.close()
    values, series = tmp_path / "values.parquet", tmp_path / "series.parquet"
    convert([tmp_path / "first", tmp_path / "second"], values)
    assert write_series_table(values, series) == 2
    rows = pq.read_table(series).to_pylist()
    assert [(row["host"], row["labels"]) for row in rows] == [
        (host, [("hostname", host)]) for host in ("first", "second")
    ]


@pytest.mark.parametrize(
    "words",
    [
        ["--list", "--series", "series"],
        ["--wide", "-o", "out", "--series", "series"],
        ["-o", "series", "--series", "series"],
    ],
)
def test_only_the_long_form_has_one(base: Path, words: list[str]) -> None:
    with pytest.raises(SystemExit):
        main(["-a", str(base), *words])


def test_of_what_is_no_table_there_is_none(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    volume = base.with_name(f"{base.name}.0")
    series = tmp_path / "series.parquet"
    assert main(["-a", str(volume), "--series", str(series)]) == 2
    assert "cannot be read as Parquet" in capsys.readouterr().err
    assert not series.exists()
