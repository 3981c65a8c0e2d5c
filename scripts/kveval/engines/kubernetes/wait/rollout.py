"""Waiting until applied objects run; a wait ends at once, with the cause, when it is clear that they never will."""

import contextlib
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kveval.engines.kubernetes.api.client import Api, event_time
from kveval.engines.kubernetes.api.errors import ClusterError
from kveval.engines.kubernetes.api.kinds import (
    DAEMON_SET,
    DEPLOYMENT,
    JOB,
    NODE,
    POD,
    REPLICA_SET,
    VOLUME_CLAIM,
    Document,
    Kind,
    annotations_of,
    condition,
    described,
    labels_of,
    seconds_since,
    status_of,
)
from kveval.engines.kubernetes.wait.diagnosis import (
    USUAL,
    Patience,
    Trouble,
    claim_trouble,
    is_ready,
    node_trouble,
    not_terminating,
    refusal_fix,
    restarts,
    trouble_of,
    waits_for,
)
from kveval.engines.protocol import Log

_POLL_S = 1.0
_REPEAT_S = 30.0
# An object may be missing because it is just being created again; a controller may be unable to create pods until
# others are deleted (a quota).
_MISSING_S = 10.0
_CREATION_S = 10.0
# A scheduler may let 10 s pass before it looks at a pod again that it could not place.
_NO_NODE_S = 30.0
_LAGS = "its controller has not seen it yet"
_EVENTS = 8
_LOG_LINES = 20
# A line of evidence below a heading, and one that is an event of the usual course, such as Scheduled.
_ENTRY = "|   "
_HARMLESS = re.compile(r"\|   \S* Normal \w+( \(x\d+\))?: ")
_REVISION = "deployment.kubernetes.io/revision"
_DAEMON_GENERATION, _POD_GENERATION = (
    "deprecated.daemonset.template.generation",
    "pod-template-generation",
)


class RolloutError(ClusterError):
    """An object will not run, or not in time. `cause` is the cluster's word for it, also in the message.

    `evidence`: what is kept beside the message, see `_evidence`. Fact `previous`: the container has been restarted, and
    its log from before that has the cause.
    """

    def __init__(
        self, summary: str, cause: str, pod: str, *, evidence: str = "", **facts: Any
    ) -> None:
        super().__init__(summary, reason=cause, **facts)
        self.evidence = evidence
        self.cause = cause
        self.pod = pod

    def keep_evidence(self, folder: Path, words: str = "", *logs: Path) -> str:
        """Return the message, `words` of the program's log, and where to look: `logs`, and the evidence in `folder`.

        Each error there begins with its time.
        """
        if self.evidence:
            if not words and "exit_code" in self.facts:
                words = _decisive(self.evidence)
            logs = (*logs, log := folder / "cluster.log")
            folder.mkdir(parents=True, exist_ok=True)
            with log.open("a") as file:
                now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
                file.write(f"--- {now}\n{self}{self.evidence}\n")
        places = " and ".join(map(str, logs))
        return f"{self}{words}; see {places}" if places else f"{self}{words}"


@dataclass
class WaitState:
    """The state that one look found: whether the wait is over, its progress in words, and the pods concerned."""

    done: bool
    text: str
    pods: list[Document] = field(default_factory=list)


