"""Client of a cluster: reads objects by kind, writes them by server-side apply, runs commands in pods."""

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from kveval.engines.kubernetes.api.errors import AWAY, ClusterError, NodeNotReady, Refused, Unreachable
from kveval.engines.kubernetes.api.exec import Executed, Execution, run_to_end
from kveval.engines.kubernetes.api.kinds import (
    EVENT,
    NAMESPACE,
    NODE,
    POD,
    Document,
    Documents,
    Kind,
    Resource,
    described,
    kind_of,
    unready,
)
from kveval.engines.kubernetes.api.names import MANAGER, PREFIX
from kveval.engines.kubernetes.api.retry import OUTAGE_S, RetryingClient
from kveval.engines.kubernetes.api.transport import KubernetesTransport, Query, Reply

T = TypeVar("T")
_VERDICT_S = 5.0
_CONNECT_S = 15.0
_PAGE = 500
_CONFLICTS = 5
# Applied last: a binding needs its role, and no pod is created without its service account and what it mounts.
_LAST = ("RoleBinding", "Deployment", "DaemonSet", "Job", "Pod")


class Api:
    """One cluster. Calls are retried while the API server is unavailable; ClusterError after `outage_s` seconds.

    Safe to use from several threads.
    """

    def __init__(
        self, transport: KubernetesTransport, outage_s: float = OUTAGE_S, say: Callable[[str], None] | None = None
    ) -> None:
        self.transport = transport
        self.retrying = RetryingClient(transport, outage_s, say)
        self._known: dict[str, dict[str, Resource]] = {}
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
        """Use a kubeconfig (default: KUBECONFIG, ~/.kube/config, or the pod's own account); sends no request yet.

        `outage_s` 0: no retries; `say` gets a message while the API server does not answer. Raises ClusterError.
        """
        return cls(KubernetesTransport.configured(kubeconfig, context), outage_s, say)

    @property
    def server(self) -> str:
        """The API server's address."""
        return self.transport.server

    def now(self) -> datetime:
        """Return the time by the API server's clock, from which the timestamps in its objects come."""
        return datetime.now(UTC) + self.retrying.ahead

    # --- any request

    def request(
        self, method: str, path: str, *, query: Query | None = None, body: Any = None, content: str = "json"
    ) -> Reply:
        """Send one request and return its 2xx answer. Raises Refused with any other."""
        return self.retrying.request(method, path, query, body, content)

    def get(self, path: str, query: Query | None = None) -> Document:
        """Return the object at a path such as /version."""
        return self.request("GET", path, query=query).json()

    # --- kinds: by API discovery, so that custom kinds are found like all others

    def resources(self) -> tuple[Sequence[Resource], Sequence[str]]:
        """Return all kinds that the cluster serves, in its preferred versions, and the versions that did not answer."""
        groups = self.get("/apis").get("groups") or []
        silent = []
        versions = ["v1", *(group["preferredVersion"]["groupVersion"] for group in groups)]
        for version in versions:
            try:
                # The API server answers 503 if the server behind a version (often metrics.k8s.io) is down.
                self._known[version] = self._served(version, final=(503,))
            except ClusterError as error:
                if error.status != 503:
                    raise
                silent.append(version)
        return [kind for name in versions if name not in silent for kind in self._known[name].values()], silent

    def find(self, kind: Kind) -> Resource | None:
        """Return where a kind is served, None when the cluster does not know it (yet)."""
        if kind.kind not in self._known.get(kind.api_version, {}):
            # A custom kind may have been installed since.
            self._known[kind.api_version] = self._served(kind.api_version)
        return self._known[kind.api_version].get(kind.kind)

    def _served(self, version: str, final: Collection[int] = ()) -> dict[str, Resource]:
        path = f"/apis/{version}" if "/" in version else f"/api/{version}"
        try:
            entries = self.retrying.request("GET", path, final=final).json().get("resources") or []
        except ClusterError as error:
            if error.status == 404:
                return {}
            raise
        # Entries such as pods/log are subresources, not kinds.
        return {
            one["kind"]: Resource(
                Kind(version, one["kind"]), one["name"], bool(one["namespaced"]), frozenset(one.get("verbs") or ())
            )
            for one in entries
            if "/" not in one["name"]
        }

    def resource(self, kind: Kind) -> Resource:
        """Return where a kind is served. Raises ClusterError when the cluster does not know it."""
        found = self.find(kind)
        if found is None:
            fix = "install its CustomResourceDefinition" if "." in kind.group else "is the cluster too old or too new?"
            said = f"cluster {self.server} has no {kind.kind} of {kind.api_version}: {fix}"
            raise ClusterError(said, code="unknown_kind", kind=kind)
        return found

    # --- objects

    def belongs_to(self, owner: Mapping[str, Any]) -> None:
        """Make `owner` the owner of all objects of its run (by labels and namespace) that are applied from now on."""
        self._owners[_run_of(owner["metadata"])] = owner

    def apply(self, documents: Iterable[Mapping[str, Any]], field_manager: str = MANAGER) -> Documents:
        """Create or update the documents' objects (server-side apply), those first that others depend on.

        Takes over fields that other managers had set. A namespace that exists is left as it is.
        """
        ordered = sorted(documents, key=lambda document: _rank(document["kind"]))
        return [self._apply(document, field_manager) for document in ordered]

    def _apply(self, document: Mapping[str, Any], field_manager: str) -> Document:
        kind, metadata = kind_of(document), document["metadata"]
        resource = self.resource(kind)
        if resource.namespaced and not metadata.get("namespace"):
            raise ClusterError(f"{described(document)} names no namespace")
        if kind == NAMESPACE and (there := self.read(NAMESPACE, metadata["name"])) is not None:
            return there
        query: Query = {"fieldManager": field_manager, "force": True}
        path = resource.path(metadata.get("namespace", ""), metadata["name"])
        owner = self._owners.get(_run_of(metadata))
        # An owner that is created again must not be owned by the previous one.
        if owner is not None and (owner["kind"], owner["metadata"]["name"]) != (document["kind"], metadata["name"]):
            document = {**document, "metadata": {**metadata, "ownerReferences": [reference_to(owner)]}}
        for attempt in range(_CONFLICTS):
            try:
                return self.request("PATCH", path, query=query, body=document, content="apply").json()
            except Refused as error:
                # Forced, so a 409 is not a conflict of field managers but a concurrent write.
                if error.status != 409 or attempt == _CONFLICTS - 1:
                    name = described(document)
                    raise ClusterError(
                        f"{name}: {error}", error.status, error.reason, code="not_applied", object=name, **error.facts
                    ) from error
                time.sleep(0.2 * (attempt + 1))
        raise AssertionError("unreachable")

    def create(self, document: Mapping[str, Any]) -> Document:
        """Post a document, such as a review of permissions, and return the answer.

        A request repeated because its answer was lost may find the object already there (409).
        """
        path = self.resource(kind_of(document)).path(document.get("metadata", {}).get("namespace", ""))
        return self.request("POST", path, body=document).json()

    def patch(self, kind: Kind, name: str, namespace: str, body: Mapping[str, Any]) -> Document:
        """Merge `body` into an object."""
        return self.request("PATCH", self.resource(kind).path(namespace, name), body=body, content="merge").json()

    def read(self, kind: Kind, name: str, namespace: str = "") -> Document | None:
        """Return an object, None when there is none of this name."""
        try:
            return self.get(self.resource(kind).path(namespace, name))
        except Refused as error:
            if error.status == 404:
                return None
            raise

    def list(self, kind: Kind, namespace: str = "", selector: str = "", fields: str = "") -> Documents:
        """Return the objects with these labels and fields, of one namespace or (empty) of all."""
        path, wanted = self.resource(kind).path(namespace), {"labelSelector": selector, "fieldSelector": fields}
        found: Documents = []
        more = ""
        while True:
            asked = {name: value for name, value in {**wanted, "continue": more}.items() if value}
            try:
                page = self.get(path, {"limit": _PAGE, **asked})
            except Refused as error:
                if error.status != 410:
                    raise
                found, more = [], ""  # 410, the token for the next page has expired: read the list again
                continue
            # The items of a list have neither apiVersion nor kind.
            found += [{"apiVersion": kind.api_version, "kind": kind.kind} | item for item in page.get("items") or []]
            more = (page.get("metadata") or {}).get("continue", "")
            if not more:
                return found

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
        options = {"gracePeriodSeconds": grace_s, "preconditions": {"uid": uid} if uid else None}
        body: Document = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": propagation}
        body |= {name: value for name, value in options.items() if value is not None}
        try:
            self.request("DELETE", self.resource(kind).path(namespace, name), body=body)
        except Refused as error:
            if error.status == 404 or (uid and error.status == 409):
                return False
            raise
        return True

    def events(self, document: Mapping[str, Any]) -> Documents:
        """Return the Events of an object, the oldest first."""
        metadata = document["metadata"]
        wanted = {"involvedObject.name": metadata["name"], "involvedObject.uid": metadata.get("uid")}
        fields = ",".join(f"{name}={value}" for name, value in wanted.items() if value)
        return sorted(self.list(EVENT, metadata.get("namespace") or "default", fields=fields), key=event_time)

    # --- pods

    def of_pod(self, namespace: str, pod: str, once: Callable[[], T], final: Collection[int] = ()) -> T:
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

        return self.retrying.keep_trying(tried, final)

    def _require_node(self, namespace: str, pod: str) -> None:
        """Raise NodeNotReady if the cluster reports a pod's node as not ready; return if it does not answer."""
        once = RetryingClient(self.transport, outage_s=0.0)
        try:
            found = once.request("GET", self.resource(POD).path(namespace, pod), timeout_s=_VERDICT_S).json()
            name = str(found["spec"].get("nodeName") or "")
            node = once.request("GET", self.resource(NODE).path("", name), timeout_s=_VERDICT_S).json() if name else {}
        except ClusterError:
            return
        if said := unready(node):
            raise NodeNotReady(f"pod {namespace}/{pod} cannot be asked: {said}", node=name)

    def logs(
        self, namespace: str, pod: str, container: str = "", previous: bool = False, tail: int | None = None
    ) -> str:
        """Return a container's log (before its last restart: `previous`), all of it or the last `tail` lines."""
        options = {"container": container or None, "previous": previous or None, "tailLines": tail}
        query = {name: value for name, value in options.items() if value is not None}
        path = f"{self.resource(POD).path(namespace, pod)}/log"
        reply = self.of_pod(namespace, pod, lambda: self.retrying.once("GET", path, query))
        return reply.body.decode(errors="replace")

    @contextlib.contextmanager
    def running(self, namespace: str, pod: str, container: str, argv: Sequence[str]) -> Iterator[Execution]:
        """Start a command in a container. Only the start is retried, because the command may have side effects."""
        path = f"{self.resource(POD).path(namespace, pod)}/exec"
        query: Query = {"container": container, "command": list(argv), "stdout": True, "stderr": True}
        what = f"`{_short(argv)}` in pod {namespace}/{pod}, container {container},"
        try:
            frames = self.of_pod(namespace, pod, lambda: self.transport.command(path, query, _CONNECT_S))
        except NodeNotReady:
            raise
        except ClusterError as error:
            message = f"{what} could not be started: {error}"
            raise ClusterError(message, error.status, error.reason, code=error.code, **error.facts) from error
        execution = Execution(frames, what)
        try:
            yield execution
        finally:
            execution.close()

    def exec(self, namespace: str, pod: str, container: str, argv: Sequence[str], timeout_s: float = 60.0) -> Executed:
        """Run a command in a container and return its result. Raises Interrupted if the connection is lost."""
        with self.running(namespace, pod, container, argv) as execution:
            return run_to_end(execution, timeout_s)


def reference_to(owner: Mapping[str, Any]) -> Document:
    """Return an entry of ownerReferences, without blockOwnerDeletion, which needs an additional right on OpenShift."""
    metadata = owner["metadata"]
    return {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": metadata["name"], "uid": metadata["uid"]}


def _run_of(metadata: Mapping[str, Any]) -> tuple[str | None, ...]:
    labels = metadata.get("labels") or {}
    return (metadata.get("namespace"), *(labels.get(f"{PREFIX}/{key}") for key in ("campaign", "cell", "run")))


def event_time(event: Mapping[str, Any]) -> str:
    """Return when an event was last seen, as a text that sorts by time."""
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return str(next((time for time in times if time), event["metadata"].get("creationTimestamp") or ""))


def _rank(kind: str) -> int:
    return -1 if kind == NAMESPACE.kind else _LAST.index(kind) + 1 if kind in _LAST else 0


def _short(argv: Sequence[str]) -> str:
    line = " ".join(" ".join(argv).split())
    return line if len(line) <= 80 else f"{line[:77]}..."
