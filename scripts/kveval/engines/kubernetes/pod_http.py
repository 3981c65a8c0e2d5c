"""HTTP to one pod: directly if a URL leads to it, otherwise by the API server's proxy, which needs no route to pods."""

from collections.abc import Mapping
from typing import Any

from kveval.engines.kubernetes.api.errors import AWAY, ClusterError
from kveval.engines.kubernetes.api.kinds import POD
from kveval.engines.kubernetes.manifests.rendering import place as filled_url
from kveval.engines.kubernetes.run_place import RunContext
from kveval.host.http import HttpError, decoded, fetch


class Reach:
    """HTTP requests to one port of one pod."""

    def __init__(self, place: RunContext, pod: Mapping[str, Any], port: int) -> None:
        self._place = place
        self._pod = str(pod["metadata"]["name"])
        self._port = port
        self.direct = direct_url(place, port)

    def __str__(self) -> str:
        return self.direct or f"{self._place.namespace}/{self._pod}:{self._port}"

    def page(self, path: str, method: str = "GET", body: object = None, timeout_s: float = 30.0) -> bytes:
        """Send one request and return the body of a 2xx answer. Raises HttpError."""
        if self.direct is not None:
            return fetch(f"{self.direct}{path}", method=method, body=body, timeout_s=timeout_s)
        path, _, query = path.partition("?")
        pairs = dict(pair.partition("=")[::2] for pair in query.split("&") if pair)
        api, namespace = self._place.api, self._place.namespace
        target = f"{POD.path(namespace, f'{self._pod}:{self._port}')}/proxy{path}"
        try:
            # Not retried, because a status here may be the answer of the proxied server.
            answer = api.of_pod(
                namespace,
                self._pod,
                lambda: api.once(method, target, query=pairs, body=body, timeout_s=timeout_s),
                final=AWAY,
            )
        except ClusterError as error:
            raise HttpError(f"{method} {path} of pod {self._pod} failed: {error}", pod=self._pod) from error
        return answer.body

    def ask(self, path: str, method: str = "GET", body: object = None, timeout_s: float = 30.0) -> Any:
        """Send one request and return the decoded JSON answer, or None when the answer is not JSON."""
        return decoded(self.page(path, method, body, timeout_s))


def direct_url(place: RunContext, port: int) -> str | None:
    """Return the URL of a port if pods share one network with this program, None if they have their own."""
    site = place.site
    if not site.shared_network or site.address in ("gateway", "service"):
        return None
    return filled_url(site.address, place, port)
