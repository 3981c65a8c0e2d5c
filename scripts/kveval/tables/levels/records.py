"""A level's row from its requests' records: throughput, counts and latencies of the window.

Throughput counts every output token delivered inside the measurement window, those of unfinished requests too.
Quantiles of TTFT and E2E allow for the requests that the window cut off; TPOT and ITL are those of the requests that
ended inside it. What was not observed is NaN, never 0.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from kveval.estimators.spreads import Array
from kveval.estimators.survival import ObservedTimes, quantiles
from kveval.load.levels import prefix_count_at, prefix_tokens_at
from kveval.load.visits import visited
from kveval.load.workload import workload_of
from kveval.tables.levels.noise import (
    QUANTILES,
    quantile_error,
    quantile_interval,
    uncensored,
)
from kveval.tables.levels.requests import Requests

LATENCIES = ("ttft", "tpot", "itl", "e2e")
# The statistics by which latencies are compared; the others need no error.
_WITH_ERROR = (
    "ttft_ms_p50",
    "ttft_ms_p90",
    "tpot_ms_p50",
    "itl_ms_p50",
    "e2e_ms_p50",
    "e2e_ms_p90",
)


def window_columns(requests: Requests, start: float, end: float) -> dict[str, Any]:
    """Return throughput, counts and latencies of the window from the requests' records."""
    seconds = end - start
    begin, finish = requests.column("start"), requests.column("end")
    first = requests.column("first_token")
    tokens, prompts = requests.column("output_tokens"), requests.column("prompt_tokens")
    errored, completed = (
        requests.has_status("errored"),
        requests.completed_within(start, end),
    )
    failed = errored & ~((finish < start) | (begin >= end))
    # In flight when the window closed, whether it was cut off then or finished a moment later.
    unfinished = ~errored & (begin < end) & ~(finish < end) & ~completed
    began_output = (first >= start) & (first <= end) & ~errored
    delivered = float(requests.tokens_delivered(start, end).sum())
    counts = {
        "requests_completed": int(completed.sum()),
        "requests_incomplete": int(unfinished.sum()),
        "requests_errored": int(failed.sum()),
    }
    total = sum(counts.values())
    overlap = np.clip(np.minimum(finish, end) - np.maximum(begin, start), 0, None)
    prompt_tokens = float(np.nansum(prompts[began_output]))
    row: dict[str, Any] = {
        **counts,
        "requests_total": total,
        "incomplete_share": counts["requests_incomplete"] / total if total else np.nan,
        "throughput_tok_s": delivered / seconds,
        "throughput_completed_tok_s": float(np.nansum(tokens[completed])) / seconds,
        "throughput_req_s": counts["requests_completed"] / seconds,
        "total_tok_s": (prompt_tokens + delivered) / seconds,
        "prompt_tokens": prompt_tokens,
        "output_tokens": delivered,
        "concurrency_mean": float(np.nansum(overlap)) / seconds,
    }
    return row | _latency_columns(requests, start, end)


def _latency_columns(requests: Requests, start: float, end: float) -> dict[str, Any]:
    """The statistics of each latency, and how many of the times of TTFT and E2E were cut off."""
    first, completed = (
        requests.column("first_token"),
        requests.completed_within(start, end),
    )
    began_output = (first >= start) & (first <= end) & ~requests.has_status("errored")
    answered = np.where(
        requests.has_status("completed"), requests.column("end"), np.nan
    )
    times = {
        "ttft": _waits(requests, first, _observed_ms(requests, "ttft"), start, end),
        "e2e": _waits(requests, answered, _observed_ms(requests, "e2e"), start, end),
    }
    row: dict[str, Any] = {}
    for name in LATENCIES:
        values = _observed_ms(requests, name)
        known = (began_output if name == "ttft" else completed) & ~np.isnan(values)
        row |= _statistics(
            name,
            values[known],
            times.get(name) or uncensored(values[known], requests.conversations[known]),
        )
    for name, observed in times.items():
        row |= {f"{name}_count": observed.events, f"{name}_censored": observed.censored}
    # Quantiles that were not observed because too many requests were cut off.
    names = (
        f"{name}_ms_{label}"
        for name, observed in times.items()
        if observed.events
        for label in QUANTILES
    )
    row["not_reached"] = ";".join(name for name in names if np.isnan(row[name]))
    return row


def _observed_ms(requests: Requests, name: str) -> Array:
    """A latency of each request, ms: 0 in place of one that was not observed is NaN.

    Tokens may arrive together: then there are no gaps between them.
    """
    values = requests.column(f"{name}_ms")
    return values if name == "itl" else np.where(values > 0, values, np.nan)


