"""The common part of every wait for an object: polling, ending with the cause of a failure, reporting progress."""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kveval.engines.kubernetes.api.client import Api, event_time
from kveval.engines.kubernetes.api.errors import ClusterError
from kveval.engines.kubernetes.api.kinds import NODE, VOLUME_CLAIM, Document, Kind, described
from kveval.engines.kubernetes.wait.diagnosis import (
    Patience,
    Trouble,
    is_ready,
    node_trouble,
    seconds_since,
    trouble_of,
    waits_for,
)
from kveval.engines.protocol import Say

_POLL_S = 1.0
_REPEAT_S = 30.0
# An object may be missing because it is just being created again; a controller may be unable to create pods until
# others are deleted (a quota).
_MISSING_S = 10.0
_CREATION_S = 10.0
_EVENTS = 8
_LOG_LINES = 20


class RolloutError(ClusterError):
    """An object will not run, or not in time. `cause` is the cluster's word for it, also in the message's first line.

    Fact `previous`: the container has been restarted, and its log from before that has the cause.
    """

    def __init__(self, message: str, cause: str, pod: str = "", **facts: Any) -> None:
        super().__init__(message, reason=cause, **facts)
        self.cause = cause
        self.pod = pod


@dataclass
class WaitState:
    """The state that one look found: whether the wait is over, its progress in words, and the pods concerned.

    `available` of `wanted` replicas or nodes: None if there are not several, or their controller has not counted them.
    """

    done: bool
    text: str
    pods: list[Document] = field(default_factory=list)
    available: int | None = None
    wanted: int | None = None


@dataclass
class WaitTarget:
    """The object that is waited for, and the errors about it."""

    api: Api
    kind: Kind
    namespace: str
    name: str
    patience: Patience = field(default_factory=Patience)
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
        found = self.api.read(self.kind, self.name, self.namespace)
        if found is not None and not found["metadata"].get("deletionTimestamp"):
            self.seen, self._missing_since = found, None
            return found
        now = time.monotonic()
        self._missing_since = now if self._missing_since is None else self._missing_since
        if now - self._missing_since < _MISSING_S:
            return None
        text = "was deleted while it was waited for" if self.seen else "does not exist"
        raise self.error("Deleted", text, existed=self.seen is not None)

    def check(self, pods: Sequence[Document], *, retried: bool = False) -> None:
        """Raise RolloutError for the first pod that will not run; `retried`: ignore ended pods, which a Job retries."""
        notes = []
        for pod in pods:
            pending = (pod.get("status") or {}).get("phase") in (None, "Pending")
            events = self.api.events(pod) if pending else []
            now = self.api.now()
            found = trouble_of(pod, events, now, self.patience)
            name = (pod.get("spec") or {}).get("nodeName")
            if found is None and name and not is_ready(pod) and (pod.get("status") or {}).get("phase") != "Succeeded":
                found = node_trouble(pod, self.api.read(NODE, name), now)
            if found is not None and not (retried and found.ended):
                raise self.trouble(found, pod)
            notes.append(waits_for(pod, events))
        self.notes = "".join(dict.fromkeys(f"; {note}" for note in notes if note))

    def trouble(self, found: Trouble, pod: Document | None = None, **facts: Any) -> RolloutError:
        """Return the error for a trouble, with the last events and the last lines of the container's log."""
        quoted = evidence(self.api, self.seen, pod, found.container, previous=found.previous)
        message = f"{self.label}: {found.line()}{quoted}"
        facts |= {"container": found.container, "exit_code": found.exit_code}
        facts |= {"previous": True} if found.previous else {}
        return RolloutError(message, found.cause, found.pod, object=self.label, **facts)

    def error(self, cause: str, text: str, pod: Document | None = None, **facts: Any) -> RolloutError:
        """Return an error whose cause is not a pod's state; the events and log of `pod` are quoted."""
        name = pod["metadata"]["name"] if pod else ""
        message = f"{self.label} {text}{evidence(self.api, self.seen, pod)}"
        return RolloutError(message, cause, name, object=self.label, **facts)

    def require_creatable(self, since: str | None) -> None:
        """Raise RolloutError if, some time after `since`, the controller reports that it cannot create pods."""
        if self.seen is None or self.lasted(since) < _CREATION_S:
            return
        failed = [event for event in self.api.events(self.seen) if event.get("reason") == "FailedCreate"]
        if failed:
            raise self.not_creatable(str(failed[-1].get("message") or ""), since)

    def not_creatable(self, message: str, since: str | None) -> RolloutError:
        """Return the error for a controller that cannot create pods."""
        fix = "a quota, the namespace's pod security, or a missing service account prevents it"
        lasted_s = self.lasted(since)
        text = f"no pod could be created for {lasted_s:.0f} s, {message}"
        return self.trouble(Trouble("FailedCreate", text, fix), lasted_s=lasted_s, said=message)

    def lasted(self, since: str | None) -> float:
        """Return the seconds since a time in an object, by the API server's clock."""
        return seconds_since(since, self.api.now())


