"""Quantiles of times that were not all observed to their end.

A request that had no first token when the window closed has waited at least that long: it is censored. One that was
already waiting when the window opened is seen from that age on: it enters late (left truncation). The product-limit
estimator handles both (Kaplan and Meier 1958; with late entries Lynden-Bell 1971). For its standard error, subjects
that belong together, such as the turns of a conversation, count as one unit (Ying and Wei 1994).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from kveval.estimators.spreads import Array

# A risk set smaller than this share of the subjects that enter later is ignored: a single early event in a set of one
# would end the curve (Lai and Ying 1991 give such sets weight 0, too). A set that is small because most subjects have
# left already is the tail, and counts.
_SMALLEST_RISK_SET = 0.05


@dataclass(frozen=True)
class ObservedTimes:
    """Each subject was watched from age `entry` to age `exit`; `event`: whether it ended then, or was cut off.

    Arrays of equal length, ages in one unit of time. `unit`: the number of the group that a subject belongs to; None
    where each is independent.
    """

    entry: Array
    exit: Array
    event: npt.NDArray[np.bool_]
    unit: npt.NDArray[np.intp] | None = None

    @property
    def events(self) -> int:
        """Number of subjects seen to their end."""
        return int(self.event.sum())

    @property
    def censored(self) -> int:
        """Number of subjects not seen to their end."""
        return len(self.event) - self.events


@dataclass(frozen=True)
class RiskSets:
    """The ages at which events happened, rising; the events at each; those at risk, infinite for ignored risk sets."""

    times: Array
    deaths: Array
    at_risk: Array

    @cached_property
    def surviving(self) -> Array:
        """The share that survives each age."""
        return np.cumprod(1 - self.deaths / self.at_risk, dtype=np.float64)


def risk_sets(observed: ObservedTimes) -> RiskSets:
    """Return how many subjects were at risk, and ended, at the age of each event."""
    times, deaths = np.unique(observed.exit[observed.event], return_counts=True)
    entered = np.searchsorted(np.sort(observed.entry), times, side="left")
    left = np.searchsorted(np.sort(observed.exit), times, side="left")
    at_risk, to_come = entered - left, len(observed.entry) - entered
    counted = at_risk > _SMALLEST_RISK_SET * to_come
    return RiskSets(
        times, deaths.astype(np.float64), np.where(counted, at_risk, np.inf)
    )


def quantiles(observed: ObservedTimes, shares: Sequence[float]) -> list[float]:
    """Return the age that each share of subjects does not exceed; NaN where the events end before it is reached.

    Without censoring and late entries it is the smallest observed value that at least this share does not exceed.
    """
    sets = risk_sets(observed)
    reached = (_reached(sets.surviving, share) for share in shares)
    return [
        float(sets.times[step]) if step < len(sets.times) else np.nan
        for step in reached
    ]


def _reached(surviving: Array, share: float) -> int:
    """The first step at which at most 1 - `share` of the subjects last longer, or the number of steps."""
    # The tolerance is for products such as 0.9 x 8/9, which should be 0.8.
    found = np.flatnonzero(surviving <= 1 - share + 1e-9)
    return int(found[0]) if len(found) else len(surviving)


def effective_count(observed: ObservedTimes, share: float) -> float:
    """Return how many independent subjects would determine a quantile as precisely; NaN without events.

    n = S (1 - S) / Var(S) at the last event before the quantile. Var(S) = S^2 sum over the units of (sum over their
    subjects of [ended by then] / (Y - d) - sum over the events seen of d / (Y (Y - d)))^2, d events of Y at risk: the
    infinitesimal jackknife of the product-limit estimate. For complete samples of subjects it is their number.
    """
    sets = risk_sets(observed)
    if not len(sets.times):
        return np.nan
    surviving = sets.surviving
    last = min(max(_reached(surviving, share) - 1, 0), len(surviving) - 1)
    survivors = float(surviving[last])
    if not 0 < survivors < 1:
        return float(observed.events)
    times, deaths, at_risk = (
        column[: last + 1] for column in (sets.times, sets.deaths, sets.at_risk)
    )
    hazard = np.concatenate([[0.0], np.cumsum(deaths / at_risk / (at_risk - deaths))])
    until_exit, until_entry = (
        np.searchsorted(times, column, "right")
        for column in (observed.exit, observed.entry)
    )
    ended = observed.event & (observed.exit <= times[-1])
    influence = hazard[until_entry] - hazard[until_exit]
    influence[ended] += (
        1 / (at_risk - deaths)[np.searchsorted(times, observed.exit[ended])]
    )
    if observed.unit is not None:
        influence = np.bincount(observed.unit, weights=influence)[
            np.unique(observed.unit)
        ]
    if len(influence) < 2:
        return np.nan
    spread = float((influence**2).sum())
    # Units that are all alike have no spread: only their number is known.
    count = (
        (1 - survivors) / survivors / spread if spread > 0 else float(len(influence))
    )
    return min(count, float(len(observed.entry)))
