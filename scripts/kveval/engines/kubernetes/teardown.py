"""Removing what is ours from a cluster, all of it and nothing else, and staying until it is gone."""

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
# After what time a pod that does not go is asked after its node: longer than its own grace.
_NODE_S = 35.0
# What works goes first, then what leads to it, then what it needed.
_OWNERS = ("Job", "CronJob", "Deployment", "StatefulSet", "DaemonSet", "ReplicaSet")
_FIRST = (*_OWNERS, "Pod")
_SECOND = ("HTTPRoute", "InferencePool", "Gateway", "Service")
# Never ours to delete, though they may bear our labels: they tell what happened, or go with their Service.
_NOT_OURS = ("Event", "PodMetrics", "NodeMetrics", "Endpoints", "EndpointSlice")


class TeardownError(ClusterError):
    """Something of ours is still on the cluster."""


@dataclass
class Removed:
    """The result of a teardown: what is gone, what was kept on purpose, and what could not be looked at."""

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
    """Delete every object with these labels, and with our managed-by label, and wait until they are gone.

    Looks in the given namespaces, which stay, at the given kinds, or at all that the cluster serves. Persistent volume
    claims are kept unless `remove_volumes`. Raises TeardownError for what does not go.
    """
    return _Teardown(api, ours(selector), namespaces, kinds, remove_volumes, timeout_s, say).run()


def ours(selector: str) -> str:
    """Narrow a selector to what this program made; the empty one means all of that."""
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
        """Delete until a look at every place finds nothing any more."""
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
            # Meanwhile something may have been made elsewhere: the last look is at every place again.
            places = [place for place, found in present.items() if found] or everywhere
            for document in left:
                self._delete(document, left)
            now = time.monotonic()
            if now - begin >= _NODE_S and self._awaits_nodes(left):
                return self.result
            if now - begin >= self.timeout_s:
                raise TeardownError(
                    f"cluster {self.api.server}: {len(left)} object(s) of ours did not go in {self.timeout_s:.0f} s: "
                    + "; ".join(_why(document) for document in left[:5]),
                    finalizers={described(one): one["metadata"].get("finalizers") or [] for one in left},
                )
            if self.say is not None and now - said_at >= _REPEAT_S:
                self.say(f"waiting for {len(left)} object(s) to go: {', '.join(map(described, left[:3]))}")
                said_at = now
            time.sleep(_POLL_S)

    def _awaits_nodes(self, left: Sequence[Document]) -> bool:
        """Whether all that is left is deleted, and its pods stay until their nodes, which are not ready, are back."""
        pods = [document for document in left if document["kind"] == POD.kind]
        if not pods or not all(document["metadata"].get("deletionTimestamp") for document in left):
            return False
        nodes = {str(pod["spec"].get("nodeName") or "") for pod in pods}
        with contextlib.suppress(ClusterError):
            if all(node and (found := self.api.read(NODE, node)) and unready(found) for node in nodes):
                for document in left:
                    self._keep(f"{described(document)} (it goes when node {', '.join(nodes)} is back, or is removed)")
                    if self.say is not None:
                        self.say(self.result.kept[-1])
                return True
        return False

    def _resources(self) -> list[Resource]:
        """Return the kinds to look at; of those that the account may not list it is found out by trying."""
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
        """List what is ours and is to be deleted."""
        if (resource, namespace) in self._dark:
            return []
        try:
            found = self.api.list(resource.kind, namespace, self.selector)
        except Refused as error:
            # An account that may not list a kind could not have made one; a kind may also go while we look (its CRD).
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
        # What a controller made goes with it: deleted first, it would be made anew.
        if owners & {other["metadata"]["uid"] for other in left}:
            return
        # In the foreground an owner stays until all that it owns is gone.
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
        return f"{name} (its end is not confirmed: is {node} up? `kubectl delete --force` gives the pod up)"
    return f"{name} (is it being made again by something else?)" if not metadata.get("deletionTimestamp") else name
