"""Client of a cluster: reads objects by kind, writes them by server-side apply, runs commands in pods.

Requests are retried, because an API server may be restarted, upgraded or busy while a measurement runs.
"""

import os
import random
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, TypeVar

from kveval.engines.kubernetes.api.errors import (
    AWAY,
    NO_ANSWER,
    ClusterError,
    NodeNotReady,
    Refused,
    Unreachable,
)
from kveval.engines.kubernetes.api.exec import Executed, Execution
from kveval.engines.kubernetes.api.kinds import (
    EVENT,
    NAMESPACE,
    NODE,
    POD,
    Document,
    Documents,
    Kind,
    described,
    kind_of,
    unready,
)
from kveval.engines.kubernetes.api.names import MANAGER, PREFIX
from kveval.engines.kubernetes.api.transport import KubernetesTransport, Query, Reply
from kveval.host.kubeconfig import CONTEXT_VARIABLE

T = TypeVar("T")
OUTAGE_S = 300.0
"""Seconds for which an API server may be unavailable: a managed control plane's upgrade takes a few minutes."""
_ANSWER_S = 30.0
_VERDICT_S = 5.0
_CONNECT_S = 15.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0
# Right after its start an API server does not know all roles and custom kinds yet, and refuses what needs them.
_SETTLING_S = 20.0
_UNSETTLED = (401, 403, 404)
_REMIND_S = 30.0
_TOO_MANY_REQUESTS = 429
_NEVER_SERVED = (501, 505)
# Some versions answer an invalid document with status 500 and these words.
_HOPELESS = "failed to create typed"
_CONFLICTS = 5
# Applied last: a binding needs its role, and no pod is created without its service account and what it mounts.
_LAST = ("RoleBinding", "Deployment", "DaemonSet", "Job", "Pod")


