"""The samples of one PCP metric, prepared so that any window of time is reduced quickly.

Windows are closed, in ns since 1970 UTC. Gauges are aggregated over instances at each moment; counters are accumulated
per series, across resets and wraps, and interpolated at a window's edges.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kveval.estimators.spreads import Array
from pcp_parquet.parquet.reading import Samples

Times = npt.NDArray[np.int64]
Window = tuple[int, int]

_BITS = {"32": 32, "U32": 32}
_NS = 1e9


def select_series(
    names: Sequence[tuple[str, str]], select: str | None, omit: str | None
) -> npt.NDArray[np.bool_]:
    """Return for each series whether its instance matches `select` (all if None) and does not match `omit`."""
    # The pattern (?!) matches nothing.
    selection, omission = re.compile(select or ""), re.compile(omit or "(?!)")
    return np.array(
        [
            bool(selection.search(name) and not omission.search(name))
            for _, name in names
        ],
        dtype=np.bool_,
    )


@dataclass(frozen=True)
class ValuesByTime:
    """The values of a metric by time, each time once, in their order."""

    times: Times
    values: Array

    def together_with(self, others: Sequence[ValuesByTime]) -> Array:
        """Return the sums with others at the times that all of them have."""
        times = self.times
        for other in others:
            times = np.intersect1d(times, other.times, assume_unique=True)
        total: Array = np.zeros(len(times))
        for part in (self, *others):
            total = total + part.values[np.searchsorted(part.times, times)]
        return total


# How instances are combined at a moment.
_AT_A_MOMENT = {"max": np.maximum, "min": np.minimum}


class Gauge:
    """A metric whose value at each moment is meaningful by itself, as opposed to a counter."""

    def __init__(self, samples: Samples, keep: npt.NDArray[np.bool_]) -> None:
        """Prepare those series of `samples` for which `keep` is true."""
        self._samples, self._keep = samples, keep
        self._known = ~np.isnan(samples.values)
        by_host: dict[str, npt.NDArray[np.bool_]] = {}
        for number, (host, _) in enumerate(samples.names):
            nothing = np.zeros(len(samples.names), dtype=np.bool_)
            by_host.setdefault(host, nothing)[number] = keep[number]
        # Host -> whether each sample is of a series of it.
        self._of_host = {host: kept[samples.series] for host, kept in by_host.items()}

    def at_moments(self, window: Window, how: str) -> dict[str, ValuesByTime]:
        """Return host -> values in the window, instances aggregated by sum, mean, max or min; no host without any."""
        inside = self._inside(window)
        moments = {}
        for host, of_host in self._of_host.items():
            rows = np.flatnonzero(inside & of_host)
            if len(rows):
                moments[host] = self._combined(rows, how)
        return moments

    def _combined(self, rows: npt.NDArray[np.intp], how: str) -> ValuesByTime:
        times = self._samples.times[rows]
        order = np.argsort(times, kind="stable")
        times, values = times[order], self._samples.values[rows[order]]
        first = np.flatnonzero(np.diff(times, prepend=times[0] - 1))
        combined: Array = _AT_A_MOMENT.get(how, np.add).reduceat(values, first)
        if how == "mean":
            combined = combined / np.diff(first, append=len(times))
        return ValuesByTime(times[first], combined)

    def per_instance(self, window: Window) -> dict[str, Array]:
        """Return the values of each instance in the window."""
        rows, by_instance = self._inside(window), {}
        for number in np.flatnonzero(self._keep):
            values = self._samples.values[rows & (self._samples.series == number)]
            if len(values):
                by_instance[_label(*self._samples.names[number])] = values
        return by_instance

    def _inside(self, window: Window) -> npt.NDArray[np.bool_]:
        times = self._samples.times
        return (times >= window[0]) & (times <= window[1]) & self._known


@dataclass(frozen=True)
class Increase:
    """`gained`: a counter's increase in a window, by instance; `seconds`: how much of the window samples cover."""

    gained: dict[str, float]
    seconds: float
    samples: int


