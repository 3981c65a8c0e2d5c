"""Waiting until what was applied runs, or until it is clear that it never will: then at once, and with the cause."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from kveval.engines.kubernetes.api.client import Api
from kveval.engines.kubernetes.api.kinds import DAEMON_SET, DEPLOYMENT, JOB, POD, REPLICA_SET, Document
from kveval.engines.kubernetes.wait.diagnosis import Patience, Trouble, alive, condition, is_ready, restarts, trouble_of
from kveval.engines.kubernetes.wait.wait import RolloutError, Say, WaitState, WaitTarget, wait, watching

__all__ = [
    "RolloutError",
    "require_unchanged",
    "wait_for_daemonset",
    "wait_for_deployment",
    "wait_for_job",
    "wait_for_pod",
]

_REVISION = "deployment.kubernetes.io/revision"
# A deadline's controller deletes the pods first and says so in the Job a moment later.
_VERDICT_S = 5.0
# A Job's controller (seen with 1.20) may lose sight of a deadline; then nobody says so before the wait's own end.
_OVERDUE_S = 8.0
_NO_NODE_S = 10.0


def wait_for_deployment(
    api: Api, namespace: str, name: str, timeout_s: float, say: Say | None = None, patience: Patience | None = None
) -> list[Document]:
    """Wait until all replicas of the newest revision are available and no others are left; return their pods.

    Raises RolloutError as soon as a pod of that revision cannot run, or after `timeout_s`.
    """
    target = WaitTarget(api, DEPLOYMENT, namespace, name, patience or Patience())

    def look() -> WaitState:
        found = target.read()
        if found is None:
            return WaitState(False, "is not there")
        if not _observed(found):
            return WaitState(False, "its controller has not seen it yet")
        return _deployment(target, found, _pods_of_revision(target, found))

    found = target.read()
    labels = _selector(found) if found else ""
    return wait(target, look, watching(DEPLOYMENT, namespace, name, labels), timeout_s, say)


def _deployment(target: WaitTarget, found: Document, pods: list[Document]) -> WaitState:
    spec, status = found["spec"], found.get("status") or {}
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
    text = f"{min(len(ready), available)} of {wanted} replicas are available" + (
        f", {old} old ones left" if old else ""
    )
    return WaitState(done, text, ready if done else pods)


def _pods_of_revision(target: WaitTarget, deployment: Document) -> list[Document]:
    """Return the live pods of the newest revision; those of earlier ones may be ready, or broken, and do not count."""
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
    api: Api, namespace: str, name: str, timeout_s: float, say: Say | None = None, patience: Patience | None = None
) -> list[Document]:
    """Wait until a DaemonSet's newest pods are available on every node it is for; return them. Raises RolloutError."""
    target = WaitTarget(api, DAEMON_SET, namespace, name, patience or Patience())

    def look() -> WaitState:
        found = target.read()
        if found is None:
            return WaitState(False, "is not there")
        if not _observed(found):
            return WaitState(False, "its controller has not seen it yet")
        listed = alive(api.list(POD, namespace, _selector(found)))
        pods = [pod for pod in listed if _owned(pod, {found["metadata"]["uid"]})]
        status = found.get("status") or {}
        wanted, current, updated, available = (
            int(status.get(key) or 0)
            for key in (
                "desiredNumberScheduled",
                "currentNumberScheduled",
                "updatedNumberScheduled",
                "numberAvailable",
            )
        )
        made = found["metadata"].get("creationTimestamp")
        if wanted == 0 and target.lasted(made) >= _NO_NODE_S:
            text = "no node is meant: its node selector or tolerations match none"
            raise target.trouble(Trouble("NoNode", text, "correct node_selector and tolerations"))
        if current < wanted:
            target.require_creatable(made)
        target.check(pods)
        ready = [pod for pod in pods if is_ready(pod)]
        done = 0 < wanted == updated == available and len(ready) >= wanted
        return WaitState(done, f"{available} of {wanted} nodes have it available", ready if done else pods)

    found = target.read()
    return wait(target, look, watching(DAEMON_SET, namespace, name, _selector(found) if found else ""), timeout_s, say)


def wait_for_pod(
    api: Api, namespace: str, name: str, timeout_s: float, say: Say | None = None, patience: Patience | None = None
) -> Document:
    """Wait until a pod that no controller looks after is ready; return it. Raises RolloutError."""
    target = WaitTarget(api, POD, namespace, name, patience or Patience())

    def look() -> WaitState:
        found = target.read()
        if found is None:
            return WaitState(False, "is not there")
        target.check([found])
        phase = (found.get("status") or {}).get("phase")
        if phase == "Succeeded":
            raise target.error("Completed", "ended, with success, instead of staying", found)
        return WaitState(is_ready(found), f"is {phase}", [found])

    return wait(target, look, watching(POD, namespace, name), timeout_s, say)[0]


def wait_for_job(
    api: Api,
    namespace: str,
    name: str,
    timeout_s: float,
    say: Say | None = None,
    patience: Patience | None = None,
    meanwhile: Callable[[Sequence[Document]], None] | None = None,
) -> Document:
    """Wait until a Job has completed; return the pod that did it.

    Raises RolloutError when it failed, when its pod cannot run, and when its pod was deleted while it ran: a second pod
    would measure something else. `meanwhile` is called at every look with the Job's live pods, and may raise.
    """
    target = WaitTarget(api, JOB, namespace, name, patience or Patience())
    follow = _Job(target)

    def look() -> WaitState:
        found = follow.look()
        if meanwhile is not None and not found.done:
            meanwhile(found.pods)
        return found

    return wait(target, look, watching(JOB, namespace, name, f"job-name={name}"), timeout_s, say)[0]


