"""The command pcp-parquet: what it says, its exit codes, and that a failure leaves nothing behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

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


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return all_types(tmp_path / "archive", 3).close()


def said(capsys: pytest.CaptureFixture[str]) -> str:
    lines = capsys.readouterr().err.strip().splitlines()
    return lines[-1] if lines else ""


def refused(*arguments: object) -> int:
    try:
        return main([str(argument) for argument in arguments])
    except SystemExit as end:
        return int(str(end.code))


def test_the_long_form_in_a_window(base: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.parquet"
    assert main([str(base), "one.u32", "-o", str(output), "-S", "1s", "-T", "-1s"]) == 0
    assert pq.read_table(output)["value"].to_pylist() == [
        4_000_000_000.0 + step for step in (1, 2, 3)
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "archive",
        "out.parquet",
    ]


def test_the_archive_with_or_without_its_option(
    base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (
        ["-a", str(base), "--list", "one"],
        [str(base), "--list", "--metric", "one"],
    ):
        assert main(words) == 0
        assert len(capsys.readouterr().out.splitlines()) == 7


@pytest.mark.parametrize("wide", [["--wide"], []])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mem.nowhere"], "no metric 'mem.nowhere'"),
        (["-T", "@2001-01-01"], "before the start"),
        (["-S", "100d"], "after the archive's end"),
        (["-S", "soon"], "-S soon"),
    ],
)
def test_what_cannot_be_done_leaves_nothing(
    base: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    wide: list[str],
    arguments: list[str],
    message: str,
) -> None:
    assert refused("-a", base, "-o", tmp_path / "out", *wide, *arguments) == 2
    assert message in said(capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["archive"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--wide", "-t", "0"], "more than 0"),
        (["--wide", "-s", "x"], "not a number of samples"),
        (["--wide", "one.u32,,,parsec"], "is not a unit"),
        (["--wide", "-i", "("], "not a regular expression"),
        (["-t", "5"], "--interval needs --wide"),
        (["--wide", "-z", "-Z", "UTC"], "exclude each other"),
        (["--list"], "only one"),
    ],
)
def test_wrong_options(
    base: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    assert refused("-a", base, "-o", tmp_path / "out", *arguments) == 2
    assert message in said(capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["archive"]


def test_outputs_that_cannot_be_written(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    for arguments, message in (
        (["-o", tmp_path / "nowhere" / "out"], "there is no folder"),
        (["-o", tmp_path / "folder"], "is not a file"),
        (["-o", tmp_path / "fifo"], "is not a file"),
        (["-o", tmp_path / "folder", "--wide"], "exists already"),
    ):
        assert refused("-a", base, *arguments) == 2
        assert message in said(capsys)


def test_an_existing_file_stays_if_the_conversion_fails(
    base: Path, tmp_path: Path
) -> None:
    (tmp_path / "out.parquet").write_text("before")
    for path in base.parent.glob("*.meta"):
        path.write_bytes(b"no archive any more" * 10)
    for path in base.parent.glob("*.[0-9]"):
        path.write_bytes(b"no archive any more" * 10)
    for path in base.parent.glob("*.index"):
        path.write_bytes(b"no archive any more" * 10)
    assert refused("-a", base, "-o", tmp_path / "out.parquet") == 2
    assert (tmp_path / "out.parquet").read_text() == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "archive",
        "out.parquet",
    ]


@pytest.mark.parametrize("wide", [["--wide"], []])
def test_a_signal_to_end_leaves_nothing(
    base: Path, tmp_path: Path, wide: list[str]
) -> None:
    program = """
import os, runpy, shutil, signal
from pcp_parquet.conversion.table import LongWriter
shutil.move = LongWriter.finish = lambda *_: os.kill(os.getpid(), signal.SIGTERM)
runpy.run_module("pcp_parquet", run_name="__main__")
"""
    command = [
        sys.executable,
        "-c",
        program,
        str(base),
        "-o",
        str(tmp_path / "out"),
        *wide,
    ]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert (
        subprocess.run(command, check=False, env=env).returncode == 128 + signal.SIGTERM
    )
    assert [path.name for path in tmp_path.iterdir()] == ["archive"]


def test_what_is_no_archive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert refused("-a", tmp_path / "fifo", "--list") == 2
    assert "not a regular file" in said(capsys)
    for part in ("meta", "0", "index"):
        (tmp_path / f"old.{part}").write_bytes(
            b"\0\0\0\x84\x50\x05\x26\x01" + bytes(124)
        )
    assert refused("-a", tmp_path / "old", "--check") == 2
    assert "an archive of version 1" in said(capsys)
    assert refused("--list") == 2
    assert "no archive" in said(capsys)


def test_several_hosts_have_no_wide_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for host in ("one", "two"):
        writer = Writer(tmp_path / host, host=host)
        writer.metric(Metric(pmid(60, 0, 0), ("a",), U32))
        writer.record(writer.start, {pmid(60, 0, 0): {NULL: 1}})
        writer.close()
    assert (
        refused(
            "-a",
            f"{tmp_path}/one,{tmp_path}/two",
            "--wide",
            "-r",
            "-o",
            tmp_path / "out",
        )
        == 2
    )
    assert "several hosts (one, two)" in said(capsys)
    assert (
        refused("-a", f"{tmp_path}/one,{tmp_path}/two", "-o", tmp_path / "out.parquet")
        == 0
    )
    assert pq.read_table(tmp_path / "out.parquet").num_rows == 2


def test_damage_is_said_and_has_a_code(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    volume = base.with_name(base.name + ".0")
    volume.write_bytes(volume.read_bytes()[:-10])
    assert refused("-a", base, "--wide", "-r", "-o", tmp_path / "out") == 1
    assert "truncated" in capsys.readouterr().err
    assert pq.read_table(tmp_path / "out").num_rows == 4


def test_help_has_examples_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("-h", "-?", "--help"):
        assert refused(option) == 0
        text = capsys.readouterr().out
        assert all(
            word in text
            for word in ("examples:", "exit codes:", "left out", "@10:00", "--wide")
        )
