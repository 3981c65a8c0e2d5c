"""The samples of one PCP metric, prepared so that any window of time is reduced in no time.

Windows are closed, in ns since 1970 UTC. Gauges are aggregated over instances at each moment; counters are accumulated
per series, across resets and wraps, and read at a window's edges between the two samples nearest to them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kveval.pcparchive import Samples

Array = npt.NDArray[np.float64]
Times = npt.NDArray[np.int64]
Window = tuple[int, int]

_BITS = {"32": 32, "U32": 32}
_NS = 1e9


def selected(names: Sequence[tuple[str, str]], select: str | None, omit: str | None) -> npt.NDArray[np.bool_]:
    """Return which series' instances match `select`, all without one, and do not match `omit`."""
    wanted = re.compile(select) if select else None
    unwanted = re.compile(omit) if omit else None
    kept = [
        (wanted is None or wanted.search(name) is not None) and (unwanted is None or unwanted.search(name) is None)
        for _, name in names
    ]
    return np.array(kept, dtype=np.bool_)


@dataclass(frozen=True)
class Gauge:
    """A metric that stands for itself at each moment: rows of one time and one host, sorted by time."""

    samples: Samples
    keep: npt.NDArray[np.bool_]

    def at_moments(self, window: Window, how: str) -> dict[str, tuple[Times, Array]]:
        """Return host -> times and values in the window, instances aggregated by sum, mean, max or min."""
        rows = self.keep[self.samples.series] & ~np.isnan(self.samples.values)
        rows &= (self.samples.times >= window[0]) & (self.samples.times <= window[1])
        hosts = np.array([host for host, _ in self.samples.names], dtype=object)[self.samples.series[rows]]
        found = {}
        for host in dict.fromkeys(hosts.tolist()):
            of_host = hosts == host
            found[host] = _aggregate(self.samples.times[rows][of_host], self.samples.values[rows][of_host], how)
        return found

    def per_instance(self, window: Window) -> dict[str, Array]:
        """Return the values of each instance in the window."""
        rows = (self.samples.times >= window[0]) & (self.samples.times <= window[1]) & ~np.isnan(self.samples.values)
        found = {}
        for number, (host, name) in enumerate(self.samples.names):
            values = self.samples.values[rows & (self.samples.series == number)]
            if self.keep[number] and len(values):
                found[_label(host, name)] = values
        return found


def _aggregate(times: Times, values: Array, how: str) -> tuple[Times, Array]:
    order = np.argsort(times, kind="stable")
    moments, begins, counts = np.unique(times[order], return_index=True, return_counts=True)
    if not len(moments):
        return moments, np.empty(0, dtype=np.float64)
    reduce = {"max": np.maximum, "min": np.minimum}.get(how, np.add)
    combined: Array = reduce.reduceat(values[order], begins)
    return moments, combined / counts if how == "mean" else combined


@dataclass(frozen=True)
class Increase:
    """What a counter's series gained in a window, and for how many of its seconds that is known."""

    gained: float
    seconds: float
    samples: int


class Counter:
    """A metric that counts up, series by series."""

    def __init__(self, samples: Samples, keep: npt.NDArray[np.bool_], began: int, marks: Sequence[int]) -> None:
        """Prepare the series of `samples` to `keep`.

        `began`: start of the recording, ns. A counter of a metrics endpoint that appears later was 0 before: clients
        create one at its first use. `marks`: interruptions of the recording, ns; what happened in between is unknown.
        """
        self.names = [_label(*name) for name, kept in zip(samples.names, keep, strict=True) if kept]
        self._series = [
            _accumulated(samples, int(number), began, np.array(sorted(marks), dtype=np.int64))
            for number in np.flatnonzero(keep)
        ]

    def increases(self, window: Window) -> list[Increase]:
        """Return what each series gained in the window."""
        return [series.increase(window) for series in self._series]


@dataclass(frozen=True)
class _Series:
    """A counter's series: at each sample, what was gained and how many seconds were watched since the first."""

    times: Times
    gained: Array
    watched: Array
    interval: float
    born: bool

    def increase(self, window: Window) -> Increase:
        if not len(self.times):
            return Increase(0.0, 0.0, 0)
        inside = int(np.searchsorted(self.times, window[1], "right") - np.searchsorted(self.times, window[0], "left"))
        gained = np.interp(window, self.times, self.gained)
        watched = np.interp(window, self.times, self.watched)
        seconds = float(watched[1] - watched[0])
        if self.born:
            # Before it appeared it stood at 0, which is known as well as if it had been sampled.
            before = max(0.0, (min(window[1], int(self.times[0])) - window[0]) / _NS)
            seconds, inside = seconds + before, inside + round(before / self.interval)
        return Increase(float(gained[1] - gained[0]), seconds, inside)


def _accumulated(samples: Samples, number: int, began: int, marks: Times) -> _Series:
    rows = (samples.series == number) & ~np.isnan(samples.values)
    times, values = samples.times[rows], samples.values[rows]
    # Two samples at one time, of overlapping archives, are one.
    fresh = np.diff(times, prepend=np.int64(-1)) > 0
    times, values = times[fresh], values[fresh]
    if not len(times):
        return _Series(times, values, values, 1.0, born=False)
    steps = np.diff(values)
    bits = _BITS.get(samples.info.type)
    if bits is not None:
        steps = np.where(steps < -(2.0 ** (bits - 1)), steps + 2.0**bits, steps)
    steps = np.where(steps < 0, values[1:], steps)
    seconds = np.diff(times) / _NS
    marked = np.searchsorted(marks, times[1:], "right") > np.searchsorted(marks, times[:-1], "right")
    steps, seconds = np.where(marked, 0.0, steps), np.where(marked, 0.0, seconds)
    interval = max(float(np.median(seconds)), 1e-3) if len(seconds) else 1.0
    born = samples.info.name.startswith("openmetrics.") and (times[0] - began) / _NS > 2 * interval + 1
    gained, watched = np.cumsum([0.0, *steps]), np.cumsum([0.0, *seconds])
    if born:
        # It was first used within the interval before it was first seen.
        times = np.concatenate([[times[0] - round(interval * _NS)], times])
        gained = np.concatenate([[0.0], gained + values[0]])
        watched = np.concatenate([[0.0], watched + interval])
    return _Series(times, gained, watched, interval, bool(born))


def _label(host: str, name: str) -> str:
    return f"{host}:{name}" if host else name
