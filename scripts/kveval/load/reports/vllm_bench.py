"""Results of `vllm bench serve` (`--save-result`, `--append-result`): one JSON object for each run of it.

Definitions, from the sources of vLLM 0.32 (`vllm/benchmarks/serve.py`, `lib/endpoint_request_func.py`):
- the window goes from before the first request was sent to the end of the last one: the number of requests is fixed,
  so the last ones run beside fewer and fewer others;
- `date` is when the result was written, to the second, in the client's local time without saying its zone. It is read
  as UTC and as the window's end;
- the records of requests are there with `--save-detailed` alone, in the order they were sent; `start_times` came later
  than the others, on a clock of their own. Without them the records give the statistics and no more;
- `tpots` are without the first token, over the tokens after it: the gap between tokens of a request, `itl_ms` here.
  Its `itls` are gaps between events of the stream, each of which may bring several tokens;
- requests that failed have a text in `errors` and no tokens; none is cut off.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from kveval.load.reports.model import Aggregate, ByStatus, LevelReport, RequestRecord, Statistics
from kveval.load.reports.wire import decode_json

VLLM_BENCH = "vllm bench serve"
_DATE = "%Y%m%d-%H%M%S"
# The last request ends that much before the window does, so that it lies inside.
_EDGE_S = 1e-3
_Array = npt.NDArray[np.float64]


class _Mark(msgspec.Struct):
    """The fields that every release writes, but GuideLLM does not."""

    model_id: str
    duration: float
    completed: int
    date: str


class _Result(_Mark):
    """A result; lists have an entry for each request, times are seconds, statistics milliseconds."""

    num_prompts: int = 0
    failed: int | None = None
    total_input_tokens: int = 0
    total_output_tokens: int = 0
    output_throughput: float | None = None
    request_rate: float | Literal["inf"] | None = None
    burstiness: float = 1.0
    max_concurrency: int | None = None
    ramp_up_strategy: str | None = None
    input_lens: list[int] = []
    output_lens: list[int] = []
    ttfts: list[float] = []
    itls: list[list[float]] = []
    latencies: list[float] = []
    start_times: list[float] = []
    errors: list[str] = []
    mean_ttft_ms: float | None = None
    median_ttft_ms: float | None = None
    p90_ttft_ms: float | None = None
    p99_ttft_ms: float | None = None
    mean_tpot_ms: float | None = None
    median_tpot_ms: float | None = None
    p90_tpot_ms: float | None = None
    p99_tpot_ms: float | None = None
    mean_e2el_ms: float | None = None
    median_e2el_ms: float | None = None
    p90_e2el_ms: float | None = None
    p99_e2el_ms: float | None = None

    @property
    def strategy(self) -> tuple[str, float | None]:
        """How requests were sent, in GuideLLM's words, and how many a second; None where that follows from answers."""
        if self.ramp_up_strategy is not None:
            return f"{self.ramp_up_strategy} ramp-up", None
        if isinstance(self.request_rate, float | int):
            return "poisson" if self.burstiness == 1.0 else "gamma", float(self.request_rate)
        return ("throughput" if self.max_concurrency is None else "concurrent"), None

    @property
    def window(self) -> tuple[float, float]:
        """The run in epoch seconds, see the module's text on `date`."""
        end = datetime.strptime(self.date, _DATE).replace(tzinfo=UTC).timestamp()
        return end - self.duration, end


@dataclass(frozen=True)
class _Records:
    """The requests as arrays of one length; times in seconds, NaN where a request failed."""

    done: npt.NDArray[np.bool_]
    prompts: _Array
    tokens: _Array
    ttft: _Array
    latency: _Array
    start: _Array | None


def results_of(content: bytes) -> list[LevelReport] | None:
    """Return the runs of a file, None for a file of another program; several runs stand on a line each.

    Raises msgspec.DecodeError for a run that is damaged, ValueError for lists of unequal lengths or an unknown date.
    """
    first, _, rest = content.strip().partition(b"\n")
    documents = [content]
    if rest and _is_result(first):
        documents = [line for line in content.splitlines() if line.strip()]
    elif not _is_result(content):
        return None
    return [_level(decode_json(document, _Result)) for document in documents]


def _is_result(document: bytes) -> bool:
    try:
        decode_json(document, _Mark)
    except msgspec.DecodeError:
        return False
    return True


def _level(result: _Result) -> LevelReport:
    records = _records(result)
    timed = records is not None and records.start is not None
    strategy, rate = result.strategy
    failed = max(0, result.num_prompts - result.completed) if result.failed is None else result.failed
    window = result.window
    return LevelReport(
        strategy=strategy,
        streams=result.max_concurrency if strategy == "concurrent" else None,
        start=window[0],
        end=window[1],
        warmup_s=0.0,
        cooldown_s=0.0,
        completed=result.completed,
        incomplete=0,
        errored=failed,
        requests=_requests(records, window) if records is not None and timed else (),
        requests_missing=0 if timed else result.completed + failed,
        rate_req_s=rate,
        aggregate=_summed_up(result) if records is None else _aggregate(result, records),
        model=result.model_id,
        latencies_kept=records is not None,
    )


