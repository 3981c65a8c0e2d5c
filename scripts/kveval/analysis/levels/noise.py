"""The noise within one run: how far a level's numbers would move if the same run were made again.

It never replaces the spread of runs, in which it is contained; it says how small that spread can be by chance alone.
All values are relative, 0.01 is 1 %; NaN where the requests do not tell.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from kveval.analysis.estimators.survival import Observed, quantiles
from kveval.analysis.levels.requests import Array, Requests

BEYOND = 2
"""So many observed values beyond a quantile make it one: a 90th percentile of nine values is their largest."""
QUANTILES: Mapping[str, float] = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def needed_for(quantile: str) -> int:
    """Return how many latencies a quantile such as "p90" needs to be one at all: 4, 20, 200."""
    return round(BEYOND / (1 - QUANTILES[quantile]))


def counting_error(requests: Requests, start: float, end: float) -> float:
    """Return the standard error of ln throughput of a closed loop from the requests that ended within the window.

    Renewal reward: throughput is tokens per second of a stream's time. SE = sqrt(n / (n - 1) sum r^2) / sum T with
    r = T - (sum T / sum L) L, T the tokens and L the latency of a request, taken as independent; 1 for one request.
    """
    finish = requests.column("end")
    done = requests.status("completed") & (finish >= start) & (finish < end)
    tokens, seconds = requests.column("output_tokens")[done], requests.column("e2e_ms")[done] / 1000
    known = ~np.isnan(seconds)
    tokens, seconds = tokens[known], seconds[known]
    return renewal_error(tokens, seconds)


def renewal_error(rewards: Array, seconds: Array) -> float:
    """Return the standard error of ln of a closed loop's rate, from the reward and the latency of each request.

    As in `counting_error`; NaN where nothing was rewarded.
    """
    count, total = len(rewards), float(rewards.sum())
    if not total > 0 or not seconds.sum() > 0:
        return np.nan
    if count == 1:
        return 1.0
    residual = rewards - total / float(seconds.sum()) * seconds
    return math.sqrt(count / (count - 1) * float((residual**2).sum())) / total


def cut_error(requests: Requests, start: float, end: float, streams: float) -> float:
    """Return the standard error of ln throughput from where the window's ends cut the streams.

    A stream is silent until the first token, for a share w of a request, then delivers T tokens: what it delivered by
    a moment is off its even rate by up to w T, uniformly over the phase; at two ends, variance (w T)^2 / 6 a stream.
    Runs that start alike are cut alike, so that repeating them does not average it out.
    """
    finish = requests.column("end")
    done = requests.status("completed") & (finish >= start) & (finish < end)
    silent = (requests.column("ttft_ms") / requests.column("e2e_ms") * requests.column("output_tokens"))[done]
    known = silent[np.isfinite(silent)]
    delivered = float(requests.delivered(start, end).sum())
    if not len(known) or not delivered > 0:
        return np.nan
    return math.sqrt(streams * float((known**2).mean()) / 6) / delivered


def drift(requests: Requests, start: float, end: float, bins: int = 5) -> tuple[float, float]:
    """Return the relative change of the token rate from the first to the last third, and its standard error.

    The error comes from `bins` equal parts of each third taken as independent. Both relative to the mean of the thirds.
    """
    counts = requests.delivered_in_parts(start, end, 3 * bins)
    early, late = counts[:bins], counts[-bins:]
    middle = (early.mean() + late.mean()) / 2
    if not middle > 0:
        return np.nan, np.nan
    error = np.sqrt((early.var(ddof=1) + late.var(ddof=1)) / bins)
    return float((late.mean() - early.mean()) / middle), float(error / middle)


def uneven(change: float, error: float) -> bool:
    """Whether a rate that changed by so much was not steady: by more than max(5 %, 2 standard errors)."""
    return abs(change) > max(0.05, 2 * error)


def quantile_error(observed: Observed, share: float) -> float:
    """Return the standard error of ln of a quantile: half the way between those one binomial error to either side.

    Woodruff (1952), with the events as the sample's size; NaN where there is none on one of the sides.
    """
    if not observed.events:
        return np.nan
    error = math.sqrt(share * (1 - share) / observed.events)
    low, high = quantiles(observed, [share - error, share + error])
    return float(np.log(high / low)) / 2 if low > 0 else np.nan


def whole(values: Array) -> Observed:
    """Return latencies that were all seen to their end as such."""
    return Observed(np.zeros(len(values)), values, np.ones(len(values), dtype=np.bool_))
