"""Requests as arrays, and the tokens that they delivered within an interval of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from kveval.estimators.spreads import Array
from kveval.load.reports import RequestRecord


@dataclass(frozen=True)
class Requests:
    """The records of one level as columns; times in epoch seconds, NaN where the event never happened.

    `unknown_columns`: those that are NaN in every record, whatever it says.
    """

    records: Sequence[RequestRecord]
    unknown_columns: frozenset[str] = frozenset()
    # Cached, because many checks use the same columns.
    _columns: dict[str, Array] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def column(self, name: str) -> Array:
        """Return a numeric field of every record, None as NaN; read-only."""
        if name not in self._columns:
            # numpy converts None to NaN.
            values = np.array(
                list(map(attrgetter(name), self.records)), dtype=np.float64
            )
            values = (
                np.full_like(values, np.nan) if name in self.unknown_columns else values
            )
            values.flags.writeable = False
            self._columns[name] = values
        return self._columns[name]

    def has_status(self, name: str) -> npt.NDArray[np.bool_]:
        """Return which records ended as `name`."""
        return np.array(
            [record.status == name for record in self.records], dtype=np.bool_
        )

    def completed_within(self, start: float, end: float) -> npt.NDArray[np.bool_]:
        """Return which records were completed in [start, end]; windows may end with their last request."""
        finish = self.column("end")
        return self.has_status("completed") & (finish >= start) & (finish <= end)

    def mean_latency_s(self, start: float, end: float) -> float:
        """Return the mean latency of the requests completed in [start, end], NaN without any."""
        seconds = self.column("e2e_ms")[self.completed_within(start, end)] / 1000
        known = seconds[~np.isnan(seconds)]
        return float(known.mean()) if len(known) else np.nan

    def pausing_mean(self, start: float, end: float) -> float:
        """Return how many users paused at once in [start, end), in the mean; 0 where no request has a pause."""
        begin = self.column("end")
        finish = begin + np.nan_to_num(self.column("pause_s"))
        within = np.minimum(finish, end) - np.maximum(begin, start)
        paused = self.has_status("completed")
        return float(np.nansum(np.maximum(within, 0.0)[paused])) / (end - start)

    @cached_property
    def conversations(self) -> npt.NDArray[np.intp]:
        """Return the number of each record's conversation; a record without one is a conversation of its own."""
        names = [
            record.conversation or str(number)
            for number, record in enumerate(self.records)
        ]
        return np.unique(np.array(names, dtype=str), return_inverse=True)[1]

    def tokens_delivered(self, start: float, end: float) -> Array:
        """Return the output tokens each request delivered in [start, end), see `delivered_tokens`."""
        return delivered_tokens(
            self.column("first_token"),
            self.column("last_token"),
            self.column("output_tokens"),
            start,
            end,
        )

    def tokens_delivered_in_parts(self, start: float, end: float, parts: int) -> Array:
        """Return the output tokens delivered in each of `parts` equal parts of [start, end)."""
        columns = (
            self.column("first_token"),
            self.column("last_token"),
            self.column("output_tokens"),
        )
        before = [
            float(_delivered_before(*columns, edge).sum())
            for edge in np.linspace(start, end, parts + 1)
        ]
        return np.diff(before)


def delivered_tokens(
    first: Array, last: Array, tokens: Array, start: float, end: float
) -> Array:
    """Return how many output tokens each request delivered in [start, end); times in seconds.

    Tokens are taken to arrive evenly from the first to the last. A request without a first token delivered none. The
    count is additive over adjoining windows and is `tokens` for a window that holds the request.
    """
    return _delivered_before(first, last, tokens, end) - _delivered_before(
        first, last, tokens, start
    )


def _delivered_before(first: Array, last: Array, tokens: Array, time: float) -> Array:
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        gap = (last - first) / np.maximum(tokens - 1, 1)
        count = np.ceil((time - first) / gap)
        # All tokens arrived at one moment.
        count = np.where(gap > 0, count, np.where(first < time, tokens, 0.0))
        inside = np.clip(count, 0, tokens)
    return np.where(np.isnan(first) | np.isnan(last), 0.0, inside)
