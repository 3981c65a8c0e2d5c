"""Permissions of the workflow's account on a cluster: one table for the RBAC manifest and for the doctor.

`scripts/print_permissions.py` prints the manifest, for a cluster administrator to apply.
"""

from dataclasses import dataclass
from typing import Any, Literal

from kveval.campaign.site import Cluster
from kveval.engines.kubernetes.manifests.recorder import INSTALLED
from kveval.engines.kubernetes.manifests.templates import filled

ACCOUNT = "kveval-workflow"
TEMPLATE = "workflow-rbac.yaml.j2"
NAMESPACES = "workflow-namespaces.yaml.j2"

Place = Literal["namespace", "pcp_namespace", "gateway", "cluster"]

_READ = ("get", "list")
LOOK = (*_READ, "watch")
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
_OF_ISTIO = (
    "networking.istio.io",
    "destinationrules",
    MAKE,
    "TLS between Istio's Gateway and the endpoint picker",
)
_OF_GKE = (
    (
        "networking.gke.io",
        "healthcheckpolicies",
        MAKE,
        "how GKE's Gateway checks the servers",
    ),
    (
        "networking.gke.io",
        "gcpbackendpolicies",
        MAKE,
        "how long GKE's Gateway waits for them",
    ),
)
_BY_PROVIDER = {"istio": (_OF_ISTIO,), "none": (_OF_ISTIO,), "gke": _OF_GKE}
# Group, resource, verbs, and what needs them.
_IN_NAMESPACE = (
    ("", "pods", MAKE, "waiting for servers and load, the doctor's trials of images"),
    ("", "pods/log", ("get",), "the cause of a failure, in its message"),
    # A WebSocket is a GET; from Kubernetes 1.35 on it needs `create` as well.
    ("", "pods/exec", ("get", "create"), "collecting results"),
    ("", "pods/proxy", ("get", "create"), "asking servers, and emptying their caches"),
    ("", "events", LOOK, "the cause of a failure, in its message"),
    ("", "services", MAKE, "the servers' addresses"),
    ("", "configmaps", MAKE, "the endpoint picker's configuration; a miniature"),
    ("", "persistentvolumeclaims", MAKE, "the volume for weights"),
    (
        "networking.k8s.io",
        "networkpolicies",
        MAKE,
        "keeping other pods from servers and stores",
    ),
    ("apps", "deployments", MAKE, "the servers"),
    ("apps", "replicasets", LOOK, "following a rollout"),
    (
        "batch",
        "jobs",
        MAKE,
        "the load generator; downloading weights; the automatic removal of a run",
    ),
    (
        "coordination.k8s.io",
        "leases",
        (*MAKE, "update"),
        "detecting whether a job still runs",
    ),
)
# Where requests go through an endpoint picker.
_WITH_PICKER = (
    ("", "serviceaccounts", MAKE, "the endpoint picker's account"),
    (RBAC_GROUP, "roles", MAKE, "what the endpoint picker may do"),
    (RBAC_GROUP, "rolebindings", MAKE, "what the endpoint picker may do"),
)
_WITH_GATEWAY = (
    (
        POOL_GROUP,
        "inferencepools",
        MAKE,
        "the replicas that the endpoint picker chooses from",
    ),
    (GATEWAY_GROUP, "httproutes", MAKE, "the route from the Gateway to the pool"),
    # An account can only grant permissions that it has: these are in the endpoint picker's role.
    *(
        (group, resource, LOOK, "granted to the endpoint picker")
        for group in OBJECTIVE_GROUPS
        for resource in ("inferenceobjectives", "inferencemodelrewrites")
    ),
)
_OF_RECORDER = (
    (
        "coordination.k8s.io",
        "leases",
        (*MAKE, "update"),
        "which campaign measures on which nodes",
    ),
    ("", "pods/log", ("get",), "the cause of a failure, in its message"),
    ("", "events", LOOK, "the cause of a failure, in its message"),
)
_OF_OWN_RECORDER = (
    ("apps", "daemonsets", MAKE, "the recorder"),
    ("batch", "jobs", MAKE, "the automatic removal of the recorder"),
    ("", "configmaps", MAKE, "what the recorder reads"),
    (
        "",
        "pods",
        (*LOOK, "create", "delete"),
        "the recorder's pods, and the doctor's trial of them",
    ),
    (
        "",
        "pods/exec",
        ("get", "create"),
        "starting, stopping and collecting a recording",
    ),
)
# Nothing by which the account could run a program of its own where pods are privileged.
_OF_INSTALLED_RECORDER = (
    ("", "pods", LOOK, "the recorder's pods"),
    ("", "pods/proxy", ("create",), "starting, stopping and collecting a recording"),
    ("", "secrets", ("get",), "the key that the recorder asks for", (INSTALLED,)),
)


