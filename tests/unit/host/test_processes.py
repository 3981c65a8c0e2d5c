"""Whatever way a run ends, nothing it started is left."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path

import psutil
import pytest
from tests.support.job_status import ELSEWHERE, HERE, killed_process
from tests.support.paths import SCRIPTS

from kveval.host.processes import (
    WORKFLOW_VARIABLE,
    Terminated,
    announce_workflow,
    signals_deferred,
    stop_signals_raise,
    stop_when_orphaned,
    supervisor,
    workflow_process,
)
from kveval.host.registry import (
    Registry,
    TemporaryFolder,
    remove_leftovers,
    remove_things,
)
from kveval.host.sessions import Session

# A leader that ignores SIGTERM and has a child of its own: what a server with worker processes looks like at its worst.
STUBBORN = "trap '' TERM; sleep 300 & echo $! > child; while true; do sleep 1; done"


def wait_for(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.05)


def gone(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_supervised_process_and_its_children_are_gone_after_the_context(tmp_path):
    with supervisor(tmp_path / "registry.json") as processes:
        with processes.supervised(
            "stubborn",
            ["bash", "-c", STUBBORN],
            env=os.environ,
            log=tmp_path / "log",
            cwd=tmp_path,
            grace_s=0.3,
        ) as process:
            wait_for((tmp_path / "child").exists)
            wait_for(lambda: (tmp_path / "child").read_text().strip() != "")
            child = int((tmp_path / "child").read_text())
            assert not gone(child)
        assert gone(process.pid)
        assert gone(child)
    assert not (tmp_path / "registry.json").exists()


def test_supervised_process_is_gone_after_an_exception(tmp_path):
    pid = None
    with (
        pytest.raises(ValueError, match="body"),
        supervisor(tmp_path / "registry.json") as processes,
        processes.supervised(
            "sleep", ["sleep", "300"], env=os.environ, log=tmp_path / "log"
        ) as process,
    ):
        pid = process.pid
        raise ValueError("body")
    assert gone(pid)


def run_job(tmp_path, body):
    """Start a Python process that supervises `sleep 300` and then runs `body`; return it and the sleeper's pid."""
    program = textwrap.dedent(
        f"""
        import os, time
        from pathlib import Path
        from kveval.host.processes import *
        folder = Path({str(tmp_path)!r})
        with stop_signals_raise(), supervisor(folder / "registry.json") as processes:
            with processes.supervised("sleep", ["sleep", "300"], env=os.environ, log=folder / "log") as process:
                (folder / "pid").write_text(str(process.pid))
                {body}
        """
    )
    job = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(SCRIPTS)},
        stderr=subprocess.DEVNULL,
    )
    wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    return job, int((tmp_path / "pid").read_text())


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL]
)
def test_nothing_is_left_when_the_job_gets_a_signal(tmp_path, number):
    job, sleeper = run_job(tmp_path, "time.sleep(100)")
    assert not gone(sleeper)
    job.send_signal(number)
    job.wait(timeout=20)
    wait_for(lambda: gone(sleeper))


def test_leftovers_of_a_killed_run_are_found_in_the_registry(tmp_path):
    left = subprocess.Popen(["sleep", "300"], start_new_session=True)
    registry = Registry(tmp_path / "registry.json")
    registry.add(Session.led_by(left.pid, "vllm"))
    assert remove_leftovers(tmp_path / "registry.json") == [
        f"vllm (session {left.pid})"
    ]
    left.wait(timeout=5)
    assert remove_leftovers(tmp_path / "registry.json") == []


def test_a_temporary_folder_is_short_and_gone_afterwards(tmp_path):
    with (
        supervisor(tmp_path / "registry.json") as processes,
        processes.temporary_folder() as folder,
    ):
        (folder / "socket").touch()
        assert len(str(folder)) < 60
    assert not folder.exists()


def test_a_temporary_folder_of_a_killed_run_is_removed_and_nothing_else(tmp_path):
    left, other = tmp_path / "kveval-run-1", tmp_path / "precious"
    left.mkdir()
    other.mkdir()
    registry = Registry(tmp_path / "registry.json")
    registry.add(TemporaryFolder(str(left)))
    registry.add(TemporaryFolder(str(other)))
    assert remove_leftovers(tmp_path / "registry.json") == [str(left)]
    assert other.exists()
    assert not left.exists()


def test_semaphores_of_killed_processes_are_not_left_in_shared_memory(tmp_path):
    program = (
        "import multiprocessing, signal, time, pathlib\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "context = multiprocessing.get_context('spawn')\n"
        "lock = context.Lock()\n"
        "from multiprocessing import shared_memory\n"
        "memory = shared_memory.SharedMemory(create=True, size=100)\n"
        f"pathlib.Path({str(tmp_path)!r}, 'ready').write_text(memory.name)\n"
        "time.sleep(100)\n"
    )
    with (
        supervisor(tmp_path / "registry.json") as processes,
        processes.supervised(
            "holder",
            [sys.executable, "-c", program],
            env=os.environ,
            log=tmp_path / "log",
            grace_s=0.2,
        ),
    ):
        wait_for(
            lambda: (tmp_path / "ready").exists() and (tmp_path / "ready").read_text()
        )
        memory = Path("/dev/shm", (tmp_path / "ready").read_text())
        assert memory.exists()
    assert not memory.exists()


