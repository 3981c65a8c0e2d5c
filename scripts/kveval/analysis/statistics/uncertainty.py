"""Uncertainty known from single runs: noise that the spread of few runs can hide, and biases of known sign.

Nothing here prevents a verdict: noise and biases widen intervals and shift the tested hypotheses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kveval.analysis.cells import THROUGHPUT
from kveval.analysis.estimators.intervals import Contrast
from kveval.analysis.levels.checks_level import STARVED
from kveval.analysis.levels.goodput import GOODPUT
from kveval.analysis.levels.noise import is_unsteady
from kveval.analysis.statistics.sides import Rows, number, numbers

COLUMNS = (
    *(
        "throughput_se",
        "throughput_cut",
        "throughput_drift",
        "throughput_drift_se",
        "concurrency_shortfall",
    ),
    *("concurrency_mean", "e2e_ms_mean"),
)
"""Columns of a level that these errors are computed from, besides `METRIC_se` of each latency."""
# The spread of runs contains the noise within runs already: with all of it as the floor, 95 % intervals of three runs
# that differ by this noise only would cover 98.7 %; with half of it they cover 96 %.
FLOOR = 0.5
"""The share of the noise within runs below which the standard error cannot fall."""
_CUT = {THROUGHPUT: "throughput_cut", GOODPUT: "goodput_cut"}
# If an effect changes evenly, by D from the first third to the last, its values are uniform over a range of 1.5 D.
_EVENLY = 1.5 / np.sqrt(12)


@dataclass(frozen=True)
class Starvation:
    """The shares by which requests in flight fell short of those asked for, in reference and arm; means over runs.

    Up to 5 % in both is ignored.
    """

    reference: float
    arm: float

    def __bool__(self) -> bool:
        return max(self.reference, self.arm) > STARVED

    @property
    def bound(self) -> int:
        """1: the true difference is above the measured one, -1: below; 0: unknown, as both fell short or neither."""
        if not self or min(self.reference, self.arm) > STARVED:
            return 0
        return 1 if self.arm > self.reference else -1


def starvation(reference: Rows, arm: Rows) -> Starvation:
    """Return by how much the load generator fell short of a closed loop's streams, on both sides."""
    return Starvation(
        _mean(reference, "concurrency_shortfall"), _mean(arm, "concurrency_shortfall")
    )


def widen_by_noise(
    contrast: Contrast, reference: Rows, arm: Rows, metric: str
) -> Contrast:
    """Return a contrast widened by the noise and biases within its levels; `reference` and `arm`: one row per run."""
    error = "throughput_se" if metric == THROUGHPUT else f"{metric}_se"
    floor = FLOOR * float(
        np.hypot(_error_of_mean(reference, error), _error_of_mean(arm, error))
    )
    cut = _CUT.get(metric)
    cut_of_both = (
        float(np.hypot(_mean(reference, cut), _mean(arm, cut))) if cut else 0.0
    )
    systematic = float(np.hypot(cut_of_both, _drift(reference, arm)))
    below = above = 0.0
    if starvation(reference, arm):
        below, above = _bias(reference, metric), _bias(arm, metric)
    return replace(contrast, floor=floor, below=below, above=above).with_error(
        systematic
    )


def _error_of_mean(rows: Rows, column: str) -> float:
    """The standard error of the mean over runs from that of each."""
    return float(np.linalg.norm(np.nan_to_num(numbers(rows, column)))) / max(
        len(rows), 1
    )


def _drift(reference: Rows, arm: Rows) -> float:
    """The standard error, shared by all runs, of an effect that changed during the windows.

    If both sides change alike, the effect stays the same. In a closed loop latencies change inversely to throughput.
    """
    change = _mean(arm, "throughput_drift") - _mean(reference, "throughput_drift")
    error = math.hypot(
        *(_error_of_mean(rows, "throughput_drift_se") for rows in (reference, arm))
    )
    return float(_EVENLY * abs(change)) if is_unsteady(change, error) else 0.0


def _bias(rows: Rows, metric: str) -> float:
    """The largest rise of the mean of ln of a metric if as many requests were in flight as asked for.

    With more streams, total throughput does not fall and throughput per stream does not rise, so throughput rises by at
    most -ln(1 - s), s the shortfall. By Little's law the mean latency rises by at most D = mean latency
    (1 / (1 - s) - 1). All of D may be in TTFT, or all in decoding; quantiles are assumed to move with the mean.
    """
    return float(np.mean([_rise(row, metric) for row in rows])) if rows else 0.0


def _rise(row: Mapping[str, Any], metric: str) -> float:
    short = float(np.nan_to_num(number(row, "concurrency_shortfall")))
    if short <= 0:
        return 0.0
    if metric == GOODPUT or short >= 1:
        return np.inf
    if metric == THROUGHPUT:
        return float(-np.log1p(-short))
    name, quantile = metric.split("_ms_")
    longer = number(row, "e2e_ms_mean") * (1 / (1 - short) - 1)
    whole, first = number(row, f"e2e_ms_{quantile}"), number(row, f"ttft_ms_{quantile}")
    of = {"ttft": first, "itl": whole - first}.get(name, whole)
    return float(np.log1p(longer / of)) if of > 0 and longer >= 0 else np.inf


def _mean(rows: Rows, column: str) -> float:
    """The mean over runs; unknown values count as 0."""
    return float(np.nan_to_num(numbers(rows, column)).mean()) if len(rows) else 0.0
