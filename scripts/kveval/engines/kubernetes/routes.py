"""Addresses of a run as pods and nodes see them: where the load goes, and where metrics are read."""

import time

from kveval.engines.kubernetes.api.errors import ClusterError
from kveval.engines.kubernetes.api.kinds import Document, Kind
from kveval.engines.kubernetes.pod_http import direct_url
from kveval.engines.kubernetes.replicas import ClusterServer
from kveval.engines.kubernetes.run_place import RunContext

GATEWAY = Kind("gateway.networking.k8s.io/v1", "Gateway")
# A Gateway of a cell's own may take a cloud load balancer minutes.
_PROGRAMMED_S = 600.0
_POLL_S = 2.0


def gateway_url(place: RunContext, limit_s: float = _PROGRAMMED_S) -> str:
    """Return the Gateway's URL from its status, once it has one. Raises ClusterError when it has none in time."""
    name, namespace = place.gateway_name, place.gateway_namespace
    deadline = time.monotonic() + limit_s
    while True:
        found = place.api.read(GATEWAY, name, namespace)
        if found is None:
            raise ClusterError(f"there is no Gateway {namespace}/{name}: correct cluster.gateway, or let it be made")
        addresses = (found.get("status") or {}).get("addresses") or []
        listeners = [entry for entry in found["spec"].get("listeners") or [] if entry.get("protocol") == "HTTP"]
        if addresses and listeners:
            return f"http://{addresses[0]['value']}:{listeners[0]['port']}"
        if not listeners or time.monotonic() > deadline:
            what = "no HTTP listener" if not listeners else f"no address after {limit_s:.0f} s"
            raise ClusterError(f"Gateway {namespace}/{name} has {what}: is it programmed? or set cluster.gateway.url")
        time.sleep(_POLL_S)


def sources_of(place: RunContext, server: ClusterServer) -> dict[str, str]:
    """Return the metrics endpoints of a cell as its node sees them, by name; those of replicas with spaces between."""
    ports = place.ports
    program = server.program
    urls = [f"{_base(place, replica.pod, ports['port'])}{program.metrics_path}" for replica in server.replicas]
    found = {program.software.name: " ".join(urls)}
    for sidecar, port in (("lmcache", "lmcache_http_port"), ("epp", "epp_metrics_port")):
        for pod in server.watched:
            if any(entry["name"] == sidecar for entry in pod["spec"]["containers"]):
                found.setdefault(sidecar, f"{_base(place, pod, ports[port])}/metrics")
    return found


def _base(place: RunContext, pod: Document, port: int) -> str:
    address = str((pod.get("status") or {}).get("podIP") or "")
    host = f"[{address}]" if ":" in address else address
    return direct_url(place, port) or f"http://{host}:{port}"
