"""Checks of a level before its numbers are used: one small function each, with a message that says what is wrong.

A `fail` disqualifies the level: it leaves the sign or the size of an effect undefined, and its message says how to
avoid it. A `warn` needs a look at the level, a `note` is a limit of what the level can show. Uncertainty and biases of
known sign disqualify nothing: they widen the interval, see `kveval.verdict.uncertainty`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from kveval.load.levels import has_pauses, rate_req_s_at, streams_at
from kveval.load.reports import SCHEDULED, LevelReport
from kveval.load.sample_sizes import MIN_TOKENS, SUFFICIENT
from kveval.load.workload import Workload, workload_of
from kveval.store.run_file import IMPORTED, LevelRun, Run
from kveval.tables.levels.latencies import TITLES, parse_reasons
from kveval.tables.levels.noise import QUANTILES, is_unsteady, rate_drift, state_bound
from kveval.tables.levels.outcomes import Outcome, check, fail, note, warn
from kveval.tables.levels.records import LATENCIES
from kveval.tables.levels.requests import Requests

# If the requests in flight fall short of those asked for by more than this share, verdicts allow for the bias.
STARVED = 0.05
_MOSTLY = 0.5
# Of the tokens of a server that others use as well.
_MOST_FOR_OTHERS = 0.10
# A server generates a few more tokens of each request that is cancelled at the end of a level.
_CANCELLED_TOKENS = 10
# Lateness of scheduled requests at the 99th percentile, ms: above the first a warning; above the second a failure, as
# the load is no longer the scheduled one, whose bursts last seconds.
_LATE_MS, _OTHER_SCHEDULE_MS = 100.0, 1000.0


@dataclass(frozen=True)
class JudgedLevel:
    """Everything a check may use; `row` is the level's row of levels.csv, `window` in seconds since 1970."""

    row: dict[str, Any]
    run: Run
    entry: LevelRun
    report: LevelReport
    requests: Requests
    window: tuple[float, float]

    @cached_property
    def workload(self) -> Workload:
        """The workload that was asked for."""
        return workload_of(self.run.workload)

    @property
    def streams(self) -> int | None:
        """The concurrency asked for; None in an open loop."""
        requested = streams_at(self.workload, self.entry.level)
        # Only the report of a sweep says what each of its levels is.
        return (
            self.report.streams
            if requested is None and self.report.closed_loop
            else requested
        )

    @property
    def rate_req_s(self) -> float | None:
        """The requests per second sent in an open loop, from the report, else from the workload."""
        return self.report.rate_req_s or rate_req_s_at(self.workload, self.entry.level)

    @cached_property
    def expected_in_flight(self) -> float | None:
        """The mean concurrency to be expected: the streams, less the users who pause; None in an open loop.

        By Little's law users times answer time / (answer time + pause); from the pauses that there were, it is exact.
        """
        if self.streams is None or not has_pauses(self.workload):
            return self.streams
        return max(0.0, self.streams - self.requests.pausing_mean(*self.window))

    @property
    def in_flight(self) -> float:
        """The concurrency to be expected; in an open loop the mean concurrency, at least 1."""
        return self.expected_in_flight or max(
            1.0, float(np.nan_to_num(self.row["concurrency_mean"]))
        )

    @property
    def closed_streams(self) -> int | None:
        """The streams whose every request follows an answer at once; None where rates or users' pauses set the times."""
        return (
            self.streams
            if self.report.closed_loop and not has_pauses(self.workload)
            else None
        )


@check("R20")
def completed(level: JudgedLevel) -> Iterator[Outcome]:
    """Some request finished inside the window."""
    if not level.row["requests_completed"] > 0:
        yield fail(
            "no request was completed inside the window: use longer levels or shorter requests"
        )


