"""Uncertainty known from single runs: noise that the spread of few runs can hide, and biases of known sign.

Nothing here refuses a comparison: it widens intervals and moves the hypotheses that are tested.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kveval.analysis.cells import THROUGHPUT
from kveval.analysis.estimators.intervals import Contrast
from kveval.analysis.levels.checks import STARVED
from kveval.analysis.levels.goodput import GOODPUT
from kveval.analysis.levels.noise import uneven
from kveval.analysis.statistics.evidence import Rows, number

COLUMNS = (
    *("throughput_se", "throughput_cut", "throughput_drift", "throughput_drift_se", "concurrency_shortfall"),
    *("concurrency_mean", "e2e_ms_mean"),
)
"""Columns of a level that say it, beside `METRIC_se` of each latency."""
# The spread of runs holds the noise within runs already: with all of it as the floor, intervals of three runs that
# differ by nothing else would cover 98.7 %, not 95; with half of it they cover 96.
FLOOR = 0.5
"""Of the noise within runs, the part that the standard error cannot fall below."""
_CUT = {THROUGHPUT: "throughput_cut", GOODPUT: "goodput_cut"}
# An effect that changed by D from the first third to the last one, taken to change evenly, lies anywhere within 1.5 D.
_EVENLY = 1.5 / np.sqrt(12)


@dataclass(frozen=True)
class Starvation:
    """By which share fewer requests were in flight than asked for, in the reference and in the arm; means over runs.

    Of no consequence up to 5 % in both.
    """

    reference: float = 0.0
    arm: float = 0.0

    def __bool__(self) -> bool:
        return max(self.reference, self.arm) > STARVED

    @property
    def bound(self) -> int:
        """1: the truth is above the difference that was measured, -1: below; 0: both were held back, or neither."""
        if not self or min(self.reference, self.arm) > STARVED:
            return 0
        return 1 if self.arm > self.reference else -1

    def text(self) -> str:
        """Return who was held back by how much, as the reason of a comparison; "" if nobody was."""
        held = {"the arm": self.arm, "what it is compared with": self.reference}
        said = [f"{100 * share:.0f} % in {who}" for who, share in held.items() if share > STARVED]
        return f"fewer requests in flight than asked for, by {' and '.join(said)}" if said else ""


def starvation(reference: Rows, arm: Rows) -> Starvation:
    """Return by how much the load generator fell short of a closed loop's concurrency, in both."""
    return Starvation(_mean(reference, "concurrency_shortfall"), _mean(arm, "concurrency_shortfall"))


def allowing_for(contrast: Contrast, reference: Rows, arm: Rows, metric: str) -> Contrast:
    """Return a contrast with what the levels it rests on say of their own noise and biases; rows are one a run."""
    floor = FLOOR * float(np.hypot(_error_of_mean(reference, metric), _error_of_mean(arm, metric)))
    cut = _CUT.get(metric)
    cut_of_both = float(np.hypot(_mean(reference, cut), _mean(arm, cut))) if cut else 0.0
    systematic = float(np.hypot(cut_of_both, _drift(reference, arm)))
    below = above = 0.0
    if starvation(reference, arm):
        below, above = _bias(reference, metric), _bias(arm, metric)
    return replace(contrast, floor=floor, below=below, above=above).with_error(systematic)


def _error_of_mean(rows: Rows, metric: str) -> float:
    """The standard error of the mean over runs from the noise within each."""
    errors = _values(rows, "throughput_se" if metric == THROUGHPUT else f"{metric}_se")
    return float(np.sqrt((np.nan_to_num(errors) ** 2).sum())) / len(rows) if len(rows) else 0.0


def _drift(reference: Rows, arm: Rows) -> float:
    """The standard error of an effect that was not the same at both ends of the windows; runs share it.

    Levels that change alike leave the effect as it is. In a closed loop latencies change as the inverse of throughput.
    """
    change = _mean(arm, "throughput_drift") - _mean(reference, "throughput_drift")
    errors = [np.nan_to_num(_values(rows, "throughput_drift_se")) for rows in (reference, arm)]
    error = float(np.sqrt(sum((each**2).sum() / max(len(each), 1) ** 2 for each in errors)))
    return float(_EVENLY * abs(change)) if uneven(change, error) else 0.0


def _bias(rows: Rows, metric: str) -> float:
    """How far at most the mean of ln of a metric would rise if as many requests were in flight as asked for.

    More streams deliver no less in all, and no more each: throughput rises at most as their number, by -ln(1 - s) with
    s the shortfall. By Little's law the mean latency then rises by at most D = mean latency (1 / (1 - s) - 1). All of D
    may be waiting for the first token, all of it decoding; quantiles are taken to move with the mean.
    """
    found = [_rise(row, metric) for row in rows]
    return float(np.mean(found)) if found else 0.0


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


def _values(rows: Rows, column: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([number(row, column) for row in rows], dtype=np.float64)


def _mean(rows: Rows, column: str) -> float:
    """The mean over runs, with 0 for what is not known."""
    return float(np.nan_to_num(_values(rows, column)).mean()) if len(rows) else 0.0
