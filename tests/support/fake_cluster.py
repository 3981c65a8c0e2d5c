"""Stand-ins for the way to an API server: answers from a function, commands as processes of this machine."""

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from kveval.engines.kubernetes.api.errors import ClusterError, Unreachable
from kveval.engines.kubernetes.api.transport import Query, Reply

CORE = {
    "pods": "Pod",
    "services": "Service",
    "configmaps": "ConfigMap",
    "events": "Event",
    "namespaces": "Namespace",
}
CORE |= {
    "nodes": "Node",
    "persistentvolumeclaims": "PersistentVolumeClaim",
    "endpoints": "Endpoints",
    "secrets": "Secret",
}
APPS = {
    "deployments": "Deployment",
    "replicasets": "ReplicaSet",
    "daemonsets": "DaemonSet",
}
BATCH = {"jobs": "Job"}
VERBS = ["get", "list", "watch", "create", "delete", "patch"]


def ok(body: Any, status: int = 200) -> Reply:
    return Reply(status, {}, json.dumps(body).encode())


def status(code: int, reason: str, message: str = "") -> Reply:
    return ok(
        {
            "kind": "Status",
            "reason": reason,
            "message": message or reason,
            "code": code,
        },
        code,
    )


def resources(
    kinds: dict[str, str], cluster_wide: Sequence[str] = ("namespaces", "nodes")
) -> Reply:
    entries = [
        {
            "name": name,
            "kind": kind,
            "namespaced": name not in cluster_wide,
            "verbs": VERBS,
        }
        for name, kind in kinds.items()
    ]
    return ok(
        {
            "resources": [
                *entries,
                {
                    "name": "pods/log",
                    "kind": "Pod",
                    "namespaced": True,
                    "verbs": ["get"],
                },
            ]
        }
    )


def discovery(path: str) -> Reply | None:
    """Answer what a cluster with the usual kinds answers to questions about its kinds."""
    groups = [
        {"preferredVersion": {"groupVersion": version}}
        for version in ("apps/v1", "batch/v1")
    ]
    known = {
        "/api/v1": resources(CORE),
        "/apis/apps/v1": resources(APPS),
        "/apis/batch/v1": resources(BATCH),
    }
    return ok({"groups": groups}) if path == "/apis" else known.get(path)


@dataclass
class Call:
    method: str
    path: str
    query: Query
    body: Any
    content: str


def made(
    kind: str,
    name: str,
    labels: Mapping[str, str] = MappingProxyType({}),
    *,
    namespace: str = "bench",
    owner: Mapping[str, Any] | None = None,
    version: str = "v1",
    **parts: Any,
) -> dict[str, Any]:
    """Make an object as the API server would list it; `owner` is another of them."""
    metadata: dict[str, Any] = {
        "name": name,
        "uid": f"{kind}-{name}",
        "labels": dict(labels),
    } | parts.pop("metadata", {})
    if kind not in ("Namespace", "Node"):
        metadata["namespace"] = namespace
    if owner is not None:
        metadata["ownerReferences"] = [
            {"uid": owner["metadata"]["uid"], "kind": owner["kind"], "controller": True}
        ]
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **parts}


