"""The servers beside vLLM in a cell's pods: Redis or Valkey, llm-d's endpoint picker; and what their pods declare."""

from collections.abc import Mapping
from typing import Any

from kveval.engines.counters import CounterError, parse_counters
from kveval.engines.kubernetes.api.errors import ClusterError
from kveval.engines.kubernetes.manifests.context import RunContext
from kveval.engines.servers.keyvalue import KeyValueStore
from kveval.engines.servers.program import Sidecar, SidecarError
from kveval.engines.servers.protocol import Fetch
from kveval.host.http import HttpError

_PICKER_COUNTERS = ("kvcache", "llm_d", "inference")


def store_in(place: RunContext, pod: Mapping[str, Any], name: str, log: object) -> KeyValueStore:
    """Return the store of a pod, queried with the store's client in the pod: its port need not be reachable."""

    def send(command: str) -> str:
        argv = [f"{name}-cli", "-p", str(place.ports[f"{name}_port"]), *command.split()]
        try:
            done = place.api.exec(place.namespace, pod["metadata"]["name"], name, argv, timeout_s=15.0)
        except ClusterError as error:
            raise ValueError(str(error)) from error
        if done.returncode:
            raise ValueError(done.said)
        return done.text.removeprefix("(integer) ")

    return KeyValueStore(name, command_line(pod, name), log, send)


class PodPicker(Sidecar):
    """llm-d's endpoint picker. It has no tier; its index need not be emptied between levels: their prompts differ."""

    def __init__(self, pod: Mapping[str, Any], fetch: Fetch, log: object) -> None:
        super().__init__("epp", command_line(pod, "epp"), log)
        self._fetch = fetch
        # It cannot be asked for its release; the image's tag is used, and run.json has the image's digest.
        self.version = str(container_of(pod, self.name)["image"]).rpartition(":")[2]

    def counters(self) -> dict[str, float]:
        """Return its counters of scheduling and of the index. Raises SidecarError."""
        try:
            found = parse_counters(self._fetch("/metrics", timeout_s=10.0).decode(), prefix="")
        except (CounterError, HttpError) as error:
            raise SidecarError(f"the endpoint picker: {error}; see {self.log}") from error
        return {name: value for name, value in found.items() if name.startswith(_PICKER_COUNTERS)}


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
