"""Waiting for workloads: what ends a wait, and what does not, with a cluster whose objects change between two looks."""

import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.fake_cluster import FakeTransport, Objects, made
from tests.support.pod_waits import wait_for_pod

from kveval.engines.kubernetes.api.client import Api
from kveval.engines.kubernetes.wait import rollout
from kveval.engines.kubernetes.wait.diagnosis import Patience
from kveval.engines.kubernetes.wait.rollout import (
    RolloutError,
    require_unchanged,
    wait_for_daemonset,
    wait_for_deployment,
    wait_for_job,
)

LABELS = {"app": "server"}
READY = {"type": "Ready", "status": "True"}
Change = Callable[[Objects], None]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout, "_POLL_S", 0.01)


def stamp(seconds_ago: float = 0.0) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds_ago)).strftime(
        "%Y-%m-%dT%H:%M:%SZ"
    )


def a_deployment(
    generation: int = 1, observed: int = 1, wanted: int = 2, **status: Any
) -> dict[str, Any]:
    about = {
        "generation": generation,
        "annotations": {"deployment.kubernetes.io/revision": str(generation)},
    }
    spec = {"replicas": wanted, "selector": {"matchLabels": LABELS}}
    status = {"observedGeneration": observed} | status
    return made(
        "Deployment",
        "server",
        version="apps/v1",
        metadata=about,
        spec=spec,
        status=status,
    )


def a_replica_set(deployment: dict[str, Any], revision: int = 1) -> dict[str, Any]:
    about = {"annotations": {"deployment.kubernetes.io/revision": str(revision)}}
    return made(
        "ReplicaSet",
        f"server-{revision}",
        LABELS,
        owner=deployment,
        version="apps/v1",
        metadata=about,
    )


def a_pod(
    name: str,
    owner: dict[str, Any] | None,
    *,
    ready: bool = True,
    going: bool = False,
    **status: Any,
) -> Any:
    about = {"creationTimestamp": stamp()} | (
        {"deletionTimestamp": stamp()} if going else {}
    )
    found = {
        "phase": "Running",
        "conditions": [READY] if ready else [],
        "startTime": stamp(),
    } | status
    job = {"job-name": "load"} if owner is not None and owner["kind"] == "Job" else {}
    return made(
        "Pod", name, LABELS | job, owner=owner, metadata=about, spec={}, status=found
    )


def crashing(name: str, owner: dict[str, Any] | None) -> Any:
    state = {"waiting": {"reason": "CrashLoopBackOff"}}
    last = {"terminated": {"exitCode": 1}}
    return a_pod(
        name,
        owner,
        ready=False,
        containerStatuses=[{"name": "vllm", "state": state, "lastState": last}],
    )


FULL = {"replicas": 2, "updatedReplicas": 2, "availableReplicas": 2}
ONE = {"replicas": 1, "updatedReplicas": 1, "availableReplicas": 1}


def rolled_out(
    objects: Objects, *changes: Change, timeout_s: float = 5.0, **options: Any
) -> list[str]:
    """Wait; each change happens before another look at the pods."""
    objects.changes = list(changes)
    found = wait_for_deployment(
        Api(FakeTransport(objects)), "bench", "server", timeout_s, **options
    )
    return [pod["metadata"]["name"] for pod in found]


def put(objects: Objects, document: dict[str, Any]) -> None:
    """Replace an object by a newer state of itself, or add it."""
    objects.present = [
        found
        for found in objects.present
        if found["metadata"]["uid"] != document["metadata"]["uid"]
    ]
    objects.present.append(document)


def test_a_deployment_is_done_when_all_replicas_of_the_newest_revision_are_available() -> (
    None
):
    deployment = a_deployment(**FULL)
    replicas = a_replica_set(deployment)
    assert rolled_out(
        Objects(deployment, replicas, a_pod("a", replicas), a_pod("b", replicas))
    ) == ["a", "b"]


