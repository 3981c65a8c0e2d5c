"""Checks of levels that were measured elsewhere, with any strategy and any version of GuideLLM."""

import math
from collections.abc import Iterator

import numpy as np

from kveval.analysis.levels.aggregates import partial_output_counted
from kveval.analysis.levels.checks_level import JudgedLevel
from kveval.analysis.levels.outcomes import Outcome, check, fail, note, warn
from kveval.load.levels import rate_req_s_at
from kveval.store.run_file import IMPORTED

# Unfinished requests are a few per cent if a level is several times as long as a request.
_MANY_UNFINISHED = 0.10
# A server that keeps up with an open loop answers as fast as requests are sent, except those in flight at the end.
_KEEPS_UP = 0.90


def _unfinished(level: JudgedLevel) -> float:
    total = level.row["requests_total"]
    return float(level.row["requests_incomplete"] / total) if total else 0.0


def _requests_begun(level: JudgedLevel) -> int:
    """How many requests were sent within the window, by their records."""
    begin, (start, end) = level.requests.column("start"), level.window
    return int(np.count_nonzero((begin >= start) & (begin < end)))


def _answers_fall_short(level: JudgedLevel, sent_req_s: float) -> bool:
    """Whether significantly fewer requests were answered than were sent, or than were due."""
    seconds = level.window[1] - level.window[0]
    answered, due = level.row["throughput_req_s"] * seconds, sent_req_s * seconds
    # The count in a window varies by one at constant intervals; at random ones by two standard deviations (95 %).
    chance = 1.0 if level.report.strategy == "constant" else 2 * math.sqrt(due)
    return bool(
        answered < _KEEPS_UP * due - chance
        or answered < _KEEPS_UP * _requests_begun(level) - 1.0
    )


def _declares_rate(level: JudgedLevel) -> bool:
    """Whether the workload declares the rate at which it sends."""
    return rate_req_s_at(level.workload, level.entry.level) is not None


@check()
def aggregate_only(level: JudgedLevel) -> Iterator[Outcome]:
    """The report kept every request, so that everything else can be computed and checked."""
    if not level.report.requests_missing:
        return
    finished = level.report.completed + level.report.errored
    kept = max(0, finished - level.report.requests_missing)
    edges = "requests at the window's edges count whole"
    if level.report.latencies_kept:
        yield warn(
            f"the report has no start times of requests: steadiness and warm-up were not checked; {edges}"
        )
        return
    later = (
        f"; the first {level.row['warmup_s']:.0f} s are a warm-up"
        if level.row["warmup_s"]
        else ""
    )
    yield warn(
        f"the report keeps {kept} of {finished} finished requests: steadiness, warm-up and turns were not checked;"
        f" {edges}{later}"
    )


@check()
def partial_output(level: JudgedLevel) -> Iterator[Outcome]:
    """The report counts tokens of unfinished requests; else throughput is too low by up to their share."""
    share = _unfinished(level)
    if level.report.requests_missing and not partial_output_counted(level.report):
        yield (fail if share > _MANY_UNFINISHED else warn)(
            f"the report counts no tokens of the {level.report.incomplete} unfinished requests ({100 * share:.0f} %)"
        )


@check()
def incomplete_share(level: JudgedLevel) -> Iterator[Outcome]:
    """Most requests finished; latencies of the others are unknown, and those are the slowest."""
    share, total = _unfinished(level), level.row["requests_total"]
    # Unfinished at the end: in a closed loop one request per stream; in an open one those sent within one latency.
    weight = note if level.report.closed_loop or _declares_rate(level) else fail
    if share > _MANY_UNFINISHED:
        yield weight(
            f"{100 * share:.0f} % of {total} requests were unfinished when the level ended"
        )


@check()
def saturated_open_loop(level: JudgedLevel) -> Iterator[Outcome]:
    """The requests of an open loop were answered at the rate they were sent; else the queue grows during the level."""
    answered, sent, in_flight = (
        level.row["throughput_req_s"],
        level.rate_req_s,
        level.row["concurrency_mean"],
    )
    strategy = f"strategy {level.report.strategy}"
    if level.report.closed_loop or (
        sent is not None and not _answers_fall_short(level, sent)
    ):
        return
    if sent is None and in_flight < 1:
        message = f"{in_flight:.2g} requests in flight, so throughput is the rate that was sent"
        yield warn(f"{strategy} chooses its own rate: {message}")
        return
    known = "" if np.isnan(in_flight) else f" ({in_flight:.0f} in flight)"
    message = f"{strategy} sends everything at once{known}"
    if sent is not None:
        message = f"{sent:.2f} requests/s were sent, {answered:.2f} answered"
    yield fail(
        f"{message}: saturated open loop, whose latencies depend on the growing queue and the level's length"
    )


@check()
def open_loop(level: JudgedLevel) -> Iterator[Outcome]:
    """The number of requests in flight was fixed, or the rate declared, so that all arms get the same load."""
    rate = level.rate_req_s
    if level.report.closed_loop or rate is None:
        return
    message = f"strategy {level.report.strategy} at {rate:.4g} requests/s: throughput is the rate that was sent"
    if _declares_rate(level):
        yield note(f"{message}, arms can differ in latencies only")
    else:
        yield warn(
            f"{message}, and a sweep derives its rates from each server's own speed, so arms get different loads"
        )


@check()
def no_reuse(level: JudgedLevel) -> Iterator[Outcome]:
    """Prompts have parts in common; otherwise no cache, on the device or behind it, can have a hit."""
    data = level.report.data
    # For runs measured by this workflow, the server's counters show whether the arm was active.
    weight = fail if level.run.engine == IMPORTED else note
    if data is not None and not data.reuse_possible:
        yield weight(
            f"every prompt is unique ({data.prompt_tokens} tokens, no shared prefix, one turn): nothing can be reused,"
            " so the arm's feature is not exercised"
        )
