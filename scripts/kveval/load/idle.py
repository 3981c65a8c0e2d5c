"""Detects a load generator that has nothing left to do and does not end."""

import contextlib
from collections import deque

import psutil

# A working generator uses at least a twentieth of a core: it polls, packs and writes.
_WINDOW_S, _SHARE = 20.0, 0.05


class Idle:
    """Whether a process and those that it started have used next to no processor time for a while."""

    def __init__(self, pid: int, window_s: float = _WINDOW_S) -> None:
        self._pid, self._window_s = pid, window_s
        self._used: deque[tuple[float, float]] = deque()

    def lasts(self, elapsed_s: float) -> bool:
        """Read its CPU time, and return whether it was idle for the window; `elapsed_s`: seconds since it started."""
        self._used.append((elapsed_s, self._cpu_s()))
        while len(self._used) > 1 and self._used[1][0] <= elapsed_s - self._window_s:
            self._used.popleft()
        (since, before), (now, after) = self._used[0], self._used[-1]
        return now - since >= self._window_s and after - before < _SHARE * (now - since)

    def _cpu_s(self) -> float:
        used = 0.0
        with contextlib.suppress(psutil.Error):
            leader = psutil.Process(self._pid)
            # The CPU time of children that have ended is counted with their parent.
            used = sum(leader.cpu_times()[:4])
            for child in leader.children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    used += sum(child.cpu_times()[:4])
        return used