def test_an_update_looks_ready_before_its_controller_has_seen_it() -> None:
    before = a_deployment(generation=2, observed=1, **FULL)
    old = a_replica_set(before)
    objects = Objects(before, old, a_pod("old-a", old), a_pod("old-b", old))
    with pytest.raises(RolloutError) as error:
        rolled_out(objects, timeout_s=0.2)
    assert error.value.cause == "Timeout"
    after = a_deployment(generation=2, observed=2, **FULL)
    new = a_replica_set(after, 2)
    objects = Objects(
        after, old, new, a_pod("old-a", old), a_pod("a", new), a_pod("b", new)
    )
    assert rolled_out(objects) == ["a", "b"]


def test_pods_of_an_earlier_rollout_count_neither_as_ready_nor_as_broken() -> None:
    deployment = a_deployment(generation=2, observed=2, wanted=1, **ONE)
    old, new = a_replica_set(deployment, 1), a_replica_set(deployment, 2)
    objects = Objects(
        deployment, old, new, crashing("old", old), a_pod("going", new, going=True)
    )
    with pytest.raises(RolloutError) as error:
        rolled_out(objects, timeout_s=0.2)
    assert error.value.cause == "Timeout"
    assert ": 0 of 1 " in str(error.value)
    assert rolled_out(objects, lambda state: put(state, a_pod("new", new))) == ["new"]


BROKEN = """
Deployment bench/server: CrashLoopBackOff: container vllm of pod a, exit code 1; the container ends after \
every restart: see its last log lines
| events of Pod bench/a:
|   2026-03-01T12:00:00Z Warning BackOff (x3): Back-off restarting failed container
| last log lines of container vllm of pod a:
|   Traceback
|   ValueError: no GPU
"""


def test_the_first_broken_pod_ends_the_wait_with_events_and_log() -> None:
    deployment = a_deployment()
    replicas = a_replica_set(deployment)
    event = made(
        "Event",
        "e1",
        type="Warning",
        reason="BackOff",
        message="Back-off restarting failed container",
        count=3,
        lastTimestamp="2026-03-01T12:00:00Z",
        involvedObject={"name": "a", "uid": "Pod-a"},
    )
    objects = Objects(deployment, replicas, a_pod("b", replicas, ready=False), event)
    with pytest.raises(RolloutError) as failure:
        rolled_out(
            objects,
            lambda state: None,
            lambda state: put(state, crashing("a", replicas)),
        )
    assert f"{failure.value}{failure.value.evidence}" == BROKEN.strip()
    assert (failure.value.cause, failure.value.pod) == ("CrashLoopBackOff", "a")
    assert failure.value.facts == {
        "object": "Deployment bench/server",
        "container": "vllm",
        "exit_code": 1,
    }


SCHEDULED = "|   2026-03-01T12:00:00Z Normal Scheduled: Successfully assigned"
PULL = "|   2026-03-01T12:00:01Z Warning Failed: Failed to pull image: no such host"


@pytest.mark.parametrize(
    ("evidence", "words"),
    [
        ([SCHEDULED], ""),
        ([PULL, SCHEDULED], f": {PULL.removeprefix('|   ')}"),
        ([PULL, "| last log lines of container c of pod a:", "|   Bye"], ": Bye"),
    ],
    ids=["usual course", "warning", "log"],
)
def test_a_failures_line_ends_with_what_may_be_its_cause(
    evidence: list[str], words: str, tmp_path: Path
) -> None:
    lines = "".join(f"\n{line}" for line in ("| events of Pod bench/a:", *evidence))
    failure = RolloutError("failed", "Error", "a", evidence=lines, exit_code=None)
    kept = tmp_path / "cluster.log"
    assert failure.keep_evidence(tmp_path) == f"failed{words}; see {kept}"
    assert lines in kept.read_text()


def test_a_pod_deleted_while_waited_for_is_replaced_by_its_controller() -> None:
    deployment = a_deployment(wanted=1, **ONE)
    replicas = a_replica_set(deployment)
    first = a_pod("a", replicas, ready=False)

    def delete(state: Objects) -> None:
        state.present.remove(first)

    changes = [
        lambda state: None,
        delete,
        lambda state: put(state, a_pod("b", replicas)),
    ]
    assert rolled_out(Objects(deployment, replicas, first), *changes) == ["b"]


