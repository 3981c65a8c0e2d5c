"""Reasons that keep a pod from running, judged from its status and events alone: every case can be tested as data.

The reasons are the kubelet's and the scheduler's: pkg/kubelet/images/types.go, pkg/kubelet/container/sync_result.go,
pkg/kubelet/kuberuntime and https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, TypeVar

Pod = Mapping[str, Any]
AnyPod = TypeVar("AnyPod", bound=Pod)

# Reasons for which a container waits and will go on waiting, and what to do.
_STUCK = {
    "ImagePullBackOff": "check the image's name and tag, the node's way to the registry, and image_pull_secrets",
    "InvalidImageName": "the image's name is not one: correct it",
    "ErrImageNeverPull": "load the image onto the node, or let it be pulled (imagePullPolicy)",
    "ImageInspectError": "the image on the node is damaged: pull it anew",
    "RegistryUnavailable": "the registry does not answer from the node",
    "CrashLoopBackOff": "the container ends again and again: see its last log lines",
    "CreateContainerConfigError": "a Secret, ConfigMap or key that the container refers to is missing",
    "CreateContainerError": "the container runtime cannot make the container: see the events",
    "RunContainerError": "the container cannot be started: is its command in the image?",
    "StartError": "the container cannot be started: is its command in the image?",
    "ContainerCannotRun": "the container cannot be started: is its command in the image?",
    "PreStartHookError": "the container's start hook failed",
    "PostStartHookError": "the container's start hook failed",
}
# The first of two: only its message tells a name that does not exist from a registry that is busy.
_FIRST_PULL = "ErrImagePull"
_HOPELESS_PULL = ("not found", "unauthorized", "denied", "forbidden", "manifest unknown", "no such image", "invalid")
_PULL_FIX = _STUCK["ImagePullBackOff"]
_OOM = "OOMKilled"
_OOM_FIX = (
    "raise the container's memory limit (host KV cache and /dev/shm count towards it) or lower the cache's budget"
)
# Events that say why containers are not made, though the pod's status says only ContainerCreating.
_SETUP_EVENTS = (
    "FailedMount",
    "FailedAttachVolume",
    "FailedMapVolume",
    "FailedCreatePodSandBox",
    "FailedCreatePodContainer",
    "NetworkNotReady",
)
_FIXES_OF_SETUP = {
    "FailedMount": "does the volume, ConfigMap or Secret exist, and is the volume free?",
    "FailedAttachVolume": "is the volume attached to another node still?",
}
_FIXES_OF_PHASE = {
    "Evicted": "the node ran out of memory or disk: see the pod's message",
    "DeadlineExceeded": "it took longer than its activeDeadlineSeconds",
    "NodeLost": "its node is gone",
    "UnexpectedAdmissionError": "the node has no such GPU free: see its device plugin",
}


@dataclass(frozen=True)
class Patience:
    """Troubles that may pass by themselves: states that last, s (a node may be added), and containers that end.

    A container that ran out of memory is not started again in the hope of more.
    """

    unschedulable_s: float = 120.0
    setup_s: float = 90.0
    unseen_s: float = 120.0
    restarts: int = 0


@dataclass(frozen=True)
class Trouble:
    """Why a pod will not run: the cause as the cluster names it, what it said, what to do."""

    cause: str
    text: str
    fix: str
    pod: str = ""
    container: str = ""
    exit_code: int | None = None
    """Of the container, where it ended."""
    previous: bool = False
    """Whether the log that tells more is the one before the container's restart."""
    ended: bool = False
    """Whether it did run, and ended: a Job may try again by itself."""

    def line(self) -> str:
        """Say it in one line."""
        where = f"container {self.container} of pod {self.pod}" if self.container else f"pod {self.pod}"
        said = " ".join(self.text.split())
        return f"{self.cause}: {_joined(where if self.pod else '', said)}; {self.fix}"


def alive(pods: Iterable[AnyPod]) -> list[AnyPod]:
    """Leave out the pods that are being deleted: one of an earlier rollout may look ready until its very end."""
    return [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]


