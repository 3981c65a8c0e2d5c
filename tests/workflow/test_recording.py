"""Recordings with the real PCP of this machine: what they hold, and what is left of them however they end."""

import contextlib
import http.server
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard
from tests.support.fault_chain import needs_pcp

from kveval.host.processes import supervisor
from kveval.host.registry import remove_leftovers
from kveval.host.sessions import Session
from kveval.pcp import installation as recording_pcp
from kveval.pcp import recording as module
from kveval.pcp.archive_tools import archive_files, pack_archives
from kveval.pcp.installation import RecordingError
from kveval.pcp.recording import Recording, RecordingSettings
from kveval.pcp.verification import verify_recording

pytestmark = [pytest.mark.workflow, needs_pcp]
RUNNING = "openmetrics.vllm.vllm.num_requests_running"
PAGE = b"""# HELP vllm:num_requests_running Requests in the batch
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 3
# TYPE vllm:e2e_request_latency_seconds histogram
vllm:e2e_request_latency_seconds_bucket{engine="0",le="0.5",model_name="tiny"} 1
vllm:e2e_request_latency_seconds_bucket{engine="0",le="+Inf",model_name="tiny"} 2
vllm:e2e_request_latency_seconds_count{engine="0",model_name="tiny"} 2
vllm:e2e_request_latency_seconds_sum{engine="0",model_name="tiny"} 1.5
"""


def processes_naming(path: Path) -> list[str]:
    """Command lines that name ``path``: everything that a recording starts does, but the guard."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (
                    (entry / "cmdline")
                    .read_bytes()
                    .replace(b"\0", b" ")
                    .decode(errors="replace")
                )
            except OSError:
                continue
            if str(path) in line:
                found.append(f"{entry.name}: {line}")
    return found


def registry_of(directory: Path) -> Path:
    return directory.parent / f"{directory.name}-registry.json"


@contextlib.contextmanager
def recording(
    directory: Path, settings: RecordingSettings, **limits: float
) -> Iterator[Recording]:
    with (
        supervisor(registry_of(directory)) as processes,
        module.recording(directory, settings, processes, **limits) as running_recording,
    ):
        yield running_recording


def group_of(directory: Path) -> list[int]:
    noted = json.loads(registry_of(directory).read_text())
    sessions = [Session(**entry) for entry in noted if "sid" in entry]
    return [member.pid for session in sessions for member in session.members()]


def running(pids: list[int]) -> list[int]:
    alive = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z":
            alive.append(pid)
    return alive


def wait_until_gone(pids: list[int], limit_s: float) -> list[int]:
    deadline = time.monotonic() + limit_s
    while running(pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    return running(pids)


@pytest.fixture
def endpoint() -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(PAGE)))
            self.end_headers()
            self.wfile.write(PAGE)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.02}
    )
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/metrics"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A work directory; afterwards no process may be left."""
    path = tmp_path / "w"
    yield path
    assert processes_naming(path) == []
    assert not registry_of(path).exists()


# Configuration texts


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (RecordingSettings(interval_s=0.01), "at least 0.1 s"),
        (RecordingSettings(openmetrics={"a-b": "http://127.0.0.1:1/"}), "plain name"),
        (RecordingSettings(openmetrics={"a": "ftp://127.0.0.1/"}), "http"),
    ],
)
def test_wrong_settings_are_refused(
    directory: Path, settings: RecordingSettings, message: str
) -> None:
    with (
        pytest.raises(RecordingError, match=message),
        recording(directory, settings, ready_timeout_s=1),
    ):
        pass


def test_an_endpoint_that_is_down_is_an_error_within_the_time_limit(
    directory: Path,
) -> None:
    url = f"http://127.0.0.1:{recording_pcp.free_port()}/metrics"
    started = time.monotonic()
    with (
        pytest.raises(RecordingError, match=re.escape(url)) as error,
        recording(
            directory, RecordingSettings(openmetrics={"vllm": url}), ready_timeout_s=0.5
        ),
    ):
        pass
    assert (error.value.code, error.value.facts) == (
        "endpoint_silent",
        {"endpoint": "vllm", "limit_s": 0.5},
    )
    assert time.monotonic() - started < 3


