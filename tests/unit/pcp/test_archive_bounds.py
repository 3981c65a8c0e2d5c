"""Files that would take much longer, or much more memory, than sound ones."""

from __future__ import annotations

import io
import struct
import time
import zlib
from pathlib import Path

import pytest
from tests.unit.pcp.test_archive_damage import SECOND, archive, rows
from tests.unit.pcp.test_archive_hostile import found
from tests.unit.pcp.test_archive_writer import U32, Metric, Writer, pmid

from kveval.pcp.archive.compression import ALLOWANCE, Decompressed, TooLarge
from kveval.pcp.conversion.conversion import convert


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
        writer.record(writer.start + step * SECOND, {pmid(60, 0, 1): {0xFFFFFFFF: step}}, index=False)
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


def test_a_byte_too_many_loses_one_record(tmp_path: Path) -> None:
    base = archive(tmp_path)
    volume = base.with_name("test.0")
    data = volume.read_bytes()
    size = struct.unpack_from(">I", data, 808)[0]
    at = 808 + 10 * size + 30
    volume.write_bytes(data[:at] + b"!" + data[at:])
    assert rows(base) == 117
    assert ("bad record", "test.0") in found(base)
