"""The recorder's start script with the real PCP of this machine, with the capabilities that its pod has."""

import base64
import contextlib
import http.server
import os
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
from tests.support.cluster_run import run_context
from tests.support.fake_cluster import FakeTransport, made, ok, status

from kveval.campaign.site import Cluster
from kveval.engines.kubernetes import recorder_agent, recorder_scripts
from kveval.engines.kubernetes.manifests.recorder import (
    PLACE,
    SOURCE_GROUPS,
    installed_documents,
    logged_groups,
    recording_documents,
)
from kveval.engines.kubernetes.manifests.templates import MANIFESTS
from kveval.engines.kubernetes.recordings import NodeRecording
from kveval.host.http import free_port
from kveval.pcp.installation import RecordingError, require_pcp

pytestmark = pytest.mark.e2e
SITE = Cluster.model_validate({"address": "service"})


class Metrics(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b"# HELP busy How busy\n# TYPE busy gauge\nbusy 42\n"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture
def url():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Metrics) as server:
        threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()
        yield f"http://{{host}}:{server.server_address[1]}/metrics"
        server.shutdown()


@pytest.fixture
def recorder(tmp_path, url):
    """The environment of a recorder that runs, under the pod's capabilities where this is root."""
    try:
        require_pcp()
    except RecordingError as error:
        pytest.skip(str(error))
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "dcgm.url").write_text(f"{url}\n")
    (daemons,) = (
        one for one in recording_documents("c", SITE) if one["kind"] == "DaemonSet"
    )
    (container,) = daemons["spec"]["template"]["spec"]["containers"]
    told = {one["name"]: one["value"] for one in container["env"] if "value" in one}
    environment = {
        name: value.replace("/var/lib/kveval", str(tmp_path))
        for name, value in told.items()
    }
    environment |= {"KVEVAL_SOURCES": str(sources), "HOST_IP": "127.0.0.1"}
    environment |= {"PATH": os.environ["PATH"]}
    command = ["sh", str(MANIFESTS / "start-pmcd.sh")]
    if os.geteuid() == 0 and shutil.which("setpriv"):
        allowed = "-all,+dac_read_search,+sys_ptrace"
        command = [
            "setpriv",
            "--no-new-privs",
            "--inh-caps=-all",
            f"--bounding-set={allowed}",
            *command,
        ]
    with (tmp_path / "out").open("wb") as out:
        process = subprocess.Popen(
            command,
            env=environment,
            stdout=out,
            stderr=out,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    yield environment
    os.killpg(process.pid, signal.SIGTERM)
    process.wait(10)


def ask(environment, *command, timeout_s=30.0):
    """Run one of PCP's clients as in the container, again until it succeeds."""
    deadline = time.monotonic() + timeout_s
    while True:
        done = subprocess.run(
            [
                "sh",
                "-c",
                '. /etc/pcp.env; PATH=$PATH:$PCP_BINADM_DIR; exec "$@"',
                "sh",
                *command,
            ],
            env=environment,
            capture_output=True,
            text=True,
        )
        if done.returncode == 0 or time.monotonic() > deadline:
            return done.stdout + done.stderr
        time.sleep(0.2)


def test_kernel_processes_and_sources_are_recorded_with_two_capabilities(
    recorder, tmp_path
):
    assert "value 42" in ask(
        recorder, "pminfo", "-h", "unix:", "-f", "openmetrics.dcgm.busy"
    )
    assert "value 0" in ask(
        recorder, "pminfo", "-h", "unix:", "-f", "pmcd.agent.status"
    )
    for metric in (
        "kernel.all.load",
        "network.interface.in.bytes",
        "proc.io.read_bytes",
        "proc.fd.count",
    ):
        name, count = ask(recorder, "pmprobe", "-h", "unix:", metric).split()[:2]
        assert (name, int(count) > 0) == (metric, True)
    folder = Path(recorder["PCP_VAR_DIR"]) / "pmdas/openmetrics/config.d"
    (folder / "vllm_1a2b3c4d.url").write_text((folder / "dcgm.url").read_text())
    assert "value 42" in ask(
        recorder, "pminfo", "-h", "unix:", "-f", "openmetrics.vllm_1a2b3c4d.busy"
    )


@pytest.fixture
def installed(recorder, tmp_path, monkeypatch):
    """A recording in what answers in the place of commands in an installed recorder, beside the pmcd that runs."""
    site = SITE.model_copy(
        update={"recorder": SITE.recorder.model_copy(update={"installed": True})}
    )
    site = site.model_copy(
        update={"address": "http://127.0.0.1:{port}", "shared_network": True}
    )
    settings, key, groups = (tmp_path / name for name in ("start", "key", "groups"))
    for folder, kind in ((settings, "start"), (groups, "pmlogconf")):
        folder.mkdir()
        (config,) = (
            one
            for one in installed_documents(site)
            if one["metadata"]["name"].endswith(kind)
        )
        for name, text in config["data"].items():
            (folder / name).write_text(text)
    key.write_text("k" * 64)
    port = free_port()
    monkeypatch.setattr(recorder_agent, "PORT", port)
    agent = (
        (settings / "agent.py").read_text().replace("PORT = 44380", f"PORT = {port}")
    )
    (settings / "agent.py").write_text(agent)
    environment = recorder | {
        "KVEVAL_RUNS": str(tmp_path / "runs"),
        "KVEVAL_GROUPS": str(groups),
        "KVEVAL_START": str(settings),
    }
    command = ["python3", str(settings / "agent.py"), str(settings), str(key)]
    if os.geteuid() == 0 and shutil.which("setpriv"):
        lacking = ["--no-new-privs", "--inh-caps=-all", "--bounding-set=-all"]
        command = ["setpriv", *lacking, *command]
    process = subprocess.Popen(
        command,
        env=environment,
        start_new_session=True,
    )
    secret = {"data": {"key": base64.b64encode(key.read_bytes()).decode()}}
    answers = FakeTransport(
        lambda call: ok(secret) if "/secrets/" in call.path else status(503, "Busy")
    )
    context = run_context(answers, site)
    pod = made("Pod", "recorder-0", spec={"nodeName": "gpu-0"})
    recording = NodeRecording(context, pod, "r0123abcd", tmp_path / "here")
    try:
        deadline = time.monotonic() + 30
        while not answers_clock(recording):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield recording
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(10)


def answers_clock(recording):
    with contextlib.suppress(RecordingError):
        return recording.clock() is not None
    return False


def test_an_installed_recorder_records_without_a_command_of_the_accounts(
    recorder, installed, url, tmp_path
):
    ask(recorder, "pminfo", "-h", "unix:", "-f", "openmetrics.dcgm.busy")
    url = url.replace("{host}", "127.0.0.1")
    installed.sources = {"vllm": f"{url} {url}", "epp": url}
    installed.shared = ["dcgm"]
    assert installed.run(recorder_scripts.REACH, url).returncode == 0
    installed.start([os.getpid()])
    time.sleep(3)
    installed.check_alive()
    assert abs(installed.clock().ahead_s) < 5
    installed.stop()
    installed.collect()
    logged = subprocess.run(
        ["pminfo", "-a", str(installed.archive)], capture_output=True, text=True
    ).stdout.split()
    for metric in (
        "kernel.all.load",
        "proc.psinfo.rss",
        "openmetrics.vllm.busy",
        "openmetrics.epp.busy",
        "openmetrics.dcgm.busy",
    ):
        assert metric in logged
    # Nothing of it is left in the pod.
    assert not (tmp_path / "runs" / installed.mark).exists()
    folder = Path(recorder["PCP_VAR_DIR"]) / "pmdas/openmetrics/config.d"
    assert [path.name for path in folder.iterdir()] == ["dcgm.url"]


def test_what_is_logged_is_a_configuration_that_pmlogger_takes(recorder, tmp_path):
    groups = logged_groups()
    assert set(SOURCE_GROUPS) < set(groups)
    parts = [
        groups["once"],
        groups["host"],
        groups["dcgm"].replace(PLACE, "dcgm"),
        groups["access"],
    ]
    configuration = tmp_path / "pmlogger.conf"
    configuration.write_text("\n".join(parts))
    ask(recorder, "pminfo", "-h", "unix:", "-f", "openmetrics.dcgm.busy")
    said = ask(
        recorder, "pmlogger", "-C", "-c", str(configuration), "-h", "unix:", timeout_s=0
    )
    assert "error" not in said.lower(), said
    configuration.write_text("log mandatory on default {\n    kernel.all.load\n")
    assert (
        "error"
        in ask(
            recorder,
            "pmlogger",
            "-C",
            "-c",
            str(configuration),
            "-h",
            "unix:",
            timeout_s=0,
        ).lower()
    )
