"""What goes wrong on a cluster is found at once and named: a real API server, a stand-in node that fails on demand."""

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.pod_waits import wait_for_pod
from tests.support.testbed import (
    Testbed,
    a_deployment,
    a_job,
    a_namespace,
    a_pod,
    deadline_kept,
    own_testbed,
    pod_template,
    shell,
    wait_until,
)

from kveval.engines.kubernetes.api.client import Api
from kveval.engines.kubernetes.api.errors import ClusterError
from kveval.engines.kubernetes.api.kinds import DEPLOYMENT, NODE, POD
from kveval.engines.kubernetes.teardown import remove
from kveval.engines.kubernetes.wait.diagnosis import Patience
from kveval.engines.kubernetes.wait.rollout import (
    RolloutError,
    require_unchanged,
    wait_for_daemonset,
    wait_for_deployment,
    wait_for_job,
)

pytestmark = pytest.mark.cluster
Record = Callable[[str, float, float], None]


def failing(
    wait: Callable[[], Any], record: Record, name: str, limit_s: float
) -> RolloutError:
    """Return how a wait failed, and note how soon."""
    begin = time.monotonic()
    with pytest.raises(RolloutError) as failure:
        wait()
    seconds = time.monotonic() - begin
    record(f"cluster: {name}", seconds, limit_s)
    assert seconds <= limit_s
    first = str(failure.value).splitlines()[0]
    assert failure.value.cause in first or failure.value.cause in (
        "Timeout",
        "PodDeleted",
        "Deleted",
    )
    return failure.value


@pytest.mark.parametrize(
    ("mode", "cause"),
    [("imagepull", "ImagePullBackOff"), ("crashloop", "CrashLoopBackOff")],
)
def test_a_container_that_will_not_start(
    cluster_api: Api, namespace: str, record_fault: Record, mode: str, cause: str
) -> None:
    cluster_api.apply([a_deployment(namespace, "server", pod_template(mode))])
    error = failing(
        lambda: wait_for_deployment(cluster_api, namespace, "server", 60.0),
        record_fault,
        mode,
        20.0,
    )
    assert error.cause == cause
    assert re.match(
        rf"Deployment {namespace}/server: {cause}: .* main of pod server-", str(error)
    )
    assert "events of Deployment" in error.evidence


def test_a_server_that_really_crashes_is_quoted(
    cluster_api: Api, namespace: str, record_fault: Record
) -> None:
    template = pod_template(
        "exec", "echo 'ValueError: No available memory for the cache blocks'; exit 1"
    )
    cluster_api.apply([a_deployment(namespace, "server", template)])
    error = failing(
        lambda: wait_for_deployment(cluster_api, namespace, "server", 60.0),
        record_fault,
        "crash",
        20.0,
    )
    assert error.cause in ("CrashLoopBackOff", "Error")
    assert "ValueError: No available memory for the cache blocks" in error.evidence


def test_a_pod_that_no_node_takes_up(
    cluster_api: Api, namespace: str, record_fault: Record
) -> None:
    cluster_api.apply([a_deployment(namespace, "server", pod_template("pending"))])
    patience = Patience(unseen_s=3.0)
    error = failing(
        lambda: wait_for_deployment(
            cluster_api, namespace, "server", 60.0, patience=patience
        ),
        record_fault,
        "never started (patience 3 s)",
        20.0,
    )
    assert error.cause == "NotStarted"
    assert "node fake-0 has not" in str(error)


def set_status(api: Api, namespace: str, pod: str, status: dict[str, Any]) -> None:
    path = POD.path(namespace, pod)
    api.request("PATCH", f"{path}/status", body={"status": status}, content="merge")


