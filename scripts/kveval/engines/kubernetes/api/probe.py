"""Many small concurrent requests to an API server, whatever it answers, and the offset of its clock."""

import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from kveval.engines.kubernetes.api.client import Api
from kveval.engines.kubernetes.api.errors import ClusterError
from kveval.engines.kubernetes.api.transport import Query, Reply

T = TypeVar("T")
R = TypeVar("R")
_TIMEOUT_S = 60.0
_AT_ONCE = 8


@dataclass(frozen=True)
class Answer:
    """An answer of the API server: HTTP status, the object (a Status for a refusal) and its warnings."""

    status: int
    body: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
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


class Probe:
    """Asks one API server, and takes refusals for answers; safe to use from several threads."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._lock = threading.Lock()
        self.ahead: Bounds | None = None
        """How far this host's clock is ahead of the server's, from the date of every answer; None before the first."""

    def get(self, path: str, **query: str) -> Answer:
        """Send a GET request and return the answer. Raises ClusterError if there is none."""
        return self.request("GET", path, query)

    def request(
        self,
        method: str,
        path: str,
        query: Query,
        body: Any = None,
        content: str = "json",
    ) -> Answer:
        """Send one request and return the answer, which may be a refusal. Raises ClusterError if there is none."""

        def timed() -> Reply:
            begin = time.time()
            reply = self._api.once(
                method,
                path,
                query=query,
                body=body,
                content=content,
                timeout_s=_TIMEOUT_S,
            )
            self._narrow(begin, reply.headers.get("Date"))
            return reply

        try:
            reply = self._api.keep_trying(timed, final=(500,))
        except ClusterError as error:
            if error.status is None:
                raise
            return Answer(
                error.status, {"message": error.facts.get("said", str(error))}
            )
        return Answer(
            reply.status, reply.json(), _warnings(reply.headers.get("Warning", ""))
        )

    def _narrow(self, begin: float, date: str | None) -> None:
        end = time.time()
        if date is not None:
            # Truncated to whole seconds: the server's clock was in [date, date + 1) between `begin` and `end`.
            whole = parsedate_to_datetime(date).timestamp()
            seen = Bounds(begin - whole - 1, end - whole)
            with self._lock:
                self.ahead = seen if self.ahead is None else self.ahead.and_(seen)


def map_concurrently(things: Iterable[T], do: Callable[[T], R]) -> list[R]:
    """Call `do` with each of `things` concurrently and return the results in order. Raises the first failure."""
    items = list(things)
    if len(items) == 1:
        return [do(items[0])]
    with ThreadPoolExecutor(_AT_ONCE) as together:
        return list(together.map(do, items))


def _warnings(header: str) -> tuple[str, ...]:
    """Return the texts of a Warning header: `299 - "text", 299 - "text"`, with quotes escaped by a backslash."""
    texts = [
        re.sub(r"\\(.)", r"\1", text)
        for text in re.findall(r'"((?:[^"\\]|\\.)*)"', header)
    ]
    return tuple(dict.fromkeys(texts))
