"""The levels that a comparison uses: a row of levels.csv for each run, of the reference and of the arm."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from kveval.estimators.spreads import Array

# Changes, which may be negative.
_SIGNED = ("throughput_drift", "clock_offset_s", "hit_ratio_drift")
_LARGEST = 1e15
Rows = Sequence[Mapping[str, Any]]
# Numbers of the declared work that are absent where they are 0.
_SELDOM_GIVEN = (
    *("document_tokens", "document_stdev", "pause_s", "pause_stdev_s"),
    "prefix_zipf",
)


@dataclass(frozen=True)
class Sides:
    """The rows of levels.csv that a comparison of a metric uses, one per run; rows at the same index are a pair.

    `differs`: the settings in which the two are declared to differ.
    """

    metric: str
    reference: Rows = ()
    arm: Rows = ()
    differs: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.arm)

    @cached_property
    def logs(self) -> tuple[Array, Array]:
        """ln of the metric by run, in reference and arm."""
        return np.log(numbers(self.reference, self.metric)), np.log(
            numbers(self.arm, self.metric)
        )

    @property
    def difference(self) -> float:
        """Mean difference of ln, arm - reference."""
        reference, arm = self.logs
        return float(np.mean(arm - reference))


def without_impossible(levels: pd.DataFrame, metrics: Collection[str]) -> pd.DataFrame:
    """Return levels without the numbers that nothing measured can have: not finite, beyond 1e15, below 0 but for changes.

    They are not known then. Those of `metrics` stay, since they leave their runs out.
    """
    table = levels.copy()
    for name in table.columns.difference([*metrics, *_SIGNED]):
        column = table[name]
        if is_numeric_dtype(column) and not is_bool_dtype(column):
            table[name] = column.where((column >= 0) & (column < _LARGEST))
    for name in table.columns.intersection([*_SIGNED]):
        column = table[name].astype(float)
        table[name] = column.where(column.abs() < _LARGEST)
    return table


def number(row: Mapping[str, Any], column: str) -> float:
    """Return a column of a level's row as a number, NaN where it has none."""
    value = row.get(column)
    return math.nan if value is None else float(value)


def numbers(rows: Rows, column: str) -> Array:
    """Return a column of several rows, NaN where a row has none."""
    return np.array([number(row, column) for row in rows], dtype=np.float64)


def declared_work(row: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the numbers of a level's declared work as texts by name, {} where it is not known."""
    text = row.get("workload")
    if not isinstance(text, str) or not text:
        return {}
    return _parse_work(text)


@lru_cache(maxsize=256)
def _parse_work(text: str) -> Mapping[str, str]:
    given = dict(part.split("=", 1) for part in text.split(";"))
    return MappingProxyType(dict.fromkeys(_SELDOM_GIVEN, "0") | given)
