"""Converting: where archives may lie, what is selected, what is kept about them, the command."""

import bz2
import gzip
import lzma
import os
import shutil
import tarfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import zstandard

from pcp_parquet.archive.files import opened
from pcp_parquet.archive.problems import ArchiveError, ProblemLog
from pcp_parquet.archive.wire import INDEX_ENTRY
from pcp_parquet.conversion.conversion import Scan, convert, load_all, matcher, survey
from pcp_parquet.tests.test_archive_damage import archive
from pcp_parquet.tests.test_archive_writer import (
    NULL,
    U32,
    Metric,
    Writer,
    all_types,
    pmid,
)
from pcp_parquet.tool.command import main

SECOND = 10**9
START = 1_700_000_000 * SECOND
COMPRESS = {
    ".xz": lzma.compress,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": zstandard.compress,
}


def rows(source: Path, tmp_path: Path, **selection: object) -> list[dict]:
    convert(source, tmp_path / "rows.parquet", **selection)
    return pq.read_table(tmp_path / "rows.parquet").to_pylist()


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("suffix", list(COMPRESS))
def test_members_may_be_compressed(tmp_path: Path, version: int, suffix: str) -> None:
    base = all_types(tmp_path / "a", version).close()
    plain = rows(base, tmp_path)
    for path in list(base.parent.iterdir()):
        path.with_name(path.name + suffix).write_bytes(
            COMPRESS[suffix](path.read_bytes())
        )
        path.unlink()
    assert rows(base, tmp_path) == plain
    assert len(plain) == 5 * 7 * 4


def test_every_way_to_name_an_archive(tmp_path: Path) -> None:
    base = all_types(tmp_path / "a", 3).close()
    expected = rows(base, tmp_path)
    with tarfile.open(tmp_path / "plain.tar", "w") as tar:
        tar.add(base.parent, arcname="some/folder")
    (tmp_path / "packed.tar.zst").write_bytes(
        zstandard.compress((tmp_path / "plain.tar").read_bytes())
    )
    with tarfile.open(tmp_path / "packed.tgz", "w:gz") as tar:
        tar.add(base.parent, arcname=".")
    names = [base.parent, base.with_name("test.0"), base.with_name("test.meta")]
    for name in [
        *names,
        tmp_path / "plain.tar",
        tmp_path / "packed.tar.zst",
        tmp_path / "packed.tgz",
    ]:
        assert rows(name, tmp_path) == expected, name


def test_several_archives_of_both_versions(tmp_path: Path) -> None:
    for number, version in enumerate((3, 2, 3)):
        writer = Writer(
            tmp_path / "all",
            f"part{number}",
            version,
            start=START + 100 * number * SECOND,
        )
        writer.metric(Metric(pmid(60, 0, 1), ("a.b",), U32))
        for second in range(3):
            writer.record(
                writer.start + second * SECOND,
                {pmid(60, 0, 1): {NULL: 10 * number + second}},
            )
        writer.close()
    summary = convert(tmp_path / "all", tmp_path / "out.parquet")
    table = pq.read_table(tmp_path / "out.parquet")
    assert table["value"].to_pylist() == [0, 1, 2, 10, 11, 12, 20, 21, 22]
    # Counters may start anew in each archive.
    assert summary.info.marks_ns == [START + 2 * SECOND + 1, START + 102 * SECOND + 1]
    assert [entry["version"] for entry in summary.info.archives] == [3, 2, 3]
    assert summary.metrics["a.b"].samples == 9


def test_a_changed_descriptor_is_said(tmp_path: Path) -> None:
    for number, kind in enumerate((U32, 1 + U32)):
        writer = Writer(
            tmp_path / "all", f"part{number}", start=START + number * SECOND
        )
        writer.metric(Metric(pmid(60, 0, 1), ("a.b",), kind))
        writer.record(writer.start, {pmid(60, 0, 1): {NULL: 1}})
        writer.close()
    summary = convert(tmp_path / "all", tmp_path / "out.parquet")
    assert [problem.kind for problem in summary.problems] == ["metadata changed"]


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (
            ["disk"],
            {
                f"disk.{kind}"
                for kind in ("i32", "u32", "i64", "u64", "float", "double", "string")
            },
        ),
        (["alias.u32", "one.string"], {"disk.u32", "one.string"}),
        (["*.u??"], {"one.u32", "one.u64", "disk.u32", "disk.u64"}),
        (["nothing"], set()),
    ],
)
def test_metric_patterns(tmp_path: Path, patterns: list[str], names: set[str]) -> None:
    base = all_types(tmp_path, 3).close()
    assert {row["metric"] for row in rows(base, tmp_path, metrics=patterns)} == names


