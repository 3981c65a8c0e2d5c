"""The cores of a host, divided between the server under test and the load generator with the recording."""

import contextlib
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Cores:
    """Core numbers: `server` for the server and its sidecars, `beside` for the load generator and the recording."""

    server: frozenset[int]
    beside: frozenset[int]


def divided(cores: Collection[int]) -> Cores:
    """Return the division: the last quarter of the cores, at least one, is `beside`; a single core is shared."""
    ordered = sorted(cores)
    if len(ordered) < 2:
        return Cores(frozenset(ordered), frozenset(ordered))
    count = max(1, len(ordered) // 4)
    return Cores(frozenset(ordered[:-count]), frozenset(ordered[-count:]))


def usable() -> frozenset[int]:
    """Return the cores that this thread may run on."""
    return frozenset(os.sched_getaffinity(0))


@contextlib.contextmanager
def on_cores(cores: Collection[int]) -> Iterator[None]:
    """While the body runs, keep this thread and the processes and threads that it starts on these cores."""
    before = usable()
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
