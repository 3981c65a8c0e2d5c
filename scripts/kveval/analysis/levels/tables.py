"""Tables of a measured run: one row per level, and one per request. What was not observed is NaN, never 0."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from kveval.analysis.levels import aggregates, checks, checks_import, checks_run, records
from kveval.analysis.levels.configuration import (
    arm_settings,
    declared_work,
    effective_configuration,
    gpu_conditions,
    machine,
    server_build,
)
from kveval.analysis.levels.first_visits import prompt_shares
from kveval.analysis.levels.goodput import goodput, unmeasured
from kveval.analysis.levels.noise import counting_error, cut_error, drift
from kveval.analysis.levels.outcomes import Outcome, checks_in, columns, judge
from kveval.analysis.levels.requests import Requests
from kveval.analysis.levels.server_counters import server_delta
from kveval.host.errors import Failure
from kveval.load import levels as workloads
from kveval.load.enough import WARMUP_S, WARMUP_SHARE
from kveval.load.reports import LevelReport, LoadReport
from kveval.load.reports.reading import read_report
from kveval.load.workload import workload_of
from kveval.store.run_file import IMPORTED, Change, LevelRun, Run, read_run, renamed

LEVEL_CHECKS = checks_in(checks, checks_import, checks_run)
# The warm-up that the generator cut off may be this much too short, since requests start a little late.
_WARMUP_TOLERANCE_S = 0.5


class LevelsError(Failure):
    """A run's reports lack what the tables need."""


