"""Kinds of Kubernetes objects, by API version and name, and the paths at which an API server has them.

Paths are formed from the names. The dynamic client of the package `kubernetes` asks the API server for them instead:
some twenty requests before the first object, whose answers it keeps in a file of a known name in the temporary folder,
to which other users of a host may have written before. It also reads an API group that answers 503 as one without
kinds, so that an outage looks like a missing CustomResourceDefinition. All kinds of this program are known here.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

Document = dict[str, Any]
"""An object as the API server writes and reads it."""
Documents = list[Document]
# A kubelet reports its node every 10 s. After an outage of the API server a node may count as not ready until then.
_HEARTBEAT_S = 12.0


class Kind(NamedTuple):
    """The kind that `apiVersion` and `kind` of a document name."""

    api_version: str
    kind: str

    @property
    def group(self) -> str:
        """The API group; empty for the core kinds."""
        return self.api_version.rpartition("/")[0]

    @property
    def plural(self) -> str:
        """Its name in paths: the plural as English forms it."""
        name = self.kind.lower()
        if name.endswith("y") and name[-2] not in "aeiou":
            return f"{name[:-1]}ies"
        if name.endswith("s"):
            return f"{name}es" if name.endswith("ss") else name
        return f"{name}s"

    @property
    def root(self) -> str:
        """The path that lists the kinds of its API version."""
        return f"/apis/{self.api_version}" if self.group else f"/api/{self.api_version}"

    def path(self, namespace: str = "", name: str = "") -> str:
        """Return the path of one object, of all in a namespace, or (without a namespace) of all in the cluster."""
        within = f"/namespaces/{namespace}" if namespace else ""
        return f"{self.root}{within}/{self.plural}" + (f"/{name}" if name else "")


POD = Kind("v1", "Pod")
SERVICE = Kind("v1", "Service")
CONFIG_MAP = Kind("v1", "ConfigMap")
SECRET = Kind("v1", "Secret")
SERVICE_ACCOUNT = Kind("v1", "ServiceAccount")
VOLUME_CLAIM = Kind("v1", "PersistentVolumeClaim")
NAMESPACE = Kind("v1", "Namespace")
NODE = Kind("v1", "Node")
EVENT = Kind("v1", "Event")
DEPLOYMENT = Kind("apps/v1", "Deployment")
REPLICA_SET = Kind("apps/v1", "ReplicaSet")
DAEMON_SET = Kind("apps/v1", "DaemonSet")
JOB = Kind("batch/v1", "Job")
NETWORK_POLICY = Kind("networking.k8s.io/v1", "NetworkPolicy")
LEASE = Kind("coordination.k8s.io/v1", "Lease")
GATEWAY = Kind("gateway.networking.k8s.io/v1", "Gateway")
GATEWAY_CLASS = Kind("gateway.networking.k8s.io/v1", "GatewayClass")
ROUTE = Kind("gateway.networking.k8s.io/v1", "HTTPRoute")
POOL = Kind("inference.networking.k8s.io/v1", "InferencePool")


def kind_of(document: Mapping[str, Any]) -> Kind:
    """Return the kind of a document."""
    return Kind(document["apiVersion"], document["kind"])


def described(document: Mapping[str, Any]) -> str:
    """Return an object's name for messages: `Deployment kv/server`."""
    metadata = document["metadata"]
    within = f"{metadata['namespace']}/" if metadata.get("namespace") else ""
    return f"{document.get('kind', 'object')} {within}{metadata['name']}"


def labels_of(document: Mapping[str, Any]) -> Mapping[str, str]:
    """Return an object's labels; the API server leaves out what is empty."""
    return document["metadata"].get("labels") or {}


def annotations_of(document: Mapping[str, Any]) -> Mapping[str, str]:
    """Return an object's annotations."""
    return document["metadata"].get("annotations") or {}


def status_of(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an object's status; it has none before its controller has seen it."""
    return document.get("status") or {}


def condition(document: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Return the condition of type `kind` in an object's status, {} if it has none."""
    conditions = status_of(document).get("conditions") or []
    return next((entry for entry in conditions if entry.get("type") == kind), {})


def seconds_since(stamp: str | None, now: datetime) -> float:
    """Return the seconds from `stamp`, a time of the API server in ISO 8601, to `now`; 0 for None."""
    return (now - datetime.fromisoformat(stamp)).total_seconds() if stamp else 0.0


def unready(node: Mapping[str, Any], now: datetime) -> str:
    """Return since when and why a node is not ready, in the cluster's words; "" if it is, or lately was.

    `now`: the time by the cluster's clock.
    """
    ready = condition(node, "Ready")
    since = ready.get("lastTransitionTime")
    lately = since and seconds_since(since, now) < _HEARTBEAT_S
    if ready.get("status", "True") == "True" or lately:
        return ""
    cause = f"{ready.get('reason')}: {ready.get('message')}"
    return f"its node {node['metadata']['name']} has not been ready since {ready.get('lastTransitionTime')} ({cause})"
