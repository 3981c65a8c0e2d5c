"""Watches for faults while a level runs, each in its own thread, so that none delays another.

Each watch is a small object with one method that raises a Failure; `monitored` calls them at intervals and passes the
first failure to the main thread.
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
from kveval.host.http import HttpError
from kveval.stacks.running_server import RunningServer

Check = tuple[Callable[[], None], float]
"""A function that raises a Failure when something is wrong, and the interval in seconds at which it is called."""
DISK_RESERVE_BYTES = 32 * 2**20
"""A run stops if the disk has fewer free bytes than this, which an orderly stop needs."""
WAY_LOST = "way_lost"
"""Code of an HttpError that tells nothing about the server, because what leads to it does not answer."""
_MIB = 2**20


class WatchError(Failure):
    """A watch has found that a measurement cannot continue."""


class StallError(WatchError):
    """The server runs but makes no progress."""


class ClockError(WatchError):
    """The wall clock was set during a measurement."""


class DiskFullError(WatchError):
    """The disk has no room for what a measurement writes."""


@contextlib.contextmanager
def monitored(checks: Sequence[Check]) -> Iterator[Callable[[], None]]:
    """Call each check at its interval while the body runs, each in a thread of its own.

    Yields a function that raises, in the thread that calls it, the first failure that a check has found.
    """
    failures: list[Exception] = []
    over = threading.Event()

    def watch(check: Callable[[], None], interval_s: float) -> None:
        while not over.wait(interval_s):
            try:
                check()
            except Exception as failure:  # noqa: BLE001  (nothing is swallowed: it is raised in the main thread)
                failures.append(failure)
                return

    def require() -> None:
        if failures:
            raise failures[0]

    for number, check in enumerate(checks):
        threading.Thread(
            target=watch, args=check, name=f"watch-{number}", daemon=True
        ).start()
    try:
        yield require
    finally:
        # Not joined: a check may hang in a request that has a time limit of its own.
        over.set()


@dataclass(frozen=True)
class Work:
    """The server's progress: output tokens generated so far, requests running or waiting now."""

    tokens: float
    requests: float


def read_work(page: str, program: RunningServer) -> Work:
    """Read the progress from the text of a server's metrics; a missing metric counts as 0."""

    def total(*metrics: str) -> float:
        names = [
            re.escape(name)
            for metric in metrics
            for name in program.metrics[metric].values()
        ]
        pattern = rf"^(?:{'|'.join(names)})(?:{{[^}}]*}})? (\S+)"
        return sum(float(value) for value in re.findall(pattern, page, re.MULTILINE))

    return Work(
        total("generation_tokens"), total("requests_running", "requests_waiting")
    )


@dataclass
class StallWatch:
    """Raises StallError when the server has stopped making progress.

    Progress is a rising number of generated tokens. Without it, running or waiting requests or an unanswered /metrics
    are tolerated for `limit_s` seconds. An idle server is tolerated for `idle_s` more, because the load generator
    needs that long to start, and because a stopped vLLM engine cannot even count its waiting requests. A load that
    always has requests in flight leaves no server idle for `loaded_s` seconds after the level's first token: there
    `limit_s` alone applies. A prefill generates no token: `limit_s` must exceed the longest prefill.
    """

    read: Callable[[float], Work]
    """Reads the progress within so many seconds; raises HttpError or ValueError if the server does not answer."""
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
        """Seconds between two checks: few enough for the limit, many enough not to disturb the server."""
        return min(5.0, self.limit_s / 5)

    def check(self) -> None:
        """Read the server's progress and judge it. Raises StallError."""
        work = None
        try:
            work = self.read(self.interval_s)
        except (HttpError, ValueError) as error:
            if isinstance(error, HttpError) and error.code == WAY_LOST:
                return
        self.observe(work)

    def observe(self, work: Work | None) -> None:
        """Judge one reading, None if there was no answer. Raises StallError."""
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
            start = (
                f" and {start_s:.0f} for the load generator's start" if start_s else ""
            )
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
    """Raises ClockError when wall clock and monotonic clock diverge: windows and recording then no longer match.

    The slewing of NTP, up to 500 ppm, is tolerated. The suspension of a host is detected the same way.
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
        """Compare the difference of the clocks with that at the start. Raises ClockError."""
        steady = self.steady()
        step = self.wall() - steady - self._apart
        if abs(step) > self.limit_s + 500e-6 * (steady - self._began):
            raise ClockError(
                f"the wall clock was set by {step:+.1f} s during the measurement (or the host slept):"
                " its levels and its recording no longer match; measure again once the clock is steady",
                step_s=step,
            )


def require_free(path: Path, needed_bytes: int, what: str) -> None:
    """Raise DiskFullError unless `path`'s file system has `needed_bytes` free; `what` names their use in messages."""
    free = shutil.disk_usage(path).free
    if free < needed_bytes:
        raise DiskFullError(
            f"no room on the disk of {path}: {free / _MIB:.0f} MiB free, {what} takes {needed_bytes / _MIB:.0f} MiB",
            path=path,
            free_bytes=free,
            needed_bytes=needed_bytes,
            use=what,
        )
