"""Reports of GuideLLM 0.2 and 0.3 (2025): no version in the file, `args.strategy` and `run_stats` per benchmark.

Definitions, from the sources of 0.3.1 (`guidellm/benchmark/benchmark.py`):
- the window goes from the first start to the last end of the requests counted; those of a warm-up are not in the file;
- `time_per_output_token_ms` is (last token - first token) / tokens: without the time to the first token;
- `output_tokens_per_second.total.mean` is all tokens, those of unfinished requests too, over the window.
"""

from typing import Any

import msgspec

from kveval.load.reports.data import synthetic_data
from kveval.load.reports.model import LevelReport, RequestRecord, Status
from kveval.load.reports.wire import Metrics, Strategy, Totals, WireRequests, level_report


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
        )


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
    requests: WireRequests[_Request03] = msgspec.field(default_factory=WireRequests)
    worker: _Worker = msgspec.field(default_factory=_Worker)
    request_loader: _Loader03 = msgspec.field(default_factory=_Loader03)


def decode(raw: msgspec.Raw) -> LevelReport:
    """Decode one benchmark. Raises msgspec.DecodeError."""
    benchmark = msgspec.json.decode(raw, type=_Benchmark03)
    args = benchmark.args
    return level_report(
        args.strategy,
        benchmark.request_totals,
        benchmark.requests,
        benchmark.metrics,
        (benchmark.start_time, benchmark.end_time),
        tpot_includes_first_token=False,
        warmup_s=args.warmup_duration or 0.0,
        cooldown_s=args.cooldown_duration or 0.0,
        data=synthetic_data([benchmark.request_loader.data]),
        model=benchmark.worker.backend_model,
    )