@check("R20")
def errors(level: JudgedLevel) -> Iterator[Outcome]:
    """No request failed; up to 1 % is a warning."""
    failed, total = level.row["requests_errored"], level.row["requests_total"]
    words = "{requests_failed} of {requests_total} requests failed"
    facts = {"requests_failed": failed, "requests_total": total}
    if failed > 0.01 * total:
        words += ", so the arms did different work: see the server's log"
        yield fail(words, **facts)
    elif failed:
        yield warn(words, **facts)


@check("R3")
def window(level: JudgedLevel) -> Iterator[Outcome]:
    """The report's window is the one recorded in run.json, so that system metrics are taken from the same times."""
    if level.entry.start is None or level.entry.end is None:
        return
    apart = max(
        abs(level.entry.start - level.report.start),
        abs(level.entry.end - level.report.end),
    )
    if apart > 1.0:
        yield fail(
            "the report's window is {apart_s:.1f} s off the one in run.json: measure the run again",
            apart_s=apart,
        )


@check("R8")
def warmup(level: JudgedLevel) -> Iterator[Outcome]:
    """The generator cut off the warm-up that was asked for; imported runs do not say what was asked for."""
    requested_s, cut_s = (
        float(level.run.workload.get("warmup_s", 0.0)),
        level.report.warmup_s,
    )
    if (level.run.engine != IMPORTED or requested_s) and abs(requested_s - cut_s) > max(
        0.5, 0.1 * requested_s
    ):
        words = "a warm-up of {warmup_requested_s:g} s was asked for, GuideLLM cut off {warmup_cut_s:.1f} s; "
        words += (
            "the analysis cut off the rest"
            if cut_s < requested_s
            else "the window is shorter by the difference"
        )
        yield warn(words, warmup_requested_s=requested_s, warmup_cut_s=max(0.0, cut_s))


@check("R20")
def totals(level: JudgedLevel) -> Iterator[Outcome]:
    """Our count of completed requests equals the generator's, except for requests at the window's edges."""
    ours, theirs = level.row["requests_completed"], level.report.completed
    if (
        abs(ours - theirs) > level.in_flight
        and level.row["warmup_s"] <= level.report.warmup_s + 0.5
    ):
        yield warn(
            "{completed_by_records} requests completed by their records, {completed_by_report} by the report",
            completed_by_records=ours,
            completed_by_report=theirs,
        )


@check("R2")
def streams(level: JudgedLevel) -> Iterator[Outcome]:
    """The report belongs to the level that was asked for."""
    if level.report.streams is not None and level.streams not in (
        None,
        level.report.streams,
    ):
        yield fail(
            "the report has {report_streams} streams, the level {level_streams}: measure it again",
            report_streams=level.report.streams,
            level_streams=level.streams,
        )


@check("R8")
def steadiness(level: JudgedLevel) -> Iterator[Outcome]:
    """The token rates of the window's first and last third differ by less than max(5 %, 2 standard errors).

    Changes widen the intervals of throughput: beyond half of the mean rate by both states, see `noise.state_bound`. A
    third that delivered nothing disqualifies it. Latencies stay valid: they describe all states within the window.
    """
    change, error = rate_drift(level.requests, *level.window, level.closed_streams)
    if not is_unsteady(change, error):
        return
    words = "the rate of tokens changed by {change_percent:+.0f} % of its mean from the first third of the window to the last"
    bound = state_bound(change, error)
    if not bound:
        yield warn(
            words
            + " (limit {limit_percent:.0f} %): where arms differ in this, intervals are wider",
            change_percent=100 * change,
            limit_percent=100 * max(0.05, 2 * error),
        )
    elif math.isfinite(bound):
        yield warn(
            words
            + ": two states {times_apart:.2g} times apart, so intervals of throughput are wider by both; use a longer"
            " warm-up, primed prefixes or longer levels",
            change_percent=100 * change,
            times_apart=math.exp(bound),
        )
    else:
        yield fail(
            words
            + ", as one of them delivered nothing: see the server's log, and measure the run again",
            change_percent=100 * change,
        )