def _records(result: _Result) -> _Records | None:
    """Return the requests; None where the file has only statistics. Raises ValueError for lists of unequal lengths."""
    if not result.ttfts or not result.output_lens:
        return None
    lists: dict[str, Sequence[object]] = {
        name: found
        for name in ("ttfts", "itls", "output_lens", "input_lens", "latencies", "start_times", "errors")
        if (found := getattr(result, name))
    }
    lengths = {name: len(found) for name, found in lists.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"its lists differ in length: {', '.join(f'{n} {count}' for n, count in lengths.items())}")
    count = len(result.ttfts)
    errors = result.errors or [""] * count
    ttft = np.array(result.ttfts, dtype=float)
    tokens = np.array(result.output_lens, dtype=float)
    done = np.array([not error for error in errors]) & (tokens > 0) & (ttft > 0)
    if result.latencies:
        latency = np.array(result.latencies, dtype=float)
    else:
        latency = ttft + (np.array([sum(gaps) for gaps in result.itls]) if result.itls else 0.0)
    prompts = np.array(result.input_lens, dtype=float) if result.input_lens else np.full(count, np.nan)
    return _Records(
        done=done,
        prompts=prompts,
        tokens=tokens,
        ttft=np.where(done, ttft, np.nan),
        latency=np.where(done, latency, np.nan),
        start=np.array(result.start_times, dtype=float) if result.start_times else None,
    )


def _requests(records: _Records, window: tuple[float, float]) -> tuple[RequestRecord, ...]:
    """Return the records in epoch seconds: the last request ends where the window does."""
    assert records.start is not None
    ends = (records.start + records.latency)[records.done]
    clock = window[1] - _EDGE_S - float(ends.max(initial=0.0))
    made = []
    for number, done in enumerate(records.done):
        began = float(records.start[number])
        tokens = int(records.tokens[number])
        prompt = None if np.isnan(records.prompts[number]) else int(records.prompts[number])
        # 0.0 is what the client leaves where it noted no start; its clock never shows that.
        start = began + clock if began and len(ends) else None
        if not done or start is None:
            # When it failed is not in the file.
            made.append(RequestRecord("errored", start, None, None, start, prompt, 0))
            continue
        ttft, latency = float(records.ttft[number]), float(records.latency[number])
        made.append(
            RequestRecord(
                status="completed",
                start=start,
                first_token=start + ttft,
                last_token=start + latency,
                end=start + latency,
                prompt_tokens=prompt,
                output_tokens=tokens,
                ttft_ms=1000 * ttft,
                tpot_ms=1000 * latency / tokens,
                itl_ms=1000 * (latency - ttft) / (tokens - 1) if tokens > 1 else None,
                e2e_ms=1000 * latency,
            )
        )
    return tuple(made)


def _aggregate(result: _Result, records: _Records) -> Aggregate:
    """Return the statistics of the records, each request with the same weight."""
    done = records.done
    tokens, latency, ttft = records.tokens[done], records.latency[done], records.ttft[done]
    several = tokens > 1
    prompts = _statistics(records.prompts[done], 1.0)
    return Aggregate(
        tpot_includes_first_token=True,
        delivered_tokens=float(tokens.sum()),
        ttft_ms=ByStatus(completed=_statistics(ttft)),
        tpot_ms=ByStatus(completed=_statistics(latency / tokens)),
        itl_ms=ByStatus(completed=_statistics((latency - ttft)[several] / (tokens[several] - 1))),
        e2e_ms=ByStatus(completed=_statistics(latency)),
        prompt_tokens=ByStatus(completed=prompts, everything=prompts),
        output_tokens=ByStatus(completed=_statistics(tokens, 1.0)),
        concurrency=_in_flight(float(latency.sum()), result),
        output_tok_s=_rate(result),
    )


def _statistics(values: _Array, scale: float = 1000.0) -> Statistics | None:
    known = scale * values[~np.isnan(values)]
    if not len(known):
        return None
    p50, p90, p99 = (float(value) for value in np.quantile(known, (0.5, 0.9, 0.99)))
    return Statistics(count=len(known), mean=float(known.mean()), total=float(known.sum()), p50=p50, p90=p90, p99=p99)


def _summed_up(result: _Result) -> Aggregate:
    """Return the statistics of a result without records, as far as the file has them."""
    count, prompts, tokens = result.completed, result.total_input_tokens, result.total_output_tokens
    e2e = _named(result, "e2el")
    per_token = Statistics(count=tokens, mean=e2e.total / tokens, total=e2e.total) if e2e and tokens else None
    prompt_tokens = Statistics(count=count, mean=prompts / count, total=prompts) if count and prompts else None
    output_tokens = Statistics(count=count, mean=tokens / count, total=tokens) if count else None
    return Aggregate(
        tpot_includes_first_token=True,
        delivered_tokens=float(tokens),
        ttft_ms=ByStatus(completed=_named(result, "ttft")),
        tpot_ms=ByStatus(completed=per_token),
        itl_ms=ByStatus(completed=_named(result, "tpot")),
        e2e_ms=ByStatus(completed=e2e),
        prompt_tokens=ByStatus(completed=prompt_tokens, everything=prompt_tokens),
        output_tokens=ByStatus(completed=output_tokens),
        concurrency=ByStatus() if e2e is None else _in_flight(e2e.total / 1000, result),
        output_tok_s=_rate(result),
    )


def _named(result: _Result, name: str) -> Statistics | None:
    mean = getattr(result, f"mean_{name}_ms")
    # Zeros are what a client without streaming writes.
    if not mean or not result.completed:
        return None
    found = {label: getattr(result, f"{key}_{name}_ms") for key, label in _QUANTILES.items()}
    return Statistics(count=result.completed, mean=mean, total=mean * result.completed, **found)


_QUANTILES = {"median": "p50", "p90": "p90", "p99": "p99"}


def _in_flight(request_seconds: float, result: _Result) -> ByStatus:
    """Return the mean number of requests in flight: the time that requests took together over that of the window."""
    if not result.duration:
        return ByStatus()
    mean = request_seconds / result.duration
    return ByStatus(everything=Statistics(count=1, mean=mean, total=mean))


def _rate(result: _Result) -> ByStatus:
    rate = result.output_throughput
    return ByStatus() if rate is None else ByStatus(everything=Statistics(count=1, mean=rate, total=rate))