def test_a_deployment_deleted_and_made_anew_is_waited_for_and_one_that_stays_away_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rollout, "_MISSING_S", 0.3)
    gone = a_deployment(wanted=1)
    back = a_deployment(wanted=1, **ONE)
    back["metadata"] |= {"uid": "Deployment-again"}
    replicas = a_replica_set(back)
    objects = Objects(gone)

    def return_later() -> None:
        objects.present = [back, replicas, a_pod("a", replicas)]

    def vanish(state: Objects) -> None:
        state.present = []
        threading.Timer(0.1, return_later).start()

    assert rolled_out(objects, lambda state: None, vanish) == ["a"]
    with pytest.raises(RolloutError) as failure:
        rolled_out(Objects(gone), lambda state: state.present.clear())
    assert failure.value.cause == "Deleted"
    assert failure.value.facts == {"object": "Deployment bench/server", "existed": True}
    with pytest.raises(RolloutError) as failure:
        rolled_out(Objects())
    assert failure.value.cause == "Deleted"
    assert failure.value.facts == {
        "object": "Deployment bench/server",
        "existed": False,
    }


def test_pods_that_may_not_be_made_end_the_wait_with_the_controllers_words() -> None:
    failed = {
        "type": "ReplicaFailure",
        "status": "True",
        "lastTransitionTime": stamp(30),
        "message": "exceeded quota: gpus",
    }
    deployment = a_deployment(conditions=[failed])
    with pytest.raises(RolloutError) as error:
        rolled_out(Objects(deployment, a_replica_set(deployment)))
    assert error.value.cause == "FailedCreate"
    assert error.value.facts["said"] == failed["message"]
    assert 30 <= error.value.facts["lasted_s"] < 40


def test_what_is_waited_for_is_said_when_it_changes() -> None:
    deployment = a_deployment(wanted=1)
    replicas = a_replica_set(deployment)
    said: list[str] = []
    full = a_deployment(wanted=1, **ONE)

    def finish(state: Objects) -> None:
        put(state, full)
        put(state, a_pod("a", replicas))

    nothing: Change = lambda state: None  # noqa: E731
    assert rolled_out(
        Objects(deployment, replicas),
        nothing,
        nothing,
        finish,
        nothing,
        say=said.append,
    ) == ["a"]
    assert [text.partition(" (")[0] for text in said] == [
        "Deployment bench/server: 0 of 1 replicas are available"
    ]


# --- daemon sets and pods


def a_daemon_set(age_s: float = 0.0) -> dict[str, Any]:
    about = {"generation": 1, "creationTimestamp": stamp(age_s)}
    about["annotations"] = {"deprecated.daemonset.template.generation": "2"}
    spec = {"selector": {"matchLabels": LABELS}}
    return made(
        "DaemonSet",
        "recorder",
        version="apps/v1",
        metadata=about,
        spec=spec,
        status={"observedGeneration": 1},
    )


def on_node(pod: Any, node: str, generation: int = 2) -> Any:
    pod["spec"]["nodeName"] = node
    pod["metadata"]["labels"]["pod-template-generation"] = str(generation)
    return pod


def recorders(
    *pods: Any, timeout_s: float = 1.0, nodes: Sequence[str] = ("good",)
) -> list[str]:
    api = Api(
        FakeTransport(
            Objects(DAEMON_SET, *pods, *(a_node(name) for name in ("good", "bad")))
        )
    )
    found = wait_for_daemonset(api, "bench", "recorder", nodes, timeout_s)
    return [pod["metadata"]["name"] for pod in found]


def a_node(name: str, ready: str = "True", seconds: float = 60.0) -> dict[str, Any]:
    said = (
        {
            "reason": "NodeStatusUnknown",
            "message": "Kubelet stopped posting node status.",
        }
        if ready != "True"
        else {}
    )
    found = {
        "type": "Ready",
        "status": ready,
        "lastTransitionTime": stamp(seconds),
    } | said
    return made("Node", name, status={"conditions": [found]})


