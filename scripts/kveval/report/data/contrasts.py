"""Comparison of any two cells of a model: with the verdict if they were compared, else as a description."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from kveval.analysis.cells import THROUGHPUT, CellKey
from kveval.analysis.estimators.intervals import percent
from kveval.analysis.statistics import verdicts as words
from kveval.report.data import numbers as numerals
from kveval.report.data.campaign import Measured, text

UNDECLARED = "not declared as a contrast"
_MIRRORED = {words.BETTER: words.WORSE, words.WORSE: words.BETTER}


@dataclass(frozen=True)
class ContrastPair:
    """The difference of a cell from another one of its model at one level.

    `value` and `other_value`: means over runs as text; `effect`, `low`, `high`: per cent of the other cell (NaN:
    unknown); `verdict`, `reason` and `qualifier`: from the comparison; `bound`: "at least" or "at most" if the effect
    is only a bound; `confidence`: of the interval, per cent.
    """

    level: int | None
    value: str
    other_value: str
    effect: float
    low: float
    high: float
    verdict: str
    reason: str
    bound: str = ""
    qualifier: str = ""
    confidence: float = 95.0

    @property
    def difference(self) -> str:
        """The effect with its interval, as text."""
        return " ".join(filter(None, (self.bound, numerals.effect(self.effect, self.low, self.high, self.confidence))))


def pair(measured: Measured, cell: CellKey, other: CellKey, metric: str = THROUGHPUT) -> ContrastPair:
    """Return the difference of `cell` from `other`: by their comparison, in either direction, else as a description."""
    row = measured.comparison_of(cell, other, metric)
    mirrored = row is None
    if row is None:
        row = measured.comparison_of(other, cell, metric)
    level = measured.common_level(cell[0])
    if row is not None and math.isfinite(row["level"]):
        level = int(row["level"])
    value, other_value = (numerals.mean_of(list(measured.levels_of(key, level)[metric])) for key in (cell, other))
    if row is None:
        effect = _described(measured, cell, other, level, metric)
        return ContrastPair(level, value, other_value, effect, math.nan, math.nan, words.NOT_ASSESSED, UNDECLARED)
    effect, low, high = (float(row[name]) for name in ("effect_percent", "low_percent", "high_percent"))
    verdict = str(row["verdict"])
    if mirrored:
        effect, low, high = (100 * (1 / (1 + value / 100) - 1) for value in (effect, high, low))
        verdict = _MIRRORED.get(verdict, verdict)
    reason, bound, qualifier = (text(row.get(name)) for name in ("reason", "bound", "qualifier"))
    confidence = float(row.get("interval_percent", 95.0))
    return ContrastPair(level, value, other_value, effect, low, high, verdict, reason, bound, qualifier, confidence)


def _described(measured: Measured, cell: CellKey, other: CellKey, level: int | None, metric: str) -> float:
    """The difference of the geometric means over the runs both have, in per cent of the other cell."""
    columns = [measured.levels_of(key, level).drop_duplicates("run").set_index("run")[metric] for key in (cell, other)]
    both = columns[0].index.intersection(columns[1].index)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(columns[0].loc[both].to_numpy(dtype=float)) - np.log(columns[1].loc[both].to_numpy(dtype=float))
    known = logs[np.isfinite(logs)]
    return percent(float(known.mean())) if len(known) else math.nan
