"""The fields that all schemas share, and their translation."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Generic, TypeVar

import msgspec

from kveval.load.reports import (
    Aggregate,
    ByStatus,
    LevelReport,
    RequestRecord,
    Statistics,
    Status,
)

# Python's json writes these words, which JSON does not have.
_NOT_JSON = re.compile(rb"([:\[,]\s*)(?:NaN|-?Infinity)(?=\s*[,\]}])")
Decoded = TypeVar("Decoded")


def decode_json(content: bytes, kind: type[Decoded]) -> Decoded:
    """Decode JSON as Python writes it: NaN and Infinity are missing values. Raises msgspec.DecodeError."""
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        if not _NOT_JSON.search(content):
            raise
        return msgspec.json.decode(_NOT_JSON.sub(rb"\1null", content), type=kind)


class Distribution(msgspec.Struct):
    """A distribution summary; all zeros when nothing was observed."""

    mean: float | None = None
    median: float | None = None
    count: float = 0
    total_sum: float | None = None
    percentiles: dict[str, float | None] | None = None

    def neutral(self, scale: float) -> Statistics | None:
        """Return it times `scale`, None for a distribution of nothing."""
        if not self.count or self.mean is None:
            return None
        told = self.percentiles or {}
        total = self.mean * self.count if self.total_sum is None else self.total_sum
        p50 = self.median if told.get("p50") is None else told["p50"]
        scaled = (
            None if value is None else scale * value
            for value in (p50, told.get("p90"), told.get("p99"))
        )
        return Statistics(round(self.count), scale * self.mean, scale * total, *scaled)


class StatusDistributions(msgspec.Struct):
    """A distribution per status, as GuideLLM names them."""

    successful: Distribution | None = None
    incomplete: Distribution | None = None
    total: Distribution | None = None


class Metrics(msgspec.Struct):
    """The distributions that all versions have under the same names; what they mean differs."""

    request_latency: StatusDistributions | None = None
    prompt_token_count: StatusDistributions | None = None
    output_token_count: StatusDistributions | None = None
    total_token_count: StatusDistributions | None = None
    time_to_first_token_ms: StatusDistributions | None = None
    time_per_output_token_ms: StatusDistributions | None = None
    inter_token_latency_ms: StatusDistributions | None = None
    output_tokens_per_second: StatusDistributions | None = None
    request_concurrency: StatusDistributions | None = None


class Totals(msgspec.Struct):
    """Numbers of requests by status."""

    successful: int
    errored: int
    incomplete: int


class Timings(msgspec.Struct):
    """Timings of GuideLLM 0.4 and later; `request_start` is the moment the backend sent the request.

    `targeted_start`, of 0.8, is when the strategy had it sent: for a trace, the level's start plus its timestamp.
    `predecessor_completed`, of 0.8, is when the conversation's answer before was complete. The last three have these
    names in previews of 0.4.
    """

    request_start: float | None = None
    targeted_start: float | None = None
    predecessor_completed: float | None = None
    resolve_start: float | None = None
    request_end: float | None = None
    resolve_end: float | None = None
    first_token_iteration: float | None = None
    last_token_iteration: float | None = None
    token_iterations: int | None = None
    first_iteration: float | None = None
    last_iteration: float | None = None
    iterations: int | None = None


class Settings(msgspec.Struct):
    """A request's part in a conversation: the least seconds between its answer and the next question, of 0.7.1 on."""

    requeue_delay: float | None = None


class Info(msgspec.Struct):
    """A request's timings; conversations came with 0.6, before that every request is the first turn of its own."""

    timings: Timings
    conversation_id: str | None = None
    turn_index: int = 0
    settings: Settings | None = None


class Request(msgspec.Struct):
    """A request's record of GuideLLM 0.4, its previews and later: latency in s, the other times in ms."""

    info: Info
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
        settings = self.info.settings
        # A cut-off request may have no token count; each stream event carried at least one token.
        events = timings.token_iterations or timings.iterations or 0
        return RequestRecord(
            status=status,
            start=self.request_start_time
            or timings.request_start
            or timings.resolve_start,
            first_token=timings.first_token_iteration or timings.first_iteration,
            last_token=timings.last_token_iteration or timings.last_iteration,
            end=self.request_end_time or timings.request_end or timings.resolve_end,
            prompt_tokens=self.prompt_tokens,
            output_tokens=events if self.output_tokens is None else self.output_tokens,
            ttft_ms=self.time_to_first_token_ms,
            tpot_ms=self.time_per_output_token_ms,
            itl_ms=self.inter_token_latency_ms,
            e2e_ms=None
            if self.request_latency is None
            else 1000 * self.request_latency,
            conversation=self.info.conversation_id,
            turn=self.info.turn_index,
            due=timings.targeted_start,
            pause_s=None if settings is None else settings.requeue_delay,
        )

    @property
    def answer_before(self) -> float | None:
        """When the conversation's answer before this request was complete; None for a first one."""
        return self.info.timings.predecessor_completed


