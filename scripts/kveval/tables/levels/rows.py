"""Tables of a measured run: one row per level, and one per request. What was not observed is NaN, never 0."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from kveval.host import work
from kveval.host.errors import Failure
from kveval.load import levels as workloads
from kveval.load.reports import LevelReport, LoadReport
from kveval.load.reports.reading import read_report
from kveval.load.sample_sizes import WARMUP_S, WARMUP_SHARE
from kveval.load.workload import workload_of
from kveval.store.conditions import CONDITIONS_COLUMN, Change, conditions_text
from kveval.store.run_file import (
    IMPORTED,
    LevelRun,
    RequiredCounter,
    Run,
)
from kveval.tables.levels import (
    aggregates,
    checks_import,
    checks_level,
    checks_run,
    records,
)
from kveval.tables.levels.activity import (
    activity_at,
    activity_word,
    required_counters,
)
from kveval.tables.levels.checks_level import JudgedLevel
from kveval.tables.levels.configuration import (
    declared_work,
    gpu_conditions,
    machine,
)
from kveval.tables.levels.goodput import goodput, unknown_goodput
from kveval.tables.levels.latencies import reasons_text, unknown_latencies
from kveval.tables.levels.noise import counting_error, cut_error, rate_drift
from kveval.tables.levels.outcomes import (
    LEVEL_FAILED,
    Outcome,
    checks_in,
    outcome_columns,
    run_checks,
)
from kveval.tables.levels.requests import Requests
from kveval.tables.levels.server_counters import found_tokens, server_delta

LEVEL_CHECKS = checks_in(checks_level, checks_import, checks_run)
# The warm-up that the generator cut off may be this much too short, since requests start a little late.
_WARMUP_TOLERANCE_S = 0.5


class LevelsError(Failure):
    """A run's reports lack what the tables need."""


