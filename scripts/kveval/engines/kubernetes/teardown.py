"""Removes the objects of this program from a cluster, and nothing else, and waits until they are gone."""

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kveval.engines.kubernetes.api.client import Api
from kveval.engines.kubernetes.api.errors import ClusterError, Refused
from kveval.engines.kubernetes.api.kinds import (
    NODE,
    POD,
    VOLUME_CLAIM,
    Document,
    Kind,
    Resource,
    described,
    kind_of,
    unready,
)
from kveval.engines.kubernetes.api.names import MANAGED_BY, MANAGER
from kveval.engines.protocol import Say

Place = tuple[Resource, str]
"""One kind in one namespace."""

_POLL_S = 0.5
_REPEAT_S = 15.0
# Time after which the node of a pod that does not end is checked: longer than the pod's grace period.
_NODE_S = 35.0
# The order of removal: workloads first, then what routes to them, then what they needed.
_OWNERS = ("Job", "CronJob", "Deployment", "StatefulSet", "DaemonSet", "ReplicaSet")
_FIRST = (*_OWNERS, "Pod")
_SECOND = ("HTTPRoute", "InferencePool", "Gateway", "Service")
# Never deleted, though they may have our labels: they are evidence, or are removed with their Service.
_NOT_OURS = ("Event", "PodMetrics", "NodeMetrics", "Endpoints", "EndpointSlice")


class TeardownError(ClusterError):
    """An object of this program is still on the cluster."""


@dataclass
class Removed:
    """The result of a teardown: what was removed, what was kept on purpose, and what could not be listed."""

    removed: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    unlisted: list[tuple[str, str]] = field(default_factory=list)
    """Kinds (plural) that this account may not list, and the namespace."""
    silent: list[str] = field(default_factory=list)
    """API versions whose server does not answer."""


def remove(
    api: Api,
    selector: str,
    namespaces: Sequence[str],
    *,
    kinds: Sequence[Kind] | None = None,
    remove_volumes: bool = False,
    timeout_s: float = 300.0,
    say: Say | None = None,
) -> Removed:
    """Delete every object with these labels and with this program's managed-by label; wait until they are gone.

    Looks in the given namespaces, which are kept, for the given kinds, or for all that the cluster serves. Persistent
    volume claims are kept unless `remove_volumes`. Raises TeardownError for objects that are not gone in time.
    """
    return _Teardown(api, ours(selector), namespaces, kinds, remove_volumes, timeout_s, say).run()


def ours(selector: str) -> str:
    """Restrict a selector to objects of this program; the empty selector means all of them."""
    own = f"{MANAGED_BY}={MANAGER}"
    return selector if own in selector.split(",") else ",".join(part for part in (own, selector) if part)


