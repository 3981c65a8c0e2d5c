"""Kinds of Kubernetes objects, by API version and name."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

Document = dict[str, Any]
"""An object as the API server writes and reads it."""
Documents = list[Document]


class Kind(NamedTuple):
    """The kind that `apiVersion` and `kind` of a document name."""

    api_version: str
    kind: str

    @property
    def group(self) -> str:
        """The API group; empty for the core kinds."""
        return self.api_version.rpartition("/")[0]


POD = Kind("v1", "Pod")
SERVICE = Kind("v1", "Service")
CONFIG_MAP = Kind("v1", "ConfigMap")
SERVICE_ACCOUNT = Kind("v1", "ServiceAccount")
VOLUME_CLAIM = Kind("v1", "PersistentVolumeClaim")
NAMESPACE = Kind("v1", "Namespace")
NODE = Kind("v1", "Node")
EVENT = Kind("v1", "Event")
DEPLOYMENT = Kind("apps/v1", "Deployment")
REPLICA_SET = Kind("apps/v1", "ReplicaSet")
DAEMON_SET = Kind("apps/v1", "DaemonSet")
JOB = Kind("batch/v1", "Job")


@dataclass(frozen=True)
class Resource:
    """Where the API server serves a kind, by its API discovery."""

    kind: Kind
    plural: str
    namespaced: bool
    verbs: frozenset[str]

    def path(self, namespace: str = "", name: str = "") -> str:
        """Return the path of one object, of all in a namespace, or (without a namespace) of all in the cluster."""
        root = f"/apis/{self.kind.api_version}" if self.kind.group else f"/api/{self.kind.api_version}"
        within = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return f"{root}{within}/{self.plural}" + (f"/{name}" if name else "")


def kind_of(document: Mapping[str, Any]) -> Kind:
    """Return the kind of a document."""
    return Kind(document["apiVersion"], document["kind"])


def described(document: Mapping[str, Any]) -> str:
    """Return an object's name for messages: `Deployment kv/server`."""
    metadata = document["metadata"]
    within = f"{metadata['namespace']}/" if metadata.get("namespace") else ""
    return f"{document.get('kind', 'object')} {within}{metadata['name']}"


def condition(document: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Return the condition of type `kind` in an object's status, {} if it has none."""
    conditions = (document.get("status") or {}).get("conditions") or []
    return next((found for found in conditions if found.get("type") == kind), {})


def unready(node: Mapping[str, Any]) -> str:
    """Return since when and why a node is not ready, in the cluster's words; "" if it is ready."""
    ready = condition(node, "Ready")
    if ready.get("status", "True") == "True":
        return ""
    said = f"{ready.get('reason')}: {ready.get('message')}"
    return f"its node {node['metadata']['name']} has not been ready since {ready.get('lastTransitionTime')} ({said})"
