"""The order of the records' times: clock steps, and single records whose time is damaged."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kveval.pcp.archive.problems import ProblemLog
from kveval.pcp.archive.records import Block

# A single time is damaged if it is off by more than this many intervals; a clock step keeps the intervals.
_OFF = 1.5


def iso(time_ns: int) -> str:
    """A time in ns since 1970 as text, UTC."""
    return f"{np.datetime64(time_ns, 'ns')}Z"


@dataclass
class Order:
    """Watches the times of one archive's records, which go back only where the clock was set or a time is damaged."""

    problems: ProblemLog
    start_ns: int

    def __post_init__(self) -> None:
        self._before = [self.start_ns]

    def watch(self, block: Block, where: str) -> None:
        """Check the times of a block, and report those that go back."""
        possible = np.flatnonzero(block.times >= 0)
        known = len(self._before)
        times = np.concatenate([np.array(self._before, dtype=np.int64), block.times[possible]])
        self._before = times[-2:].tolist()
        for number in (np.flatnonzero(times[known:] < times[known - 1 : -1]) + known).tolist():
            last, now = times[number - 1].item(), times[number].item()
            before_last = times[number - 2].item() if number > 1 else None
            following = times[number + 1].item() if number + 1 < len(times) else None
            offset = block.offset + int(block.starts[possible[number - known]])
            back = f"time goes back by {(last - now) / 1e9:.6f} s to {iso(now)}"
            if before_last is None or following is None:
                single = following is not None and following >= last
            else:
                forward = before_last <= now and last - before_last > _OFF * abs(following - now)
                single = forward or (following >= last and following - now > _OFF * (last - before_last))
            kind = "bad record" if single else "clock step"
            self.problems.add(kind, where, f"{back}{', in a single record' if single else ''}", offset)
