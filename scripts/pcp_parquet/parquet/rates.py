"""Counters: rates and increases that survive resets, interruptions and the wrap of 32-bit counters."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pcp_parquet.parquet.reading import Samples

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


def rates_of(samples: Samples, marks_ns: Iterable[int]) -> Samples:
    """The same as `rate` from samples as arrays, as samples at the later times; `marks_ns`: those of the archive.

    Differences of integers beyond 2^53 are rounded. ValueError if the metric is no counter.
    """
    if samples.info.semantics != "counter":
        raise _no_counter(samples.info.name, samples.info.semantics)
    times, series = samples.times, samples.series
    at = np.flatnonzero((series[1:] == series[:-1]) & (times[1:] > times[:-1])) + 1
    delta = samples.values[at] - samples.values[at - 1]
    delta = _unwrapped(delta, samples.info.type)
    unknown = (delta < 0) | _is_marked(times, at, marks_ns)
    seconds = (times[at] - times[at - 1]) / NANOSECONDS
    values = np.where(unknown, np.nan, delta / seconds)
    return replace(samples, times=times[at], series=series[at], values=values)


def _no_counter(name: str, semantics: str) -> ValueError:
    return ValueError(f"{name} is {semantics}, not a counter: it has no rate")


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
        raise _no_counter(str(frame.attrs.get("metric")), semantics)
    times = _times(frame)
    values = frame["value"].to_numpy(dtype=np.float64)
    # Two samples at one time (overlapping archives) make no step.
    at = np.flatnonzero(_goes_on(frame) & (times[1:] > times[:-1])) + 1
    delta = values[at] - values[at - 1]
    if "value_int" in frame:
        delta = _exact_delta(frame, at, delta)
    delta = _unwrapped(delta, frame.attrs.get("type", ""))
    marked = _is_marked(times, at, frame.attrs.get("marks_ns", ()))
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


def _unwrapped(delta: NDArray[np.float64], kind: str) -> NDArray[np.float64]:
    """Differences of a counter of this PCP type without those of a wrap."""
    bits = _BITS.get(kind)
    if bits is None:
        return delta
    return np.where(delta < -(2.0 ** (bits - 1)), delta + 2.0**bits, delta)


def _is_marked(
    times: NDArray[np.int64], at: NDArray[np.int64], marks_ns: Iterable[int]
) -> NDArray[np.bool_]:
    """Whether the recording was interrupted between each of these samples and the one before it."""
    marks = np.array(sorted(marks_ns), dtype=np.int64)
    after = np.searchsorted(marks, times[at], side="right")
    return after > np.searchsorted(marks, times[at - 1], side="right")


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
