"""Typed reading of GuideLLM reports: one decoder per schema version, one neutral result for everything after it.

Field meanings were checked against reports of GuideLLM 0.8.1. Two traps are avoided here by design: latencies
come from the requests' own records (a report's `total` statistics enter 0.0 for requests that never finished),
and a report that keeps only a sample of its requests says so (`LevelReport.requests_missing`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import zstandard

from kveval.errors import Failure

Status = Literal["completed", "incomplete", "errored"]

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


class ReportError(Failure):
    """A GuideLLM report cannot be used; the message says which, why and what would be right."""


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request as the load generator saw it; times in epoch seconds UTC, None where the event never happened.

    `output_tokens` counts what was delivered, also of a request that was cut off. `tpot_ms` is request latency over
    output tokens (it includes the time to the first token), `itl_ms` the mean gap between tokens after the first.
    """

    status: Status
    start: float | None
    first_token: float | None
    last_token: float | None
    end: float | None
    prompt_tokens: int | None
    output_tokens: int
    ttft_ms: float | None
    tpot_ms: float | None
    itl_ms: float | None
    e2e_ms: float | None
    conversation: str | None
    turn: int | None


@dataclass(frozen=True, slots=True)
class LevelReport:
    """One benchmark of a report: its measurement window (epoch seconds, warm-up and cool-down cut off) and requests.

    `requests` are all records kept, those of the warm-up too. `completed`, `incomplete` and `errored` are the
    generator's own totals for the window; `requests_missing` is how many finished requests the report did not keep.
    """

    strategy: str
    streams: int | None
    start: float
    end: float
    warmup_s: float
    cooldown_s: float
    completed: int
    incomplete: int
    errored: int
    requests: tuple[RequestRecord, ...]
    requests_missing: int


@dataclass(frozen=True, slots=True)
class Report:
    """A GuideLLM report, whatever its version."""

    guidellm_version: str
    schema: int
    levels: tuple[LevelReport, ...]


class _Metadata(msgspec.Struct):
    version: int | None = None
    guidellm_version: str | None = None


class _Head(msgspec.Struct):
    metadata: _Metadata | None = None
    benchmarks: list[msgspec.Raw] | None = None


class _TimingsV2(msgspec.Struct):
    first_token_iteration: float | None = None
    last_token_iteration: float | None = None
    token_iterations: int | None = None


class _InfoV2(msgspec.Struct):
    timings: _TimingsV2
    conversation_id: str | None = None
    turn_index: int | None = None


class _RequestV2(msgspec.Struct):
    info: _InfoV2
    request_start_time: float | None = None
    request_end_time: float | None = None
    request_latency: float | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    time_to_first_token_ms: float | None = None
    time_per_output_token_ms: float | None = None
    inter_token_latency_ms: float | None = None

    def neutral(self, status: Status) -> RequestRecord:
        """Return the record without the schema's peculiarities."""
        timings = self.info.timings
        # A cut-off request may have no token count; each stream event carried at least one token.
        tokens = self.output_tokens if self.output_tokens is not None else timings.token_iterations or 0
        return RequestRecord(
            status=status,
            start=self.request_start_time,
            first_token=timings.first_token_iteration,
            last_token=timings.last_token_iteration,
            end=self.request_end_time,
            prompt_tokens=self.prompt_tokens,
            output_tokens=tokens,
            ttft_ms=self.time_to_first_token_ms,
            tpot_ms=self.time_per_output_token_ms,
            itl_ms=self.inter_token_latency_ms,
            e2e_ms=None if self.request_latency is None else 1000 * self.request_latency,
            conversation=self.info.conversation_id,
            turn=self.info.turn_index,
        )


class _StrategyV2(msgspec.Struct):
    kind: str | None = None
    type_: str | None = None
    streams: int | None = None


class _ConfigV2(msgspec.Struct):
    strategy: _StrategyV2


class _SchedulerV2(msgspec.Struct):
    successful_requests: int
    errored_requests: int


class _TotalsV2(msgspec.Struct):
    successful: int
    errored: int
    incomplete: int


class _MetricsV2(msgspec.Struct):
    request_totals: _TotalsV2


class _RequestsV2(msgspec.Struct):
    successful: list[_RequestV2] | None = None
    incomplete: list[_RequestV2] | None = None
    errored: list[_RequestV2] | None = None


class _BenchmarkV2(msgspec.Struct):
    config: _ConfigV2
    scheduler_state: _SchedulerV2
    metrics: _MetricsV2
    requests: _RequestsV2
    start_time: float
    end_time: float
    warmup_duration: float = 0.0
    cooldown_duration: float = 0.0


