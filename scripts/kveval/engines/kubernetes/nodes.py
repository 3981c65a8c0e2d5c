"""The hardware that a cluster measures on: the nodes that its servers may run on, described as a host is."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from kveval.config.site import Cluster
from kveval.engines.kubernetes.api.client import Api
from kveval.engines.kubernetes.api.errors import ClusterError
from kveval.engines.kubernetes.api.kinds import NODE
from kveval.engines.kubernetes.manifests.requirements import quantity

_MACHINE = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
_GPU_PRODUCT = ("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator", "amd.com/gpu.product-name")
_GPU_MEMORY_MIB = "nvidia.com/gpu.memory"
_GPU_DRIVER = "nvidia.com/cuda.driver-version.full"
_CPU_MODEL = ("feature.node.kubernetes.io/cpu-model.name", "cpu-feature.node.kubevirt.io/model")


def probe(api: Api, site: Cluster, *, gpus: bool) -> dict[str, Any]:
    """Describe the nodes that fit the campaign's node_selector (with `gpus`: and have any).

    `fingerprint` is equal for clusters whose measurements may stand for each other: it is made of the kinds of those
    nodes, not of how many there are, which an autoscaler changes. Raises ClusterError when no node fits.
    """
    selector = ",".join(f"{name}={value}" for name, value in sorted(site.node_selector.items()))
    nodes = [
        node
        for node in api.list(NODE, selector=selector)
        if not gpus or quantity(node["status"].get("capacity", {}).get(site.gpu_resource)) >= 1
    ]
    if not nodes:
        wanted = f"labels {selector}" if selector else "any label"
        wanted += f" and {site.gpu_resource}" if gpus else ""
        raise ClusterError(
            f"cluster {api.server} has no node with {wanted}: what would be measured on is not known; correct"
            " cluster.node_selector, or scale the node pool up to one"
        )
    return describe(nodes, site.gpu_resource)


def describe(nodes: Sequence[Mapping[str, Any]], gpu_resource: str) -> dict[str, Any]:
    """Describe nodes as kveval.host.hardware describes a host; the first kind, by name, stands for all."""
    kinds = {json.dumps(stable(node, gpu_resource), sort_keys=True): node for node in nodes}
    first = kinds[min(kinds)]
    info, labels = first["status"].get("nodeInfo", {}), first["metadata"].get("labels") or {}
    form = stable(first, gpu_resource)
    memory_mib = labels.get(_GPU_MEMORY_MIB)
    card = {
        "name": form["gpu"] or gpu_resource,
        "memory_bytes": int(memory_mib) * 2**20 if memory_mib else None,
        "driver": labels.get(_GPU_DRIVER, ""),
    }
    return {
        "cpu_model": _first(labels, _CPU_MODEL) or form["machine"] or form["architecture"],
        "cpus": int(form["cpus"]),
        "memory_bytes": int(quantity(first["status"]["capacity"]["memory"])),
        "gpus": [card] * form["gpus"],
        "kernel": info.get("kernelVersion", ""),
        "machines": [json.loads(kind) for kind in sorted(kinds)],
        "fingerprint": hashlib.sha256("\n".join(sorted(kinds)).encode()).hexdigest()[:12],
    }


def stable(node: Mapping[str, Any], gpu_resource: str) -> dict[str, Any]:
    """Return what of a node stays over restarts and updates and matters for what is measured on it."""
    capacity, labels = node["status"].get("capacity", {}), node["metadata"].get("labels") or {}
    return {
        "architecture": node["status"].get("nodeInfo", {}).get("architecture", ""),
        "cpus": round(quantity(capacity.get("cpu"))),
        "memory_gib": round(quantity(capacity.get("memory")) / 2**30),
        "gpus": round(quantity(capacity.get(gpu_resource))),
        "gpu": _first(labels, _GPU_PRODUCT),
        "machine": _first(labels, _MACHINE),
    }


def _first(labels: Mapping[str, str], names: Sequence[str]) -> str:
    return next((labels[name] for name in names if name in labels), "")
