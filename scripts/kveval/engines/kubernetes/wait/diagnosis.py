"""Reasons why a pod does not run, judged from its status and events alone, so that every case can be tested as data.

The reasons are the kubelet's and the scheduler's: pkg/kubelet/images/types.go, pkg/kubelet/container/sync_result.go,
pkg/kubelet/kuberuntime and https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from kveval.engines.kubernetes.api.kinds import (
    condition,
    seconds_since,
    status_of,
    unready,
)
from kveval.host.logs import exit_words

Pod = Mapping[str, Any]
AnyPod = TypeVar("AnyPod", bound=Pod)

# Reasons for which a container waits without end, and what to do.
_STUCK = {
    "ImagePullBackOff": "check the image's name and tag, the node's way to the registry, and image_pull_secrets",
    "InvalidImageName": "the image's name is invalid: correct it",
    "ErrImageNeverPull": "load the image onto the node, or let it be pulled (imagePullPolicy)",
    "ImageInspectError": "the image on the node is damaged: pull it again",
    "RegistryUnavailable": "the registry does not answer from the node",
    "CrashLoopBackOff": "the container ends after every restart: see its last log lines",
    "CreateContainerConfigError": "a Secret, ConfigMap or key that the container refers to is missing",
    "CreateContainerError": "the container runtime cannot create the container: see the events",
    "RunContainerError": "the container cannot be started: is its command in the image?",
    "StartError": "the container cannot be started: is its command in the image?",
    "ContainerCannotRun": "the container cannot be started: is its command in the image?",
    "PreStartHookError": "the container's start hook failed",
    "PostStartHookError": "the container's start hook failed",
}
# The reason before ImagePullBackOff: only its message shows whether the name does not exist or the registry is busy.
_FIRST_PULL = "ErrImagePull"
_HOPELESS_PULL = (
    "not found",
    "unauthorized",
    "denied",
    "forbidden",
    "manifest unknown",
    "no such image",
    "invalid",
)
_PULL_FIX = _STUCK["ImagePullBackOff"]
_OOM = "OOMKilled"
_OOM_FIX = "raise the container's memory limit (host KV cache and /dev/shm count towards it) or lower the cache's size"
# Events that say why containers are not created, while the pod's status says only ContainerCreating.
_SETUP_EVENTS = (
    "FailedMount",
    "FailedAttachVolume",
    "FailedMapVolume",
    "FailedCreatePodSandBox",
    "FailedCreatePodContainer",
    "NetworkNotReady",
)
# Events that say that the setup continued after one of those.
_WENT_ON = ("SuccessfulAttachVolume", "Pulling", "Pulled", "Created")
_FIXES_OF_SETUP = {
    "FailedMount": "does the volume, ConfigMap or Secret exist, and is the volume free?",
    "FailedAttachVolume": "is the volume still attached to another node?",
}
# By words of the scheduler's message, the most specific first.
_FIXES_OF_PLACE = {
    "unbound": "its claim has no volume: does the storage class exist, and does it support the access mode?",
    "persistentvolumeclaim": "its claim does not exist or is being deleted",
    "volume node affinity": "its volume is in another zone, or on another node, than the nodes that would accept it",
    "pod affinity": "the only node with its volume has no room: set cluster.model_cache.access: ReadWriteMany",
}
_NO_ROOM = (
    "no node has what it requests (GPUs, memory, labels, tolerations): free one, add one, or correct node_selector and"
    " tolerations"
)
# Events of what adds nodes: the cluster autoscaler (its FAQ, "What are the events") and Karpenter.
_NODE_COMES = ("TriggeredScaleUp", "Nominated")
_NO_NODE_COMES = "NotTriggerScaleUp"
# Refusals of the autoscaler that may be temporary: a full node group may shrink, a failed one is tried again.
_MAY_PASS = (
    "max node group size reached",
    "in backoff",
    "not ready for scale-up",
    "max cluster",
)
# Of a claim's volume: its class does not exist, or there is none and no default.
_NO_CLASS = "storageclass.* not found|no storage class is set"
# While its node starts, a kubelet reports for a moment that it is not ready.
_NODE_STARTS_S = 30.0
_FIXES_OF_PHASE = {
    "Evicted": "the node ran out of memory or disk: see the pod's message",
    "DeadlineExceeded": "it took longer than its activeDeadlineSeconds",
    "NodeLost": "its node is gone",
    "UnexpectedAdmissionError": "the node has no such GPU free: see its device plugin",
}


@dataclass(frozen=True)
class Patience:
    """How long, in seconds, to tolerate states that may be temporary, and how many restarts of a container.

    `refused_s`: without a node, if the autoscaler says that it cannot add one. A container that ran out of memory is
    never tolerated.
    """

    unschedulable_s: float = 1200.0
    refused_s: float = 60.0
    setup_s: float = 90.0
    unseen_s: float = 120.0
    restarts: int = 0


USUAL = Patience()
"""The patience where a site says nothing else."""


@dataclass(frozen=True)
class Trouble:
    """Why a pod will not run: the cause as the cluster names it, the cluster's message, what to do.

    Without `fix`, the text is a sentence about the object that was waited for.
    """

    cause: str
    text: str
    fix: str = ""
    pod: str = ""
    container: str = ""
    exit_code: int | None = None
    """The container's exit code, if it ended."""
    previous: bool = False
    """Whether the relevant log is the one from before the container's restart."""
    ended: bool = False
    """Whether it ran and ended, so that a Job may start another pod."""

    def line(self) -> str:
        """Return the cause, the message and what to do, in one line."""
        where = (
            f"container {self.container} of pod {self.pod}"
            if self.container
            else f"pod {self.pod}"
        )
        message = " ".join(self.text.split())
        return (
            f"{self.cause}: {_joined(where if self.pod else '', message)}; {self.fix}"
        )


