"""Damaged archives: what can be read is read, what is lost is said, and nothing crashes, hangs or eats the memory."""

import gzip
import io
import lzma
import os
import re
import resource
import shutil
import struct
import tarfile
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pcp_parquet.archive import records as records_module
from pcp_parquet.archive.problems import ArchiveError, ArchiveProblem
from pcp_parquet.conversion.checking import check
from pcp_parquet.conversion.conversion import convert
from pcp_parquet.tests.test_archive_writer import (
    U32,
    Metric,
    Writer,
    all_types,
    indom,
    pmid,
)

# Raise for a long run: KVEVAL_FUZZ_EXAMPLES=100000 pytest tests/unit/pcp/test_archive_damage.py -k fuzz
EXAMPLES = int(os.environ.get("KVEVAL_FUZZ_EXAMPLES", "100"))
SECONDS_PER_INPUT = 2.0
SECOND = 10**9


def archive(folder: Path, version: int = 3, records: int = 40) -> Path:
    """A counter with three instances, one record a second, an index entry every ten."""
    writer = Writer(folder, version=version)
    disks = indom(60, 1)
    writer.metric(Metric(pmid(60, 0, 1), ("disk.read",), U32, disks, 1))
    writer.domain(writer.start, disks, {0: "sda", 1: "sdb", 2: "sdc"})
    for step in range(records):
        values = {number: 100 * step + number for number in range(3)}
        writer.record(
            writer.start + step * SECOND, {pmid(60, 0, 1): values}, index=step % 10 == 0
        )
    return writer.close()


def all_problems(source: Path) -> list[ArchiveProblem]:
    return check(source)[1]


def kinds(source: Path) -> set[str]:
    return {problem.kind for problem in all_problems(source)}


