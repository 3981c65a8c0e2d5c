"""Reports of GuideLLM 0.4 (without a version in the file), 0.5 and 0.6 (`metadata.version` 1).

Definitions, from the sources of 0.4.0, 0.5.3 and 0.6.0 (`guidellm/benchmark/schemas/generative/metrics.py`):
- the window is `scheduler_metrics.measure_start_time` to `measure_end_time`. The latter is computed from the time
  limit: where a limit of requests ended the run earlier, it lies after the run's end, and is cut to it here;
- the statistics count every request that overlaps the window, with all of its tokens;
- `time_per_output_token_ms` is (last token - request start) / tokens: with the time to the first token;
- `output_tokens_per_second` spans the first to the last token of the requests of that status, not the window;
- `turns` of the load were ignored up to 0.5.3: every request is a conversation of its own;
- requests cut off have their tokens from 0.5 on (one for each stream event where the server gave no usage); in 0.4
  only where the server reported usage continuously.
"""

import msgspec

from kveval.load.reports.model import LevelReport
from kveval.load.reports.wire import Metrics, Request, Strategy, Totals, WireRequests, level_report


class Backend(msgspec.Struct):
    """The server as the generator was given it."""

    model: str | None = None


class BenchmarkConfig(msgspec.Struct):
    """The settings of the benchmark."""

    strategy: Strategy
    backend: Backend = msgspec.field(default_factory=Backend)


class State(msgspec.Struct):
    """The scheduler at the end: requests of the whole run, warm-up included."""

    successful_requests: int
    errored_requests: int
    end_time: float | None = None


class SchedulerMetrics(msgspec.Struct):
    """When the last request ended."""

    request_end_time: float | None = None


class WindowMetrics(Metrics, kw_only=True):
    """Statistics of the measurement window, with its numbers of requests."""

    request_totals: Totals


class Benchmark(msgspec.Struct):
    """One benchmark of schemas 1 and 2, which differ in what some of the numbers mean."""

    config: BenchmarkConfig
    scheduler_state: State
    metrics: WindowMetrics
    start_time: float
    end_time: float
    requests: WireRequests[Request] = msgspec.field(default_factory=WireRequests)
    scheduler_metrics: SchedulerMetrics = msgspec.field(default_factory=SchedulerMetrics)
    warmup_duration: float = 0.0
    cooldown_duration: float = 0.0


def decode(raw: msgspec.Raw) -> LevelReport:
    """Decode one benchmark. Raises msgspec.DecodeError."""
    return level_of(msgspec.json.decode(raw, type=Benchmark))


def level_of(benchmark: Benchmark) -> LevelReport:
    """Return the benchmark in neutral terms."""
    config, state, kept = benchmark.config, benchmark.scheduler_state, benchmark.requests
    run_end = benchmark.scheduler_metrics.request_end_time or state.end_time or benchmark.end_time
    return level_report(
        config.strategy,
        benchmark.metrics.request_totals,
        kept,
        benchmark.metrics,
        (benchmark.start_time, min(benchmark.end_time, run_end)),
        warmup_s=benchmark.warmup_duration,
        cooldown_s=max(0.0, benchmark.cooldown_duration),
        requests_missing=max(0, state.successful_requests + state.errored_requests - kept.finished),
        model=config.backend.model,
    )
