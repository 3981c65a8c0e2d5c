"""The spread of runs: one estimate for all cells that spread alike, and one for each that does not.

Tables are ln values, runs x cells, complete. Few runs cannot always distinguish a noisy cell from quiet ones. In doubt
the tests give a cell its own spread, the more so the fewer runs there are, since then wrong pooling costs most
coverage. benchmarks/bench_statistics.py shows the costs and gains of each choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from kveval.estimators.distributions import distributions

Array = npt.NDArray[np.float64]
# With fewer runs the spread of one cell cannot be distinguished from that of others.
TESTABLE_RUNS = 5


@dataclass(frozen=True)
class Variance:
    """The variance of the difference of two cells in one run, with its degrees of freedom."""

    value: float
    df: float


def sum_of_variances(*parts: Variance) -> Variance:
    """Return the sum of independent estimates; degrees of freedom after Satterthwaite (1946)."""
    value = sum(part.value for part in parts)
    weights = sum(part.value**2 / part.df for part in parts)
    return Variance(
        value, value**2 / weights if weights else min(part.df for part in parts)
    )


@dataclass(frozen=True)
class Spreads:
    """The variances of a table in which `baseline` is the column that most comparisons refer to.

    Arms share a spread; the baseline and noisy arms have their own. With two cells, the paired differences are used.
    """

    logs: Array
    baseline: int

    def variance(self, arm: int, reference: int) -> Variance:
        """Return the variance of a run's difference of two columns."""
        noisy = [cell for cell in (arm, reference) if self._noisy(cell)]
        with_baseline = self.baseline in (arm, reference)
        if not noisy:
            return (
                self._with_baseline
                if with_baseline
                else Variance(2 * self._among, self._free * (self._arms - 1))
            )
        if with_baseline and self._arms > 2:
            return self._of_noisy(noisy[0])
        return self.paired_variance(arm, reference)

    def paired_variance(self, arm: int, reference: int) -> Variance:
        """Return the variance of the differences of two columns, from these alone."""
        return Variance(
            float(np.var(self.logs[:, arm] - self.logs[:, reference], ddof=1)),
            self._free,
        )

    @property
    def _free(self) -> int:
        return len(self.logs) - 1

    @property
    def _arms(self) -> int:
        return int(self.logs.shape[1]) - 1

    @cached_property
    def _among(self) -> float:
        """The variance of one run of an arm, with the effect of its block removed."""
        return float(self._squares.sum()) / (self._free * max(self._arms - 1, 1))

    @cached_property
    def _squares(self) -> Array:
        """Residuals of the table of arms, squared and summed over runs, by column; 0 for the baseline."""
        arms = np.arange(self.logs.shape[1]) != self.baseline
        squares = np.zeros(len(arms))
        squares[arms] = (residuals(self.logs[:, arms]) ** 2).sum(axis=0)
        return squares

    @cached_property
    def _apart(self) -> float:
        """The variance of the baseline's distance from the mean of the arms."""
        return float(
            np.var(
                self.logs[:, self.baseline]
                - np.delete(self.logs, self.baseline, axis=1).mean(axis=1),
                ddof=1,
            )
        )

    @cached_property
    def _baseline_alike(self) -> bool:
        """Whether the baseline, with enough runs to test it, spreads as the arms do: F test, 3 % on each side."""
        if len(self.logs) < TESTABLE_RUNS:
            return False
        if not (self._apart > 0 and self._among > 0):
            return self._apart == self._among
        ratio = self._apart * self._arms / (self._arms + 1) / self._among
        below = float(
            distributions().fdtr(self._free, self._free * (self._arms - 1), ratio)
        )
        return 0.03 < below < 0.97

    @cached_property
    def _with_baseline(self) -> Variance:
        """The variance of a quiet arm's difference from the baseline."""
        if self._arms < 2:
            return Variance(self._apart, self._free)
        if self._baseline_alike:
            df = self._free * self._arms
            return Variance(2 * float((residuals(self.logs) ** 2).sum()) / df, df)
        ours = Variance(
            self._among * (self._arms - 1) / self._arms, self._free * (self._arms - 1)
        )
        return sum_of_variances(ours, Variance(self._apart, self._free))

    def _noisy(self, cell: int) -> bool:
        """Whether an arm's runs differ more than those of the other arms: F test, one-sided."""
        if cell == self.baseline or self._arms < 2:
            return False
        few = len(self.logs) < TESTABLE_RUNS
        if self._arms == 2:
            # There are no other arms to compare with, only both arms and the baseline together.
            own, rest = self.paired_variance(cell, self.baseline), self._with_baseline
            return _exceeds(own, rest, 0.4 if few else 0.2)
        alone, others = self._alone(cell)
        limit = 0.4 / self._arms
        if few:
            limit = 0.4 if self._arms == 3 else 0.3
        return _exceeds(
            Variance(alone.value * (self._arms - 1) / self._arms, alone.df),
            others,
            limit,
        )

    def _alone(self, cell: int) -> tuple[Variance, Variance]:
        """The variance of an arm's distance from the mean of the other arms, and that of one run of the others."""
        # With n arms, an arm's distance from the mean of the others is n / (n - 1) times its residual; leaving it out
        # takes n / (n - 1) times its sum of squares from the total.
        more, df = self._arms / (self._arms - 1), self._free * (self._arms - 2)
        own = more * float(self._squares[cell])
        others = max(float(self._squares.sum()) - own, 0.0)
        return Variance(more * own / self._free, self._free), Variance(others / df, df)

    def _of_noisy(self, cell: int) -> Variance:
        """The variance of a noisy arm's difference from the baseline: those of both about the other arms' mean."""
        alone, others = self._alone(cell)
        count = self._arms - 1
        if self._baseline_alike:
            return sum_of_variances(
                alone, Variance(others.value * (count - 1) / count, others.df)
            )
        rest = np.delete(self.logs, [self.baseline, cell], axis=1)
        base = Variance(
            float(np.var(self.logs[:, self.baseline] - rest.mean(axis=1), ddof=1)),
            self._free,
        )
        both = sum_of_variances(alone, base)
        return Variance(max(both.value - 2 * others.value / count, 0.0), both.df)


