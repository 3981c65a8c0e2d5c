"""Reports of GuideLLM's development versions between 0.3 and 0.4 (autumn 2025): no version in the file, `scheduler`.

Definitions, from the sources of October 2025:
- the window is the whole run of the scheduler, its start-up and a warm-up included; requests of a warm-up are left out;
- `time_per_output_token_ms` is (last token - request start) / tokens: with the time to the first token. It and
  `inter_token_latency_ms` are means over requests, not over tokens;
- `output_tokens_per_second` is a mean of requests' own rates, no throughput;
- requests that were cut off have no output tokens unless the server reported usage continuously.
"""

from dataclasses import replace

import msgspec

from kveval.load.reports.model import ByStatus, LevelReport, RequestRecord, Statistics, Status
from kveval.load.reports.wire import Metrics, Strategy, Totals, WireRequests, by_status, level_report


class _Timings(msgspec.Struct):
    request_start: float | None = None
    resolve_start: float | None = None
    first_iteration: float | None = None
    last_iteration: float | None = None
    iterations: int | None = None
    request_end: float | None = None
    resolve_end: float | None = None


class _Info(msgspec.Struct):
    timings: _Timings


class _Request(msgspec.Struct):
    info: _Info
    request_latency: float | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    time_to_first_token_ms: float | None = None
    time_per_output_token_ms: float | None = None
    inter_token_latency_ms: float | None = None

    def neutral(self, status: Status) -> RequestRecord:
        timings = self.info.timings
        return RequestRecord(
            status=status,
            start=timings.request_start or timings.resolve_start,
            first_token=timings.first_iteration,
            last_token=timings.last_iteration,
            end=timings.request_end or timings.resolve_end,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens or timings.iterations or 0,
            ttft_ms=self.time_to_first_token_ms,
            tpot_ms=self.time_per_output_token_ms,
            itl_ms=self.inter_token_latency_ms,
            e2e_ms=None if self.request_latency is None else 1000 * self.request_latency,
        )


class _Scheduler(msgspec.Struct):
    strategy: Strategy


class _Backend(msgspec.Struct):
    model: str | None = None


class _Benchmarker(msgspec.Struct):
    backend: _Backend = msgspec.field(default_factory=_Backend)


class _Benchmark(msgspec.Struct):
    scheduler: _Scheduler
    metrics: Metrics
    start_time: float
    end_time: float
    request_totals: Totals
    requests: WireRequests[_Request] = msgspec.field(default_factory=WireRequests)
    benchmarker: _Benchmarker = msgspec.field(default_factory=_Benchmarker)


def decode(raw: msgspec.Raw) -> LevelReport:
    """Decode one benchmark. Raises msgspec.DecodeError."""
    benchmark = msgspec.json.decode(raw, type=_Benchmark)
    level = level_report(
        benchmark.scheduler.strategy,
        benchmark.request_totals,
        benchmark.requests,
        benchmark.metrics,
        (benchmark.start_time, benchmark.end_time),
        model=benchmark.benchmarker.backend.model,
    )
    aggregate = level.aggregate
    if aggregate is None or aggregate.output_tokens != ByStatus():
        return level
    outputs = _difference(by_status(benchmark.metrics.total_token_count), aggregate.prompt_tokens)
    delivered = None if outputs.everything is None else outputs.everything.total
    return replace(level, aggregate=replace(aggregate, output_tokens=outputs, delivered_tokens=delivered))


def _difference(totals: ByStatus, prompts: ByStatus) -> ByStatus:
    """Return output tokens as all tokens less those of prompts: counts, means and sums, no percentiles."""
    statuses = ("completed", "incomplete", "errored", "everything")
    return ByStatus(*(_less(getattr(totals, status), getattr(prompts, status)) for status in statuses))


def _less(total: Statistics | None, prompt: Statistics | None) -> Statistics | None:
    if total is None or prompt is None or total.count != prompt.count:
        return None
    return Statistics(count=total.count, mean=total.mean - prompt.mean, total=total.total - prompt.total)