def test_what_has_no_column_is_counted(tmp_path: Path) -> None:
    summary = convert(all_types(tmp_path, 3).close(), tmp_path / "out.parquet")
    blob = summary.metrics["blob"]
    assert (blob.samples, blob.not_converted, blob.errors) == (0, 2, {"-12350": 3})
    assert blob.help == "an aggregate\nthat has no column"
    assert [str(problem) for problem in summary.problems] == [
        "not converted: test: 2 values of blob (aggregate) have no column"
    ]
    assert not summary.damaged


def test_sorted_by_metric_instance_and_time(tmp_path: Path) -> None:
    found = rows(all_types(tmp_path, 2).close(), tmp_path)
    keys = [(row["metric"], row["instance"] or "", row["timestamp"]) for row in found]
    assert keys == sorted(keys)


@pytest.mark.parametrize("version", [2, 3])
def test_a_window_reads_only_its_part_of_the_volumes(
    tmp_path: Path, version: int
) -> None:
    base = archive(tmp_path, version, records=400)
    problems, offsets = ProblemLog(), []
    with opened(base, problems) as found:
        archives = load_all(found, base, problems)
        window = (START + 205 * SECOND, START + 214 * SECOND)
        scan = Scan(
            problems,
            matcher(None),
            *window,
            watcher=lambda block, where: offsets.append(block),
        )
        scan.run(archives)
    assert scan.metrics["disk.read"].samples == 30
    (block,) = offsets
    assert (block.times.min(), block.times.max()) == (
        START + 200 * SECOND,
        START + 219 * SECOND,
    )


LIES = {
    "reversed": lambda entries: entries[::-1],
    "offsets too late": lambda entries: [
        (*entry[:5], entry[5] + 9000) for entry in entries
    ],
    "offsets too early": lambda entries: [
        (*entry[:5], max(808, entry[5] - 500)) for entry in entries
    ],
    "between records": lambda entries: [
        (*entry[:5], entry[5] + 4) for entry in entries
    ],
    "beyond the file": lambda entries: [
        (*entry[:5], entry[5] + (1 << 63)) for entry in entries
    ],
    "another volume": lambda entries: [
        (*entry[:3], 7, *entry[4:]) for entry in entries
    ],
    "times too late": lambda entries: [
        (entry[0] + 20, *entry[1:]) for entry in entries
    ],
    "times too early": lambda entries: [
        (entry[0] - 20, *entry[1:]) for entry in entries
    ],
}


@pytest.mark.parametrize("lie", list(LIES))
def test_an_index_that_lies_loses_nothing(tmp_path: Path, lie: str) -> None:
    base = archive(tmp_path, records=100)
    window = {"start_ns": START + 35 * SECOND, "finish_ns": START + 44 * SECOND}
    expected = rows(base, tmp_path, **window)
    assert len(expected) == 30
    data = base.with_name("test.index").read_bytes()
    entry = INDEX_ENTRY[3]
    entries = LIES[lie](list(entry.iter_unpack(data[808:])))
    base.with_name("test.index").write_bytes(
        data[:808] + b"".join(entry.pack(*fields) for fields in entries)
    )
    assert rows(base, tmp_path, **window) == expected


def test_marks_are_kept(tmp_path: Path) -> None:
    writer = all_types(tmp_path, 3)
    writer.record(writer.start + 10 * SECOND, {})
    assert convert(writer.close(), tmp_path / "out.parquet").info.marks_ns == [
        START + 10 * SECOND
    ]


def test_a_survey_counts_what_a_conversion_writes(tmp_path: Path) -> None:
    base = all_types(tmp_path, 3).close()
    assert survey(base).metrics == convert(base, tmp_path / "out.parquet").metrics


