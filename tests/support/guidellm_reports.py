"""Made-up GuideLLM reports of every version in use, all telling the same story.

A closed loop of `streams` requests at a time, each `latency_s` long with `tokens` output tokens, the first after
`ttft_s`; requests in flight at the end are cut off half way.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

GENERATIONS = ("0.3", "0.4 preview", "0.4", "1", "2")
START = 1_770_000_000.0


@dataclass(frozen=True)
class Story:
    """One benchmark."""

    streams: int = 4
    seconds: float = 60.0
    latency_s: float = 2.0
    ttft_s: float = 0.2
    tokens: int = 37
    prompt_tokens: int = 64
    start: float = START
    strategy: str = "concurrent"
    rate: float | None = None
    # A run whose requests ended before its time limit: windows computed from the limit lie beyond the end.
    limit_s: float | None = None
    warmup_s: float = 0.0
    # How long a stream waits before its next request: a generator that does not keep up.
    pause_s: float = 0.0
    model: str = "Qwen/Qwen3-0.6B"

    @property
    def finished(self) -> list[tuple[float, float]]:
        """Start and end of the completed requests."""
        period = self.latency_s + self.pause_s
        begins = (self.start + number * period for number in range(self._count))
        return [
            (begin, begin + self.latency_s)
            for begin in begins
            for _ in range(self.streams)
        ]

    @property
    def cut_off(self) -> list[tuple[float, float]]:
        """Start and end of the requests that the end of the level cut off."""
        last = self.start + self._count * (self.latency_s + self.pause_s)
        return (
            [(last, self.start + self.seconds)] * self.streams
            if last < self.start + self.seconds
            else []
        )

    @property
    def _count(self) -> int:
        """How many requests each stream finishes."""
        return int(
            (self.seconds + self.pause_s - 1e-6) / (self.latency_s + self.pause_s)
        )

    @property
    def cut_tokens(self) -> int:
        """Output tokens that a cut-off request had received."""
        if not self.cut_off:
            return 0
        (begin, end), gap = (
            self.cut_off[0],
            (self.latency_s - self.ttft_s) / (self.tokens - 1),
        )
        return max(0, int((end - begin - self.ttft_s) / gap + 1e-6) + 1)

    @property
    def delivered(self) -> int:
        """All output tokens."""
        return len(self.finished) * self.tokens + len(self.cut_off) * self.cut_tokens


def document(
    generation: str, stories: Sequence[Story] = (Story(),), *, keep: int | None = None
) -> dict[str, Any]:
    """The report of a generation; `keep`: how many records of finished requests it holds, all if None."""
    make = {"0.3": _benchmark_03, "0.4 preview": _benchmark_preview}.get(
        generation, _benchmark_later
    )
    content: dict[str, Any] = {"benchmarks": [make(story, keep) for story in stories]}
    if generation == "2":
        for benchmark in content["benchmarks"]:
            strategy = benchmark["config"]["strategy"]
            strategy["kind"] = strategy.pop("type_")
        data = {
            "kind": "synthetic_text",
            "prompt_tokens": 64,
            "output_tokens": 37,
            "turns": 5,
        }
        data["prefix_buckets"] = [
            {"bucket_weight": 100, "prefix_count": 8, "prefix_tokens": 2000}
        ]
        content["config"] = {
            "spec": {
                "backend": {"kind": "openai_http", "model": "Qwen/Qwen3-0.6B"},
                "data": [data],
            }
        }
    elif generation in ("0.4", "1"):
        data = '{"prompt_tokens":64,"output_tokens":37,"prefix_tokens":2000,"prefix_count":8}'
        content["args"] = {
            "target": "http://host",
            "model": "Qwen/Qwen3-0.6B",
            "data": [data],
            "max_seconds": 60.0,
        }
    elif generation == "0.4 preview":
        content["args"] = {"target": "http://host", "model": None, "data": []}
    if generation in ("1", "2"):
        content["metadata"] = {
            "version": int(generation),
            "guidellm_version": {"1": "0.5.3", "2": "0.8.1"}[generation],
        }
    return content


def _distribution(
    values: Sequence[float], weights: Sequence[float] | None = None
) -> dict[str, Any]:
    """A distribution of equal values, which all made-up latencies are; all zeros for none."""
    zeros = dict.fromkeys(
        ("p001", "p01", "p05", "p10", "p25", "p50", "p75", "p90", "p95", "p99", "p999"),
        0.0,
    )
    if not values:
        return {
            "mean": 0.0,
            "median": 0.0,
            "count": 0,
            "total_sum": 0.0,
            "percentiles": zeros,
        }
    mean = sum(values) / len(values)
    count = sum(weights) if weights else len(values)
    ordered = sorted(values)
    return {
        **{
            "mean": mean,
            "median": ordered[len(ordered) // 2],
            "count": count,
            "total_sum": mean * count,
        },
        "percentiles": dict.fromkeys(zeros, ordered[-1]),
    }


def _by_status(
    completed: Sequence[float], incomplete: Sequence[float]
) -> dict[str, Any]:
    return {
        "successful": _distribution(completed),
        "errored": _distribution([]),
        "incomplete": _distribution(incomplete),
        "total": _distribution([*completed, *incomplete]),
    }


def _metrics(story: Story, *, tpot_s: float, cut_tokens: int) -> dict[str, Any]:
    done, cut = len(story.finished), len(story.cut_off)
    gap_ms = 1000 * (story.latency_s - story.ttft_s) / (story.tokens - 1)
    metrics = {
        "request_latency": _by_status([story.latency_s] * done, [0.0] * cut),
        "prompt_token_count": _by_status(
            [story.prompt_tokens] * done, [story.prompt_tokens] * cut
        ),
        "output_token_count": _by_status([story.tokens] * done, [cut_tokens] * cut),
        "total_token_count": _by_status(
            [story.prompt_tokens + story.tokens] * done,
            [story.prompt_tokens + cut_tokens] * cut,
        ),
        "time_to_first_token_ms": _by_status(
            [1000 * story.ttft_s] * done, [1000 * story.ttft_s] * cut
        ),
        "time_per_output_token_ms": _by_status(
            [1000 * tpot_s / story.tokens] * done, [0.0] * cut
        ),
        "inter_token_latency_ms": _by_status([gap_ms] * done, [gap_ms] * cut),
        "output_tokens_per_second": _by_status([1.0] * done, [0.0] * cut),
        "request_concurrency": _by_status([story.streams] * done, []),
    }
    rate = (done * story.tokens + cut * cut_tokens) / story.seconds
    metrics["output_tokens_per_second"]["total"] = _distribution([rate])
    return metrics


def _strategy(story: Story) -> dict[str, Any]:
    fields: dict[str, Any] = {"type_": story.strategy}
    if story.strategy == "concurrent":
        fields["streams"] = story.streams
    if story.rate is not None:
        fields["rate"] = story.rate
    return fields


def _totals(story: Story) -> dict[str, int]:
    done, cut = len(story.finished), len(story.cut_off)
    return {"successful": done, "errored": 0, "incomplete": cut, "total": done + cut}


def _benchmark_03(story: Story, keep: int | None) -> dict[str, Any]:
    def record(begin: float, end: float, tokens: int) -> dict[str, Any]:
        gap = (story.latency_s - story.ttft_s) / (story.tokens - 1)
        return {
            **{
                "type_": "generative_text_response",
                "prompt": "words",
                "output": "words",
                "output_tokens": tokens,
            },
            **{
                "prompt_tokens": story.prompt_tokens,
                "start_time": begin,
                "end_time": end,
            },
            "first_token_time": begin + story.ttft_s if tokens else None,
            "last_token_time": begin + story.ttft_s + (tokens - 1) * gap
            if tokens
            else None,
        }

    return {
        "type_": "generative_benchmark",
        "args": {
            "strategy": _strategy(story),
            "strategy_index": 0,
            "warmup_duration": None,
            "cooldown_duration": None,
        },
        "run_stats": {"start_time": story.start - 5, "requests_made": _totals(story)},
        "worker": {"backend_model": story.model, "backend_target": "http://host"},
        "request_loader": {"data": "prompt_tokens=64,output_tokens=37"},
        "metrics": _metrics(
            story, tpot_s=story.latency_s - story.ttft_s, cut_tokens=story.cut_tokens
        ),
        "start_time": story.start,
        "end_time": story.start + story.seconds,
        "duration": story.seconds,
        "request_totals": _totals(story),
        "requests": {
            "successful": [
                record(*times, story.tokens) for times in story.finished[:keep]
            ],
            "errored": [],
            "incomplete": [
                record(*times, story.cut_tokens) for times in story.cut_off[:keep]
            ],
            "total": None,
        },
    }


def _later_record(
    story: Story, begin: float, end: float, tokens: int, *, done: bool
) -> dict[str, Any]:
    last = (
        begin
        + story.ttft_s
        + (tokens - 1) * (story.latency_s - story.ttft_s) / (story.tokens - 1)
    )
    seen = (begin + story.ttft_s, last) if tokens else (None, None)
    timings = {
        **{
            "request_start": begin,
            "resolve_start": begin,
            "request_end": end if done else None,
            "resolve_end": end,
        },
        **{
            "first_token_iteration": seen[0],
            "last_token_iteration": seen[1],
            "token_iterations": tokens,
        },
    }
    return {
        "type_": "generative_request_stats",
        "request_args": "{}",
        "output": "words",
        "info": {"status": "completed" if done else "cancelled", "timings": timings},
        "request_start_time": begin,
        "request_end_time": end,
        "request_latency": end - begin if done else None,
        "prompt_tokens": story.prompt_tokens,
        "output_tokens": tokens,
        "time_to_first_token_ms": 1000 * story.ttft_s if tokens else None,
        "time_per_output_token_ms": 1000 * (last - begin) / tokens if tokens else None,
        "inter_token_latency_ms": 1000 * (last - begin - story.ttft_s) / (tokens - 1)
        if tokens > 1
        else None,
    }


def _benchmark_preview(story: Story, keep: int | None) -> dict[str, Any]:
    metrics = _metrics(story, tpot_s=story.latency_s, cut_tokens=0)
    del metrics["output_token_count"]
    records = {
        "successful": [
            _later_record(story, *t, story.tokens, done=True)
            for t in story.finished[:keep]
        ],
        "errored": [],
        "incomplete": [
            _later_record(story, *t, story.cut_tokens, done=False)
            for t in story.cut_off[:keep]
        ],
    }
    for record in [*records["successful"], *records["incomplete"]]:
        timings = record["info"]["timings"]
        for new, old in (
            ("first_iteration", "first_token_iteration"),
            ("last_iteration", "last_token_iteration"),
        ):
            timings[new] = timings.pop(old)
        timings["iterations"] = timings.pop("token_iterations")
    for record in records["incomplete"]:
        record |= {
            "output_tokens": None,
            "time_per_output_token_ms": None,
            "inter_token_latency_ms": None,
        }
    return {
        "type_": "generative_benchmark",
        "scheduler": {
            "strategy": _strategy(story),
            "state": {"successful_requests": len(story.finished)},
        },
        "benchmarker": {"backend": {"model": None}},
        "metrics": metrics,
        "start_time": story.start,
        "end_time": story.start + story.seconds,
        "request_totals": _totals(story),
        "requests": records,
    }


def _benchmark_later(story: Story, keep: int | None) -> dict[str, Any]:
    end = story.start + (story.limit_s or story.seconds)
    return {
        "type_": "generative_benchmark",
        "config": {"strategy": _strategy(story), "backend": {"model": story.model}},
        "scheduler_state": {
            **{
                "start_time": story.start,
                "end_time": story.start + story.seconds + 0.01,
            },
            **{
                "successful_requests": len(story.finished),
                "errored_requests": 0,
                "cancelled_requests": story.streams,
            },
        },
        "scheduler_metrics": {
            "measure_end_time": end,
            "request_end_time": story.start + story.seconds,
        },
        "metrics": {
            "request_totals": _totals(story),
            **_metrics(story, tpot_s=story.latency_s, cut_tokens=story.cut_tokens),
        },
        "requests": {
            "successful": [
                _later_record(story, *t, story.tokens, done=True)
                for t in story.finished[:keep]
            ],
            "errored": [],
            "incomplete": [
                _later_record(story, *t, story.cut_tokens, done=False)
                for t in story.cut_off[:keep]
            ],
            "total": None,
        },
        "start_time": story.start + story.warmup_s,
        "end_time": end,
        "duration": end - story.start - story.warmup_s,
        "warmup_duration": story.warmup_s,
        "cooldown_duration": story.start + story.seconds - end,
    }
