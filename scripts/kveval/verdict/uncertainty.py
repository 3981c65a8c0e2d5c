"""Uncertainty known from single runs: noise that the spread of few runs can hide, and biases of known sign.

Nothing here prevents a verdict: noise and biases widen intervals and shift the tested hypotheses.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kveval.estimators.intervals import Contrast
from kveval.tables.cells import THROUGHPUT
from kveval.tables.levels.checks_level import STARVED
from kveval.tables.levels.goodput import GOODPUT
from kveval.tables.levels.noise import is_unsteady, state_bound
from kveval.tables.levels.outcomes import outcomes_of
from kveval.verdict.findings import ComparisonFinding, new_finding
from kveval.verdict.sides import Rows, Sides, number, numbers

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
# The checks that compare the tokens received with those that the server counted, over the level and in the window.
_COUNTS = ("server_tokens", "server_rate")
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
    either = sum(
        _windows_bound(rows, metric) + _count_bound(rows, metric)
        for rows in (reference, arm)
    )
    below = above = either
    if starvation(reference, arm):
        below += _bias(reference, metric)
        above += _bias(arm, metric)
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
    Windows of two states have a bound in its place, see `window_bound`.
    """
    sides = [*map(_in_one_state, (reference, arm))]
    before, after = (_mean(rows, "throughput_drift") for rows in sides)
    change = after - before
    error = math.hypot(*(_error_of_mean(rows, "throughput_drift_se") for rows in sides))
    return float(_EVENLY * abs(change)) if is_unsteady(change, error) else 0.0


def _in_one_state(rows: Rows) -> Rows:
    return [row for row in rows if not _state_bound(row)]


def window_bound(row: Mapping[str, Any], metric: str) -> float:
    """Return how far, on the ln scale, a run's rate may be off to either side because its window has two states.

    0 for latencies, which are those of all states within the window.
    """
    return _state_bound(row) if metric in _CUT else 0.0


def _state_bound(row: Mapping[str, Any]) -> float:
    change, error = (
        number(row, name) for name in ("throughput_drift", "throughput_drift_se")
    )
    return state_bound(change, error)


def _windows_bound(rows: Rows, metric: str) -> float:
    """The same of the mean over runs."""
    return float(np.mean([window_bound(row, metric) for row in rows] or [0.0]))


def unsteady_refusals(sides: Sides) -> Iterator[ComparisonFinding]:
    """Yield which windows of two states may be as much off as the difference is large, if they are."""
    both = {"arm": sides.arm, "reference": sides.reference}
    bound = sum(_windows_bound(rows, sides.metric) for rows in both.values())
    if not bound or abs(sides.difference) > bound:
        return
    windows = [
        {
            "side": side,
            "run": int(row["run"]),
            "change_percent": 100 * number(row, "throughput_drift"),
        }
        for side, rows in both.items()
        for row in rows
        if window_bound(row, sides.metric)
    ]
    yield new_finding("unsteady_windows", windows=windows, bound_ln=bound)


def _count_bound(rows: Rows, metric: str) -> float:
    """By how much the mean of ln of a rate may be off because two counts of the same tokens disagree; 0 for latencies.

    Where they disagree by x, one of them, or the clock that its rate is by, is off by x: |ln(1 + x)|, to either side.
    """
    if metric not in _CUT:
        return 0.0
    return float(np.mean([_disagreement(row) for row in rows] or [0.0]))


def _disagreement(row: Mapping[str, Any]) -> float:
    """The largest difference of ln of two counts of which a check warns; below its limit it is chance."""
    return max(
        (
            abs(math.log1p(outcome.facts["difference_percent"] / 100))
            for outcome in outcomes_of(row)
            if outcome.code in _COUNTS and outcome.severity == "warn"
        ),
        default=0.0,
    )


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