def test_a_failed_conversion_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = archive(tmp_path)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Scan, "run", stop)
    with pytest.raises(KeyboardInterrupt):
        convert(base, tmp_path / "out.parquet")
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [
        ".0",
        ".index",
        ".meta",
    ]


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = archive(tmp_path)
    assert (
        main(
            [
                str(base),
                "-o",
                str(tmp_path / "out.parquet"),
                "--start",
                "2023-11-14T22:13:25Z",
            ]
        )
        == 0
    )
    assert pq.read_metadata(tmp_path / "out.parquet").num_rows == 3 * 35
    assert main([str(base), "--list"]) == 0
    assert "disk.read\tU32\tcounter\t-\t120\n" in capsys.readouterr().out
    assert main([str(base), "--check"]) == 0
    assert capsys.readouterr().out.startswith("whole: 120 values of 1 metrics")
    os.truncate(base.with_name("test.0"), 2000)
    assert main([str(base), "--check"]) == 1
    assert "truncated: test.0 at byte" in capsys.readouterr().out
    assert main([str(tmp_path / "nothing"), "--check"]) == 2
    shutil.rmtree(tmp_path / "gone", ignore_errors=True)
    assert main([str(base), "-o", str(tmp_path / "gone" / "out.parquet")]) == 2


def test_overlapping_archives_interrupt_nothing(tmp_path: Path) -> None:
    for number in range(2):
        writer = Writer(
            tmp_path / "all", f"part{number}", start=START + number * SECOND
        )
        writer.metric(Metric(pmid(60, number, 1), (f"a.b{number}",), U32))
        for second in range(5):
            writer.record(
                writer.start + second * SECOND, {pmid(60, number, 1): {NULL: second}}
            )
        writer.close()
    assert convert(tmp_path / "all", tmp_path / "out.parquet").info.marks_ns == []


def test_two_archives_of_one_host_and_time_with_one_metric_are_refused(
    tmp_path: Path,
) -> None:
    for number in range(2):
        start = START + number * SECOND
        writer = Writer(tmp_path / "all", f"part{number}", start=start)
        writer.metric(Metric(pmid(60, 0, 1), ("a.b",), U32))
        for second in range(5):
            writer.record(
                writer.start + second * SECOND, {pmid(60, 0, 1): {NULL: second}}
            )
        writer.close()
    with pytest.raises(ArchiveError, match="overlap by 3 s and both have"):
        convert(tmp_path / "all", tmp_path / "out.parquet")
    assert not (tmp_path / "out.parquet").exists()
    shutil.rmtree(tmp_path / "all")


def test_a_copy_of_an_archive_counts_once(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "all", "one")
    writer.metric(Metric(pmid(60, 0, 1), ("a.b",), U32))
    for second in range(5):
        writer.record(START + second * SECOND, {pmid(60, 0, 1): {NULL: second}})
    base = writer.close()
    for part in ("0", "meta", "index"):
        shutil.copy(base.with_name(f"one.{part}"), base.with_name(f"copy.{part}"))
    summary = convert(tmp_path / "all", tmp_path / "out.parquet")
    assert pq.read_metadata(tmp_path / "out.parquet").num_rows == 5
    assert [problem.kind for problem in summary.problems] == ["copy"]


def test_of_few_records_one_far_away_is_a_gap(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = Writer(tmp_path, "few")
    writer.metric(Metric(pmid(60, 0, 1), ("a.b",), U32))
    for second in (0, 5, 10, 15, 10**9):
        writer.record(START + second * SECOND, {pmid(60, 0, 1): {NULL: second}})
    assert main([str(writer.close()), "--check"]) == 0
    assert "gap: few: nothing recorded for 999999985.000 s" in capsys.readouterr().out


def test_zeros_that_were_never_written_are_passed_to_the_next_record(
    tmp_path: Path,
) -> None:
    for gap in range(40, 56, 4):
        writer = Writer(tmp_path / str(gap), "zeros")
        writer.metric(Metric(pmid(60, 0, 1), ("a.b",), U32))
        writer.record(START, {pmid(60, 0, 1): {NULL: 1}})
        head = len(writer._volumes[0])
        writer.record(START + SECOND, {pmid(60, 0, 1): {NULL: 2}})
        base = writer.close()
        volume = base.with_name("zeros.0")
        content = volume.read_bytes()
        volume.write_bytes(content[:head] + bytes(gap) + content[head:])
        summary = survey(base)
        assert (summary.rows, summary.damaged) == (2, True)
        volume.write_bytes(content + bytes(2**24))
        summary = survey(base)
        assert (summary.rows, summary.damaged) == (2, True)
