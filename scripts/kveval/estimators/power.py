"""The number of runs that a question needs, and what the existing runs can show. Pure arithmetic on the ln scale.

Both allow for the correction for multiple comparisons: the power of a single comparison overstates that of one in ten.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from kveval.estimators.distributions import distributions
from kveval.estimators.intervals import Contrast, t_quantile
from kveval.estimators.spreads import TESTABLE_RUNS, Array

# Simulated campaigns behind each probability, which makes it exact to half a percentage point.
_CAMPAIGNS = 4000
# More runs than this are not counted.
_MOST_RUNS = 1000
# The chance with which an effect has to be shown.
_POWER = 0.8


def degrees_of_freedom(runs: int, cells: int) -> float:
    """Return the degrees of freedom of a contrast if all cells have the same spread, see `intervals.contrasts`.

    With few runs, those for a baseline with a spread of its own, and a third of the arms with their own.
    """
    all_of_them = (runs - 1) * (max(cells, 2) - 1)
    return (
        all_of_them if runs >= TESTABLE_RUNS else 4 * all_of_them / (max(cells, 2) + 2)
    )


def runs_to_resolve(
    sd: float,
    margin: float,
    cells: int = 3,
    alpha: float = 0.05,
    comparisons: int = 1,
    power: float = _POWER,
) -> int | None:
    """Return the runs per arm that find a difference of `margin` with the given power; `sd` is on the ln scale.

    Each comparison is tested at alpha / `comparisons`, the first step of Holm's correction, whatever the others show.
    `cells` sets the degrees of freedom. None above 1,000 runs. All cells are assumed to spread alike.
    """
    if sd == 0:
        return 2
    level = 1 - alpha / comparisons / 2

    def sufficient(runs: int) -> bool:
        freedom = degrees_of_freedom(runs, cells)
        shift = np.log1p(margin) / (sd * np.sqrt(2 / runs))
        return bool(
            1 - distributions().nctdtr(freedom, shift, t_quantile(level, freedom))
            >= power
        )

    # One by one from below: far beyond the answer the noncentral t cannot be computed.
    return next((runs for runs in range(2, _MOST_RUNS + 1) if sufficient(runs)), None)


def runs_to_differ(contrast: Contrast, runs: int, level: float) -> int | None:
    """Return how many runs in all show the measured difference as one, with a chance of 80 %; None above 1,000.

    `runs`: those behind the contrast, whose error falls with the root of their number; `level`: two-sided, of the test.
    Noncentral t; biases stay as they are.
    """
    bias = contrast.below if contrast.theta > 0 else contrast.above
    distance = abs(contrast.theta) - bias
    if not distance > 0:
        return None

    def shows(count: int) -> bool:
        error, freedom = _expected_error(contrast, runs, count, level / 2)
        if error == 0:
            return True
        quantile = t_quantile(1 - level / 2, freedom)
        missed = distributions().nctdtr(freedom, distance / error, quantile)
        return bool(1 - missed >= _POWER)

    return _fewest(shows, runs + 1)


def runs_to_equal(
    contrast: Contrast, runs: int, margin: float, level: float
) -> int | None:
    """Return how many runs in all show the measured difference to be within `margin`, with a chance of 80 %.

    None above 1,000, and if it is not within it. `level`: of both one-sided tests; else as `runs_to_differ`. The chance
    is that of two tests whose errors are known: P(T < d1 / e - t) + P(T < d2 / e - t) - 1 with both distances d.
    """
    bound = float(np.log1p(margin))
    upper = bound - contrast.theta - contrast.above
    lower = bound + contrast.theta - contrast.below
    if not min(upper, lower) > 0:
        return None

    def shows(count: int) -> bool:
        error, freedom = _expected_error(contrast, runs, count, level)
        if error == 0:
            return True
        quantile = t_quantile(1 - level, freedom)
        within = (
            distributions().stdtr(freedom, distance / error - quantile)
            for distance in (upper, lower)
        )
        return bool(sum(within) - 1 >= _POWER)

    return _fewest(shows, runs + 1)


def _expected_error(
    contrast: Contrast, runs: int, count: int, tail: float
) -> tuple[float, float]:
    """Return the standard error and degrees of freedom of a contrast if there were `count` runs in place of `runs`.

    The error of now is the one that its interval has at this tail, which noise within runs may widen.
    """
    low, high = contrast.interval(1 - 2 * tail)
    half = (high - low - contrast.below - contrast.above) / 2
    error = half / t_quantile(1 - tail, contrast.df) * np.sqrt(runs / count)
    return float(error), contrast.df * (count - 1) / max(runs - 1, 1)


def _fewest(shows: Callable[[int], bool], first: int) -> int | None:
    """Return the fewest runs that show something, None above 1,000; more runs show it, too.

    From below: far beyond the answer the noncentral t cannot be computed.
    """
    low, high = first - 1, first
    while not shows(high):
        if high >= _MOST_RUNS:
            return None
        low, high = high, min(2 * high, _MOST_RUNS)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if shows(middle) else (middle, high)
    return high


def parity_power(
    sd: float,
    margin: float,
    runs: int,
    cells: int = 2,
    alpha: float = 0.05,
    comparisons: int = 1,
) -> float:
    """Return the probability that two one-sided tests show an arm at parity, if no arm of the family differs at all.

    After Holm's correction over `comparisons` that share a baseline. The standard error is an estimate too: with three
    runs it is often so small that the test passes where the true spread would not allow it.
    """
    if sd == 0:
        return 1.0
    bound = np.log1p(margin) / (sd * np.sqrt(2 / runs))
    return float(
        (
            _bounds_needed(degrees_of_freedom(runs, cells), alpha, comparisons) <= bound
        ).mean()
    )


@cache
def _bounds_needed(freedom: float, alpha: float, comparisons: int) -> Array:
    """The smallest margin, in standard errors, at which each arm of each simulated campaign is shown at parity."""
    distances, shares = _campaigns(comparisons)
    estimated = np.sqrt(distributions().chdtri(freedom, shares) / freedom)
    limits = np.array(
        [
            t_quantile(1 - alpha / (comparisons - rank), freedom)
            for rank in range(comparisons)
        ]
    )
    # An arm is tested once all that are nearer have been shown.
    needed: Array = np.maximum.accumulate(
        distances + estimated[:, None] * limits, axis=1
    )
    return needed


@cache
def _campaigns(comparisons: int) -> tuple[Array, Array]:
    """Simulated campaigns of equal cells: the arms' distances from the baseline in standard errors, nearest first, and
    the quantile of each campaign's estimated error.
    """
    generator = np.random.default_rng(20260101)
    cells = generator.normal(size=(_CAMPAIGNS, comparisons + 1))
    distances = np.sort(np.abs(cells[:, 1:] - cells[:, :1]) / np.sqrt(2), axis=1)
    shares: Array = (generator.permutation(_CAMPAIGNS) + 0.5) / _CAMPAIGNS
    return distances, shares
