"""The private PCP: configuration texts and errors without PCP, recordings with the real one."""

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

from kveval.host.processes import supervisor
from kveval.host.registry import remove_leftovers
from kveval.host.sessions import Session
from kveval.pcp import archive_tools as recording_archive
from kveval.pcp import installation as recording_pcp
from kveval.pcp import recording as module
from kveval.pcp.archive_tools import archive_files, pack_archive, verify_archive
from kveval.pcp.installation import Pcp, RecordingError, pmcd_conf, pmlogger_conf, read_pcp_conf, require_pcp
from kveval.pcp.recording import Recording, RecordingSettings, dead_agents

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


def _pcp_problem() -> str:
    try:
        require_pcp()
    except RecordingError as error:
        return str(error)
    return ""


PCP_PROBLEM = _pcp_problem()
needs_pcp = pytest.mark.skipif(bool(PCP_PROBLEM), reason=PCP_PROBLEM or "PCP is installed")


def make_pcp(root: Path) -> Pcp:
    return Pcp(
        "6.3.8",
        root / "bin",
        root / "libexec",
        root / "pmdas",
        root / "var/pmdas",
        (root / "pmns",),
        "/usr/bin/python3",
    )


def processes_naming(path: Path) -> list[str]:
    """Command lines that name ``path``: everything that a recording starts does, but the guard."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(path) in line:
                found.append(f"{entry.name}: {line}")
    return found


def registry_of(directory: Path) -> Path:
    return directory.parent / f"{directory.name}-registry.json"


@contextlib.contextmanager
def recording(directory: Path, settings: RecordingSettings, **limits: float) -> Iterator[Recording]:
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
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
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


def test_pmcd_conf_answers_the_socket_only(tmp_path: Path) -> None:
    text = pmcd_conf(make_pcp(tmp_path), tmp_path / "d", user="me", endpoints=True, nvidia=False)
    agents, access = text.split("[access]")
    assert [line.split()[:2] for line in agents.strip().splitlines()] == [
        ["pmcd", "2"],
        ["linux", "60"],
        ["proc", "3"],
        ["openmetrics", "144"],
    ]
    assert "binary notready /usr/bin/python3" in agents
    assert access.split("\n")[1:4] == [
        'disallow ".*" : all;',
        'disallow ":*" : all;',
        'allow "unix:*" : all;',
    ]


def test_pmcd_conf_takes_the_domain_of_the_nvidia_agent_from_its_header(tmp_path: Path) -> None:
    (tmp_path / "pmdas/nvidia").mkdir(parents=True)
    header = tmp_path / "pmdas/nvidia/domain.h"
    header.write_text("/* built */\n#define NVML 120\n")
    text = pmcd_conf(make_pcp(tmp_path), tmp_path / "d", user="me", endpoints=False, nvidia=True)
    assert "nvidia 120 pipe binary" in text
    assert "openmetrics" not in text
    header.write_text("")
    with pytest.raises(RecordingError, match=r"no NVML domain number in .*domain\.h"):
        pmcd_conf(make_pcp(tmp_path), tmp_path / "d", user="me", endpoints=False, nvidia=True)


def test_pmlogger_conf_selects_processes_and_leaves_absent_gpus_out() -> None:
    text = pmlogger_conf((12, 345), nvidia=False)
    assert "nvidia" not in text
    assert "    kernel.all.load\n" in text
    assert "    proc.psinfo.rss [ 12, 345 ]\n" in text
    assert "    nvidia.power\n" in pmlogger_conf((), nvidia=True)
    assert "proc." not in pmlogger_conf((), nvidia=True)


def test_no_command_line_is_recorded() -> None:
    text = pmlogger_conf((1,), nvidia=True)
    subtrees = re.findall(r"^ +((?:hot)?proc[\w.]*)", text, re.MULTILINE)
    assert len(subtrees) > 10
    assert not {"proc", "proc.psinfo"} & set(subtrees)
    assert not [name for name in subtrees if name.endswith((".psargs", ".environ", ".cmd", ".labels"))]


def test_dead_agents_are_named() -> None:
    text = '\npmcd.agent.status\n    inst [2 or "pmcd"] value 0\n    inst [144 or "openmetrics"] value 9\n'
    assert dead_agents(text) == ["openmetrics"]


# Finding PCP


def test_pcp_conf_is_overridden_by_the_environment(tmp_path: Path) -> None:
    conf = tmp_path / "pcp.conf"
    conf.write_text('# comment\nPCP_BIN_DIR=/usr/bin\nPCP_AWK_PROG="/usr/bin/gawk --posix"\nPCP_VAR_DIR=/var/lib/pcp\n')
    settings = read_pcp_conf({"PCP_CONF": str(conf), "PCP_VAR_DIR": "/elsewhere", "PATH": "/bin"})
    assert settings == {
        "PCP_BIN_DIR": "/usr/bin",
        "PCP_AWK_PROG": "/usr/bin/gawk --posix",
        "PCP_VAR_DIR": "/elsewhere",
    }


def test_without_pcp_the_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PCP_CONF", str(tmp_path / "none.conf"))
    with pytest.raises(RecordingError, match=r"not installed .*pcp python3-pcp python3-requests"):
        require_pcp()
    with (
        pytest.raises(RecordingError, match="not installed"),
        recording(tmp_path / "w", RecordingSettings()),
    ):
        pass
    assert not (tmp_path / "w").exists()


def test_an_old_pcp_and_a_broken_one_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conf = tmp_path / "pcp.conf"
    monkeypatch.setenv("PCP_CONF", str(conf))
    conf.write_text("PCP_VERSION=5.3.7\n")
    with pytest.raises(RecordingError, match=r"pcp\.conf lacks PCP_BINADM_DIR"):
        require_pcp()
    keys = ("PCP_BIN_DIR", "PCP_BINADM_DIR", "PCP_PMDAS_DIR", "PCP_PMDASADM_DIR", "PCP_VAR_DIR")
    paths = "".join(f"{key}={tmp_path}\n" for key in keys)
    conf.write_text(paths + "PCP_VERSION=5.3.7\n")
    with pytest.raises(RecordingError, match=r"PCP 5\.3\.7 is too old, 6\.0\.0"):
        require_pcp()
    monkeypatch.setattr(recording_pcp, "_agent_python", lambda _: "/usr/bin/python3")
    conf.write_text(paths + "PCP_VERSION=6.3.8\n")
    with pytest.raises(RecordingError, match=r"PCP's pmcd is not in .*python3-pcp"):
        require_pcp()


# Errors before anything starts


@needs_pcp
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (RecordingSettings(interval_s=0.01), "at least 0.1 s"),
        (RecordingSettings(openmetrics={"a-b": "http://127.0.0.1:1/"}), "plain name"),
        (RecordingSettings(openmetrics={"a": "ftp://127.0.0.1/"}), "http"),
    ],
)
def test_wrong_settings_are_refused(directory: Path, settings: RecordingSettings, message: str) -> None:
    with pytest.raises(RecordingError, match=message), recording(directory, settings, ready_timeout_s=1):
        pass


@needs_pcp
def test_an_endpoint_that_is_down_is_an_error_within_the_time_limit(directory: Path) -> None:
    url = f"http://127.0.0.1:{recording_pcp.free_port()}/metrics"
    started = time.monotonic()
    with (
        pytest.raises(RecordingError, match=rf"endpoint vllm, {re.escape(url)}, did not answer within 0.5 s"),
        recording(directory, RecordingSettings(openmetrics={"vllm": url}), ready_timeout_s=0.5),
    ):
        pass
    assert time.monotonic() - started < 3


@needs_pcp
def test_an_endpoint_without_metrics_is_an_error_that_names_the_log(
    directory: Path, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "PAGE", b"<html>not metrics</html>\n")
    with (
        pytest.raises(RecordingError, match=r"no metrics of vllm .* time limit; see .*log/openmetrics\.log"),
        recording(directory, RecordingSettings(openmetrics={"vllm": endpoint}), ready_timeout_s=1),
    ):
        pass


# Real recordings


@needs_pcp
def test_a_recording_holds_what_was_asked_for_and_can_be_packed(directory: Path, endpoint: str) -> None:
    secret = "kveval-secret-argument"
    with subprocess.Popen([sys.executable, "-c", "input()", "--api-key", secret], stdin=subprocess.PIPE) as server:
        settings = RecordingSettings(
            interval_s=0.5, openmetrics={"vllm": endpoint}, processes=[os.getpid(), server.pid, 2**22 + 1]
        )
        with recording(directory, settings) as running_recording:
            start = time.time()
            time.sleep(2.5)
            running_recording.alive()
            end = time.time()
            pids = group_of(directory)
            assert len(running(pids)) == len(pids) >= 5  # pmcd, three agents, pmlogger
            assert (directory / "run").stat().st_mode & 0o077 == 0
            port = running_recording._environment["PMCD_PORT"]
            asked = subprocess.run(["pminfo", "-h", f"127.0.0.1:{port}", "pmcd.pid"], capture_output=True, text=True)
            assert asked.returncode == 1
        server.kill()
    base = running_recording.archive
    assert running(pids) == []

    buckets = "openmetrics.vllm.vllm.e2e_request_latency_seconds_bucket"
    required = [RUNNING, buckets, "kernel.all.load", "mem.util.free", "proc.psinfo.rss", "proc.io.rchar"]
    facts = verify_archive(base, start=start, end=end, required=required, interval_s=0.5)
    assert facts.start <= start + 1
    assert facts.end >= end - 1
    assert set(facts.samples) == set(required)
    assert 3 <= facts.samples[RUNNING] <= (facts.end - facts.start) / 0.5 + 2
    assert facts.metrics > 100

    with pytest.raises(RecordingError, match=r"lacks openmetrics\.vllm\.nothing, nvidia\.nope"):
        verify_archive(base, start=start, end=end, required=[RUNNING, "openmetrics.vllm.nothing", "nvidia.nope"])
    with pytest.raises(RecordingError, match=r"covers .*, not the window"):
        verify_archive(base, start=start, end=end + 60, required=[])
    with pytest.raises(RecordingError, match=r"covers .*, not the window"):
        verify_archive(base, start=start - 60, end=end, required=[])

    meta = base.with_suffix(".meta").read_bytes()
    assert f"{server.pid:06d} ".encode() in meta
    assert secret.encode() not in meta

    packed = directory / "pcp.tar.zst"
    pack_archive(base, packed)
    assert sorted(path.name for path in directory.glob("pcp.tar*")) == ["pcp.tar.zst"]
    with tarfile.open(
        fileobj=io.BytesIO(zstandard.ZstdDecompressor().stream_reader(packed.read_bytes()).read())
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
    with pytest.raises(RecordingError, match=r"damaged: pmlogcheck: .*unexpected EOF"):
        verify_archive(cut / "pcp", start=start, end=end, required=required)
    with pytest.raises(RecordingError, match="holds an archive already"), recording(directory, settings):
        pass


def test_an_archive_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="there is no PCP archive"):
        pack_archive(tmp_path / "pcp", tmp_path / "pcp.tar.zst")
    assert list(tmp_path.iterdir()) == []


@needs_pcp
def test_a_level_with_too_few_samples_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that was silent for most of a level, while the archive as a whole looks sound."""

    def samples(pcp: Pcp, base: Path, window_s: tuple[float, float], metrics: list[str]) -> dict[str, int]:
        silent = window_s[0] >= 40
        return dict.fromkeys(metrics, 3 if silent else 20)

    (tmp_path / "pcp.0").touch()
    monkeypatch.setattr(recording_archive, "_run", lambda *_, **__: RUNNING)
    monkeypatch.setattr(recording_archive, "_span", lambda *_: (1000.0, 1070.0))
    monkeypatch.setattr(recording_archive, "_samples", samples)
    levels = [(1010.0, 1030.0), (1040.0, 1060.0)]
    settings = {"start": 1010.0, "end": 1060.0, "required": [RUNNING]}
    verify_archive(tmp_path / "pcp", windows=levels[:1], **settings)
    cause = rf"fewer than 6 samples between 1970-01-01T00:17:20.*Z and .* of {re.escape(RUNNING)} \(3\): an agent was"
    with pytest.raises(RecordingError, match=cause):
        verify_archive(tmp_path / "pcp", windows=levels, **settings)