class Api:
    """One cluster. Calls are retried while the API server is unavailable; ClusterError after `outage_s` seconds.

    `say`, if set, gets a message while the API server does not answer. Safe to use from several threads.
    """

    def __init__(
        self,
        transport: KubernetesTransport,
        outage_s: float = OUTAGE_S,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self.transport = transport
        self.say = say
        self._outage_s = outage_s
        self._ahead = timedelta()
        self._lost_at = self._reminded_at = float("-inf")
        self._owners: dict[tuple[str | None, ...], Mapping[str, Any]] = {}
        self._silent: set[tuple[str, str]] = set()

    @classmethod
    def connect(
        cls,
        kubeconfig: str | Path | None = None,
        context: str | None = None,
        outage_s: float = OUTAGE_S,
        say: Callable[[str], None] | None = None,
    ) -> "Api":
        """Use a kubeconfig (None: KUBECONFIG, ~/.kube/config, or the pod's own account); sends no request yet.

        `context`: None for the one that the snakemake of this job has pinned, else the current one. `outage_s` 0: no
        retries. Raises ClusterError.
        """
        context = context or os.environ.get(CONTEXT_VARIABLE)
        return cls(KubernetesTransport.configured(kubeconfig, context), outage_s, say)

    @property
    def server(self) -> str:
        """The API server's address."""
        return self.transport.server

    def now(self) -> datetime:
        """Return the time by the API server's clock, from which the timestamps in its objects come."""
        return datetime.now(UTC) + self._ahead

    # --- any request

    def once(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: Any = None,
        content: str = "json",
        timeout_s: float = _ANSWER_S,
    ) -> Reply:
        """Send a request once and return a 2xx answer. Raises Refused with any other, Unreachable without one."""
        reply = self.transport.request(
            method, path, query or {}, body, content, timeout_s
        )
        if date := reply.headers.get("Date"):
            self._ahead = parsedate_to_datetime(date) - datetime.now(UTC)
        if not 200 <= reply.status < 300:
            raise reply.refusal(self.server, f"{method} {path}")
        return reply

    def request(self, method: str, path: str, **parts: Any) -> Reply:
        """Return a 2xx answer to a request with the `parts` of `once`. Raises Refused with any other final answer."""
        return self.keep_trying(lambda: self.once(method, path, **parts))

    def get(self, path: str, query: Query | None = None) -> Document:
        """Return the object at a path such as /version."""
        return self.request("GET", path, query=query).json()

    def keep_trying(self, once: Callable[[], T], final: Collection[int] = ()) -> T:
        """Return what `once` returns, retried while it fails for a temporary reason. Raises ClusterError.

        `final`: statuses not to retry here, though they often mean that the API server is unavailable.
        """
        begin = time.monotonic()
        pause = _FIRST_PAUSE_S
        while True:
            try:
                return once()
            except ClusterError as error:
                now = time.monotonic()
                if error.status in final or not self._passes(error, now):
                    raise
                lasted_s = now - begin
                if lasted_s >= self._outage_s:
                    message = f"cluster {self.server}: no usable answer for {lasted_s:.0f} s; last: {error}; "
                    message += "is the API server up, and is this the right kubeconfig and context?"
                    facts = {"server": self.server, "lasted_s": lasted_s}
                    raise ClusterError(
                        message, error.status, error.reason, code=NO_ANSWER, **facts
                    ) from error
                # One outage is the same for all threads.
                if (
                    self.say is not None
                    and now - max(begin, self._reminded_at) >= _REMIND_S
                ):
                    self._reminded_at = now
                    self.say(
                        f"the cluster's API server has not answered for {lasted_s:.0f} s ({error}); still trying"
                    )
                # Random, so that the cells of a campaign do not all retry at the same moment.
                time.sleep(
                    min(
                        pause * random.uniform(0.7, 1.0),
                        max(0.0, begin + self._outage_s - now),
                    )
                )
                pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _passes(self, error: ClusterError, now: float) -> bool:
        if _HOPELESS in str(error):
            return False
        if isinstance(error, Unreachable) or error.status in AWAY:
            self._lost_at = now
            return True
        if error.status is None or error.status in _NEVER_SERVED:
            return False
        if error.status == _TOO_MANY_REQUESTS or error.status >= 500:
            return True
        # The 404 of a missing object has a reason; that of a path that is not served (yet) has none.
        unsettled = error.status in _UNSETTLED and not (
            error.status == 404 and error.reason
        )
        return unsettled and now - self._lost_at < _SETTLING_S

    def lacks_namespace(self, name: str) -> bool:
        """Tell whether a namespace is gone or being deleted, as far as the account may see that.

        Asked once: a cluster that does not answer was waited for already.
        """
        try:
            reply = self.once("GET", NAMESPACE.path("", name), timeout_s=_VERDICT_S)
        except ClusterError as error:
            return error.status == 404
        return "deletionTimestamp" in reply.json()["metadata"]

    def serves(self, kind: Kind) -> bool:
        """Tell whether the cluster knows a kind (yet)."""
        try:
            entries = self.get(kind.root).get("resources") or []
        except Refused as error:
            if error.status == 404:
                return False
            raise
        return any(entry["kind"] == kind.kind for entry in entries)

    # --- objects

    def belongs_to(self, owner: Mapping[str, Any]) -> None:
        """Make `owner` the owner of all objects of its run (by labels and namespace) that are applied from now on."""
        self._owners[_run_of(owner["metadata"])] = owner

    def apply(
        self, documents: Iterable[Mapping[str, Any]], field_manager: str = MANAGER
    ) -> Documents:
        """Create or update the documents' objects (server-side apply), those first that others depend on.

        Takes over fields that other managers had set. A namespace that exists is left as it is.
        """
        ordered = sorted(documents, key=lambda document: _rank(document["kind"]))
        return [self._apply(document, field_manager) for document in ordered]

    def _apply(self, document: Mapping[str, Any], field_manager: str) -> Document:
        kind, metadata, name = (
            kind_of(document),
            document["metadata"],
            described(document),
        )
        if (
            kind == NAMESPACE
            and (there := self.read(NAMESPACE, metadata["name"])) is not None
        ):
            return there
        query: Query = {"fieldManager": field_manager, "force": True}
        path = kind.path(metadata.get("namespace", ""), metadata["name"])
        owner = self._owners.get(_run_of(metadata))
        # An owner that is created again must not be owned by the previous one.
        if owner is not None and (owner["kind"], owner["metadata"]["name"]) != (
            document["kind"],
            metadata["name"],
        ):
            document = {
                **document,
                "metadata": {**metadata, "ownerReferences": [reference_to(owner)]},
            }
        for attempt in range(_CONFLICTS):
            try:
                return self.request(
                    "PATCH", path, query=query, body=document, content="apply"
                ).json()
            except Refused as error:
                if error.status == 404 and not self.serves(kind):
                    fix = (
                        "install its CustomResourceDefinition"
                        if "." in kind.group
                        else "is the cluster too old?"
                    )
                    message = f"cluster {self.server} has no {kind.kind} of {kind.api_version}: {fix}"
                    raise ClusterError(
                        message, code="unknown_kind", kind=kind
                    ) from error
                # Forced, so a 409 is not a conflict of field managers but a concurrent write.
                if error.status != 409 or attempt == _CONFLICTS - 1:
                    raise ClusterError(
                        f"{name}: {error}",
                        error.status,
                        error.reason,
                        code="not_applied",
                        object=name,
                        **error.facts,
                    ) from error
                time.sleep(0.2 * (attempt + 1))
        raise AssertionError("unreachable")

    def create(self, document: Mapping[str, Any]) -> Document:
        """Post a document, such as a review of permissions, and return the answer.

        A request repeated because its answer was lost may find the object already there (409).
        """
        path = kind_of(document).path(document.get("metadata", {}).get("namespace", ""))
        return self.request("POST", path, body=document).json()

    def patch(
        self, kind: Kind, name: str, namespace: str, body: Mapping[str, Any]
    ) -> Document:
        """Merge `body` into an object."""
        return self.request(
            "PATCH", kind.path(namespace, name), body=body, content="merge"
        ).json()

    def read(self, kind: Kind, name: str, namespace: str = "") -> Document | None:
        """Return an object, None when there is none of this name."""
        try:
            return self.get(kind.path(namespace, name))
        except Refused as error:
            if error.status == 404:
                return None
            raise

    def list(
        self, kind: Kind, namespace: str = "", selector: str = "", fields: str = ""
    ) -> Documents:
        """Return the objects with these labels and fields, of one namespace or (empty) of all."""
        query = {"labelSelector": selector, "fieldSelector": fields}
        listed = self.get(
            kind.path(namespace),
            {name: value for name, value in query.items() if value},
        )
        # The items of a list have neither apiVersion nor kind.
        return [
            {"apiVersion": kind.api_version, "kind": kind.kind} | item
            for item in listed.get("items") or []
        ]

    def delete(
        self,
        kind: Kind,
        name: str,
        namespace: str = "",
        propagation: str = "Background",
        grace_s: int | None = None,
        uid: str | None = None,
    ) -> bool:
        """Request the deletion of an object (with `uid`: only if it has this uid); return False if there is none."""
        body: Document = {
            "kind": "DeleteOptions",
            "apiVersion": "v1",
            "propagationPolicy": propagation,
        }
        body |= {} if grace_s is None else {"gracePeriodSeconds": grace_s}
        body |= {} if uid is None else {"preconditions": {"uid": uid}}
        try:
            self.request("DELETE", kind.path(namespace, name), body=body)
        except Refused as error:
            if error.status == 404 or (uid and error.status == 409):
                return False
            raise
        return True

    def events(self, document: Mapping[str, Any]) -> Documents:
        """Return the Events of an object, the oldest first."""
        metadata = document["metadata"]
        reference = {
            "involvedObject.name": metadata["name"],
            "involvedObject.uid": metadata.get("uid"),
        }
        fields = ",".join(
            f"{name}={value}" for name, value in reference.items() if value
        )
        return sorted(
            self.list(EVENT, metadata.get("namespace") or "default", fields=fields),
            key=event_time,
        )

    # --- pods

    def of_pod(
        self,
        namespace: str,
        pod: str,
        once: Callable[[], T],
        final: Collection[int] = (),
    ) -> T:
        """Return the result of `once`, a request to a pod, which is retried as long as the pod's node is ready.

        Raises NodeNotReady if the node is not. `final`: HTTP statuses that are the pod's answer, not to be retried.
        """

        def tried() -> T:
            if (namespace, pod) in self._silent:
                self._require_node(namespace, pod)
            try:
                return once()
            except ClusterError as error:
                if isinstance(error, Unreachable) or error.status in AWAY:
                    self._silent.add((namespace, pod))
                    self._require_node(namespace, pod)
                raise

        return self.keep_trying(tried, final)

    def _require_node(self, namespace: str, pod: str) -> None:
        """Raise NodeNotReady if the cluster reports a pod's node as not ready; return if it does not answer."""
        try:
            pod_object = self.once(
                "GET", POD.path(namespace, pod), timeout_s=_VERDICT_S
            ).json()
            name = str(pod_object["spec"].get("nodeName") or "")
            node = (
                self.once("GET", NODE.path("", name), timeout_s=_VERDICT_S).json()
                if name
                else {}
            )
        except ClusterError:
            return
        if reason := unready(node, self.now()):
            raise NodeNotReady(
                f"pod {namespace}/{pod} cannot be asked: {reason}", node=name
            )

    def logs(
        self,
        namespace: str,
        pod: str,
        container: str,
        previous: bool = False,
        tail: int | None = None,
    ) -> str:
        """Return a container's log (before its last restart: `previous`), all of it or the last `tail` lines."""
        query: Query = {
            "container": container,
            "previous": previous,
            **({} if tail is None else {"tailLines": tail}),
        }
        path = f"{POD.path(namespace, pod)}/log"
        reply = self.of_pod(namespace, pod, lambda: self.once("GET", path, query=query))
        return reply.body.decode(errors="replace")

    def started(
        self, namespace: str, pod: str, container: str, argv: Sequence[str]
    ) -> Execution:
        """Start a command in a container. Only the start is retried, because the command may have side effects."""
        query: Query = {
            "container": container,
            "command": list(argv),
            "stdout": True,
            "stderr": True,
        }
        what = f"`{argv[0]}` in pod {namespace}/{pod}, container {container},"
        path = f"{POD.path(namespace, pod)}/exec"
        try:
            frames = self.of_pod(
                namespace, pod, lambda: self.transport.command(path, query, _CONNECT_S)
            )
        except NodeNotReady:
            raise
        except ClusterError as error:
            message = f"{what} could not be started: {error}"
            raise ClusterError(
                message, error.status, error.reason, code=error.code, **error.facts
            ) from error
        return Execution(frames, what)

    def exec(
        self,
        namespace: str,
        pod: str,
        container: str,
        argv: Sequence[str],
        timeout_s: float = 60.0,
    ) -> Executed:
        """Run a command in a container and return its result. Raises Interrupted if the connection is lost."""
        return self.started(namespace, pod, container, argv).result(timeout_s)


def reference_to(owner: Mapping[str, Any]) -> Document:
    """Return an entry of ownerReferences, without blockOwnerDeletion, which needs an additional right on OpenShift."""
    metadata = owner["metadata"]
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
    }


def _run_of(metadata: Mapping[str, Any]) -> tuple[str | None, ...]:
    labels = metadata.get("labels") or {}
    return (
        metadata.get("namespace"),
        *(labels.get(f"{PREFIX}/{key}") for key in ("campaign", "cell", "run")),
    )


def event_time(event: Mapping[str, Any]) -> str:
    """Return when an event was last seen, as a text that sorts by time."""
    series = event.get("series") or {}
    times = (
        series.get("lastObservedTime"),
        event.get("lastTimestamp"),
        event.get("eventTime"),
    )
    return str(
        next(
            (time for time in times if time),
            event["metadata"].get("creationTimestamp") or "",
        )
    )


def _rank(kind: str) -> int:
    if kind == NAMESPACE.kind:
        return -1
    return _LAST.index(kind) + 1 if kind in _LAST else 0
