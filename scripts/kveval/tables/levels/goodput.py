"""Goodput: the rate at which requests meet declared limits on their latencies (Zhong et al. 2024, DistServe).

A request is settled when its outcome is known. It meets the limits when it completes within all of them. It misses them
when it exceeds the first: TTFT and E2E at that age, TPOT and ITL when it completes; a failed request misses when it
fails, or earlier. It counts in the window that holds that moment. In a steady state every request is settled once,
wherever the window's ends cut it, so neither the rate nor the share is biased. A request that was cut off before it was
settled is not counted: its outcome is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from kveval.estimators.spreads import Array
from kveval.tables.levels.noise import renewal_error
from kveval.tables.levels.requests import Requests

GOODPUT = "goodput_per_s"
"""The column that is compared: requests, or sessions, per second that meet the limits."""
TITLES = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "itl_ms": "ITL", "e2e_ms": "E2E"}
_BY_AGE = ("ttft_ms", "e2e_ms")
_AT_THE_END = ("tpot_ms", "itl_ms")
_HALF_A_REQUEST = 0.5

Mask = npt.NDArray[np.bool_]


def limits_text(limits: Mapping[str, Any]) -> str:
    """Return the limits as a phrase.

    >>> limits_text({"ttft_ms": 500.0, "itl_ms": 50.0, "of": "sessions"})
    'TTFT up to 500 ms, ITL up to 50 ms in every turn'
    """
    text = ", ".join(
        f"{title} up to {limits[name]:,g} ms"
        for name, title in TITLES.items()
        if name in limits
    )
    return f"{text} in every turn" if limits.get("of") == "sessions" else text


@dataclass(frozen=True)
class SettledRequests:
    """For each unit, `time_s`: when it was settled, s since 1970 (inf: never), and `met`: whether it met the limits."""

    time_s: Array
    met: Mask


def goodput(
    requests: Requests,
    window: tuple[float, float],
    limits: Mapping[str, Any],
    turns: int,
    streams: float | None,
) -> dict[str, Any]:
    """Return a level's columns of goodput, per second.

    `limits`: latency, such as `ttft_ms`, -> limit in ms; `of`: "sessions" if the unit is a conversation, all of whose
    `turns` must meet the limits. `streams`: of a closed loop, None in an open one. NaN if nothing was settled in the
    window, or the requests lack the limited latencies.
    """
    start, end = window
    settled = settle(requests, limits, end)
    unknown = _unknown(requests, limits)
    done = requests.has_status("completed")
    units = (
        settled
        if limits.get("of") != "sessions"
        else _sessions(requests, settled, turns)
    )
    inside = (units.time_s >= start) & (units.time_s <= end)
    count, met = int(inside.sum()), int((inside & units.met).sum())
    if not count or not len(done) or (done.any() and (unknown | ~done).all()):
        return unknown_goodput(limits)
    share = met / count
    closed = streams is not None and limits.get("of") != "sessions"
    # Of ln of a share; that of goodput too, if all compared cells have one arrival rate.
    error = math.sqrt((1 - share) / met) if met else np.nan
    if closed:
        # As the rate of requests within the limits per stream.
        seconds = requests.column("e2e_ms") / 1000
        within = requests.completed_within(*window) & ~np.isnan(seconds)
        error = renewal_error(settled.met[within].astype(np.float64), seconds[within])
    return {
        GOODPUT: met / (end - start),
        "goodput_per_s_se": error,
        # At each end of the window a stream is anywhere within a request: variance 1/12 each; see `noise.cut_error`.
        "goodput_cut": math.sqrt(streams * share / 6) / met
        if closed and streams and met
        else np.nan,
        "goodput_met": met,
        "goodput_settled": count,
        "goodput_share": share,
        "goodput_limits": limits_text(limits),
    }


def unknown_goodput(limits: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a level whose requests cannot be compared with the limits."""
    numbers = (
        GOODPUT,
        "goodput_per_s_se",
        "goodput_cut",
        "goodput_met",
        "goodput_settled",
        "goodput_share",
    )
    return {**dict.fromkeys(numbers, np.nan), "goodput_limits": limits_text(limits)}


def settle(
    requests: Requests, limits: Mapping[str, Any], end: float
) -> SettledRequests:
    """Return when each request was settled, as far as it was observed until `end`, s since 1970."""
    begin, finish = requests.column("start"), requests.column("end")
    done, errored = requests.has_status("completed"), requests.has_status("errored")
    missed = np.full(len(begin), np.inf)
    for name in _BY_AGE:
        if name in limits:
            value = (
                requests.column(name)
                if name == "ttft_ms"
                else np.where(done, requests.column(name), np.nan)
            )
            over = (value > limits[name]) | (np.isnan(value) & ~done)
            missed = np.where(
                over, np.minimum(missed, begin + limits[name] / 1000), missed
            )
    for name in _AT_THE_END:
        if name in limits:
            over = done & (requests.column(name) > limits[name])
            missed = np.where(over, np.minimum(missed, finish), missed)
    missed = np.where(errored, np.fmin(missed, np.fmax(finish, begin)), missed)
    # A request is not observed after it was cut off.
    seen = np.where(np.isnan(finish), end, finish)
    missed = np.where(missed <= seen, missed, np.inf)
    met = done & np.isinf(missed) & ~_unknown(requests, limits)
    return SettledRequests(np.where(met, finish, missed), met)


def _unknown(requests: Requests, limits: Mapping[str, Any]) -> Mask:
    """The completed requests that lack a limited latency; an answer of one token has no ITL and needs none."""
    lacking = np.zeros(len(requests.records), dtype=np.bool_)
    for name in TITLES:
        if name in limits:
            absent = np.isnan(requests.column(name))
            lacking |= (
                absent & (requests.column("output_tokens") > 1)
                if name == "itl_ms"
                else absent
            )
    return lacking & requests.has_status("completed")


def _sessions(
    requests: Requests, settled: SettledRequests, turns: int
) -> SettledRequests:
    """Return when conversations were settled: at the first turn that misses the limits, or once all turns met them.

    Conversations whose first turn was not recorded are left out; a request without one is a conversation of its own.
    """
    unit = requests.conversations
    count = int(unit.max(initial=-1)) + 1
    turn = np.nan_to_num(requests.column("turn"))
    missed, met_at, first = (
        np.full(count, np.inf),
        np.full(count, -np.inf),
        np.full(count, np.inf),
    )
    np.minimum.at(missed, unit, np.where(settled.met, np.inf, settled.time_s))
    np.maximum.at(met_at, unit, np.where(settled.met, settled.time_s, -np.inf))
    np.minimum.at(first, unit, turn)
    named = (
        np.bincount(
            unit,
            weights=[record.conversation is not None for record in requests.records],
        )
        > 0
    )
    complete = np.bincount(unit, weights=settled.met) >= np.where(named, turns, 1)
    met = complete & np.isinf(missed)
    return SettledRequests(
        np.where(first > 0, np.inf, np.where(met, met_at, missed)), met & (first == 0)
    )


def nonzero_goodput(levels: pd.DataFrame) -> pd.Series:
    """Return the goodput of levels, 1/s, with half a request per window in place of 0, which has no logarithm."""
    return levels[GOODPUT].mask(
        levels[GOODPUT] == 0, _HALF_A_REQUEST / levels["duration_s"]
    )
