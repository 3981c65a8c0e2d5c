"""Why a pod will not run, from statuses as kubelets and schedulers write them."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kveval.engines.kubernetes.wait.diagnosis import (
    Patience,
    is_ready,
    not_terminating,
    restarts,
    trouble_of,
    waits_for,
)

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


def ago(seconds: float) -> str:
    return (NOW - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def a_pod(
    phase: str = "Running", seconds: float = 5, conditions: Any = (), **status: Any
) -> dict[str, Any]:
    """A pod that was bound to its node `seconds` ago."""
    bound = {
        "type": "PodScheduled",
        "status": "True",
        "lastTransitionTime": ago(seconds),
    }
    found = [*conditions] or [bound]
    return {
        "metadata": {"name": "server-0", "creationTimestamp": ago(seconds)},
        "spec": {"nodeName": "gpu-1"},
        "status": {"phase": phase, "conditions": found, **status},
    }


def container(
    state: dict[str, Any], last: dict[str, Any] | None = None, again: int = 0
) -> dict[str, Any]:
    return {
        "name": "vllm",
        "image": "vllm:v1",
        "restartCount": again,
        "state": state,
        "lastState": last or {},
    }


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


def terminated(code: int, reason: str = "Error") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason}}


RUNNING: dict[str, Any] = {"running": {"startedAt": ago(5)}}


@pytest.mark.parametrize(
    ("status", "cause", "code", "told", "fix"),
    [
        (
            container(waiting("ImagePullBackOff", "Back-off x")),
            "ImagePullBackOff",
            None,
            "vllm:v1, Back-off x",
            "tag",
        ),
        (
            container(waiting("ErrImagePull", "vllm:v1 not found")),
            "ErrImagePull",
            None,
            "not found",
            "tag",
        ),
        (
            container(waiting("ErrImagePull", "access denied")),
            "ErrImagePull",
            None,
            "denied",
            "image_pull_secrets",
        ),
        (
            container(waiting("InvalidImageName")),
            "InvalidImageName",
            None,
            "vllm:v1",
            "name",
        ),
        (
            container(waiting("CreateContainerConfigError", 'secret "hf" not found')),
            "CreateContainerConfigError",
            None,
            '"hf"',
            "Secret",
        ),
        (
            container(waiting("RunContainerError", "no such file")),
            "RunContainerError",
            None,
            "no such file",
            "command",
        ),
        (
            container(waiting("CrashLoopBackOff"), terminated(1), 3),
            "CrashLoopBackOff",
            1,
            "1",
            "log",
        ),
        (
            container(waiting("CrashLoopBackOff"), terminated(137), 1),
            "CrashLoopBackOff",
            137,
            "SIGKILL",
            "log",
        ),
        (
            container(waiting("CrashLoopBackOff"), terminated(137, "OOMKilled"), 4),
            "OOMKilled",
            137,
            "137",
            "memory",
        ),
        (container(terminated(137, "OOMKilled")), "OOMKilled", 137, "137", "memory"),
        (
            container(RUNNING, terminated(137, "OOMKilled"), 1),
            "OOMKilled",
            137,
            "137",
            "memory",
        ),
        (container(RUNNING, terminated(1), 1), "Error", 1, "1", "log"),
        (container(terminated(2)), "Error", 2, "2", "log"),
    ],
)
def test_a_container_that_will_not_run_is_named_with_the_cause(
    status: Any, cause: str, code: int | None, told: str, fix: str
) -> None:
    found = trouble_of(a_pod(containerStatuses=[status]), now=NOW)
    assert found is not None
    assert (found.cause, found.pod, found.container, found.exit_code) == (
        cause,
        "server-0",
        "vllm",
        code,
    )
    assert told in found.text
    assert fix in found.fix
    assert found.line().startswith(f"{cause}: ")
    assert "\n" not in found.line()


@pytest.mark.parametrize(
    "status",
    [
        container(RUNNING),
        container(waiting("ContainerCreating")),
        container(waiting("PodInitializing")),
        container(waiting("ErrImagePull", "toomanyrequests: try again later")),
        container(terminated(0, "Completed")),
    ],
)
def test_what_passes_by_itself_is_no_trouble(status: Any) -> None:
    assert (
        trouble_of(
            a_pod("Pending", containerStatuses=[status], startTime=ago(5)), now=NOW
        )
        is None
    )


def test_the_log_before_a_restart_tells_more_when_the_container_runs_again() -> None:
    again = trouble_of(
        a_pod(containerStatuses=[container(RUNNING, terminated(1), 1)]), now=NOW
    )
    crashed = trouble_of(
        a_pod(
            containerStatuses=[container(waiting("CrashLoopBackOff"), terminated(1), 1)]
        ),
        now=NOW,
    )
    assert again is not None and again.previous
    assert crashed is not None and not crashed.previous


def test_a_container_may_end_as_often_as_the_patience_says_but_not_for_want_of_memory() -> (
    None
):
    patience = Patience(restarts=2)
    for number, fine in ((0, True), (1, True), (2, False)):
        pod = a_pod(
            containerStatuses=[
                container(waiting("CrashLoopBackOff"), terminated(1), number)
            ]
        )
        assert (trouble_of(pod, now=NOW, patience=patience) is None) is fine
    assert trouble_of(
        a_pod(containerStatuses=[container(terminated(137, "OOMKilled"))]),
        now=NOW,
        patience=patience,
    )


def test_a_failing_init_container_is_named() -> None:
    first = container(waiting("CrashLoopBackOff"), terminated(1), 1) | {
        "name": "download"
    }
    pod = a_pod(
        "Pending",
        initContainerStatuses=[first],
        containerStatuses=[container(waiting("PodInitializing"))],
    )
    found = trouble_of(pod, now=NOW)
    assert found is not None and found.container == "download"


def unschedulable(seconds: float) -> dict[str, Any]:
    message = "0/4 nodes are available: 4 Insufficient nvidia.com/gpu."
    at = ago(seconds)
    said = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": message,
    }
    pod = a_pod("Pending", seconds, [said | {"lastTransitionTime": at}])
    pod["spec"] = {}
    return pod


def test_an_unschedulable_pod_is_given_time_for_a_node_to_be_added() -> None:
    assert trouble_of(unschedulable(1199), now=NOW) is None
    found = trouble_of(unschedulable(1201), now=NOW)
    assert found is not None and found.cause == "Unschedulable"
    assert "4 Insufficient nvidia.com/gpu" in found.line()
    assert (
        trouble_of(unschedulable(11), now=NOW, patience=Patience(unschedulable_s=10))
        is not None
    )


def of_autoscaler(reason: str, message: str) -> dict[str, Any]:
    return {
        "reason": reason,
        "message": message,
        "reportingComponent": "cluster-autoscaler",
    }


NO_GROUP = of_autoscaler(
    "NotTriggerScaleUp",
    "pod didn't trigger scale-up: 1 node(s) didn't match Pod's node affinity",
)
FULL = of_autoscaler(
    "NotTriggerScaleUp", "pod didn't trigger scale-up: 1 max node group size reached"
)
COMES = of_autoscaler(
    "TriggeredScaleUp", "pod triggered scale-up: [{gpus 1->2 (max: 4)}]"
)
KARPENTER = {
    "reason": "FailedScheduling",
    "message": "incompatible with nodepool",
    "reportingComponent": "karpenter",
}


@pytest.mark.parametrize(
    ("events", "cause"),
    [
        ([NO_GROUP], "NotTriggerScaleUp"),
        ([COMES, NO_GROUP], "NotTriggerScaleUp"),
        ([KARPENTER], "FailedScheduling"),
        ([NO_GROUP, COMES], None),
        ([FULL], None),
        (
            [
                {
                    "reason": "FailedScheduling",
                    "message": "of kube",
                    "reportingComponent": "default-scheduler",
                }
            ],
            None,
        ),
    ],
)
def test_an_autoscaler_that_has_no_such_node_is_not_waited_for(
    events: list[dict[str, Any]], cause: str | None
) -> None:
    assert trouble_of(unschedulable(50), events, NOW) is None
    found = trouble_of(unschedulable(61), events, NOW)
    assert (found.cause if found else None) == cause
    words = waits_for(unschedulable(5), events)
    assert "4 Insufficient nvidia.com/gpu" in words
    assert (events[-1]["message"] in words) == (
        events[-1]["reportingComponent"] != "default-scheduler"
    )


@pytest.mark.parametrize(
    ("reason", "words"),
    [("FailedMount", "ConfigMap"), ("FailedCreatePodSandBox", "network")],
)
def test_a_pod_that_cannot_be_set_up_is_known_by_its_events(
    reason: str, words: str
) -> None:
    events = [
        {"reason": "Scheduled"},
        {"reason": reason, "message": 'configmap "plan" not found'},
    ]
    status = {"containerStatuses": [container(waiting("ContainerCreating"))]}
    assert (
        trouble_of(a_pod("Pending", 60, startTime=ago(60), **status), events, NOW)
        is None
    )
    found = trouble_of(a_pod("Pending", 100, startTime=ago(100), **status), events, NOW)
    assert found is not None and found.cause == reason
    assert words in found.line() and '"plan" not found' in found.line()


def test_a_large_image_may_take_its_time() -> None:
    events = [{"reason": "Pulling", "message": "Pulling image"}]
    status = {"containerStatuses": [container(waiting("ContainerCreating"))]}
    assert (
        trouble_of(a_pod("Pending", 1800, startTime=ago(1800), **status), events, NOW)
        is None
    )


def test_a_pod_that_nobody_takes_up_is_told() -> None:
    assert trouble_of(a_pod("Pending", 100), now=NOW) is None
    found = trouble_of(a_pod("Pending", 130), now=NOW)
    assert found is not None and found.cause == "NotStarted"
    assert "gpu-1" in found.text and "130 s" in found.text and "kubelet" in found.fix
    lost = a_pod("Pending", 130, [{"type": "Other"}])
    lost["spec"] = {}
    found = trouble_of(lost, now=NOW)
    assert found is not None and found.cause == "NotStarted"
    assert "gpu-1" not in found.text and "scheduler" in found.fix


def test_an_evicted_pod_says_why() -> None:
    pod = a_pod(
        "Failed", reason="Evicted", message="The node was low on resource: memory."
    )
    found = trouble_of(pod, now=NOW)
    assert found is not None and found.ended
    assert (found.cause, found.pod, found.text) == (
        "Evicted",
        "server-0",
        pod["status"]["message"],
    )
    assert found.line() == f"Evicted: pod server-0, {found.text}; {found.fix}"


def test_a_pod_that_is_being_deleted_does_not_count_however_ready_it_looks() -> None:
    ready = a_pod(conditions=[{"type": "Ready", "status": "True"}])
    going = a_pod(conditions=[{"type": "Ready", "status": "True"}])
    going["metadata"]["deletionTimestamp"] = ago(1)
    assert not_terminating([ready, going]) == [ready]
    assert is_ready(ready) and not is_ready(going)


def test_restarts_of_all_containers_count() -> None:
    assert (
        restarts(
            a_pod(
                containerStatuses=[
                    container(RUNNING, again=2),
                    container(RUNNING, again=1),
                ]
            )
        )
        == 3
    )


@pytest.mark.parametrize(
    ("message", "fix"),
    [
        (
            "0/3 nodes are available: 3 pod has unbound immediate PersistentVolumeClaims.",
            "storage class",
        ),
        ('persistentvolumeclaim "models" not found', "does not exist"),
        (
            "0/3 nodes are available: 1 node(s) had volume node affinity conflict",
            "zone",
        ),
        (
            "0/3 nodes are available: 3 node(s) didn't match pod affinity rules.",
            "ReadWriteMany",
        ),
        ("0/3 nodes are available: 3 Insufficient nvidia.com/gpu.", "GPUs"),
    ],
)
def test_a_pod_that_lacks_a_volume_is_not_said_to_lack_gpus(
    message: str, fix: str
) -> None:
    conditions = [
        {
            "type": "PodScheduled",
            "status": "False",
            "message": message,
            "lastTransitionTime": ago(5000),
        }
    ]
    found = trouble_of(a_pod("Pending", 5000, conditions), now=NOW)
    assert found is not None
    assert fix in found.fix


def test_a_volume_that_came_late_is_no_trouble_of_a_pod_that_pulls_its_image_since() -> (
    None
):
    events = [
        {"reason": "FailedAttachVolume", "message": "Multi-Attach error"},
        {"reason": "SuccessfulAttachVolume"},
    ]
    late = a_pod("Pending", 600, startTime=ago(600))
    assert trouble_of(late, [*events, {"reason": "Pulling"}], NOW) is None
    found = trouble_of(late, events[:1], NOW)
    assert found is not None
    assert found.cause == "FailedAttachVolume"