def claim_trouble(claim: Mapping[str, Any], words: str) -> Trouble | None:
    """Return why a claim of a volume will never be bound, None as long as it may; `words`: its last event's."""
    if not re.search(_NO_CLASS, words):
        return None
    text = f"claim {claim['metadata']['name']} has no volume, {words}"
    fix = "cluster.storage_class: one of `kubectl get storageclass`"
    return Trouble("NoStorageClass", text, fix)


def refusal_fix(said: str, namespace: str) -> str:
    """Return what to do where a pod is refused, from the API server's words; "" where these are not known."""
    if "no PriorityClass with name" in said:
        return "cluster.priority_class: one of `kubectl get priorityclass`"
    if "exceeded quota" not in said:
        return ""
    show = f"kubectl -n {namespace} describe quota"
    return f"the namespace's quota is used up or too small ({show}): have it raised, or ask for less"


def not_terminating(pods: Iterable[AnyPod]) -> list[AnyPod]:
    """Return the pods that are not being deleted; a pod of an earlier rollout may look ready until it is gone."""
    return [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]


def is_ready(pod: Pod) -> bool:
    """Whether a pod is ready and not being deleted."""
    return condition(pod, "Ready").get("status") == "True" and not pod["metadata"].get(
        "deletionTimestamp"
    )


def restarts(pod: Pod) -> int:
    """Return how often the containers of a pod were restarted."""
    return sum(int(status.get("restartCount") or 0) for status in _containers(pod))


def trouble_of(
    pod: Pod,
    events: Iterable[Mapping[str, Any]] = (),
    now: datetime | None = None,
    patience: Patience = USUAL,
) -> Trouble | None:
    """Return why a pod will not run, None as long as it still may.

    `events`: the pod's; `now`: the time by the cluster's clock, from which the duration of a state is computed.
    """
    now = now or datetime.now(UTC)
    name = pod["metadata"]["name"]
    status = status_of(pod)
    containers = (_of_container(container, patience) for container in _containers(pod))
    trouble = next((trouble for trouble in containers if trouble is not None), None)
    if trouble is not None:
        return replace(trouble, pod=name)
    if status.get("phase") == "Failed":
        reason = status.get("reason") or "Failed"
        fix = _FIXES_OF_PHASE.get(reason, "see its events and log")
        return Trouble(reason, status.get("message") or "", fix, name, ended=True)
    if status.get("phase") not in (None, "Pending"):
        return None
    waits = condition(pod, "PodScheduled").get("status") == "False"
    return (_unscheduled if waits else _not_set_up)(pod, list(events), now, patience)


def node_trouble(
    pod: Pod, node: Mapping[str, Any] | None, now: datetime
) -> Trouble | None:
    """Return why the node of a pod cannot run it, None as long as it may; `node`: None if it no longer exists."""
    where = pod["metadata"]["name"]
    if node is None:
        text = f"its node {pod['spec']['nodeName']} is no longer in the cluster"
        return Trouble(
            "NodeGone", text, "was it scaled down, or reclaimed (spot)?", where
        )
    reason, ready = unready(node, now), condition(node, "Ready")
    starts = (
        ready.get("status") == "False"
        and seconds_since(ready.get("lastTransitionTime"), now) < _NODE_STARTS_S
    )
    if not reason or starts:
        return None
    return Trouble(
        "NodeNotReady",
        reason,
        "check the node, or exclude it (node_selector, cordon)",
        where,
    )


def waits_for(pod: Pod, events: Sequence[Mapping[str, Any]]) -> str:
    """Return why a pod has no node, in the words of the scheduler and of the autoscaler; "" if it has one."""
    scheduled = condition(pod, "PodScheduled")
    if scheduled.get("status") != "False":
        return ""
    parts = [str(scheduled.get("message") or scheduled.get("reason") or "no node yet")]
    event = _of_autoscaler(events)
    if event:
        by = (
            event.get("reportingComponent")
            or (event.get("source") or {}).get("component")
            or "autoscaler"
        )
        parts.append(f"{by}: {event['reason']}, {event.get('message')}")
    return " | ".join(" ".join(part.split()) for part in parts)