@dataclass
class WaitTarget:
    """The object that is waited for, and the errors about it."""

    api: Api
    kind: Kind
    namespace: str
    name: str
    patience: Patience = USUAL
    seen: Document | None = None
    notes: str = ""
    """Why pods have no node yet, as the last `check` found it."""
    without_since: float | None = None
    """Since when a node has no pod, time.monotonic()."""
    _missing_since: float | None = None

    @property
    def label(self) -> str:
        """The object's kind and name, for messages."""
        return f"{self.kind.kind} {self.namespace}/{self.name}"

    def read(self) -> Document | None:
        """Return the object; None while it may be about to be created again. Raises RolloutError if it is missing."""
        document = self.api.read(self.kind, self.name, self.namespace)
        if document is not None and not document["metadata"].get("deletionTimestamp"):
            self.seen, self._missing_since = document, None
            return document
        now = time.monotonic()
        self._missing_since = (
            now if self._missing_since is None else self._missing_since
        )
        if now - self._missing_since < _MISSING_S:
            return None
        text = "was deleted while it was waited for" if self.seen else "does not exist"
        raise self.failed(Trouble("Deleted", text), existed=self.seen is not None)

    def check(self, pods: Sequence[Document], *, retried: bool = False) -> None:
        """Raise RolloutError for the first pod that will not run; `retried`: ignore ended pods, which a Job retries."""
        notes = []
        for pod in pods:
            pending = status_of(pod).get("phase") in (None, "Pending")
            events = self.api.events(pod) if pending else []
            now = self.api.now()
            trouble = trouble_of(pod, events, now, self.patience)
            name = (pod.get("spec") or {}).get("nodeName")
            if (
                trouble is None
                and name
                and not is_ready(pod)
                and status_of(pod).get("phase") != "Succeeded"
            ):
                trouble = node_trouble(pod, self.api.read(NODE, name), now)
            notes.append(waits_for(pod, events))
            for claim in _unbound(self.api, pod) if notes[-1] else ():
                last = self.api.events(claim)[-1:]
                words = "".join(str(event.get("message")) for event in last)
                trouble = trouble or claim_trouble(claim, words)
                notes.append(
                    f"claim {claim['metadata']['name']}: {words or 'no volume'}"
                )
            if trouble is not None and not (retried and trouble.ended):
                raise self.failed(trouble, pod)
        self.notes = "".join(dict.fromkeys(f"; {note}" for note in notes if note))

    def failed(
        self, trouble: Trouble, pod: Document | None = None, **facts: Any
    ) -> RolloutError:
        """Return the error for a trouble, with the last events and the last lines of the container's log."""
        evidence = _evidence(
            self.api, self.seen, pod, trouble.container, trouble.previous
        )
        facts |= (
            {"container": trouble.container, "exit_code": trouble.exit_code}
            if trouble.container
            else {}
        )
        facts |= {"previous": True} if trouble.previous else {}
        name = trouble.pod or (pod["metadata"]["name"] if pod else "")
        summary = (
            f"{self.label}: {trouble.line()}"
            if trouble.fix
            else f"{self.label} {trouble.text}"
        )
        facts |= {"object": self.label}
        return RolloutError(summary, trouble.cause, name, evidence=evidence, **facts)

    def require_creatable(self, since: str | None, message: str = "") -> None:
        """Raise RolloutError if, some time after `since`, the controller reports that it cannot create pods.

        `message`: its words; those of its last event if empty.
        """
        lasted_s = seconds_since(since, self.api.now())
        if self.seen is None or lasted_s < _CREATION_S:
            return
        if not message:
            failed = [
                event
                for event in self.api.events(self.seen)
                if event.get("reason") == "FailedCreate"
            ]
            if not failed:
                return
            message = str(failed[-1].get("message") or "")
        usual = "is there the service account, and what does admission in this namespace refuse?"
        fix = refusal_fix(message, self.namespace) or usual
        trouble = Trouble(
            "FailedCreate",
            f"no pod could be created for {lasted_s:.0f} s, {message}",
            fix,
        )
        raise self.failed(trouble, lasted_s=lasted_s, said=message)


def wait(
    target: WaitTarget, look: Callable[[], WaitState], timeout_s: float, say: Log | None
) -> list[Document]:
    """Call `look` every second until its state is done; return the pods of that state.

    Raises RolloutError after `timeout_s`, and whatever `look` raises. Reports each new text with `say`, and repeats an
    unchanged one from time to time.
    """
    begin = time.monotonic()
    last_text, last_time = "", begin
    while not (state := look()).done:
        now, text = time.monotonic(), f"{state.text}{target.notes}"
        if say is not None and (text != last_text or now - last_time >= _REPEAT_S):
            say(f"{target.label}: {text} ({now - begin:.0f} s)")
            last_text, last_time = text, now
        if now - begin >= timeout_s:
            late = next((pod for pod in state.pods if not is_ready(pod)), None)
            raise target.failed(
                Trouble("Timeout", f"is not done after {timeout_s:.0f} s: {text}"), late
            )
        time.sleep(min(_POLL_S, begin + timeout_s - now))
    return state.pods