@check("R8")
def few_tokens(level: JudgedLevel) -> Iterator[Outcome]:
    """Enough tokens that the noise of the throughput within the run is small."""
    if not level.row["output_tokens"] >= MIN_TOKENS:
        yield note(
            "{output_tokens:.0f} output tokens delivered (enough: {enough_tokens})",
            output_tokens=level.row["output_tokens"],
            enough_tokens=MIN_TOKENS,
        )


@check("R8")
def few_completions(level: JudgedLevel) -> Iterator[Outcome]:
    """The window is several times as long as a request, and holds enough of them."""
    done, latency_s = level.row["requests_completed"], level.row["e2e_ms_p50"] / 1000
    needed, seconds = max(200, round(5 * level.in_flight)), level.row["duration_s"]
    if done < needed or seconds < 10 * latency_s:
        words = "{requests_completed} requests completed (enough: {enough_requests}) in {window_s:.0f} s"
        if not np.isnan(latency_s):
            words += ", median latency {e2e_p50_s:.2g} s"
        yield note(
            words,
            requests_completed=done,
            enough_requests=needed,
            window_s=seconds,
            e2e_p50_s=latency_s,
        )


@check("R8")
def few_latencies(level: JudgedLevel) -> Iterator[Outcome]:
    """Enough observed values for each quantile that is reported."""
    seen = min(level.row["requests_completed"], level.row["ttft_count"])
    if not seen < SUFFICIENT["p99"]:
        return
    words = "{latencies_observed} latencies observed, few for "
    if seen < SUFFICIENT["p50"]:
        words += "p50 ({p50_enough}), "
    if seen < SUFFICIENT["p90"]:
        words += "p90 ({p90_enough}), "
    yield note(
        words + "p99 ({p99_enough})",
        latencies_observed=seen,
        p50_enough=SUFFICIENT["p50"],
        p90_enough=SUFFICIENT["p90"],
        p99_enough=SUFFICIENT["p99"],
    )


@check("R4")
def closed_loop(level: JudgedLevel) -> Iterator[Outcome]:
    """The generator kept as many requests in flight as asked for; fewer bias throughput and latencies downwards."""
    achieved = level.row["concurrency_mean"]
    if not level.report.closed_loop or level.streams is None:
        return
    if achieved < (1 - STARVED) * level.in_flight:
        words = "{in_flight_mean:.2f} requests in flight on average, "
        words += (
            "{in_flight_expected:.2f} expected of {streams} users with pauses"
            if has_pauses(level.workload)
            else "{streams} asked for"
        )
        yield warn(
            words + ": verdicts allow for that",
            in_flight_mean=achieved,
            in_flight_expected=level.in_flight,
            streams=level.streams,
        )


@check("R4")
def littles_law(level: JudgedLevel) -> Iterator[Outcome]:
    """Requests in flight = completion rate x mean latency, within 10 %: else some records belong to another level.

    These are the requests actually in flight; `closed_loop` checks whether they were as many as asked for.
    """
    expected, in_flight = (
        level.row["throughput_req_s"] * level.row["e2e_ms_mean"] / 1000,
        level.row["concurrency_mean"],
    )
    if not level.report.closed_loop or not in_flight > 0:
        return
    apart = abs(in_flight - expected) / in_flight
    # Requests across the window's edges count fully or not at all: in a short window that alone can make up the 10 %.
    edges = level.row["e2e_ms_p90"] / 1000 / level.row["duration_s"]
    if apart >= 0.10:
        yield (fail if apart >= 0.10 + edges else note)(
            "rate x latency gives {in_flight_by_law:.2f} requests in flight, the records {in_flight_mean:.2f}: "
            "measure longer levels to see which is right",
            in_flight_by_law=expected,
            in_flight_mean=in_flight,
        )


