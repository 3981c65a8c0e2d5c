"""Hits that were predicted, beside those that were counted, as the tables of the plug-in that predicts them have them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from kveval.campaign.cell import Cell

TOLERANCE_POINTS = 3.0
"""Percentage points by which measured and predicted hit share may differ before that is a finding."""
CLUES = (
    *("preempted", "failed", "unfinished", "evicted"),
    *(
        "not_stored_percent",
        "in_progress_percent",
        "one_request_points",
        "asked_percent",
    ),
)
"""Requests that were preempted; transfers that failed; stores of LMCache not finished when the level ended; chunks that
LMCache evicted; tokens computed but not stored in the tier, % of the prompt tokens; the share of the device's cache
that requests in progress need at most; the percentage points of one request; the prompt tokens that the device was
asked for, % of those sent."""
SERVED_NUMBERS = (
    *("tier_blocks", "device_predicted", "device_measured", "measured"),
    *("difference", "half_width"),
)
"""Columns of hits.csv that are numbers of a ServedShare."""


@dataclass(frozen=True)
class ServedShare:
    """Predicted and measured hit share of a cell's caches at a level, % of the prompt tokens, means over runs.

    Attributes:
        cell: model, scenario and cpu_blocks.
        level: of the load.
        runs: number of runs for which both are known.
        tier_blocks: size of the tier that the prediction is for, 0 without one.
        device_predicted: predicted for the device alone.
        device_measured: on the device.
        predicted: least and most, predicted for device and tier together.
        measured: for both together.
        difference: measured less predicted, points, 0 within the predicted range; the mean of the differences within
            each run, whose two sides have the same requests.
        half_width: half the 95 % t interval of the difference; NaN for a single run.
        clues: means over runs of what may explain the difference, see CLUES; NaN where nothing counts it.
        lengths_vary: whether lengths are drawn at random, while the prediction uses their means.
    """

    cell: Cell
    level: int
    runs: int
    tier_blocks: float
    device_predicted: float
    device_measured: float
    predicted: tuple[float, float]
    measured: float
    difference: float
    half_width: float
    clues: Mapping[str, float]
    lengths_vary: bool

    @property
    def is_finding(self) -> bool:
        """Whether measured and predicted hit share differ by more than TOLERANCE_POINTS."""
        return abs(self.difference) > TOLERANCE_POINTS


def read_served(table: pd.DataFrame) -> list[ServedShare]:
    """Return the rows of hits.csv."""
    return [_served_share(row) for row in table.to_dict("records")]


def _served_share(row: Mapping[Any, Any]) -> ServedShare:
    return ServedShare(
        cell=Cell.from_row(row),
        level=int(row["level"]),
        runs=int(row["runs"]),
        **{name: float(row[name]) for name in SERVED_NUMBERS},
        predicted=(float(row["predicted_low"]), float(row["predicted_high"])),
        clues={name: float(row[name]) for name in CLUES},
        lengths_vary=bool(row["lengths_vary"]),
    )


def read_curve(text: str) -> pd.DataFrame:
    """Return a `predicted_curve` as a table: `low` and `high` of the hit share (0 to 1), indexed by cpu_blocks."""
    shares_by_size: dict[int, tuple[float, float]] = {}
    for part in filter(None, text.split(";")):
        size, _, shares = part.partition("=")
        low, _, high = shares.partition(":")
        shares_by_size[int(size)] = float(low), float(high or low)
    return pd.DataFrame.from_dict(
        shares_by_size, orient="index", columns=["low", "high"], dtype=float
    )


@dataclass(frozen=True)
class Leak:
    """The place where most tokens are lost: its code, the stage that lacks them, and the numbers behind it."""

    code: str
    stage: str
    facts: Mapping[str, Any] = field(default_factory=dict)


def read_leaks(table: pd.DataFrame) -> dict[Cell, Leak]:
    """Return the leak of each cell of waterfall.csv."""
    leaks = {}
    for row in table.dropna(subset=["leak"]).to_dict("records"):
        facts = json.loads(row["facts"])
        leaks[Cell.from_row(row)] = Leak(row["leak"], row["stage"], facts)
    return leaks
