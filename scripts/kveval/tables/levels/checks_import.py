"""Checks of levels that were measured elsewhere, with any strategy and any version of GuideLLM."""

import math
from collections.abc import Iterator

import numpy as np

from kveval.load.levels import rate_req_s_at
from kveval.store.run_file import IMPORTED
from kveval.tables.levels.aggregates import partial_output_counted
from kveval.tables.levels.checks_level import JudgedLevel
from kveval.tables.levels.outcomes import Outcome, check, fail, note, warn

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
    edges = "; requests at the window's edges count whole"
    if level.report.latencies_kept:
        yield warn(
            "the report has no start times of requests: steadiness and warm-up were not checked"
            + edges
        )
        return
    words = (
        "the report keeps {requests_kept} of {requests_finished} finished requests: steadiness, warm-up and turns were"
        " not checked" + edges
    )
    if level.row["warmup_s"]:
        words += "; the first {warmup_s:.0f} s are a warm-up"
    yield warn(
        words,
        requests_kept=kept,
        requests_finished=finished,
        warmup_s=level.row["warmup_s"],
    )


@check()
def partial_output(level: JudgedLevel) -> Iterator[Outcome]:
    """The report counts tokens of unfinished requests; else throughput is too low by up to their share."""
    share = _unfinished(level)
    if level.report.requests_missing and not partial_output_counted(level.report):
        yield (fail if share > _MANY_UNFINISHED else warn)(
            "the report counts no tokens of the {requests_unfinished} unfinished requests ({unfinished_percent:.0f} %)",
            requests_unfinished=level.report.incomplete,
            unfinished_percent=100 * share,
        )


@check()
def incomplete_share(level: JudgedLevel) -> Iterator[Outcome]:
    """Most requests finished; latencies of the others are unknown, and those are the slowest."""
    share, total = _unfinished(level), level.row["requests_total"]
    # Unfinished at the end: in a closed loop one request per stream; in an open one those sent within one latency.
    weight = note if level.report.closed_loop or _declares_rate(level) else fail
    if share > _MANY_UNFINISHED:
        yield weight(
            "{unfinished_percent:.0f} % of {requests_total} requests were unfinished when the level ended",
            unfinished_percent=100 * share,
            requests_total=total,
        )


@check()
def saturated_open_loop(level: JudgedLevel) -> Iterator[Outcome]:
    """The requests of an open loop were answered at the rate they were sent; else the queue grows during the level."""
    answered, sent, in_flight = (
        level.row["throughput_req_s"],
        level.rate_req_s,
        level.row["concurrency_mean"],
    )
    strategy = level.report.strategy
    if level.report.closed_loop or (
        sent is not None and not _answers_fall_short(level, sent)
    ):
        return
    if sent is None and in_flight < 1:
        yield warn(
            "strategy {strategy} chooses its own rate: {in_flight_mean:.2g} requests in flight, so throughput is the"
            " rate that was sent",
            strategy=strategy,
            in_flight_mean=in_flight,
        )
        return
    saturated = ": saturated open loop, whose latencies depend on the growing queue and the level's length"
    if sent is not None:
        yield fail(
            "{sent_req_s:.2f} requests/s were sent, {answered_req_s:.2f} answered"
            + saturated,
            sent_req_s=sent,
            answered_req_s=answered,
        )
        return
    words = "strategy {strategy} sends everything at once"
    if not np.isnan(in_flight):
        words += " ({in_flight_mean:.0f} in flight)"
    yield fail(words + saturated, strategy=strategy, in_flight_mean=in_flight)


@check()
def open_loop(level: JudgedLevel) -> Iterator[Outcome]:
    """The number of requests in flight was fixed, or the rate declared, so that all arms get the same load."""
    rate = level.rate_req_s
    if level.report.closed_loop or rate is None:
        return
    words = "strategy {strategy} at {rate_req_s:.4g} requests/s: throughput is the rate that was sent"
    facts = {"strategy": level.report.strategy, "rate_req_s": rate}
    if _declares_rate(level):
        yield note(words + ", arms can differ in latencies only", **facts)
    else:
        words += ", and a sweep derives its rates from each server's own speed, so arms get different loads"
        yield warn(words, **facts)


@check()
def no_reuse(level: JudgedLevel) -> Iterator[Outcome]:
    """Prompts have parts in common; otherwise no cache, on the device or behind it, can have a hit."""
    data = level.report.data
    # For runs measured by this workflow, the server's counters show whether the arm was active.
    weight = fail if level.run.engine == IMPORTED else note
    if data is not None and not data.reuse_possible:
        yield weight(
            "every prompt is unique ({prompt_tokens} tokens, no shared prefix, one turn): nothing can be reused,"
            " so the arm's feature is not exercised",
            prompt_tokens=data.prompt_tokens,
        )
