"""What the times of runs tell of a comparison: the order within blocks, the machine's drift, runs of one session.

Tables are runs x cells: ln of a metric, and when each run started, in seconds. Runs of unknown time tell nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from kveval.analysis.estimators.spreads import residuals

Array = npt.NDArray[np.float64]
# With fewer runs no trend has a standard error.
_FEWEST = 3
# A session ends where the time to the next block is so many times the usual.
_PAUSE = 3.0
# Runs of a session count as one where they are more alike than this leaves to chance.
_ALIKE = 0.3


@dataclass(frozen=True)
class Drift:
    """How a metric of all cells changed with time, per second on the ln scale, and how well that is known."""

    slope: float
    error: float

    def over(self, seconds: float) -> float:
        """Return what a stretch of time may have done to a difference, as a standard error.

        The trend that was seen, in full, since it may be the machine's; and what can hide in its own error.
        """
        return float(np.hypot(self.slope, self.error) * abs(seconds))


def drift(logs: Array, starts: Array) -> Drift | None:
    """Return the trend of blocks over time: least squares on the means of each; None where it cannot be told."""
    times, values = starts.mean(axis=1), logs.mean(axis=1)
    apart = times - times.mean()
    square = float((apart**2).sum())
    if len(times) < _FEWEST or not square > 0:
        return None
    slope = float((apart * values).sum()) / square
    left = values - values.mean() - slope * apart
    return Drift(slope, float(np.sqrt((left**2).sum() / (len(times) - 2) / square)))


def constant_offset(starts: Array, arm: int, reference: int) -> float | None:
    """Return by how much one column ran after another on average, seconds, if the order never changed; else 0.

    The same of both was first in every block, and one of them had the same place among all cells. None where times are
    not known. A random order has that by chance too, with two cells in one of four campaigns of three runs.
    """
    offsets = starts[:, arm] - starts[:, reference]
    if not np.isfinite(starts).all():
        return None
    places = starts.argsort(axis=1, kind="stable").argsort(axis=1)[:, [arm, reference]]
    one_place = bool((places == places[0]).all(axis=0).any())
    fixed = len(starts) >= _FEWEST and one_place and len(set(np.sign(offsets))) == 1
    return float(offsets.mean()) if fixed else 0.0


def sessions(starts: Array) -> list[list[int]]:
    """Return the runs of each session: blocks in the order of time, parted where a pause is far longer than usual."""
    times = starts.mean(axis=1)
    if not np.isfinite(times).all():
        return [[run] for run in range(len(times))]
    order = np.argsort(times, kind="stable")
    steps = np.diff(times[order])
    # Of an even number the lower one: of the steps of three runs one may be the pause.
    usual = float(np.sort(steps)[(len(steps) - 1) // 2]) if len(steps) else 0.0
    found = [[int(order[0])]]
    for run, step in zip(order[1:], steps, strict=True):
        if step > _PAUSE * usual > 0:
            found.append([])
        found[-1].append(int(run))
    return found


def alike_within(logs: Array, groups: list[list[int]]) -> bool:
    """Whether runs of a session are more alike than runs of different ones: F test of what cells and blocks leave."""
    runs, cells = logs.shape
    between, within = len(groups) - 1, runs - len(groups)
    if between < 1 or within < 1 or cells < 2:
        return False
    left = residuals(logs)
    means = np.array([left[group].mean(axis=0) for group in groups])
    sizes = np.array([len(group) for group in groups])
    among = float((sizes[:, None] * means**2).sum())
    inside = float((left**2).sum()) - among
    ratio = (among / between) / (inside / within) if inside > 0 else np.inf
    return bool(special.fdtrc(between * (cells - 1), within * (cells - 1), ratio) < _ALIKE)


def by_session(table: Array, groups: list[list[int]]) -> Array:
    """Return the mean of each session, sessions x cells."""
    return np.array([table[group].mean(axis=0) for group in groups])
