"""Removes the objects of this program from a cluster, and nothing else, and waits until they are gone."""

import contextlib
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kveval.engines.kubernetes.api.client import Api
from kveval.engines.kubernetes.api.errors import ClusterError, Refused
from kveval.engines.kubernetes.api.kinds import (
    CONFIG_MAP,
    DAEMON_SET,
    DEPLOYMENT,
    GATEWAY,
    JOB,
    LEASE,
    NETWORK_POLICY,
    NODE,
    POD,
    POOL,
    REPLICA_SET,
    ROUTE,
    SERVICE,
    SERVICE_ACCOUNT,
    VOLUME_CLAIM,
    Document,
    Kind,
    described,
    kind_of,
    unready,
)
from kveval.engines.kubernetes.api.names import MANAGED_BY, MANAGER
from kveval.engines.protocol import Log

_OWNERS = (JOB, DEPLOYMENT, DAEMON_SET, REPLICA_SET)
KINDS = (
    *(*_OWNERS, POD, ROUTE, POOL, GATEWAY, SERVICE, CONFIG_MAP, LEASE, SERVICE_ACCOUNT),
    *(Kind("rbac.authorization.k8s.io/v1", kind) for kind in ("RoleBinding", "Role")),
    Kind("networking.istio.io/v1beta1", "DestinationRule"),
    *(
        Kind("networking.gke.io/v1", kind)
        for kind in ("HealthCheckPolicy", "GCPBackendPolicy")
    ),
    NETWORK_POLICY,
    VOLUME_CLAIM,
)
"""Every kind that this program makes, in the order of removal: workloads, what routes to them, what they need."""
_POLL_S = 0.5
_REPEAT_S = 15.0
# Time after which the node of a pod that does not end is checked: longer than the pod's grace period.
_NODE_S = 35.0


class TeardownError(ClusterError):
    """An object of this program is still on the cluster."""


@dataclass
class Removed:
    """The result of a teardown: what was removed, what still waits for a node, and what could not be listed."""

    removed: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    unlisted: list[tuple[Kind, str]] = field(default_factory=list)
    """Kinds that this account may not list, and the namespace."""


def remove(
    api: Api,
    selectors: Mapping[str, str],
    *,
    kinds: Collection[Kind] = KINDS,
    timeout_s: float = 300.0,
    say: Log | None = None,
) -> Removed:
    """Delete every object with these labels and with this program's managed-by label; wait until they are gone.

    `selectors`: the labels, by the namespace, which is kept. Raises TeardownError for objects that are not gone in time.
    """
    selectors = {place: ours(selector) for place, selector in selectors.items()}
    result = Removed()
    places = everywhere = [
        (kind, namespace) for kind in kinds for namespace in selectors
    ]
    requested: set[str] = set()
    seen: dict[str, str] = {}
    begin = said_at = time.monotonic()
    while True:
        present = {
            place: _present(api, selectors[place[1]], *place, result)
            for place in places
        }
        left = [document for documents in present.values() for document in documents]
        there = {document["metadata"]["uid"]: described(document) for document in left}
        result.removed += [name for uid, name in seen.items() if uid not in there]
        if not left and places is everywhere:
            return result
        for document in left:
            _delete(api, document, seen=there, requested=requested)
        seen, now = there, time.monotonic()
        if (
            places is everywhere
            and now - begin >= _NODE_S
            and (nodes := _awaited(api, left))
        ):
            result.kept += [
                f"{name} (removed once node {nodes} is back, or is deleted)"
                for name in there.values()
            ]
            if say is not None:
                say("; ".join(result.kept))
            return result
        if now - begin >= timeout_s:
            raise TeardownError(
                f"cluster {api.server}: {len(left)} object(s) were not removed in {timeout_s:.0f} s: "
                + "; ".join(_why(document) for document in left[:5]),
                finalizers={
                    described(document): document["metadata"].get("finalizers") or []
                    for document in left
                },
            )
        if say is not None and now - said_at >= _REPEAT_S:
            say(
                f"waiting for the removal of {len(left)} object(s): {', '.join(map(described, left[:3]))}"
            )
            said_at = now
        # Meanwhile an object may have been created elsewhere: the last look is at every place again.
        occupied = [place for place, documents in present.items() if documents]
        places = occupied if occupied and now - begin < _NODE_S else everywhere
        time.sleep(_POLL_S)