def _decode_v2(raw: msgspec.Raw) -> LevelReport:
    """Decode one benchmark of report schema 2 (GuideLLM 0.7 and later)."""
    benchmark = msgspec.json.decode(raw, type=_BenchmarkV2)
    strategy, totals, kept = benchmark.config.strategy, benchmark.metrics.request_totals, benchmark.requests
    completed, errored = kept.successful or [], kept.errored or []
    requests = [
        *(request.neutral("completed") for request in completed),
        *(request.neutral("incomplete") for request in kept.incomplete or []),
        *(request.neutral("errored") for request in errored),
    ]
    state = benchmark.scheduler_state
    return LevelReport(
        strategy=strategy.kind or strategy.type_ or "unknown",
        streams=strategy.streams,
        start=benchmark.start_time,
        end=benchmark.end_time,
        warmup_s=benchmark.warmup_duration,
        cooldown_s=benchmark.cooldown_duration,
        completed=totals.successful,
        incomplete=totals.incomplete,
        errored=totals.errored,
        requests=tuple(requests),
        requests_missing=max(0, state.successful_requests - len(completed) + state.errored_requests - len(errored)),
    )


# Schema version -> decoder of one benchmark. A further version is one more entry here and nothing elsewhere.
_DECODERS: dict[int, Callable[[msgspec.Raw], LevelReport]] = {2: _decode_v2}
_SCHEMA_NAMES = {1: "GuideLLM 0.5 and 0.6", 2: "GuideLLM 0.7 and later"}


def read_report(path: Path) -> Report:
    """Read a GuideLLM report, plain or zstd-compressed JSON.

    Raises ReportError when the file is missing, empty or truncated, is no GuideLLM report, has a schema version
    without a decoder, or holds no benchmark.
    """
    return decode_report(_content(path), str(path))


def decode_report(content: bytes, name: str) -> Report:
    """Decode a report's JSON; `name` is what errors call it. Raises ReportError as `read_report` does."""
    try:
        head = msgspec.json.decode(content, type=_Head)
    except msgspec.ValidationError as error:
        raise ReportError(f"{name}: not a GuideLLM report ({error})") from error
    except msgspec.DecodeError as error:
        raise ReportError(
            f"{name}: not readable as JSON ({error}); the file is truncated or damaged: measure the level again"
        ) from error
    if head.benchmarks is None:
        raise ReportError(f"{name}: not a GuideLLM report (it has no list 'benchmarks')")
    schema = _schema(head, name)
    if not head.benchmarks:
        raise ReportError(f"{name}: the report holds no benchmark; GuideLLM ended before it measured anything")
    levels = []
    for number, raw in enumerate(head.benchmarks):
        try:
            level = _DECODERS[schema](raw)
        except msgspec.DecodeError as error:
            raise ReportError(
                f"{name}: benchmark {number} is not as report version {schema} has it ({error})"
            ) from error
        if not level.end > level.start:
            raise ReportError(
                f"{name}: benchmark {number} has the empty window {level.start}..{level.end}: nothing was measured"
            )
        levels.append(level)
    version = head.metadata.guidellm_version if head.metadata else None
    return Report(guidellm_version=version or "unknown", schema=schema, levels=tuple(levels))


def _schema(head: _Head, name: str) -> int:
    version = head.metadata.version if head.metadata else None
    if version in _DECODERS:
        return version
    supported = ", ".join(f"{known} ({_SCHEMA_NAMES[known]})" for known in sorted(_DECODERS))
    found = "no report version (GuideLLM 0.4 or older)" if version is None else f"report version {version}"
    if version in _SCHEMA_NAMES:
        found += f" ({_SCHEMA_NAMES[version]})"
    raise ReportError(f"{name}: {found} is not supported; supported: {supported}")


def _content(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ReportError(f"{path}: the report cannot be read ({error.strerror})") from error
    if content.startswith(_ZSTD_MAGIC):
        try:
            # The stream reader takes frames without a content size; what a cut-off frame still holds fails as JSON.
            content = zstandard.ZstdDecompressor().stream_reader(content).read()
        except zstandard.ZstdError as error:
            raise ReportError(f"{path}: damaged zstd file ({error}); measure the level again") from error
    if not content.strip():
        raise ReportError(f"{path}: the report is empty; GuideLLM writes it only at its end, so it was interrupted")
    return content
