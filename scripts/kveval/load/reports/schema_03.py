"""Reports of GuideLLM 0.2 and 0.3 (2025): no version in the file, `args.strategy` and `run_stats` per benchmark.

Definitions, from the sources of 0.3.1 (`guidellm/benchmark/benchmark.py`):
- the window goes from the first start to the last end of the requests counted; those of a warm-up are not in the file;
- `time_per_output_token_ms` is (last token - first token) / tokens: without the time to the first token;
- `output_tokens_per_second.total.mean` is all tokens, those of unfinished requests too, over the window.
"""

from typing import Any

import msgspec

from kveval.load.reports.data import synthetic_data
from kveval.load.reports.model import Aggregate, LevelReport, RequestRecord, Status
from kveval.load.reports.wire import Metrics, Strategy, Totals, by_status


class _Request03(msgspec.Struct):
    """Times in epoch seconds; the first token's is missing where none came."""

    start_time: float
    end_time: float
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None

    def neutral(self, status: Status) -> RequestRecord:
        tokens = self.output_tokens or 0
        first = self.first_token_time if tokens else None
        last = self.last_token_time if tokens else None
        return RequestRecord(
            status=status,
            start=self.start_time,
            first_token=first,
            last_token=last,
            end=self.end_time,
            prompt_tokens=self.prompt_tokens,
            output_tokens=tokens,
            ttft_ms=None if first is None else 1000 * (first - self.start_time),
            tpot_ms=None if last is None else 1000 * (last - self.start_time) / tokens,
            itl_ms=1000 * (last - first) / (tokens - 1) if tokens > 1 and first is not None and last else None,
            e2e_ms=1000 * (self.end_time - self.start_time) if status == "completed" else None,
            conversation=None,
            turn=0,
        )


class _Requests03(msgspec.Struct):
    successful: list[_Request03] | None = None
    incomplete: list[_Request03] | None = None
    errored: list[_Request03] | None = None


class _Args03(msgspec.Struct):
    strategy: Strategy
    warmup_duration: float | None = None
    cooldown_duration: float | None = None


class _Worker(msgspec.Struct):
    backend_model: str | None = None


class _Loader03(msgspec.Struct):
    data: Any = None


class _Benchmark03(msgspec.Struct):
    args: _Args03
    metrics: Metrics
    start_time: float
    end_time: float
    request_totals: Totals
    requests: _Requests03 = msgspec.field(default_factory=_Requests03)
    worker: _Worker = msgspec.field(default_factory=_Worker)
    request_loader: _Loader03 = msgspec.field(default_factory=_Loader03)


def decode(raw: msgspec.Raw) -> LevelReport:
    """Decode one benchmark. Raises msgspec.DecodeError."""
    benchmark = msgspec.json.decode(raw, type=_Benchmark03)
    args, totals, kept, metrics = benchmark.args, benchmark.request_totals, benchmark.requests, benchmark.metrics
    completed, errored = kept.successful or [], kept.errored or []
    tokens = by_status(metrics.output_token_count).everything
    return LevelReport(
        strategy=args.strategy.name,
        streams=args.strategy.in_flight,
        start=benchmark.start_time,
        end=benchmark.end_time,
        warmup_s=args.warmup_duration or 0.0,
        cooldown_s=args.cooldown_duration or 0.0,
        completed=totals.successful,
        incomplete=totals.incomplete,
        errored=totals.errored,
        requests=(
            *(request.neutral("completed") for request in completed),
            *(request.neutral("incomplete") for request in kept.incomplete or []),
            *(request.neutral("errored") for request in errored),
        ),
        requests_missing=max(0, totals.successful - len(completed) + totals.errored - len(errored)),
        rate_req_s=args.strategy.rate,
        aggregate=Aggregate(
            tpot_includes_first_token=False,
            delivered_tokens=None if tokens is None else tokens.total,
            ttft_ms=by_status(metrics.time_to_first_token_ms),
            tpot_ms=by_status(metrics.time_per_output_token_ms),
            itl_ms=by_status(metrics.inter_token_latency_ms),
            e2e_ms=by_status(metrics.request_latency, 1000.0),
            prompt_tokens=by_status(metrics.prompt_token_count),
            output_tokens=by_status(metrics.output_token_count),
            concurrency=by_status(metrics.request_concurrency),
            output_tok_s=by_status(metrics.output_tokens_per_second),
        ),
        data=synthetic_data([benchmark.request_loader.data]),
        model=benchmark.worker.backend_model,
    )
