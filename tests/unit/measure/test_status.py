"""The status of a run's job: what it leaves however it ends, and what others take it for."""

import errno
import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.job_status import ELSEWHERE, HERE, killed_process, leave_status
from tests.support.paths import REPOSITORY, SCRIPTS

from kveval.host.errors import Failure
from kveval.host.sessions import ProcessIdentity
from kveval.measure import status as module
from kveval.measure.progress import Progress
from kveval.measure.status import (
    BEAT_S,
    NOT_STARTED,
    State,
    Status,
    StatusFile,
    absence_of,
    absences,
    common_failure,
    keep_status,
    read_status,
    slurm_end_s,
    status_path,
)

LABEL = "Qwen3-0.6B/no-offload/0 run 1"
LINE = "4 streams (level 2 of 3) · this run 1:00 left"
# A job that says where it is, and is then busy without a word.
JOB = """
import sys, time
from pathlib import Path
from kveval.measure.progress import Progress
from kveval.measure.status import keep_status

log = Path(sys.argv[1])
with keep_status(log) as status:
    progress = Progress("run 1", 60.0, log, status=status)
    progress.note(state="measuring", phase="levels", level=4)
    progress.say(sys.argv[2])
    print(flush=True)
    time.sleep(600)
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "run-1.log"


def text_of(log: Path, **options: bool) -> str | None:
    absence = absence_of(log, **options)
    return None if absence is None else str(absence)


def job(log: Path) -> "subprocess.Popen[bytes]":
    """Start a job and wait until it has said LINE."""
    running = subprocess.Popen(
        [sys.executable, "-c", JOB, str(log), LINE],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=SCRIPTS,
    )
    assert running.stdout is not None
    running.stdout.readline()
    return running


# What a job leaves


def test_a_job_tells_where_it_is_and_how_it_ends(log: Path) -> None:
    with keep_status(log) as file:
        progress = Progress(LABEL, 60.0, log, redact=str.upper, status=file)
        status, _ = read_status(status_path(log))
        assert (status.state, status.process) == ("starting", HERE)
        progress.note(state="measuring", phase="levels", level=4, files="/scratch")
        progress.say("4  streams")
        status, _ = read_status(status_path(log))
        assert (status.phase, status.level, status.line, status.files) == (
            "levels",
            4,
            "4 STREAMS",
            "/scratch",
        )
        progress.fail("no room\non the disk", "disk_full")
    status, _ = read_status(status_path(log))
    assert (status.state, status.code, status.message, status.level) == (
        "failed",
        "disk_full",
        "NO ROOM ON THE DISK",
        4,
    )
    assert "FAILED: NO ROOM ON THE DISK" in log.read_text()
    assert sorted(path.name for path in log.parent.iterdir()) == [
        "run-1.log",
        "run-1.status.json",
    ]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Failure("no memory", code="oom"), ("failed", "oom", "Failure: no memory")),
        (OSError("gone"), ("failed", "os_error", "OSError: gone")),
        (SystemExit("SIGTERM"), ("stopped", "system_exit", "stopped by SIGTERM")),
    ],
)
def test_what_ends_a_job_unexpectedly_is_in_its_status(
    log: Path, error: BaseException, expected: tuple[str, str, str]
) -> None:
    with pytest.raises(type(error)), keep_status(log):
        raise error
    status, _ = read_status(status_path(log))
    assert (status.state, status.code, status.message) == expected


def test_the_heart_beats_while_the_job_is_busy_and_not_after_its_end(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BEAT_S", 0.02)
    with keep_status(log):
        beats = set()
        deadline = time.monotonic() + 30
        while len(beats) < 4:
            beats.add(read_status(status_path(log))[0].beat)
            assert time.monotonic() < deadline
    last = status_path(log).read_bytes()
    assert "heartbeat" not in {thread.name for thread in threading.enumerate()}
    time.sleep(0.1)
    assert status_path(log).read_bytes() == last


def test_readers_never_see_half_a_status(log: Path) -> None:
    """Beats and words of the job are written by different threads."""
    with keep_status(log) as file:
        over = threading.Event()

        def say() -> None:
            while not over.is_set():
                file.update(line="x" * 9000)
                file.update(line="")

        writer = threading.Thread(target=say)
        writer.start()
        try:
            for _ in range(50):
                assert read_status(status_path(log))[0].line in ("", "x" * 9000)
        finally:
            over.set()
            writer.join()


def test_on_a_full_disk_the_status_is_written_over_the_old_one(
    log: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_room(path: Path, content: bytes) -> int:
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    with keep_status(log) as file:
        file.update(line="a long line " * 50)
        with monkeypatch.context() as full:
            full.setattr(Path, "write_bytes", no_room)
            assert file.update(state="failed", message="no room")
    assert text_of(log) == "failed: no room"
    assert [path.name for path in log.parent.iterdir()] == ["run-1.status.json"]
    assert capsys.readouterr().err == ""


def test_a_status_that_cannot_be_written_is_said_once_and_leaves_no_older_one(
    log: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    leave_status(log, state="failed", message="an earlier job's reason")

    def refuse(path: Path, content: bytes) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(module, "_write", refuse)
    with keep_status(log) as file:
        assert not file.update(line="still at work")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        f"{status_path(log)} cannot be written (Read-only file system): "
    )
    assert absence_of(log) is None


def test_a_line_is_said_even_when_the_log_cannot_be_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """/dev/full has no room, like a full disk."""
    Progress(LABEL, 60.0, Path("/dev/full")).say("FAILED: two\nlines")
    assert capsys.readouterr().err.endswith("FAILED: two lines\n")


TEXTS = st.text(st.characters(exclude_categories=()))


@given(
    state=st.sampled_from(
        ["starting", "measuring", "adopted", "measured", "failed", "stopped"]
    ),
    level=st.none() | st.integers(0, 2**40),
    line=TEXTS,
    message=TEXTS,
    files=TEXTS,
)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, **values: Any
) -> None:
    """Whatever its words are; what UTF-8 cannot encode becomes a question mark."""
    path = tmp_path_factory.getbasetemp() / "property.status.json"
    file = StatusFile(path)
    assert file.update(**values)
    status, _ = read_status(path)
    assert status == file.status
    assert status.state == values["state"]
    assert status.line == values["line"].encode(errors="replace").decode()


@given(content=st.binary() | st.text().map(str.encode))
def test_whatever_a_file_holds_there_is_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    log = tmp_path_factory.getbasetemp() / "any.log"
    status_path(log).write_bytes(content)
    text = text_of(log)
    assert text is not None
    assert text.startswith("its status cannot be read (")
    assert text.endswith(f"): see {log}")


# What others take it for


@pytest.mark.parametrize("state", ["adopted", "measured"])
def test_a_job_with_a_result_is_no_reason_for_an_absent_run(
    log: Path, state: str
) -> None:
    leave_status(log, state=state, process=killed_process())
    assert absence_of(log) is None


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("failed", "failed: no room · on the disk"),
        ("stopped", "no room · on the disk"),
    ],
)
@pytest.mark.parametrize("process", [HERE, ELSEWHERE])
def test_the_end_that_a_job_tells_of_is_final(
    log: Path, state: str, expected: str, process: ProcessIdentity
) -> None:
    leave_status(
        log,
        state=state,
        message="no room · on the disk",
        process=process,
        silent_s=9000,
    )
    assert text_of(log) == expected


def test_a_job_runs_until_it_is_killed_and_is_dead_at_once(log: Path) -> None:
    """Also where its log tells of an earlier attempt."""
    log.parent.mkdir(parents=True)
    log.write_text("12:00:00 run 1 · FAILED: no memory\n")
    running = job(log)
    try:
        assert text_of(log) == f"running: {LINE}"
    finally:
        running.send_signal(signal.SIGKILL)
        running.wait()
    assert text_of(log) == f"failed: its job was killed; its last line was: {LINE}"


def test_a_stopped_process_is_one_that_lives(log: Path) -> None:
    running = job(log)
    try:
        running.send_signal(signal.SIGSTOP)
        os.utime(status_path(log), (time.time() - 75,) * 2)
        assert text_of(log) == (
            f"running: {LINE}; its process is there, but has not written its status for 75 s"
        )
    finally:
        running.kill()
        running.wait()


def test_another_process_with_the_number_of_a_dead_job_is_not_taken_for_it(
    log: Path,
) -> None:
    """Nor is one with the same number of an earlier boot, once its beats are missing."""
    leave_status(log, process=replace(HERE, start=HERE.start - 1), line=LINE)
    assert text_of(log) == f"failed: its job was killed; its last line was: {LINE}"
    rebooted = replace(HERE, boot="an earlier boot")
    leave_status(log, process=rebooted, line=LINE, silent_s=100)
    assert "no sign of life" in str(absence_of(log))


@pytest.mark.parametrize(
    "process",
    [
        ELSEWHERE,
        replace(HERE, pid_namespace="pid:[1]", pid=1, start=1),
        replace(HERE, boot="", start=1),
    ],
    ids=["another host", "a container of this host", "a boot that is not known"],
)
def test_a_job_that_cannot_be_seen_runs_until_it_has_missed_three_beats(
    log: Path, process: ProcessIdentity
) -> None:
    leave_status(log, process=process, line=LINE, silent_s=2.9 * BEAT_S)
    assert text_of(log) == f"running: {LINE}"
    leave_status(log, process=process, line=LINE, silent_s=3.6 * BEAT_S)
    text = str(absence_of(log))
    assert text.startswith(
        f"failed: its job on {process.host} has given no sign of life since 20"
    )
    assert text.endswith(f" UTC; its last line was: {LINE}")


def test_a_process_that_proc_hides_is_judged_by_its_beats(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As /proc does other users' where it is mounted with hidepid."""

    def forbid(pid: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr("kveval.host.sessions.process_start", lambda pid: None)
    monkeypatch.setattr("kveval.host.sessions.os.kill", forbid)
    leave_status(log, line=LINE)
    assert text_of(log) == f"running: {LINE}"
    leave_status(log, line=LINE, silent_s=100)
    assert "no sign of life" in str(absence_of(log))


@pytest.mark.parametrize("ahead_s", [-3600.0, 3600.0])
def test_beats_are_counted_by_the_clock_of_the_file_system(
    log: Path, monkeypatch: pytest.MonkeyPatch, ahead_s: float
) -> None:
    leave_status(log, process=ELSEWHERE, line=LINE, silent_s=-ahead_s + 5)
    monkeypatch.setattr(
        module, "fresh_file_time_s", lambda folder: time.time() + ahead_s
    )
    assert text_of(log) == f"running: {LINE}"
    leave_status(log, process=ELSEWHERE, line=LINE, silent_s=-ahead_s + 100)
    assert "no sign of life" in str(absence_of(log))


def test_where_nothing_can_be_written_the_clock_of_this_host_is_named(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(folder: Path) -> float:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(module, "fresh_file_time_s", refuse)
    leave_status(log, process=ELSEWHERE, line=LINE, silent_s=100)
    assert " UTC by this host's clock; " in str(absence_of(log))


def test_after_the_end_of_all_jobs_no_beat_is_waited_for(log: Path) -> None:
    """But a process that can be seen is there all the same."""
    leave_status(log, process=ELSEWHERE, line=LINE)
    assert text_of(log, jobs_ended=True) == (
        f"failed: its job was killed; its last line was: {LINE}"
    )
    leave_status(log, line=LINE)
    assert text_of(log, jobs_ended=True) == f"running: {LINE}"


def test_a_log_of_an_earlier_version_has_no_status(log: Path) -> None:
    assert absence_of(log) is None
    log.parent.mkdir(parents=True)
    log.write_text("12:00:00 run 1 · FAILED: no memory\n")
    assert text_of(log) == f"no status was left: see {log}"


def lying(name: str, value: object) -> bytes:
    status = Status(process=HERE, began="", beat="")
    return json.dumps(msgspec.to_builtins(status) | {name: value}).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"null",
        b'{"schema": 1, "state": "measuring", "pro',
        b'{"line": "\xff"}',
        b'{"other": ' + b"[" * 100_000,
        lying("schema", 2),
        lying("state", "done"),
        lying("process", 4711),
        lying("level", "four"),
    ],
)
def test_a_status_that_is_none_gives_one_sentence(log: Path, content: bytes) -> None:
    log.parent.mkdir(parents=True)
    status_path(log).write_bytes(content)
    text = text_of(log)
    assert text is not None
    assert text.startswith("its status cannot be read (")
    assert text.endswith(f"): see {log}")
    assert "\n" not in text


