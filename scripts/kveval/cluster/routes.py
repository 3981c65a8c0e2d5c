"""Addresses of a run as pods and nodes see them: where the load goes, and where metrics are read."""

from kveval.cluster.errors import ClusterError
from kveval.cluster.kinds import Document, Kind
from kveval.cluster.place import Place
from kveval.cluster.reaching import direct_url
from kveval.cluster.rendering import endpoints
from kveval.cluster.replicas import ClusterServer

GATEWAY = Kind("gateway.networking.k8s.io/v1", "Gateway")


def gateway_url(place: Place) -> str:
    """Return the Gateway's URL from its status. Raises ClusterError when it has no address."""
    gateway = place.site.gateway
    if gateway is None:
        raise ClusterError("the load is to go through a Gateway, and the campaign names none: set cluster.gateway")
    namespace = gateway.namespace or place.namespace
    found = place.api.read(GATEWAY, gateway.name, namespace)
    if found is None:
        raise ClusterError(
            f"there is no Gateway {namespace}/{gateway.name}: correct cluster.gateway, or let it be made"
        )
    addresses = (found.get("status") or {}).get("addresses") or []
    listeners = [entry for entry in found["spec"].get("listeners") or [] if entry.get("protocol") == "HTTP"]
    if not addresses or not listeners:
        what = "no address" if not addresses else "no HTTP listener"
        raise ClusterError(
            f"Gateway {namespace}/{gateway.name} has {what}: is it programmed? or set cluster.gateway.url"
        )
    return f"http://{addresses[0]['value']}:{listeners[0]['port']}"


def sources_of(place: Place, server: ClusterServer) -> dict[str, str]:
    """Return the metrics endpoints of a cell as its node sees them, by name; the first server's is called vllm.

    A single server is read through its Service, which stays when its pod is replaced.
    """
    ports, found = place.ports, {}
    for number, replica in enumerate(server.replicas, start=1):
        name = "vllm" if number == 1 else f"vllm_{number}"
        found[name] = f"{_base(place, replica.pod, ports['port'])}/metrics"
    if len(server.replicas) == 1 and direct_url(place, ports["port"]) is None:
        service = endpoints(place.specification, place.site, place.run, place.campaign, ports)["server"]
        found["vllm"] = f"{service}/metrics"
    for companion, port in (("lmcache", "lmcache_http_port"), ("epp", "epp_metrics_port")):
        for pod in server.watched:
            if any(entry["name"] == companion for entry in pod["spec"]["containers"]):
                found.setdefault(companion, f"{_base(place, pod, ports[port])}/metrics")
    return found


def _base(place: Place, pod: Document, port: int) -> str:
    address = str((pod.get("status") or {}).get("podIP") or "")
    host = f"[{address}]" if ":" in address else address
    return direct_url(place, port) or f"http://{host}:{port}"