def run_tables(
    directory: Path,
    required: Sequence[Mapping[str, Any]] | None = None,
    scenario: str | None = None,
    limits: Mapping[str, Any] | None = None,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Read a measurement's folder and return its levels and its requests as tables.

    `required`: the counters that prove the arm active (`counter`, `at_least`) according to the current catalogue; None
    for those of the catalogue when the run was measured. `scenario`: name for the run's scenario, its own if None.
    `limits`: the campaign's goodput, see `levels.goodput`; without it there are no columns of goodput.
    Raises RunFileError, ReportError or LevelsError with the file that is wrong. A level that failed while measuring
    is a row of NaN that fails the check `level_failed`.
    """
    run = renamed(read_run(directory), scenario)
    required = run.exercised.get("required", ()) if required is None else required
    rows, requests = [], []
    # The levels of a sweep share a report.
    read = functools.lru_cache(maxsize=1)(read_report)
    for level in run.levels:
        if level.status != "ok" or level.report is None:
            rows.append(failed_row(run, level))
            continue
        report = read(directory / level.report)
        benchmark = _benchmark(report, level)
        rows.append(level_row(run, level, benchmark, report.guidellm_version, required, limits))
        requests.append(request_rows(level.level, benchmark))
    if not rows:
        raise LevelsError(f"{directory}: the run has no level")
    table = pd.DataFrame(rows)
    for name in ("window_start", "window_end"):
        table[name] = pd.to_datetime(table[name], unit="s", utc=True).astype("datetime64[ns, UTC]")
    table["exercised"] = table["exercised"].astype("boolean")
    frames = pd.concat(requests, ignore_index=True) if requests else _empty_requests()
    frames.insert(0, "run", run.run)
    return table, frames


def _benchmark(report: LoadReport, level: LevelRun) -> LevelReport:
    """Return the benchmark of a level; the report of a sweep holds several, and run.json says which belongs to it."""
    if level.benchmark is not None and level.benchmark < len(report.levels):
        return report.levels[level.benchmark]
    if level.benchmark is None and len(report.levels) == 1:
        return report.levels[0]
    wanted = "the one" if level.benchmark is None else f"number {level.benchmark} as that"
    raise LevelsError(
        f"{level.report}: holds {len(report.levels)} benchmarks, expected {wanted} of level {level.level}"
    )


def level_row(
    run: Run,
    level: LevelRun,
    report: LevelReport,
    guidellm_version: str,
    required: Sequence[Mapping[str, Any]] = (),
    limits: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Compute one row of levels.csv; `required` and `limits` as in `run_tables`.

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
    turns = workload_of(run.workload).turns
    if report.requests_missing:
        # A sample of requests does not give the window's throughput; the report's statistics cover all of them.
        requests, window = Requests(()), (report.start, report.end)
        measured, received = aggregates.measured(report) | aggregates.request_tokens(report, turns), np.nan
    else:
        requests = Requests(report.requests)
        window = _window(run, report, requests)
        measured = records.measured(requests, *window) | records.request_tokens(requests, *window, turns)
        received = float(np.nansum(requests.column("output_tokens")))
    row: dict[str, Any] = {
        **_identity(run, level),
        "window_start": window[0],
        "window_end": window[1],
        "duration_s": window[1] - window[0],
        "warmup_s": window[0] - (report.start - report.warmup_s),
        "warmup_wanted_s": settling_s(requests, primed=primed(run)),
        "workload": declared_work(run, report, level.level),
        "strategy": report.strategy,
        "streams_asked": _known(workloads.streams_at(workload_of(run.workload), level.level)),
        "rate_req_s": _known(report.rate_req_s or workloads.rate_req_s_at(workload_of(run.workload), level.level)),
        **measured,
        "concurrency_shortfall": _shortfall(run, level, report, float(measured["concurrency_mean"])),
        **records.within_run(report, requests, *window),
        **_noise(run, level, report, requests, window),
        **(_goodput(run, level, report, requests, window, limits) if limits else {}),
        **_server_side(run, level, received, required),
        "activity": activity(run, _exercised(run, required, level.counters)),
        "turns_seen": _turns_seen(report),
        "guidellm_version": guidellm_version,
    }
    judged = checks.JudgedLevel(row=row, run=run, entry=level, report=report, requests=requests, window=window)
    return {**row, **columns(judge(LEVEL_CHECKS, judged))}


def failed_row(run: Run, level: LevelRun) -> dict[str, Any]:
    """Return the row of a level that could not be measured: its identity, and the failed check."""
    outcome = Outcome("level_failed", "fail", level.error or "the level was not measured")
    return {
        **_identity(run, level),
        "window_start": np.nan,
        "window_end": np.nan,
        "throughput_tok_s": np.nan,
        "exercised": None,
        **columns([outcome]),
    }


def request_rows(level: int, report: LevelReport) -> pd.DataFrame:
    """Return the requests of a level as rows of requests.parquet; times are nanosecond timestamps in UTC."""
    requests = Requests(report.requests)
    table: dict[str, Any] = {"level": level, "status": [record.status for record in report.requests]}
    for name in ("start", "first_token", "last_token", "end"):
        table[name] = pd.to_datetime(pd.Series(requests.column(name)), unit="s", utc=True).astype("datetime64[ns, UTC]")
    for name in ("prompt_tokens", "output_tokens"):
        table[name] = pd.Series(requests.column(name)).astype("Int64")
    for name in records.LATENCIES:
        table[f"{name}_ms"] = requests.column(f"{name}_ms")
    table["conversation"] = [record.conversation for record in report.requests]
    table["turn"] = pd.Series(requests.column("turn")).astype("Int64")
    return pd.DataFrame(table)


def _empty_requests() -> pd.DataFrame:
    empty = LevelReport("", None, 0.0, 1.0, 0.0, 0, 0, 0, (), 0)
    return request_rows(0, empty)


def _identity(run: Run, level: LevelRun) -> dict[str, Any]:
    return {
        "model": run.cell.model,
        "scenario": run.cell.scenario,
        "cpu_blocks": run.cell.cpu_blocks,
        "run": run.run,
        "measurement": run.measurement,
        "engine": run.engine,
        "weights": run.weights,
        "level": level.level,
        **_conditions(run, level.level),
    }


def _conditions(run: Run, level: int) -> dict[str, Any]:
    """The conditions of the level: time, software and hardware, cache sizes, and what the load could reuse."""
    workload = run.workload
    device = run.budget.get("device_tokens") or run.server.get("facts", {}).get("kv_cache_tokens")
    return {
        "configuration": effective_configuration(run),
        "server_build": server_build(run),
        "arm_settings": arm_settings(run),
        "run_started": run.started,
        "run_finished": run.finished,
        "hardware": machine(run),
        **gpu_conditions(run),
        "clock_offset_s": run.clock_offset_s,
        "device_tokens": np.nan if device is None else float(device),
        "tier_tokens": float(run.budget.get("tokens", np.nan)) if run.cell.cpu_blocks else 0.0,
        "tier_reported_tokens": _known(run.budget.get("reported_tokens")),
        "working_set_tokens": working_set_tokens(workload, level),
        "prefix_tokens": prefix_tokens(workload, level),
        "turn_prompt_tokens": float(workload.get("prompt_tokens", np.nan)),
    }


def working_set_tokens(workload: Mapping[str, Any], level: int) -> float:
    """Return the tokens of all distinct prefixes at a level, which a cache must hold to serve every reuse."""
    if workload.get("prefix_count") is None or workload.get("prefix_tokens") is None:
        return np.nan
    return float(workloads.working_set_tokens_at(workload_of(workload), level))


def prefix_tokens(workload: Mapping[str, Any], level: int) -> float:
    """Return the tokens of a shared prefix at a level; NaN if the workload does not declare them."""
    return float(workloads.prefix_tokens_at(workload_of(workload), level)) if "prefix_tokens" in workload else np.nan


def _known(value: float | None) -> float:
    return np.nan if value is None else float(value)


def primed(run: Run) -> bool:
    """Whether caches were filled before the levels, so that only the requests of a level need time to settle."""
    return bool(run.workload.get("prime", False))


def settling_s(requests: Requests, *, primed: bool) -> float:
    """Return the seconds a level takes to settle: max(30 s, p90 of request latency); if primed, the p90 alone."""
    latencies = requests.column("e2e_ms")[requests.status("completed")]
    known = latencies[~np.isnan(latencies)]
    return max(0.0 if primed else WARMUP_S, float(np.quantile(known, 0.9)) / 1000 if len(known) else 0.0)


def _window(run: Run, report: LevelReport, requests: Requests) -> tuple[float, float]:
    """Return the measurement window: the report's, less the part of the warm-up that the generator did not cut off.

    The warm-up is the longer of what the workload asks for and the time to settle, the latter at most a quarter of the
    level.
    """
    begin = report.start - report.warmup_s
    asked = float(run.workload.get("warmup_s", 0.0))
    warmup = max(asked, min(settling_s(requests, primed=primed(run)), WARMUP_SHARE * (report.end - begin)))
    missing = warmup - report.warmup_s
    start = report.start + (missing if missing > _WARMUP_TOLERANCE_S else 0.0)
    if not start < report.end:
        raise LevelsError(
            f"the window of {report.end - report.start:.1f} s is no longer than "
            f"the {missing:.1f} s of warm-up still to be cut"
        )
    return start, report.end


def _shortfall(run: Run, level: LevelRun, report: LevelReport, achieved: float) -> float:
    """Return the share by which requests in flight fell short of a closed loop's streams, at least 0 if known."""
    asked = workloads.streams_at(workload_of(run.workload), level.level) or report.streams
    return float(np.maximum(0.0, 1 - achieved / asked)) if report.closed_loop and asked else np.nan


def _noise(
    run: Run, level: LevelRun, report: LevelReport, requests: Requests, window: tuple[float, float]
) -> dict[str, float]:
    """The noise within the run, for the statistics; errors of the throughput in a closed loop only."""
    visits, unshared = prompt_shares(run.workload, level.level, requests, window)
    streams = report.streams or workloads.streams_at(workload_of(run.workload), level.level)
    closed = report.closed_loop and streams is not None
    change, error = drift(requests, *window, streams if closed else None)
    return {
        "throughput_se": counting_error(requests, *window) if closed else np.nan,
        "throughput_cut": cut_error(requests, *window, float(streams or 1)) if closed else np.nan,
        "throughput_drift": change,
        "throughput_drift_se": error,
        "first_visit_share": visits,
        "unshared_share": unshared,
    }


def _goodput(
    run: Run,
    level: LevelRun,
    report: LevelReport,
    requests: Requests,
    window: tuple[float, float],
    limits: Mapping[str, Any],
) -> dict[str, Any]:
    """The goodput columns; NaN for a report that did not keep every request."""
    if report.requests_missing:
        return unmeasured(limits)
    workload = workload_of(run.workload)
    streams = report.streams or workloads.streams_at(workload, level.level)
    return goodput(requests, window, limits, workload.turns, streams if report.closed_loop else None)


def _server_side(run: Run, level: LevelRun, received: float, required: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The columns from the server's own counters, over the whole level from its first request, warm-up included.

    `received`: output tokens that the generator counted in the same time.
    """
    counters = level.counters
    generated = server_delta(counters, "generation_tokens")
    return {
        "server_generation_tokens": generated,
        # Both counts are over the whole level, because the counters were read before and after it.
        "throughput_server_difference": received / generated - 1 if generated > 0 else np.nan,
        "prefix_hit_ratio": _ratio(counters, "prefix_cache_hits", "prefix_cache_queries"),
        "external_hit_ratio": _ratio(counters, "external_prefix_cache_hits", "external_prefix_cache_queries"),
        "external_hit_tokens": server_delta(counters, "external_prefix_cache_hits"),
        "offload_load_bytes": server_delta(counters, "offload_load_bytes"),
        "offload_store_bytes": server_delta(counters, "offload_store_bytes"),
        "exercised": _exercised(run, required, counters),
    }


def _ratio(counters: Mapping[str, Change], part: str, whole: str) -> float:
    denominator = server_delta(counters, whole)
    return server_delta(counters, part) / denominator if denominator > 0 else np.nan


# A tier that served a smaller share of the prompt tokens has no measurable effect.
_SERVED = 0.005


def _exercised(run: Run, required: Sequence[Mapping[str, Any]], counters: Mapping[str, Change]) -> bool | None:
    """Return whether every counter that proves the arm active rose enough in this level; None without such counters.

    Counters of tokens, and of their bytes, must rise by at least 0.5 % of the prompt tokens.
    """
    if not required:
        return None
    tokens = _SERVED * float(np.nan_to_num(server_delta(counters, "prefix_cache_queries")))
    least = {"tokens": tokens, "bytes": tokens * (run.kv_bytes_per_token or 0)}
    return all(
        entry["counter"] in counters
        and counters[entry["counter"]].delta >= max(entry.get("at_least", 1), least.get(entry.get("unit", ""), 0))
        for entry in required
    )


def activity(run: Run, exercised: bool | None) -> str:
    """Return "shown" or "none" if the counters prove the arm active or inactive in a level.

    "not shown" for an arm with a tier, or with unread counters, if nothing was read; "" for others, such as a baseline.
    """
    if exercised is not None:
        return "shown" if exercised else "none"
    return "not shown" if run.cell.cpu_blocks or run.exercised.get("unread") else ""


def _turns_seen(report: LevelReport) -> float:
    """Return the turns of the longest conversation; NaN if no request was kept."""
    turns = [record.turn + 1 for record in report.requests if record.turn is not None]
    if not turns and report.requests_missing:
        return np.nan
    return max(turns, default=0)
