"""How fast this host is now: the processor time of a fixed piece of work on the cores of a server."""

import contextlib
import hashlib
import os
import time
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor

from kveval.host.cores import on_cores

VERSION = 1
"""Version of the work: times of one version are compared, never of two."""
ROUNDS = 400_000
"""Rounds of SHA-256 over a few bytes, which stay in a core's registers and first cache: 90 ms on a core of 2024."""


def work_ms(processes: Iterable[int], rounds: int = ROUNDS) -> float | None:
    """Return the processor time of the work on the cores that these processes may run on, ms; None if it failed.

    The time is that of the thread, so that programs which share its core do not count, unless they slow the core down.
    """
    # Whatever goes wrong here, the measurement goes on without it.
    with contextlib.suppress(Exception):
        cores = set().union(*map(_cores_of, processes))
        # A thread of its own: this one, and what it starts, stays on its cores.
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(_timed_ms, cores, rounds).result()
    return None


def _cores_of(process: int) -> set[int]:
    with contextlib.suppress(OSError):
        return os.sched_getaffinity(process)
    return set()


def _timed_ms(cores: Collection[int], rounds: int) -> float:
    """Do the work on these cores, and return its time. Raises OSError without any core."""
    with on_cores(cores):
        begin = time.thread_time()
        hashlib.pbkdf2_hmac("sha256", b"fixed", b"work", rounds)
        return 1000 * (time.thread_time() - begin)
