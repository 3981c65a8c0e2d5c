"""What becomes of a run whose job, node or neighbours fail it: a real API server with several stand-in nodes."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.support.pod_waits import wait_for_pod
from tests.support.testbed import (
    Testbed,
    a_deployment,
    a_namespace,
    a_pod,
    deadline_kept,
    own_testbed,
    pod_template,
    wait_until,
)

from kveval.campaign.site import Cluster
from kveval.engines.kubernetes import lifetime
from kveval.engines.kubernetes.api.client import Api
from kveval.engines.kubernetes.api.errors import ClusterError, NodeNotReady
from kveval.engines.kubernetes.api.kinds import (
    CONFIG_MAP,
    DAEMON_SET,
    DEPLOYMENT,
    JOB,
    POD,
)
from kveval.engines.kubernetes.api.names import labels, selector
from kveval.engines.kubernetes.manifests.lifetime import owner_job
from kveval.engines.kubernetes.teardown import remove
from kveval.engines.kubernetes.wait.diagnosis import Patience
from kveval.engines.kubernetes.wait.rollout import (
    RolloutError,
    require_unchanged,
    wait_for_daemonset,
    wait_for_deployment,
)

pytestmark = pytest.mark.cluster
Record = Callable[[str, float, float], None]
GPU = {"limits": {"nvidia.com/gpu": "1"}}
TAINT = "taint=nvidia.com/gpu=present:NoSchedule"
TOLERATED = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
# Kubernetes 1.20 removes what has ended only when it is told to; since 1.23 every cluster does.
GATES = "--feature-gates=TTLAfterFinished=true"
RUN = labels("spring", "m/native-offload/1", 1, "ab", "model-server")


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    """Two small nodes; one with a GPU comes 3 s after a pod wants one."""
    env = {"SCALE_UP_AFTER": "3", "SCALE_UP_MAX": "1"}
    env |= {
        "SCALE_UP_NODE": f"gpus=1,cpu=8,memory=32Gi,{TAINT}",
        "APISERVER_FLAGS": GATES,
        "KCM_FLAGS": GATES,
    }
    small = "small-0:cpu=4,memory=8Gi small-1:cpu=4,memory=8Gi"
    with own_testbed(
        tmp_path_factory.mktemp("nodes") / "run",
        "--default-mode serve",
        nodes=small,
        env=env,
    ) as testbed:
        yield testbed


@pytest.fixture
def api(nodes: Testbed) -> Api:
    return nodes.api()


@pytest.fixture
def namespace(api: Api) -> Iterator[str]:
    with a_namespace(api) as name:
        yield name


def on(template: dict[str, Any], node: str = "", **spec: Any) -> dict[str, Any]:
    """Have pods of a template run on one node."""
    template["spec"] |= (
        {"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}
    ) | spec
    return template


def of_run(namespace: str) -> dict[str, Any]:
    return owner_job(
        Cluster.model_validate({"address": "service"}), namespace, "run", RUN
    )


def begun(api: Api, namespace: str, expiry_s: int) -> dict[str, Any]:
    """Begin a lifetime and note when, as job controllers do since they count ready pods (1.24): this one does not."""
    job = lifetime.ensure_owner_job(api, of_run(namespace), expiry_s=expiry_s)
    started = {"status": {"startTime": job["metadata"]["creationTimestamp"]}}
    api.request(
        "PATCH", f"{JOB.path(namespace, 'run')}/status", body=started, content="merge"
    )
    return job


def test_what_nobody_prolongs_goes_by_itself_and_what_is_prolonged_stays(
    api: Api, namespace: str
) -> None:
    begin = time.monotonic()
    job = begun(api, namespace, 8)
    server = a_deployment(namespace, "server", pod_template("serve"))
    server["metadata"]["labels"] |= RUN
    shared = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "shared", "namespace": namespace},
    }
    api.apply([server, shared])
    wait_for_deployment(api, namespace, "server", 60.0)
    # Once before the first deadline and once after it: up to 1.24 a controller forgot what was prolonged meanwhile
    # (kubernetes#90553; mended in 1.24.2 and since, #110294).
    for at_s, prolonged in ((5, True), (10, True), (13, False)):
        time.sleep(max(0.0, begin + at_s - time.monotonic()))
        if prolonged:
            lifetime.prolong(api, job, 8)
    assert api.read(DEPLOYMENT, "server", namespace) is not None
    kinds = (JOB, DEPLOYMENT, POD)
    wait_until(
        lambda: not any(api.list(kind, namespace) for kind in kinds),
        "the end of all of it",
        120.0,
    )
    assert api.read(CONFIG_MAP, "shared", namespace) is not None


def is_over(api: Api, namespace: str) -> bool:
    """Whether the lifetime has ended, as a job controller in a hurry or not sees it."""
    job = api.read(JOB, "run", namespace)
    return job is None or bool(
        job["metadata"].get("deletionTimestamp")
        or (job.get("status") or {}).get("conditions")
    )


def test_a_lifetime_that_has_ended_is_begun_anew(api: Api, namespace: str) -> None:
    first = begun(api, namespace, 1)
    with deadline_kept(api, namespace, "run"):
        wait_until(lambda: is_over(api, namespace), "the end of the lifetime", 40.0)
    again = lifetime.ensure_owner_job(api, of_run(namespace))
    assert again["metadata"]["uid"] != first["metadata"]["uid"]
    assert (
        lifetime.ensure_owner_job(api, of_run(namespace))["metadata"]["uid"]
        == again["metadata"]["uid"]
    )


def test_an_autoscalers_node_is_waited_for_with_its_words(
    api: Api, namespace: str, record_fault: Record
) -> None:
    template = on(pod_template("serve"), tolerations=TOLERATED)
    template["spec"]["containers"][0]["resources"] = GPU
    api.apply([a_deployment(namespace, "server", template)])
    said: list[str] = []
    begin = time.monotonic()
    [pod] = wait_for_deployment(api, namespace, "server", 90.0, said.append)
    record_fault("cluster: a node is added after 3 s", time.monotonic() - begin, 60.0)
    assert pod["spec"]["nodeName"].startswith("auto-")
    assert any(
        "Insufficient nvidia.com/gpu" in text and "TriggeredScaleUp" in text
        for text in said
    )


def test_a_node_that_no_autoscaler_has_is_not_waited_for(
    api: Api, namespace: str, record_fault: Record
) -> None:
    template = on(pod_template("serve"), "none", tolerations=TOLERATED)
    template["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "8"}}
    del template["spec"]["nodeSelector"]
    api.apply([a_pod(namespace, "server", template)])
    begin = time.monotonic()
    with pytest.raises(RolloutError) as error:
        wait_for_pod(api, namespace, "server", 90.0, patience=Patience(refused_s=5.0))
    record_fault("cluster: no such node (patience 5 s)", time.monotonic() - begin, 30.0)
    assert error.value.cause == "NotTriggerScaleUp"
    assert "Insufficient nvidia.com/gpu" in str(error.value)


def test_a_node_that_falls_silent_is_named_within_a_minute(
    nodes: Testbed, api: Api, namespace: str, record_fault: Record
) -> None:
    """And what runs on other nodes goes on, and a teardown does not wait for it."""
    daemon = a_deployment(namespace, "recorder", pod_template("serve"))
    daemon["kind"] = "DaemonSet"
    del daemon["spec"]["replicas"]
    first, second = (
        a_deployment(
            namespace, f"server-{number}", on(pod_template("serve"), f"small-{number}")
        )
        for number in (0, 1)
    )
    api.apply([first, second, daemon])
    pods = [
        wait_for_deployment(api, namespace, f"server-{number}", 60.0)[0]
        for number in (0, 1)
    ]
    wait_for_daemonset(api, namespace, "recorder", ["small-0", "small-1"], 60.0)
    silent = int((nodes.folder / "fakelet-small-1.pid").read_text())
    os.kill(silent, signal.SIGSTOP)
    try:
        begin = time.monotonic()
        with pytest.raises(NodeNotReady) as lost:
            api.exec(namespace, pods[1]["metadata"]["name"], "main", ["true"])
        record_fault("cluster: node silent, a command", time.monotonic() - begin, 60.0)
        assert time.monotonic() - begin < 60
        assert lost.value.facts["node"] == "small-1"
        assert "Kubelet stopped posting node status" in str(lost.value)
        require_unchanged(api, [pods[0]])
        with pytest.raises(RolloutError) as error:
            require_unchanged(api, pods)
        assert error.value.cause == "NodeNotReady"
        # Known by now: nothing waits for it any more.
        begin = time.monotonic()
        with pytest.raises(ClusterError):
            api.logs(namespace, pods[1]["metadata"]["name"], "main")
        assert time.monotonic() - begin < 5
        wait_for_daemonset(api, namespace, "recorder", ["small-0"], 30.0)
        said: list[str] = []
        begin = time.monotonic()
        remove(
            api,
            {namespace: selector()},
            kinds=[DAEMON_SET, DEPLOYMENT, POD],
            say=said.append,
        )
        record_fault(
            "cluster: node silent, the teardown", time.monotonic() - begin, 60.0
        )
        assert time.monotonic() - begin < 60
        assert any("once node small-1 is back" in text for text in said)
    finally:
        os.kill(silent, signal.SIGCONT)
