"""The server's counters, set against what was sent: what served a request, and what others sent in the meantime."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from kveval.engines.watchdog import read_work
from kveval.host.http import HttpError
from kveval.plugins.attach.client import Client, StreamedAnswer
from kveval.stacks.counters import CounterError, parse_counters
from kveval.stacks.running_server import RunningServer

_SETTLED_S = 1.0
_UNCOUNTED_REQUESTS = 3
# Of what we sent; with less the counters are those of one of several servers.
_COUNTED_SHARE = 0.95
_NAMED_SHARE, _LARGE_SHARE = 0.02, 0.10
"""Shares of others' traffic from which it is named, and from which no time is one of a quiet server."""


@dataclass(frozen=True)
class Counts:
    """A server's counters at a moment: tokens, requests and bytes since its start; None for what it does not count."""

    prompt_tokens: float | None = None
    requests: float | None = None
    device_tokens: float | None = None
    tier_tokens: float | None = None
    store_bytes: float | None = None
    load_bytes: float | None = None

    def since(self, before: "Counts") -> "Counts":
        """Return by how much each has risen."""
        return Counts(*map(_rise, _values(before), _values(self)))


@dataclass(frozen=True)
class Window:
    """A request with what the counters rose by during it.

    `own`: whether they rose by this request alone. If not, what served it is known from its usage, or not at all.
    """

    answer: StreamedAnswer
    rise: Counts
    own: bool


@dataclass(frozen=True)
class ForeignTraffic:
    """The traffic of others while we measured, as shares of all, 0 to 1; None where the counters do not tell it.

    `counted_share`: of what we sent, what the counters have: less than 1 means that they are those of another server.
    `running_most`: requests that ran or waited at once before we sent any.
    """

    prompt_share: float | None = None
    request_share: float | None = None
    counted_share: float | None = None
    running_most: int = 0

    @property
    def share(self) -> float | None:
        """The larger of the two shares."""
        known = [
            share
            for share in (self.prompt_share, self.request_share)
            if share is not None
        ]
        return max(known, default=None)

    @property
    def size(self) -> str:
        """ "unknown", "none", "named" (above 2 %) or "large" (above 10 %)."""
        if self.share is None:
            return "unknown"
        if self.share > _LARGE_SHARE:
            return "large"
        return "named" if self.share > _NAMED_SHARE else "none"