def run_tables(
    run: Run,
    directory: Path,
    required: Sequence[Mapping[str, Any]] | None = None,
    limits: Mapping[str, Any] | None = None,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the levels and the requests of a run, which was read with its conditions, as tables.

    `directory`: its stored folder. `required`: the counters that the arm requires (`counter`, `at_least`, `unit`)
    according to the current catalogue; None for those of the catalogue when the run was measured. `limits`: the
    campaign's goodput, see `levels.goodput`; without it there are no columns of goodput.
    Raises RunFileError, ReportError or LevelsError with the file that is wrong. A level that failed while measuring
    is a row of NaN that fails the check `level_failed`.
    """
    counters = (
        run.required_counters if required is None else required_counters(required)
    )
    rows: list[dict[str, Any]] = []
    benchmarks: list[tuple[int, LevelReport]] = []
    # The levels of a sweep share a report.
    read = functools.lru_cache(maxsize=1)(read_report)
    for level in run.levels:
        if level.status != "ok" or level.report is None:
            rows.append(failed_row(run, level))
            continue
        report = read(directory / level.report)
        benchmark = _benchmark(report, level)
        rows.append(
            level_row(run, level, benchmark, report.guidellm_version, counters, limits)
        )
        benchmarks.append((level.level, benchmark))
    if not rows:
        raise LevelsError(f"{directory}: the run has no level")
    table = pd.DataFrame(rows)
    for name in ("window_start", "window_end"):
        table[name] = pd.to_datetime(table[name], unit="s", utc=True).astype(
            "datetime64[ns, UTC]"
        )
    table["exercised"] = table["exercised"].astype("boolean")
    table[CONDITIONS_COLUMN] = conditions_text(run.described.record)
    requests = request_rows(benchmarks)
    requests.insert(0, "run", run.run)
    return table, requests


def _benchmark(report: LoadReport, level: LevelRun) -> LevelReport:
    """Return the benchmark of a level; the report of a sweep holds several, and run.json says which belongs to it."""
    if level.benchmark is not None and level.benchmark < len(report.levels):
        return report.levels[level.benchmark]
    if level.benchmark is None and len(report.levels) == 1:
        return report.levels[0]
    expected = (
        "the one" if level.benchmark is None else f"number {level.benchmark} as that"
    )
    raise LevelsError(
        f"{level.report}: holds {len(report.levels)} benchmarks, expected {expected} of level {level.level}"
    )


def level_row(
    run: Run,
    level: LevelRun,
    report: LevelReport,
    guidellm_version: str,
    required: Sequence[RequiredCounter] = (),
    limits: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Compute one row of levels.csv; `required`: the counters that the arm requires; `limits` as in `run_tables`.

    For an imported report that did not keep every request, the row has the report's own statistics. For a run measured
    by this workflow, which keeps every request, raises LevelsError.
    """
    if report.requests_missing and run.engine != IMPORTED:
        raise LevelsError(
            f"{level.report}: {report.requests_missing} of the level's requests are not in the report; "
            "measure with `--metrics kind=generative,sample_size=0`, which keeps them all",
            code="requests_missing",
            missing=report.requests_missing,
        )
    unknown = unknown_latencies(report)
    records_kept = () if report.requests_missing else report.requests
    requests = Requests(records_kept, frozenset(f"{name}_ms" for name in unknown))
    start, end = window = _window(run, report, requests)
    row: dict[str, Any] = {}
    judged = JudgedLevel(row, run, level, report, requests, window)
    turns = judged.workload.turns
    if report.requests_missing:
        # A sample of requests does not give the window's throughput; the report's statistics cover all of them.
        measured, received = (
            aggregates.window_columns(report, unknown)
            | aggregates.request_tokens(report, turns),
            np.nan,
        )
    else:
        measured = records.window_columns(requests, *window) | records.request_tokens(
            requests, *window, turns
        )
        received = float(np.nansum(requests.column("output_tokens")))
    streams, expected = judged.closed_streams, judged.expected_in_flight
    change, error = rate_drift(requests, *window, streams)
    visits, unshared = records.prompt_shares(
        run.workload, level.level, requests, window
    )
    activity = activity_at(run, level, required)
    row |= {
        **_identity(run, level),
        "window_start": start,
        "window_end": end,
        "duration_s": end - start,
        "warmup_s": start - (report.start - report.warmup_s),
        "warmup_wanted_s": _settling_s(run, requests),
        "workload": declared_work(run, report, level.level),
        "strategy": report.strategy,
        "streams_asked": _number(workloads.streams_at(judged.workload, level.level)),
        "rate_req_s": _number(judged.rate_req_s),
        **measured,
        "latencies_unknown": reasons_text(unknown),
        # At least 0 where it is known.
        "concurrency_shortfall": float(
            np.maximum(0, 1 - measured["concurrency_mean"] / expected)
        )
        if report.closed_loop and expected
        else np.nan,
        "throughput_se": counting_error(requests, *window) if streams else np.nan,
        "throughput_cut": cut_error(requests, *window, streams) if streams else np.nan,
        "throughput_drift": change,
        "throughput_drift_se": error,
        "first_visit_share": visits,
        "unshared_share": unshared,
        **(_goodput(judged, limits) if limits else {}),
        **_server_side(level.counted, received, run.kv_bytes_per_token or np.nan),
        "exercised": activity.active,
        "activity": activity_word(run, activity),
        "turns_seen": _turns_seen(report),
        "guidellm_version": guidellm_version,
    }
    return row | outcome_columns(run_checks(LEVEL_CHECKS, judged))


def failed_row(run: Run, level: LevelRun) -> dict[str, Any]:
    """Return the row of a level that could not be measured: its identity, and the failed check."""
    error = level.error or "the level was not measured"
    outcome = Outcome(LEVEL_FAILED, "fail", {"error": error}, "{error}")
    return {
        **_identity(run, level),
        "window_start": np.nan,
        "window_end": np.nan,
        "throughput_tok_s": np.nan,
        "exercised": None,
        **outcome_columns([outcome]),
    }


def request_rows(reports: Sequence[tuple[int, LevelReport]]) -> pd.DataFrame:
    """Return the requests of levels as rows of requests.parquet; times are nanosecond timestamps in UTC.

    `reports`: of each level, with its number.
    """
    levels = [level for level, report in reports for _ in report.requests]
    kept = [record for _, report in reports for record in report.requests]
    requests = Requests(kept)
    table: dict[str, Any] = {
        "level": np.array(levels, dtype=np.int64),
        "status": [record.status for record in kept],
    }
    for name in ("start", "first_token", "last_token", "end"):
        table[name] = pd.to_datetime(
            pd.Series(requests.column(name)), unit="s", utc=True
        ).astype("datetime64[ns, UTC]")
    for name in ("prompt_tokens", "output_tokens"):
        table[name] = pd.Series(requests.column(name)).astype("Int64")
    for name in records.LATENCIES:
        table[f"{name}_ms"] = requests.column(f"{name}_ms")
    table["conversation"] = [record.conversation for record in kept]
    table["turn"] = pd.Series(requests.column("turn")).astype("Int64")
    return pd.DataFrame(table)


def _identity(run: Run, level: LevelRun) -> dict[str, Any]:
    """The level, and its conditions: time, software and hardware, cache sizes, and what the load could reuse."""
    workload = run.workload
    return {
        **run.cell.row,
        "run": run.run,
        "measurement": run.measurement,
        "engine": run.engine,
        "weights": run.weights,
        "level": level.level,
        "configuration": run.described.configuration,
        "server_build": run.described.server_build,
        "arm_settings": run.described.arm_settings,
        "run_started": run.started,
        "run_finished": run.finished,
        "hardware": machine(run),
        **gpu_conditions(run),
        "host_speed": _host_speed(level),
        "clock_offset_s": run.clock_offset_s,
        "device_tokens": _number(run.budget.get("device_tokens")),
        "tier_tokens": float(run.budget.get("tokens", np.nan))
        if run.cell.cpu_blocks
        else 0.0,
        "tier_reported_tokens": _number(run.budget.get("reported_tokens")),
        "working_set_tokens": working_set_tokens(workload, level.level),
        # NaN if the workload does not declare shared prefixes.
        "prefix_tokens": float(
            workloads.prefix_tokens_at(workload_of(workload), level.level)
        )
        if "prefix_tokens" in workload
        else np.nan,
        "turn_prompt_tokens": float(workload.get("prompt_tokens", np.nan)),
    }


def _host_speed(level: LevelRun) -> float:
    """Pieces of the fixed work in a second of processor time, before and after the level; NaN if not known."""
    done = level.host_work
    if done is None or done.version != work.VERSION:
        return np.nan
    known = [ms for ms in (done.before_ms, done.after_ms) if ms]
    return 1000 * len(known) / sum(known) if known else np.nan


def working_set_tokens(workload: Mapping[str, Any], level: int) -> float:
    """Return the tokens of all distinct prefixes at a level, which a cache must hold to serve every reuse."""
    if workload.get("prefix_count") is None or workload.get("prefix_tokens") is None:
        return np.nan
    return float(workloads.working_set_tokens_at(workload_of(workload), level))


def _number(value: float | None) -> float:
    return np.nan if value is None else float(value)


def _settling_s(run: Run, requests: Requests) -> float:
    """The seconds a level takes to settle: max(30 s, p90 of request latency); with primed caches, the p90 alone."""
    latencies = requests.column("e2e_ms")[requests.has_status("completed")]
    known = latencies[~np.isnan(latencies)]
    least = 0.0 if run.workload.get("prime") else WARMUP_S
    return max(least, float(np.quantile(known, 0.9)) / 1000 if len(known) else 0.0)


def _window(run: Run, report: LevelReport, requests: Requests) -> tuple[float, float]:
    """Return the measurement window: the report's, less the part of the warm-up that the generator did not cut off.

    The warm-up is the longer of what the workload asks for and the time to settle, the latter at most a quarter of the
    level. A report without all requests has its own window.
    """
    if report.requests_missing:
        return report.start, report.end
    begin = report.start - report.warmup_s
    requested_s = float(run.workload.get("warmup_s", 0.0))
    warmup = max(
        requested_s,
        min(_settling_s(run, requests), WARMUP_SHARE * (report.end - begin)),
    )
    missing_s = warmup - report.warmup_s
    start = report.start + (missing_s if missing_s > _WARMUP_TOLERANCE_S else 0.0)
    if not start < report.end:
        raise LevelsError(
            f"the window of {report.end - report.start:.1f} s is no longer than "
            f"the {missing_s:.1f} s of warm-up still to be cut"
        )
    return start, report.end


def _goodput(level: JudgedLevel, limits: Mapping[str, Any]) -> dict[str, Any]:
    """The goodput columns; NaN for a report that did not keep every request."""
    if level.report.requests_missing:
        return unknown_goodput(limits)
    return goodput(
        level.requests,
        level.window,
        limits,
        level.workload.turns,
        level.closed_streams,
    )


def _server_side(
    counters: Mapping[str, Change], received: float, token_bytes: float
) -> dict[str, float]:
    """The columns from the server's own counters, over the whole level from its first request, warm-up included.

    `received`: output tokens that the generator counted in the same time; `token_bytes`: KV cache of a token.
    """
    generated = server_delta(counters, "generation_tokens")
    loaded_tokens = server_delta(counters, "offload_load_bytes") / token_bytes
    found = found_tokens(counters)
    return {
        "server_generation_tokens": generated,
        # Both counts are over the whole level, because the counters were read before and after it.
        "throughput_server_difference": received / generated - 1
        if generated > 0
        else np.nan,
        "prefix_hit_ratio": _ratio(found.device, found.prompts),
        "external_hit_ratio": _ratio(found.behind, found.asked_behind),
        "external_hit_tokens": server_delta(counters, "external_prefix_cache_hits"),
        "offload_load_bytes": server_delta(counters, "offload_load_bytes"),
        "offload_store_bytes": server_delta(counters, "offload_store_bytes"),
        "requests_preempted": server_delta(counters, "requests_preempted"),
        # What is loaded again for a preempted request is not counted as a hit of its prompt.
        "reloaded_tokens": float(
            np.maximum(
                0, loaded_tokens - server_delta(counters, "external_prefix_cache_hits")
            )
        ),
    }


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else np.nan


def _turns_seen(report: LevelReport) -> float:
    """Return the turns of the longest conversation; NaN if no request was kept."""
    turns = [record.turn + 1 for record in report.requests if record.turn is not None]
    return max(turns, default=np.nan if report.requests_missing else 0)
