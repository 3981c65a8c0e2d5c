"""The cores of a host, divided between the server under test and what loads and records it."""

import contextlib
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Cores:
    """Numbers of the cores for the server and its sidecars, and of those for what stands beside: load and recording."""

    server: frozenset[int]
    beside: frozenset[int]


def divided(cores: Collection[int]) -> Cores:
    """Give the last quarter of the cores, at least one, to what stands beside; a single core is everybody's."""
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
    """Run this thread, and the processes and threads that it starts meanwhile, on these cores only."""
    before = usable()
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
