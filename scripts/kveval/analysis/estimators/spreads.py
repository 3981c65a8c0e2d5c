"""The spread of runs: one for all cells that are alike, another for each that is not.

Tables are ln values, runs x cells, complete. Few runs cannot always tell a noisy cell from quiet ones, so that the
tests here lean to its own spread: the more the fewer runs there are, since then a wrong "alike" costs most coverage.
benchmarks/bench_statistics.py shows what each choice costs and gains.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy import special

Array = npt.NDArray[np.float64]
# From so many runs on the spread of one cell can be told from that of others at all.
TESTABLE_RUNS = 5


@dataclass(frozen=True)
class Variance:
    """Of the difference of two cells in one run, with its degrees of freedom."""

    value: float
    df: float


def _sum(*parts: Variance) -> Variance:
    """The sum of independent estimates; degrees of freedom after Satterthwaite (1946)."""
    value = sum(part.value for part in parts)
    weights = sum(part.value**2 / part.df for part in parts)
    return Variance(value, value**2 / weights if weights else min(part.df for part in parts))


@dataclass(frozen=True)
class Spreads:
    """The variances of a table of which `baseline` is the column that most comparisons refer to.

    Arms share a spread, the baseline has its own, a noisy arm has its own. Two cells are their paired differences.
    """

    logs: Array
    baseline: int

    def of(self, arm: int, reference: int) -> Variance:
        """Return the variance of a run's difference of two columns."""
        noisy = [cell for cell in (arm, reference) if self._noisy(cell)]
        with_baseline = self.baseline in (arm, reference)
        if not noisy:
            return self._with_baseline if with_baseline else Variance(2 * self._among, self._free * (self._arms - 1))
        if with_baseline and self._arms > 2:
            return self._of_noisy(noisy[0])
        return self.paired(arm, reference)

    def paired(self, arm: int, reference: int) -> Variance:
        """Return the variance of the differences of two columns, from these alone."""
        return Variance(float(np.var(self.logs[:, arm] - self.logs[:, reference], ddof=1)), self._free)

    @property
    def _free(self) -> int:
        return len(self.logs) - 1

    @property
    def _arms(self) -> int:
        return int(self.logs.shape[1]) - 1

    @cached_property
    def _among(self) -> float:
        """The variance of one run of an arm, blocks taken out."""
        return float(self._squares.sum()) / (self._free * max(self._arms - 1, 1))

    @cached_property
    def _squares(self) -> Array:
        """Residuals of the table of arms, squared and summed over runs, by column; 0 for the baseline."""
        arms = np.arange(self.logs.shape[1]) != self.baseline
        found = np.zeros(len(arms))
        found[arms] = (residuals(self.logs[:, arms]) ** 2).sum(axis=0)
        return found

    @cached_property
    def _apart(self) -> float:
        """The variance of the baseline's distance from the mean of the arms."""
        return float(
            np.var(self.logs[:, self.baseline] - np.delete(self.logs, self.baseline, axis=1).mean(axis=1), ddof=1)
        )

    @cached_property
    def _baseline_alike(self) -> bool:
        """Whether a baseline of runs enough to tell shows no other spread than the arms: F test, both sides 3 %."""
        if len(self.logs) < TESTABLE_RUNS:
            return False
        if not (self._apart > 0 and self._among > 0):
            return self._apart == self._among
        ratio = self._apart * self._arms / (self._arms + 1) / self._among
        below = float(special.fdtr(self._free, self._free * (self._arms - 1), ratio))
        return 0.03 < below < 0.97

    @cached_property
    def _with_baseline(self) -> Variance:
        """Of a quiet arm's difference from the baseline."""
        if self._arms < 2:
            return Variance(self._apart, self._free)
        if self._baseline_alike:
            df = self._free * self._arms
            return Variance(2 * float((residuals(self.logs) ** 2).sum()) / df, df)
        ours = Variance(self._among * (self._arms - 1) / self._arms, self._free * (self._arms - 1))
        return _sum(ours, Variance(self._apart, self._free))

    def _noisy(self, cell: int) -> bool:
        """Whether an arm's runs differ more than those of the other arms: F test, one-sided."""
        if cell == self.baseline or self._arms < 2:
            return False
        few = len(self.logs) < TESTABLE_RUNS
        if self._arms == 2:
            # Nothing is left to compare with but the two arms and the baseline together.
            found, rest = self.paired(cell, self.baseline), self._with_baseline
            return _exceeds(found, rest, 0.4 if few else 0.2)
        alone, others = self._alone(cell)
        limit = (0.4 if self._arms == 3 else 0.3) if few else 0.4 / self._arms
        return _exceeds(Variance(alone.value * (self._arms - 1) / self._arms, alone.df), others, limit)

    def _alone(self, cell: int) -> tuple[Variance, Variance]:
        """The variance of an arm's distance from the mean of the other arms; that of one run of those."""
        # An arm lies n / (n - 1) of what is left of it from the mean of the others; without it, as much of its squares
        # is gone from all.
        more, df = self._arms / (self._arms - 1), self._free * (self._arms - 2)
        own = more * float(self._squares[cell])
        others = max(float(self._squares.sum()) - own, 0.0)
        return Variance(more * own / self._free, self._free), Variance(others / df, df)

    def _of_noisy(self, cell: int) -> Variance:
        """Of a noisy arm's difference from the baseline: the two spreads, each about the other arms' mean."""
        alone, others = self._alone(cell)
        count = self._arms - 1
        if self._baseline_alike:
            return _sum(alone, Variance(others.value * (count - 1) / count, others.df))
        rest = np.delete(self.logs, [self.baseline, cell], axis=1)
        base = Variance(float(np.var(self.logs[:, self.baseline] - rest.mean(axis=1), ddof=1)), self._free)
        both = _sum(alone, base)
        return Variance(max(both.value - 2 * others.value / count, 0.0), both.df)


def _exceeds(one: Variance, other: Variance, chance: float) -> bool:
    if not other.value > 0:
        return one.value > 0
    return float(special.fdtrc(one.df, other.df, one.value / other.value)) < chance


def residuals(logs: Array) -> Array:
    """Return what cells and blocks leave of a table of ln values, runs x cells."""
    centred: Array = logs - logs.mean(axis=0) - logs.mean(axis=1, keepdims=True) + logs.mean()
    return centred


def unequal(logs: Array, ratio: float = 3.0) -> bool:
    """Whether the cells' spreads differ by more than `ratio`, and by more than chance (Bartlett's test).

    Spreads about each block's median: what all cells of a block share is no spread of any of them, and one cell that
    varies much does not lend its variation to the others, as it would through the block's mean. Two cells need no such
    question, their blocks are their pairs; and two runs do not answer it.
    """
    from scipy.stats import bartlett  # noqa: PLC0415

    runs, cells = logs.shape
    if runs < 3 or cells < 3:
        return False
    freed: Array = logs - np.median(logs, axis=1, keepdims=True)
    spreads = freed.std(axis=0, ddof=1)
    if not spreads.max() > ratio * spreads.min():
        return False
    # Of three cells a pair is most of what there is to pool, so that its own differences cost little. From runs enough
    # on, noisy cells are told one by one.
    chance = 0.05 if cells == 3 else 0.03 if runs < TESTABLE_RUNS else 0.005
    return bool(spreads.min() == 0 or bartlett(*freed.T).pvalue < chance)
