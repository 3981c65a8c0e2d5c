"""Permissions of the workflow's account on a cluster: one table for the RBAC manifest and for the doctor.

`scripts/print_permissions.py` prints the manifest, for a cluster administrator to apply.
"""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Literal

from kveval.config.site import Cluster
from kveval.engines.kubernetes.manifests.templates import filled

ACCOUNT = "kveval-workflow"
TEMPLATE = "workflow-rbac.yaml.j2"
NAMESPACES = "workflow-namespaces.yaml.j2"

Place = Literal["namespace", "pcp_namespace", "gateway", "cluster"]

LOOK = ("get", "list", "watch")
MAKE = (*LOOK, "create", "patch", "delete")
"""Server-side apply needs `patch`, and `create` for new objects."""


@dataclass(frozen=True)
class Permission:
    """Verbs on a resource.

    Attributes:
        place: the campaign's namespace, the recorder's, the Gateway's, or `cluster` for what has no namespace.
        resource: as in an RBAC rule; a subresource after a slash.
        why: what needs it.
        names: of the only objects that it applies to; empty for all.
        advisory: only the doctor uses it; a campaign runs without it.
    """

    place: Place
    group: str
    resource: str
    verbs: tuple[str, ...]
    why: str
    names: tuple[str, ...] = ()
    advisory: bool = False

    @property
    def qualified(self) -> str:
        """The resource with its group, as kubectl writes it."""
        return f"{self.resource}.{self.group}" if self.group else self.resource


GATEWAY_GROUP = "gateway.networking.k8s.io"
POOL_GROUP = "inference.networking.k8s.io"
OBJECTIVE_GROUPS = ("inference.networking.x-k8s.io", "llm-d.ai")
RBAC_GROUP = "rbac.authorization.k8s.io"


# By the Gateway's provider, which is unknown until the cluster is asked if the site names no class.
_BY_PROVIDER = (
    (
        ("istio", "none"),
        "networking.istio.io",
        "destinationrules",
        "TLS between Istio's Gateway and the endpoint picker",
    ),
    (("gke",), "networking.gke.io", "healthcheckpolicies", "how GKE's Gateway checks the servers"),
    (("gke",), "networking.gke.io", "gcpbackendpolicies", "how long GKE's Gateway waits for them"),
)

_CLASSES = "the Gateway's provider: some need additional documents"


def permissions(site: Cluster) -> tuple[Permission, ...]:
    """Return all permissions that the workflow needs on this site."""
    return (*_in_namespace(site), *_in_pcp_namespace(), *_outside(site))


def _in_namespace(site: Cluster) -> list[Permission]:
    rows: list[tuple[str, str, tuple[str, ...], str]] = [
        ("", "pods", MAKE, "waiting for servers and load, the doctor's trials of images"),
        ("", "pods/log", ("get",), "the cause of a failure, in its message"),
        # A WebSocket is a GET; from Kubernetes 1.35 on it needs `create` as well.
        ("", "pods/exec", ("get", "create"), "collecting results"),
        ("", "pods/proxy", ("get", "create"), "asking servers, and emptying their caches"),
        ("", "events", LOOK, "the cause of a failure, in its message"),
        ("", "services", MAKE, "the servers' addresses"),
        ("", "configmaps", MAKE, "the endpoint picker's configuration; a miniature"),
        ("", "persistentvolumeclaims", MAKE, "the volume for weights"),
        ("apps", "deployments", MAKE, "the servers"),
        ("apps", "replicasets", LOOK, "following a rollout"),
        ("batch", "jobs", MAKE, "the load generator; downloading weights; the automatic removal of a run"),
        ("coordination.k8s.io", "leases", (*MAKE, "update"), "detecting whether a job still runs"),
        ("", "serviceaccounts", MAKE, "the endpoint picker's account"),
        (RBAC_GROUP, "roles", MAKE, "what the endpoint picker may do"),
        (RBAC_GROUP, "rolebindings", MAKE, "what the endpoint picker may do"),
    ]
    if site.gateway is not None:
        rows.append((POOL_GROUP, "inferencepools", MAKE, "the replicas that the endpoint picker chooses from"))
        rows.append((GATEWAY_GROUP, "httproutes", MAKE, "the route from the Gateway to the pool"))
        # An account can only grant permissions that it has: these are in the endpoint picker's role.
        for group in OBJECTIVE_GROUPS:
            for resource in ("inferenceobjectives", "inferencemodelrewrites"):
                rows.append((group, resource, LOOK, "granted to the endpoint picker"))
    found = [Permission("namespace", *row) for row in rows]
    if site.token_secret is not None:
        why = "the doctor checks whether the token's key exists"
        found.append(Permission("namespace", "", "secrets", ("get",), why, (site.token_secret.name,), True))
    if site.gateway is not None:
        for providers, group, resource, why in _BY_PROVIDER:
            if site.gateway.provider in providers:
                found.append(Permission("namespace", group, resource, MAKE, why))
        if site.gateway.create:
            found.append(Permission("namespace", GATEWAY_GROUP, "gateways", MAKE, "a Gateway for each cell"))
        else:
            why = "the doctor checks the Gateway; its address"
            found.append(Permission("gateway", GATEWAY_GROUP, "gateways", ("get",), why, (site.gateway.name,)))
    return found


