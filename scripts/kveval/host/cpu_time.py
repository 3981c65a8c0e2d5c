"""How much processor time of this host this process and its descendants take, and how much everybody else takes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import psutil


@dataclass(frozen=True)
class CpuTime:
    """Processor time since the start of the host, and of this process, seconds, summed over all processors.

    Attributes:
        own_s: of this process, its descendants, and what else is the run's own, those that have ended included.
        busy_s: not idle; time that other virtual machines took counts.
        all_s: of all processors together.
    """

    own_s: float
    busy_s: float
    all_s: float

    @classmethod
    def now(cls, own: Iterable[int] = ()) -> Self:
        """Read the times of the host (/proc/stat), and of processes and their descendants (/proc/PID/stat).

        `own`: further processes whose time is this one's own, as that of a server that somebody else started.
        """
        host = psutil.cpu_times()
        # What guests use is in user and nice already.
        whole_s = sum(host) - host.guest - host.guest_nice
        processes = _with_descendants({psutil.Process().pid, *own})
        own_s = sum(map(_taken_s, processes))
        return cls(own_s, whole_s - host.idle - host.iowait, whole_s)

    def others_percent(self, since: Self) -> float | None:
        """Return the share of all processors' time that others took since an earlier reading, %; None if no time passed."""
        whole_s = self.all_s - since.all_s
        if whole_s <= 0:
            return None
        others_s = (self.busy_s - since.busy_s) - (self.own_s - since.own_s)
        return 100 * min(1.0, max(0.0, others_s / whole_s))


def _with_descendants(pids: Iterable[int]) -> set[psutil.Process]:
    processes = set()
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            processes |= {process, *process.children(recursive=True)}
    return processes


def _taken_s(process: psutil.Process) -> float:
    """Return the processor time of a process, its threads and its children that have ended, seconds; 0 if it is gone."""
    with contextlib.suppress(psutil.Error):
        times = process.cpu_times()
        return float(
            times.user + times.system + times.children_user + times.children_system
        )
    return 0.0
