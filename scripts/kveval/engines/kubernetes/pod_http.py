"""HTTP to one pod: directly if a URL leads to it, otherwise by the API server's proxy, which needs no route to pods."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from kveval.engines.kubernetes.api.errors import AWAY, ClusterError
from kveval.engines.kubernetes.api.kinds import POD
from kveval.engines.kubernetes.manifests.context import RunContext
from kveval.engines.kubernetes.manifests.rendering import place as filled_url
from kveval.engines.servers.protocol import Fetch
from kveval.engines.watchdog import WAY_LOST
from kveval.host.http import HttpError, fetch_from


def fetch_from_pod(place: RunContext, pod: Mapping[str, Any], port: int) -> Fetch:
    """Return what sends requests to one port of one pod; it raises HttpError."""
    if direct := direct_url(place, port):
        return fetch_from(direct)
    api, namespace, name = place.api, place.namespace, str(pod["metadata"]["name"])
    target = f"{POD.path(namespace, f'{name}:{port}')}/proxy"

    def fetched(path: str, method: str = "GET", body: object = None, timeout_s: float = 30.0) -> bytes:
        path, _, query = path.partition("?")
        pairs = dict(parse_qsl(query))
        try:
            # Not retried, because a status here may be the answer of the proxied server.
            answer = api.of_pod(
                namespace,
                name,
                lambda: api.once(method, target + path, query=pairs, body=body, timeout_s=timeout_s),
                final=AWAY,
            )
        except ClusterError as error:
            # Without a status nothing is known about the pod: the API server, or the pod's node, does not answer.
            code = WAY_LOST if error.status is None else ""
            raise HttpError(f"{method} {path} of pod {name} failed: {error}", code=code, pod=name) from error
        return answer.body

    return fetched


def direct_url(place: RunContext, port: int) -> str | None:
    """Return the URL of a port if pods share one network with this program, None if they have their own."""
    site = place.site
    if not site.shared_network or site.address in ("gateway", "service"):
        return None
    return filled_url(site.address, place, port)