DAEMON_SET = a_daemon_set()


def test_a_daemon_set_is_waited_for_where_it_is_needed_and_nowhere_else() -> None:
    good = on_node(a_pod("a", DAEMON_SET), "good")
    assert recorders(good, on_node(crashing("b", DAEMON_SET), "bad")) == ["a"]
    with pytest.raises(RolloutError) as error:
        recorders(
            good, on_node(crashing("b", DAEMON_SET), "bad"), nodes=("good", "bad")
        )
    assert (error.value.cause, error.value.pod) == ("CrashLoopBackOff", "b")


def test_a_pod_of_an_earlier_template_of_a_daemon_set_is_not_the_one() -> None:
    with pytest.raises(RolloutError) as error:
        recorders(on_node(a_pod("a", DAEMON_SET), "good", generation=1), timeout_s=0.1)
    assert error.value.cause == "Timeout"
    assert "on 0 of 1 " in str(error.value)


def test_a_node_that_a_daemon_set_is_not_for_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rollout, "_NO_NODE_S", 0.05)
    with pytest.raises(RolloutError) as error:
        recorders(on_node(a_pod("a", DAEMON_SET), "good"), nodes=("good", "bad"))
    assert error.value.cause == "NoNode"
    assert "node bad" in str(error.value)


@pytest.mark.parametrize(
    ("generation", "observed", "pods", "cause"),
    [
        (1, None, [], "FailedCreate"),
        (1, None, [on_node(a_pod("a", DAEMON_SET), "good")], "Timeout"),
        (2, 1, [], "Timeout"),
    ],
    ids=["refused", "made since", "not since the change"],
)
def test_a_daemon_set_whose_pods_are_refused_is_told_by_its_events_while_its_status_lags(
    generation: int, observed: int | None, pods: list[Any], cause: str
) -> None:
    daemon_set = a_daemon_set(age_s=15)
    daemon_set["metadata"]["generation"] = generation
    daemon_set["status"] = {"observedGeneration": observed} if observed else {}
    event = made(
        "Event",
        "e",
        reason="FailedCreate",
        message="pods are forbidden: exceeded quota: gpus",
        involvedObject={"name": "recorder", "uid": "DaemonSet-recorder"},
    )
    api = Api(FakeTransport(Objects(daemon_set, event, *pods)))
    with pytest.raises(RolloutError) as error:
        wait_for_daemonset(api, "bench", "recorder", ["good"], 0.1)
    assert error.value.cause == cause
    assert ("quota" in str(error.value)) == (cause == "FailedCreate")


# --- nodes


@pytest.mark.parametrize(
    ("node", "cause"),
    [
        (("Unknown", 15.0), "NodeNotReady"),
        (("Unknown", 5.0), "Timeout"),
        (("False", 60.0), "NodeNotReady"),
        (("False", 1.0), "Timeout"),
        (("True", 60.0), "Timeout"),
        (None, "NodeGone"),
    ],
    ids=[
        "no word of the kubelet",
        "none for a heartbeat",
        "not ready",
        "just starting",
        "ready",
        "gone",
    ],
)
def test_a_pod_that_is_not_ready_is_told_by_its_node(
    node: tuple[str, float] | None, cause: str
) -> None:
    pod = on_node(a_pod("c", None, ready=False), "gpu-1")
    api = Api(FakeTransport(Objects(pod, *([a_node("gpu-1", *node)] if node else []))))
    with pytest.raises(RolloutError) as error:
        wait_for_pod(api, "bench", "c", 0.1)
    assert error.value.cause == cause
    if cause == "NodeNotReady":
        with pytest.raises(RolloutError) as error:
            require_unchanged(api, [pod])
        assert error.value.cause == cause
        assert "gpu-1" in str(
            error.value
        ) and "Kubelet stopped posting node status." in str(error.value)


