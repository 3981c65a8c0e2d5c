"""Checks that a level passes before its numbers are believed: one small function each, with its reason in words.

A `fail` disqualifies the level: it leaves the sign or the size of an effect undefined, and its message says what would
do away with it. A `warn` asks to be looked at, a `note` is a limit of what the level can say. What adds uncertainty or
a bias of known sign disqualifies nothing: it is in the interval, see `kveval.analysis.statistics.uncertainty`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kveval.analysis.levels.noise import drift, uneven
from kveval.analysis.levels.outcomes import Outcome, check, fail, note, warn
from kveval.analysis.levels.requests import Requests
from kveval.load.levels import rate_req_s_at, streams_at
from kveval.load.reports import SCHEDULED, LevelReport
from kveval.load.workload import workload_of
from kveval.store.run_file import IMPORTED, LevelRun, Run

# Wished for, so that the noise within a run is small beside the usual spread of runs.
MIN_TOKENS = 2500
SUFFICIENT = {"p50": 50, "p90": 200, "p99": 1000}
MIN_RUNS = 3
# Fewer requests in flight than this share of those asked for are a bias that verdicts allow for.
STARVED = 0.05
# A rate that changes by more from the first third to the last is that of no one state.
_TWO_STATES = 0.5
_MOSTLY = 0.5
# Requests of a schedule that leave later than this, ms, at the 99th percentile: something to be looked at, and another
# load than the schedule's, whose bursts are of seconds.
_LATE_MS, _OTHER_SCHEDULE_MS = 100.0, 1000.0
_LATENCIES = ("ttft", "tpot", "itl", "e2e")


@dataclass(frozen=True)
class JudgedLevel:
    """Everything a check may look at; `row` is the level's row of levels.csv, `window` in epoch seconds."""

    row: dict[str, Any]
    run: Run
    entry: LevelRun
    report: LevelReport
    requests: Requests
    window: tuple[float, float]

    @property
    def streams(self) -> int | None:
        """The concurrency asked for; None where requests are sent at a rate of their own."""
        asked = streams_at(workload_of(self.run.workload), self.entry.level)
        # Of a sweep only the report knows which of its levels is what.
        return self.report.streams if asked is None and self.report.closed_loop else asked

    @property
    def rate_req_s(self) -> float | None:
        """The requests per second that were sent, in an open loop, by the report or else by the workload."""
        return self.report.rate_req_s or rate_req_s_at(workload_of(self.run.workload), self.entry.level)

    @property
    def in_flight(self) -> float:
        """The concurrency asked for; in an open loop that there was on average, at least 1."""
        return self.streams or max(1.0, float(np.nan_to_num(self.row["concurrency_mean"])))


@check("R20")
def completed(level: JudgedLevel) -> Outcome | None:
    """Some request finished inside the window."""
    if level.row["requests_completed"] > 0:
        return None
    return fail("no request was completed inside the window: longer levels, or shorter requests")


@check("R20")
def errors(level: JudgedLevel) -> Outcome | None:
    """No request failed; up to 1 % is a warning."""
    failed, total = level.row["requests_errored"], level.row["requests_total"]
    if not failed:
        return None
    if failed <= 0.01 * total:
        return warn(f"{failed} of {total} requests failed")
    return fail(f"{failed} of {total} requests failed, so the arms did different work: see the server's log")


@check("R3")
def window(level: JudgedLevel) -> Outcome | None:
    """The window of the report is the one the run recorded, so that system metrics are cut at the same times."""
    if level.entry.start is None or level.entry.end is None:
        return None
    apart = max(abs(level.entry.start - level.report.start), abs(level.entry.end - level.report.end))
    if apart <= 1.0:
        return None
    return fail(f"the report's window is {apart:.1f} s off the one in run.json: measure the run again")


@check("R8")
def warmup(level: JudgedLevel) -> Outcome | None:
    """The generator cut the warm-up that was asked for; of imports nobody knows what was."""
    asked, cut = float(level.run.workload.get("warmup_s", 0.0)), level.report.warmup_s
    if level.run.engine == IMPORTED and not asked:
        return None
    if abs(asked - cut) <= max(0.5, 0.1 * asked):
        return None
    how = "the rest was cut here" if cut < asked else "the window is that much shorter"
    return warn(f"a warm-up of {asked:g} s was asked for, GuideLLM cut {max(0.0, cut):.1f} s; {how}")


