"""The servers beside vLLM in a cell's pods: Redis or Valkey, LMCache's server, llm-d's endpoint picker."""

from collections.abc import Mapping
from typing import Any

from kveval.engines.counters import CounterError, parse_counters
from kveval.engines.kubernetes.api.errors import ClusterError
from kveval.engines.kubernetes.pod_http import Reach
from kveval.engines.kubernetes.run_place import RunContext
from kveval.engines.servers.keyvalue import KeyValueQuestions
from kveval.engines.servers.lmcache import LMCacheQuestions
from kveval.engines.servers.program import SidecarError
from kveval.host.http import HttpError

_PICKER_COUNTERS = ("kvcache", "llm_d", "inference")


class PodKeyValueStore(KeyValueQuestions):
    """A store in its own pod, queried with the store's client in that pod, so that its port need not be reachable."""

    def __init__(self, place: RunContext, pod: Mapping[str, Any], name: str, port: int, log: object) -> None:
        super().__init__(name, log)
        self.argv = command_line(pod, name)
        self._place, self._pod, self._port = place, str(pod["metadata"]["name"]), port

    def _ask(self, command: str) -> str:
        argv = [f"{self.name}-cli", "-p", str(self._port), *command.split()]
        try:
            done = self._place.api.exec(self._place.namespace, self._pod, self.name, argv, timeout_s=15.0)
        except ClusterError as error:
            raise SidecarError(f"{self.name} cannot be queried: {error}; see {self.log}") from error
        if done.returncode:
            word, said = command.split(maxsplit=1)[0], done.said
            message = f"{self.name} does not answer {word}: {said}; see {self.log}"
            facts = {"program": self.name, "command": word, "said": said, "log": self.log}
            raise SidecarError(message, code="no_answer", **facts)
        return done.text.removeprefix("(integer) ")


class PodLMCache(LMCacheQuestions):
    """LMCache's server, a container beside vLLM's in the same pod."""

    def __init__(self, pod: Mapping[str, Any], reach: Reach, log: object) -> None:
        super().__init__(log)
        self.argv = command_line(pod, "lmcache")
        self._reach = reach

    def _send(self, path: str, method: str = "GET", body: object = None, timeout_s: float = 10.0) -> Any:
        return self._reach.ask(path, method, body, timeout_s)

    def _metrics(self) -> str:
        return self._reach.page("/metrics", timeout_s=10.0).decode()


class PodPicker:
    """llm-d's endpoint picker. Its index need not be emptied between levels, because their prompts differ."""

    name = "epp"

    def __init__(self, pod: Mapping[str, Any], reach: Reach, log: object) -> None:
        self.argv = command_line(pod, "epp")
        self._reach, self._log = reach, log
        # It does not report its release; the image's tag is used, and run.json has the image's digest.
        self.version = str(container_of(pod, self.name)["image"]).rpartition(":")[2]

    def identify(self, versions: Mapping[str, str]) -> None:
        """Do nothing: the endpoint picker cannot be asked for its version."""

    def reported_bytes(self) -> int | None:
        """Return None: it has an index, not a tier."""
        return None

    def counters(self) -> dict[str, float]:
        """Return its counters of scheduling and of the index. Raises SidecarError."""
        try:
            found = parse_counters(self._reach.page("/metrics", timeout_s=10.0).decode(), prefix="")
        except (CounterError, HttpError) as error:
            raise SidecarError(f"the endpoint picker: {error}; see {self._log}") from error
        return {name: value for name, value in found.items() if name.startswith(_PICKER_COUNTERS)}

    def reset(self, timeout_s: float) -> None:
        """Do nothing: it has no cache to empty."""


PodSidecar = PodKeyValueStore | PodLMCache | PodPicker


def container_of(pod: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a container of a pod's specification, {} if it has none of this name."""
    return next((entry for entry in pod["spec"]["containers"] if entry["name"] == name), {})


def command_line(pod: Mapping[str, Any], container: str) -> list[str]:
    """Return a container's command with its arguments, from the pod's specification."""
    found = container_of(pod, container)
    return [*(found.get("command") or []), *(found.get("args") or [])]


def environment(pod: Mapping[str, Any], container: str) -> dict[str, str]:
    """Return a container's environment; for a value from a Secret or the like, only its source is named."""
    return {entry["name"]: _value(entry) for entry in container_of(pod, container).get("env") or []}


def _value(entry: Mapping[str, Any]) -> str:
    if "valueFrom" not in entry:
        return str(entry.get("value", ""))
    source = entry["valueFrom"]
    for kind, fields in source.items():
        if kind == "fieldRef":
            return f"{{{fields['fieldPath']}}}"
        if "name" in fields:
            return f"{{{kind.removesuffix('KeyRef')} {fields['name']}/{fields['key']}}}"
    return "{elsewhere}"
