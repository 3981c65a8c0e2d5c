"""From a measured run to tables: one row a level, one row a request.

Throughput counts every output token delivered inside the measurement window, those of unfinished requests too;
latencies come from the requests whose event (first token, completion) lies inside it. What was not observed is NaN,
never 0.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from kveval import aggregates, checks, checks_import  # noqa: F401  (registers its checks)
from kveval.errors import Failure
from kveval.guidellm import LevelReport, Report, RequestRecord, read_report
from kveval.runfile import IMPORTED, Change, LevelRun, Run, read_run

Array = npt.NDArray[np.float64]

LATENCIES = ("ttft", "tpot", "itl", "e2e")
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
KEYS = ("model", "scenario", "cpu_blocks")

# How a warm-up may differ from what was asked before the rest of it is cut off here: requests start a little late.
_WARMUP_TOLERANCE_S = 0.5
# Counter names by vLLM version; the first that the server has is taken.
_LOAD_BYTES = ("vllm:kv_offload_load_bytes_total", 'vllm:kv_offload_total_bytes_total{transfer_type="CPU_to_GPU"}')
_STORE_BYTES = ("vllm:kv_offload_store_bytes_total", 'vllm:kv_offload_total_bytes_total{transfer_type="GPU_to_CPU"}')


class LevelsError(Failure):
    """A run's reports do not hold what the tables need."""


@dataclass(frozen=True)
class Requests:
    """The records of one level as columns; times in epoch seconds, NaN where the event never happened."""

    records: Sequence[RequestRecord]

    def column(self, name: str) -> Array:
        """Return a numeric field of every record, None as NaN."""
        values = [getattr(record, name) for record in self.records]
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)

    def status(self, name: str) -> npt.NDArray[np.bool_]:
        """Return which records ended as `name`."""
        return np.array([record.status == name for record in self.records], dtype=np.bool_)


def delivered_tokens(first: Array, last: Array, tokens: Array, start: float, end: float) -> Array:
    """Return how many output tokens each request delivered in [start, end); times in seconds.

    Tokens are taken to arrive evenly from the first to the last. A request without a first token delivered none. The
    count is additive over adjoining windows and is `tokens` for a window that holds the request.
    """
    return _delivered_before(first, last, tokens, end) - _delivered_before(first, last, tokens, start)


def _delivered_before(first: Array, last: Array, tokens: Array, time: float) -> Array:
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        gap = (last - first) / np.maximum(tokens - 1, 1)
        count = np.ceil((time - first) / gap)
        # Tokens that all came at one moment.
        count = np.where(gap > 0, count, np.where(first < time, tokens, 0.0))
        inside = np.clip(count, 0, tokens)
    return np.where(np.isnan(first) | np.isnan(last), 0.0, inside)


