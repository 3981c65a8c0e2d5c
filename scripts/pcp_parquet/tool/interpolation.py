"""Values of a series at moments between its samples, as libpcp's PM_MODE_INTERP has them (pmSetMode(3), interp.c).

Counters are interpolated linearly between the samples around the moment, and rounded to the metric's type; other
metrics take the nearer sample, texts the one before. There is no value without a sample on both sides, before any
interruption (mark); a discrete value holds until an interruption.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcp_parquet.archive.units import COUNTER, DISCRETE
from pcp_parquet.conversion.catalog import Ints
from pcp_parquet.tool.samples import SeriesSamples

Flags = NDArray[np.bool_]
Values = NDArray[Any]


@dataclass(frozen=True)
class Moments:
    """When to sample an archive that starts at `start_ns` and was interrupted at `marks_ns`; ns since 1970 UTC."""

    at_ns: Ints
    start_ns: int
    marks_ns: Ints

    def seconds(self, times_ns: Ints) -> NDArray[np.float64]:
        """Seconds since the archive's start."""
        return (np.asarray(times_ns - self.start_ns, dtype=np.longdouble) / 1e9).astype(
            np.float64
        )

    @property
    def interrupted(self) -> Flags:
        """Whether there is an interruption between a moment and the one before it."""
        before = np.searchsorted(self.marks_ns, self.at_ns, side="right")
        return np.concatenate([[False], np.diff(before) > 0])[: len(before)]


def present(
    series: SeriesSamples,
    moments: Moments,
    semantics: int,
    born_ns: int = -1,
    died_ns: int = -1,
) -> Flags:
    """Whether a series has a value at each moment; `born_ns` to `died_ns` is its instance's lifetime, -1 unknown."""
    return _around(series, moments, semantics, born_ns, died_ns)[0]


def sampled(
    series: SeriesSamples,
    moments: Moments,
    semantics: int,
    born_ns: int = -1,
    died_ns: int = -1,
) -> tuple[Values, Flags]:
    """The values at each moment, in the type of the samples, and whether there is one."""
    valid, before, after = _around(series, moments, semantics, born_ns, died_ns)
    values = series.values
    if not len(values):
        return np.zeros(len(valid), dtype=values.dtype), valid
    low, high = values[before], values[after]
    if values.dtype == np.object_:
        return low, valid
    times = series.times_ns
    moments_s, first, second = (
        moments.seconds(times_ns)
        for times_ns in (moments.at_ns, times[before], times[after])
    )
    exact = times[before] == moments.at_ns
    if semantics == COUNTER:
        return np.where(
            exact, low, _on_line(low, high, moments_s - first, second - first)
        ), valid
    held = (
        after < before
    )  # of a discrete metric, past its last sample before an interruption or the end
    return np.where(
        exact | held | (moments_s <= (first + second) / 2), low, high
    ), valid


def _around(
    series: SeriesSamples, moments: Moments, semantics: int, born_ns: int, died_ns: int
) -> tuple[Flags, Ints, Ints]:
    """Whether there is a value, and the samples before and after each moment; after < before if there is none after."""
    times, at, marks = series.times_ns, moments.at_ns, moments.marks_ns
    if not len(times):
        nothing = np.zeros(len(at), dtype=np.int64)
        return np.zeros(len(at), dtype=np.bool_), nothing, nothing
    before = np.searchsorted(times, at, side="right") - 1
    after = np.searchsorted(times, at, side="left")
    bounded = (before >= 0, after < len(times))
    before, after = np.maximum(before, 0), np.minimum(after, len(times) - 1)
    if len(marks):
        earlier = np.searchsorted(marks, at, side="right") - 1
        later = np.searchsorted(marks, at, side="left")
        bounded = (
            bounded[0] & ((earlier < 0) | (marks[earlier] <= times[before])),
            bounded[1]
            & (
                (later == len(marks))
                | (marks[np.minimum(later, len(marks) - 1)] >= times[after])
            ),
        )
    valid = bounded[0] if semantics == DISCRETE else bounded[0] & bounded[1]
    if born_ns >= 0:
        valid = valid & (at >= born_ns)
    if died_ns >= 0:
        valid = valid & (at <= died_ns)
    return valid, before, np.where(bounded[1], after, -1)


def _on_line(
    low: Values, high: Values, done: NDArray[np.float64], whole: NDArray[np.float64]
) -> Values:
    """Linear interpolation after `done` of `whole` seconds between two samples. Nothing is rounded before the end."""
    with np.errstate(all="ignore"):
        if low.dtype.kind == "u":
            rise = np.where(
                high >= low,
                (high - low).astype(np.float64),
                -(low - high).astype(np.float64),
            )
        else:
            rise = (high - low).astype(np.float64)
        if low.dtype.kind == "f":
            return (low.astype(np.float64) + done * rise / whole).astype(low.dtype)
        return np.trunc(0.5 + low.astype(np.float64) + done * rise / whole).astype(
            low.dtype
        )


def rates(
    values: Values, valid: Flags, at_ns: Ints
) -> tuple[NDArray[np.float64], Flags]:
    """Rates per second between consecutive moments (last axis); none at the first, nor where a counter fell."""
    numbers = values.astype(np.float64)
    seconds = np.maximum(np.diff(at_ns).astype(np.longdouble) / 1e9, 1e-9).astype(
        np.float64
    )
    change = np.zeros_like(numbers)
    change[..., 1:] = np.diff(numbers, axis=-1)
    known = np.zeros_like(valid)
    known[..., 1:] = valid[..., 1:] & valid[..., :-1] & (change[..., 1:] >= 0)
    change[..., 1:] /= seconds
    return change, known
