"""Watches for what may go wrong while a level runs, in threads of their own, so that none delays another.

Each watch is a small object with one method that raises a Failure; `monitored` calls them at intervals and hands the
first failure to the thread that asks.
"""

import contextlib
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kveval.host.errors import Failure
from kveval.host.http import HttpError, fetch
from kveval.spec.servers.software import ServerSoftware

DISK_RESERVE_BYTES = 32 * 2**20
"""Free bytes below which a run gives up: what is left lets it stop in order."""
_MIB = 2**20


class WatchError(Failure):
    """A watch has found why a measurement cannot go on."""


class StallError(WatchError):
    """The server lives and does nothing."""


class ClockError(WatchError):
    """The wall clock was set during a measurement."""


class DiskFullError(WatchError):
    """There is no room for what a measurement writes."""


class Monitor:
    """The first failure of the checks in progress."""

    def __init__(self) -> None:
        self._failure: BaseException | None = None
        self._over = threading.Event()

    def require(self) -> None:
        """Raise the first failure that a check has found, in the thread that calls this."""
        if self._failure is not None:
            raise self._failure

    def run(self, check: Callable[[], None], interval_s: float) -> None:
        """Body of a check's thread."""
        while not self._over.wait(interval_s):
            try:
                check()
            except Exception as failure:  # noqa: BLE001  (nothing is swallowed: it is raised in the main thread)
                self._failure = self._failure or failure
                return

    def end(self) -> None:
        """Have the threads stop."""
        self._over.set()


@contextlib.contextmanager
def monitored(checks: Sequence[tuple[Callable[[], None], float]]) -> Iterator[Monitor]:
    """Call each check every so many seconds (`checks`: pairs of both) for as long as the body runs."""
    monitor = Monitor()
    threads = [
        threading.Thread(target=monitor.run, args=check, name=f"watch-{number}", daemon=True)
        for number, check in enumerate(checks)
    ]
    for thread in threads:
        thread.start()
    try:
        yield monitor
    finally:
        # Not joined: a check may hang in a request that has a time limit of its own.
        monitor.end()


@dataclass(frozen=True)
class Work:
    """The server's progress: output tokens generated so far, requests running or waiting now."""

    tokens: float
    requests: float


def read_work(page: str, software: ServerSoftware) -> Work:
    """Read the progress from the text of a server's metrics; what is not there counts as 0."""

    def total(*metrics: str) -> float:
        names = [re.escape(name) for metric in metrics for name in software.metrics[metric].values()]
        pattern = rf"^(?:{'|'.join(names)})(?:{{[^}}]*}})? (\S+)"
        return sum(float(value) for value in re.findall(pattern, page, re.MULTILINE))

    return Work(total("generation_tokens"), total("requests_running", "requests_waiting"))


@dataclass
class StallWatch:
    """Raises StallError when the server has stopped making progress.

    Progress is a rising number of generated tokens. Without it, requests in work or an unanswered /metrics are
    borne for `limit_s` seconds; an idle server for `idle_s` more, because the load generator needs that long to
    begin and because a stopped engine cannot even count the requests that wait for it. From the level's first token
    on, and for `loaded_s` seconds, a load that always has requests in flight leaves no server idle: then `limit_s` is
    all. A prefill generates nothing: `limit_s` must exceed the longest.
    """

    url: str
    software: ServerSoftware
    limit_s: float
    idle_s: float
    log: Path
    loaded_s: float = 0.0
    now: Callable[[], float] = time.monotonic
    _tokens: float | None = None
    _first_at: float | None = None
    _token_at: float = field(init=False)
    _busy_at: float | None = None

    def __post_init__(self) -> None:
        self._token_at = self.now()

    @property
    def interval_s(self) -> float:
        """How often to look: often enough for the limit, rarely enough to leave the server alone."""
        return min(5.0, self.limit_s / 5)

    def check(self) -> None:
        """Ask the server, and judge."""
        work = None
        with contextlib.suppress(HttpError, ValueError):
            page = fetch(self.url, timeout_s=self.interval_s)
            work = read_work(page.decode(errors="replace"), self.software)
        self.observe(work)

    def observe(self, work: Work | None) -> None:
        """Judge one reading; None: there was no answer. Raises StallError."""
        now = self.now()
        if work is not None and work.tokens != self._tokens:
            if self._tokens is not None and self._first_at is None:
                self._first_at = now
            self._tokens, self._token_at, self._busy_at = work.tokens, now, None
            return
        if work is not None and not work.requests:
            self._busy_at = None
        elif self._busy_at is None:
            self._busy_at = now
        if self._busy_at is not None and now - self._busy_at > self.limit_s:
            code, what = (
                ("no_metrics", "its /metrics does not answer")
                if work is None
                else ("no_token", f"{work.requests:.0f} requests in work, no token")
            )
            raise StallError(
                f"the server hangs: {what} for {now - self._busy_at:.0f} s (limit: stall_limit_s {self.limit_s:g});"
                f" see {self.log}",
                code=code,
                requests=work and work.requests,
                lasted_s=now - self._busy_at,
                limit_s=self.limit_s,
                log=self.log,
            )
        loaded = self._first_at is not None and now < self._first_at + self.loaded_s
        idle = self._busy_at is None
        start_s = 0.0 if loaded and idle else self.idle_s
        if now - self._token_at > self.limit_s + start_s:
            start = f" and {start_s:.0f} for the load generator's start" if start_s else ""
            raise StallError(
                f"the server hangs, or gets no requests: no token for {now - self._token_at:.0f} s"
                f" (limit: stall_limit_s {self.limit_s:g}{start}); see {self.log}",
                code="no_token_nor_request",
                lasted_s=now - self._token_at,
                limit_s=self.limit_s,
                start_s=start_s,
                log=self.log,
            )


@dataclass
class ClockWatch:
    """Raises ClockError when wall clock and steady clock part: windows and recording then no longer match.

    What NTP may slew, 500 ppm, is allowed for. Time that a suspended host slept through shows the same way.
    """

    wall: Callable[[], float] = time.time
    steady: Callable[[], float] = time.monotonic
    limit_s: float = 0.5
    _began: float = field(init=False)
    _apart: float = field(init=False)

    def __post_init__(self) -> None:
        self._began = self.steady()
        self._apart = self.wall() - self._began

    def check(self) -> None:
        """Compare the clocks with what they were in the beginning."""
        steady = self.steady()
        step = self.wall() - steady - self._apart
        if abs(step) > self.limit_s + 500e-6 * (steady - self._began):
            raise ClockError(
                f"the wall clock was set by {step:+.1f} s during the measurement (or the host slept):"
                " its levels and its recording no longer match; measure again once the clock is steady",
                step_s=step,
            )


def require_free(path: Path, needed_bytes: int, what: str) -> None:
    """Raise DiskFullError unless `path`'s file system has `needed_bytes` free; `what` says for what."""
    free = shutil.disk_usage(path).free
    if free < needed_bytes:
        raise DiskFullError(
            f"no room on the disk of {path}: {free / _MIB:.0f} MiB free, {what} takes {needed_bytes / _MIB:.0f} MiB",
            path=path,
            free_bytes=free,
            needed_bytes=needed_bytes,
            use=what,
        )
