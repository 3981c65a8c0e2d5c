"""Made-up results of `vllm bench serve`, in the fields and the order in which it writes them."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from tests.support.guidellm_reports import START

_DETAILS = (
    "input_lens",
    "output_lens",
    "start_times",
    "ttfts",
    "itls",
    "generated_texts",
    "errors",
)


def result(
    *,
    streams: int | None = 4,
    rate: float | str = "inf",
    rounds: int = 20,
    ttft_s: float = 0.2,
    gap_s: float = 0.05,
    tokens: int = 37,
    prompt_tokens: int = 64,
    failed: int = 0,
    end: float = START,
    detailed: bool = True,
    timed: bool = True,
    model: str = "Qwen/Qwen3-0.6B",
    **others: Any,
) -> dict[str, Any]:
    """A run of `rounds` requests of each of `streams`, one after the other, all alike, then `failed` that failed."""
    lanes = streams or 4
    latency = ttft_s + gap_s * (tokens - 1)
    begins = [
        1_000.0 + number * latency for number in range(rounds) for _ in range(lanes)
    ]
    done, duration = len(begins), rounds * latency + 0.01
    content: dict[str, Any] = {
        "date": datetime.fromtimestamp(end, UTC).strftime("%Y%m%d-%H%M%S"),
        **{
            "endpoint_type": "openai",
            "backend": "openai",
            "label": None,
            "model_id": model,
            "tokenizer_id": model,
        },
        **{
            "num_prompts": done + failed,
            "request_rate": rate,
            "burstiness": 1.0,
            "max_concurrency": streams,
        },
        **{"duration": duration, "completed": done, "failed": failed},
        **{
            "total_input_tokens": done * prompt_tokens,
            "total_output_tokens": done * tokens,
        },
        **{"request_throughput": done / duration, "request_goodput": None},
        **{
            "output_throughput": done * tokens / duration,
            "total_token_throughput": 0.0,
        },
        "input_lens": [prompt_tokens] * (done + failed),
        "output_lens": [tokens] * done + [0] * failed,
        "ttfts": [ttft_s] * done + [0.0] * failed,
        "itls": [[gap_s] * (tokens - 1)] * done + [[]] * failed,
        "start_times": begins + [1_000.0] * failed,
        "generated_texts": ["text"] * done + [""] * failed,
        "errors": [""] * done + ["Service Unavailable"] * failed,
    }
    for name, value in (
        ("ttft", ttft_s),
        ("tpot", gap_s),
        ("itl", gap_s),
        ("e2el", latency),
    ):
        content |= {
            f"{kind}_{name}_ms": 1000 * value for kind in ("mean", "median", "p99")
        }
        content[f"std_{name}_ms"] = 0.0
    left_out: Sequence[str] = () if detailed else _DETAILS
    if not timed:
        left_out = (*left_out, "start_times")
    return {
        name: value for name, value in content.items() if name not in left_out
    } | others