def test_a_pod_that_fits_no_node(
    cluster_api: Api, namespace: str, record_fault: Record
) -> None:
    cluster_api.apply([a_pod(namespace, "server", pod_template("pending"))])
    since = cluster_api.now().strftime("%Y-%m-%dT%H:%M:%SZ")
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "lastTransitionTime": since,
    }
    wait_until(
        lambda: (cluster_api.read(POD, "server", namespace) or {})["spec"].get(
            "nodeName"
        ),
        "the binding",
    )
    set_status(
        cluster_api,
        namespace,
        "server",
        {
            "conditions": [
                condition
                | {"message": "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."}
            ]
        },
    )
    patience = Patience(unschedulable_s=3.0)
    error = failing(
        lambda: wait_for_pod(cluster_api, namespace, "server", 60.0, patience=patience),
        record_fault,
        "unschedulable (patience 3 s)",
        20.0,
    )
    assert error.cause == "Unschedulable"
    assert "Insufficient nvidia.com/gpu" in str(error)


def test_a_server_that_runs_out_of_memory(
    cluster_api: Api, namespace: str, record_fault: Record
) -> None:
    cluster_api.apply(
        [a_deployment(namespace, "server", pod_template("serve", ready_after="60"))]
    )
    [pod] = wait_until(
        lambda: cluster_api.list(POD, namespace, "app=server"), "the pod"
    )
    name = pod["metadata"]["name"]
    wait_until(
        lambda: cluster_api.read(POD, name, namespace)["status"].get("startTime"),
        "its start",
    )  # type: ignore[index]
    # What a kubelet writes when the kernel has killed the container; the stand-in node has no memory limits.
    killed = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    status = {
        "name": "main",
        "image": "x",
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": killed,
    }

    def kill() -> None:
        time.sleep(1.0)
        set_status(cluster_api, namespace, name, {"containerStatuses": [status]})

    threading.Thread(target=kill).start()
    error = failing(
        lambda: wait_for_deployment(cluster_api, namespace, "server", 60.0),
        record_fault,
        "out of memory after 1 s",
        15.0,
    )
    assert error.cause == "OOMKilled"
    assert "memory limit" in str(error).splitlines()[0]


@pytest.mark.parametrize("kind", ["Deployment", "DaemonSet"])
def test_a_namespace_whose_quota_is_used_up(
    kind: str, cluster_api: Api, namespace: str, record_fault: Record
) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "none", "namespace": namespace},
    }
    cluster_api.apply([quota | {"spec": {"hard": {"pods": "0"}}}])
    wait_until(
        lambda: (
            cluster_api.get(f"/api/v1/namespaces/{namespace}/resourcequotas/none").get(
                "status"
            )
            or {}
        ).get("hard"),
        "the quota",
    )
    document = a_deployment(namespace, "server", pod_template("serve"))
    document["kind"] = kind
    if kind == "DaemonSet":
        del document["spec"]["replicas"]
    cluster_api.apply([document])
    nodes = [str(node["metadata"]["name"]) for node in cluster_api.list(NODE)]
    where = (cluster_api, namespace, "server")
    error = failing(
        lambda: (
            wait_for_deployment(*where, 60.0)
            if kind == "Deployment"
            else wait_for_daemonset(*where, nodes, 60.0)
        ),
        record_fault,
        f"quota, {kind} (10 s of grace)",
        30.0,
    )
    assert error.cause == "FailedCreate"
    assert "exceeded quota: none" in str(error)


def test_a_job_that_fails(
    cluster_api: Api, namespace: str, record_fault: Record
) -> None:
    cluster_api.apply(
        [
            a_job(
                namespace,
                "load",
                pod_template("exec", "echo 'no such dataset' >&2; exit 3"),
            )
        ]
    )
    error = failing(
        lambda: wait_for_job(cluster_api, namespace, "load", 60.0),
        record_fault,
        "failing job",
        20.0,
    )
    assert re.match(rf"Job {namespace}/load: Error: .* main of pod load-", str(error))
    assert "exit code 3" in str(error).splitlines()[0]
    assert "no such dataset" in error.evidence


