"""Removing what is ours from a cluster, all of it and nothing else, and staying until it is gone."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kveval.engines.kubernetes.api.client import Api
from kveval.engines.kubernetes.api.errors import ClusterError, Refused
from kveval.engines.kubernetes.api.kinds import (
    CONFIG_MAP,
    NAMESPACE,
    POD,
    SECRET,
    VOLUME_CLAIM,
    Document,
    Kind,
    Resource,
    described,
    kind_of,
)
from kveval.engines.kubernetes.api.names import MANAGED_BY, MANAGER

Say = Callable[[str], None]

_POLL_S = 0.5
_REPEAT_S = 15.0
# What works goes first, then what leads to it, then what it needed; a namespace last, for it takes all with it.
_OWNERS = ("Job", "CronJob", "Deployment", "StatefulSet", "DaemonSet", "ReplicaSet")
_FIRST = (*_OWNERS, "Pod")
_SECOND = ("HTTPRoute", "InferencePool", "Gateway", "Service", "Endpoints", "EndpointSlice")
_LAST = ("PersistentVolumeClaim", "ClusterRoleBinding", "ClusterRole", "PersistentVolume", "Namespace")
# Never ours to delete, though they may bear our labels: they tell what happened, and go by themselves.
_HISTORY = ("Event", "PodMetrics", "NodeMetrics")
# In every namespace, made by the cluster.
_NATIVE_MAPS = ("kube-root-ca.crt", "openshift-service-ca.crt", "istio-ca-root-cert")


class TeardownError(ClusterError):
    """Something of ours is still on the cluster."""


@dataclass
class Removed:
    """The result of a teardown: what is gone, what was kept on purpose, and what could not be looked at."""

    removed: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    unlisted: list[tuple[str, str]] = field(default_factory=list)
    """Kinds (plural) that this account may not list, and the namespace, '' for the whole cluster."""
    silent: list[str] = field(default_factory=list)
    """API versions whose server does not answer."""


def remove(
    api: Api,
    selector: str,
    namespaces: Sequence[str],
    *,
    kinds: Sequence[Kind] | None = None,
    cluster_wide: bool = True,
    remove_volumes: bool = False,
    timeout_s: float = 300.0,
    say: Say | None = None,
) -> Removed:
    """Delete every object with these labels, and with our managed-by label, and wait until they are gone.

    Looks in the given namespaces and, `cluster_wide`, at what belongs to none; at the given kinds, or at all that the
    cluster serves. Persistent volume claims are kept unless `remove_volumes`, and with them a namespace of ours that
    holds them; a namespace that holds something not ours is kept as well. Raises TeardownError for what does not go.
    """
    return _Teardown(api, ours(selector), namespaces, kinds, cluster_wide, remove_volumes, timeout_s, say).run()


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
    cluster_wide: bool
    remove_volumes: bool
    timeout_s: float
    say: Say | None
    result: Removed = field(default_factory=Removed)
    _asked: set[str] = field(default_factory=set)
    _seen: dict[str, str] = field(default_factory=dict)
    _dark: set["_Place"] = field(default_factory=set)

    def run(self) -> Removed:
        """Delete until a look at every place finds nothing any more."""
        begin = time.monotonic()
        everywhere = self._places()
        places, said_at = everywhere, begin
        while True:
            present = {place: self._present(place) for place in places}
            left = [document for found in present.values() for document in found]
            self._note_gone(left)
            if not left and places is everywhere:
                return self.result
            # Meanwhile something may have been made elsewhere: the last look is at every place again.
            places = [place for place, found in present.items() if found] or everywhere
            for document in left:
                self._delete(document, left)
            now = time.monotonic()
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

    # --- finding

    def _resources(self) -> list[Resource]:
        """Return the kinds to look at; of those that the account may not list it is found out by trying."""
        if self.kinds is not None:
            return [found for kind in self.kinds if (found := self.api.find(kind)) is not None]
        served, silent = self.api.resources()
        self.result.silent += silent
        return [
            resource
            for resource in served
            if {"list", "delete"} <= resource.verbs and resource.kind.kind not in _HISTORY
        ]

    def _places(self) -> list["_Place"]:
        """Return where to look, in the order in which to delete."""
        found = []
        for resource in sorted(self._resources(), key=lambda resource: _rank(resource.kind.kind)):
            wide: Sequence[str] = ("",) if self.cluster_wide else ()
            found += [_Place(resource, name) for name in (self.namespaces if resource.namespaced else wide)]
        return found

    def _present(self, place: "_Place") -> list[Document]:
        """List what is ours and is to be deleted."""
        if place in self._dark:
            return []
        try:
            found = self.api.list(place.resource.kind, place.namespace, self.selector)
        except Refused as error:
            # An account that may not list a kind could not have made one; a kind may also go while we look (its CRD).
            if error.status not in (403, 404, 405):
                raise
            self._dark.add(place)
            self.result.unlisted.append((place.resource.plural, place.namespace))
            return []
        return [document for document in found if not self._keeps(document)]

    def _keeps(self, document: Document) -> bool:
        if document["kind"] == VOLUME_CLAIM.kind and not self.remove_volumes:
            self._keep(f"{described(document)} (a volume, kept unless asked for)")
            return True
        if document["kind"] == NAMESPACE.kind and not document["metadata"].get("deletionTimestamp"):
            foreign = self._foreign_objects(document["metadata"]["name"])
            if foreign:
                self._keep(f"{described(document)} (holds {', '.join(foreign[:3])})")
                return True
        return False

    def _keep(self, text: str) -> None:
        if text not in self.result.kept:
            self.result.kept.append(text)

    def _foreign_objects(self, namespace: str) -> list[str]:
        """Name what would be lost with a namespace although it is not ours, or is to be kept."""
        found = []
        for kind in (POD, VOLUME_CLAIM, CONFIG_MAP, SECRET, Kind("v1", "Service"), Kind("apps/v1", "Deployment")):
            try:
                listed = self.api.list(kind, namespace)
            except Refused as error:
                if error.status != 403:
                    raise
                found.append(f"{kind.kind}s that this account may not list")
                continue
            for document in listed:
                metadata = document["metadata"]
                own = (metadata.get("labels") or {}).get(MANAGED_BY) == MANAGER
                if own and not (kind == VOLUME_CLAIM and not self.remove_volumes):
                    continue
                if not own and (metadata.get("ownerReferences") or _is_native(document)):
                    continue
                found.append(described(document))
        return found

    # --- deleting

    def _delete(self, document: Document, left: Sequence[Document]) -> None:
        metadata = document["metadata"]
        if metadata["uid"] in self._asked or metadata.get("deletionTimestamp"):
            return
        owners = {owner["uid"] for owner in metadata.get("ownerReferences") or []}
        # What belongs to something goes with it: deleted first, its owner would make it anew.
        if owners & {other["metadata"]["uid"] for other in left}:
            return
        # Endpoints have their Service's name and labels and go with it, though nothing says so.
        if document["kind"] == "Endpoints" and any(_is_service_of(other, metadata) for other in left):
            return
        # In the foreground an owner stays until all that it owns is gone.
        propagation = "Foreground" if document["kind"] in _OWNERS else "Background"
        namespace = metadata.get("namespace", "")
        self.api.delete(kind_of(document), metadata["name"], namespace, propagation, uid=metadata["uid"])
        self._asked.add(metadata["uid"])

    def _note_gone(self, left: Sequence[Document]) -> None:
        present = {document["metadata"]["uid"]: described(document) for document in left}
        self.result.removed += [name for uid, name in self._seen.items() if uid not in present]
        self._seen = present


class _Place(NamedTuple):
    """One kind in one namespace, or in none."""

    resource: Resource
    namespace: str


def _is_service_of(document: Mapping[str, Any], endpoints: Mapping[str, Any]) -> bool:
    metadata = document["metadata"]
    same = (metadata["name"], metadata.get("namespace")) == (endpoints["name"], endpoints.get("namespace"))
    return bool(same and document["kind"] == "Service")


def _is_native(document: Mapping[str, Any]) -> bool:
    name = document["metadata"]["name"]
    if document["kind"] == "Secret":
        return document.get("type") in ("kubernetes.io/service-account-token", "kubernetes.io/dockercfg")
    return document["kind"] == "ConfigMap" and name in _NATIVE_MAPS


def _rank(kind: str) -> int:
    for rank, kinds in enumerate((_FIRST, _SECOND)):
        if kind in kinds:
            return rank
    return 3 + _LAST.index(kind) if kind in _LAST else 2


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
