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

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from kveval.load.reports import (
    Aggregate,
    ByStatus,
    LevelReport,
    RequestRecord,
    Statistics,
)
from kveval.load.reports.wire import decode_json

if TYPE_CHECKING:
    import pandas as pd

VLLM_BENCH = "vllm bench serve"
_DATE = "%Y%m%d-%H%M%S"
# The last request ends that much before the window does, so that it lies inside.
_EDGE_S = 1e-3
# Those that have an entry for each request.
_LISTS = (
    "ttfts",
    "itls",
    "output_lens",
    "input_lens",
    "latencies",
    "start_times",
    "errors",
)


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
    request_rate: float | Literal["inf"] | None = None
    burstiness: float = 1.0
    max_concurrency: int | None = None
    ramp_up_strategy: str | None = None
    run_number: int | None = None
    mode: str = ""
    multi_turn_concurrency: int | None = None
    turns_per_conversation: Any = None
    per_turn: list[Any] = []
    input_lens: list[int] = []
    output_lens: list[int] = []
    ttfts: list[float] = []
    itls: list[list[float]] = []
    latencies: list[float] = []
    start_times: list[float] = []
    errors: list[str] = []

    @property
    def strategy(self) -> tuple[str, float | None]:
        """How requests were sent, in GuideLLM's words, and how many a second; None where that follows from answers."""
        if self.ramp_up_strategy is not None:
            return f"{self.ramp_up_strategy} ramp-up", None
        if isinstance(self.request_rate, float | int):
            return "poisson" if self.burstiness == 1.0 else "gamma", float(
                self.request_rate
            )
        return ("throughput" if self.streams is None else "concurrent"), None

    @property
    def streams(self) -> int | None:
        """How many requests are in flight at most, of conversations as many as there are at once."""
        return self.max_concurrency or self.multi_turn_concurrency

    @property
    def turns(self) -> int | None:
        """The turns of a conversation, at most where they differ; None where each request is by itself."""
        given = self.turns_per_conversation
        whole = given if isinstance(given, int) else len(self.per_turn)
        return whole or None

    @property
    def window(self) -> tuple[float, float]:
        """The run in epoch seconds, see the module's text on `date`."""
        end = datetime.strptime(self.date, _DATE).replace(tzinfo=UTC).timestamp()
        return end - self.duration, end


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
    return [_level(document) for document in documents]


def _is_result(document: bytes) -> bool:
    try:
        decode_json(document, _Mark)
    except msgspec.DecodeError:
        return False
    return True


def _level(document: bytes) -> LevelReport:
    result = decode_json(document, _Result)
    records = _records(result)
    timed = records is not None and bool(result.start_times)
    strategy, rate = result.strategy
    failed = (
        max(0, result.num_prompts - result.completed)
        if result.failed is None
        else result.failed
    )
    start, end = result.window
    return LevelReport(
        strategy=strategy,
        streams=result.streams if strategy == "concurrent" else None,
        start=start,
        end=end,
        warmup_s=0.0,
        completed=result.completed,
        incomplete=0,
        errored=failed,
        requests=_requests(records, result.start_times, end)
        if records is not None and timed
        else (),
        requests_missing=0 if timed else result.completed + failed,
        rate_req_s=rate,
        aggregate=_aggregate(
            result,
            _summed_up(result, document) if records is None else _statistics(records),
        ),
        model=result.model_id,
        latencies_kept=records is not None,
        run_number=result.run_number,
        turns=result.turns,
    )