def _evidence(
    api: Api,
    document: Mapping[str, Any] | None,
    pod: Mapping[str, Any] | None,
    container: str,
    previous: bool,
) -> str:
    """Return an error's further lines: the last events of an object and its pod, the last lines of a container's log.

    Each begins with |, which separates them where a message becomes one line. `previous`: quote the log from before the
    container's last restart. Never raises ClusterError.
    """
    parts = [
        _events(api, entry)
        for entry in (document, pod, *_unbound(api, pod))
        if entry is not None
    ]
    if pod is not None:
        parts.append(_log(api, pod, container, previous))
    return "".join(f"\n| {line}" for part in parts for line in part.splitlines())


def _decisive(evidence: str) -> str:
    """Return the last line of the log, without one the last event that warns, after a colon; "" without either."""
    lines = [
        line.removeprefix(_ENTRY)
        for line in evidence.splitlines()
        if line.startswith(_ENTRY) and not _HARMLESS.match(line)
    ]
    return f": {lines[-1].strip()}" if lines else ""


def _unbound(api: Api, pod: Mapping[str, Any] | None) -> list[Document]:
    """Return the claims of a pod that have no volume; their events say why, which the pod's events do not."""
    volumes = (pod or {}).get("spec", {}).get("volumes") or []
    names = [
        volume["persistentVolumeClaim"]["claimName"]
        for volume in volumes
        if "persistentVolumeClaim" in volume
    ]
    claims = []
    for name in names:
        with contextlib.suppress(ClusterError):
            claims.append(
                api.read(VOLUME_CLAIM, name, (pod or {})["metadata"]["namespace"])
            )
    return [
        claim for claim in claims if claim and status_of(claim).get("phase") != "Bound"
    ]


def _events(api: Api, document: Mapping[str, Any]) -> str:
    try:
        events = api.events(document)[-_EVENTS:]
    except ClusterError as error:
        return f"events of {described(document)} could not be read: {error}"
    lines = []
    for event in events:
        often = f" (x{event['count']})" if (event.get("count") or 1) > 1 else ""
        message = " ".join(str(event.get("message") or "").split())
        lines.append(
            f"  {event_time(event)} {event.get('type')} {event.get('reason')}{often}: {message}"
        )
    return "\n".join([f"events of {described(document)}:", *lines]) if lines else ""


def _log(api: Api, pod: Mapping[str, Any], container: str, previous: bool) -> str:
    metadata, status = pod["metadata"], status_of(pod)
    states = (status.get("initContainerStatuses") or []) + (
        status.get("containerStatuses") or []
    )
    name = container or (states[-1]["name"] if states else "")
    for before in dict.fromkeys((previous, False)) if name else ():
        # A container that never ran has no log, another's is gone with its node or its pod.
        with contextlib.suppress(ClusterError):
            text = api.logs(
                metadata["namespace"],
                metadata["name"],
                name,
                previous=before,
                tail=_LOG_LINES,
            )
            if lines := text.rstrip().splitlines():
                head = f"last log lines of container {name} of pod {metadata['name']}:"
                return "\n".join([head, *(f"  {line}" for line in lines)])
    return ""


def wait_for_deployment(
    api: Api,
    namespace: str,
    name: str,
    timeout_s: float,
    say: Log | None = None,
    patience: Patience = USUAL,
) -> list[Document]:
    """Wait until all replicas of the newest revision are available and no others are left; return their pods.

    Raises RolloutError as soon as a pod of that revision cannot run, or after `timeout_s`.
    """
    target = WaitTarget(api, DEPLOYMENT, namespace, name, patience)
    return _waited(target, _deployment, timeout_s, say)


def _waited(
    target: WaitTarget,
    judge: Callable[[WaitTarget, Document], WaitState],
    timeout_s: float,
    say: Log | None,
) -> list[Document]:
    """Wait until `judge` finds an object done; return its pods."""

    def look() -> WaitState:
        document = target.read()
        if document is None:
            return WaitState(False, "does not exist yet")
        return judge(target, document)

    return wait(target, look, timeout_s, say)


