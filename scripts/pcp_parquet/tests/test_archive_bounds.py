"""Files that would take much longer, or much more memory, than sound ones."""

from __future__ import annotations

import io
import resource
import struct
import time
import zlib
from pathlib import Path

import pytest

from pcp_parquet.archive.compression import ALLOWANCE, Decompressed, TooLarge
from pcp_parquet.conversion.conversion import convert
from pcp_parquet.tests.test_archive_damage import SECOND, all_problems, archive, rows
from pcp_parquet.tests.test_archive_hostile import found
from pcp_parquet.tests.test_archive_writer import (
    U32,
    Metric,
    Writer,
    framed,
    indom,
    pmid,
)
from pcp_parquet.tool import command
from pcp_parquet.tool.command import main


def test_the_bound_on_expansion_can_be_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = zlib.compress(bytes(80 << 20), wbits=31)

    def size() -> int:
        stream, have = Decompressed(io.BytesIO(packed), ".gz", len(packed)), 0
        while piece := stream.read(1 << 20):
            have += len(piece)
        return have

    with pytest.raises(TooLarge):
        size()
    monkeypatch.setenv(ALLOWANCE, "2")
    assert size() == 80 << 20


def test_thousands_of_bad_records_take_no_longer_than_good_ones(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.metric(Metric(pmid(60, 0, 1), ("a.b",), U32))
    for step in range(20_000):
        writer.record(
            writer.start + step * SECOND,
            {pmid(60, 0, 1): {0xFFFFFFFF: step}},
            index=False,
        )
    base = writer.close()
    volume = base.with_name("test.0")
    data = bytearray(volume.read_bytes())
    size = struct.unpack_from(">I", data, 808)[0]
    for at in range(808, len(data), 4 * size):
        data[at : at + 4] = b"\xff" * 4
    volume.write_bytes(data)
    begin = time.process_time()
    summary = convert(base, tmp_path / "out.parquet")
    assert summary.rows == 15_000
    assert summary.damaged
    assert time.process_time() - begin < 5


@pytest.mark.parametrize("kind", [6, 9])
def test_small_records_of_metadata_are_bounded(tmp_path: Path, kind: int) -> None:
    """Lists of instances that change nothing, and records of no known type: half a million in some kilobytes."""
    base = archive(tmp_path)
    meta = base.with_name("test.meta")
    body = (
        struct.pack(">I", kind)
        + Writer(tmp_path).stamp(1_700_000_000 * SECOND)
        + struct.pack(">II", indom(60, 1), 0)
    )
    packed = zlib.compress(meta.read_bytes() + 500_000 * framed(body), wbits=31)
    meta.unlink()
    base.with_name("test.meta.gz").write_bytes(packed)
    (problem,) = [
        problem for problem in all_problems(base) if problem.kind == "too large"
    ]
    assert "more than 300,000 records" in problem.message
    assert rows(base) == 120


FAR = 80 * 365 * 86_400 * SECOND


@pytest.mark.parametrize(
    ("last", "metrics", "instances", "message"),
    [
        (FAR, 1, 1, "42,048,001 rows, one every 60 s from 2023-11-14"),
        (
            60 * SECOND,
            500,
            500,
            "more than 200,000 columns. Choose metrics by METRIC or instances by -i",
        ),
        (
            60_000 * SECOND * 60,
            70,
            50,
            "210,003,500 cells, 60,001 rows of 3,500 columns, for 2 values: more than 200,",
        ),
    ],
    ids=["rows", "columns", "cells"],
)
def test_a_wide_table_is_refused_before_it_takes_the_memory(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    last: int,
    metrics: int,
    instances: int,
    message: str,
) -> None:
    writer = Writer(tmp_path / "archive")
    disks = indom(60, 1)
    for number in range(metrics):
        writer.metric(Metric(pmid(60, 0, number), (f"a.b{number}",), U32, disks))
    writer.domain(
        writer.start, disks, {number: f"i{number}" for number in range(instances)}
    )
    for moment in (0, last):
        writer.record(writer.start + moment, {pmid(60, 0, 0): {0: 1}})
    base = writer.close()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert main(["-a", str(base), "--wide", "-o", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10
    assert [path.name for path in tmp_path.iterdir()] == ["archive"]


def test_a_wide_table_that_is_refused_is_written_in_a_window(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "archive")
    writer.metric(Metric(pmid(60, 0, 1), ("a.b",), U32))
    for moment in (0, 60 * SECOND, 120 * SECOND, FAR):
        writer.record(writer.start + moment, {pmid(60, 0, 1): {0xFFFFFFFF: 1}})
    base = writer.close()
    for name, option in (
        ("window", ["-T", "2min"]),
        ("interval", ["-t", "1day"]),
        ("rows", ["-s", "3"]),
    ):
        assert (
            main(["-a", str(base), "--wide", "-o", str(tmp_path / name), *option]) == 0
        )


def test_the_bound_on_rows_can_be_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "ROWS", 50)
    base = archive(tmp_path / "archive", records=100)
    options = ["-a", str(base), "--wide", "-t", "1", "-o", str(tmp_path / "out")]
    assert main(options) == 2
    monkeypatch.setenv(ALLOWANCE, "2")
    assert main(options) == 0


def test_a_byte_too_many_loses_one_record(tmp_path: Path) -> None:
    base = archive(tmp_path)
    volume = base.with_name("test.0")
    data = volume.read_bytes()
    size = struct.unpack_from(">I", data, 808)[0]
    at = 808 + 10 * size + 30
    volume.write_bytes(data[:at] + b"!" + data[at:])
    assert rows(base) == 117
    assert ("bad record", "test.0") in found(base)