def _exceeds(variance: Variance, reference: Variance, chance: float) -> bool:
    if not reference.value > 0:
        return variance.value > 0
    return (
        float(
            distributions().fdtrc(
                variance.df, reference.df, variance.value / reference.value
            )
        )
        < chance
    )


def residuals(logs: Array) -> Array:
    """Return the residuals of a table of ln values, runs x cells, after the means of cells and of blocks."""
    centred: Array = (
        logs - logs.mean(axis=0) - logs.mean(axis=1, keepdims=True) + logs.mean()
    )
    return centred


def spreads_differ(logs: Array, ratio: float = 3.0) -> bool:
    """Whether the cells' spreads differ by more than `ratio`, and by more than chance (Bartlett's test).

    Spreads are about each block's median, which removes what all cells of a block share. The mean would pass the
    variation of one noisy cell on to the others. Always False for two cells, whose blocks are their pairs, and for two
    runs, which are too few to test.
    """
    runs, cells = logs.shape
    if runs < 3 or cells < 3:
        return False
    freed: Array = logs - np.median(logs, axis=1, keepdims=True)
    spreads = freed.std(axis=0, ddof=1)
    if not spreads.max() > ratio * spreads.min():
        return False
    # With enough runs, noisy cells are found one by one.
    chance = 0.03 if runs < TESTABLE_RUNS else 0.005
    if cells == 3:
        # Pooling three gains little over a pair's own differences.
        chance = 0.05
    return bool(spreads.min() == 0 or bartlett(spreads**2, runs - 1) < chance)


def bartlett(variances: Array, df: int) -> float:
    """Return the p value of Bartlett's test (1937) that samples with these variances, of `df` each, have one variance.

    As scipy.stats.bartlett returns it from samples of one size, which takes a hundred times as long.
    """
    count = len(variances)
    statistic = count * df * (np.log(variances.mean()) - np.log(variances).mean())
    return float(
        distributions().chdtrc(
            count - 1, statistic / (1 + (count + 1) / (3 * count * df))
        )
    )