class _Job:
    """A Job as it is seen from look to look: it, and its pod, must stay the same."""

    def __init__(self, target: WaitTarget) -> None:
        self._target = target
        self._uid = ""
        self._pod: Document | None = None
        self._gone_since: float | None = None

    def look(self) -> WaitState:
        target = self._target
        found = target.read()
        if found is None:
            return WaitState(False, "is not there")
        uid = found["metadata"]["uid"]
        if self._uid not in ("", uid):
            raise target.error("Replaced", "was deleted and made anew by someone else while it was waited for")
        self._uid = uid
        listed = target.api.list(POD, target.namespace, f"job-name={target.name}")
        pods = [pod for pod in listed if _owned(pod, {uid})]
        if condition(found, "Complete").get("status") == "True":
            ended = [pod for pod in pods if (pod.get("status") or {}).get("phase") == "Succeeded"]
            # Its success is the Job's word, whether or not the pod was cleared away meanwhile.
            done = ended[-1] if ended else self._pod
            if done is None:
                raise target.error("PodDeleted", "completed, but its pod was never seen and is gone")
            return WaitState(True, "completed", [done])
        for kind in ("Failed", "FailureTarget"):
            if condition(found, kind).get("status") == "True":
                raise self._failed(condition(found, kind), pods)
        if self._overdue(found, pods):
            raise self._failed({"reason": "DeadlineExceeded", "message": "still active after its deadline"}, pods)
        live = alive(pods)
        self._same_pod(live)
        if not live:
            target.require_creatable(found["metadata"].get("creationTimestamp"))
        # A pod that ended is judged by the Job's own verdict, which knows whether there is another try.
        target.check(live, retried=True)
        phases = ", ".join(str((pod.get("status") or {}).get("phase")) for pod in live) or "not there yet"
        return WaitState(False, f"its pod is {phases}", live)

    def _overdue(self, found: Document, pods: list[Document]) -> bool:
        started, deadline = (found.get("status") or {}).get("startTime"), found["spec"].get("activeDeadlineSeconds")
        if started is None or deadline is None or self._target.lasted(started) < deadline + _OVERDUE_S:
            return False
        return all((pod.get("status") or {}).get("phase") != "Succeeded" for pod in pods)

    def _same_pod(self, live: list[Document]) -> None:
        if self._pod is not None:
            uid = self._pod["metadata"]["uid"]
            if any(pod["metadata"]["uid"] == uid for pod in live):
                self._gone_since = None
                return
            now = time.monotonic()
            self._gone_since = now if self._gone_since is None else self._gone_since
            if now - self._gone_since >= _VERDICT_S or live:
                text = f"lost its pod {self._pod['metadata']['name']}, which was deleted while it ran"
                raise self._target.error("PodDeleted", text)
            return
        self._pod = next(iter(live), None)

    def _failed(self, verdict: Mapping[str, Any], pods: list[Document]) -> RolloutError:
        reason, message = verdict.get("reason") or "Failed", verdict.get("message") or ""
        ended = [(pod, trouble) for pod in pods if (trouble := trouble_of(pod)) is not None]
        if reason == "DeadlineExceeded" or not ended:
            deadline = self._target.seen["spec"].get("activeDeadlineSeconds") if self._target.seen else None
            limit = f" ({deadline} s)" if deadline and reason == "DeadlineExceeded" else ""
            fix = "see its events; raise its time limit if it was only slow" if limit else "see its events"
            trouble = Trouble(reason, f"{message}{limit}", fix)
            return self._target.trouble(trouble, pods[-1] if pods else None)
        pod, trouble = ended[-1]
        return self._target.trouble(trouble, pod)


def require_unchanged(api: Api, pods: Iterable[Document]) -> None:
    """Raise RolloutError when one of these pods (as a wait returned them) is gone, restarted, or will not run on."""
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
            last = next((found for found in _last_ends(now) if found[1]), ("", {}))
            text = f"restarted {again} time(s) while in use, exit code {last[1].get('exitCode', 'unknown')}"
            fix = "what it held in memory is lost: see its last log lines"
            raise target.trouble(Trouble("Restarted", text, fix, metadata["name"], last[0], previous=True), now)


def _last_ends(pod: Document) -> list[tuple[str, Mapping[str, Any]]]:
    states = (pod.get("status") or {}).get("containerStatuses") or []
    return [(found["name"], (found.get("lastState") or {}).get("terminated") or {}) for found in states]


def _observed(document: Document) -> bool:
    observed = int((document.get("status") or {}).get("observedGeneration") or 0)
    return observed >= int(document["metadata"]["generation"])


def _owned(document: Document, owners: set[str]) -> bool:
    return any(owner["uid"] in owners for owner in document["metadata"].get("ownerReferences") or [])


def _selector(document: Document) -> str:
    """Write the selector of a controller as the API's query wants it."""
    selector = document["spec"]["selector"]
    parts = [f"{key}={value}" for key, value in (selector.get("matchLabels") or {}).items()]
    for term in selector.get("matchExpressions") or []:
        key, values = term["key"], ",".join(term.get("values") or [])
        written = {"In": f"{key} in ({values})", "NotIn": f"{key} notin ({values})", "Exists": key}
        parts.append(written.get(term["operator"], f"!{key}"))
    return ",".join(parts)
