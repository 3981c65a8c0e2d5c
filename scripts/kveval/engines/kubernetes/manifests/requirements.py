"""Requests of documents to a cluster, read as its scheduler reads them: GPUs, memory, volumes, images, secrets."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kubernetes.utils.quantity import parse_quantity

from kveval.engines.kubernetes.api.kinds import described, labels_of
from kveval.engines.kubernetes.api.names import PREFIX

_COMPONENT = f"{PREFIX}/component"
_SHARED_MEMORY = "/dev/shm"


def quantity(value: object) -> float:
    """Return a Kubernetes quantity as a number: bytes, cores or a count; 0 for None. Raises ValueError."""
    return 0.0 if value is None else float(parse_quantity(value))


@dataclass(frozen=True)
class PodNeed:
    """The pods that a document creates.

    Attributes:
        owner: the document's name in messages; `component`: the pods' component label.
        copies: number of pods; 0 for one on every node.
        requests: of one pod, by resource: bytes, cores or a count.
        memory_limit: bytes above which a pod is killed; 0 for no limit.
        shared_memory: bytes of a volume in memory at /dev/shm; None without a volume, 0 for a volume without a limit.
        images: of its containers.
        template: the pod's metadata and spec.
    """

    owner: str
    namespace: str
    component: str
    copies: int
    requests: Mapping[str, float]
    memory_limit: float
    shared_memory: float | None
    images: tuple[str, ...]
    template: Mapping[str, Any] = field(repr=False)

    @property
    def spec(self) -> Mapping[str, Any]:
        """The pod's spec."""
        spec: Mapping[str, Any] = self.template["spec"]
        return spec


def pod_needs(documents: Iterable[Mapping[str, Any]]) -> list[PodNeed]:
    """Return the pods that these documents create."""
    return [need for document in documents if (need := _pods_of(document)) is not None]


def _pods_of(document: Mapping[str, Any]) -> PodNeed | None:
    kind, spec = document["kind"], document.get("spec", {})
    template = document if kind == "Pod" else spec.get("template")
    if not isinstance(template, Mapping) or "spec" not in template:
        return None
    if spec.get("parallelism") == 0:
        # A Job by which a run ends: it makes no pod.
        return None
    pod = template["spec"]
    copies = {"DaemonSet": 0, "Pod": 1, "Job": spec.get("parallelism", 1)}.get(
        kind, spec.get("replicas", 1)
    )
    containers = [*pod.get("initContainers", []), *pod["containers"]]
    return PodNeed(
        owner=described(document),
        namespace=document["metadata"].get("namespace", ""),
        component=template.get("metadata", {}).get("labels", {}).get(_COMPONENT, ""),
        copies=copies,
        requests=_requests(pod),
        memory_limit=sum(
            quantity(_resources(container, "limits").get("memory"))
            for container in pod["containers"]
        ),
        shared_memory=_shared_memory(pod),
        images=tuple(dict.fromkeys(container["image"] for container in containers)),
        template=template,
    )


def _requests(pod: Mapping[str, Any]) -> dict[str, float]:
    """Return what the scheduler counts: the sum of the containers, or the largest init container if that is more."""
    total: dict[str, float] = {}
    for container in pod["containers"]:
        for name, value in _requested(container).items():
            total[name] = total.get(name, 0.0) + value
    for container in pod.get("initContainers", []):
        for name, value in _requested(container).items():
            total[name] = max(total.get(name, 0.0), value)
    return total


def _requested(container: Mapping[str, Any]) -> dict[str, float]:
    # A resource with a limit and without a request is requested up to its limit.
    amounts = {**_resources(container, "limits"), **_resources(container, "requests")}
    return {name: quantity(value) for name, value in amounts.items()}


def _resources(container: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    return (container.get("resources") or {}).get(kind) or {}


def _shared_memory(pod: Mapping[str, Any]) -> float | None:
    mounted = {
        mount["name"]
        for container in pod["containers"]
        for mount in container.get("volumeMounts", [])
        if mount["mountPath"].rstrip("/") == _SHARED_MEMORY
    }
    for volume in pod.get("volumes", []):
        if (
            volume["name"] in mounted
            and (volume.get("emptyDir") or {}).get("medium") == "Memory"
        ):
            return quantity(volume["emptyDir"].get("sizeLimit"))
    return None


@dataclass(frozen=True)
class Claim:
    """A requested volume: bytes, its class (None: the cluster's default) and access modes."""

    name: str
    namespace: str
    size: float
    storage_class: str | None
    modes: tuple[str, ...]


def claims(documents: Iterable[Mapping[str, Any]]) -> list[Claim]:
    """Return the volumes that these documents request."""
    return [
        Claim(
            name=document["metadata"]["name"],
            namespace=document["metadata"].get("namespace", ""),
            size=quantity(document["spec"]["resources"]["requests"]["storage"]),
            storage_class=document["spec"].get("storageClassName"),
            modes=tuple(document["spec"].get("accessModes", ())),
        )
        for document in documents
        if document["kind"] == "PersistentVolumeClaim"
    ]


@dataclass(frozen=True)
class Node:
    """A node of a cluster and what can be scheduled there; `taints`: those of effect NoSchedule and NoExecute."""

    name: str
    labels: Mapping[str, str]
    taints: Sequence[Mapping[str, Any]]
    schedulable: bool
    allocatable: Mapping[str, float]


def node_of(thing: Mapping[str, Any]) -> Node:
    """Return the Node for an object of the API server."""
    status, spec = thing.get("status", {}), thing.get("spec", {})
    ready = any(
        condition["type"] == "Ready" and condition["status"] == "True"
        for condition in status.get("conditions", [])
    )
    return Node(
        name=thing["metadata"]["name"],
        labels=labels_of(thing),
        taints=[
            taint
            for taint in spec.get("taints") or []
            if taint["effect"] in ("NoSchedule", "NoExecute")
        ],
        schedulable=ready and not spec.get("unschedulable", False),
        allocatable={
            name: quantity(value)
            for name, value in status.get("allocatable", {}).items()
        },
    )


def accepts(node: Node, pod: Mapping[str, Any]) -> bool:
    """Tell whether a node is schedulable and a pod's selector and tolerations allow it; affinities are ignored."""
    selected = all(
        node.labels.get(name) == value
        for name, value in (pod.get("nodeSelector") or {}).items()
    )
    return node.schedulable and selected and not untolerated(node, pod)


def untolerated(node: Node, pod: Mapping[str, Any]) -> list[str]:
    """Return the taints that keep a pod off a node, as kubectl writes them: KEY=VALUE:EFFECT."""
    tolerations = pod.get("tolerations") or []
    return [
        _taint_text(taint)
        for taint in node.taints
        if not _is_tolerated(taint, tolerations)
    ]


def _is_tolerated(
    taint: Mapping[str, Any], tolerations: Iterable[Mapping[str, Any]]
) -> bool:
    return any(_tolerates(toleration, taint) for toleration in tolerations)


def _taint_text(taint: Mapping[str, Any]) -> str:
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint['key']}{value}:{taint['effect']}"


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") not in (None, taint["effect"]):
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return toleration.get("key") in (None, taint["key"])
    return toleration.get("key") == taint["key"] and (
        toleration.get("value") or ""
    ) == (taint.get("value") or "")