def wait(target: WaitTarget, look: Callable[[], WaitState], timeout_s: float, say: Say | None) -> list[Document]:
    """Call `look` every second until its state is done; return the pods of that state.

    Raises RolloutError after `timeout_s`, and whatever `look` raises. Reports each new text with `say`, and repeats an
    unchanged one from time to time.
    """
    begin = time.monotonic()
    said, said_at = "", begin
    while not (found := look()).done:
        now, text = time.monotonic(), f"{found.text}{target.notes}"
        if say is not None and (text != said or now - said_at >= _REPEAT_S):
            say(f"{target.label}: {text} ({now - begin:.0f} s)")
            said, said_at = text, now
        if now - begin >= timeout_s:
            late = next((pod for pod in found.pods if not is_ready(pod)), None)
            text = f"is not done after {timeout_s:.0f} s: {text}"
            raise target.error("Timeout", text, late, available=found.available, wanted=found.wanted)
        time.sleep(min(_POLL_S, begin + timeout_s - now))
    return found.pods


def evidence(
    api: Api,
    document: Mapping[str, Any] | None,
    pod: Mapping[str, Any] | None = None,
    container: str = "",
    previous: bool = False,
) -> str:
    """Return an error's further lines: the last events of an object and its pod, the last lines of a container's log.

    `previous`: quote the log from before the container's last restart. Never raises ClusterError.
    """
    parts = [_events(api, found) for found in (document, pod, *_unbound(api, pod)) if found is not None]
    if pod is not None:
        parts.append(_log(api, pod, container, previous))
    return "".join(f"\n{part}" for part in parts if part)


def _unbound(api: Api, pod: Mapping[str, Any] | None) -> list[Document]:
    """Return the claims of a pod that have no volume; their events say why, which the pod's events do not."""
    volumes = (pod or {}).get("spec", {}).get("volumes") or []
    names = [volume["persistentVolumeClaim"]["claimName"] for volume in volumes if "persistentVolumeClaim" in volume]
    found = []
    for name in names:
        with contextlib.suppress(ClusterError):
            found.append(api.read(VOLUME_CLAIM, name, (pod or {})["metadata"]["namespace"]))
    return [claim for claim in found if claim and (claim.get("status") or {}).get("phase") != "Bound"]


def _events(api: Api, document: Mapping[str, Any]) -> str:
    try:
        found = api.events(document)[-_EVENTS:]
    except ClusterError as error:
        return f"events of {described(document)} could not be read: {error}"
    lines = []
    for event in found:
        often = f" (x{event['count']})" if (event.get("count") or 1) > 1 else ""
        message = " ".join(str(event.get("message") or "").split())
        lines.append(f"  {event_time(event)} {event.get('type')} {event.get('reason')}{often}: {message}")
    return "\n".join([f"events of {described(document)}:", *lines]) if lines else ""


def _log(api: Api, pod: Mapping[str, Any], container: str, previous: bool) -> str:
    metadata = pod["metadata"]
    status = pod.get("status") or {}
    # A container that never ran has no log: asking for it would only add a refusal to the message.
    states = (status.get("initContainerStatuses") or []) + (status.get("containerStatuses") or [])
    ran = [found["name"] for found in states if _has_run(found)]
    name = container or (ran[-1] if ran else "")
    if name not in ran:
        return ""
    for before in dict.fromkeys((previous, False)):
        with contextlib.suppress(ClusterError):  # the log is gone with its node or its pod
            text = api.logs(metadata["namespace"], metadata["name"], name, previous=before, tail=_LOG_LINES)
            if lines := text.rstrip().splitlines():
                head = f"last log lines of container {name} of pod {metadata['name']}:"
                return "\n".join([head, *(f"  {line}" for line in lines)])
    return f"the log of container {name} of pod {metadata['name']} is empty"


def _has_run(status: Mapping[str, Any]) -> bool:
    states = [status.get("state") or {}, status.get("lastState") or {}]
    waits_for_restart = (states[0].get("waiting") or {}).get("reason") == "CrashLoopBackOff"
    return waits_for_restart or any("running" in state or "terminated" in state for state in states)