def test_an_endpoint_without_metrics_is_an_error_that_names_the_log(
    directory: Path, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "PAGE", b"<html>not metrics</html>\n")
    with (
        pytest.raises(
            RecordingError, match=r" of vllm .*log/openmetrics\.log"
        ) as error,
        recording(
            directory,
            RecordingSettings(openmetrics={"vllm": endpoint}),
            ready_timeout_s=1,
        ),
    ):
        pass
    assert (error.value.code, error.value.facts) == (
        "start_timed_out",
        {"program": "openmetrics"},
    )


# Real recordings


def test_a_recording_holds_what_was_asked_for_and_can_be_packed(
    directory: Path, endpoint: str
) -> None:
    secret = "kveval-secret-argument"
    with subprocess.Popen(
        [sys.executable, "-c", "input()", "--api-key", secret], stdin=subprocess.PIPE
    ) as server:
        settings = RecordingSettings(
            interval_s=0.5,
            openmetrics={"vllm": endpoint},
            processes=[os.getpid(), server.pid, 2**22 + 1],
        )
        with recording(directory, settings) as running_recording:
            start = time.time()
            time.sleep(2.5)
            running_recording.check_alive()
            end = time.time()
            pids = group_of(directory)
            assert len(running(pids)) == len(pids) >= 5  # pmcd, three agents, pmlogger
            assert (directory / "run").stat().st_mode & 0o077 == 0
            port = running_recording._environment["PMCD_PORT"]
            asked = subprocess.run(
                ["pminfo", "-h", f"127.0.0.1:{port}", "pmcd.pid"],
                capture_output=True,
                text=True,
            )
            assert asked.returncode == 1
        server.kill()
    base = running_recording.archive
    assert running(pids) == []

    buckets = "openmetrics.vllm.vllm.e2e_request_latency_seconds_bucket"
    required = [
        RUNNING,
        buckets,
        "kernel.all.load",
        "mem.util.free",
        "proc.psinfo.rss",
        "proc.io.rchar",
    ]
    facts = verify_recording(
        base, start=start, end=end, required=required, interval_s=0.5
    )
    assert facts.start <= start + 1
    assert facts.end >= end - 1
    assert set(facts.samples) == set(required)
    assert 3 <= facts.samples[RUNNING] <= (facts.end - facts.start) / 0.5 + 2
    assert facts.metrics > 100

    absent = ["openmetrics.vllm.nothing", "nvidia.nope"]
    with pytest.raises(RecordingError) as lacking:
        verify_recording(base, start=start, end=end, required=[RUNNING, *absent])
    assert (lacking.value.code, lacking.value.facts) == (
        "metrics_missing",
        {"missing": absent},
    )
    with pytest.raises(RecordingError) as too_short:
        verify_recording(base, start=start, end=end + 60, required=[])
    with pytest.raises(RecordingError) as too_late:
        verify_recording(base, start=start - 60, end=end, required=[])
    assert too_short.value.code == too_late.value.code == "window_not_covered"

    meta = base.with_suffix(".meta").read_bytes()
    assert f"{server.pid:06d} ".encode() in meta
    assert secret.encode() not in meta

    packed = directory / "pcp.tar.zst"
    pack_archives([base], packed)
    assert sorted(path.name for path in directory.glob("pcp.tar*")) == ["pcp.tar.zst"]
    with tarfile.open(
        fileobj=io.BytesIO(
            zstandard.ZstdDecompressor().stream_reader(packed.read_bytes()).read()
        )
    ) as tar:
        names = tar.getnames()
        for path in archive_files(base):
            member = tar.extractfile(path.name)
            assert member is not None
            assert member.read() == path.read_bytes()
    assert names == ["pcp.0", "pcp.index", "pcp.meta"]

    cut = directory / "cut"
    shutil.copytree(base.parent, cut)
    os.truncate(cut / "pcp.0", (cut / "pcp.0").stat().st_size - 50)
    with pytest.raises(RecordingError, match="truncated") as damaged:
        verify_recording(cut / "pcp", start=start, end=end, required=required)
    assert (damaged.value.code, damaged.value.facts) == ("damaged", {})
    with pytest.raises(RecordingError) as full, recording(directory, settings):
        pass
    assert full.value.code == "archive_exists"