def test_a_pod_of_its_own_is_ready_or_broken() -> None:
    assert (
        wait_for_pod(Api(FakeTransport(Objects(a_pod("c", None)))), "bench", "c", 1.0)[
            "metadata"
        ]["name"]
        == "c"
    )
    ended = a_pod("c", None, ready=False, phase="Succeeded")
    for pod, cause in ((crashing("c", None), "CrashLoopBackOff"), (ended, "Completed")):
        with pytest.raises(RolloutError) as error:
            wait_for_pod(Api(FakeTransport(Objects(pod))), "bench", "c", 1.0)
        assert (error.value.cause, error.value.facts["object"]) == (
            cause,
            "Pod bench/c",
        )


# --- jobs


def a_job(
    condition: dict[str, Any] | None = None, uid: str = "Job-load", **spec: Any
) -> dict[str, Any]:
    status = {"conditions": [condition | {"status": "True"}]} if condition else {}
    about = {"uid": uid, "creationTimestamp": stamp()}
    return made(
        "Job", "load", version="batch/v1", metadata=about, spec=spec, status=status
    )


def job_done(
    objects: Objects, *changes: Change, timeout_s: float = 5.0, **options: Any
) -> Any:
    objects.changes = list(changes)
    return wait_for_job(
        Api(FakeTransport(objects)), "bench", "load", timeout_s, **options
    )


def test_a_job_that_completed_returns_its_pod() -> None:
    job = a_job({"type": "Complete"})
    objects = Objects(job, a_pod("load-x", job, ready=False, phase="Succeeded"))
    assert [pod["metadata"]["name"] for pod in job_done(objects)] == ["load-x"]


def test_a_job_that_failed_says_how_its_pod_ended(tmp_path: Path) -> None:
    job = a_job(
        {
            "type": "Failed",
            "reason": "BackoffLimitExceeded",
            "message": "Job has reached the limit",
        }
    )
    state = {"terminated": {"exitCode": 3, "reason": "Error"}}
    pod = a_pod(
        "load-x",
        job,
        ready=False,
        phase="Failed",
        containerStatuses=[{"name": "guidellm", "state": state}],
    )
    with pytest.raises(RolloutError) as error:
        job_done(Objects(job, pod))
    assert "\n" not in str(error.value) and "no GPU" not in str(error.value)
    kept = tmp_path / "raw" / "cluster.log"
    said = f"{error.value}: ValueError: no GPU; see {kept}"
    assert error.value.keep_evidence(tmp_path / "raw") == said
    assert "ValueError: no GPU" in kept.read_text()
    assert (error.value.cause, error.value.pod) == ("Error", "load-x")
    assert error.value.facts == {
        "object": "Job bench/load",
        "container": "guidellm",
        "exit_code": 3,
    }


def test_a_job_that_took_too_long_says_its_limit() -> None:
    verdict = {
        "type": "Failed",
        "reason": "DeadlineExceeded",
        "message": "Job was active longer than specified deadline",
    }
    with pytest.raises(RolloutError, match=verdict["message"]) as failure:
        job_done(Objects(a_job(verdict, activeDeadlineSeconds=120)))
    assert failure.value.cause == "DeadlineExceeded"
    assert (failure.value.facts["object"], failure.value.facts["limit_s"]) == (
        "Job bench/load",
        120,
    )


def test_a_pod_that_ended_is_left_to_the_jobs_own_verdict() -> None:
    job = a_job()
    state = {"terminated": {"exitCode": 3, "reason": "Error"}}
    failed = a_pod(
        "load-x",
        job,
        ready=False,
        phase="Failed",
        containerStatuses=[{"name": "g", "state": state}],
    )

    def finish(state: Objects) -> None:
        put(state, a_job({"type": "Complete"}))
        put(state, a_pod("load-y", job, ready=False, phase="Succeeded"))

    nothing: Change = lambda state: None  # noqa: E731
    assert [
        pod["metadata"]["name"]
        for pod in job_done(Objects(job, failed), nothing, finish, nothing)
    ] == ["load-y"]


