"""Losses that no length betrays, files that do not belong, and what pmlogcheck looks for."""

from __future__ import annotations

import bz2
import gzip
import lzma
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from pcp_parquet.archive.problems import ArchiveProblem
from pcp_parquet.conversion.conversion import convert
from pcp_parquet.tests.test_archive_damage import SECOND, all_problems, archive, rows
from pcp_parquet.tests.test_archive_writer import (
    DOUBLE,
    STRING,
    U32,
    Metric,
    Writer,
    indom,
    pmid,
)
from pcp_parquet.tool.command import main

PACK: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,
}


def damage(source: Path) -> list[ArchiveProblem]:
    return [problem for problem in all_problems(source) if problem.damage]


def found(source: Path) -> list[tuple[str, str]]:
    return [(problem.kind, problem.where) for problem in damage(source)]


def volumes(folder: Path, count: int = 3, **options: object) -> Path:
    """An archive of several volumes with two records each."""
    writer = Writer(folder, **options)  # type: ignore[arg-type]
    writer.metric(Metric(pmid(60, 0, 1), ("a.b",), U32))
    for step in range(2 * count):
        if step and step % 2 == 0:
            writer.volume()
        writer.record(
            writer.start + step * SECOND, {pmid(60, 0, 1): {0xFFFFFFFF: step}}
        )
    return writer.close()


# --- what is not there


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_missing_volume_is_named(tmp_path: Path, number: int) -> None:
    base = volumes(tmp_path)
    base.with_name(f"test.{number}").unlink()
    (problem,) = damage(base)
    assert (problem.kind, problem.message) == (
        "missing file",
        f"volume {number} is missing",
    )
    assert rows(base) == 4


@pytest.mark.parametrize("suffix", ["", ".xz"])
def test_a_volume_cut_between_two_records_is_named(tmp_path: Path, suffix: str) -> None:
    base = archive(tmp_path)
    volume = base.with_name("test.0")
    data = volume.read_bytes()
    size = struct.unpack_from(">I", data, 808)[0]
    cut = data[: 808 + 20 * size]
    volume.unlink()
    base.with_name("test.0" + suffix).write_bytes(PACK[suffix](cut) if suffix else cut)
    (problem,) = damage(base)
    assert (problem.kind, problem.where, problem.offset) == (
        "truncated",
        f"test.0{suffix}",
        len(cut),
    )


def test_a_volume_of_nothing_but_its_label_is_named(tmp_path: Path) -> None:
    base = volumes(tmp_path)
    base.with_name("test.index").unlink()
    volume = base.with_name("test.1")
    volume.write_bytes(volume.read_bytes()[:808])
    assert found(base) == [("truncated", "test.1")]
    base.with_name("test.2").write_bytes(base.with_name("test.2").read_bytes()[:808])
    assert ("no data", "test.2") in [
        (problem.kind, problem.where) for problem in all_problems(base)
    ]


def test_a_meta_cut_between_two_records_is_named(tmp_path: Path) -> None:
    base = volumes(tmp_path)
    meta = base.with_name("test.meta")
    meta.write_bytes(meta.read_bytes()[:808])
    assert ("truncated", "test.meta") in found(base)


# --- what is in a record


@pytest.mark.parametrize("kind", [U32, DOUBLE, STRING])
def test_a_page_of_zeros_in_a_record_is_named(tmp_path: Path, kind: int) -> None:
    writer = Writer(tmp_path)
    wide = indom(60, 1)
    writer.metric(Metric(pmid(60, 0, 1), ("a.b",), kind, wide))
    writer.domain(writer.start, wide, {number: f"i{number}" for number in range(1100)})
    writer.record(
        writer.start,
        {pmid(60, 0, 1): {number: 1000 + number for number in range(1100)}},
    )
    base = writer.close()
    volume = base.with_name("test.0")
    data = bytearray(volume.read_bytes())
    data[4096:8192] = bytes(4096)
    volume.write_bytes(data)
    assert set(found(base)) == {("bad record", "test.0")}


