"""The forms of GuideLLM's reports, a decoder for each; the definitions of their numbers are from its sources.

0.2 and 0.3 (2025): no version in the file, `args.strategy` and `run_stats` per benchmark
(0.3.1, `guidellm/benchmark/benchmark.py`):
- the window goes from the first start to the last end of the requests counted; those of a warm-up are not in the file;
- `time_per_output_token_ms` is (last token - first token) / tokens: without the time to the first token;
- `output_tokens_per_second.total.mean` is all tokens, those of unfinished requests too, over the window.

Development versions between 0.3 and 0.4 (autumn 2025), called previews here: no version in the file, `scheduler`:
- the window is the whole run of the scheduler, its start-up and a warm-up included; requests of a warm-up are left out;
- `time_per_output_token_ms` is (last token - request start) / tokens: with the time to the first token. It and
  `inter_token_latency_ms` are means over requests, not over tokens;
- `output_tokens_per_second` is a mean of requests' own rates, no throughput;
- requests that were cut off have no output tokens unless the server reported usage continuously.

0.4 (without a version in the file), 0.5 and 0.6 (`metadata.version` 1)
(0.4.0, 0.5.3 and 0.6.0, `guidellm/benchmark/schemas/generative/metrics.py`):
- the window is `scheduler_metrics.measure_start_time` to `measure_end_time`. The latter is computed from the time
  limit: where a limit of requests ended the run earlier, it lies after the run's end, and is cut to it here;
- the statistics count every request that overlaps the window, with all of its tokens;
- `time_per_output_token_ms` is (last token - request start) / tokens: with the time to the first token;
- `output_tokens_per_second` spans the first to the last token of the requests of that status, not the window;
- `turns` of the load were ignored up to 0.5.3: every request is a conversation of its own;
- requests cut off have their tokens from 0.5 on (one for each stream event where the server gave no usage); in 0.4
  only where the server reported usage continuously.

0.7 and 0.8 (`metadata.version` 2): the shape of version 1, with strategies named by `kind`. What changed in meaning
(0.8.1): `output_tokens_per_second` is the tokens of the window over its length, and the times to the first token are
those of first tokens inside the window.
"""

from dataclasses import fields, replace
from typing import Any

import msgspec

from kveval.load.reports import ByStatus, LevelReport, RequestRecord, Statistics, Status
from kveval.load.reports.data import synthetic_data
from kveval.load.reports.wire import (
    Benchmark,
    Metrics,
    Request,
    Request03,
    Strategy,
    Totals,
    by_status,
    level_report,
)


class _Args03(msgspec.Struct):
    strategy: Strategy
    warmup_duration: float | None = None


class _Benchmark03(Benchmark[Request03], kw_only=True):
    args: _Args03
    request_totals: Totals
    worker: dict[str, Any] = msgspec.field(default_factory=dict)
    request_loader: dict[str, Any] = msgspec.field(default_factory=dict)


def decode_03(raw: msgspec.Raw) -> LevelReport:
    """Decode one benchmark of GuideLLM 0.2 or 0.3. Raises msgspec.DecodeError."""
    benchmark = msgspec.json.decode(raw, type=_Benchmark03)
    args = benchmark.args
    return level_report(
        benchmark,
        args.strategy,
        benchmark.request_totals,
        tpot_includes_first_token=False,
        warmup_s=args.warmup_duration or 0.0,
        data=synthetic_data([benchmark.request_loader.get("data")]),
        model=benchmark.worker.get("backend_model"),
    )


class _Backend(msgspec.Struct):
    model: str | None = None


class _BenchmarkerPreview(msgspec.Struct):
    backend: _Backend = msgspec.field(default_factory=_Backend)


class _Config(msgspec.Struct):
    strategy: Strategy
    backend: _Backend = msgspec.field(default_factory=_Backend)


