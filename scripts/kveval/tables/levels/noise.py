"""The noise within one run: how far a level's numbers would move if the same run were made again.

The spread of runs contains it, so it never replaces that spread; it is a lower bound of the spread to be expected.
All values are relative, 0.01 is 1 %; NaN where the requests do not allow an estimate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from kveval.estimators.distributions import distributions
from kveval.estimators.intervals import t_quantile
from kveval.estimators.spreads import Array
from kveval.estimators.survival import (
    ObservedTimes,
    effective_count,
    quantiles,
)
from kveval.tables.levels.requests import Requests

_BEYOND = {"p50": 2, "p90": 2, "p99": 10}
"""Observed values needed beyond a quantile: the 90th percentile of nine values would just be the largest. In heavy
tails, two values beyond a p99 determine it to a factor of two, ten to a third."""
QUANTILES: Mapping[str, float] = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
_TWO_STATES = 0.5
"""A rate that changes by more, relative to its mean, from the first third of a window to the last has two states."""
_BATCH_LATENCIES, _FEWEST_BATCHES, _MOST_BATCHES = 4, 6, 9


def latencies_needed(quantile: str) -> int:
    """Return how many latencies a quantile needs to be meaningful: 4 for p50, 20 for p90, 1000 for p99."""
    return round(_BEYOND[quantile] / (1 - QUANTILES[quantile]))


def counting_error(requests: Requests, start: float, end: float) -> float:
    """Return the standard error of ln throughput of a closed loop from the requests that ended within the window.

    Renewal reward: throughput is tokens per second of a stream's time. SE = sqrt(n / (n - 1) sum r^2) / sum T with
    r = T - (sum T / sum L) L, T the tokens and L the latency of a request, taken as independent; 1 for one request.
    """
    seconds = requests.column("e2e_ms") / 1000
    known = requests.completed_within(start, end) & ~np.isnan(seconds)
    return renewal_error(requests.column("output_tokens")[known], seconds[known])


def renewal_error(rewards: Array, seconds: Array) -> float:
    """Return the standard error of ln of a closed loop's rate, from the reward and the latency of each request.

    As in `counting_error`; NaN if the rewards add up to 0.
    """
    count, total = len(rewards), float(rewards.sum())
    if not total > 0 or not seconds.sum() > 0:
        return np.nan
    if count == 1:
        return 1.0
    residual = rewards - total / float(seconds.sum()) * seconds
    return math.sqrt(count / (count - 1) * float((residual**2).sum())) / total


def cut_error(requests: Requests, start: float, end: float, streams: float) -> float:
    """Return the standard error of ln throughput due to the phase at which the window's ends cut the streams.

    A stream waits for the first token for a share w of a request, then delivers T tokens: the count until a moment is
    off the even rate by up to w T, uniformly over the phase. Both ends: variance (w T)^2 / 6 per stream. Runs that
    start alike are cut alike, so that this error does not average out over runs.
    """
    done = requests.completed_within(start, end)
    silent = (
        requests.column("ttft_ms")
        / requests.column("e2e_ms")
        * requests.column("output_tokens")
    )[done]
    known = silent[np.isfinite(silent)]
    delivered = float(requests.tokens_delivered(start, end).sum())
    if not len(known) or not delivered > 0:
        return np.nan
    return math.sqrt(streams * float((known**2).mean()) / 6) / delivered


def rate_drift(
    requests: Requests, start: float, end: float, streams: float | None
) -> tuple[float, float]:
    """Return the relative change of the token rate from the first to the last third, and its standard error.

    Both relative to the mean of the two thirds. The error is the larger of two estimates: from the scatter of batches
    longer than a request, see `change_error`, and from the single requests: in a closed loop of `streams` as in
    `counting_error` and `cut_error`, in an open loop (None) as a compound Poisson process.
    """
    thirds = requests.tokens_delivered_in_parts(start, end, 3)
    middle = (thirds[0] + thirds[2]) / 2
    if not middle > 0:
        return np.nan, np.nan
    batches = requests.tokens_delivered_in_parts(
        start, end, batch_count(end - start, requests.mean_latency_s(start, end))
    )
    if streams is None:
        amounts = requests.tokens_delivered(start, end)
        own = math.sqrt(6 * float((amounts**2).sum())) / float(amounts.sum())
    else:
        counted, cut = (
            counting_error(requests, start, end),
            cut_error(requests, start, end, streams),
        )
        # A third of the window has a third of the requests and tokens, but two ends as the whole window has.
        own = math.hypot(math.sqrt(6) * counted, 3 * math.sqrt(2) * cut)
    error = change_error(batches) * len(batches) / 3 / middle
    return float((thirds[2] - thirds[0]) / middle), float(np.fmax(error, own))


def batch_count(seconds: float, latency_s: float) -> int:
    """Return into how many batches a window is cut: 6 to 9, of four mean latencies or longer where possible.

    Batches shorter than the fluctuations of the rate are correlated, and make it look steadier than it is (Law and
    Kelton 2000, 9.5.3).
    """
    count = seconds / (_BATCH_LATENCIES * latency_s) if latency_s > 0 else _MOST_BATCHES
    return int(np.clip(count, _FEWEST_BATCHES, _MOST_BATCHES))


def change_error(batches: Array) -> float:
    """Return the standard error of the change from the mean of the first third to that of the last.

    Estimated from the scatter of at least three batches about a straight line, so that the change itself adds little.
    Scaled by Student's t for the few degrees of freedom, so that twice the error is a 95 % limit.
    """
    number = np.arange(len(batches)) - (len(batches) - 1) / 2
    about = batches - batches.mean()
    residual = about - number * float(number @ about) / float(number @ number)
    freedom = len(batches) - 2
    variance = float(residual @ residual) / freedom
    return math.sqrt(6 * variance / len(batches)) * t_quantile(0.975, freedom) / 1.96


def is_unsteady(change: float, error: float) -> bool:
    """Whether a rate that changed by so much was not steady: by more than max(5 %, 2 standard errors)."""
    return abs(change) > max(0.05, 2 * error)


def state_bound(change: float, error: float) -> float:
    """Return how far, on the ln scale, a rate may lie to either side of its mean over a window of two states; 0 for one.

    With the relative change d of `rate_drift`, the states are m (1 - d/2) and m (1 + d/2), m their mean. Whichever of
    them is the true rate, the mean over the window lies between them: the bound is |ln((1 + d/2) / (1 - d/2))|. It is
    infinite if one of the two thirds delivered nothing, as where a server stopped or started.
    """
    if not is_unsteady(change, error) or abs(change) <= max(_TWO_STATES, 3 * error):
        return 0.0
    half = abs(change) / 2
    # Tokens are shared out among the thirds: a third that delivered none may have a rounding error of them.
    return math.log((1 + half) / (1 - half)) if half < 1 - 1e-9 else math.inf


def quantile_error(observed: ObservedTimes, share: float) -> float:
    """Return the standard error of ln of a quantile: half the gap of the quantiles one binomial error to each side.

    Woodruff (1952), with `effective_count` as the sample size; NaN if one of these quantiles was not observed.
    """
    count = effective_count(observed, share)
    if not count > 0:
        return np.nan
    error = math.sqrt(share * (1 - share) / count)
    low, high = quantiles(observed, [share - error, share + error])
    return float(np.log(high / low)) / 2 if low > 0 else np.nan


def quantile_interval(
    observed: ObservedTimes, share: float, confidence: float = 0.95
) -> tuple[float, float]:
    """Return an interval of a quantile, from the binomial distribution of the number of values below it.

    For complete samples the interval of order statistics (David and Nagaraja 2003, 7.1), else with `effective_count` as
    the sample size. An end beyond the observed values is NaN: bounding a p99 takes at least 368 values.
    """
    count = effective_count(observed, share)
    if not count >= 1:
        return np.nan, np.nan
    # The tolerance is for complete samples, where the count is an integer up to rounding.
    size = math.floor(count + 1e-6)
    least, most = (
        _binomial_quantile(at, size, share)
        for at in ((1 - confidence) / 2, (1 + confidence) / 2)
    )
    low, high = quantiles(observed, [least / size, (most + 1) / size])
    return (low if least else np.nan), high


def _binomial_quantile(probability: float, size: int, share: float) -> int:
    """Return the quantile of a binomial distribution: the smallest count not exceeded with this probability."""
    count = math.ceil(float(distributions().bdtrik(probability, size, share)))
    one_less = (
        count > 0 and float(distributions().bdtr(count - 1, size, share)) >= probability
    )
    return count - 1 if one_less else count


def uncensored(
    values: Array, unit: npt.NDArray[np.intp] | None = None
) -> ObservedTimes:
    """Return `ObservedTimes` for latencies that were all observed completely; `unit` as there."""
    return ObservedTimes(
        np.zeros(len(values)), values, np.ones(len(values), dtype=np.bool_), unit
    )
