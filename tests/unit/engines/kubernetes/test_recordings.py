"""Which node records what: every node its host and its own pods, one of them the servers' endpoints."""

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.fake_cluster import FakeTransport, made
from tests.unit.engines.kubernetes.test_engine import SITE, place

from kveval.engines.kubernetes import engine, recordings
from kveval.engines.kubernetes import recorder_scripts as scripts
from kveval.engines.kubernetes.api.errors import ClusterError
from kveval.engines.kubernetes.api.exec import Executed
from kveval.pcp.installation import ONCE_METRICS, RecordingError

OWN = {"dcgm": "http://{host}:9400/metrics", "gateway": "http://gateway.mesh:15020/stats"}


def on(node: str, name: str) -> dict[str, Any]:
    return made("Pod", name, spec={"nodeName": node})


class Pods:
    """Recorder's pods that do what they are told; `silent`: the node whose pmlogger ends."""

    def __init__(self, silent: str = "") -> None:
        self.silent = silent
        self.ran: list[tuple[str, str, tuple[str, ...]]] = []

    def run(self, recording: recordings.NodeRecording, script: str, *arguments: str) -> Executed:
        self.ran.append((recording.node, script, arguments))
        if script == scripts.ALIVE and recording.node == self.silent:
            return Executed(b"killed", b"", 3)
        return Executed(b"7" if script == scripts.PROCESSES else b"", b"", 0)

    def of(self, script: str) -> dict[str, tuple[str, ...]]:
        return {node: arguments for node, ran, arguments in self.ran if ran == script}


@pytest.fixture
def pods(monkeypatch: pytest.MonkeyPatch) -> Pods:
    stand_ins = Pods()

    def run(recording: recordings.NodeRecording, script: str, *arguments: str) -> Executed:
        return stand_ins.run(recording, script, *arguments)

    monkeypatch.setattr(recordings.NodeRecording, "run", run)
    return stand_ins


def begun(folder: Path) -> recordings.ClusterRecording:
    site = SITE.model_copy(update={"recorder": SITE.recorder.model_copy(update={"sources": OWN})})
    recorders = [on("gpu-0", "recorder-a"), on("gpu-1", "recorder-b")]
    servers = [on("gpu-1", "server-1"), on("gpu-0", "server-0"), on("rest-0", "epp")]
    sources = {"vllm": "http://10.0.0.1:8000/metrics http://10.0.0.2:8000/metrics"}
    return recordings.begin(place(FakeTransport(), site), recorders, folder, sources, servers)


def test_every_node_records_its_host_and_one_the_endpoints(pods: Pods, tmp_path: Path) -> None:
    recording = begun(tmp_path)
    mark = recording.nodes[0].mark
    assert {node: words[1:] for node, words in pods.of(scripts.SOURCES).items()} == {
        "gpu-0": (f"vllm_{mark}", "http://10.0.0.1:8000/metrics http://10.0.0.2:8000/metrics"),
        "gpu-1": (),
    }
    # An endpoint of each node is read by each, one of the whole cluster by the first.
    logged = {node: dict(zip(words[3::2], words[4::2], strict=True)) for node, words in pods.of(scripts.START).items()}
    assert logged == {
        "gpu-0": {f"vllm_{mark}": "vllm", "dcgm": "dcgm", "gateway": "gateway"},
        "gpu-1": {"dcgm": "dcgm"},
    }
    assert pods.of(scripts.PROCESSES) == {"gpu-0": ("Pod-server-0",), "gpu-1": ("Pod-server-1",)}
    assert pods.of(scripts.BEGUN) == dict.fromkeys(("gpu-0", "gpu-1"), (ONCE_METRICS[0],))
    assert recording.archives == [tmp_path / "gpu-0" / "pcp", tmp_path / "gpu-1" / "pcp"]


def test_the_recording_of_any_node_that_ends_is_noticed(pods: Pods, tmp_path: Path) -> None:
    recording = begun(tmp_path)
    recording.alive()
    pods.silent = "gpu-1"
    with pytest.raises(RecordingError) as error:
        recording.alive()
    assert "recorder-b" in str(error.value)
    recording.release()
    assert pods.of(scripts.REMOVE).keys() == {"gpu-0", "gpu-1"}


@pytest.mark.parametrize(
    ("asked", "ended"),
    [("", True), ("job-b", False), (ClusterError("away"), False)],
    ids=["ours", "taken over", "away"],
)
def test_a_recording_of_a_run_that_another_job_took_over_is_left_to_it(
    pods: Pods, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str | ClusterError, ended: bool
) -> None:
    def other() -> str:
        if isinstance(asked, ClusterError):
            raise asked
        return asked

    server = on("gpu-0", "server-0")
    session = object.__new__(engine.ClusterSession)
    vars(session).update(
        handle=SimpleNamespace(server=SimpleNamespace(watched=[server]), on_restart=None),
        _place=place(FakeTransport()),
        _lease=SimpleNamespace(other=other),
        _scratch=tmp_path,
        _say=print,
        _nodes={"gpu-0": {}},
    )
    monkeypatch.setattr(session, "_note_nodes", lambda found: None)
    monkeypatch.setattr(engine.neighbours, "announced", lambda *given: contextlib.nullcontext())
    monkeypatch.setattr(engine.recordings, "deploy", lambda *given: [on("gpu-0", "recorder-a")])
    for name in ("exporters_of", "sources_of"):
        monkeypatch.setattr(engine, name, lambda *given: {})
    with session.recording():
        pods.ran.clear()
    assert bool(pods.of(scripts.REMOVE)) is ended