@pytest.mark.parametrize("pid", [0, -1, 2**70 // 2**7, 2**40])
def test_a_number_that_no_process_can_have_is_that_of_none(log: Path, pid: int) -> None:
    leave_status(log, process=replace(HERE, pid=pid), line=LINE)
    assert str(absence_of(log)).startswith("failed: its job was killed")


def test_the_documentation_has_every_key() -> None:
    page = (REPOSITORY / "docs" / "faults.md").read_text(encoding="utf-8")
    section = page.split("### The status of a job\n")[1].split("\n#")[0]
    keys = re.findall(r"^\| (`.+?`) \|", section, re.MULTILINE)
    named = [name for cell in keys for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(named) == sorted(Status.__struct_fields__)
    described = re.findall(r"`(\w+)`", section)
    assert set(vars(HERE)) <= set(described)
    assert set(get_args(State)) <= set(described)


def test_only_what_was_tried_and_is_not_there_has_a_reason(tmp_path: Path) -> None:
    results, logs = tmp_path / "results", tmp_path / "logs"
    names = ("good", "bad", "stopped", "old", "runs", "never")
    pointers = [
        results / "M" / name / "0" / "run-1" / "measurement.json" for name in names
    ]
    pointers[0].parent.mkdir(parents=True)
    pointers[0].touch()
    by_name = {
        name: logs / "benchmark" / "M" / name / "0" / "run-1.log" for name in names
    }
    for name in ("good", "bad"):
        leave_status(by_name[name], state="failed", message="it broke")
    leave_status(by_name["stopped"], state="stopped", message="stopped by SIGTERM")
    leave_status(by_name["runs"], line=LINE)
    by_name["old"].parent.mkdir(parents=True)
    by_name["old"].touch()
    found = absences(pointers, results, logs)
    assert {run: (absence.state, absence.reason) for run, absence in found.items()} == {
        "M/bad/0/run-1": ("failed", "it broke"),
        "M/stopped/0/run-1": ("stopped", "stopped by SIGTERM"),
        "M/old/0/run-1": ("unknown", "no status was left"),
        "M/runs/0/run-1": ("running", LINE),
    }
    assert {absence.log for absence in found.values()} == {
        by_name[name] for name in ("bad", "stopped", "old", "runs")
    }
    assert absences(pointers, results, logs, since=time.time() + 1) == {}


RUNS = [f"m/{arm}/0/run-{number}" for number in (1, 2, 3) for arm in ("a", "b")]
DIED = {"state": "failed", "code": "server_died", "message": "no module named x"}


def left_alike(
    folder: Path, statuses: dict[str, dict[str, Any]], own: str
) -> Status | None:
    for run, values in statuses.items():
        leave_status(module.job_log(folder / "logs", Path(run)), **values)
    pointers = [folder / "results" / run / "measurement.json" for run in RUNS]
    pointer = folder / "results" / own / "measurement.json"
    since = time.time() - 60
    return common_failure(pointer, pointers, folder / "results", folder / "logs", since)


@pytest.mark.parametrize(
    ("statuses", "alike"),
    [
        (dict.fromkeys(RUNS[:3], DIED), True),
        (dict.fromkeys(RUNS[:2], DIED), False),
        (dict.fromkeys((RUNS[0], RUNS[2], RUNS[4]), DIED), False),
        ({**dict.fromkeys(RUNS[:3], DIED), RUNS[3]: {"state": "measured"}}, False),
        ({**dict.fromkeys(RUNS[:3], DIED), RUNS[3]: {"state": "measuring"}}, False),
        ({**dict.fromkeys(RUNS[:3], DIED), RUNS[3]: {"state": "stopped"}}, False),
        ({**dict.fromkeys(RUNS[:2], DIED), RUNS[2]: {**DIED, "code": "hung"}}, False),
        (
            {**dict.fromkeys(RUNS[:3], DIED), RUNS[3]: {**DIED, "code": NOT_STARTED}},
            True,
        ),
    ],
)
def test_nothing_can_be_expected_once_every_cell_failed_alike(
    tmp_path: Path, statuses: dict[str, dict[str, Any]], alike: bool
) -> None:
    own = {RUNS[5]: {"state": "starting"}}
    status = left_alike(tmp_path, statuses | own, RUNS[5])
    assert (status is not None) is alike
    if status is not None:
        assert status.message == DIED["message"]


def test_failures_of_an_earlier_snakemake_are_no_reason(tmp_path: Path) -> None:
    old = dict.fromkeys(RUNS[:3], DIED | {"silent_s": 600.0})
    assert left_alike(tmp_path, old, RUNS[5]) is None


@pytest.mark.parametrize(
    ("environment", "shown", "end_s"),
    [
        ({}, "", math.inf),
        ({"SLURM_JOB_END_TIME": "1700000000"}, "", 1_700_000_000.0),
        (
            {"SLURM_JOB_ID": "7"},
            "StartTime=Unknown EndTime=2026-01-01T00:00:00 X=1",
            None,
        ),
        ({"SLURM_JOB_ID": "7"}, "EndTime=Unknown Deadline=N/A", math.inf),
        ({"SLURM_JOB_ID": "7"}, "", math.inf),
    ],
)
def test_when_slurm_ends_a_job_is_known_where_it_says_so(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    shown: str,
    end_s: float | None,
) -> None:
    (tmp_path / "scontrol").write_text(f"#!/bin/sh\necho '{shown}'\n")
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for name in ("SLURM_JOB_ID", "SLURM_JOB_END_TIME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    # scontrol's times are the host's own.
    local = datetime(2026, 1, 1).timestamp()
    assert slurm_end_s() == (local if end_s is None else end_s)