def _deployment(target: WaitTarget, deployment: Document) -> WaitState:
    if _lags(deployment):
        return WaitState(False, _LAGS)
    spec, status, pods = (
        deployment["spec"],
        status_of(deployment),
        _pods_of_revision(target, deployment),
    )
    replicas = int(spec.get("replicas", 1))
    target.check(pods)
    failure = condition(deployment, "ReplicaFailure")
    if failure.get("status") == "True" and len(pods) < replicas:
        target.require_creatable(
            failure.get("lastTransitionTime"), failure.get("message") or ""
        )
    updated, available = (
        int(status.get(key) or 0) for key in ("updatedReplicas", "availableReplicas")
    )
    old = int(status.get("replicas") or 0) - updated
    ready = [pod for pod in pods if is_ready(pod)]
    done = old == 0 and replicas == updated == available == len(ready)
    text = f"{min(len(ready), available)} of {replicas} replicas are available" + (
        f", {old} old ones left" if old else ""
    )
    return WaitState(done, text, ready if done else pods)


def _pods_of_revision(target: WaitTarget, deployment: Document) -> list[Document]:
    """Return the live pods of the newest revision; pods of earlier ones, ready or broken, do not count."""
    api, labels = target.api, _selector(deployment)
    revision = annotations_of(deployment).get(_REVISION)
    newest = {
        replica_set["metadata"]["uid"]
        for replica_set in api.list(REPLICA_SET, target.namespace, labels)
        if _owned(replica_set, {deployment["metadata"]["uid"]})
        and annotations_of(replica_set).get(_REVISION) == revision
    }
    return [
        pod
        for pod in not_terminating(api.list(POD, target.namespace, labels))
        if _owned(pod, newest)
    ]


def wait_for_daemonset(
    api: Api,
    namespace: str,
    name: str,
    nodes: Collection[str],
    timeout_s: float,
    say: Log | None = None,
    patience: Patience = USUAL,
) -> list[Document]:
    """Wait until each of `nodes` has a ready pod of a DaemonSet's current template; return those pods.

    Faults on other nodes are ignored. Raises RolloutError.
    """
    target = WaitTarget(api, DAEMON_SET, namespace, name, patience)
    return _waited(
        target,
        lambda target, daemon_set: _daemon_set(target, daemon_set, nodes),
        timeout_s,
        say,
    )


def _daemon_set(
    target: WaitTarget, daemon_set: Document, nodes: Collection[str]
) -> WaitState:
    listed = not_terminating(
        target.api.list(POD, target.namespace, _selector(daemon_set))
    )
    pods = [
        pod
        for pod in listed
        if _owned(pod, {daemon_set["metadata"]["uid"]})
        and pod["spec"].get("nodeName") in nodes
    ]
    generation = annotations_of(daemon_set).get(_DAEMON_GENERATION)
    new = [
        pod for pod in pods if labels_of(pod).get(_POD_GENERATION) in (generation, None)
    ]
    without = sorted(set(nodes) - {pod["spec"]["nodeName"] for pod in pods})
    made = daemon_set["metadata"].get("creationTimestamp")
    # A controller before Kubernetes 1.25.6 and 1.26.1 never writes a first status while it cannot create pods. Of an
    # older status, the events may be from before the change.
    if without and not (_lags(daemon_set) and _observed(daemon_set)):
        target.require_creatable(made)
    if _lags(daemon_set):
        return WaitState(False, _LAGS)
    target.check(new)
    target.without_since = (
        (target.without_since or time.monotonic()) if without else None
    )
    if (
        target.without_since is not None
        and time.monotonic() - target.without_since >= _NO_NODE_S
    ):
        text = f"no pod on node {', '.join(without)}, where a server is: does it have 100m CPU and 128 MiB left?"
        fix = "or correct cluster.node_selector and cluster.tolerations"
        raise target.failed(Trouble("NoNode", text, fix))
    ready = [pod for pod in new if is_ready(pod)]
    text = f"it is available on {len(ready)} of {len(nodes)} measured nodes"
    return WaitState(len(ready) == len(nodes), text, ready or pods)


def wait_for_job(
    api: Api,
    namespace: str,
    name: str,
    timeout_s: float,
    say: Log | None = None,
    patience: Patience = USUAL,
) -> list[Document]:
    """Wait until a Job has completed; return its successful pods, as far as they still exist.

    Raises RolloutError if the Job failed, if its pod cannot run, or after `timeout_s`.
    """
    return _waited(
        WaitTarget(api, JOB, namespace, name, patience),
        _job,
        timeout_s,
        say,
    )


