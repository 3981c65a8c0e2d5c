"""Metrics endpoints that a cluster has anyway: NVIDIA's DCGM exporter on nodes that serve, a Gateway's Envoy by Istio.

What the account may not list is not found.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence

from kveval.engines.kubernetes.api.client import Api
from kveval.engines.kubernetes.api.errors import ClusterError
from kveval.engines.kubernetes.api.kinds import POD, Document

# Of NVIDIA's GPU operator, and of the exporter's own chart and manifest, as are and as GKE runs them by itself.
_DCGM = ("app=nvidia-dcgm-exporter", "app.kubernetes.io/name in (dcgm-exporter,gke-managed-dcgm-exporter)")
_DCGM_PORT = "9400"
# On the pods of a Gateway: https://gateway-api.sigs.k8s.io/geps/gep-1762/
_OF_GATEWAY = "gateway.networking.k8s.io/gateway-name"
_READ = "import sys, urllib.request as web\nfor url in sys.argv[1:]: web.urlopen(url, timeout=3).read(1)"


def dcgm_urls(api: Api, nodes: Collection[str]) -> list[str]:
    """Return where the GPUs of these nodes are told of."""
    pods = [pod for selector in _DCGM for pod in _pods(api, "", selector)]
    return list(_urls(pod for pod in pods if pod["spec"].get("nodeName") in nodes))


def gateway_urls(api: Api, namespace: str, name: str) -> list[str]:
    """Return where a Gateway's pods tell of its requests, if they say so in the annotations that Istio gives them."""
    pods = _pods(api, namespace, f"{_OF_GATEWAY}={name}")
    return list(_urls(pod for pod in pods if "prometheus.io/port" in (pod["metadata"].get("annotations") or {})))


def reached(api: Api, namespace: str, pod: str, container: str, urls: Sequence[str]) -> bool:
    """Whether a pod that has Python reads all of these."""
    try:
        return api.exec(namespace, pod, container, ["python3", "-c", _READ, *urls]).returncode == 0
    except ClusterError:
        return False


def _pods(api: Api, namespace: str, selector: str) -> list[Document]:
    try:
        return list(api.list(POD, namespace, selector=selector))
    except ClusterError:
        return []


def _urls(pods: Iterable[Document]) -> Iterator[str]:
    for pod in pods:
        address, said = (pod.get("status") or {}).get("podIP"), pod["metadata"].get("annotations") or {}
        if address:
            host = f"[{address}]" if ":" in address else address
            port, path = said.get("prometheus.io/port", _DCGM_PORT), said.get("prometheus.io/path", "/metrics")
            yield f"http://{host}:{port}{path}"