def rows(source: Path, **selection: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        summary = convert(source, Path(folder, "out.parquet"), **selection)
        assert pq.read_metadata(Path(folder, "out.parquet")).num_rows == summary.rows
        return summary.rows


def test_a_whole_archive_has_no_problems(tmp_path: Path) -> None:
    base = archive(tmp_path)
    assert all_problems(base) == []
    assert rows(base) == 120


@pytest.mark.parametrize("version", [2, 3])
def test_a_truncated_volume_loses_only_its_tail(tmp_path: Path, version: int) -> None:
    base = archive(tmp_path, version)
    volume = base.with_name("test.0")
    volume.write_bytes(volume.read_bytes()[:-10])
    summary = convert(base, tmp_path / "out.parquet")
    assert summary.rows == 117
    assert summary.damaged
    assert [problem.kind for problem in summary.problems] == ["truncated"]


def test_missing_index_is_no_damage(tmp_path: Path) -> None:
    base = archive(tmp_path)
    base.with_name("test.index").unlink()
    (problem,) = all_problems(base)
    assert (problem.kind, problem.damage) == ("no index", False)
    assert (
        rows(base, start_ns=1_700_000_010 * SECOND, finish_ns=1_700_000_019 * SECOND)
        == 30
    )


def test_missing_meta_is_said(tmp_path: Path) -> None:
    base = archive(tmp_path)
    base.with_name("test.meta").unlink()
    assert "missing file" in kinds(base)
    assert rows(base) == 0


def test_a_missing_volume_is_said(tmp_path: Path) -> None:
    writer = all_types(tmp_path, 3)
    for step in (10, 11, 12):
        writer.volume()
        writer.record(
            writer.start + step * SECOND, {pmid(60, 0, 0): {0xFFFFFFFF: step}}
        )
    base = writer.close()
    base.with_name("test.1").unlink()
    base.with_name("test.3").rename(base.with_name("test.900000000"))
    messages = [
        problem.message
        for problem in all_problems(base)
        if problem.kind == "missing file"
    ]
    assert [re.findall(r"\d+", message) for message in messages] == [
        ["1"],
        ["3", "899999999"],
    ]


@pytest.mark.parametrize("part", ["0", "meta", "index"])
def test_an_empty_member(tmp_path: Path, part: str) -> None:
    base = archive(tmp_path)
    base.with_name(f"test.{part}").write_bytes(b"")
    assert any(problem.damage for problem in all_problems(base))
    assert rows(base) == (120 if part == "index" else 0)


def test_garbage_in_the_middle_is_skipped(tmp_path: Path) -> None:
    base = archive(tmp_path)
    volume = base.with_name("test.0")
    data = bytearray(volume.read_bytes())
    size = struct.unpack_from(">I", data, 808)[0]
    data[808 + 10 * size + 4 : 808 + 12 * size - 6] = os.urandom(2 * size - 10)
    volume.write_bytes(data)
    summary = convert(base, tmp_path / "out.parquet")
    assert summary.rows >= 3 * 37
    assert "bad record" in {problem.kind for problem in summary.problems}


@pytest.mark.parametrize("lie", [0, 3, 12, 0x7FFFFFFF, 0xFFFFFFFC])
def test_a_length_that_lies(tmp_path: Path, lie: int) -> None:
    base = archive(tmp_path)
    volume = base.with_name("test.0")
    data = bytearray(volume.read_bytes())
    size = struct.unpack_from(">I", data, 808)[0]
    struct.pack_into(">I", data, 808 + 5 * size, lie)
    volume.write_bytes(data)
    summary = convert(base, tmp_path / "out.parquet")
    assert summary.rows == 3 * 39
    assert summary.damaged


def test_absurd_counts(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.metric(Metric(pmid(60, 0, 1), ("a.b",), U32))
    good = {pmid(60, 0, 1): {0xFFFFFFFF: 1}}
    writer.record(writer.start, good)
    writer.raw_record(
        writer.start + SECOND, struct.pack(">III", pmid(60, 0, 1), 0x7FFFFFFF, 0), 1
    )
    writer.raw_record(writer.start + 2 * SECOND, writer.sets(good), 0xFFFFFFFF)
    writer.record(writer.start + 3 * SECOND, good)
    base = writer.close()
    summary = convert(base, tmp_path / "out.parquet")
    assert summary.rows == 3
    assert sum(problem.kind == "bad record" for problem in summary.problems) == 2


def test_blocks_that_point_outside(tmp_path: Path) -> None:
    writer = all_types(tmp_path, 3, times=())
    text = pmid(60, 0, 6)
    for index in (0, 1, 2, 7, 0x7FFFFFFF, 0xFFFFFFFF):
        body = struct.pack(">IIIII", text, 1, 1, 0xFFFFFFFF, index)
        writer.raw_record(writer.start + index % 97 * SECOND, body, 1)
    summary = convert(writer.close(), tmp_path / "out.parquet")
    assert summary.rows == 0
    assert summary.damaged


def test_a_pmid_without_descriptor_is_counted(tmp_path: Path) -> None:
    base = archive(tmp_path)
    data = base.with_name("test.0").read_bytes()
    base.with_name("test.0").write_bytes(
        data.replace(struct.pack(">I", pmid(60, 0, 1)), struct.pack(">I", 12345))
    )
    (problem,) = all_problems(base)
    assert (problem.kind, re.findall(r"[\d.]+", problem.message)) == (
        "bad metadata",
        ["0.12.57", "40"],
    )


@pytest.mark.parametrize("suffix", [".xz", ".gz", ".zst"])
def test_truncated_compression_keeps_what_precedes(tmp_path: Path, suffix: str) -> None:
    base = archive(tmp_path, records=5000)
    volume = base.with_name("test.0")
    data = volume.read_bytes()
    packed = {".xz": lzma.compress, ".gz": gzip.compress, ".zst": zstandard.compress}[
        suffix
    ](data)
    volume.unlink()
    base.with_name("test.0" + suffix).write_bytes(packed[: len(packed) * 2 // 3])
    summary = convert(base, tmp_path / "out.parquet")
    assert summary.damaged
    assert summary.rows < 15000
    if suffix != ".zst":  # a single zstd block is all or nothing
        assert summary.rows > 3000


def test_gap_and_clock_step(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.metric(Metric(pmid(60, 0, 1), ("a.b",), U32))
    for second in (*range(20), *range(100, 120), *range(90, 99)):
        writer.record(writer.start + second * SECOND, {pmid(60, 0, 1): {0xFFFFFFFF: 1}})
    found = [problem for problem in all_problems(writer.close()) if not problem.damage]
    assert [problem.kind for problem in found] == ["index order", "clock step", "gap"]
    assert "81.000 s" in found[2].message


def test_a_mark_excuses_a_gap(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.metric(Metric(pmid(60, 0, 1), ("a.b",), U32))
    for second in (*range(20), *range(100, 120)):
        if second == 100:
            writer.record(writer.start + 20 * SECOND, {})
        writer.record(writer.start + second * SECOND, {pmid(60, 0, 1): {0xFFFFFFFF: 1}})
    assert all_problems(writer.close()) == []


def test_a_truncated_tar(tmp_path: Path) -> None:
    base = archive(tmp_path / "archive", records=400)
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as tar:
        for path in sorted(base.parent.iterdir(), key=lambda path: path.suffix == ".0"):
            tar.add(path, arcname=path.name)
    packed = tmp_path / "pcp.tar.zst"
    packed.write_bytes(zstandard.compress(plain.getvalue()[:-12000]))
    summary = convert(packed, tmp_path / "out.parquet")
    assert 0 < summary.rows < 1200
    assert "truncated" in {problem.kind for problem in summary.problems}


def test_a_tar_cannot_write_outside(tmp_path: Path) -> None:
    base = archive(tmp_path / "archive")
    with tarfile.open(tmp_path / "pcp.tar", "w") as tar:
        for path in base.parent.iterdir():
            tar.add(path, arcname=f"../../escaped/{path.name}")
    assert rows(tmp_path / "pcp.tar") == 120
    assert (
        not list(tmp_path.parent.glob("escaped*"))
        and not (tmp_path / "escaped").exists()
    )


@pytest.mark.parametrize("name", ["nothing", "folder/nothing", "log.1"])
def test_no_archive(tmp_path: Path, name: str) -> None:
    (tmp_path / "log.1").write_text("a log file")
    with pytest.raises(ArchiveError):
        convert(tmp_path / name, tmp_path / "out.parquet")
    assert not (tmp_path / "out.parquet").exists()
    assert not list(tmp_path.glob("*.partial"))


# --- fuzzing: any bytes in any file of an archive

WORDS = (
    0,
    1,
    2,
    3,
    7,
    8,
    12,
    255,
    4096,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFE,
    0xFFFFFFFF,
)
position = st.integers(0, 1 << 16)
mutation = st.one_of(
    st.tuples(
        st.just("word"),
        position,
        st.one_of(st.sampled_from(WORDS), st.integers(0, 0xFFFFFFFF)),
    ),
    st.tuples(st.just("byte"), position, st.integers(0, 255)),
    st.tuples(st.just("cut"), position, st.integers(1, 64)),
    st.tuples(st.just("copy"), position, position),
    st.tuples(st.just("insert"), position, st.binary(min_size=1, max_size=40)),
    st.tuples(st.just("end"), position, st.none()),
)
mutations = st.lists(
    st.tuples(st.sampled_from(["0", "1", "meta", "index"]), mutation),
    min_size=1,
    max_size=6,
)
_TEMPLATES: dict[int, dict[str, bytes]] = {}


def template(version: int) -> dict[str, bytes]:
    if version not in _TEMPLATES:
        with tempfile.TemporaryDirectory() as folder:
            writer = all_types(Path(folder), version)
            writer.volume()
            disks = indom(60, 1)
            writer.domain(
                writer.start + 6 * SECOND,
                disks,
                {1: "sdc", 7: None} if version == 3 else {1: "sdc"},
            )
            writer.record(
                writer.start + 6 * SECOND,
                {pmid(60, 1, 1): {0: 1, 1: 2}, pmid(60, 0, 6): {0xFFFFFFFF: "x"}},
            )
            writer.record(writer.start + 7 * SECOND, {})
            writer.record(
                writer.start + 8 * SECOND, {pmid(60, 1, 1): {0: 1, 1: 2, 9: 4}}
            )
            writer.close()
            _TEMPLATES[version] = {
                path.suffix[1:]: path.read_bytes() for path in Path(folder).iterdir()
            }
    return _TEMPLATES[version]


def mutated(data: bytes, change: tuple) -> bytes:
    kind, at, what = change
    at %= len(data) + 1
    if kind == "word":
        at &= ~3
        return data[:at] + struct.pack(">I", what) + data[at + 4 :]
    if kind == "byte":
        return data[:at] + bytes([what]) + data[at + 1 :]
    if kind == "cut":
        return data[:at] + data[at + what :]
    if kind == "copy":
        begin = what % (len(data) + 1)
        return data[:at] + data[begin : begin + 64] + data[at:]
    return (
        data[:at]
        + (what if kind == "insert" else b"")
        + (data[at:] if kind == "insert" else b"")
    )


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
)
@given(version=st.sampled_from([2, 3]), changes=mutations, window=st.booleans())
def test_fuzz(version: int, changes: list, window: bool) -> None:
    files = dict(template(version))
    for part, change in changes:
        files[part] = mutated(files[part], change)
    folder = Path(
        tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
    )
    try:
        for part, data in files.items():
            (folder / f"test.{part}").write_bytes(data)
        begin = time.process_time()
        selection = (
            {"start_ns": 1_700_000_002 * SECOND, "finish_ns": 1_700_000_006 * SECOND}
            if window
            else {}
        )
        try:
            summary = convert(folder, folder / "out.parquet", **selection)
        except ArchiveError:
            return
        assert time.process_time() - begin < SECONDS_PER_INPUT
        table = pq.read_table(folder / "out.parquet")
        table.validate(full=True)
        assert len(table) == summary.rows <= 4096
        all_problems(folder)
    finally:
        shutil.rmtree(folder)


def test_a_lying_length_costs_no_memory(tmp_path: Path) -> None:
    base = archive(tmp_path)
    with base.with_name("test.0").open("ab") as volume:
        volume.write(struct.pack(">I", records_module.MAX_RECORD) + b"\0" * 100)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert rows(base) == 120
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 100 << 10, f"{grown >> 10} MiB for a file of a few kilobytes"


def test_an_impossible_time_is_said(tmp_path: Path) -> None:
    base = archive(tmp_path)
    data = bytearray(base.with_name("test.0").read_bytes())
    data[808 + 4 : 808 + 12] = b"\xff" * 8
    base.with_name("test.0").write_bytes(data)
    summary = convert(base, tmp_path / "out.parquet")
    assert summary.rows == 117
    (problem,) = summary.problems
    assert (problem.kind, problem.offset, re.findall(r"\d+", problem.message)) == (
        "bad record",
        808,
        ["1"],
    )


@pytest.mark.parametrize("suffix", ["", ".xz"])
def test_a_record_larger_than_a_block(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records_module, "BLOCK", 4096)
    writer = Writer(tmp_path)
    wide = indom(60, 1)
    writer.metric(Metric(pmid(60, 0, 1), ("a.b",), U32, wide))
    writer.domain(writer.start, wide, {number: f"i{number}" for number in range(5000)})
    for step, size in enumerate((10, 5000, 10, 600, 5000, 1)):
        writer.record(
            writer.start + step * SECOND,
            {pmid(60, 0, 1): dict.fromkeys(range(size), step)},
        )
    base = writer.close()
    if suffix:
        volume = base.with_name("test.0")
        base.with_name("test.0" + suffix).write_bytes(
            lzma.compress(volume.read_bytes())
        )
        volume.unlink()
    assert rows(base) == 10621
    assert all_problems(base) == []
