"""Waiting until applied objects run; a wait ends at once, with the cause, when it is clear that they never will."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from kveval.engines.kubernetes.api.client import Api
from kveval.engines.kubernetes.api.kinds import DAEMON_SET, DEPLOYMENT, JOB, POD, REPLICA_SET, Document, condition
from kveval.engines.kubernetes.wait.diagnosis import Patience, Trouble, alive, is_ready, restarts, trouble_of
from kveval.engines.kubernetes.wait.wait import RolloutError, WaitState, WaitTarget, wait
from kveval.engines.protocol import Say

_REVISION = "deployment.kubernetes.io/revision"
_DAEMON_GENERATION, _POD_GENERATION = "deprecated.daemonset.template.generation", "pod-template-generation"
_NO_NODE_S = 10.0


def wait_for_deployment(
    api: Api, namespace: str, name: str, timeout_s: float, say: Say | None = None, patience: Patience | None = None
) -> list[Document]:
    """Wait until all replicas of the newest revision are available and no others are left; return their pods.

    Raises RolloutError as soon as a pod of that revision cannot run, or after `timeout_s`.
    """
    target = WaitTarget(api, DEPLOYMENT, namespace, name, patience or Patience())
    return _waited(target, _deployment, timeout_s, say)


def _waited(
    target: WaitTarget, judge: Callable[[WaitTarget, Document], WaitState], timeout_s: float, say: Say | None
) -> list[Document]:
    """Wait until `judge` finds an object done, whose controller has seen its last change; return its pods."""

    def look() -> WaitState:
        found = target.read()
        if found is None:
            return WaitState(False, "does not exist yet")
        return judge(target, found) if _observed(found) else WaitState(False, "its controller has not seen it yet")

    return wait(target, look, timeout_s, say)


def _deployment(target: WaitTarget, found: Document) -> WaitState:
    spec, status, pods = found["spec"], found.get("status") or {}, _pods_of_revision(target, found)
    wanted = int(spec.get("replicas", 1))
    target.check(pods)
    failure = condition(found, "ReplicaFailure")
    if failure.get("status") == "True" and len(pods) < wanted:
        since = failure.get("lastTransitionTime")
        if target.lasted(since) >= _NO_NODE_S:
            raise target.not_creatable(failure.get("message") or "", since)
    progressing = condition(found, "Progressing")
    if progressing.get("reason") == "ProgressDeadlineExceeded":
        late = next((pod for pod in pods if not is_ready(pod)), None)
        limit = spec.get("progressDeadlineSeconds", 600)
        text = f"has made no progress for its progressDeadlineSeconds ({limit} s): {len(pods)} of {wanted} pods started"
        raise target.error("ProgressDeadlineExceeded", text, late)
    updated, available = (int(status.get(key) or 0) for key in ("updatedReplicas", "availableReplicas"))
    old = int(status.get("replicas") or 0) - updated
    ready = [pod for pod in pods if is_ready(pod)]
    done = old == 0 and wanted == updated == available == len(ready)
    available = min(len(ready), available)
    text = f"{available} of {wanted} replicas are available" + (f", {old} old ones left" if old else "")
    return WaitState(done, text, ready if done else pods, available, wanted)


def _pods_of_revision(target: WaitTarget, deployment: Document) -> list[Document]:
    """Return the live pods of the newest revision; pods of earlier ones, ready or broken, do not count."""
    api, labels = target.api, _selector(deployment)
    revision = (deployment["metadata"].get("annotations") or {}).get(_REVISION)
    newest = {
        found["metadata"]["uid"]
        for found in api.list(REPLICA_SET, target.namespace, labels)
        if _owned(found, {deployment["metadata"]["uid"]})
        and (found["metadata"].get("annotations") or {}).get(_REVISION) == revision
    }
    return [pod for pod in alive(api.list(POD, target.namespace, labels)) if _owned(pod, newest)]


def wait_for_daemonset(
    api: Api,
    namespace: str,
    name: str,
    nodes: Collection[str],
    timeout_s: float,
    say: Say | None = None,
    patience: Patience | None = None,
) -> list[Document]:
    """Wait until each of `nodes` has a ready pod of a DaemonSet's current template; return those pods.

    Faults on other nodes are ignored. Raises RolloutError.
    """
    target = WaitTarget(api, DAEMON_SET, namespace, name, patience or Patience())
    return _waited(target, lambda target, found: _daemon_set(target, found, nodes), timeout_s, say)


def _daemon_set(target: WaitTarget, found: Document, nodes: Collection[str]) -> WaitState:
    listed = alive(target.api.list(POD, target.namespace, _selector(found)))
    pods = [pod for pod in listed if _owned(pod, {found["metadata"]["uid"]}) and pod["spec"].get("nodeName") in nodes]
    generation = (found["metadata"].get("annotations") or {}).get(_DAEMON_GENERATION)
    new = [pod for pod in pods if (pod["metadata"].get("labels") or {}).get(_POD_GENERATION) in (generation, None)]
    without = sorted(set(nodes) - {pod["spec"]["nodeName"] for pod in pods})
    made = found["metadata"].get("creationTimestamp")
    if without:
        target.require_creatable(made)
    target.check(new)
    target.without_since = (target.without_since or time.monotonic()) if without else None
    if target.without_since is not None and time.monotonic() - target.without_since >= _NO_NODE_S:
        text = f"no pod on node {', '.join(without)}, where a server is: its selector or tolerations do not match"
        raise target.trouble(Trouble("NoNode", text, "correct cluster.node_selector and cluster.tolerations"))
    ready = [pod for pod in new if is_ready(pod)]
    text = f"it is available on {len(ready)} of {len(nodes)} measured nodes"
    return WaitState(len(ready) == len(nodes), text, ready or pods, len(ready), len(nodes))


def wait_for_job(
    api: Api, namespace: str, name: str, timeout_s: float, say: Say | None = None, patience: Patience | None = None
) -> list[Document]:
    """Wait until a Job has completed; return its successful pods, as far as they still exist.

    Raises RolloutError if the Job failed, if its pod cannot run, or after `timeout_s`.
    """
    return _waited(WaitTarget(api, JOB, namespace, name, patience or Patience()), _job, timeout_s, say)


def _job(target: WaitTarget, found: Document) -> WaitState:
    listed = target.api.list(POD, target.namespace, f"job-name={target.name}")
    pods = [pod for pod in listed if _owned(pod, {found["metadata"]["uid"]})]
    if condition(found, "Complete").get("status") == "True":
        return WaitState(True, "completed", [pod for pod in pods if _phase(pod) == "Succeeded"])
    for kind in ("Failed", "FailureTarget"):
        if condition(found, kind).get("status") == "True":
            raise _failed(target, condition(found, kind), pods)
    live = alive(pods)
    if not live:
        target.require_creatable(found["metadata"].get("creationTimestamp"))
    # An ended pod is not judged here: the Job's own status says whether there is another attempt.
    target.check(live, retried=True)
    return WaitState(False, f"its pod is {', '.join(map(_phase, live)) or 'not there yet'}", live)


def _failed(target: WaitTarget, verdict: Mapping[str, Any], pods: list[Document]) -> RolloutError:
    """Return the error of a failed Job: how its pod ended, unless the Job's own deadline is the reason."""
    reason, message = verdict.get("reason") or "Failed", verdict.get("message") or ""
    ended = [(pod, trouble) for pod in pods if (trouble := trouble_of(pod)) is not None]
    if ended and reason != "DeadlineExceeded":
        pod, trouble = ended[-1]
        return target.trouble(trouble, pod)
    deadline = target.seen["spec"].get("activeDeadlineSeconds") if target.seen else None
    limit = f" ({deadline} s)" if deadline and reason == "DeadlineExceeded" else ""
    fix = "see its events; raise its time limit if it was only slow" if limit else "see its events"
    trouble = Trouble(reason, f"{message}{limit}", fix)
    return target.trouble(trouble, pods[-1] if pods else None, limit_s=deadline if limit else None)


