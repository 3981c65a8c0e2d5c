"""Intervals, p values and sample sizes on the ln scale. Pure arithmetic: nothing here knows a table or a file.

A difference of logarithms is a ratio: 0.05 is +5.1 %. Student's t comes from scipy.special: the objects of scipy.stats
take a hundred times as long for one value, and sample sizes are searched value by value. scipy.stats is imported where
it is used: it takes as long as reading a run, and most jobs that import this module never compare.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

Array = npt.NDArray[np.float64]


def t_quantile(probability: float, df: float) -> float:
    """Return the quantile of Student's t distribution."""
    return float(special.stdtrit(df, probability))


def t_tail(value: float, df: float) -> float:
    """Return the probability that Student's t exceeds `value`."""
    return float(special.stdtr(df, -value))


def half_width(values: Array, confidence: float = 0.95) -> float:
    """Return half the width of the t interval of a mean; NaN with fewer than two values."""
    count = len(values)
    if count < 2:
        return np.nan
    return t_quantile((1 + confidence) / 2, count - 1) * float(np.std(values, ddof=1) / np.sqrt(count))


def mean_interval(logs: Array, confidence: float = 0.95) -> tuple[float, float]:
    """Return the t interval of a geometric mean from values on the ln scale; NaN with fewer than two values."""
    half = half_width(logs, confidence)
    return (np.nan, np.nan) if np.isnan(half) else _around(float(np.exp(np.mean(logs))), half)


def batch_means(rates: Array, confidence: float = 0.95) -> tuple[float, float]:
    """Return the interval of a closed loop's rate from the rates of successive equal parts of one run.

    Student's t with len - 1 degrees of freedom, its standard error carried to the ln scale (relative to the mean); NaN
    where nothing was delivered. Parts are taken as independent: a diagnostic of one run, not of runs.
    """
    mean = float(rates.mean()) if len(rates) else 0.0
    return _around(mean, half_width(rates, confidence) / mean) if mean > 0 else (np.nan, np.nan)


def compound_poisson(tokens: Array, seconds: float, confidence: float = 0.95) -> tuple[float, float]:
    """Return the interval of an open loop's rate, tok/s, from the tokens that each conversation delivered.

    Conversations arrive independently, each with its own amount: SE(ln X) = sqrt(sum T_c^2) / sum T_c, Student's t with
    n_c - 1 degrees of freedom. Those that delivered nothing do not count; NaN with fewer than two.
    """
    amounts = tokens[tokens > 0]
    if len(amounts) < 2:
        return np.nan, np.nan
    total = float(amounts.sum())
    half = t_quantile((1 + confidence) / 2, len(amounts) - 1) * float(np.sqrt((amounts**2).sum())) / total
    return _around(total / seconds, half)


def _around(value: float, half: float) -> tuple[float, float]:
    """Return the ends of an interval of `half` the width on the ln scale."""
    return value * float(np.exp(-half)), value * float(np.exp(half))


@dataclass(frozen=True)
class Contrast:
    """An estimated difference on the ln scale with its standard error and degrees of freedom."""

    theta: float
    se: float
    df: float
    method: str

    def interval(self, confidence: float) -> tuple[float, float]:
        """Return Student's t interval on the ln scale."""
        half = t_quantile((1 + confidence) / 2, self.df) * self.se
        return self.theta - half, self.theta + half

    def p_difference(self) -> float:
        """Return the two-sided p value of no difference."""
        if self.se == 0:
            return 1.0 if self.theta == 0 else 0.0
        return 2 * t_tail(abs(self.theta) / self.se, self.df)

    def p_equivalence(self, margin: float) -> float:
        """Return the larger of the two one-sided p values against +-ln(1 + margin) (TOST)."""
        bound = np.log1p(margin)
        if self.se == 0:
            return 0.0 if abs(self.theta) < bound else 1.0
        return t_tail((bound - abs(self.theta)) / self.se, self.df)


Pairs = Sequence[tuple[int, int]]


