"""Metrics endpoints that a cluster already has: NVIDIA's DCGM exporter on the servers' nodes, the Envoy of Istio.

Pods that the account may not list are not found.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence

from kveval.engines.kubernetes.api.client import Api
from kveval.engines.kubernetes.api.errors import ClusterError
from kveval.engines.kubernetes.api.kinds import POD, Document

# Labels set by NVIDIA's GPU operator, and by the exporter's own chart and manifest, also in the variant of GKE.
_DCGM = ("app=nvidia-dcgm-exporter", "app.kubernetes.io/name in (dcgm-exporter,gke-managed-dcgm-exporter)")
_DCGM_PORT = "9400"
# On the pods of a Gateway: https://gateway-api.sigs.k8s.io/geps/gep-1762/
_OF_GATEWAY = "gateway.networking.k8s.io/gateway-name"
_READ = "import sys, urllib.request as web\nfor url in sys.argv[1:]: web.urlopen(url, timeout=3).read(1)"


def dcgm_urls(api: Api, nodes: Collection[str]) -> list[str]:
    """Return the URLs of the DCGM exporters on these nodes."""
    pods = [pod for selector in _DCGM for pod in _pods(api, "", selector)]
    return list(_urls(pod for pod in pods if pod["spec"].get("nodeName") in nodes))


def gateway_urls(api: Api, namespace: str, name: str) -> list[str]:
    """Return the metrics URLs of a Gateway's pods that have the annotation prometheus.io/port, as Istio's do."""
    pods = _pods(api, namespace, f"{_OF_GATEWAY}={name}")
    return list(_urls(pod for pod in pods if "prometheus.io/port" in (pod["metadata"].get("annotations") or {})))


def reached(api: Api, namespace: str, pod: str, container: str, urls: Sequence[str]) -> bool:
    """Tell whether a pod, whose image must have Python, can read all of these URLs."""
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