def run_tables(
    directory: Path, required: Sequence[Mapping[str, Any]] | None = None
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Read a measurement's folder and return its levels and its requests as tables.

    `required`: the counters that prove the arm active (`counter`, `at_least`) as the catalogue names them now; without
    it, as it named them when the run was measured.
    Raises RunFileError, ReportError or LevelsError with the file that is wrong. A level that failed while measuring
    is a row of NaN that fails the check `level_failed`.
    """
    run = read_run(directory)
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
        rows.append(level_row(run, level, benchmark, report.guidellm_version, required))
        requests.append(request_rows(level.level, benchmark))
    if not rows:
        raise LevelsError(f"{directory}: the run has no level")
    table = pd.DataFrame(rows)
    for name in ("window_start", "window_end"):
        table[name] = pd.to_datetime(table[name], unit="s", utc=True).astype("datetime64[ns, UTC]")
    table["exercised"] = table["exercised"].astype("boolean")
    frames = pd.concat(requests, ignore_index=True) if requests else _empty_requests()
    return table, frames


def _benchmark(report: Report, level: LevelRun) -> LevelReport:
    """Return the benchmark of a level; a sweep's report holds several, and run.json says which is whose."""
    if level.benchmark is not None and level.benchmark < len(report.levels):
        return report.levels[level.benchmark]
    if level.benchmark is None and len(report.levels) == 1:
        return report.levels[0]
    wanted = "the one" if level.benchmark is None else f"number {level.benchmark} as that"
    raise LevelsError(
        f"{level.report}: holds {len(report.levels)} benchmarks, expected {wanted} of level {level.level}"
    )


def level_row(
    run: Run, level: LevelRun, report: LevelReport, guidellm_version: str, required: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Compute one row of levels.parquet; `required` proves the arm active, see `run_tables`.

    A report that did not keep every request gives what its own statistics say, if it was imported. Raises LevelsError
    when it was measured here, where every request is kept.
    """
    if report.requests_missing and run.engine != IMPORTED:
        raise LevelsError(
            f"{level.report}: {report.requests_missing} of the level's requests are not in the report; "
            "measure with `--metrics kind=generative,sample_size=0`, which keeps them all"
        )
    if report.requests_missing:
        # A sample of the requests says nothing about the window's throughput, and less than the statistics of them all.
        requests, window = Requests(()), (report.start, report.end)
        measured, received = aggregates.measured(report), np.nan
    else:
        requests, window = Requests(report.requests), _window(run, report)
        measured, received = _measured(requests, *window), float(np.nansum(requests.column("output_tokens")))
    row: dict[str, Any] = {
        **_identity(run, level),
        "window_start": window[0],
        "window_end": window[1],
        "duration_s": window[1] - window[0],
        "warmup_s": window[0] - (report.start - report.warmup_s),
        "strategy": report.strategy,
        "rate_req_s": np.nan if report.rate_req_s is None else report.rate_req_s,
        **measured,
        **_server_side(level, received, required),
        "turns_seen": _turns_seen(report),
        "guidellm_version": guidellm_version,
    }
    outcomes = checks.judge(
        checks.Level(row=row, run=run, entry=level, report=report, requests=requests, window=window)
    )
    return {**row, **checks.columns(outcomes)}


def failed_row(run: Run, level: LevelRun) -> dict[str, Any]:
    """Return the row of a level that could not be measured: who it was, and the failed check."""
    outcome = checks.Outcome("level_failed", "fail", level.error or "the level was not measured")
    return {
        **_identity(run, level),
        "window_start": np.nan,
        "window_end": np.nan,
        "throughput_tok_s": np.nan,
        "exercised": None,
        **checks.columns([outcome]),
    }


def request_rows(level: int, report: LevelReport) -> pd.DataFrame:
    """Return the requests of a level as rows of requests.parquet; times are nanosecond timestamps in UTC."""
    requests = Requests(report.requests)
    table: dict[str, Any] = {"level": level, "status": [record.status for record in report.requests]}
    for name in ("start", "first_token", "last_token", "end"):
        table[name] = pd.to_datetime(pd.Series(requests.column(name)), unit="s", utc=True).astype("datetime64[ns, UTC]")
    for name in ("prompt_tokens", "output_tokens"):
        table[name] = pd.Series(requests.column(name)).astype("Int64")
    for name in LATENCIES:
        table[f"{name}_ms"] = requests.column(f"{name}_ms")
    table["conversation"] = [record.conversation for record in report.requests]
    table["turn"] = pd.Series(requests.column("turn")).astype("Int64")
    return pd.DataFrame(table)


def _empty_requests() -> pd.DataFrame:
    empty = LevelReport("", None, 0.0, 1.0, 0.0, 0.0, 0, 0, 0, (), 0)
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
    }


def _window(run: Run, report: LevelReport) -> tuple[float, float]:
    """Return the measurement window; the generator has cut the warm-up off already where it was told to."""
    missing = float(run.workload.get("warmup_s", 0.0)) - report.warmup_s
    start = report.start + (missing if missing > _WARMUP_TOLERANCE_S else 0.0)
    if not start < report.end:
        raise LevelsError(
            f"the window of {report.end - report.start:.1f} s is no longer than "
            f"the {missing:.1f} s of warm-up still to be cut"
        )
    return start, report.end


def _measured(requests: Requests, start: float, end: float) -> dict[str, Any]:
    """Throughput, counts and latencies of the window from the requests' records."""
    seconds = end - start
    begin, finish = requests.column("start"), requests.column("end")
    first, last = requests.column("first_token"), requests.column("last_token")
    tokens, prompts = requests.column("output_tokens"), requests.column("prompt_tokens")
    done, errored = requests.status("completed"), requests.status("errored")
    completed = done & (finish >= start) & (finish < end)
    failed = errored & ~((finish < start) | (begin >= end))
    # In flight when the window closed, whether it was cut off then or finished a moment later.
    unfinished = ~errored & (begin < end) & ~(finish < end)
    began_output = (first >= start) & (first < end) & ~errored
    delivered = float(delivered_tokens(first, last, tokens, start, end).sum())
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
    for name in LATENCIES:
        observed = requests.column(f"{name}_ms")[began_output if name == "ttft" else completed]
        row |= _statistics(name, observed[~np.isnan(observed)])
    ttft = requests.column("ttft_ms")[began_output]
    return {**row, "ttft_count": int((~np.isnan(ttft)).sum())}


def _statistics(name: str, values: Array) -> dict[str, float]:
    if not len(values):
        return {f"{name}_ms_{statistic}": np.nan for statistic in ("mean", *QUANTILES)}
    quantiles = np.quantile(values, list(QUANTILES.values()))
    return {
        f"{name}_ms_mean": float(values.mean()),
        **{f"{name}_ms_{label}": float(value) for label, value in zip(QUANTILES, quantiles, strict=True)},
    }


def _server_side(level: LevelRun, received: float, required: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the server's own counters say about the level, from its first request to its last, warm-up included.

    `received`: output tokens of the same time by the generator's count.
    """
    counters = level.counters
    generated = _delta(counters, "vllm:generation_tokens_total")
    return {
        "server_generation_tokens": generated,
        # Over the whole level on both sides, because the counters were read around it and not at the window's edges.
        "throughput_server_difference": received / generated - 1 if generated > 0 else np.nan,
        "prefix_hit_ratio": _ratio(counters, "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"),
        "external_hit_ratio": _ratio(
            counters, "vllm:external_prefix_cache_hits_total", "vllm:external_prefix_cache_queries_total"
        ),
        "external_hit_tokens": _delta(counters, "vllm:external_prefix_cache_hits_total"),
        "offload_load_bytes": _delta(counters, *_LOAD_BYTES),
        "offload_store_bytes": _delta(counters, *_STORE_BYTES),
        "exercised": _exercised(required, counters),
    }


def _delta(counters: Mapping[str, Change], *names: str) -> float:
    """Return the increase of the first counter that exists, NaN if none does."""
    return next((counters[name].delta for name in names if name in counters), np.nan)


def _ratio(counters: Mapping[str, Change], part: str, whole: str) -> float:
    denominator = _delta(counters, whole)
    return _delta(counters, part) / denominator if denominator > 0 else np.nan


def _exercised(required: Sequence[Mapping[str, Any]], counters: Mapping[str, Change]) -> bool | None:
    """Return whether every counter that proves the arm active moved in this level; None for an arm without such."""
    if not required:
        return None
    return all(
        entry["counter"] in counters and counters[entry["counter"]].delta >= entry.get("at_least", 1)
        for entry in required
    )


def _turns_seen(report: LevelReport) -> float:
    """Return the longest conversation's turns; NaN where no request was kept that could tell."""
    turns = [record.turn + 1 for record in report.requests if record.turn is not None]
    if not turns and report.requests_missing:
        return np.nan
    return max(turns, default=0)