@dataclass
class _Teardown:
    api: Api
    selector: str
    namespaces: Sequence[str]
    kinds: Sequence[Kind] | None
    remove_volumes: bool
    timeout_s: float
    say: Say | None
    result: Removed = field(default_factory=Removed)
    _asked: set[str] = field(default_factory=set)
    _seen: dict[str, str] = field(default_factory=dict)
    _dark: set[Place] = field(default_factory=set)

    def run(self) -> Removed:
        """Delete until no place has an object left."""
        begin = time.monotonic()
        everywhere = [(one, name) for one in sorted(self._resources(), key=_rank) for name in self.namespaces]
        places, said_at = everywhere, begin
        while True:
            present = {place: self._present(*place) for place in places}
            left = [document for found in present.values() for document in found]
            now_there = {document["metadata"]["uid"]: described(document) for document in left}
            self.result.removed += [name for uid, name in self._seen.items() if uid not in now_there]
            self._seen = now_there
            if not left and places is everywhere:
                return self.result
            # Meanwhile an object may have been created elsewhere: the last look is at every place again.
            whole, places = places is everywhere, [place for place, found in present.items() if found] or everywhere
            for document in left:
                self._delete(document, left)
            now = time.monotonic()
            if now - begin >= _NODE_S and (nodes := self._awaited(left)):
                if whole:
                    self._keep_for(nodes, left)
                    return self.result
                places = everywhere
            if now - begin >= self.timeout_s:
                raise TeardownError(
                    f"cluster {self.api.server}: {len(left)} object(s) were not removed in {self.timeout_s:.0f} s: "
                    + "; ".join(_why(document) for document in left[:5]),
                    finalizers={described(one): one["metadata"].get("finalizers") or [] for one in left},
                )
            if self.say is not None and now - said_at >= _REPEAT_S:
                self.say(f"waiting for the removal of {len(left)} object(s): {', '.join(map(described, left[:3]))}")
                said_at = now
            time.sleep(_POLL_S)

    def _awaited(self, left: Sequence[Document]) -> set[str]:
        """Return the nodes that are not ready, if all objects left are being deleted and only wait for their pods."""
        pods = [document for document in left if document["kind"] == POD.kind]
        if not pods or not all(document["metadata"].get("deletionTimestamp") for document in left):
            return set()
        nodes = {str(pod["spec"].get("nodeName") or "") for pod in pods}
        with contextlib.suppress(ClusterError):
            if all(node and (found := self.api.read(NODE, node)) and unready(found) for node in nodes):
                return nodes
        return set()

    def _keep_for(self, nodes: set[str], left: Sequence[Document]) -> None:
        for document in left:
            self._keep(f"{described(document)} (removed once node {', '.join(sorted(nodes))} is back, or is deleted)")
            if self.say is not None:
                self.say(self.result.kept[-1])

    def _resources(self) -> list[Resource]:
        """Return the kinds to look for; which of them the account may not list is found out by trying."""
        if self.kinds is not None:
            return [found for kind in self.kinds if (found := self.api.find(kind)) is not None]
        served, silent = self.api.resources()
        self.result.silent += silent
        return [
            resource
            for resource in served
            if resource.namespaced and {"list", "delete"} <= resource.verbs and resource.kind.kind not in _NOT_OURS
        ]

    def _present(self, resource: Resource, namespace: str) -> list[Document]:
        """List the objects to delete."""
        if (resource, namespace) in self._dark:
            return []
        try:
            found = self.api.list(resource.kind, namespace, self.selector)
        except Refused as error:
            # An account that may not list a kind cannot have created one; a custom kind may also be removed meanwhile.
            if error.status not in (403, 404, 405):
                raise
            self._dark.add((resource, namespace))
            self.result.unlisted.append((resource.plural, namespace))
            return []
        if resource.kind != VOLUME_CLAIM or self.remove_volumes:
            return found
        for document in found:
            self._keep(f"{described(document)} (a volume, kept unless asked for)")
        return []

    def _keep(self, text: str) -> None:
        if text not in self.result.kept:
            self.result.kept.append(text)

    def _delete(self, document: Document, left: Sequence[Document]) -> None:
        metadata = document["metadata"]
        if metadata["uid"] in self._asked or metadata.get("deletionTimestamp"):
            return
        owners = {owner["uid"] for owner in metadata.get("ownerReferences") or [] if owner.get("controller")}
        # An object that a controller made is removed with it; if it were deleted first, it would be created again.
        if owners & {other["metadata"]["uid"] for other in left}:
            return
        # With foreground deletion, an owner stays until all that it owns is gone.
        propagation = "Foreground" if document["kind"] in _OWNERS else "Background"
        where = (metadata["name"], metadata.get("namespace", ""))
        self.api.delete(kind_of(document), *where, propagation, uid=metadata["uid"])
        self._asked.add(metadata["uid"])


def _rank(resource: Resource) -> int:
    kind = resource.kind.kind
    last = 3 if kind == VOLUME_CLAIM.kind else 2
    return next((rank for rank, kinds in enumerate((_FIRST, _SECOND)) if kind in kinds), last)


def _why(document: Mapping[str, Any]) -> str:
    metadata = document["metadata"]
    name = described(document)
    finalizers = metadata.get("finalizers") or []
    if finalizers:
        return f"{name} (held by finalizer {', '.join(finalizers)}: is the controller that removes it running?)"
    if document["kind"] == "Pod":
        node = (document.get("spec") or {}).get("nodeName", "its node")
        return f"{name} (its end is not confirmed: is {node} up? `kubectl delete --force` does not wait for that)"
    return f"{name} (does something else create it again?)" if not metadata.get("deletionTimestamp") else name