def permissions(site: Cluster) -> tuple[Permission, ...]:
    """Return all permissions that the workflow needs on this site."""
    table = [Permission("namespace", *row) for row in _IN_NAMESPACE]
    routed = site.address in ("router", "gateway")
    if routed:
        table += [Permission("namespace", *row) for row in _WITH_PICKER]
    if site.token_secret is not None:
        why = "the doctor checks whether the token's key exists"
        table.append(
            Permission(
                "namespace",
                "",
                "secrets",
                ("get",),
                why,
                (site.token_secret.name,),
                True,
            )
        )
    if routed and (gateway := site.gateway) is not None:
        rows = (*_WITH_GATEWAY, *_BY_PROVIDER.get(gateway.provider, ()))
        table += [Permission("namespace", *row) for row in rows]
        if gateway.create:
            table.append(
                Permission(
                    "namespace",
                    GATEWAY_GROUP,
                    "gateways",
                    MAKE,
                    "a Gateway for each cell",
                )
            )
        else:
            why = "the doctor checks the Gateway; its address"
            table.append(
                Permission(
                    "gateway", GATEWAY_GROUP, "gateways", ("get",), why, (gateway.name,)
                )
            )
        why = "the Gateway's provider: some need additional documents"
        table.append(Permission("cluster", GATEWAY_GROUP, "gatewayclasses", _READ, why))
    recorder = _OF_INSTALLED_RECORDER if site.recorder.installed else _OF_OWN_RECORDER
    table += [Permission("pcp_namespace", *row) for row in (*_OF_RECORDER, *recorder)]
    why = "the hardware that was measured; GPUs and memory for the campaign"
    table.append(Permission("cluster", "", "nodes", _READ, why))
    why = "the doctor checks the classes"
    table.append(
        Permission(
            "cluster", "storage.k8s.io", "storageclasses", _READ, why, advisory=True
        )
    )
    both = (site.namespace, site.pcp_namespace)
    return (
        *table,
        Permission(
            "cluster", "", "namespaces", ("get",), "checking whether they exist", both
        ),
    )


def namespace_of(place: Place, site: Cluster) -> str:
    """Return the namespace of a place in the table; "" for `cluster`."""
    if place == "gateway":
        return (
            site.gateway.namespace if site.gateway is not None else None
        ) or site.namespace
    return {
        "namespace": site.namespace,
        "pcp_namespace": site.pcp_namespace,
        "cluster": "",
    }[place]


def roles(site: Cluster) -> dict[str, list[dict[str, Any]]]:
    """Return the RBAC rules by namespace; those for resources without a namespace are under "".

    Resources with equal verbs share a rule.
    """
    rules: dict[tuple[str, str, tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for permission in permissions(site):
        namespace = namespace_of(permission.place, site)
        key = namespace, permission.group, permission.verbs, permission.names
        rules.setdefault(key, []).append(permission.resource)
    by_namespace: dict[str, list[dict[str, Any]]] = {}
    for (namespace, group, verbs, names), resources in rules.items():
        rule = {"group": group, "resources": resources}
        rule |= {"verbs": list(verbs), "names": list(names)}
        by_namespace.setdefault(namespace, []).append(rule)
    return by_namespace


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
    return filled(
        NAMESPACES, namespace=site.namespace, pcp_namespace=site.pcp_namespace
    )


def fix_command(campaign: str) -> str:
    """Return the command with which an administrator grants everything in the table."""
    return f"python scripts/print_permissions.py {campaign} | kubectl apply -f -"