def _in_pcp_namespace() -> list[Permission]:
    rows: list[tuple[str, str, tuple[str, ...], str]] = [
        ("apps", "daemonsets", MAKE, "the recorder"),
        ("batch", "jobs", MAKE, "the automatic removal of the recorder"),
        ("coordination.k8s.io", "leases", (*MAKE, "update"), "which campaign measures on which nodes"),
        ("", "configmaps", MAKE, "what the recorder reads"),
        ("", "pods", (*LOOK, "create", "delete"), "the recorder's pods, and the doctor's trial of them"),
        ("", "pods/log", ("get",), "the cause of a failure, in its message"),
        ("", "pods/exec", ("get", "create"), "starting, stopping and collecting a recording"),
        ("", "events", LOOK, "the cause of a failure, in its message"),
    ]
    return [Permission("pcp_namespace", *row) for row in rows]


def _outside(site: Cluster) -> list[Permission]:
    look, namespaces = ("get", "list"), (site.namespace, site.pcp_namespace)
    nodes = "the hardware that was measured; GPUs and memory for the campaign"
    return [
        Permission("cluster", "", "nodes", look, nodes),
        *([] if site.gateway is None else [Permission("cluster", GATEWAY_GROUP, "gatewayclasses", look, _CLASSES)]),
        Permission("cluster", "storage.k8s.io", "storageclasses", look, "the doctor checks the classes", (), True),
        Permission("cluster", "", "namespaces", ("get",), "checking whether they exist", namespaces),
    ]


def namespace_of(place: Place, site: Cluster) -> str:
    """Return the namespace of a place in the table; "" for `cluster`."""
    if place == "gateway":
        return (site.gateway.namespace if site.gateway is not None else None) or site.namespace
    return {"namespace": site.namespace, "pcp_namespace": site.pcp_namespace, "cluster": ""}[place]


def roles(site: Cluster) -> dict[str, list[dict[str, Any]]]:
    """Return the RBAC rules by namespace; those for resources without a namespace are under "".

    Resources with equal verbs share a rule.
    """
    found: dict[str, dict[tuple[str, tuple[str, ...], tuple[str, ...]], list[str]]] = defaultdict(dict)
    for permission in permissions(site):
        rules = found[namespace_of(permission.place, site)]
        rules.setdefault((permission.group, permission.verbs, permission.names), []).append(permission.resource)
    return {
        namespace: [
            {"group": group, "resources": resources, "verbs": list(verbs), "names": list(names)}
            for (group, verbs, names), resources in rules.items()
        ]
        for namespace, rules in found.items()
    }


def manifest(site: Cluster, subject: tuple[str, str] | None = None) -> str:
    """Return the RBAC manifest, YAML. `subject`: kind (User or Group) and name; if None, a new service account."""
    by_namespace = roles(site)
    return filled(
        TEMPLATE,
        account=ACCOUNT,
        subject=subject,
        namespace=site.namespace,
        cluster_rules=by_namespace.pop(""),
        rules=by_namespace,
    )


def namespaces(site: Cluster) -> str:
    """Return the YAML of the namespaces, for creating those that do not exist."""
    return filled(NAMESPACES, namespace=site.namespace, pcp_namespace=site.pcp_namespace)


def fix_command(campaign: str) -> str:
    """Return the command with which an administrator grants everything in the table."""
    return f"python scripts/print_permissions.py {campaign} | kubectl apply -f -"