def contrasts(logs: Array, pairs: Pairs | None = None, method: str = "blocks") -> list[Contrast]:
    """Return differences between cells from a complete table of ln values, runs x cells.

    `pairs`: which columns, as (arm, reference); by default every other column against the first. Randomised complete
    blocks: theta = difference of means, SE = sqrt(2 s2 / R) with s2 the mean square of what cells and blocks leave,
    (R - 1)(K - 1) degrees of freedom. Where the cells' spreads differ more than threefold, or with method "paired", a
    common s2 is wrong and each pair uses its own differences, R - 1 degrees of freedom.
    """
    runs, cells = logs.shape
    if runs < 2 or cells < 2:
        raise ValueError(f"{runs} runs of {cells} cells cannot be compared; at least two of each are needed")
    pairs = pairs or [(cell, 0) for cell in range(1, cells)]
    means = logs.mean(axis=0)
    if method == "paired" or unequal_spread(logs):
        paired = np.column_stack([logs[:, arm] - logs[:, reference] for arm, reference in pairs])
        errors = paired.std(axis=0, ddof=1) / np.sqrt(runs)
        return [
            Contrast(float(means[arm] - means[reference]), float(error), runs - 1, "paired")
            for (arm, reference), error in zip(pairs, errors, strict=True)
        ]
    residual = residuals(logs)
    freedom = (runs - 1) * (cells - 1)
    error = float(np.sqrt(2 * (residual**2).sum() / freedom / runs))
    return [Contrast(float(means[arm] - means[reference]), error, freedom, "blocks") for arm, reference in pairs]


def residuals(logs: Array) -> Array:
    """Return what cells and blocks leave of a table of ln values, runs x cells."""
    centred: Array = logs - logs.mean(axis=0) - logs.mean(axis=1, keepdims=True) + logs.mean()
    return centred


def unequal_spread(logs: Array, ratio: float = 3.0) -> bool:
    """Whether the cells' spreads differ by more than `ratio`, and by more than chance (Bartlett's test).

    Spreads about each block's median: what all cells of a block share is no spread of any of them, and one cell that
    varies much does not lend its variation to the others, as it would through the block's mean. Two cells need no such
    question, their blocks are their pairs; and two runs do not answer it.
    """
    from scipy.stats import bartlett  # noqa: PLC0415

    if logs.shape[0] < 3 or logs.shape[1] < 3:
        return False
    freed: Array = logs - np.median(logs, axis=1, keepdims=True)
    spreads = freed.std(axis=0, ddof=1)
    if not spreads.max() > ratio * spreads.min():
        return False
    # Falling back without need costs power, failing to do so coverage: benchmarks/bench_statistics.py shows both. Of
    # three cells the median is one of them, which by itself makes spreads look unequal.
    chance = 0.01 if logs.shape[1] == 3 else 0.03
    return bool(spreads.min() == 0 or bartlett(*freed.T).pvalue < chance)


def welch(arm: Array, reference: Array) -> Contrast:
    """Return the difference of two independent samples of ln values (Welch 1947); at least two values each."""
    from scipy.stats import sem, ttest_ind  # noqa: PLC0415

    theta, error = float(np.mean(arm) - np.mean(reference)), float(np.hypot(sem(arm), sem(reference)))
    df = ttest_ind(arm, reference, equal_var=False).df if error else len(arm) + len(reference) - 2
    return Contrast(theta, error, float(df), "independent")


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's step-down adjusted p values, in the order given."""
    order = np.argsort(p_values, kind="stable")
    count = len(p_values)
    stepped = [min(1.0, (count - rank) * p_values[index]) for rank, index in enumerate(order)]
    adjusted = np.empty(count)
    adjusted[order] = np.maximum.accumulate(stepped) if count else []
    return [float(value) for value in adjusted]


def runs_to_resolve(sd: float, margin: float, cells: int = 3, alpha: float = 0.05, power: float = 0.8) -> int | None:
    """Return the runs per arm that find a difference of `margin` with the given power; `sd` is on the ln scale.

    Unadjusted for the number of comparisons; `cells` sets the degrees of freedom. None above 1,000 runs.
    """
    if sd == 0:
        return 2

    def sufficient(runs: int) -> bool:
        freedom = (runs - 1) * (max(cells, 2) - 1)
        shift = np.log1p(margin) / (sd * np.sqrt(2 / runs))
        return bool(1 - special.nctdtr(freedom, shift, t_quantile(1 - alpha / 2, freedom)) >= power)

    # Upwards one by one: far beyond the answer the noncentral t cannot be computed.
    return next((runs for runs in range(2, 1001) if sufficient(runs)), None)


def parity_power(sd: float, margin: float, runs: int, cells: int = 2, alpha: float = 0.05) -> float:
    """Return the chance that two one-sided tests show parity where there is no difference at all.

    Unadjusted for the number of comparisons. The standard error is itself estimated, so the chance is averaged over its
    distribution: with three runs a small estimate often passes what the true spread would not.
    """
    if sd == 0:
        return 1.0
    freedom = (runs - 1) * (max(cells, 2) - 1)
    shares = (np.arange(400) + 0.5) / 400
    estimated = np.sqrt(special.chdtri(freedom, shares) / freedom)
    bound = np.log1p(margin) / (sd * np.sqrt(2 / runs))
    return float(np.clip(2 * special.ndtr(bound - t_quantile(1 - alpha, freedom) * estimated) - 1, 0, None).mean())
