"""Which node records what: every node its host and its own pods, one of them the servers' endpoints."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.cluster_cells import FULL_SITE
from tests.support.cluster_run import SITE, run_context
from tests.support.fake_cluster import (
    Call,
    FakeTransport,
    LocalCommand,
    made,
    ok,
    status,
)

from kveval.campaign.site import Cluster
from kveval.engines.kubernetes import engine, leases, recorder, recordings
from kveval.engines.kubernetes import recorder_scripts as scripts
from kveval.engines.kubernetes.api.client import Api
from kveval.engines.kubernetes.api.errors import ClusterError
from kveval.engines.kubernetes.api.exec import Executed
from kveval.engines.kubernetes.api.transport import Query, Reply
from kveval.pcp.installation import ONCE_METRICS, RecordingError

OWN = {
    "dcgm": "http://{host}:9400/metrics",
    "gateway": "http://gateway.mesh:15020/stats",
}


def on(node: str, name: str) -> dict[str, Any]:
    return made("Pod", name, spec={"nodeName": node})


class Pods:
    """Recorder's pods that do what they are told; `silent`: the node whose pmlogger ends."""

    def __init__(self, silent: str = "") -> None:
        self.silent = silent
        self.ran: list[tuple[str, str, tuple[str, ...]]] = []

    def run(
        self, recording: recordings.NodeRecording, script: str, *arguments: str
    ) -> Executed:
        self.ran.append((recording.node, script, arguments))
        if script == scripts.ALIVE and recording.node == self.silent:
            return Executed(b"killed", b"", 3)
        return Executed(b"7" if script == scripts.PROCESSES else b"", b"", 0)

    def of(self, script: str) -> dict[str, tuple[str, ...]]:
        return {node: arguments for node, ran, arguments in self.ran if ran == script}


@pytest.fixture
def pods(monkeypatch: pytest.MonkeyPatch) -> Pods:
    stand_ins = Pods()

    def run(
        recording: recordings.NodeRecording, script: str, *arguments: str
    ) -> Executed:
        return stand_ins.run(recording, script, *arguments)

    monkeypatch.setattr(recordings.NodeRecording, "run", run)
    return stand_ins


def begun(folder: Path) -> recordings.ClusterRecording:
    site = SITE.model_copy(
        update={"recorder": SITE.recorder.model_copy(update={"sources": OWN})}
    )
    recorders = [on("gpu-0", "recorder-a"), on("gpu-1", "recorder-b")]
    servers = [on("gpu-1", "server-1"), on("gpu-0", "server-0"), on("rest-0", "epp")]
    sources = {"vllm": "http://10.0.0.1:8000/metrics http://10.0.0.2:8000/metrics"}
    return recordings.start_recording(
        run_context(FakeTransport(), site), recorders, folder, sources, servers
    )


def test_every_node_records_its_host_and_one_the_endpoints(
    pods: Pods, tmp_path: Path
) -> None:
    recording = begun(tmp_path)
    mark = recording.nodes[0].mark
    assert pods.of(scripts.SOURCES) == {
        "gpu-0": (
            f"vllm_{mark}",
            "http://10.0.0.1:8000/metrics http://10.0.0.2:8000/metrics",
        ),
        "gpu-1": (),
    }
    # An endpoint of each node is read by each, one of the whole cluster by the first.
    logged = {
        node: dict(zip(words[2::2], words[3::2], strict=True))
        for node, words in pods.of(scripts.START).items()
    }
    assert logged == {
        "gpu-0": {f"vllm_{mark}": "vllm", "dcgm": "dcgm", "gateway": "gateway"},
        "gpu-1": {"dcgm": "dcgm"},
    }
    assert pods.of(scripts.PROCESSES) == {
        "gpu-0": ("Pod-server-0",),
        "gpu-1": ("Pod-server-1",),
    }
    assert pods.of(scripts.BEGUN) == dict.fromkeys(
        ("gpu-0", "gpu-1"), (ONCE_METRICS[0],)
    )
    assert recording.archives == [
        tmp_path / "gpu-0" / "pcp",
        tmp_path / "gpu-1" / "pcp",
    ]


def test_the_recording_of_any_node_that_ends_is_noticed(
    pods: Pods, tmp_path: Path
) -> None:
    recording = begun(tmp_path)
    recording.check_alive()
    pods.silent = "gpu-1"
    with pytest.raises(RecordingError) as error:
        recording.check_alive()
    assert "recorder-b" in str(error.value)
    recording.release()
    assert pods.of(scripts.REMOVE).keys() == {"gpu-0", "gpu-1"}


class NoCommands(FakeTransport):
    def command(self, path: str, query: Query, timeout_s: float) -> LocalCommand:
        raise ClusterError(
            f"GET {path}: {' '.join(map(str, query['command']))}: not found",
            404,
            "NotFound",
        )