@pytest.mark.parametrize("name", ["pmcd", "pmlogger"])
def test_the_death_of_a_daemon_is_noticed(directory: Path, name: str) -> None:
    def die(running_recording: Recording) -> None:
        running_recording.check_alive()
        process = getattr(running_recording, f"_{name}")
        process.send_signal(signal.SIGKILL)
        process.wait()
        with pytest.raises(RecordingError, match=rf"log/{name}\.log") as error:
            running_recording.check_alive()
        assert (error.value.code, error.value.facts) == (
            "ended",
            {"program": name, "status": -signal.SIGKILL},
        )

    with (
        pytest.raises(RecordingError) as error,
        recording(directory, RecordingSettings()) as running_recording,
    ):
        die(running_recording)
    assert (error.value.code, error.value.facts["program"]) == ("ended", name)


def test_an_agent_that_crashes_is_restarted_or_the_loss_is_noticed(
    directory: Path, endpoint: str
) -> None:
    def agents() -> list[int]:
        lines = [
            line
            for line in processes_naming(directory)
            if "pmdaopenmetrics.python -u" in line
        ]
        return [int(line.split(":")[0]) for line in lines if "pmcd " not in line]

    settings = RecordingSettings(interval_s=0.25, openmetrics={"vllm": endpoint})
    try:
        with recording(directory, settings) as running_recording:
            (crashed,) = agents()
            os.kill(crashed, signal.SIGKILL)
            deadline = time.monotonic() + 120
            while not (
                set(agents()) - {crashed}
                and running_recording._knows("openmetrics.vllm")
            ):
                assert time.monotonic() < deadline
                time.sleep(0.1)
            running_recording.check_alive()
            start = time.time()
            time.sleep(1.5)
            end = time.time()
    except (
        RecordingError
    ) as error:  # pmlogger gives up when it asks while the new agent starts
        assert (error.code, error.facts["program"]) == ("ended", "pmlogger")
    else:
        facts = verify_recording(
            running_recording.archive, start=start, end=end, required=[RUNNING]
        )
        assert facts.samples[RUNNING] >= 3


def test_an_error_of_the_body_goes_first_and_nothing_stays(directory: Path) -> None:
    with (
        pytest.raises(ZeroDivisionError) as caught,
        recording(directory, RecordingSettings()) as running_recording,
    ):
        pids = group_of(directory)
        running_recording._pmlogger.kill()  # type: ignore[union-attr]
        running_recording._pmlogger.wait()  # type: ignore[union-attr]
        _ = 1 / 0
    assert running(pids) == []
    assert "pmlogger ended" in "".join(caught.value.__notes__)


def test_two_recordings_side_by_side_and_an_awkward_path(
    directory: Path,
    endpoint: str,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    # Of the test's own, and short, because of the sockets in it.
    temporary = Path(tempfile.mkdtemp(prefix="t-", dir="/tmp"))
    request.addfinalizer(lambda: shutil.rmtree(temporary))
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    awkward = directory / ("a long name, with blanks " * 5) / "w"
    settings = RecordingSettings(interval_s=0.25, openmetrics={"vllm": endpoint})
    with (
        recording(awkward, settings) as first,
        recording(directory, settings) as second,
    ):
        start = time.time()
        # Some samples, on a machine that is late with most of them too.
        time.sleep(2.5)
        first.check_alive()
        second.check_alive()
        second.stop()
        first.check_alive()
        end = time.time()
    for one in (first, second):
        verify_recording(one.archive, start=start, end=end, required=[RUNNING])
    assert first.archive.is_relative_to(awkward)
    assert not list(temporary.glob("kveval-run-*"))


def test_nothing_stays_when_the_recording_process_is_killed(
    directory: Path, endpoint: str
) -> None:
    owner = (
        "import pathlib, sys, time; from kveval.pcp.recording import *; from kveval.host.processes import supervisor\n"
        "settings = RecordingSettings(openmetrics={'vllm': sys.argv[2]})\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "with supervisor(folder.parent / 'w-registry.json') as p, recording(folder, settings, p):\n"
        "    print('up', flush=True); time.sleep(1000)"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", owner, str(directory), endpoint]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        pids = group_of(directory)
        process.kill()
    assert wait_until_gone(pids, 15) == []
    assert remove_leftovers(registry_of(directory)) == []