def _records(result: _Result) -> pd.DataFrame | None:
    """Return the requests, times in ms, NaN where one failed; None where the file has only statistics.

    Raises ValueError for lists of unequal lengths.
    """
    if not result.ttfts or not result.output_lens:
        return None
    lists = {name: found for name in _LISTS if (found := getattr(result, name))}
    lengths = {name: len(found) for name, found in lists.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(
            f"its lists differ in length: {', '.join(f'{n} {count}' for n, count in lengths.items())}"
        )
    import pandas as pd  # noqa: PLC0415  (slow, and plans read this module)

    told = pd.DataFrame(lists)
    tokens = told["output_lens"]
    done = (tokens > 0) & (told["ttfts"] > 0)
    if result.errors:
        done &= told["errors"] == ""
    latency = told["ttfts"] + (told["itls"].map(sum) if result.itls else 0.0)
    if result.latencies:
        latency = told["latencies"]
    ttft, e2e = 1000 * told["ttfts"].where(done), 1000 * latency.where(done)
    gaps = (tokens - 1).where(tokens > 1)
    prompts = told["input_lens"] if result.input_lens else math.nan
    return pd.DataFrame(
        {
            "done": done,
            "ttft": ttft,
            "tpot": e2e / tokens,
            "itl": (e2e - ttft) / gaps,
            "e2e": e2e,
        }
        | {"prompt": prompts, "output": tokens}
    )


def _requests(
    records: pd.DataFrame, starts_s: Sequence[float], window_end_s: float
) -> tuple[RequestRecord, ...]:
    """Return the records in epoch seconds: the last request ends where the window does."""
    ends_s = (records["e2e"] / 1000 + starts_s)[records["done"]]
    clock_s = window_end_s - _EDGE_S - ends_s.max()
    made = []
    for one, began in zip(records.to_dict("records"), starts_s, strict=True):
        prompt = None if math.isnan(one["prompt"]) else int(one["prompt"])
        # 0.0 is what the client leaves where it noted no start; its clock never shows that.
        start = float(began + clock_s) if began and len(ends_s) else None
        if not one["done"] or start is None:
            # When it failed is not in the file.
            made.append(RequestRecord("errored", start, None, None, start, prompt, 0))
            continue
        end = start + one["e2e"] / 1000
        made.append(
            RequestRecord(
                status="completed",
                start=start,
                first_token=start + one["ttft"] / 1000,
                last_token=end,
                end=end,
                prompt_tokens=prompt,
                output_tokens=one["output"],
                ttft_ms=one["ttft"],
                tpot_ms=one["tpot"],
                itl_ms=None if math.isnan(one["itl"]) else one["itl"],
                e2e_ms=one["e2e"],
            )
        )
    return tuple(made)


def _statistics(records: pd.DataFrame) -> dict[str, Statistics | None]:
    """Return the statistics of the records, each request with the same weight."""
    found: dict[str, Statistics | None] = {}
    for name, column in records[records["done"]].drop(columns="done").items():
        known = column.dropna()
        p50, p90, p99 = known.quantile([0.5, 0.9, 0.99])
        statistics = Statistics(
            len(known), float(known.mean()), float(known.sum()), p50, p90, p99
        )
        found[str(name)] = statistics if len(known) else None
    return found


def _summed_up(result: _Result, document: bytes) -> dict[str, Statistics | None]:
    """Return the statistics of a result without records, as far as the file has them."""
    count, tokens, told = (
        result.completed,
        result.total_output_tokens,
        decode_json(document, dict[str, Any]),
    )
    found: dict[str, Statistics | None] = {}
    for name, named in {"ttft": "ttft", "itl": "tpot", "e2e": "e2el"}.items():
        values = [
            told.get(f"{kind}_{named}_ms") for kind in ("mean", "median", "p90", "p99")
        ]
        mean, *quantiles = msgspec.convert(values, list[float | None])
        # Zeros are what a client without streaming writes.
        found[name] = (
            Statistics(count, mean, mean * count, *quantiles)
            if mean and count
            else None
        )
    if (e2e := found["e2e"]) and tokens:
        found["tpot"] = Statistics(
            count=tokens, mean=e2e.total / tokens, total=e2e.total
        )
    for name, total in {"prompt": result.total_input_tokens, "output": tokens}.items():
        found[name] = (
            Statistics(count, total / count, total) if count and total else None
        )
    return found


def _aggregate(result: _Result, found: Mapping[str, Statistics | None]) -> Aggregate:
    e2e, prompts, outputs = found["e2e"], found["prompt"], found["output"]
    # The mean number of requests in flight is the time that requests took together over that of the window.
    in_flight = e2e.total / 1000 / result.duration if e2e and result.duration else None
    return Aggregate(
        delivered_tokens=float(outputs.total) if outputs else 0.0,
        ttft_ms=ByStatus(completed=found["ttft"]),
        tpot_ms=ByStatus(completed=found.get("tpot")),
        itl_ms=ByStatus(completed=found["itl"]),
        e2e_ms=ByStatus(completed=e2e),
        prompt_tokens=ByStatus(completed=prompts, everything=prompts),
        output_tokens=ByStatus(completed=outputs),
        concurrency=ByStatus(
            everything=None
            if in_flight is None
            else Statistics(1, in_flight, in_flight)
        ),
    )
