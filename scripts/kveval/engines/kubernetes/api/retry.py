"""Retries: an API server may be restarted, upgraded or busy while a measurement runs."""

import random
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from kveval.engines.kubernetes.api.errors import AWAY, ClusterError, Unreachable
from kveval.engines.kubernetes.api.transport import KubernetesTransport, Query, Reply

OUTAGE_S = 300.0
"""Seconds for which an API server may be unavailable: a managed control plane's upgrade takes a few minutes."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0
# Right after its start an API server does not know all roles and custom kinds yet, and refuses what needs them.
_SETTLING_S = 20.0
_UNSETTLED = (401, 403, 404)
_REMIND_S = 30.0
_TOO_MANY_REQUESTS = 429
_NEVER_SERVED = (501, 505)
# Some versions answer an invalid document with status 500 and these words.
_HOPELESS = ("failed to create typed",)

Result = TypeVar("Result")


@dataclass
class RetryingClient:
    """Requests that are retried while the API server is unavailable, each for up to `outage_s` seconds."""

    transport: KubernetesTransport
    outage_s: float = OUTAGE_S
    say: Callable[[str], None] | None = None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    ahead: timedelta = field(default=timedelta(), repr=False)
    """How far the API server's clock is ahead of this machine's, within a second."""
    _lost_at: float = field(default=float("-inf"), repr=False)

    def request(
        self,
        method: str,
        path: str,
        query: Query | None = None,
        body: Any = None,
        content: str = "json",
        timeout_s: float = 30.0,
        final: Collection[int] = (),
    ) -> Reply:
        """Return a 2xx answer. Raises Refused with any other final answer, ClusterError after `outage_s` of retries.

        `final`: statuses not to retry here, though they often mean that the API server is unavailable.
        """

        return self.keep_trying(lambda: self.once(method, path, query, body, content, timeout_s), final)

    def once(
        self,
        method: str,
        path: str,
        query: Query | None = None,
        body: Any = None,
        content: str = "json",
        timeout_s: float = 30.0,
    ) -> Reply:
        """Send a request once and return a 2xx answer. Raises Refused with any other, Unreachable without one."""
        reply = self.transport.request(method, path, query or {}, body, content, timeout_s)
        if date := reply.headers.get("Date"):
            self.ahead = parsedate_to_datetime(date) - datetime.now(UTC)
        if not 200 <= reply.status < 300:
            raise reply.refusal(self.transport.server, f"{method} {path}")
        return reply

    def keep_trying(self, once: Callable[[], Result], final: Collection[int] = ()) -> Result:
        """Return what `once` returns, retried while it fails for a temporary reason. Raises ClusterError."""
        begin = self.clock()
        pause, reminded = _FIRST_PAUSE_S, begin
        while True:
            try:
                return once()
            except ClusterError as error:
                now = self.clock()
                if error.status in final or not self._passes(error, now):
                    raise
                lasted_s = now - begin
                if lasted_s >= self.outage_s:
                    server = self.transport.server
                    said = f"cluster {server}: no usable answer for {lasted_s:.0f} s; last: {error}; "
                    said += "is the API server up, and is this the right kubeconfig and context?"
                    facts = {"server": server, "lasted_s": lasted_s}
                    raise ClusterError(said, error.status, error.reason, code="no_usable_answer", **facts) from error
                if self.say is not None and now - reminded >= _REMIND_S:
                    self.say(f"the cluster's API server has not answered for {lasted_s:.0f} s ({error}); still trying")
                    reminded = now
                # Random, so that the cells of a campaign do not all retry at the same moment.
                self.sleep(min(pause * random.uniform(0.7, 1.0), max(0.0, begin + self.outage_s - now)))
                pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _passes(self, error: ClusterError, now: float) -> bool:
        if any(words in str(error) for words in _HOPELESS):
            return False
        if isinstance(error, Unreachable) or error.status in AWAY:
            self._lost_at = now
            return True
        if error.status is None or error.status in _NEVER_SERVED:
            return False
        if error.status == _TOO_MANY_REQUESTS or error.status >= 500:
            return True
        # The 404 of a missing object has a reason; that of a path that is not served (yet) has none.
        unsettled = error.status in _UNSETTLED and not (error.status == 404 and error.reason)
        return unsettled and now - self._lost_at < _SETTLING_S