def condition(document: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Return a condition of an object's status, {} when it has none of this type."""
    conditions = (document.get("status") or {}).get("conditions") or []
    return next((found for found in conditions if found.get("type") == kind), {})


def is_ready(pod: Pod) -> bool:
    """Whether a pod serves, and is not about to go."""
    return condition(pod, "Ready").get("status") == "True" and not pod["metadata"].get("deletionTimestamp")


def restarts(pod: Pod) -> int:
    """Count how often the containers of a pod were started anew."""
    return sum(int(status.get("restartCount") or 0) for status in _containers(pod))


def trouble_of(
    pod: Pod, events: Iterable[Mapping[str, Any]] = (), now: datetime | None = None, patience: Patience | None = None
) -> Trouble | None:
    """Return why a pod will not run, None while it may still.

    `events` are the pod's; `now` is the cluster's time, for how long a state has lasted.
    """
    patience = patience or Patience()
    now = now or datetime.now(UTC)
    name = pod["metadata"]["name"]
    status = pod.get("status") or {}
    containers = (_of_container(container, patience) for container in _containers(pod))
    found = next((found for found in containers if found is not None), None)
    if found is not None:
        return replace(found, pod=name)
    if status.get("phase") == "Failed":
        reason = status.get("reason") or "Failed"
        fix = _FIXES_OF_PHASE.get(reason, "see its events and log")
        return Trouble(reason, status.get("message") or "", fix, name, ended=True)
    if status.get("phase") not in (None, "Pending"):
        return None
    return _unscheduled(pod, now, patience) or _not_set_up(pod, list(events), now, patience)


def _containers(pod: Pod) -> Iterator[Mapping[str, Any]]:
    status = pod.get("status") or {}
    for field in ("initContainerStatuses", "containerStatuses"):
        yield from status.get(field) or []


def _of_container(status: Mapping[str, Any], patience: Patience) -> Trouble | None:
    name, state = status["name"], status.get("state") or {}
    last = (status.get("lastState") or {}).get("terminated") or {}
    ended = state.get("terminated") or {}
    # Out of memory comes before the crash loop that follows from it.
    for end, previous in ((ended, False), (last, True)):
        if end.get("reason") == _OOM:
            code = int(end.get("exitCode", 137))
            return Trouble(_OOM, f"exit code {code}", _OOM_FIX, "", name, code, previous, ended=True)
    waiting = state.get("waiting") or {}
    reason, message = waiting.get("reason") or "", waiting.get("message") or ""
    image = f"image {status['image']}" if status.get("image") else ""
    if reason == _FIRST_PULL and any(word in message.lower() for word in _HOPELESS_PULL):
        return Trouble(reason, _joined(image, message), _PULL_FIX, "", name)
    crashed = reason == "CrashLoopBackOff"
    if reason in _STUCK and not crashed:
        pulling = "Image" in reason or reason == "RegistryUnavailable"
        text = _joined(image if pulling else "", message, _exit(last))
        return Trouble(reason, text, _STUCK[reason], "", name, last.get("exitCode"), previous=bool(last))
    end = ended or last
    ends = int(status.get("restartCount") or 0) + bool(crashed or ended)
    if (crashed or end.get("exitCode")) and ends > patience.restarts:
        cause = reason if crashed else end.get("reason") or "Error"
        text = _joined(_exit(end), end.get("message") or (message if crashed else ""))
        fix = _STUCK["CrashLoopBackOff"] if crashed else "see its last log lines"
        before = not ended and not crashed
        return Trouble(cause, text, fix, "", name, end.get("exitCode"), previous=before, ended=True)
    return None


def _unscheduled(pod: Pod, now: datetime, patience: Patience) -> Trouble | None:
    scheduled = condition(pod, "PodScheduled")
    name = pod["metadata"]["name"]
    if scheduled.get("status") != "False":
        return None
    reason, message = scheduled.get("reason") or "Unschedulable", scheduled.get("message") or ""
    since = scheduled.get("lastTransitionTime") or pod["metadata"].get("creationTimestamp")
    if seconds_since(since, now) < patience.unschedulable_s:
        return None
    return Trouble(
        reason,
        message,
        "no node has what it asks for (GPUs, memory, labels, tolerations): free one, add one, or correct node_selector "
        "and tolerations",
        name,
    )


def _not_set_up(pod: Pod, events: list[Mapping[str, Any]], now: datetime, patience: Patience) -> Trouble | None:
    metadata, status = pod["metadata"], pod.get("status") or {}
    bound = condition(pod, "PodScheduled").get("lastTransitionTime") or metadata.get("creationTimestamp")
    lasted = seconds_since(status.get("startTime") or bound, now)
    warned = [event for event in events if event.get("reason") in _SETUP_EVENTS]
    if warned and lasted >= patience.setup_s:
        last = warned[-1]
        fix = _FIXES_OF_SETUP.get(last["reason"], "see the node's kubelet and network plugin")
        return Trouble(last["reason"], last.get("message") or "", fix, metadata["name"])
    node = (pod.get("spec") or {}).get("nodeName")
    if not status.get("startTime") and not status.get("containerStatuses") and lasted >= patience.unseen_s:
        if node:
            text, fix = f"node {node} has not taken it up for {lasted:.0f} s", "is the node's kubelet running?"
        else:
            text, fix = f"no node was found for it in {lasted:.0f} s", "is the cluster's scheduler running?"
        return Trouble("NotStarted", text, fix, metadata["name"])
    return None


def _exit(ended: Mapping[str, Any]) -> str:
    code = ended.get("exitCode")
    if code is None:
        return ""
    killed = f", killed by signal {int(code) - 128}" if 128 < int(code) < 160 else ""
    return f"exit code {code}{killed}"


def _joined(*parts: str) -> str:
    return ", ".join(part for part in parts if part)


def seconds_since(stamp: str | None, now: datetime) -> float:
    """Return how long ago a time is as the API server writes it; 0 for none."""
    return (now - datetime.fromisoformat(stamp)).total_seconds() if stamp else 0.0
