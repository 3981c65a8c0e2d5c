"""A level's row from the report's own statistics, for reports that did not keep every request.

Columns that these statistics do not give are NaN. Requests at the window's edges count whole instead of in part, and
latencies are those of completed requests only; a check in `checks_import` says so for every such level.
"""

from collections.abc import Collection
from typing import Any

import numpy as np

from kveval.load.reports import Aggregate, ByStatus, LevelReport, Statistics
from kveval.tables.levels.records import token_columns

# The 90th percentile of a normal distribution, in standard deviations.
_P90 = 1.2816


def window_columns(
    report: LevelReport, unknown: Collection[str] = ()
) -> dict[str, Any]:
    """Return throughput, counts and latencies under the names of levels.csv; rates are over the window.

    Latencies that are `unknown`, such as `ttft`, are NaN.
    """
    aggregate, seconds = report.aggregate, report.end - report.start
    total = report.completed + report.incomplete + report.errored
    delivered = (
        np.nan if aggregate.delivered_tokens is None else aggregate.delivered_tokens
    )
    finished, prompts = (
        _sum(aggregate.output_tokens.completed),
        _sum(aggregate.prompt_tokens.everything),
    )
    concurrency = aggregate.concurrency.everything
    row: dict[str, Any] = {
        "requests_completed": report.completed,
        "requests_incomplete": report.incomplete,
        "requests_errored": report.errored,
        "requests_total": total,
        "incomplete_share": report.incomplete / total if total else np.nan,
        "throughput_tok_s": delivered / seconds,
        "throughput_completed_tok_s": finished / seconds,
        "throughput_req_s": report.completed / seconds,
        "total_tok_s": (prompts + delivered) / seconds,
        "prompt_tokens": prompts,
        "output_tokens": delivered,
        "concurrency_mean": np.nan if concurrency is None else concurrency.mean,
    }
    row |= _latency("ttft", aggregate.ttft_ms) | _time_per_output_token(aggregate)
    row |= _latency("itl", aggregate.itl_ms) | _latency("e2e", aggregate.e2e_ms)
    nothing = {
        name: np.nan
        for name in row
        if "_ms_" in name and name.partition("_ms_")[0] in unknown
    }
    first = None if "ttft" in unknown else aggregate.ttft_ms.completed
    return {**row, **nothing, "ttft_count": 0 if first is None else first.count}


def partial_output_counted(report: LevelReport) -> bool:
    """Whether the tokens of requests that were cut off are in the report; GuideLLM 0.4 often has none."""
    tokens = report.aggregate.output_tokens.incomplete
    return not report.incomplete or (tokens is not None and tokens.total > 0)


def _time_per_output_token(aggregate: Aggregate) -> dict[str, float]:
    """Return the time per output token with the time to the first token, which GuideLLM up to 0.3 leaves out.

    For those reports the mean is computed from the sums over tokens; quantiles are NaN.
    """
    row = _latency("tpot", aggregate.tpot_ms)
    if aggregate.tpot_includes_first_token:
        return row
    tokens, first = (
        _sum(aggregate.output_tokens.completed),
        _sum(aggregate.ttft_ms.completed),
    )
    return {
        **dict.fromkeys(row, np.nan),
        "tpot_ms_mean": row["tpot_ms_mean"] + first / tokens if tokens else np.nan,
    }


def _latency(name: str, values: ByStatus) -> dict[str, float]:
    statistics = values.completed or Statistics(count=0, mean=np.nan, total=np.nan)
    quantiles = {"p50": statistics.p50, "p90": statistics.p90, "p99": statistics.p99}
    return {
        f"{name}_ms_mean": statistics.mean,
        **{
            f"{name}_ms_{label}": np.nan if value is None else value
            for label, value in quantiles.items()
        },
    }


def _sum(values: Statistics | None) -> float:
    return np.nan if values is None else values.total


def request_tokens(report: LevelReport, turns: int) -> dict[str, float]:
    """Return the mean tokens of a completed request's prompt and answer, and their relative standard errors.

    Prompts of later turns repeat the conversation so far, and statistics do not separate them: NaN with several turns.
    """
    aggregate = report.aggregate
    prompts = aggregate.prompt_tokens.completed if turns == 1 else None
    return token_columns(
        _mean_with_error(prompts), _mean_with_error(aggregate.output_tokens.completed)
    )


def _mean_with_error(values: Statistics | None) -> tuple[float, float]:
    """Mean and relative standard error, with the spread estimated from the median and the 90th percentile."""
    if values is None or not values.mean > 0:
        return np.nan, np.nan
    if values.p50 is None or values.p90 is None or not values.count:
        return values.mean, np.nan
    return values.mean, (
        values.p90 - values.p50
    ) / _P90 / values.mean / values.count**0.5