@check("R20")
def totals(level: JudgedLevel) -> Outcome | None:
    """Our count of completed requests is the generator's, but for the requests at the window's edges."""
    apart = abs(level.row["requests_completed"] - level.report.completed)
    if apart <= level.in_flight or level.row["warmup_s"] > level.report.warmup_s + 0.5:
        return None
    return warn(
        f"{level.row['requests_completed']} requests completed by the records, {level.report.completed} by the report"
    )


@check("R2")
def streams(level: JudgedLevel) -> Outcome | None:
    """The report is of the level that was asked for."""
    if level.report.streams is None or level.streams in (None, level.report.streams):
        return None
    return fail(f"the report is of {level.report.streams} streams, the level of {level.streams}: measure it again")


@check("R8")
def steadiness(level: JudgedLevel) -> Outcome | None:
    """First and last third of the window deliver tokens at rates less than max(5 %, 2 standard errors) apart.

    A change by half is that of no one state and disqualifies the throughput; a smaller one widens the intervals of what
    is compared. Latencies are those of all the states that the window saw.
    """
    change, error = drift(level.requests, *level.window, level.streams)
    if not uneven(change, error):
        return None
    said = f"the last third delivered tokens {100 * change:+.0f} % against the first"
    if abs(change) > _TWO_STATES and abs(change) > 3 * error:
        return fail(
            f"{said}: the window is not in one steady state; a longer warm-up, primed prefixes or longer levels"
        )
    return warn(f"{said} (limit {100 * max(0.05, 2 * error):.0f} %): where arms differ in this, intervals are wider")


@check("R8")
def few_tokens(level: JudgedLevel) -> Outcome | None:
    """Enough tokens for a throughput in which the noise within the run is small."""
    tokens = level.row["output_tokens"]
    if tokens >= MIN_TOKENS:
        return None
    return note(f"{tokens:.0f} output tokens delivered (enough: {MIN_TOKENS})")


@check("R8")
def few_completions(level: JudgedLevel) -> Outcome | None:
    """The window holds several generations of requests."""
    done, latency_s = level.row["requests_completed"], level.row["e2e_ms_p50"] / 1000
    wanted, seconds = max(200, round(5 * level.in_flight)), level.row["duration_s"]
    if done >= wanted and seconds >= 10 * latency_s:
        return None
    return note(f"{done} requests completed (enough: {wanted}) in {seconds:.0f} s, median latency {latency_s:.2g} s")


@check("R8")
def few_latencies(level: JudgedLevel) -> Outcome | None:
    """Enough observed values for each quantile that is reported."""
    seen = min(level.row["requests_completed"], level.row["ttft_count"])
    short = [f"{name} ({needed})" for name, needed in SUFFICIENT.items() if seen < needed]
    if not short:
        return None
    return note(f"{seen} latencies observed, few for {', '.join(short)}")


@check("R4")
def closed_loop(level: JudgedLevel) -> Outcome | None:
    """The generator kept as many requests in flight as it was told to; fewer bias throughput and latencies down."""
    achieved = level.row["concurrency_mean"]
    if not level.report.closed_loop or achieved >= (1 - STARVED) * level.in_flight:
        return None
    return warn(f"{achieved:.2f} requests in flight on average, {level.streams} asked for: verdicts allow for that")


@check("R4")
def littles_law(level: JudgedLevel) -> Outcome | None:
    """Requests in flight = completion rate x mean latency, within 10 %: else some of the records are not of this level.

    The requests that were in flight, not those asked for: whether these were is the question of `closed_loop`.
    """
    if not level.report.closed_loop or not level.row["concurrency_mean"] > 0:
        return None
    expected, in_flight = level.row["throughput_req_s"] * level.row["e2e_ms_mean"] / 1000, level.row["concurrency_mean"]
    apart = abs(in_flight - expected) / in_flight
    if not apart >= 0.10:
        return None
    # Requests that straddle the window's edges count fully or not at all: in a short window that alone can be the 10 %.
    edges = level.row["e2e_ms_p90"] / 1000 / level.row["duration_s"]
    return (fail if apart >= 0.10 + edges else note)(
        f"rate x latency gives {expected:.2f} requests in flight, the records {in_flight:.2f}: "
        "longer levels show which is right"
    )


