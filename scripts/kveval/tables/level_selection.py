"""The choice of a level: the peak of a cell, the levels as good as it, and the one at which cells are compared.

The highest of several noisy values is too high on average. So a peak is evaluated on other runs than those that chose
it. If several levels of a baseline are as good as its best, the mean over all compared cells chooses among them, so
that the choice favours none of the cells.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from kveval.campaign.cell import CELL_COLUMNS
from kveval.estimators.intervals import t_quantile
from kveval.estimators.spreads import Array, residuals
from kveval.load.sample_sizes import MIN_RUNS, MOST_FAILED
from kveval.tables.cells import THROUGHPUT
from kveval.tables.levels.checks_level import STARVED
from kveval.tables.levels.goodput import GOODPUT
from kveval.tables.levels.noise import state_bound

SELECTION_COLUMNS = (
    *CELL_COLUMNS,
    *("run", "level", THROUGHPUT, GOODPUT, "goodput_met"),
    *("checks_failed", "concurrency_shortfall"),
    *("throughput_drift", "throughput_drift_se"),
)
"""Columns of a level that choose among levels."""


class OwnPeak(NamedTuple):
    """A cell's best level, and for each run the level at which it is evaluated, which other runs chose."""

    level: int | None
    by_run: Mapping[int, int]


def log_table(rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return ln of a metric, runs x levels: of the levels with a value in all runs but a few, and the runs with all.

    A run that failed at a level is left out, so that its failure does not move the choice to another level. Where that
    would leave out more than a quarter of the runs, a level that any run lacks is left out instead.
    """
    values = rows[metric].to_numpy(dtype=np.float64)
    measured = (values > 0) & np.isfinite(values)
    measured_runs = rows["run"].to_numpy()[measured]
    measured_levels = rows["level"].to_numpy()[measured]
    runs, at_run = np.unique(measured_runs, return_inverse=True)
    levels, at_level = np.unique(measured_levels, return_inverse=True)
    table = np.full((len(runs), len(levels)), np.nan)
    table[at_run, at_level] = np.log(values[measured])
    lacking = np.isnan(table)
    known = (
        lacking.mean(axis=0) <= MOST_FAILED if len(runs) else np.zeros(0, dtype=bool)
    )
    complete = ~lacking[:, known].any(axis=1)
    if complete.sum() < (1 - MOST_FAILED) * len(runs):
        known, complete = ~lacking.any(axis=0), np.ones(len(runs), dtype=bool)
    return pd.DataFrame(
        table[complete][:, known], index=runs[complete], columns=levels[known]
    )


def highest_level(logs: pd.DataFrame) -> int:
    """Return the level with the largest mean over runs."""
    return int(logs.columns[_highest(logs.to_numpy())])


def _highest(logs: Array) -> int:
    """The place of the level with the largest mean over runs, in ln of a metric, runs x levels."""
    return int(np.argmax(logs.mean(axis=0)))


def _means(logs: pd.DataFrame) -> dict[int, float]:
    """The mean over runs of each level."""
    means = logs.to_numpy().mean(axis=0).tolist()
    return dict(zip(map(int, logs.columns), means, strict=True))


def plateau(logs: pd.DataFrame, alpha: float = 0.05) -> list[int]:
    """Return the levels whose mean is not significantly below the highest; with one run, only the highest.

    Two-way residuals of runs x levels, one-sided t with Bonferroni's correction over the other levels.
    """
    runs, count = logs.shape
    means = _means(logs)
    best = highest_level(logs)
    if runs < 2 or count < 2:
        return [best]
    freedom = (runs - 1) * (count - 1)
    error = np.sqrt(
        2
        * float((residuals(logs.to_numpy(dtype=np.float64)) ** 2).sum())
        / freedom
        / runs
    )
    limit = t_quantile(1 - alpha / (count - 1), freedom) * error
    return [level for level, mean in means.items() if means[best] - mean <= limit]


def cross_fit(logs: pd.DataFrame) -> float:
    """Return the peak throughput without the bias of choosing the highest level, NaN with a single run.

    `logs`: ln throughput, runs x levels. Odd runs choose the level for even ones, and vice versa.
    """
    if len(logs) < 2:
        return np.nan
    halves = logs.iloc[0::2], logs.iloc[1::2]
    estimates = [
        float(half[highest_level(other_half)].mean())
        for half, other_half in (halves, halves[::-1])
    ]
    return float(np.exp(np.mean(estimates)))


def own_peak(rows: pd.DataFrame, metric: str) -> OwnPeak:
    """Return a cell's own peak, cross-fitted: every run is evaluated at the best level of the other half.

    Runs that failed at a level chose none, and are looked at where the others are best.
    """
    logs = log_table(rows, metric)
    runs = sorted(set(map(int, rows["run"])))
    if logs.empty:
        return OwnPeak(None, dict.fromkeys(runs, int(rows["level"].max())))
    best = highest_level(logs)
    by_run = dict.fromkeys(runs, best)
    if len(logs) > 1:
        values = logs.to_numpy()
        for ours, others in ((0, 1), (1, 0)):
            level = int(logs.columns[_highest(values[others::2])])
            by_run |= dict.fromkeys(map(int, logs.index[ours::2]), level)
    return OwnPeak(best, by_run)


def comparison_level(
    baseline: pd.DataFrame, others: Iterable[pd.DataFrame], metric: str
) -> int | None:
    """Return the level at which cells are compared with a baseline: its peak.

    Of several levels as good as the peak (its plateau), those that passed their checks in enough runs for a verdict are
    preferred; of these, the one with the largest mean over the baseline and `others`: if all have the same noise, this
    choice is independent of any difference between them.
    """
    logs = log_table(baseline, metric)
    if logs.empty:
        return None
    all_means = _means(logs)
    means = {level: all_means[level] for level in _sound(baseline, plateau(logs))}
    for table in others:
        logs_there = log_table(table, metric)
        if means.keys() <= set(logs_there.columns):
            there = _means(logs_there)
            means = {level: mean + there[level] for level, mean in means.items()}
    return max(means, key=means.__getitem__)


def falls_with_load(
    rows: pd.DataFrame, level: int, metric: str, margin: float = 0.05
) -> bool:
    """Whether a cell delivers less at a level than at a lower one, by more than `margin`, in the mean over its runs."""
    means = log_table(rows, metric).mean()
    return level in means.index and bool(
        (means[means.index < level] > means[level] + np.log1p(margin)).any()
    )


def _sound(rows: pd.DataFrame, levels: list[int]) -> list[int]:
    """Return the levels that passed, with the full load and in one state, in as many runs as a verdict needs.

    All levels if none did.
    """
    needed = min(MIN_RUNS, rows["run"].nunique())
    sound = rows["checks_failed"].astype(object).fillna("") == ""
    if "concurrency_shortfall" in rows:
        sound &= ~(rows["concurrency_shortfall"].astype(float) > STARVED)
    if {"throughput_drift", "throughput_drift_se"} <= {*rows}:
        drifts = zip(rows["throughput_drift"], rows["throughput_drift_se"], strict=True)
        sound &= np.array([not state_bound(*drift) for drift in drifts])
    passed: dict[Any, set[Any]] = {}
    for level, run in zip(rows["level"][sound], rows["run"][sound], strict=True):
        passed.setdefault(level, set()).add(run)
    return [level for level in levels if len(passed.get(level, ())) >= needed] or levels
