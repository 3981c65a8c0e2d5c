"""Kinds that a cluster serves, and where: asked of the API server, so that custom kinds are found like all others."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from kveval.engines.kubernetes.api.errors import ClusterError
from kveval.engines.kubernetes.api.kinds import Kind, Resource
from kveval.engines.kubernetes.api.retry import RetryingClient


class Discovery:
    """Kinds of the API server; each API version is asked for once, and once more for a kind that is not in it."""

    def __init__(self, retrying: RetryingClient) -> None:
        self._retrying = retrying
        self._known: dict[str, dict[str, Resource]] = {}

    def find(self, kind: Kind) -> Resource | None:
        """Return where a kind is served, None when the cluster does not know it (yet)."""
        known = self._known.get(kind.api_version, {})
        if kind.kind not in known:
            # A custom kind may have been installed since.
            known = self._known[kind.api_version] = self._ask(kind.api_version)
        return known.get(kind.kind)

    def all(self) -> tuple[list[Resource], list[str]]:
        """Return every kind, in the version that its group prefers, and the versions that were not answered for."""
        groups = self._retrying.request("GET", "/apis").json().get("groups") or []
        versions = ["v1", *(group["preferredVersion"]["groupVersion"] for group in groups)]
        silent = []
        for version in versions:
            try:
                # 503 is how the API server says that the server behind a version (often metrics.k8s.io's) is down.
                self._known[version] = self._ask(version, final=(503,))
            except ClusterError as error:
                if error.status != 503:
                    raise
                silent.append(version)
        served = [kind for version in versions if version not in silent for kind in self._known[version].values()]
        return served, silent

    def _ask(self, version: str, final: Collection[int] = ()) -> dict[str, Resource]:
        path = f"/apis/{version}" if "/" in version else f"/api/{version}"
        try:
            reply = self._retrying.request("GET", path, final=final)
        except ClusterError as error:
            if error.status == 404:
                return {}
            raise
        return {resource.kind.kind: resource for resource in _resources(version, reply.json().get("resources") or [])}


def _resources(version: str, entries: Iterable[Mapping[str, Any]]) -> Iterator[Resource]:
    for entry in entries:
        if "/" not in entry["name"]:  # pods/log and the like are no kinds of their own
            kind = Kind(version, entry["kind"])
            yield Resource(kind, entry["name"], bool(entry["namespaced"]), frozenset(entry.get("verbs") or ()))