def require_unchanged(api: Api, pods: Iterable[Document]) -> None:
    """Raise RolloutError if one of these pods (as a wait returned them) is gone, restarted, or cannot continue."""
    for before in pods:
        metadata = before["metadata"]
        patience = Patience(restarts=restarts(before))
        target = WaitTarget(api, POD, metadata["namespace"], metadata["name"], patience, seen=before)
        now = api.read(POD, metadata["name"], metadata["namespace"])
        if now is None or now["metadata"]["uid"] != metadata["uid"] or now["metadata"].get("deletionTimestamp"):
            raise target.error("PodDeleted", "was deleted while it was in use")
        target.check([now])
        again = restarts(now) - restarts(before)
        if again > 0:
            states = (now.get("status") or {}).get("containerStatuses") or []
            ends = [(one["name"], (one.get("lastState") or {}).get("terminated") or {}) for one in states]
            container, last = next((end for end in ends if end[1]), ("", {}))
            code = last.get("exitCode")
            text = f"restarted {again} time(s) while in use, exit code {'unknown' if code is None else code}"
            fix = "what it held in memory is lost: see its last log lines"
            trouble = Trouble("Restarted", text, fix, metadata["name"], container, code, previous=True)
            raise target.trouble(trouble, now)


def _phase(pod: Document) -> str:
    return str((pod.get("status") or {}).get("phase"))


def _observed(document: Document) -> bool:
    if document["kind"] == JOB.kind:  # its status has no observedGeneration
        return True
    observed = int((document.get("status") or {}).get("observedGeneration") or 0)
    return observed >= int(document["metadata"]["generation"])


def _owned(document: Document, owners: set[str]) -> bool:
    return any(owner["uid"] in owners for owner in document["metadata"].get("ownerReferences") or [])


def _selector(document: Document) -> str:
    """Return the selector of a Deployment or DaemonSet of this program, which has labels only, for an API query."""
    return ",".join(f"{key}={value}" for key, value in document["spec"]["selector"]["matchLabels"].items())