def _waits(
    requests: Requests, when: Array, age_ms: Array, start: float, end: float
) -> ObservedTimes:
    """Return the part of each request's wait, in ms, that was observed; without errored requests and those never sent.

    `when` and `age_ms` say when the wait ended.
    """
    begin = requests.column("start")
    over = when < start
    watched = ~requests.has_status("errored") & (begin < end) & ~over
    # How long it waited is not known, although the wait ended.
    watched &= np.isnan(when) | ~np.isnan(age_ms)
    # A request that was cut off before the window began was not waiting within it.
    watched &= ~(requests.column("end") < start)
    event = watched & (when <= end) & ~np.isnan(age_ms)
    entry = 1000 * np.maximum(start - begin, 0)
    age = np.where(event, age_ms, 1000 * (np.fmin(end, requests.column("end")) - begin))
    # Rounding may put the generator's own figure below the age at which the request was first observed.
    leave = np.maximum(age, np.nextafter(entry, np.inf))
    return ObservedTimes(
        entry[watched], leave[watched], event[watched], requests.conversations[watched]
    )


def _statistics(name: str, values: Array, times: ObservedTimes) -> dict[str, float]:
    """Return a latency's mean from `values`, and its quantiles and their errors from `times`."""
    row = {f"{name}_ms_mean": float(values.mean()) if len(values) else np.nan}
    estimates = quantiles(times, list(QUANTILES.values()))
    columns = [f"{name}_ms_{label}" for label in QUANTILES]
    row |= dict(zip(columns, estimates, strict=True))
    shares = zip(columns, QUANTILES.values(), strict=True)
    row |= {
        f"{column}_se": quantile_error(times, share)
        for column, share in shares
        if column in _WITH_ERROR
    }
    low, high = quantile_interval(times, QUANTILES["p99"])
    return row | {f"{name}_ms_p99_low": low, f"{name}_ms_p99_high": high}


def request_tokens(
    requests: Requests, start: float, end: float, turns: int
) -> dict[str, float]:
    """Return the mean tokens of a completed request's prompt and answer, and their relative standard errors.

    Later turns of a conversation repeat what came before, and a faster server reaches more of them: so prompts are
    those of first turns, NaN if several `turns` were asked for and no request has a turn number.
    """
    done, finish = requests.has_status("completed"), requests.column("end")
    within = done & (finish >= start) & (finish < end)
    turn = requests.column("turn")
    first = (turn == 0) if turns > 1 else np.isnan(turn) | (turn == 0)
    prompts, outputs = (
        requests.column("prompt_tokens")[done & first],
        requests.column("output_tokens")[within],
    )
    return token_columns(_mean_with_error(prompts), _mean_with_error(outputs))


def token_columns(
    prompt: tuple[float, float], output: tuple[float, float]
) -> dict[str, float]:
    """Return the columns of a request's tokens from the mean and its relative standard error, of prompt and answer."""
    names = (
        "request_prompt_tokens",
        "request_prompt_tokens_se",
        "request_output_tokens",
        "request_output_tokens_se",
    )
    return dict(zip(names, (*prompt, *output), strict=True))


def _mean_with_error(tokens: Array) -> tuple[float, float]:
    values = tokens[~np.isnan(tokens)]
    if not len(values) or not values.mean() > 0:
        return np.nan, np.nan
    mean = float(values.mean())
    return mean, float(values.std(ddof=1)) / mean / len(values) ** 0.5 if len(
        values
    ) > 1 else np.nan


def prompt_shares(
    workload: Mapping[str, Any],
    level: int,
    requests: Requests,
    window: tuple[float, float],
) -> tuple[float, float]:
    """Return two shares of the window's prompt tokens: first visits of prefixes, and prompts new in each turn.

    The first is an expectation, see `visited`, and 0 if every prefix was sent before the level (`prime`). Requests
    belong to the window that holds their first token, as for `prompt_tokens`. NaN without such requests, or if the
    workload does not declare its prefixes.
    """
    start, end = window
    first = requests.column("first_token")
    inside = (first >= start) & (first < end) & ~requests.has_status("errored")
    total = float(np.nansum(requests.column("prompt_tokens")[inside]))
    if (
        workload.get("prefix_count") is None
        or workload.get("prefix_tokens") is None
        or not total > 0
    ):
        return np.nan, np.nan
    spec = workload_of(workload)
    opening = np.nan_to_num(requests.column("turn"), nan=0.0) == 0
    before, within = (
        int(np.count_nonzero(opening & (first < start))),
        int(np.count_nonzero(opening & inside)),
    )
    count, tokens = prefix_count_at(spec, level), prefix_tokens_at(spec, level)
    visits = (
        0.0
        if spec.prime
        else visited(count, before + within, spec.prefix_zipf)
        - visited(count, before, spec.prefix_zipf)
    )
    unshared = float(inside.sum()) * spec.prompt_tokens
    unshared += float((opening & inside).sum()) * spec.document_tokens
    return min(1.0, visits * tokens / total), min(1.0, unshared / total)