@dataclass
class Meter:
    """Reads the counters of a server; `closed` says why there are none."""

    client: Client
    program: RunningServer
    closed: str = ""
    running_most: int = 0
    elsewhere: bool = False
    """Whether the counters were found to be those of another server."""
    _running: int = 0
    _uncounted: int = 0
    _first: Counts = field(default_factory=Counts)
    _last: Counts = field(default_factory=Counts)
    _sent_before: tuple[int, int] = (0, 0)

    def begin(self, quiet_s: float) -> None:
        """Read the counters for the first time, and look for so long what others do before anything is sent."""
        self._first = self._last = self.read()
        running = self._running
        if not self.closed:
            time.sleep(quiet_s)
            self._last = self.read()
        # Later it may have ours: some servers renew it at intervals.
        self.running_most = max(running, self._running)
        self._sent_before = (self.client.requests, self.client.prompt_tokens)

    @property
    def at_start(self) -> Counts:
        """The counters before anything was measured: of all traffic since the server's start."""
        return self._first

    @property
    def so_far(self) -> Counts:
        """By how much the counters rose since the first reading."""
        return self._last.since(self._first)

    def read(self) -> Counts:
        """Return the counters now; without a value where there are none."""
        if self.closed:
            return Counts()
        try:
            page = self.client.metrics_page(self.program.metrics_path)
            counters = parse_counters(page, self.program.prefix)
            self._running = int(read_work(page, self.program).requests)
        except (HttpError, CounterError, ValueError) as error:
            self.closed = str(error)
            return Counts()
        if not counters:
            self.closed = f"its metrics have none of {self.program.title}"
            return Counts()
        return self._counts(counters)

    def window(self, answer: StreamedAnswer) -> Window:
        """Return a request that was just answered with what the counters rose by since they were last read.

        Waits at most a second for the counters to have it.
        """
        deadline = time.monotonic() + _SETTLED_S
        while True:
            counts = self.read()
            rise = counts.since(self._last)
            missing = rise.prompt_tokens is not None and (
                rise.prompt_tokens < answer.prompt_tokens
            )
            if not missing or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        self._last = counts
        self._note_counted(rise)
        return Window(answer, rise, own=rise.prompt_tokens == answer.prompt_tokens)

    def _note_counted(self, rise: Counts) -> None:
        """Close the metrics after some requests of which they count none."""
        self._uncounted = self._uncounted + 1 if rise.prompt_tokens == 0 else 0
        if self._uncounted >= _UNCOUNTED_REQUESTS:
            self.elsewhere = True
            self.closed = "the metrics here do not count our requests: they are those of another server"

    @property
    def several_servers(self) -> bool:
        """Whether requests were answered that these counters do not have, as behind a balancer."""
        counted = self.foreign().counted_share
        return self.elsewhere or (counted is not None and counted < _COUNTED_SHARE)

    def settle(self) -> None:
        """Wait at most a second until the counters have what was sent last."""
        deadline = time.monotonic() + _SETTLED_S
        self.skip()
        while self.several_servers and not self.closed and time.monotonic() < deadline:
            time.sleep(0.05)
            self.skip()

    def running_now(self) -> int:
        """Return how many requests run or wait while none of ours does; 0 where it is not known.

        Some servers renew the number at intervals: what is still counted after a second is no request of ours.
        """
        deadline = time.monotonic() + _SETTLED_S
        while True:
            self._last = self.read()
            if self.closed or not self._running or time.monotonic() > deadline:
                return 0 if self.closed else self._running
            time.sleep(0.05)

    def skip(self) -> None:
        """Read the counters, so that the next window begins now."""
        self._last = self.read()

    def foreign(self) -> ForeignTraffic:
        """Return what others sent since the first reading."""
        rise = self.so_far
        requests, tokens = (
            now - before
            for now, before in zip(
                (self.client.requests, self.client.prompt_tokens),
                self._sent_before,
                strict=True,
            )
        )
        counted = None
        if rise.prompt_tokens is not None and tokens:
            counted = min(1.0, rise.prompt_tokens / tokens)
        if self.closed or (counted is not None and counted < _COUNTED_SHARE):
            return ForeignTraffic(counted_share=counted, running_most=self.running_most)
        return ForeignTraffic(
            prompt_share=_foreign_share(rise.prompt_tokens, tokens),
            request_share=_foreign_share(rise.requests, requests),
            counted_share=counted,
            running_most=self.running_most,
        )

    def _counts(self, counters: Mapping[str, float]) -> Counts:
        program = self.program
        return Counts(
            prompt_tokens=program.counted("prompt_tokens", counters),
            requests=program.counted("requests_completed", counters),
            device_tokens=program.served_tokens(counters, tier=False),
            tier_tokens=program.served_tokens(counters, tier=True),
            store_bytes=program.counted("offload_store_bytes", counters),
            load_bytes=program.counted("offload_load_bytes", counters),
        )


def _values(counts: Counts) -> tuple[float | None, ...]:
    return (
        counts.prompt_tokens,
        counts.requests,
        counts.device_tokens,
        counts.tier_tokens,
        counts.store_bytes,
        counts.load_bytes,
    )


def _rise(before: float | None, after: float | None) -> float | None:
    """Return a rise; a counter that was not there before stood at 0, and one that fell was that of another process."""
    if after is None:
        return None
    rise = after - (before or 0.0)
    return rise if rise >= 0 else None


def _foreign_share(counted: float | None, sent: int) -> float | None:
    if counted is None:
        return None
    return max(0.0, counted - sent) / counted if counted else 0.0