def _job(target: WaitTarget, job: Document) -> WaitState:
    listed = target.api.list(POD, target.namespace, f"job-name={target.name}")
    pods = [pod for pod in listed if _owned(pod, {job["metadata"]["uid"]})]
    if condition(job, "Complete").get("status") == "True":
        return WaitState(
            True, "completed", [pod for pod in pods if _phase(pod) == "Succeeded"]
        )
    for kind in ("Failed", "FailureTarget"):
        if condition(job, kind).get("status") == "True":
            raise _failed(target, condition(job, kind), pods)
    live = not_terminating(pods)
    if not live:
        target.require_creatable(job["metadata"].get("creationTimestamp"))
    # An ended pod is not judged here: the Job's own status says whether there is another attempt.
    target.check(live, retried=True)
    return WaitState(
        False, f"its pod is {', '.join(map(_phase, live)) or 'not there yet'}", live
    )


def _failed(
    target: WaitTarget, verdict: Mapping[str, Any], pods: list[Document]
) -> RolloutError:
    """Return the error of a failed Job: how its pod ended, unless the Job's own deadline is the reason."""
    reason, message = verdict.get("reason") or "Failed", verdict.get("message") or ""
    ended = [(pod, trouble) for pod in pods if (trouble := trouble_of(pod)) is not None]
    if ended and reason != "DeadlineExceeded":
        pod, trouble = ended[-1]
        return target.failed(trouble, pod)
    deadline = target.seen["spec"].get("activeDeadlineSeconds") if target.seen else None
    limit = f" ({deadline} s)" if deadline and reason == "DeadlineExceeded" else ""
    fix = (
        "see its events; raise its time limit if it was only slow"
        if limit
        else "see its events"
    )
    trouble = Trouble(reason, f"{message}{limit}", fix)
    return target.failed(
        trouble, pods[-1] if pods else None, limit_s=deadline if limit else None
    )


def require_unchanged(api: Api, pods: Iterable[Document]) -> None:
    """Raise RolloutError if one of these pods (as a wait returned them) is gone, restarted, or cannot continue."""
    for before in pods:
        metadata = before["metadata"]
        patience = Patience(restarts=restarts(before))
        target = WaitTarget(
            api, POD, metadata["namespace"], metadata["name"], patience, seen=before
        )
        now = api.read(POD, metadata["name"], metadata["namespace"])
        if (
            now is None
            or now["metadata"]["uid"] != metadata["uid"]
            or now["metadata"].get("deletionTimestamp")
        ):
            evicted = condition(now or {}, "DisruptionTarget")
            why = f" ({evicted['reason']}: {evicted['message']})" if evicted else ""
            text = f"was deleted while it was in use{why}"
            raise target.failed(Trouble("PodDeleted", text, pod=metadata["name"]))
        target.check([now])
        if (again := restarts(now) - restarts(before)) > 0:
            states = status_of(now).get("containerStatuses") or []
            ends = [
                (state["name"], (state.get("lastState") or {}).get("terminated") or {})
                for state in states
            ]
            container, last = next((end for end in ends if end[1]), ("", {}))
            code = last.get("exitCode")
            text = f"restarted {again} time(s) while in use, exit code {'unknown' if code is None else code}"
            fix = "what it held in memory is lost: see its last log lines"
            raise target.failed(
                Trouble(
                    "Restarted",
                    text,
                    fix,
                    metadata["name"],
                    container,
                    code,
                    previous=True,
                ),
                now,
            )


def _phase(pod: Document) -> str:
    return str(status_of(pod).get("phase"))


def _observed(document: Document) -> int:
    """Return the generation that an object's controller has last written about, 0 before it has."""
    return int(status_of(document).get("observedGeneration") or 0)


def _lags(document: Document) -> bool:
    """Tell whether an object's controller has not written about its last change."""
    return _observed(document) < int(document["metadata"]["generation"])


def _owned(document: Document, owners: set[str]) -> bool:
    return any(
        owner["uid"] in owners
        for owner in document["metadata"].get("ownerReferences") or []
    )


def _selector(document: Document) -> str:
    """Return the selector of a Deployment or DaemonSet of this program, which has labels only, for an API query."""
    return ",".join(
        f"{key}={value}"
        for key, value in document["spec"]["selector"]["matchLabels"].items()
    )
