"""Many small concurrent requests to an API server, whatever it answers, and the offset of its clock."""

import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from kveval.engines.kubernetes.api.errors import Unreachable
from kveval.engines.kubernetes.api.transport import KubernetesTransport, Query

T = TypeVar("T")
R = TypeVar("R")
_TIMEOUT_S = 60.0
_AT_ONCE = 8
_BUSY = (429, 502, 503, 504)
_ATTEMPTS = 4


@dataclass(frozen=True)
class Answer:
    """An answer of the API server: HTTP status, the object (a Status for a refusal) and its warnings."""

    status: int
    body: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def found(self) -> bool:
        """Whether the object is there, or was accepted."""
        return self.status in (200, 201)

    @property
    def denied(self) -> bool:
        """Whether the account lacks the right to do this."""
        return self.status == 403

    @property
    def message(self) -> str:
        """The server's own words for a refusal."""
        return str(self.body.get("message", "")) or f"HTTP {self.status}"


@dataclass(frozen=True)
class Bounds:
    """Bounds of the difference of two clocks, in seconds: from `low` to `high`."""

    low: float
    high: float

    def and_(self, other: "Bounds") -> "Bounds":
        """Return the intersection of both; `low` exceeds `high` if it is empty."""
        return Bounds(max(self.low, other.low), min(self.high, other.high))

    def beyond(self, limit_s: float) -> bool:
        """Tell whether the difference certainly exceeds `limit_s`."""
        return self.low > limit_s or self.high < -limit_s


class Asking:
    """Requests to one API server; safe to use from several threads."""

    def __init__(self, transport: KubernetesTransport) -> None:
        self._transport = transport
        self._lock = threading.Lock()
        self.server = transport.server
        self.ahead: Bounds | None = None
        """How far this host's clock is ahead of the server's, from the date of every answer; None before the first."""

    def get(self, path: str, **query: str) -> Answer:
        """Send a GET request and return the answer. Raises Unreachable."""
        return self.request("GET", path, query)

    def request(self, method: str, path: str, query: Query, body: Any = None, content: str = "json") -> Answer:
        """Send one request and return the answer, which may be a refusal. Raises Unreachable if there is none.

        A request that the server is too busy to answer is retried a few times.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                answer = self._once(method, path, query, body, content)
            except Unreachable:
                if attempt == _ATTEMPTS:
                    raise
            else:
                if answer.status not in _BUSY or attempt == _ATTEMPTS:
                    return answer
            time.sleep(0.25 * 2**attempt)
        raise AssertionError("unreachable")

    def _once(self, method: str, path: str, query: Query, body: Any, content: str) -> Answer:
        begin = time.time()
        reply = self._transport.request(method, path, query, body, content, _TIMEOUT_S)
        end = time.time()
        headers = {name.lower(): value for name, value in reply.headers.items()}
        if "date" in headers:
            # Truncated to whole seconds: the server's clock was in [date, date + 1) between `begin` and `end`.
            date = parsedate_to_datetime(headers["date"]).timestamp()
            seen = Bounds(begin - date - 1, end - date)
            with self._lock:
                self.ahead = seen if self.ahead is None else self.ahead.and_(seen)
        return Answer(reply.status, reply.json(), _warnings(headers.get("warning", "")))


def every(things: Iterable[T], do: Callable[[T], R]) -> list[R]:
    """Call `do` with each of `things` concurrently and return the results in order. Raises the first failure."""
    found = list(things)
    if len(found) == 1:
        return [do(found[0])]
    with ThreadPoolExecutor(_AT_ONCE) as together:
        return list(together.map(do, found))


def _warnings(header: str) -> tuple[str, ...]:
    """Return the texts of a Warning header: `299 - "text", 299 - "text"`, with quotes escaped by a backslash."""
    texts = [re.sub(r"\\(.)", r"\1", text) for text in re.findall(r'"((?:[^"\\]|\\.)*)"', header)]
    return tuple(dict.fromkeys(texts))
