"""Plain HTTP without a proxy, mostly to the loopback interface; a free port."""

import http.client
import json
import socket
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

from kveval.host.errors import Failure

# A proxy in the environment could not reach this host's own servers.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
DIRECT_LOOPBACK = dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost,::1")
"""Environment variables for programs that must not use a proxy for the loopback interface either."""


class HttpError(Failure):
    """No answer, or one with a status other than success."""


def fetch(
    url: str,
    *,
    method: str = "GET",
    body: object = None,
    timeout_s: float = 30.0,
    key: str = "",
) -> bytes:
    """Send one HTTP request and return the body of a successful answer. Raises HttpError, ValueError for a bad URL.

    `key`: sent as a bearer's token.
    """
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    request = urllib.request.Request(url, data=data, method=method, headers=headers)
    try:
        with _DIRECT.open(request, timeout=timeout_s) as answer:
            content: bytes = answer.read()
    except (OSError, http.client.HTTPException) as error:
        status = error.code if isinstance(error, urllib.error.HTTPError) else None
        raise HttpError(
            f"{method} {url} failed: {error}", method=method, url=url, status=status
        ) from error
    return content


def fetch_from(server: str, key: str = "") -> Callable[..., bytes]:
    """Return `fetch` for the paths of one server: (path, method, body, timeout_s)."""

    def fetched(
        path: str, method: str = "GET", body: object = None, timeout_s: float = 30.0
    ) -> bytes:
        url = f"{server}{path}"
        return fetch(url, method=method, body=body, timeout_s=timeout_s, key=key)

    return fetched


def request(
    url: str, *, method: str = "GET", body: object = None, timeout_s: float = 30.0
) -> Any:
    """Send one HTTP request and return the decoded JSON answer, or None if the answer is not JSON."""
    return decoded(fetch(url, method=method, body=body, timeout_s=timeout_s))


def decoded(content: bytes) -> Any:
    """Return the value of a JSON body, None if it is not JSON."""
    try:
        return json.loads(content)
    except ValueError:
        return None


def free_port() -> int:
    """Return a TCP port of the loopback interface that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