def refused(found: dict[str, Any] | None) -> str:
    """How a recorder's pod that runs no command is told of; `found`: the pod, as it is by now."""

    def answer(call: Call) -> Reply:
        if call.path.endswith(f"/namespaces/{SITE.pcp_namespace}"):
            return ok(made("Namespace", SITE.pcp_namespace))
        return (
            ok(found)
            if found and call.path.endswith("/recorder-a")
            else status(404, "NotFound")
        )

    with pytest.raises(RecordingError) as error:
        recordings.NodeRecording(
            run_context(NoCommands(answer)), on("gpu-0", "recorder-a"), "r1"
        ).check_alive()
    return str(error.value)


def test_a_recorders_pod_that_is_deleted_is_told_without_what_it_was_to_run() -> None:
    going = on("gpu-0", "recorder-a")
    going["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    other = on("gpu-0", "recorder-a")
    other["metadata"] |= {"uid": "of another pod"}
    for found in (None, going, other):
        assert refused(found) == "the recorder's pod recorder-a was deleted"


def test_a_recorder_that_is_killed_is_told_with_its_exit_code() -> None:
    last = {"terminated": {"exitCode": 137, "reason": "Error"}}
    state = {
        "name": "pmcd",
        "restartCount": 1,
        "state": {"running": {}},
        "lastState": last,
    }
    found = on("gpu-0", "recorder-a") | {
        "status": {"phase": "Running", "containerStatuses": [state]}
    }
    said = "the recorder died: Pod bench/recorder-a: Error: container pmcd of pod recorder-a, killed by SIGKILL"
    assert refused(found).startswith(said)
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    well = on("gpu-0", "recorder-a") | {"status": ready}
    assert refused(well).startswith("the recorder's pod recorder-a cannot be asked: ")


@pytest.mark.parametrize(
    ("asked", "ended"),
    [("", True), ("job-b", False), (ClusterError("away"), False)],
    ids=["ours", "taken over", "away"],
)
def test_a_recording_of_a_run_that_another_job_took_over_is_left_to_it(
    pods: Pods,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    asked: str | ClusterError,
    ended: bool,
) -> None:
    def other() -> str:
        if isinstance(asked, ClusterError):
            raise asked
        return asked

    server = SimpleNamespace(watched=[on("gpu-0", "server-0")])
    deployer = SimpleNamespace(server=server, nodes={"gpu-0": {}}, on_restart=None)
    lease = SimpleNamespace(other=other)
    context = run_context(FakeTransport())
    made = recorder.ClusterRecorder(context, deployer, lease, tmp_path, print)  # type: ignore[arg-type]
    monkeypatch.setattr(
        recorder.neighbours, "announce", lambda *given: contextlib.nullcontext()
    )
    monkeypatch.setattr(
        recorder.recordings, "deploy", lambda *given: [on("gpu-0", "recorder-a")]
    )
    for name in ("exporters_of", "sources_of"):
        monkeypatch.setattr(recorder, name, lambda *given: {})
    with made.recording():
        pods.ran.clear()
    assert bool(pods.of(scripts.REMOVE)) is ended


def test_a_recording_of_a_run_that_begins_meanwhile_is_no_killed_runs(
    pods: Pods, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = on("gpu-0", "recorder-a")
    ready["status"] = {"conditions": [{"type": "Ready", "status": "True"}]}
    said: list[str] = []

    def run(
        recording: recordings.NodeRecording, script: str, *arguments: str
    ) -> Executed:
        pods.run(recording, script, *arguments)
        listed = b"killed living" if script == scripts.RECORDINGS else b""
        return Executed(listed, b"", 0)

    def living(*given: object) -> list[dict[str, Any]]:
        # Asked before, it would not know a run that begins while recordings are listed.
        assert pods.of(scripts.RECORDINGS)
        return [{"metadata": {"annotations": {leases.MARK_ANNOTATION: "living"}}}]

    monkeypatch.setattr(recordings.NodeRecording, "run", run)
    monkeypatch.setattr(leases, "living_leases", living)
    context = run_context(FakeTransport(lambda call: ok({"items": [ready]})))
    recordings.remove_stale(context, said.append)
    assert ["recording killed" in text for text in said] == [True]
    assert len([ran for _, ran, _ in pods.ran if ran == scripts.REMOVE]) == 1


def test_a_namespace_that_another_run_makes_meanwhile_is_no_fault() -> None:
    refusals = [status(404, "NotFound")]

    def answer(call: Call) -> Reply:
        if call.method == "POST":
            return refusals.pop() if refusals else ok(call.body)
        return ok({"metadata": {}, "items": []})

    context = run_context(FakeTransport(answer))
    recordings.await_removal(context, pytest.fail)
    assert refusals == []


# --- a namespace that somebody deletes


@pytest.mark.parametrize("gone", [True, False], ids=["gone", "going"])
def test_a_namespace_that_is_deleted_is_named_with_what_remains(
    tmp_path: Path, gone: bool
) -> None:
    recorder = made(
        "DaemonSet", "spring-recorder", namespace=SITE.pcp_namespace, version="apps/v1"
    )

    def answer(call: Call) -> Reply:
        if call.path.endswith("/namespaces/bench"):
            going = {
                "metadata": {
                    "name": "bench",
                    "deletionTimestamp": "2026-01-01T00:00:00Z",
                }
            }
            return status(404, "NotFound") if gone else ok(going)
        return ok({"items": [recorder] if call.path.endswith("/daemonsets") else []})

    with pytest.raises(RecordingError) as error, failing_session(answer, tmp_path):
        raise RecordingError("the server died")
    said = "namespace bench was deleted, and with it the servers and the load of this run; DaemonSet kveval-pcp/spring"
    said += "-recorder remains. Kubernetes removes it 15 minutes after the job's last sign of life; to remove it now, run"
    said += " kveval teardown, with another kubeconfig if this account was there; the server died"
    assert str(error.value) == said


@pytest.mark.parametrize("gone", [True, False], ids=["gone", "going"])
def test_a_recorders_namespace_that_is_deleted_is_named(gone: bool) -> None:
    place = made("Namespace", SITE.pcp_namespace)
    place["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z"}

    def answer(call: Call) -> Reply:
        if call.path.endswith(f"/namespaces/{SITE.pcp_namespace}"):
            return status(404, "NotFound") if gone else ok(place)
        # The account's rights have gone with the namespace.
        return status(403, "Forbidden")

    said: list[str] = []
    context = run_context(NoCommands(answer))
    with pytest.raises(RecordingError) as error:
        recordings.NodeRecording(context, on("gpu-0", "recorder-a"), "r1").check_alive()
    assert (
        str(error.value) == "namespace kveval-pcp was deleted, and with it the recorder"
    )
    allowed = FakeTransport(
        lambda call: ok({"items": []}) if "/bench/" in call.path else answer(call)
    )
    recordings.release_recorder(SITE, "spring", said.append, Api(allowed, outage_s=0))
    # There is nothing to remove in it.
    assert said == []


def test_another_failure_is_told_as_it_is(tmp_path: Path) -> None:
    there = {"metadata": {"name": "bench"}}

    def answer(call: Call) -> Reply:
        return ok(there if call.path.endswith("/namespaces/bench") else {"items": []})

    with (
        pytest.raises(RecordingError, match=r"^the server died$"),
        failing_session(answer, tmp_path),
    ):
        raise RecordingError("the server died")


@pytest.mark.parametrize(
    ("reply", "failure", "why"),
    [
        (
            status(503, "ServiceUnavailable"),
            "cluster https://10.0.0.1: no usable answer for 300 s",
            "the API server does not answer",
        ),
        (
            status(401, "Unauthorized"),
            "cluster https://10.0.0.1 rejects the credential (401): has the token expired?",
            "the cluster rejects the credential",
        ),
    ],
    ids=["outage", "account deleted"],
)
def test_what_ends_a_run_and_keeps_it_from_being_removed_is_told_once(
    reply: Reply, failure: str, why: str, tmp_path: Path
) -> None:
    with (
        pytest.raises(RecordingError) as error,
        failing_session(lambda call: reply, tmp_path),
    ):
        raise RecordingError(failure)
    said = str(error.value)
    assert said.startswith(
        f"{failure}; not all of this run was removed ({why}). Kubernetes removes it 15"
    )
    # Without this repository, in both namespaces.
    assert "kubectl -n bench delete lease," in said
    assert "kubectl -n kveval-pcp delete lease," in said


@contextlib.contextmanager
def failing_session(answer: Callable[[Call], Reply], folder: Path) -> Iterator[None]:
    """The session of a run whose body fails, without the beginning of one."""
    context = run_context(
        FakeTransport(answer),
        Cluster.model_validate({"namespace": "bench", **FULL_SITE}),
    )
    lease = SimpleNamespace(
        other=lambda: "", document=None, keep_alive=lambda job: None
    )
    job = SimpleNamespace(required_names=[])
    run = object.__new__(engine.ClusterEngine)
    vars(run).update(_job=job, _context=context, _site=context.site, _lease=lease)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.lifetime, "ensure_owner_job", lambda *given: None)
        patch.setattr(engine.ClusterRecorder, "prepare", lambda recorder: None)
        # As a measurement does: what it has deployed is removed before the session ends.
        with (
            run.session(folder, pytest.fail) as session,
            contextlib.closing(session.deployer),
        ):
            yield