def word_changed(base: Path, at: int, value: int) -> None:
    """Change a word of the first record of the first volume."""
    volume = base.with_name("test.0")
    data = bytearray(volume.read_bytes())
    struct.pack_into(">I", data, 808 + 4 * at, value)
    volume.write_bytes(data)


@pytest.mark.parametrize(
    ("word", "value"),
    [
        (4, 0),  # no metrics: would be a mark
        (4, 1),  # fewer metrics than there are
        (5, 0),  # another metric's number
        (6, 1),  # fewer values
        (7, 9),  # an unknown format
        (10, 0),  # an instance twice
    ],
)
def test_a_word_that_lies_is_named(tmp_path: Path, word: int, value: int) -> None:
    writer = Writer(tmp_path)
    wide = indom(60, 1)
    writer.metric(Metric(pmid(60, 0, 1), ("a.b",), U32, wide))
    writer.metric(Metric(pmid(60, 0, 2), ("a.c",), U32, wide))
    writer.domain(writer.start, wide, {0: "x", 1: "y"})
    values = {pmid(60, 0, number): {0: 5, 1: 6} for number in (1, 2)}
    for step in range(3):
        writer.record(writer.start + step * SECOND, values)
    base = writer.close()
    assert damage(base) == []
    word_changed(base, word, value)
    assert damage(base)


@pytest.mark.parametrize("change", ["type", "length", "shared"])
def test_a_block_that_lies_is_named(tmp_path: Path, change: str) -> None:
    writer = Writer(tmp_path)
    writer.metric(Metric(pmid(60, 0, 1), ("a.b",), STRING))
    writer.metric(Metric(pmid(60, 0, 2), ("a.c",), STRING))
    for step in range(3):
        writer.record(
            writer.start + step * SECOND,
            {pmid(60, 0, n): {0xFFFFFFFF: "abcdef"[: n + step]} for n in (1, 2)},
        )
    base = writer.close()
    assert damage(base) == []
    # Words: 5 of header, 5 of each value set, then the blocks.
    word_changed(
        base,
        {"type": 15, "length": 15, "shared": 14}[change],
        {"type": 3 << 24 | 6, "length": 6 << 24 | 5}.get(change, 17),
    )
    if change == "length":
        word_changed(base, 15, 6 << 24 | 12)
    assert damage(base)


@pytest.mark.parametrize("seconds", [50_000, -10])
def test_the_time_of_a_single_record_is_damage_and_a_clock_that_was_set_is_not(
    tmp_path: Path, seconds: int
) -> None:
    for name, shifted in (("single", range(10, 11)), ("clock", range(10, 40))):
        writer = Writer(tmp_path / name)
        writer.metric(Metric(pmid(60, 0, 1), ("a.b",), U32))
        for step in range(40):
            at = step + (seconds if step in shifted else 0)
            writer.record(
                writer.start + at * SECOND,
                {pmid(60, 0, 1): {0xFFFFFFFF: step}},
                index=step == 0,
            )
        problems = convert(writer.close(), tmp_path / "out.parquet").problems
        if name == "single":
            assert [problem.kind for problem in problems] == ["bad record"]
        else:
            assert [problem.kind for problem in problems] == (
                ["clock step"] if seconds < 0 else []
            )


# --- what does not belong


@pytest.mark.parametrize(
    "difference",
    [{"host": "elsewhere"}, {"start": 1_700_000_500 * SECOND}, {"version": 2}],
)
@pytest.mark.parametrize("part", ["1", "meta", "index"])
def test_a_file_of_another_archive_is_left_out(
    tmp_path: Path, difference: dict[str, object], part: str
) -> None:
    base = volumes(tmp_path / "own")
    other = volumes(tmp_path / "other", **difference)
    base.with_name(f"test.{part}").write_bytes(
        other.with_name(f"test.{part}").read_bytes()
    )
    assert ("foreign file", f"test.{part}") in found(base)
    assert rows(base) == {"1": 4, "meta": 0, "index": 6}[part]