@check("R4")
def schedule(level: JudgedLevel) -> Iterator[Outcome]:
    """The generator sent the requests of an open loop, a trace or users with pauses when they were due: 99 % in 0.1 s.

    More than a second late, the load is not the scheduled one. No latency contains the wait within the generator.
    """
    late_ms = 1000 * (level.requests.column("start") - level.requests.column("due"))
    late_ms = late_ms[np.isfinite(late_ms)]
    scheduled = level.report.strategy in SCHEDULED or has_pauses(level.workload)
    if not scheduled or not len(late_ms):
        return
    p50, p99, most = (float(value) for value in np.quantile(late_ms, (0.5, 0.99, 1.0)))
    if p99 > _LATE_MS:
        yield (fail if p99 > _OTHER_SCHEDULE_MS else warn)(
            "requests were sent later than due: by {late_p50_ms:,.0f} ms at the median, {late_p99_ms:,.0f} ms at p99"
            " (limit {limit_ms:,.0f} ms), {late_most_ms:,.0f} ms at most: use a faster load generator or lower levels",
            late_p50_ms=p50,
            late_p99_ms=p99,
            late_most_ms=most,
            limit_ms=_OTHER_SCHEDULE_MS,
        )


@check("R20")
def percentiles(level: JudgedLevel) -> Outcome | None:
    """Higher quantiles are not smaller than lower ones, and none is zero or negative."""
    for latency in LATENCIES:
        values = [level.row[f"{latency}_ms_{quantile}"] for quantile in QUANTILES]
        if any(value <= 0 for value in values):
            return fail(
                "{latency} has a quantile that is not positive: [{quantiles_ms}]",
                latency=latency,
                quantiles_ms=values,
            )
        if any(lower > higher for lower, higher in pairwise(values)):
            return fail(
                "a higher quantile of {latency} is smaller than a lower one: [{quantiles_ms}]",
                latency=latency,
                quantiles_ms=values,
            )
    return None


@check("R20")
def mean_above_p90(level: JudgedLevel) -> Iterator[Outcome]:
    """The mean is not above the 90th percentile; else a few requests dominate it, often those that met cold caches."""
    if odd := [
        latency
        for latency in LATENCIES
        if level.row[f"{latency}_ms_mean"] > level.row[f"{latency}_ms_p90"]
    ]:
        yield note("the mean of {latencies} exceeds its 90th percentile", latencies=odd)


@check("R7")
def server_tokens(level: JudgedLevel) -> Iterator[Outcome]:
    """The generator received as many tokens as the server says it generated."""
    apart = level.row["throughput_server_difference"]
    existing = level.run.engine == "existing"
    # Others can use such a server: `others_on_server` judges what it generated for them.
    if abs(apart) > 0.02 and not (existing and apart < 0):
        words = "the generator received {difference_percent:+.1f} % tokens against the server's own count"
        if existing:
            words += (
                ": further servers answer at this address, whose metrics are not read (existing.ARM.metrics), or one was"
                " restarted"
            )
        yield (fail if abs(apart) > 0.05 else warn)(
            words, difference_percent=100 * apart
        )


@check("R16")
def others_on_server(level: JudgedLevel) -> Iterator[Outcome]:
    """A server that ran already generated nothing for others: above 2 % of its tokens a warning, above 10 % a failure;
    10 tokens of each request in flight may be those of requests that were cancelled.
    """
    others = -level.row["throughput_server_difference"]
    tokens = others * level.row.get("server_generation_tokens", np.nan)
    cancelled = max(level.in_flight, level.streams or 0, 1)
    if tokens <= _CANCELLED_TOKENS * cancelled:
        return
    if level.run.engine == "existing" and others > 0.02:
        words = "somebody else uses this server: {for_others_percent:.1f} % of its tokens were generated for others"
        if others > _MOST_FOR_OTHERS:
            words += "; stop that, or measure at another time"
            yield fail(words, for_others_percent=100 * others)
        else:
            yield warn(words, for_others_percent=100 * others)