def test_a_job_whose_pod_was_deleted_is_completed_by_another_one() -> None:
    job = a_job()
    first = a_pod("load-x", job)

    def replace(state: Objects) -> None:
        state.present.remove(first)
        put(state, a_job({"type": "Complete"}))
        put(state, a_pod("load-y", job, ready=False, phase="Succeeded"))

    done = job_done(
        Objects(job, first), lambda state: None, replace, lambda state: None
    )
    assert [pod["metadata"]["name"] for pod in done] == ["load-y"]


# --- pods in use


def test_pods_in_use_must_stay_the_same() -> None:
    state = {
        "name": "vllm",
        "restartCount": 1,
        "state": {"running": {}},
        "lastState": {},
    }
    before = a_pod("a", None, containerStatuses=[state])
    api = Api(FakeTransport(Objects(before)))
    require_unchanged(api, [before])

    last = {"terminated": {"exitCode": 139, "reason": "Error"}}
    again = a_pod(
        "a", None, containerStatuses=[state | {"restartCount": 2, "lastState": last}]
    )
    with pytest.raises(RolloutError) as error:
        require_unchanged(Api(FakeTransport(Objects(again))), [before])
    assert (error.value.facts["object"], error.value.facts["exit_code"]) == (
        "Pod bench/a",
        139,
    )
    for now in ([], [a_pod("a", None, going=True)], [a_pod("a", None) | {}]):
        if now and not now[0]["metadata"].get("deletionTimestamp"):
            now[0]["metadata"]["uid"] = "another"
        with pytest.raises(RolloutError) as error:
            require_unchanged(Api(FakeTransport(Objects(*now))), [before])
        assert (error.value.cause, error.value.facts["object"]) == (
            "PodDeleted",
            "Pod bench/a",
        )


def test_an_eviction_of_a_pod_in_use_is_told_from_a_deletion() -> None:
    cause = {"reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting"}
    target = {"type": "DisruptionTarget", "status": "True", **cause}
    going = a_pod("a", None, going=True)
    going["status"]["conditions"] = [target]
    with pytest.raises(RolloutError) as error:
        require_unchanged(Api(FakeTransport(Objects(going))), [a_pod("a", None)])
    said = "was deleted while it was in use (EvictionByEvictionAPI: Eviction API: evicting)"
    assert str(error.value) == f"Pod bench/a {said}"


def waits_for_a_node(**spec: Any) -> Any:
    said = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "lastTransitionTime": stamp(20),
    }
    pod = a_pod(
        "c", None, ready=False, phase="Pending", conditions=[said], startTime=None
    )
    pod["spec"] |= spec
    return pod


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ('storageclass.storage.k8s.io "nosuch" not found', "NoStorageClass"),
        (
            "no persistent volumes available and no storage class is set",
            "NoStorageClass",
        ),
        ("waiting for a volume to be created, by csi.example.test", "Timeout"),
    ],
)
def test_a_claim_that_is_never_bound_is_told_at_once_and_named_while_it_waits(
    words: str, cause: str
) -> None:
    claim = made("PersistentVolumeClaim", "weights", status={"phase": "Pending"})
    about = {"name": "weights", "uid": claim["metadata"]["uid"]}
    event = made("Event", "e", message=words, involvedObject=about)
    volume = {"name": "w", "persistentVolumeClaim": {"claimName": "weights"}}
    objects = Objects(waits_for_a_node(volumes=[volume]), claim, event)
    said: list[str] = []
    with pytest.raises(RolloutError) as error:
        wait_for_pod(Api(FakeTransport(objects)), "bench", "c", 0.2, said.append)
    assert error.value.cause == cause
    assert words in str(error.value)
    assert cause != "Timeout" or f"claim weights: {words}" in said[0]


def test_patience_is_the_callers() -> None:
    pod = waits_for_a_node()
    api = Api(FakeTransport(Objects(pod)))
    with pytest.raises(RolloutError) as error:
        wait_for_pod(api, "bench", "c", 5.0, patience=Patience(unschedulable_s=10))
    assert (error.value.cause, error.value.pod) == ("Unschedulable", "c")
    with pytest.raises(RolloutError) as error:
        wait_for_pod(api, "bench", "c", 0.2)
    assert error.value.cause == "Timeout"
