"""Who may connect to a run's servers and stores: the run's own pods, and what asks the servers on its behalf."""

from collections.abc import Iterator, Mapping, Sequence
from ipaddress import ip_network

from kveval.engines.kubernetes.api.kinds import Document, annotations_of
from kveval.engines.kubernetes.manifests.context import RenderContext

CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
_NAMESPACE_NAME = "kubernetes.io/metadata.name"
# How API servers ask pods: by agents in kube-system (konnectivity), and on OpenShift from its host network, whose
# namespace has this label. https://docs.okd.io/latest/networking/network_security/network_policy/about-network-policy.html
_OF_API_SERVERS: tuple[Mapping[str, str], ...] = (
    {_NAMESPACE_NAME: "kube-system"},
    {"policy-group.network.openshift.io/host-network": ""},
)
# https://cloud.google.com/load-balancing/docs/health-check-concepts#ip-ranges
_GKE_HEALTH_CHECKS = ("35.191.0.0/16", "130.211.0.0/22")
# Where pods have a network of their own, a node reaches those of other nodes from a tunnel's address.
_TUNNEL = "TunnelAddr"


def network(
    context: RenderContext, nodes: Sequence[Document] = ()
) -> tuple[Document, ...]:
    """Return the policies of a run's servers and stores. Raises ManifestError for a bad template.

    `nodes`: those with API servers, and those of the servers, whose recorders read the metrics of all replicas.
    """
    return context.documents("network", peers=list(_peers(context, nodes)))


def _peers(context: RenderContext, nodes: Sequence[Document]) -> Iterator[Document]:
    """Yield who beside the run's pods may connect to its servers, as NetworkPolicyPeers."""
    for labels in _OF_API_SERVERS:
        yield _of_namespace(labels)
    for address in dict.fromkeys(
        address for node in nodes for address in _addresses(node)
    ):
        yield _addressed(address)
    if context.deployment.route == "gateway":
        yield from _of_gateway(context)
    for peer in context.site.network_peers or ():
        own = {_NAMESPACE_NAME: str(peer.namespace)}
        yield _addressed(peer.cidr) if peer.cidr else _of_namespace(own)


def _of_gateway(context: RenderContext) -> Iterator[Document]:
    """Yield the Gateway's proxies: pods, except on GKE, where the site has to name their subnet."""
    yield _of_namespace({_NAMESPACE_NAME: context.gateway_namespace})
    if context.provider == "gke":
        yield from map(_addressed, _GKE_HEALTH_CHECKS)


def _addresses(node: Document) -> Iterator[str]:
    """Yield the addresses from which a node connects to pods."""
    for entry in node.get("status", {}).get("addresses") or []:
        if entry["type"] == "InternalIP":
            yield str(entry["address"])
    for name, value in annotations_of(node).items():
        if name.startswith("projectcalico.org/") and name.endswith(_TUNNEL):
            yield str(value)


def _addressed(text: str) -> Document:
    return {"ipBlock": {"cidr": str(ip_network(text))}}


def _of_namespace(labels: Mapping[str, str]) -> Document:
    # On OpenShift, pods on the host network are meant only where a podSelector stands beside the namespace.
    return {"namespaceSelector": {"matchLabels": dict(labels)}, "podSelector": {}}
