"""Intervals, p values and sample sizes on the ln scale. Pure arithmetic: nothing here knows a table or a file.

A difference of logarithms is a ratio: 0.05 is +5.1 %. Student's t comes from scipy.special: scipy.stats takes a hundred
times as long for one value, and the search for a sample size needs many; its import takes as long as reading a run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kveval.estimators.distributions import distributions
from kveval.estimators.spreads import (
    Array,
    Spreads,
    Variance,
    spreads_differ,
    sum_of_variances,
)


def t_quantile(probability: float, df: float) -> float:
    """Return the quantile of Student's t distribution."""
    return float(distributions().stdtrit(df, probability))


def percent(logarithm: float) -> float:
    """Return a difference of logarithms in per cent of the reference; infinite where it is, as at an early look."""
    with np.errstate(over="ignore"):
        return float(100 * np.expm1(logarithm))


def half_width(values: Array, confidence: float = 0.95) -> float:
    """Return half the width of the t interval of a mean; NaN with fewer than two values."""
    count = len(values)
    if count < 2:
        return np.nan
    return t_quantile((1 + confidence) / 2, count - 1) * float(
        np.std(values, ddof=1) / np.sqrt(count)
    )


def mean_interval(logs: Array, confidence: float = 0.95) -> tuple[float, float]:
    """Return the t interval of a geometric mean from values on the ln scale; NaN with fewer than two values."""
    if len(logs) < 2:
        return np.nan, np.nan
    mean, half = float(np.mean(logs)), half_width(logs, confidence)
    return float(np.exp(mean - half)), float(np.exp(mean + half))


@dataclass(frozen=True)
class Contrast:
    """An estimated difference on the ln scale with its standard error and degrees of freedom.

    `floor`: a lower bound of the standard error, known without the spread of the runs; an estimate below it is chance.
    `below`, `above`: how far the truth may lie under and over the difference because of biases of known sign.
    """

    theta: float
    se: float
    df: float
    floor: float = 0.0
    below: float = 0.0
    above: float = 0.0

    def interval(self, confidence: float) -> tuple[float, float]:
        """Return Student's t interval on the ln scale, no narrower than the normal one of `floor`, plus the biases."""
        quantile = (1 + confidence) / 2
        half = max(
            t_quantile(quantile, self.df) * self.se,
            float(distributions().ndtri(quantile)) * self.floor,
        )
        return self.theta - half - self.below, self.theta + half + self.above

    def p_difference(self) -> float:
        """Return the two-sided p value of no difference, after the biases have explained as much of it as they can."""
        left = abs(self.theta) - (self.below if self.theta > 0 else self.above)
        return min(1.0, 2 * self._tail(max(left, 0.0)))

    def p_equivalence(self, margin: float) -> float:
        """Return the larger of the two one-sided p values against +-ln(1 + margin) (TOST), with the biases in full."""
        farthest = max(self.theta + self.above, self.below - self.theta)
        return self._tail(float(np.log1p(margin)) - farthest)

    def p_cost(self, margin: float, *, more_is_better: bool) -> float:
        """Return the one-sided p value against a loss of ln(1 + margin) or more, with the bias to that side in full."""
        loss = self.below - self.theta if more_is_better else self.theta + self.above
        return self._tail(float(np.log1p(margin)) - loss)

    def with_error(self, systematic: float) -> Contrast:
        """Return the contrast with a further standard error that all runs share; df after Satterthwaite (1946)."""
        if not systematic > 0:
            return self
        error = float(np.hypot(self.se, systematic))
        df = min(_MANY, self.df / max((self.se / error) ** 4, 1 / _MANY))
        return replace(
            self, se=error, df=df, floor=float(np.hypot(self.floor, systematic))
        )

    def _tail(self, distance: float) -> float:
        """The probability that chance exceeds a distance, by the standard error or `floor`, whichever gives more."""
        if self.se == 0 and self.floor == 0:
            return 0.0 if distance > 0 else 1.0
        by_runs = (
            float(distributions().stdtr(self.df, -distance / self.se))
            if self.se > 0
            else 0.0
        )
        return max(
            by_runs,
            float(distributions().ndtr(-distance / self.floor))
            if self.floor > 0
            else 0.0,
        )


# Degrees of freedom at which Student's t is as good as normal.
_MANY = 1e6
Pairs = Sequence[tuple[int, int]]


def contrasts(logs: Array, pairs: Pairs | None = None) -> list[Contrast]:
    """Return differences between cells from a complete table of ln values, runs x cells.

    `pairs`: columns as (arm, reference); by default every other column against the first. Randomised complete blocks:
    theta = difference of means. All arms share one variance: the mean square of the residuals after arms and blocks.
    The baseline, the column that most pairs refer to, has its own, as baselines are often quieter or noisier: that of
    its distance from the arms' mean. The two are independent; Satterthwaite's (1946) degrees of freedom lie between
    R - 1 and those of all. From five runs on, a baseline whose spread does not differ shares that of the arms, with
    (R - 1)(K - 1) degrees of freedom; an arm noisier than the others has its own (`spreads.Spreads`). Where the cells'
    spreads differ more than threefold, each pair uses its own differences, with R - 1, as two cells always do.
    """
    runs, cells = logs.shape
    if runs < 2 or cells < 2:
        raise ValueError(
            f"{runs} runs of {cells} cells cannot be compared; at least two of each are needed"
        )
    pairs = pairs or [(cell, 0) for cell in range(1, cells)]
    means = logs.mean(axis=0)
    spreads = Spreads(
        logs, Counter(reference for _, reference in pairs).most_common(1)[0][0]
    )
    variance_of = spreads.paired_variance if spreads_differ(logs) else spreads.variance
    estimates = []
    for arm, reference in pairs:
        variance = variance_of(arm, reference)
        error = float(np.sqrt(variance.value / runs))
        difference = float(means[arm] - means[reference])
        estimates.append(Contrast(difference, error, variance.df))
    return estimates


def welch(arm: Array, reference: Array) -> Contrast:
    """Return the difference of two independent samples of ln values (Welch 1947); at least two values each."""
    theta = float(np.mean(arm) - np.mean(reference))
    variance = sum_of_variances(
        *(
            Variance(float(np.var(sample, ddof=1)) / len(sample), len(sample) - 1)
            for sample in (arm, reference)
        )
    )
    df = variance.df if variance.value else len(arm) + len(reference) - 2
    return Contrast(theta, float(np.sqrt(variance.value)), float(df))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's step-down adjusted p values, in the order given."""
    order = np.argsort(p_values, kind="stable")
    count = len(p_values)
    stepped = [
        min(1.0, (count - rank) * p_values[index]) for rank, index in enumerate(order)
    ]
    adjusted = np.empty(count)
    adjusted[order] = np.maximum.accumulate(stepped) if count else []
    return [float(value) for value in adjusted]


def holm_levels(p_values: Sequence[float], alpha: float) -> list[float]:
    """Return the p value at which Holm's procedure tests each, in the order given: it rejects what lies below.

    Of m, the smallest is tested at alpha / m, the next at alpha / (m - 1), and so on to the first that is not rejected,
    at whose level all others stay. An interval of confidence 1 - level leaves 0 out just where Holm rejects.
    """
    order = np.argsort(p_values, kind="stable")
    levels = np.empty(len(order))
    left = len(order)
    for place, index in enumerate(order):
        if not p_values[index] < alpha / left:
            levels[order[place:]] = alpha / left
            break
        levels[index] = alpha / left
        left -= 1
    return [float(level) for level in levels]
