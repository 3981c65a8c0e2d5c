"""The noise within one run: how far a level's numbers would move if the same run were made again.

It never replaces the spread of runs, in which it is contained; it says how small that spread can be by chance alone.
All values are relative, 0.01 is 1 %; NaN where the requests do not tell.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from scipy import special

from kveval.analysis.estimators.intervals import t_quantile
from kveval.analysis.estimators.spreads import Array
from kveval.analysis.estimators.survival import Observed, effective_count, quantiles
from kveval.analysis.levels.requests import Requests

_BEYOND = {"p50": 2, "p90": 2, "p99": 10}
"""So many observed values beyond a quantile make it one: a 90th percentile of nine values is their largest. With two
beyond it a 99th is known to a factor of two in heavy tails, with ten to a third."""
QUANTILES: Mapping[str, float] = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
_BATCH_LATENCIES, _FEWEST_BATCHES, _MOST_BATCHES = 4, 6, 9


def needed_for(quantile: str) -> int:
    """Return how many latencies a quantile such as "p90" needs to be one at all: 4, 20, 1000."""
    return round(_BEYOND[quantile] / (1 - QUANTILES[quantile]))


def counting_error(requests: Requests, start: float, end: float) -> float:
    """Return the standard error of ln throughput of a closed loop from the requests that ended within the window.

    Renewal reward: throughput is tokens per second of a stream's time. SE = sqrt(n / (n - 1) sum r^2) / sum T with
    r = T - (sum T / sum L) L, T the tokens and L the latency of a request, taken as independent; 1 for one request.
    """
    done = requests.completed(start, end)
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
    done = requests.completed(start, end)
    silent = (requests.column("ttft_ms") / requests.column("e2e_ms") * requests.column("output_tokens"))[done]
    known = silent[np.isfinite(silent)]
    delivered = float(requests.delivered(start, end).sum())
    if not len(known) or not delivered > 0:
        return np.nan
    return math.sqrt(streams * float((known**2).mean()) / 6) / delivered


def drift(requests: Requests, start: float, end: float, streams: float | None) -> tuple[float, float]:
    """Return the relative change of the token rate from the first to the last third, and its standard error.

    Both relative to the mean of the thirds. The error is the larger of two: the scatter of batches longer than a
    request, see `change_error`, and what the requests of two thirds give, each taken for itself; in a closed loop of
    `streams` as in `counting_error` and `cut_error`, in an open one (None) as a compound Poisson process.
    """
    thirds = requests.delivered_in_parts(start, end, 3)
    middle = (thirds[0] + thirds[2]) / 2
    if not middle > 0:
        return np.nan, np.nan
    batches = requests.delivered_in_parts(start, end, batch_count(end - start, requests.mean_latency_s(start, end)))
    if streams is None:
        amounts = requests.delivered(start, end)
        own = math.sqrt(6 * float((amounts**2).sum())) / float(amounts.sum())
    else:
        counted, cut = counting_error(requests, start, end), cut_error(requests, start, end, streams)
        # A third has a third of the requests and of the tokens, and both ends of its own.
        own = math.hypot(math.sqrt(6) * counted, 3 * math.sqrt(2) * cut)
    error = change_error(batches) * len(batches) / 3 / middle
    return float((thirds[2] - thirds[0]) / middle), float(np.fmax(error, own))


def batch_count(seconds: float, latency_s: float) -> int:
    """Return into how many batches a window is cut: four mean latencies or longer, and 6 to 9 of them.

    Batches shorter than what makes the rate go up and down are alike one after the other, and look steadier than they
    are (Law and Kelton 2000, 9.5.3).
    """
    wanted = seconds / (_BATCH_LATENCIES * latency_s) if latency_s > 0 else _MOST_BATCHES
    return int(np.clip(wanted, _FEWEST_BATCHES, _MOST_BATCHES))


def change_error(batches: Array) -> float:
    """Return the standard error of the change from the mean of the first third to that of the last.

    From the scatter of at least three batches about a straight line, so that a change itself adds little; as much
    larger as Student's t with so few degrees of freedom asks, for twice the error to be a limit of 95 %.
    """
    number = np.arange(len(batches)) - (len(batches) - 1) / 2
    about = batches - batches.mean()
    residual = about - number * float(number @ about) / float(number @ number)
    freedom = len(batches) - 2
    variance = float(residual @ residual) / freedom
    return math.sqrt(6 * variance / len(batches)) * t_quantile(0.975, freedom) / 1.96


def uneven(change: float, error: float) -> bool:
    """Whether a rate that changed by so much was not steady: by more than max(5 %, 2 standard errors)."""
    return abs(change) > max(0.05, 2 * error)


def quantile_error(observed: Observed, share: float) -> float:
    """Return the standard error of ln of a quantile: half the way between those one binomial error to either side.

    Woodruff (1952), with `effective_count` as the sample's size; NaN where there is none on one of the sides.
    """
    count = effective_count(observed, share)
    if not count > 0:
        return np.nan
    error = math.sqrt(share * (1 - share) / count)
    low, high = quantiles(observed, [share - error, share + error])
    return float(np.log(high / low)) / 2 if low > 0 else np.nan


def quantile_interval(observed: Observed, share: float, confidence: float = 0.95) -> tuple[float, float]:
    """Return an interval of a quantile: the values between which it lies by the binomial distribution of those below.

    For complete samples the interval of order statistics (David and Nagaraja 2003, 7.1), with `effective_count` as the
    sample's size otherwise. NaN for an end beyond what was observed: 368 values are the fewest that bound a p99.
    """
    count = effective_count(observed, share)
    if not count >= 1:
        return np.nan, np.nan
    # The tolerance is for complete samples, whose number it is.
    size = math.floor(count + 1e-6)
    least, most = (_binomial_quantile(at, size, share) for at in ((1 - confidence) / 2, (1 + confidence) / 2))
    low, high = quantiles(observed, [least / size, (most + 1) / size])
    return (low if least else np.nan), high


def _binomial_quantile(probability: float, size: int, share: float) -> int:
    """Return the smallest count that a binomial variable does not exceed with this probability."""
    count = math.ceil(float(special.bdtrik(probability, size, share)))
    one_less = count > 0 and float(special.bdtr(count - 1, size, share)) >= probability
    return count - 1 if one_less else count


def whole(values: Array, unit: npt.NDArray[np.intp] | None = None) -> Observed:
    """Return latencies that were all seen to their end as such; `unit` as in `Observed`."""
    return Observed(np.zeros(len(values)), values, np.ones(len(values), dtype=np.bool_), unit)