class CounterSeries:
    """A counter, series by series."""

    def __init__(
        self,
        samples: Samples,
        keep: npt.NDArray[np.bool_],
        began: int,
        marks: Sequence[int],
    ) -> None:
        """Prepare those series of `samples` for which `keep` is true.

        `began`: start of the recording, ns. A counter of a metrics endpoint that appears later was 0 before: clients
        create one at its first use. `marks`: interruptions of the recording, ns; increases across them are unknown.
        """
        interruptions = np.array(sorted(marks), dtype=np.int64)
        # Instances that were sampled at the same moments, as usual within one metric, share a table.
        tables: dict[bytes, tuple[Times, list[str], list[Array]]] = {}
        for number in np.flatnonzero(keep):
            times, values = _of_series(samples, int(number))
            if len(times):
                table = tables.setdefault(times.tobytes(), (times, [], []))
                table[1].append(_label(*samples.names[number]))
                table[2].append(values)
        appears = samples.info.name.startswith("openmetrics.")
        bits = _BITS.get(samples.info.type)
        self._tables = [
            _accumulated(
                times,
                names,
                np.array(values),
                began if appears else None,
                interruptions,
                bits,
            )
            for times, names, values in tables.values()
        ]

    def increase(self, window: Window) -> Increase:
        """Return the counter's increase in the window."""
        parts = [
            Increase({}, 0.0, 0),
            *(table.increase(window) for table in self._tables),
        ]
        gained = {name: value for part in parts for name, value in part.gained.items()}
        return Increase(
            gained,
            max(part.seconds for part in parts),
            max(part.samples for part in parts),
        )


@dataclass(frozen=True)
class _Table:
    """Instances sampled at the same moments: increase of each, and seconds observed, since the first sample."""

    times: Times
    names: list[str]
    gained: Array
    watched: Array
    interval: float
    born: bool

    def increase(self, window: Window) -> Increase:
        inside = int(
            np.searchsorted(self.times, window[1], "right")
            - np.searchsorted(self.times, window[0], "left")
        )
        watched = np.interp(window, self.times, self.watched)
        seconds = float(watched[1] - watched[0])
        if self.born:
            # Before it appeared the counter was 0, as certainly as if that had been sampled.
            before = max(0.0, (min(window[1], int(self.times[0])) - window[0]) / _NS)
            seconds, inside = seconds + before, inside + round(before / self.interval)
        begin, end = (self._gained_until(edge) for edge in window)
        return Increase(
            dict(zip(self.names, (end - begin).tolist(), strict=True)), seconds, inside
        )

    def _gained_until(self, moment: int) -> Array:
        """Return each instance's increase until a moment, interpolated between the samples before and after it."""
        last = len(self.times) - 1
        after = min(max(int(np.searchsorted(self.times, moment)), 1), last)
        before = max(after - 1, 0)
        earlier = int(self.times[before])
        span = int(self.times[after]) - earlier
        share = min(max((moment - earlier) / span, 0.0), 1.0) if span else 0.0
        gained: Array = (
            self.gained[:, before] * (1 - share) + self.gained[:, after] * share
        )
        return gained


def _of_series(samples: Samples, number: int) -> tuple[Times, Array]:
    begin, end = np.searchsorted(samples.series, [number, number + 1])
    times, values = samples.times[begin:end], samples.values[begin:end]
    known = ~np.isnan(values)
    # Overlapping archives have the same sample twice.
    known &= np.diff(times, prepend=np.int64(-1)) > 0
    return (times, values) if known.all() else (times[known], values[known])


def _accumulated(
    times: Times,
    names: list[str],
    values: Array,
    began: int | None,
    marks: Times,
    bits: int | None,
) -> _Table:
    """Return counters as their increase since the first sample, or since `began` if they appeared later."""
    steps = np.diff(values, axis=1)
    if bits is not None:
        steps = np.where(steps < -(2.0 ** (bits - 1)), steps + 2.0**bits, steps)
    steps = np.where(steps < 0, values[:, 1:], steps)
    seconds = np.diff(times) / _NS
    marked = np.searchsorted(marks, times[1:], "right") > np.searchsorted(
        marks, times[:-1], "right"
    )
    steps, seconds = np.where(marked, 0.0, steps), np.where(marked, 0.0, seconds)
    interval = max(float(np.median(seconds)), 1e-3) if len(seconds) else 1.0
    gained = np.concatenate(
        [np.zeros((len(names), 1)), np.cumsum(steps, axis=1)], axis=1
    )
    watched = np.concatenate([[0.0], np.cumsum(seconds)])
    born = began is not None and bool((times[0] - began) / _NS > 2 * interval + 1)
    if born:
        # It was first used within the sampling interval before its first sample.
        times = np.concatenate([[times[0] - round(interval * _NS)], times])
        gained = np.concatenate(
            [np.zeros((len(names), 1)), gained + values[:, :1]], axis=1
        )
        watched = np.concatenate([[0.0], watched + interval])
    return _Table(times, names, gained, watched, interval, born)


def _label(host: str, name: str) -> str:
    return f"{host}:{name}" if host else name
