"""HTTP on the loopback interface: one request, and a free port."""

import http.client
import json
import socket
import urllib.request
from typing import Any

from kveval.host.errors import Failure


class HttpError(Failure):
    """No answer, or not a good one."""


def fetch(url: str, *, method: str = "GET", body: object = None, timeout_s: float = 30.0) -> bytes:
    """Send one HTTP request and return the body of a good answer. Raises HttpError."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, method=method, headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            content: bytes = answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise HttpError(f"{method} {url} failed: {error}") from error
    return content


def request(url: str, *, method: str = "GET", body: object = None, timeout_s: float = 30.0) -> Any:
    """Send one HTTP request and return the decoded JSON answer, or None when the answer is not JSON."""
    content = fetch(url, method=method, body=body, timeout_s=timeout_s)
    try:
        return json.loads(content)
    except ValueError:
        return None


def free_port() -> int:
    """Return a TCP port of the loopback interface that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