def segment_of(process: "subprocess.Popen[bytes]") -> Path:
    """The segment that the program below has mapped, once it has."""
    path = Path(f"/dev/shm/kveval_test_{process.pid}")
    wait_for(
        lambda: (
            path.exists() and str(path) in Path(f"/proc/{process.pid}/maps").read_text()
        )
    )
    return path


def maps_a_segment() -> list[str]:
    """A program that maps a segment of shared memory, ignores SIGTERM and removes nothing, as LMCache's server."""
    program = (
        "import mmap, os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "file = os.open(f'/dev/shm/kveval_test_{os.getpid()}', os.O_RDWR | os.O_CREAT)\n"
        "os.truncate(file, 100)\n"
        "memory = mmap.mmap(file, 100)\n"
        "time.sleep(100)\n"
    )
    return [sys.executable, "-c", program]


def test_a_segment_that_nobody_had_noted_is_removed_with_its_process(tmp_path):
    with (
        supervisor(tmp_path / "registry.json") as processes,
        processes.supervised(
            "holder",
            maps_a_segment(),
            env=os.environ,
            log=tmp_path / "log",
            grace_s=0.2,
        ) as process,
    ):
        segment = segment_of(process)
    assert not segment.exists()


def test_a_segment_that_nobody_had_noted_is_removed_with_a_killed_job(tmp_path):
    registry = Registry(tmp_path / "registry.json")
    process = subprocess.Popen(maps_a_segment(), start_new_session=True)
    registry.add(Session.led_by(process.pid, "holder"))
    segment = segment_of(process)
    reaper = threading.Thread(target=process.wait)
    reaper.start()
    remove_things(registry.sessions(), grace_s=0.2)
    reaper.join()
    assert not segment.exists()


def test_a_reused_session_number_is_left_alone(tmp_path):
    other = subprocess.Popen(["sleep", "300"], start_new_session=True)
    try:
        noted = Session.led_by(other.pid, "vllm")
        for session in (
            # Noted long after this process started, long before it, and under another boot: never the same one.
            replace(noted, started=noted.started + 3600),
            replace(noted, started=noted.started - 3600),
            replace(noted, boot="another"),
        ):
            assert session.members() == []
            session.kill()
            assert other.poll() is None
        assert [member.pid for member in noted.members()] == [other.pid]
    finally:
        other.kill()
        other.wait()


def test_a_damaged_registry_is_no_obstacle(tmp_path):
    (tmp_path / "registry.json").write_text('[{"sid":')
    assert remove_leftovers(tmp_path / "registry.json") == []
    assert not (tmp_path / "registry.json").exists()


def test_a_signal_during_teardown_waits_for_its_end():
    reached = []
    with pytest.raises(Terminated), stop_signals_raise():
        with signals_deferred():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.05)
            reached.append("end of teardown")
        reached.append("not here")
    assert reached == ["end of teardown"]


def test_the_job_stops_when_the_snakemake_above_it_is_killed(tmp_path):
    script = tmp_path / "snakemake"
    script.write_text(
        textwrap.dedent(
            f"""
            import subprocess, sys, time
            sys.path.insert(0, {str(SCRIPTS)!r})
            from kveval.host.processes import announce_workflow
            announce_workflow()
            child = subprocess.Popen(["bash", "-c", "{sys.executable} {tmp_path}/job.py; true"])
            time.sleep(100)
            """
        )
    )
    (tmp_path / "job.py").write_text(
        textwrap.dedent(
            f"""
            import sys, time, pathlib
            sys.path.insert(0, {str(SCRIPTS)!r})
            from kveval.host.processes import *
            folder = pathlib.Path({str(tmp_path)!r})
            try:
                with stop_signals_raise(), stop_when_orphaned(poll_s=0.1):
                    (folder / "ready").touch()
                    time.sleep(100)
            except Terminated as stopped:
                (folder / "stopped").write_text(str(stopped))
            """
        )
    )
    workflow = subprocess.Popen([sys.executable, str(script)])
    wait_for((tmp_path / "ready").exists)
    workflow.kill()
    workflow.wait()
    wait_for(
        lambda: (
            (tmp_path / "stopped").exists()
            and (tmp_path / "stopped").read_text() == "SIGTERM"
        )
    )


def test_a_job_whose_snakemake_was_killed_while_it_started_does_not_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(WORKFLOW_VARIABLE, json.dumps(asdict(killed_process())))
    with pytest.raises(Terminated, match="SIGTERM"), stop_when_orphaned():
        pytest.fail("it began")


def test_a_job_belongs_to_the_snakemake_that_announced_itself_on_this_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(WORKFLOW_VARIABLE, raising=False)
    assert workflow_process() is None
    monkeypatch.setenv(WORKFLOW_VARIABLE, "")
    announce_workflow()
    assert workflow_process() == HERE
    with stop_when_orphaned():
        pass
    monkeypatch.setenv(WORKFLOW_VARIABLE, json.dumps(asdict(ELSEWHERE)))
    assert workflow_process() is None
    with stop_when_orphaned():
        pass
