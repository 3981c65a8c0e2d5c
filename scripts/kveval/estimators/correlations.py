"""Correlations of system metrics with throughput within one model. They say nothing about causes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from kveval.estimators.distributions import distributions

MIN_POINTS = 10
CORRELATED = (
    *(
        "kv_cache_usage_percent",
        "prefix_cache_hit_percent",
        "external_cache_hit_percent",
    ),
    *(
        "requests_running",
        "requests_waiting",
        "offload_load_mb_s",
        "offload_store_mb_s",
    ),
    *(
        "cpu_utilisation_percent",
        "gpu_utilisation_percent",
        "gpu_power_w",
        "memory_used_gib",
    ),
)
"""The system metrics that are correlated with throughput."""
COLUMNS = ("model", "x", "y", "n", "r", "low", "high")


@dataclass(frozen=True)
class Correlation:
    """Pearson's r with its 95 % interval from `points` points; NaN where there are too few or nothing varies."""

    r: float
    low: float
    high: float
    points: int


def correlation_at_equal_levels(
    levels: pd.DataFrame, metric: str, target: str
) -> Correlation:
    """Correlate a metric with ln of `target` over the cells of one model at equal concurrency.

    One point per cell and level, the mean over runs; the mean of each level is subtracted from both, because all
    metrics change with concurrency. Partial correlation given the level, interval by Fisher's z with
    n - (levels - 1) - 3. Levels of one cell share a server but count as separate points: the interval is too narrow.
    """
    known = levels[(levels[target] > 0) & levels[metric].notna()]
    means = known.groupby(["scenario", "cpu_blocks", "level"])[[metric, target]].mean()
    means[target] = np.log(means[target])
    several = means.groupby("level")[target].transform("size") > 1
    points = means[several]
    count = len(points)
    freedom = count - (points.index.get_level_values("level").nunique() - 1) - 3
    centred = points - points.groupby("level").transform("mean")
    spread = centred.std(ddof=0)
    # Rounding leaves a constant metric with a spread that is not quite zero.
    flat = (spread <= 1e-9 * points.abs().max()).any() if count else True
    if count < MIN_POINTS or freedom < 1 or flat:
        return Correlation(np.nan, np.nan, np.nan, count)
    r = float(np.clip(centred[metric].corr(centred[target]), -1, 1))
    if abs(r) == 1:
        return Correlation(r, r, r, count)
    half = float(distributions().ndtri(0.975)) / np.sqrt(freedom)
    low, high = np.tanh(np.arctanh(r) + np.array([-half, half]))
    return Correlation(r, float(low), float(high), count)


def correlations_by_model(
    levels: pd.DataFrame, metrics: Sequence[str], target: str
) -> pd.DataFrame:
    """Return a row of COLUMNS for each metric and model that have one with `target`, see
    `correlation_at_equal_levels`.
    """
    rows = []
    for name in recorded_columns(levels, metrics):
        for model, of_model in levels.groupby("model", sort=False):
            correlation = correlation_at_equal_levels(of_model, name, target)
            if np.isfinite(correlation.r):
                rows.append(
                    (
                        model,
                        name,
                        target,
                        correlation.points,
                        correlation.r,
                        correlation.low,
                        correlation.high,
                    )
                )
    return pd.DataFrame(rows, columns=COLUMNS)


def recorded_columns(levels: pd.DataFrame, metrics: Sequence[str]) -> list[str]:
    """Return those of the columns that exist and hold a value."""
    return [name for name in metrics if name in levels and levels[name].notna().any()]