@needs_pcp
def test_an_archive_that_is_not_there_cannot_be_verified(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="there is no PCP archive"):
        verify_archive(tmp_path / "pcp", start=0, end=1, required=[])


@needs_pcp
@pytest.mark.parametrize("name", ["pmcd", "pmlogger"])
def test_the_death_of_a_daemon_is_noticed(directory: Path, name: str) -> None:
    def die(running_recording: Recording) -> None:
        running_recording.alive()
        process = getattr(running_recording, f"_{name}")
        process.send_signal(signal.SIGKILL)
        process.wait()
        with pytest.raises(RecordingError, match=rf"{name} ended \(status -9\); see .*log/{name}\.log"):
            running_recording.alive()

    with (
        pytest.raises(RecordingError, match=rf"{name} ended"),
        recording(directory, RecordingSettings()) as running_recording,
    ):
        die(running_recording)


@needs_pcp
def test_an_agent_that_crashes_is_restarted_or_the_loss_is_noticed(directory: Path, endpoint: str) -> None:
    def agents() -> list[int]:
        lines = [line for line in processes_naming(directory) if "pmdaopenmetrics.python -u" in line]
        return [int(line.split(":")[0]) for line in lines if "pmcd " not in line]

    settings = RecordingSettings(interval_s=0.25, openmetrics={"vllm": endpoint})
    try:
        with recording(directory, settings) as running_recording:
            (crashed,) = agents()
            os.kill(crashed, signal.SIGKILL)
            deadline = time.monotonic() + 20
            while not (set(agents()) - {crashed} and running_recording._knows("openmetrics.vllm")):
                assert time.monotonic() < deadline
                time.sleep(0.1)
            running_recording.alive()
            start = time.time()
            time.sleep(1.5)
            end = time.time()
    except RecordingError as error:  # pmlogger gives up when it asks while the new agent starts
        assert "pmlogger ended" in str(error)
    else:
        facts = verify_archive(running_recording.archive, start=start, end=end, required=[RUNNING])
        assert facts.samples[RUNNING] >= 3


@needs_pcp
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


@needs_pcp
def test_two_recordings_side_by_side_and_an_awkward_path(
    directory: Path, endpoint: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    # Of the test's own, and short, because of the sockets in it.
    temporary = Path(tempfile.mkdtemp(prefix="t-", dir="/tmp"))
    request.addfinalizer(lambda: shutil.rmtree(temporary))
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    awkward = directory / ("a long name, with blanks " * 5) / "w"
    settings = RecordingSettings(interval_s=0.25, openmetrics={"vllm": endpoint})
    with recording(awkward, settings) as first, recording(directory, settings) as second:
        start = time.time()
        time.sleep(0.5)
        first.alive()
        second.alive()
        second.stop()
        first.alive()
        end = time.time()
    for one in (first, second):
        verify_archive(one.archive, start=start, end=end, required=[RUNNING])
    assert first.archive.is_relative_to(awkward)
    assert not list(temporary.glob("kveval-run-*"))


@needs_pcp
def test_nothing_stays_when_the_recording_process_is_killed(directory: Path, endpoint: str) -> None:
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