class Objects:
    """The objects of a cluster, with the garbage collection of owned ones; `stay`: names of those that will not go."""

    def __init__(self, *documents: dict[str, Any]) -> None:
        self.present = list(documents)
        self.stay: set[str] = set()
        self.forbidden: set[str] = set()
        self.deleted: list[str] = []
        self.changes: list[Callable[[Objects], None]] = []

    def __call__(self, call: Call) -> Reply:
        """Answer GET and DELETE; before each list of pods the next of `changes` happens."""
        *_, plural = parts = call.path.strip("/").split("/")
        kinds = CORE | APPS | BATCH
        if plural in kinds:
            if plural in self.forbidden:
                return status(403, "Forbidden")
            if plural == "pods" and self.changes:
                self.changes.pop(0)(self)
            items = [
                document
                for document in self.present
                if document["kind"] == kinds[plural] and self._within(document, parts)
            ]
            return ok(
                {
                    "items": [
                        document
                        for document in items
                        if self._selected(document, call.query)
                    ],
                    "metadata": {},
                }
            )
        if call.path.endswith("/log"):
            return Reply(200, {}, b"Traceback\nValueError: no GPU\n")
        kind = kinds.get(parts[-2])
        matches = [
            entry
            for entry in self.present
            if entry["kind"] == kind
            and entry["metadata"]["name"] == plural
            and self._within(entry, parts)
        ]
        if not matches:
            return status(404, "NotFound")
        return ok(self._delete(matches[0]) if call.method == "DELETE" else matches[0])

    @staticmethod
    def _within(document: Mapping[str, Any], parts: Sequence[str]) -> bool:
        if "namespaces" not in parts[:-2] or document["kind"] == "Namespace":
            return True
        return bool(
            document["metadata"].get("namespace")
            == parts[parts.index("namespaces") + 1]
        )

    @staticmethod
    def _selected(document: Mapping[str, Any], query: Query) -> bool:
        labels = document["metadata"]["labels"]
        terms = [
            term.split("=")
            for term in str(query.get("labelSelector", "")).split(",")
            if term
        ]
        involved = {
            f"involvedObject.{key}": value
            for key, value in document.get("involvedObject", {}).items()
        }
        fields = [
            term.split("=")
            for term in str(query.get("fieldSelector", "")).split(",")
            if term
        ]
        return all(labels.get(key) == value for key, value in terms) and all(
            involved.get(key, value) == value for key, value in fields
        )

    def _delete(self, document: dict[str, Any]) -> dict[str, Any]:
        metadata = document["metadata"]
        self.deleted.append(f"{document['kind']} {metadata['name']}")
        if metadata["name"] in self.stay:
            metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            return document
        self._collect(document)
        return document

    def _collect(self, document: dict[str, Any]) -> None:
        """Remove an object, and what it owns or, as a namespace, has."""
        metadata = document["metadata"]
        self.present = [other for other in self.present if other is not document]
        for other in tuple(self.present):
            about = other["metadata"]
            owners = {owner["uid"] for owner in about.get("ownerReferences", [])}
            within = document["kind"] == "Namespace" and (
                about.get("namespace") == metadata["name"]
            )
            if metadata["uid"] in owners or within:
                self._collect(other)


@dataclass
class FakeTransport:
    """Answers with `answer`, after the questions about kinds; commands run here, cut after `cuts` bytes each."""

    answer: Callable[[Call], Reply] = lambda call: status(404, "NotFound")
    cuts: list[int] = field(default_factory=list)
    environment: dict[str, str] | None = None
    server: str = "https://cluster.test"
    calls: list[Call] = field(default_factory=list)
    commands: list[Query] = field(default_factory=list)
    streams: list[Any] = field(default_factory=list)

    def credential_ends(self) -> None:
        return None

    def request(
        self,
        method: str,
        path: str,
        query: Query,
        body: Any,
        content: str,
        timeout_s: float,
    ) -> Reply:
        call = Call(method, path, query, body, content)
        reply = discovery(path)
        if reply is not None:
            return reply
        self.calls.append(call)
        return self.answer(call)

    def stream(self, path: str, query: Query, timeout_s: float) -> "FakeStream":
        if not self.streams:
            raise Unreachable("no watch is offered")
        made = self.streams.pop(0)
        if isinstance(made, ClusterError):
            raise made
        return FakeStream(made)

    def command(self, path: str, query: Query, timeout_s: float) -> "LocalCommand":
        self.commands.append(query)
        return LocalCommand(
            query["command"], self.cuts.pop(0) if self.cuts else None, self.environment
        )


class FakeStream:
    def __init__(self, parts: Sequence[bytes]) -> None:
        self._parts = parts

    def stream(self, size: int | None, *, decode_content: bool) -> Iterator[bytes]:
        return iter(self._parts)

    def shutdown(self) -> None:
        pass

    def close(self) -> None:
        pass


class LocalCommand:
    """A command here, as the frames of one in a pod; its connection breaks after `cut_after` bytes of output."""

    def __init__(
        self, argv: Any, cut_after: int | None, environment: dict[str, str] | None
    ) -> None:
        self._left = cut_after
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._process = subprocess.Popen(
                argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
            )
        except FileNotFoundError:
            message = f'exec: "{argv[0]}": executable file not found in $PATH'
            self._last = [
                json.dumps({"status": "Failure", "message": message}).encode()
            ]

    def receive(self, timeout_s: float) -> bytes | None:
        if self._process is None:
            return b"\3" + self._last.pop() if self._last else None
        assert self._process.stdout is not None and self._process.stderr is not None
        if self._left == 0:
            raise Unreachable("the connection was cut")
        data = self._process.stdout.read1(
            8192 if self._left is None else min(self._left, 8192)
        )
        if data:
            self._left = None if self._left is None else self._left - len(data)
            return b"\1" + data
        if errors := self._process.stderr.read():
            return b"\2" + errors
        code = self._process.wait()
        if code == 0:
            return b'\3{"status": "Success"}'
        causes = [{"reason": "ExitCode", "message": str(code)}]
        return (
            b"\3"
            + json.dumps({"status": "Failure", "details": {"causes": causes}}).encode()
        )

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
