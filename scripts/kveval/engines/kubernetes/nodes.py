"""The hardware of a cluster: nodes that servers may run on, and a description of those that they ran on."""

import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kveval.campaign.site import Cluster
from kveval.engines.kubernetes.api.kinds import Document, labels_of
from kveval.engines.kubernetes.manifests.requirements import quantity

Gpu = Mapping[str, Any]
"""One GPU: name, memory_bytes, driver."""
_MACHINE = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
_GPU_PRODUCT = (
    "nvidia.com/gpu.product",
    "cloud.google.com/gke-accelerator",
    "amd.com/gpu.product-name",
)
_GPU_MEMORY_MIB = "nvidia.com/gpu.memory"
_GPU_DRIVER = "nvidia.com/cuda.driver-version.full"
_CPU_MODEL = (
    "feature.node.kubernetes.io/cpu-model.name",
    "cpu-feature.node.kubevirt.io/model",
)


def fitting(nodes: Iterable[Document], site: Cluster, *, gpus: bool) -> list[Document]:
    """Return the nodes that match the site's node_selector and, if `gpus`, have GPUs."""
    required_labels = site.node_selector.items()
    return [
        node
        for node in nodes
        if required_labels <= labels_of(node).items()
        and (
            not gpus
            or quantity(node["status"].get("capacity", {}).get(site.gpu_resource)) >= 1
        )
    ]


def adoptable(
    nodes: Sequence[Mapping[str, Any]], gpu_resource: str, servers: int
) -> list[str]:
    """Return the fingerprints that a run with `servers` servers may get on these nodes, of one or several kinds."""
    kinds = {fingerprint([node], gpu_resource): node for node in nodes}
    mixed = (
        chosen
        for count in range(1, servers + 1)
        for chosen in itertools.combinations(kinds.values(), count)
    )
    return list(dict.fromkeys(fingerprint(chosen, gpu_resource) for chosen in mixed))


def fingerprint(nodes: Sequence[Mapping[str, Any]], gpu_resource: str) -> str:
    """Return 12 hexadecimal digits of a SHA-256 over the nodes' kinds, not their number; see `stable` for a kind."""
    kinds = {json.dumps(stable(node, gpu_resource), sort_keys=True) for node in nodes}
    return hashlib.sha256("\n".join(sorted(kinds)).encode()).hexdigest()[:12]


def describe(
    nodes: Sequence[Mapping[str, Any]], gpu_resource: str, gpus: Sequence[Gpu]
) -> dict[str, Any]:
    """Describe the servers' nodes as kveval.host.hardware describes a host; CPU and memory are those of the first node.

    `gpus`: the servers' GPUs, as nvidia-smi in their pods reports them.
    """
    first = min(nodes, key=lambda node: str(node["metadata"]["name"]))
    labels, form = labels_of(first), stable(first, gpu_resource)
    return {
        "cpu_model": _first(labels, _CPU_MODEL)
        or form["machine"]
        or form["architecture"],
        "cpus": int(form["cpus"]),
        "memory_bytes": int(quantity(first["status"]["capacity"]["memory"])),
        "gpus": list(gpus),
        "kernel": first["status"].get("nodeInfo", {}).get("kernelVersion", ""),
        "nodes": sorted(str(node["metadata"]["name"]) for node in nodes),
        "machines": [stable(node, gpu_resource) for node in nodes],
        "fingerprint": fingerprint(nodes, gpu_resource),
    }


def labelled_gpu(node: Mapping[str, Any], gpu_resource: str) -> Gpu:
    """Return what a node's labels say about each of its GPUs, for images without nvidia-smi."""
    labels = labels_of(node)
    memory_mib = labels.get(_GPU_MEMORY_MIB)
    return {
        "name": _first(labels, _GPU_PRODUCT) or gpu_resource,
        "memory_bytes": int(memory_mib) * 2**20 if memory_mib else None,
        "driver": labels.get(_GPU_DRIVER, ""),
    }


def stable(node: Mapping[str, Any], gpu_resource: str) -> dict[str, Any]:
    """Return the properties of a node that affect measurements and do not change by restarts and updates."""
    capacity, labels = (
        node["status"].get("capacity", {}),
        labels_of(node),
    )
    return {
        "architecture": node["status"].get("nodeInfo", {}).get("architecture", ""),
        "cpus": round(quantity(capacity.get("cpu"))),
        "memory_gib": round(quantity(capacity.get("memory")) / 2**30),
        "gpus": round(quantity(capacity.get(gpu_resource))),
        "gpu": _first(labels, _GPU_PRODUCT),
        "machine": _first(labels, _MACHINE),
        **(
            {"gpu_memory_mib": labels[_GPU_MEMORY_MIB]}
            if _GPU_MEMORY_MIB in labels
            else {}
        ),
    }


def has_parts_of_gpus(node: Mapping[str, Any]) -> bool:
    """Tell whether a node's GPUs are instances of MIG, as the labels of NVIDIA's operator name them."""
    labels = labels_of(node)
    return "-MIG-" in labels.get(_GPU_PRODUCT[0], "")


def _first(labels: Mapping[str, str], names: Sequence[str]) -> str:
    return next((labels[name] for name in names if name in labels), "")
