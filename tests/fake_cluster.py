"""Stand-ins for the way to an API server: answers from a function, commands as processes of this machine."""

import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from kveval.cluster.errors import ClusterError, Unreachable
from kveval.cluster.transport import Query, Reply

CORE = {"pods": "Pod", "services": "Service", "configmaps": "ConfigMap", "events": "Event", "namespaces": "Namespace"}
CORE |= {"persistentvolumeclaims": "PersistentVolumeClaim", "endpoints": "Endpoints"}
APPS = {"deployments": "Deployment", "replicasets": "ReplicaSet", "daemonsets": "DaemonSet"}
BATCH = {"jobs": "Job"}
VERBS = ["get", "list", "watch", "create", "delete", "patch"]


def ok(body: Any, status: int = 200) -> Reply:
    return Reply(status, {}, json.dumps(body).encode())


def status(code: int, reason: str, message: str = "") -> Reply:
    return ok({"kind": "Status", "reason": reason, "message": message or reason, "code": code}, code)


def resources(kinds: dict[str, str], cluster_wide: Sequence[str] = ("namespaces",)) -> Reply:
    found = [
        {"name": name, "kind": kind, "namespaced": name not in cluster_wide, "verbs": VERBS}
        for name, kind in kinds.items()
    ]
    return ok({"resources": [*found, {"name": "pods/log", "kind": "Pod", "namespaced": True, "verbs": ["get"]}]})


def discovery(path: str) -> Reply | None:
    """Answer what a cluster with the usual kinds answers to questions about its kinds."""
    groups = [{"preferredVersion": {"groupVersion": version}} for version in ("apps/v1", "batch/v1")]
    known = {"/api/v1": resources(CORE), "/apis/apps/v1": resources(APPS), "/apis/batch/v1": resources(BATCH)}
    return ok({"groups": groups}) if path == "/apis" else known.get(path)


@dataclass
class Call:
    method: str
    path: str
    query: Query
    body: Any
    content: str


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

    def request(self, method: str, path: str, query: Query, body: Any, content: str, timeout_s: float) -> Reply:
        call = Call(method, path, query, body, content)
        found = discovery(path)
        if found is not None:
            return found
        self.calls.append(call)
        return self.answer(call)

    def stream(self, path: str, query: Query, timeout_s: float) -> "FakeLines":
        if not self.streams:
            raise Unreachable("no watch is offered")
        made = self.streams.pop(0)
        if isinstance(made, ClusterError):
            raise made
        return FakeLines(made)

    def command(self, path: str, query: Query, timeout_s: float) -> "LocalCommand":
        self.commands.append(query)
        return LocalCommand(query["command"], self.cuts.pop(0) if self.cuts else None, self.environment)


class FakeLines:
    def __init__(self, lines: Sequence[bytes]) -> None:
        self._lines = lines

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._lines)

    def interrupt(self) -> None:
        pass

    def close(self) -> None:
        pass


class LocalCommand:
    """A command here, as the frames of one in a pod; its connection breaks after `cut_after` bytes of output."""

    def __init__(self, argv: Any, cut_after: int | None, environment: dict[str, str] | None) -> None:
        self._left = cut_after
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
        except FileNotFoundError:
            message = f'exec: "{argv[0]}": executable file not found in $PATH'
            self._last = [json.dumps({"status": "Failure", "message": message}).encode()]

    def receive(self, timeout_s: float) -> bytes | None:
        if self._process is None:
            return b"\3" + self._last.pop() if self._last else None
        assert self._process.stdout is not None and self._process.stderr is not None
        if self._left == 0:
            raise Unreachable("the connection was cut")
        data = self._process.stdout.read1(8192 if self._left is None else min(self._left, 8192))
        if data:
            self._left = None if self._left is None else self._left - len(data)
            return b"\1" + data
        if errors := self._process.stderr.read():
            return b"\2" + errors
        code = self._process.wait()
        if code == 0:
            return b'\3{"status": "Success"}'
        causes = [{"reason": "ExitCode", "message": str(code)}]
        return b"\3" + json.dumps({"status": "Failure", "details": {"causes": causes}}).encode()

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