def test_another_process_and_a_version_that_is_not_read(tmp_path: Path) -> None:
    base = volumes(tmp_path)
    for name, at, value in (("test.1", 8, 99), ("test.2", 4, 0x50052601)):
        data = bytearray(base.with_name(name).read_bytes())
        struct.pack_into(">I", data, at, value)
        base.with_name(name).write_bytes(data)
    assert found(base) == [("foreign file", "test.1"), ("foreign file", "test.2")]
    assert rows(base) == 2


def test_a_flipped_bit_in_a_host_name_is_no_other_host(tmp_path: Path) -> None:
    base = volumes(tmp_path)
    volume = base.with_name("test.1")
    data = bytearray(volume.read_bytes())
    data[36] ^= 1
    volume.write_bytes(data)
    assert [problem.kind for problem in all_problems(base)] == ["bad label"]
    assert rows(base) == 6


def test_exchanged_volumes_are_named_and_read(tmp_path: Path) -> None:
    base = volumes(tmp_path)
    one, two = (base.with_name(f"test.{number}") for number in (0, 1))
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)
    kinds = [(problem.kind, problem.where) for problem in all_problems(base)]
    assert ("bad label", "test.0") in kinds and ("bad label", "test.1") in kinds
    assert rows(base) == 6


# --- what pmlogcheck looks for


@pytest.mark.parametrize(
    ("metric", "kind"),
    [
        (Metric(pmid(60, 0, 2), ("odd",), 17), "bad metadata"),
        (Metric(pmid(60, 0, 2), ("odd",), U32, semantics=9), "odd metadata"),
        (Metric(pmid(60, 0, 2), ("odd",), U32, indom(61, 1)), "odd metadata"),
        (Metric(pmid(60, 0, 2), ("odd",), U32, units=7 << 28), "odd metadata"),
        (Metric(pmid(60, 0, 2), ("odd",), U32, units=3 << 12), "odd metadata"),
        (
            Metric(pmid(60, 0, 2), ("odd",), U32, units=1 << 28 | 9 << 16),
            "odd metadata",
        ),
    ],
)
def test_a_descriptor_that_cannot_be(tmp_path: Path, metric: Metric, kind: str) -> None:
    writer = Writer(tmp_path)
    writer.metric(Metric(pmid(60, 0, 1), ("a.b",), U32))
    writer.metric(metric)
    writer.record(writer.start, {pmid(60, 0, 1): {0xFFFFFFFF: 1}})
    (problem,) = all_problems(writer.close())
    assert (problem.kind, problem.where) == (kind, "test.meta")


def test_names_that_are_no_text_are_named(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.metric(Metric(pmid(60, 0, 1), ("a.b\x01",), U32, indom(60, 1)))
    writer.domain(writer.start, indom(60, 1), {0: "sda", 1: "s\x02b"})
    writer.record(writer.start, {pmid(60, 0, 1): {0: 1, 1: 2}})
    assert [problem.kind for problem in all_problems(writer.close())] == [
        "odd metadata",
        "odd metadata",
    ]


def test_a_name_shorter_than_its_record_is_damage(tmp_path: Path) -> None:
    base = volumes(tmp_path)
    meta = base.with_name("test.meta")
    data = meta.read_bytes()
    meta.write_bytes(
        data.replace(struct.pack(">I", 3) + b"a.b", struct.pack(">I", 2) + b"a.b")
    )
    assert found(base) == [("bad metadata", "test.meta")]
    assert rows(base) == 6


@pytest.mark.parametrize("times", [(-5,), (30,), (3, 2)])
def test_a_domain_out_of_time(tmp_path: Path, times: tuple[int, ...]) -> None:
    writer = Writer(tmp_path)
    writer.metric(Metric(pmid(60, 0, 1), ("a.b",), U32))
    for number, at in enumerate(times):
        writer.domain(writer.start + at * SECOND, indom(60, 1), {number: f"x{number}"})
    for step in range(10):
        writer.record(writer.start + step * SECOND, {pmid(60, 0, 1): {0xFFFFFFFF: 1}})
    (problem,) = all_problems(writer.close())
    assert (problem.kind, problem.where) == ("odd metadata", "test.meta")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (0, 1),
        (2, 1 << 31),
        (3, 900),
        (3, 1 << 31),
        (5, 4),
        (5, 1 << 30),
        (7, 4),
        (7, 1 << 30),
    ],
)
def test_an_index_entry_that_cannot_be(tmp_path: Path, field: int, value: int) -> None:
    base = volumes(tmp_path, count=1)
    index = base.with_name("test.index")
    data = bytearray(index.read_bytes())
    struct.pack_into(">I", data, 808 + 32 + 4 * field, value)
    index.write_bytes(data)
    assert damage(base) and rows(base) == 2