@check("R13")
def turns(level: JudgedLevel) -> Iterator[Outcome]:
    """Conversations had as many turns as were asked for."""
    requested, seen = int(level.run.workload.get("turns", 1)), level.row["turns_seen"]
    # A level too slow to reach the last turn is only limited; turns that were never sent are another workload.
    users = max(level.in_flight, level.streams or 0)
    reachable = level.row["requests_completed"] >= 2 * requested * users
    if seen < requested:
        yield (fail if reachable else note)(
            "conversations reached {turns_seen} of {turns_requested} turns",
            turns_seen=seen,
            turns_requested=requested,
        )


@check("R7")
def unobserved_is_missing(level: JudgedLevel) -> Iterator[Outcome]:
    """A request without a first token has no TTFT: 0 in its place would be the best of all latencies."""
    silent, timed = (
        np.isnan(level.requests.column(name)) for name in ("first_token", "ttft_ms")
    )
    if filled := int((silent & ~timed).sum()):
        yield fail(
            "{requests} requests without a first token have a TTFT", requests=filled
        )


@check("R7")
def latencies_known(level: JudgedLevel) -> Iterator[Outcome]:
    """No latency is 0, and each agrees with the times of its requests, or with the report's other latencies."""
    for name, why in parse_reasons(level.row.get("latencies_unknown")).items():
        yield warn(
            "{latency} is unknown and gets no verdict: {reason}",
            latency=TITLES[name],
            reason=why,
        )


@check("R7")
def not_reached(level: JudgedLevel) -> Iterator[Outcome]:
    """Enough requests ended within the window for every quantile; else a quantile is beyond all observed values."""
    row, names = level.row, str(level.row.get("not_reached") or "")
    if not names:
        return
    words = "{quantiles} are beyond the longest time observed (cut off: "
    facts: dict[str, Any] = {"quantiles": names.split(";")}
    if "ttft" in names:
        words += "{ttft_cut_off} of {ttft_total} TTFT"
        total = row["ttft_censored"] + row["ttft_count"]
        facts |= {"ttft_cut_off": row["ttft_censored"], "ttft_total": total}
    if "ttft" in names and "e2e" in names:
        words += ", "
    if "e2e" in names:
        words += "{e2e_cut_off} of {e2e_total} E2E"
        total = row["e2e_censored"] + row["e2e_count"]
        facts |= {"e2e_cut_off": row["e2e_censored"], "e2e_total": total}
    yield note(words + ")", **facts)


@check("R13")
def first_visits(level: JudgedLevel) -> Iterator[Outcome]:
    """Most of the window's prompt tokens were sent before, so that a cache can serve them."""
    visits, unshared = (
        level.row.get("first_visit_share", np.nan),
        level.row.get("unshared_share", np.nan),
    )
    if visits + unshared > _MOSTLY:
        yield note(
            "{first_visits_percent:.0f} % of the window's prompt tokens are first visits of prefixes,"
            " {new_percent:.0f} % are new in each turn: no cache can hold either",
            first_visits_percent=100 * visits,
            new_percent=100 * unshared,
        )


@check("R8")
def warmup_scaled(level: JudgedLevel) -> Iterator[Outcome]:
    """The level was long enough for the warm-up it needs: max(30 s, p90 of latency); with primed prefixes, the p90."""
    cut_s, needed_s = level.row["warmup_s"], level.row.get("warmup_wanted_s", np.nan)
    seconds = cut_s + level.row["duration_s"]
    # Warm-ups end with a request, not exactly on the second.
    if cut_s < 0.98 * needed_s:
        yield note(
            "{warmup_needed_s:.0f} s of warm-up were needed, the level of {level_s:.0f} s had room for {warmup_cut_s:.1f} s",
            warmup_needed_s=needed_s,
            level_s=seconds,
            warmup_cut_s=cut_s,
        )
