"""Bounds for testing a comparison after every block and stopping when it is clear, without more errors than one test at
the end would make.

Alpha spending after Lan and DeMets (1983) with the function that resembles O'Brien and Fleming's (1979) bounds: almost
nothing is spent early. The bounds are those of a normal statistic, found by recursive integration (Armitage, McPherson
and Rowe 1969); as blocks are few, a bound is applied as a p value to Student's t (Jennison and Turnbull 2000, section
11.4). benchmarks/bench_check.py shows the error rate of this approximation on real runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from scipy import special
from scipy.optimize import brentq

from kveval.estimators.intervals import Contrast, contrasts, percent
from kveval.estimators.spreads import Array

Answer = Literal["better", "worse", "equal", "open"]
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(200)
# The probability beyond this many standard deviations is neglected.
_FARTHEST = 20.0
_MOST_BLOCKS = 100


def alpha_spent(fraction: float, alpha: float) -> float:
    """Return how much of a two-sided error rate may be spent once this fraction of the information has been collected.

    Half of it on each side.
    """
    return float(4 * special.ndtr(special.ndtri(alpha / 4) / np.sqrt(fraction)))


@cache
def nominal_levels(first: int, budget: int, alpha: float) -> dict[int, float]:
    """Return the two-sided p value below which each look stops: blocks -> level, from `first` blocks to `budget`.

    All looks together find a difference in a share `alpha` of the comparisons in which there is none.
    """
    levels: dict[int, float] = {}
    density, places, weights = np.array([1.0]), np.array([0.0]), np.array([1.0])
    before, so_far = 0.0, 0.0
    for blocks in range(first, budget + 1):
        fraction = blocks / budget
        step = np.sqrt(fraction - before)
        mass, to_spend = density * weights, alpha_spent(fraction, alpha) - so_far

        def leaving(
            bound: float, step: float = step, mass: Array = mass, places: Array = places
        ) -> float:
            away = special.ndtr((places - bound) / step) + special.ndtr(
                (-bound - places) / step
            )
            return float(mass @ away)

        farthest = _FARTHEST * np.sqrt(fraction)
        bound = brentq(lambda at: leaving(at) - to_spend, 0.0, farthest, xtol=1e-10)  # noqa: B023
        levels[blocks] = float(2 * special.ndtr(-bound / np.sqrt(fraction)))
        inside, spread = bound * _NODES, (bound * _NODES[:, None] - places) / step
        density = np.exp(-(spread**2) / 2) @ mass / (step * np.sqrt(2 * np.pi))
        places, weights = inside, bound * _WEIGHTS
        before, so_far = fraction, alpha_spent(fraction, alpha)
    return levels


@dataclass(frozen=True)
class Design:
    """The looks at a comparison, declared before the first: after each of `first` to `budget` blocks.

    `margin`: relative difference that does not matter; `alpha`: the rate of false differences over all `comparisons`
    together (each has its part), and of false equalities in each (all must be equal, so no part is needed).
    """

    first: int
    budget: int
    margin: float = 0.05
    alpha: float = 0.05
    comparisons: int = 1

    def difference_level(self, blocks: int) -> float:
        """Return the two-sided p value below which a look after so many blocks answers that there is a difference."""
        return nominal_levels(
            self.first, self.budget, self.alpha / self.comparisons
        ).get(blocks, 0.0)

    def equality_level(self, blocks: int) -> float:
        """Return the p value of two one-sided tests below which a look answers that the difference is within margin."""
        return (
            nominal_levels(self.first, self.budget, 2 * self.alpha).get(blocks, 0.0) / 2
        )


@dataclass(frozen=True)
class Look:
    """A comparison after some blocks, candidate against base; `effect` in per cent.

    `low`, `high`: the interval of `effect`, valid for all looks together, in per cent; `sd`: standard deviation of one
    block's difference of ln values.
    """

    blocks: int
    answer: Answer
    effect: float = np.nan
    low: float = np.nan
    high: float = np.nan
    p_difference: float = np.nan
    p_equality: float = np.nan
    sd: float = np.nan


def evaluate_look(
    base: Array, candidate: Array, design: Design, *, more_is_better: bool = True
) -> Look:
    """Return the result after some blocks, from the paired ln values of two builds, one pair per block.

    "better" or "worse" needs a significant difference whose estimate exceeds the margin; "equal" one within the margin.
    """
    blocks = len(base)
    if blocks < max(design.first, 2):
        return Look(blocks, "open")
    (contrast,) = contrasts(np.column_stack([base, candidate]))
    level = design.difference_level(blocks)
    low, high = (percent(end) for end in contrast.interval(1 - level))
    answer = _answer(contrast, design, blocks, more_is_better=more_is_better)
    p_equality = contrast.p_equivalence(design.margin)
    sd = contrast.se * float(np.sqrt(blocks))
    return Look(
        blocks,
        answer,
        percent(contrast.theta),
        low,
        high,
        contrast.p_difference(),
        p_equality,
        sd,
    )


def blocks_for_equality(sd: float, design: Design) -> int | None:
    """Return about how many blocks show with 90 % power that equal builds are equal; None for more than 100.

    `sd`: standard deviation of one block's differences of ln values, as seen so far.
    """
    blocks = np.arange(design.first, _MOST_BLOCKS + 1)
    needed = special.stdtrit(blocks - 1, 1 - design.alpha) + special.ndtri(0.95)
    enough = blocks[needed * sd / np.sqrt(blocks) <= np.log1p(design.margin)]
    return int(enough[0]) if len(enough) else None


def _answer(
    contrast: Contrast, design: Design, blocks: int, *, more_is_better: bool
) -> Answer:
    if contrast.p_equivalence(design.margin) < design.equality_level(blocks):
        return "equal"
    beyond = contrast.theta > np.log1p(design.margin) or contrast.theta < np.log1p(
        -design.margin
    )
    if contrast.p_difference() < design.difference_level(blocks) and beyond:
        return "better" if (contrast.theta > 0) == more_is_better else "worse"
    return "open"
