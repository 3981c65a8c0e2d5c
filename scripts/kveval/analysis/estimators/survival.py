"""Quantiles of times that were not all seen to their end.

A request that had no first token when the window closed has waited at least that long: it is censored. One that was
already waiting when the window opened is seen from that age on: it enters late (left truncation). The product-limit
estimator takes both as they are (Kaplan and Meier 1958; with late entries Lynden-Bell 1971).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

# While subjects still enter, a risk set smaller than this share of all says nothing: a single early event in a set of
# one would end the curve (Lai and Ying 1991 weigh such sets with 0, too).
_SMALLEST_RISK_SET = 0.05


@dataclass(frozen=True)
class Observed:
    """Times of subjects: each was watched from age `entry` to age `exit`; `event`: it ended then, else it was cut off.

    Arrays of equal length, ages in one unit of time.
    """

    entry: Array
    exit: Array
    event: npt.NDArray[np.bool_]

    @property
    def events(self) -> int:
        """Number of subjects seen to their end."""
        return int(self.event.sum())

    @property
    def censored(self) -> int:
        """Number of subjects not seen to their end."""
        return len(self.event) - self.events


def survival(observed: Observed) -> tuple[Array, Array]:
    """Return the ages at which events happened, rising, and the share that lasts longer than each."""
    times, deaths = np.unique(observed.exit[observed.event], return_counts=True)
    if not len(times):
        return times, np.empty(0, dtype=np.float64)
    entered = np.searchsorted(np.sort(observed.entry), times, side="left")
    left = np.searchsorted(np.sort(observed.exit), times, side="left")
    at_risk = entered - left
    entering = times < observed.entry.max()
    counted = (at_risk > 0) & ~(entering & (at_risk < _SMALLEST_RISK_SET * len(observed.event)))
    factors: Array = np.where(counted, 1 - deaths / np.maximum(at_risk, 1), 1.0)
    return times, np.cumprod(factors, dtype=np.float64)


def quantiles(observed: Observed, shares: Sequence[float]) -> list[float]:
    """Return the age that each share of subjects does not exceed; NaN where the events end before it is reached.

    Without censoring and late entries it is the smallest observed value that at least this share does not exceed.
    """
    times, lasting = survival(observed)
    found = []
    for share in shares:
        # The tolerance is for products such as 0.9 x 8/9, which should be 0.8.
        reached = np.flatnonzero(lasting <= 1 - share + 1e-9)
        found.append(float(times[reached[0]]) if len(reached) else np.nan)
    return found