def test_a_job_that_takes_too_long(
    cluster_api: Api, namespace: str, record_fault: Record
) -> None:
    cluster_api.apply(
        [
            a_job(
                namespace,
                "load",
                pod_template("exec", "sleep 600"),
                activeDeadlineSeconds=3,
            )
        ]
    )
    with deadline_kept(cluster_api, namespace, "load"):
        error = failing(
            lambda: wait_for_job(cluster_api, namespace, "load", 60.0),
            record_fault,
            "deadline of 3 s exceeded",
            20.0,
        )
    assert error.cause == "DeadlineExceeded"
    assert "(3 s)" in str(error)


def test_a_pod_deleted_while_its_rollout_is_waited_for(
    cluster_api: Api, namespace: str
) -> None:
    cluster_api.apply(
        [a_deployment(namespace, "server", pod_template("serve", ready_after="2"))]
    )
    [first] = wait_until(
        lambda: cluster_api.list(POD, namespace, "app=server"), "the pod"
    )
    threading.Timer(
        0.5,
        lambda: cluster_api.delete(
            POD, first["metadata"]["name"], namespace, grace_s=0
        ),
    ).start()
    [pod] = wait_for_deployment(cluster_api, namespace, "server", 60.0)
    assert pod["metadata"]["uid"] != first["metadata"]["uid"]


def test_a_pod_deleted_while_it_is_in_use(
    cluster_api: Api, namespace: str, record_fault: Record
) -> None:
    cluster_api.apply([a_deployment(namespace, "server", pod_template("serve"))])
    pods = wait_for_deployment(cluster_api, namespace, "server", 60.0)
    require_unchanged(cluster_api, pods)
    cluster_api.delete(POD, pods[0]["metadata"]["name"], namespace)
    failing(
        lambda: require_unchanged(cluster_api, pods),
        record_fault,
        "pod in use deleted",
        5.0,
    )


def test_an_update_is_waited_for_and_pods_of_the_old_one_do_not_count(
    cluster_api: Api, namespace: str
) -> None:
    strategy = {"type": "Recreate"}
    cluster_api.apply(
        [a_deployment(namespace, "server", pod_template("serve"), 2, strategy=strategy)]
    )
    before = wait_for_deployment(cluster_api, namespace, "server", 60.0)
    changed = a_deployment(
        namespace,
        "server",
        pod_template("serve", ready_after="1"),
        2,
        strategy=strategy,
    )
    cluster_api.apply([changed])
    after = wait_for_deployment(cluster_api, namespace, "server", 60.0)
    assert len(after) == 2
    assert not {pod["metadata"]["uid"] for pod in before} & {
        pod["metadata"]["uid"] for pod in after
    }
    assert all(
        pod["metadata"]["annotations"]["fakelet/ready-after"] == "1" for pod in after
    )


def test_a_deployment_that_is_not_there_or_goes(
    cluster_api: Api, namespace: str, record_fault: Record
) -> None:
    cluster_api.apply(
        [a_deployment(namespace, "server", pod_template("serve", ready_after="60"))]
    )
    threading.Timer(
        1.0, lambda: cluster_api.delete(DEPLOYMENT, "server", namespace)
    ).start()
    error = failing(
        lambda: wait_for_deployment(cluster_api, namespace, "server", 60.0),
        record_fault,
        "deployment deleted after 1 s (10 s of grace)",
        25.0,
    )
    assert error.cause == "Deleted"


# --- an API server that goes away


def restarted(testbed: Testbed, after_s: float, away_s: float) -> threading.Thread:
    """Kill the API server in a while, and start it again later."""

    def run() -> None:
        time.sleep(after_s)
        testbed.kill_api_server()
        time.sleep(away_s)
        testbed.start_api_server()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_an_api_server_killed_and_restarted_ends_no_wait(
    testbed: Testbed, record_fault: Record
) -> None:
    said: list[str] = []
    api = testbed.api()
    with a_namespace(api) as namespace:
        api.apply(
            [a_deployment(namespace, "server", pod_template("serve", ready_after="6"))]
        )
        begin = time.monotonic()
        restart = restarted(testbed, 1.0, 3.0)
        [pod] = wait_for_deployment(api, namespace, "server", 120.0, say=said.append)
        restart.join()
        ready = next(
            found for found in pod["status"]["conditions"] if found["type"] == "Ready"
        )
        assert ready["status"] == "True"
        record_fault(
            "cluster: rollout over a restart of the API server",
            time.monotonic() - begin,
            60.0,
        )
        assert said