def test_falls_of_counters_are_named_by_a_check(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    wide = indom(60, 1)
    writer.metric(Metric(pmid(60, 0, 1), ("a.count",), U32, wide, 1))
    writer.metric(Metric(pmid(60, 0, 2), ("a.level",), U32, wide))
    writer.domain(writer.start, wide, {0: "x", 1: "y"})
    for step, value in enumerate((5, 6, 2, 3, 1, 9)):
        values = {0: value, 1: 100 + step}
        writer.record(
            writer.start + step * SECOND,
            {pmid(60, 0, 1): values, pmid(60, 0, 2): values},
        )
    (problem,) = all_problems(writer.close())
    assert (problem.kind, problem.damage) == ("counter fall", False)
    assert problem.message.startswith("a.count is lower than before 2 times")


# --- records that the index tells of

PARTS = ["", ".xz", ".zst"]


def cut_records(base: Path, begin: int, end: int | None, suffix: str) -> None:
    """Take the records from number `begin` up to `end` out of the archive's volume, and compress it."""
    volume = base.with_name("test.0")
    data = volume.read_bytes()
    size = struct.unpack_from(">I", data, 808)[0]
    rest = b"" if end is None else data[808 + end * size :]
    data = data[: 808 + begin * size] + rest
    volume.unlink()
    base.with_name(f"test.0{suffix}").write_bytes(
        PACK[suffix](data) if suffix else data
    )


@pytest.mark.parametrize("suffix", PARTS)
def test_a_volume_cut_to_its_label_is_damaged(tmp_path: Path, suffix: str) -> None:
    base = archive(tmp_path)
    cut_records(base, 0, None, suffix)
    assert {kind for kind, _ in found(base)} == {"truncated"}


@pytest.mark.parametrize("suffix", PARTS)
def test_a_volume_cut_to_its_label_is_damaged_where_the_index_has_one_record(
    tmp_path: Path, suffix: str
) -> None:
    base = archive(tmp_path, records=9)
    cut_records(base, 0, None, suffix)
    (problem,) = damage(base)
    assert (problem.kind, problem.message) == (
        "truncated",
        "it holds no record; by the index it had some",
    )


@pytest.mark.parametrize("suffix", PARTS)
def test_the_last_record_is_missed_where_the_index_points_to_it(
    tmp_path: Path, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    base = archive(tmp_path, records=31)
    cut_records(base, 30, None, suffix)
    assert main([str(base), "--check"]) == 0
    state, problem = capsys.readouterr().out.splitlines()
    assert state.startswith("perhaps incomplete: 90 values")
    assert (
        "by the index a record of 2023-11-14T22:13:50.000000000Z begins here; it is lost, or"
        in problem
    )


@pytest.mark.parametrize("suffix", PARTS)
@pytest.mark.parametrize(
    ("begin", "end", "kind"),
    [(0, 1, "odd index"), (10, 11, "odd index"), (15, 16, "bad record")],
)
def test_a_record_that_is_missing_before_an_indexed_one_is_missed(
    tmp_path: Path, suffix: str, begin: int, end: int, kind: str
) -> None:
    base = archive(tmp_path, records=45)
    cut_records(base, begin, end, suffix)
    assert kind in {problem.kind for problem in all_problems(base)}


def test_a_missing_record_of_another_length_is_missed_too(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    disks = indom(60, 1)
    writer.metric(Metric(pmid(60, 0, 1), ("a.b",), U32, disks))
    writer.domain(writer.start, disks, {number: f"d{number}" for number in range(9)})
    for step in range(9):
        values = dict.fromkeys(range(1 + step), step)
        writer.record(
            writer.start + step * SECOND, {pmid(60, 0, 1): values}, index=step in (0, 6)
        )
    base = writer.close()
    volume = base.with_name("test.0")
    data = volume.read_bytes()
    size = struct.unpack_from(">I", data, 808)[0]
    volume.write_bytes(data[:808] + data[808 + size :])
    assert ("bad record", "test.0") in found(base)


def test_a_record_whose_time_is_damaged_is_missed_where_the_index_has_it(
    tmp_path: Path,
) -> None:
    base = archive(tmp_path)
    volume = base.with_name("test.0")
    data = bytearray(volume.read_bytes())
    size = struct.unpack_from(">I", data, 808)[0]
    data[808 + 10 * size + 12 : 808 + 10 * size + 16] = struct.pack(">I", 1000)
    volume.write_bytes(data)
    (problem,) = all_problems(base)
    assert (problem.kind, problem.offset) == ("odd index", 808 + 10 * size)


def test_the_last_record_of_an_earlier_volume_is_missed(tmp_path: Path) -> None:
    base = volumes(tmp_path)
    volume = base.with_name("test.1")
    data = volume.read_bytes()
    size = struct.unpack_from(">I", data, 808)[0]
    base.with_name("test.1.xz").write_bytes(lzma.compress(data[:-size]))
    volume.unlink()
    assert [(problem.kind, problem.where) for problem in all_problems(base)] == [
        ("odd index", "test.1.xz")
    ]


@pytest.mark.parametrize("entries", ["behind", "last one behind", "last one late"])
def test_entries_as_sound_programs_write_them_are_no_damage(
    tmp_path: Path, entries: str
) -> None:
    # Behind their record: pmlogger of the 1990s; the last one behind: pmlogextract; late: pmlogger at its end.
    writer = Writer(tmp_path)
    writer.metric(Metric(pmid(60, 0, 1), ("a.b",), U32))
    for step in range(20):
        time = writer.start + step * SECOND
        late = entries == "last one late" and step == 19
        if late:
            writer.index_entry(time + SECOND // 2)
        at_start = step == 0 or (entries != "behind" and step % 5 == 0)
        writer.record(time, {pmid(60, 0, 1): {0xFFFFFFFF: step}}, index=at_start)
        if (entries == "behind" and step % 5 == 4) or (
            entries == "last one behind" and step == 19
        ):
            writer.index_entry(time)
    assert all_problems(writer.close()) == []


@pytest.mark.parametrize("left_out", [(0,), (5, 10), (15,), (0, 5, 10, 15)])
def test_records_that_pmlogrewrite_left_out_are_no_damage(
    tmp_path: Path, left_out: tuple[int, ...]
) -> None:
    """It writes an entry for each record that it copies, also for one of which it deletes every metric."""
    writer = Writer(tmp_path)
    writer.metric(Metric(pmid(60, 0, 1), ("a.b",), U32))
    for step in range(16):
        time = writer.start + step * SECOND
        if step % 5 == 0:
            writer.index_entry(time)
        if step not in left_out:
            writer.record(time, {pmid(60, 0, 1): {0xFFFFFFFF: step}}, index=False)
    base = writer.close()
    assert damage(base) == []
    assert [problem.kind for problem in all_problems(base)] == ["odd index"] * len(
        left_out
    )