class Request03(msgspec.Struct):
    """A request's record of GuideLLM 0.2 and 0.3: epoch seconds; the first token's time is missing where none came."""

    start_time: float
    end_time: float
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None

    @property
    def answer_before(self) -> float | None:
        """None: these versions had no conversations."""
        return None

    def neutral(self, status: Status) -> RequestRecord:
        """Return the record without the schema's peculiarities."""
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
            itl_ms=1000 * (last - first) / (tokens - 1)
            if tokens > 1 and first is not None and last
            else None,
            e2e_ms=1000 * (self.end_time - self.start_time)
            if status == "completed"
            else None,
        )


AnyRequest = TypeVar("AnyRequest", bound=Request | Request03)


class WireRequests(msgspec.Struct, Generic[AnyRequest]):
    """The records kept, by status."""

    successful: list[AnyRequest] | None = None
    incomplete: list[AnyRequest] | None = None
    errored: list[AnyRequest] | None = None

    @property
    def finished(self) -> int:
        """The number of records of requests that were not cut off."""
        return len(self.successful or ()) + len(self.errored or ())

    def neutral(self) -> tuple[RequestRecord, ...]:
        """Return all records in one sequence."""
        kept: dict[Status, list[AnyRequest] | None]
        kept = {
            "completed": self.successful,
            "incomplete": self.incomplete,
            "errored": self.errored,
        }
        pairs = [
            (request.neutral(status), request.answer_before)
            for status, requests in kept.items()
            for request in requests or ()
        ]
        pauses_s = {
            (record.conversation, record.turn): record.pause_s
            for record, _ in pairs
            if record.pause_s
        }
        if not pauses_s:
            return tuple(record for record, _ in pairs)
        return tuple(_due_after_pause(*pair, pauses_s) for pair in pairs)


def _due_after_pause(
    record: RequestRecord,
    answer_before: float | None,
    pauses_s: Mapping[tuple[str | None, int | None], float],
) -> RequestRecord:
    """Return a user's request with the time at which the pause before it was over; a conversation's first has none."""
    due = None
    if answer_before is not None:
        before = (record.conversation, (record.turn or 0) - 1)
        due = answer_before + pauses_s.get(before, 0.0)
    return msgspec.structs.replace(record, due=due)


class Strategy(msgspec.Struct):
    """How requests were sent; the fields other than the name depend on it."""

    kind: str | None = None
    type_: str | None = None
    streams: int | None = None
    rate: float | None = None

    @property
    def name(self) -> str:
        """The strategy's name, under whichever key the version has it."""
        return self.kind or self.type_ or "unknown"

    @property
    def in_flight(self) -> int | None:
        """The number of requests kept in flight; a synchronous client keeps one."""
        return 1 if self.name == "synchronous" else self.streams


class Benchmark(msgspec.Struct, Generic[AnyRequest], kw_only=True):
    """The fields that all benchmarks have under the same names; the window in epoch seconds."""

    metrics: Metrics
    start_time: float
    end_time: float
    requests: WireRequests[AnyRequest] = msgspec.field(default_factory=WireRequests)


def level_report(
    benchmark: Benchmark[Any],
    strategy: Strategy,
    totals: Totals,
    *,
    tpot_includes_first_token: bool = True,
    **others: Any,
) -> LevelReport:
    """Return one benchmark in neutral terms; `others`: fields of the level that are not the same in all schemas.

    Delivered tokens are those of all requests, unless a schema counts others.
    """
    metrics, requests = benchmark.metrics, benchmark.requests
    tokens = by_status(metrics.output_token_count)
    level = LevelReport(
        strategy=strategy.name,
        streams=strategy.in_flight,
        start=benchmark.start_time,
        end=benchmark.end_time,
        warmup_s=0.0,
        completed=totals.successful,
        incomplete=totals.incomplete,
        errored=totals.errored,
        requests=requests.neutral(),
        requests_missing=max(0, totals.successful + totals.errored - requests.finished),
        rate_req_s=strategy.rate,
        aggregate=Aggregate(
            tpot_includes_first_token=tpot_includes_first_token,
            delivered_tokens=None
            if tokens.everything is None
            else tokens.everything.total,
            ttft_ms=by_status(metrics.time_to_first_token_ms),
            tpot_ms=by_status(metrics.time_per_output_token_ms),
            itl_ms=by_status(metrics.inter_token_latency_ms),
            e2e_ms=by_status(metrics.request_latency, 1000.0),
            prompt_tokens=by_status(metrics.prompt_token_count),
            output_tokens=tokens,
            concurrency=by_status(metrics.request_concurrency),
            output_tok_s=by_status(metrics.output_tokens_per_second),
        ),
    )
    return replace(level, **others)


def by_status(
    distributions: StatusDistributions | None, scale: float = 1.0
) -> ByStatus:
    """Return a quantity of the report, times `scale`."""
    if distributions is None:
        return ByStatus()
    groups = (distributions.successful, distributions.incomplete, distributions.total)
    return ByStatus(
        *(None if group is None else group.neutral(scale) for group in groups)
    )