def _of_autoscaler(events: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the last event of the autoscaler, {} without one; `events` are in the order of their times."""
    known = (*_NODE_COMES, _NO_NODE_COMES)
    own = (
        event
        for event in events[::-1]
        if event.get("reason") in known
        or event.get("reportingComponent") == "karpenter"
    )
    return next(own, {})


def _containers(pod: Pod) -> Iterator[Mapping[str, Any]]:
    status = status_of(pod)
    for field in ("initContainerStatuses", "containerStatuses"):
        yield from status.get(field) or []


def _of_container(status: Mapping[str, Any], patience: Patience) -> Trouble | None:
    name, state = status["name"], status.get("state") or {}
    last = (status.get("lastState") or {}).get("terminated") or {}
    ended = state.get("terminated") or {}
    # Out of memory is judged before the crash loop that it causes.
    for end, previous in ((ended, False), (last, True)):
        if end.get("reason") == _OOM:
            code = int(end.get("exitCode", 137))
            return Trouble(
                _OOM,
                f"exit code {code}",
                _OOM_FIX,
                "",
                name,
                code,
                previous,
                ended=True,
            )
    waiting = state.get("waiting") or {}
    reason, message = waiting.get("reason") or "", waiting.get("message") or ""
    image = f"image {status['image']}" if status.get("image") else ""
    if reason == _FIRST_PULL and any(
        word in message.lower() for word in _HOPELESS_PULL
    ):
        return Trouble(reason, _joined(image, message), _PULL_FIX, "", name)
    crashed = reason == "CrashLoopBackOff"
    if reason in _STUCK and not crashed:
        pulling = "Image" in reason or reason == "RegistryUnavailable"
        text = _joined(image if pulling else "", message, exit_of(last.get("exitCode")))
        return Trouble(
            reason,
            text,
            _STUCK[reason],
            "",
            name,
            last.get("exitCode"),
            previous=bool(last),
        )
    end = ended or last
    ends = int(status.get("restartCount") or 0) + bool(crashed or ended)
    if (crashed or end.get("exitCode")) and ends > patience.restarts:
        cause = reason if crashed else end.get("reason") or "Error"
        text = _joined(
            exit_of(end.get("exitCode")),
            end.get("message") or (message if crashed else ""),
        )
        fix = _STUCK["CrashLoopBackOff"] if crashed else "see its last log lines"
        before = not ended and not crashed
        return Trouble(
            cause, text, fix, "", name, end.get("exitCode"), previous=before, ended=True
        )
    return None


def _unscheduled(
    pod: Pod, events: Sequence[Mapping[str, Any]], now: datetime, patience: Patience
) -> Trouble | None:
    scheduled = condition(pod, "PodScheduled")
    since = scheduled.get("lastTransitionTime") or pod["metadata"].get(
        "creationTimestamp"
    )
    lasted_s, event = seconds_since(since, now), _of_autoscaler(events)
    message = str(event.get("message") or "")
    comes = (
        not event
        or event["reason"] in _NODE_COMES
        or any(words in message for words in _MAY_PASS)
    )
    if lasted_s < (patience.unschedulable_s if comes else patience.refused_s):
        return None
    cause = (scheduled.get("reason") or "Unschedulable") if comes else event["reason"]
    placed = str(scheduled.get("message") or "").lower()
    fix = next(
        (fix for words, fix in _FIXES_OF_PLACE.items() if words in placed), _NO_ROOM
    )
    fix += (
        "; cluster.schedule_timeout_s sets how long to wait for a node" if comes else ""
    )
    return Trouble(cause, waits_for(pod, events), fix, pod["metadata"]["name"])


def _not_set_up(
    pod: Pod, events: list[Mapping[str, Any]], now: datetime, patience: Patience
) -> Trouble | None:
    metadata, status = pod["metadata"], status_of(pod)
    bound = condition(pod, "PodScheduled").get("lastTransitionTime") or metadata.get(
        "creationTimestamp"
    )
    lasted = seconds_since(status.get("startTime") or bound, now)
    setup_events = [
        event for event in events if event.get("reason") in (*_SETUP_EVENTS, *_WENT_ON)
    ]
    if (
        setup_events
        and setup_events[-1]["reason"] in _SETUP_EVENTS
        and lasted >= patience.setup_s
    ):
        last = setup_events[-1]
        fix = _FIXES_OF_SETUP.get(
            last["reason"], "see the node's kubelet and network plugin"
        )
        return Trouble(last["reason"], last.get("message") or "", fix, metadata["name"])
    node = (pod.get("spec") or {}).get("nodeName")
    if (
        not status.get("startTime")
        and not status.get("containerStatuses")
        and lasted >= patience.unseen_s
    ):
        text, fix = (
            f"no node was found for it in {lasted:.0f} s",
            "is the cluster's scheduler running?",
        )
        if node:
            text, fix = (
                f"node {node} has not started it for {lasted:.0f} s",
                "is the node's kubelet running?",
            )
        return Trouble("NotStarted", text, fix, metadata["name"])
    return None


def exit_of(code: int | None) -> str:
    """Return in words how a container ended, from its exit code: 128 + N for signal N; "" for None."""
    if code is None:
        return ""
    return exit_words(128 - code if 128 < code < 160 else code)


def _joined(*parts: str) -> str:
    return ", ".join(part for part in parts if part)
