"""Counters: rates and increases that survive resets, interruptions and the wrap of 32-bit counters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

_BITS = {"32": 32, "U32": 32}
NANOSECONDS = 1e9


def rate(frame: pd.DataFrame) -> pd.DataFrame:
    """Per-second rates between consecutive samples of each instance: columns timestamp (the later), instance, value.

    `frame` is one of `series`. The rate is missing (NaN) where the counter was reset, or where the recording was
    interrupted in between (a mark). A 32-bit counter that falls by more than half its range has wrapped: 2^32 is added.
    ValueError if the metric is no counter.
    """
    steps = _steps(frame)
    values = (steps["delta"] / steps["seconds"]).mask(steps["reset"] | steps["marked"])
    result = frame.drop(columns=["value", "value_int"], errors="ignore").assign(
        value=values.to_numpy()
    )
    result = result[steps["seconds"].notna().to_numpy()].reset_index(drop=True)
    units = frame.attrs.get("units", "")
    result.attrs = {
        **frame.attrs,
        "semantics": "instant",
        "units": f"{units} / sec" if units else "/ sec",
    }
    return result


def increase(frame: pd.DataFrame) -> pd.DataFrame:
    """The gain of a counter over the samples of a frame from `series`, one row per instance.

    Columns: instance; increase, from the first to the last sample; seconds that these samples span; rate = increase /
    seconds (per second); samples; resets; marks. After a reset the new value counts, a lower bound (what was counted
    before the reset is unknown). Steps across a mark count neither in increase nor in seconds. An instance with fewer
    than two samples has increase 0 and rate NaN. ValueError if the metric is no counter.
    """
    steps = _steps(frame)
    keys = [name for name in ("host", "instance") if name in frame]
    parts = frame[keys].reset_index(drop=True)
    parts = parts.assign(
        increase=steps["gained"],
        seconds=steps["seconds"].mask(steps["marked"]).fillna(0.0),
        samples=1,
        resets=steps["reset"] & ~steps["marked"],
        marks=steps["marked"],
    )
    result = parts.groupby(keys, dropna=False, sort=False, observed=True).sum()
    result.insert(
        2, "rate", result["increase"] / result["seconds"].where(result["seconds"] > 0)
    )
    result = result.reset_index()
    result.attrs = dict(frame.attrs)
    return result


@dataclass(frozen=True)
class Gained:
    """A counter in a window: first value and increase summed over instances, and the median seconds between samples."""

    first: float
    increase: float
    interval_s: float


class PreparedCounter:
    """The samples of a counter and the steps between them as arrays, for many windows of one frame.

    `increase` gives the same for each instance in one window, but takes a hundred times as long.
    """

    def __init__(self, frame: pd.DataFrame) -> None:
        """Prepare a frame from `series`. ValueError if the metric is no counter."""
        self._times, self._values = (
            _times(frame),
            frame["value"].to_numpy(dtype=np.float64),
        )
        # For each sample: whether it continues the series of the one before it, and its increase.
        self._goes_on, self._gained = (
            _goes_on(frame),
            _steps(frame)["gained"].to_numpy(),
        )

    def gained(self, start_ns: int, finish_ns: int) -> Gained | None:
        """Return what was gained in a closed window, as `increase` counts it; None with fewer than two sample times."""
        inside = (self._times >= start_ns) & (self._times <= finish_ns)
        moments = np.unique(self._times[inside])
        if len(moments) < 2:
            return None
        follows = np.zeros(len(inside), dtype=np.bool_)
        follows[1:] = inside[1:] & inside[:-1] & self._goes_on
        first = float(np.nansum(self._values[inside & ~follows]))
        interval_s = float(np.median(np.diff(moments) / NANOSECONDS))
        return Gained(first, float(np.nansum(self._gained[follows])), interval_s)


def _steps(frame: pd.DataFrame) -> pd.DataFrame:
    """For each sample, what lies between it and the one before it of its series, by the number of the row.

    Columns: delta and seconds, NaN without a sample before it; whether there was a reset or a mark; what was gained:
    after a reset the new value, across a mark nothing. ValueError if the metric is no counter.
    """
    if (semantics := frame.attrs.get("semantics", "counter")) != "counter":
        raise ValueError(
            f"{frame.attrs.get('metric')} is {semantics}, not a counter: it has no rate"
        )
    times = _times(frame)
    values = frame["value"].to_numpy(dtype=np.float64)
    # Two samples at one time (overlapping archives) make no step.
    at = np.flatnonzero(_goes_on(frame) & (times[1:] > times[:-1])) + 1
    delta = values[at] - values[at - 1]
    if "value_int" in frame:
        delta = _exact_delta(frame, at, delta)
    bits = _BITS.get(frame.attrs.get("type", ""))
    if bits is not None:
        delta = np.where(delta < -(2.0 ** (bits - 1)), delta + 2.0**bits, delta)
    marks = np.array(sorted(frame.attrs.get("marks_ns", ())), dtype=np.int64)
    marked = np.searchsorted(marks, times[at], side="right") > np.searchsorted(
        marks, times[at - 1], side="right"
    )
    nothing = np.full(len(frame), np.nan)
    result = pd.DataFrame(
        {
            "delta": nothing,
            "seconds": nothing,
            "reset": False,
            "marked": False,
            "gained": 0.0,
        }
    )
    gained = np.where(marked, 0.0, np.where(delta < 0, values[at], delta))
    steps = (
        delta,
        (times[at] - times[at - 1]) / NANOSECONDS,
        delta < 0,
        marked,
        gained,
    )
    for number, column in enumerate(steps):
        result.iloc[at, number] = column
    return result


def _goes_on(frame: pd.DataFrame) -> NDArray[np.bool_]:
    """Whether each sample but the first is of the same series as the one before it."""
    same = np.ones(max(0, len(frame) - 1), dtype=np.bool_)
    for key in ("host", "instance"):
        if key in frame:
            codes = pd.Categorical(frame[key]).codes
            same &= codes[1:] == codes[:-1]
    return same


def _exact_delta(
    frame: pd.DataFrame, at: NDArray[np.int64], delta: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Differences of integers beyond 2^53, taken before they are rounded."""
    exact, known = frame["value_int"].to_list(), frame["value_int"].notna().to_numpy()
    for number in np.flatnonzero(known[at] & known[at - 1]).tolist():
        row = at[number]
        delta[number] = int(exact[row]) - int(exact[row - 1])
    return delta


def _times(frame: pd.DataFrame) -> NDArray[np.int64]:
    return np.asarray(
        frame["timestamp"].dt.as_unit("ns").astype("int64"), dtype=np.int64
    )
