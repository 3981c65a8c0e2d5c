"""Goodput within declared latency limits."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kveval.report.data import numbers as numerals
from kveval.report.result.model import ReportedCell, ReportedMean
from kveval.tables.levels.goodput import GOODPUT


def goodput_values(
    cell: ReportedCell, level: int | None, metric: str = GOODPUT
) -> list[float]:
    """Return the values of a cell's runs at a level; at all of its levels where its model has none."""
    levels = [each.level for each in cell.levels] if level is None else [level]
    return [value for each in levels for value in cell.values(each, metric)]


def goodput_shares(cell: ReportedCell, level: int | None) -> list[float]:
    """Return the shares within the limits in per cent, as `goodput_values` has its values."""
    return [100 * share for share in goodput_values(cell, level, "goodput_share")]


def goodput_at(cell: ReportedCell, level: int | None, mean: float | None) -> str:
    """Return a cell's goodput at a level; `mean`: that of the runs that a comparison rests on, None without one.

    "none met" where nothing was within the limits, "not known" where that was not counted.
    """
    values = goodput_values(cell, level)
    if not values:
        return "not known"
    return _mean(mean, values) if max(values) > 0 else "none met"


def goodput_beside_change(cell: ReportedCell, level: int | None) -> str:
    """Return a cell's goodput of the runs that its change rests on, so that the two belong together."""
    return goodput_at(cell, level, cell.kept_means.get(GOODPUT, ReportedMean()).mean)


def best_goodput(cell: ReportedCell) -> str:
    """Return a cell's largest goodput."""
    mean = cell.kept_peak_means.get(GOODPUT, ReportedMean()).mean
    return _mean(mean, cell.values(cell.goodput_level, GOODPUT))


def _mean(mean: float | None, values: Sequence[float]) -> str:
    """The geometric mean rounded by the values of runs, without one their arithmetic one."""
    usable = mean is not None and math.isfinite(mean) and any(map(bool, values))
    if mean is None or not usable:
        return numerals.mean_of(values)
    return numerals.rounded_mean(mean, values)