class _RequestPreview(Request):
    def neutral(self, status: Status) -> RequestRecord:
        # 0 is also what stands for a request that was cut off, whose usage the server did not report.
        tokens = self.output_tokens or self.info.timings.iterations or 0
        return msgspec.structs.replace(super().neutral(status), output_tokens=tokens)


class _BenchmarkPreview(Benchmark[_RequestPreview], kw_only=True):
    scheduler: _Config
    request_totals: Totals
    benchmarker: _BenchmarkerPreview = msgspec.field(
        default_factory=_BenchmarkerPreview
    )


def decode_preview(raw: msgspec.Raw) -> LevelReport:
    """Decode one benchmark of a preview of 0.4. Raises msgspec.DecodeError."""
    benchmark = msgspec.json.decode(raw, type=_BenchmarkPreview)
    model = benchmark.benchmarker.backend.model
    level = level_report(
        benchmark, benchmark.scheduler.strategy, benchmark.request_totals, model=model
    )
    aggregate = level.aggregate
    if aggregate.output_tokens != ByStatus():
        return level
    totals, prompts = (
        by_status(benchmark.metrics.total_token_count),
        aggregate.prompt_tokens,
    )
    names = [field.name for field in fields(ByStatus)]
    outputs = ByStatus(
        *(_less(getattr(totals, name), getattr(prompts, name)) for name in names)
    )
    delivered = None if outputs.everything is None else outputs.everything.total
    return replace(
        level,
        aggregate=replace(aggregate, output_tokens=outputs, delivered_tokens=delivered),
    )


def _less(total: Statistics | None, prompt: Statistics | None) -> Statistics | None:
    """Return output tokens as all tokens less those of prompts: count, mean and sum, no percentiles."""
    if total is None or prompt is None or total.count != prompt.count:
        return None
    return Statistics(
        count=total.count,
        mean=total.mean - prompt.mean,
        total=total.total - prompt.total,
    )


class _State(msgspec.Struct):
    """The scheduler at the end: requests of the whole run, warm-up included."""

    successful_requests: int
    errored_requests: int
    end_time: float | None = None


class _SchedulerMetrics(msgspec.Struct):
    request_end_time: float | None = None


class _WindowMetrics(Metrics, kw_only=True):
    request_totals: Totals


class _Benchmark(Benchmark[Request], kw_only=True):
    config: _Config
    scheduler_state: _State
    metrics: _WindowMetrics
    scheduler_metrics: _SchedulerMetrics = msgspec.field(
        default_factory=_SchedulerMetrics
    )
    warmup_duration: float = 0.0


def decode_1(raw: msgspec.Raw) -> LevelReport:
    """Decode one benchmark of 0.4, 0.5 or 0.6. Raises msgspec.DecodeError."""
    return _level(msgspec.json.decode(raw, type=_Benchmark))


def decode_2(raw: msgspec.Raw) -> LevelReport:
    """Decode one benchmark of 0.7 or 0.8. Raises msgspec.DecodeError."""
    benchmark = msgspec.json.decode(raw, type=_Benchmark)
    level = _level(benchmark)
    rate = level.aggregate.output_tok_s.everything
    delivered = (
        None
        if rate is None
        else rate.mean * (benchmark.end_time - benchmark.start_time)
    )
    return replace(
        level, aggregate=replace(level.aggregate, delivered_tokens=delivered)
    )


def _level(benchmark: _Benchmark) -> LevelReport:
    config, state = benchmark.config, benchmark.scheduler_state
    run_end = (
        benchmark.scheduler_metrics.request_end_time
        or state.end_time
        or benchmark.end_time
    )
    finished = state.successful_requests + state.errored_requests
    return level_report(
        benchmark,
        config.strategy,
        benchmark.metrics.request_totals,
        end=min(benchmark.end_time, run_end),
        warmup_s=benchmark.warmup_duration,
        requests_missing=max(0, finished - benchmark.requests.finished),
        model=config.backend.model,
    )