def remove_made(
    api: Api, namespace: str, selector: str, kinds: Collection[Kind], say: Log
) -> list[str]:
    """Remove a namespace's objects with these labels, of kinds that the account makes there; return their names.

    Raises ClusterError, also where the account may no longer list one of these kinds.
    """
    result = remove(api, {namespace: selector}, kinds=kinds, say=say)
    if result.unlisted:
        lacking = ", ".join(sorted({kind.plural for kind, _ in result.unlisted}))
        message = f"the account may no longer list {lacking} in namespace {namespace}"
        raise ClusterError(message, code="right_missing", resources=lacking)
    return result.removed


def ours(selector: str) -> str:
    """Restrict a selector to objects of this program; the empty selector means all of them."""
    own = f"{MANAGED_BY}={MANAGER}"
    return (
        selector
        if own in selector.split(",")
        else ",".join(part for part in (own, selector) if part)
    )


def _present(
    api: Api, selector: str, kind: Kind, namespace: str, result: Removed
) -> list[Document]:
    """List the objects to delete; a kind that may not be listed is noted once."""
    if (kind, namespace) in result.unlisted:
        return []
    try:
        return api.list(kind, namespace, selector)
    except Refused as error:
        # An account that may not list a kind cannot have created one. 404: the cluster does not know the kind.
        if error.status not in (403, 404):
            raise
        result.unlisted += [(kind, namespace)] if error.status == 403 else []
        return []


def _awaited(api: Api, left: Sequence[Document]) -> str:
    """Return the nodes that are not ready if all objects left are being deleted and only wait for their pods, or ""."""
    nodes = sorted(
        {
            str(document["spec"].get("nodeName") or "")
            for document in left
            if document["kind"] == POD.kind
        }
    )
    if not all(nodes) or not all(
        document["metadata"].get("deletionTimestamp") for document in left
    ):
        return ""
    with contextlib.suppress(ClusterError):
        if all(
            (document := api.read(NODE, node)) and unready(document, api.now())
            for node in nodes
        ):
            return ", ".join(nodes)
    return ""


def _delete(
    api: Api, document: Document, *, seen: Collection[str], requested: set[str]
) -> None:
    metadata = document["metadata"]
    if metadata["uid"] in requested or metadata.get("deletionTimestamp"):
        return
    # An object that a controller made is removed with it; if it were deleted first, it would be created again. A
    # ReplicaSet goes with its Deployment, and is not listed where an account may not delete it.
    if any(
        owner.get("controller")
        and (owner["uid"] in seen or owner["kind"] == REPLICA_SET.kind)
        for owner in metadata.get("ownerReferences") or []
    ):
        return
    # With foreground deletion, an owner stays until all that it owns is gone.
    propagation = "Foreground" if kind_of(document) in _OWNERS else "Background"
    where = (metadata["name"], metadata.get("namespace", ""))
    api.delete(kind_of(document), *where, propagation, uid=metadata["uid"])
    requested.add(metadata["uid"])


def _why(document: Mapping[str, Any]) -> str:
    metadata = document["metadata"]
    name = described(document)
    finalizers = metadata.get("finalizers") or []
    if finalizers:
        return f"{name} (held by finalizer {', '.join(finalizers)}: is the controller that removes it running?)"
    if document["kind"] == "Pod":
        node = (document.get("spec") or {}).get("nodeName", "its node")
        return f"{name} (its end is not confirmed: is {node} up? `kubectl delete --force` does not wait for that)"
    return (
        f"{name} (does something else create it again?)"
        if not metadata.get("deletionTimestamp")
        else name
    )
