"""Change points of a series: E-divisive (Matteson and James 2014, doi 10.1080/01621459.2013.849605). Pure arithmetic.

The series is split where the energy distance between its two sides is largest, as long as a permutation test finds that
distance significant. With values on the ln scale, a change of the mean is a ratio.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from kveval.analysis.estimators.intervals import Contrast, welch
from kveval.analysis.estimators.spreads import Array

SIGNIFICANCE = 0.005
"""The largest p value of a change point."""
_PERMUTATIONS = 999
# For the candidate splits, of which only the significant ones become change points.
_GENEROUS, _FEW_PERMUTATIONS = 0.05, 199
# With fewer values on a side nothing is known about their spread.
_FEWEST = 2
# Of the range of places in which a change lies.
_CONFIDENCE = 0.95


@dataclass(frozen=True)
class ChangePoint:
    """A change of a series' mean: `index` is that of the first value after it.

    `earliest`, `latest`: the range of `index` with a confidence of 95 %; `difference`: mean after the change, up to the
    next one, less the mean before it, since the previous one. Its interval does not allow for the search for the
    place.
    """

    index: int
    earliest: int
    latest: int
    difference: Contrast


def change_points(
    values: Array, seed: int = 0, significance: float = SIGNIFICANCE
) -> list[ChangePoint]:
    """Return the changes of the mean of a series, in its order; `seed` is that of the permutations.

    Two changes that cancel are not significant in a test over both: so many candidates are split first, and then each
    must be significant between its neighbours, as in Hunter (Fleming et al. 2023, doi 10.1145/3578244.3583719).
    `significance` is at least 0.001, the resolution of 999 permutations. Raises ValueError for non-finite values.
    """
    if not np.isfinite(values).all():
        raise ValueError(
            "a series with values that are not finite has no change points"
        )
    random = np.random.default_rng(seed)
    bounds = [0, *_splits(values, random), len(values)]
    weakest = np.inf, 0
    while weakest[0] > significance:
        weakest = 0.0, 0
        for place in range(1, len(bounds) - 1):
            # Each split is moved to the best place between its neighbours.
            stretch = values[bounds[place - 1] : bounds[place + 1]]
            bounds[place] = bounds[place - 1] + _best_split(stretch)[0]
            weakest = max(
                weakest, (_chance(stretch, random, significance, _PERMUTATIONS), place)
            )
        if weakest[0] > significance:
            del bounds[weakest[1]]
    return [
        _change_point(values, *bounds[place : place + 3])
        for place in range(len(bounds) - 2)
    ]


def _splits(values: Array, random: np.random.Generator, unlikely: int = 1) -> list[int]:
    """Return where a series is split, and each part again, until no split is likely.

    Up to `unlikely` nested splits that are not likely are tried, and kept where a likely one is found inside them.
    """
    if len(values) < 2 * _FEWEST:
        return []
    likely = _chance(values, random, _GENEROUS, _FEW_PERMUTATIONS) <= _GENEROUS
    if not likely and not unlikely:
        return []
    at, left = _best_split(values)[0], unlikely if likely else unlikely - 1
    before = _splits(values[:at], random, left)
    after = [at + place for place in _splits(values[at:], random, left)]
    return [*before, at, *after] if likely or before or after else []


def _best_split(values: Array) -> tuple[int, float]:
    """Return the split with the largest energy statistic, and the statistic.

    For sides of n and m values: nm / (n + m) times (twice the mean distance between the sides, less the mean distances
    within each).
    """
    count = len(values)
    distances = np.abs(values[:, None] - values[None, :])
    # By split: within the left side, between the sides, within the right one.
    left = np.cumsum(np.einsum("ij,ij->i", distances, _earlier(count)))
    between = np.cumsum(distances.sum(axis=1)) - 2 * left
    right = left[-1] - left - between
    at = np.arange(_FEWEST, count - _FEWEST + 1)
    n, m = at.astype(float), (count - at).astype(float)
    left, between, right = left[at - 1], between[at - 1], right[at - 1]
    energy = (
        n
        * m
        / (n + m)
        * (2 * between / (n * m) - 2 * left / (n * (n - 1)) - 2 * right / (m * (m - 1)))
    )
    best = int(np.argmax(energy))
    return int(at[best]), float(energy[best])


@lru_cache(maxsize=4)
def _earlier(count: int) -> Array:
    """Return the matrix that has 1 where the column's value is earlier than the row's."""
    return np.tri(count, k=-1)


def _chance(
    values: Array, random: np.random.Generator, significance: float, permutations: int
) -> float:
    """Return the p value of the best split: the share of permuted series whose best split is as good.

    Stops once the p value is above `significance`, and returns the share until then (Besag and Clifford 1991).
    """
    energy = _best_split(values)[1] * (1 - 1e-12)
    allowed, exceeding = significance * (permutations + 1) - 1, 0
    for done in range(1, permutations + 1):
        exceeding += _best_split(random.permutation(values))[1] >= energy
        if exceeding > allowed:
            return max(exceeding / done, float(np.nextafter(significance, 1)))
    return (1 + exceeding) / (1 + permutations)


def _change_point(values: Array, start: int, at: int, end: int) -> ChangePoint:
    before, after = values[start:at], values[at:end]
    places = start + _likely_places(values[start:end])
    return ChangePoint(
        at, min(at, int(places.min())), max(at, int(places.max())), welch(after, before)
    )


def _likely_places(values: Array) -> npt.NDArray[np.int64]:
    """Return the places that hold a single change with a probability of 95 %, most likely first.

    The posterior of a change of the mean of independent normal values with flat priors on place, means and ln spread:
    [n m]^(-1/2) S^(-(n + m - 2) / 2), S the sum of squares about the two means.
    """
    count = len(values)
    at = np.arange(1, count)
    centred = values - values.mean()
    between = np.cumsum(centred)[:-1] ** 2 * count / (at * (count - at))
    squares = np.maximum(float((centred**2).sum()) - between, np.finfo(float).tiny)
    logs = -0.5 * np.log(at * (count - at)) - (count - 2) / 2 * np.log(squares)
    weights = np.exp(logs - logs.max())
    order = np.argsort(-weights, kind="stable")
    held = np.cumsum(weights[order]) / weights.sum()
    return at[order[: int(np.searchsorted(held, _CONFIDENCE)) + 1]]