@check("R4")
def schedule(level: JudgedLevel) -> Outcome | None:
    """The generator sent an open loop's requests when they were due, a trace's at its scaled times: 99 % within 0.1 s.

    A second late is another load than the schedule's. Later requests wait in the generator, where no latency has them.
    """
    if level.report.strategy not in SCHEDULED:
        return None
    late_ms = 1000 * (level.requests.column("start") - level.requests.column("due"))
    late_ms = late_ms[np.isfinite(late_ms)]
    if not len(late_ms):
        return None
    p50, p99, most = (float(value) for value in np.quantile(late_ms, (0.5, 0.99, 1.0)))
    if p99 <= _LATE_MS:
        return None
    return (fail if p99 > _OTHER_SCHEDULE_MS else warn)(
        f"requests left later than they were due: {p50:,.0f} ms at the median, {p99:,.0f} ms at p99 (limit"
        f" {_OTHER_SCHEDULE_MS:,.0f} ms), {most:,.0f} ms at most: a faster load generator, or lower levels"
    )


@check("R20")
def percentiles(level: JudgedLevel) -> Outcome | None:
    """Quantiles rise, and none is zero or negative."""
    for latency in _LATENCIES:
        values = [level.row[f"{latency}_ms_{quantile}"] for quantile in ("p50", "p90", "p99")]
        if any(value <= 0 for value in values):
            return fail(f"{latency} has a quantile that is not positive: {values}")
        if values[0] > values[1] or values[1] > values[2]:
            return fail(f"the quantiles of {latency} do not rise: {values}")
    return None


@check("R20")
def mean_above_p90(level: JudgedLevel) -> Outcome | None:
    """A mean above the 90th percentile: a few requests make up the mean, often cold ones."""
    odd = [latency for latency in _LATENCIES if level.row[f"{latency}_ms_mean"] > level.row[f"{latency}_ms_p90"]]
    if not odd:
        return None
    return note(f"the mean of {', '.join(odd)} exceeds its 90th percentile")


@check("R7")
def server_tokens(level: JudgedLevel) -> Outcome | None:
    """Tokens received by the generator are the tokens the server says it generated."""
    apart = level.row["throughput_server_difference"]
    if not abs(apart) > 0.02:
        return None
    return (fail if abs(apart) > 0.05 else warn)(
        f"the generator received {100 * apart:+.1f} % tokens against the server's own count"
    )


@check("R13")
def turns(level: JudgedLevel) -> Outcome | None:
    """Conversations went on for as many turns as were asked for."""
    asked, seen = int(level.run.workload.get("turns", 1)), level.row["turns_seen"]
    if not seen < asked:
        return None
    # Too slow to get that far is a limit of the level; turns that were never sent are another workload.
    reachable = level.row["requests_completed"] >= 2 * asked * level.in_flight
    return (fail if reachable else note)(f"{seen} of {asked} turns were seen")


@check("R7")
def unobserved_is_missing(level: JudgedLevel) -> Outcome | None:
    """A request without a first token has no time to one: 0 would be the best of all latencies."""
    requests = level.requests
    silent = np.isnan(requests.column("first_token"))
    filled = int((silent & ~np.isnan(requests.column("ttft_ms"))).sum())
    if not filled:
        return None
    return fail(f"{filled} requests without a first token have a TTFT")


@check("R7")
def not_reached(level: JudgedLevel) -> Outcome | None:
    """Enough requests were seen to their end for every quantile; else it is longer than anything observed."""
    names = str(level.row.get("not_reached") or "")
    if not names:
        return None
    row = level.row
    cut = ", ".join(
        f"{row[f'{name}_censored']} of {row[f'{name}_censored'] + row[f'{name}_count']} {name.upper()}"
        for name in ("ttft", "e2e")
        if name in names
    )
    return note(f"{names.replace(';', ', ')} lie beyond the last event observed (cut off: {cut})")


@check("R13")
def first_visits(level: JudgedLevel) -> Outcome | None:
    """Most of the window's prompt tokens were sent before, so that a cache can have them."""
    visits, unshared = level.row.get("first_visit_share", np.nan), level.row.get("unshared_share", np.nan)
    if not visits + unshared > _MOSTLY:
        return None
    return note(
        f"{100 * visits:.0f} % of the window's prompt tokens are first visits of prefixes, {100 * unshared:.0f} % are "
        "new in each turn: no cache can hold either"
    )


@check("R8")
def warmup_scaled(level: JudgedLevel) -> Outcome | None:
    """The level was long enough for the warm-up it needs: max(30 s, p90 of latency), primed p90 alone."""
    cut, wanted = level.row["warmup_s"], level.row.get("warmup_wanted_s", np.nan)
    seconds = cut + level.row["duration_s"]
    # Warm-ups end with a request, not on the second.
    if not cut < 0.98 * wanted:
        return None
    return note(f"{wanted:.0f} s of warm-up were needed, the level of {seconds:.0f} s allowed {cut:.1f} s")