def test_a_failure_after_an_outage_is_found_as_soon_as_without_one(
    testbed: Testbed, record_fault: Record
) -> None:
    api = testbed.api()
    failed_at = 0.0
    with a_namespace(api) as namespace:
        api.apply(
            [
                a_job(
                    namespace,
                    "load",
                    pod_template(
                        "exec", "until [ -e /fail ]; do sleep 0.1; done; exit 9"
                    ),
                )
            ]
        )

        def fail_later() -> None:
            nonlocal failed_at
            wait_until(
                lambda: api.list(POD, namespace, fields="status.phase=Running"),
                "the pod",
            )
            testbed.kill_api_server()
            time.sleep(2.0)
            testbed.start_api_server()
            [pod] = api.list(POD, namespace)
            time.sleep(1.0)
            shell(api, namespace, pod["metadata"]["name"], "touch /fail")
            failed_at = time.monotonic()

        failing_later = threading.Thread(target=fail_later)
        failing_later.start()
        with pytest.raises(RolloutError, match="exit code 9"):
            wait_for_job(api, namespace, "load", 120.0)
        found_at = time.monotonic()
        failing_later.join()
        record_fault(
            "cluster: job failing after a restart of the API server",
            found_at - failed_at,
            20.0,
        )


def test_a_command_in_a_pod_is_cut_off_and_the_next_one_waits_for_the_server(
    testbed: Testbed,
) -> None:
    api = testbed.api()
    with a_namespace(api) as namespace:
        api.apply([a_pod(namespace, "p", pod_template("serve"))])
        wait_for_pod(api, namespace, "p", 60.0)
        restart = restarted(testbed, 1.0, 2.0)
        with pytest.raises(ClusterError, match="was cut off"):
            api.exec(namespace, "p", "main", ["sleep", "30"])
        assert shell(api, namespace, "p", "echo back") == "back"
        restart.join()


def test_an_api_server_that_stays_away_is_named(
    testbed: Testbed, record_fault: Record
) -> None:
    api = testbed.api(outage_s=4.0)
    with a_namespace(testbed.api()) as namespace:
        api.apply(
            [a_deployment(namespace, "server", pod_template("serve", ready_after="60"))]
        )
        restart = restarted(testbed, 1.0, 10.0)
        begin = time.monotonic()
        with pytest.raises(ClusterError, match=r"\b4 s\b.*refused"):
            wait_for_deployment(api, namespace, "server", 120.0)
        record_fault(
            "cluster: API server gone after 1 s (patience 4 s)",
            time.monotonic() - begin,
            15.0,
        )
        restart.join()


def test_a_teardown_outlasts_a_restart_too(testbed: Testbed) -> None:
    api = testbed.api()
    with a_namespace(api) as namespace:
        api.apply([a_deployment(namespace, "server", pod_template("serve"), 3)])
        wait_for_deployment(api, namespace, "server", 60.0)
        restart = restarted(testbed, 0.3, 2.0)
        found = remove(api, {namespace: ""}, timeout_s=300.0)
        restart.join()
        assert f"Deployment {namespace}/server" in found.removed
        assert api.list(POD, namespace) == []


def test_without_a_testbed_of_ones_own_such_tests_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KVEVAL_TESTBED", raising=False)
    with (
        pytest.raises(pytest.skip.Exception, match="KVEVAL_TESTBED"),
        own_testbed(tmp_path),
    ):
        pass
