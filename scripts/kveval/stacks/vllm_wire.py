"""vLLM's names on the wire and in its log: counters by release, and what it says of itself at start-up."""

import re
from typing import Any

_KV_TOKENS = re.compile(r"KV cache size: ([\d,]+) tokens")
_TIER_BYTES = re.compile(r"host offloading: CPU tier of (\d+) bytes")
_TIER_GB = re.compile(r"Created mmap file \S*vllm_offload\S* \((\d+\.\d\d) GB\)")
_WEIGHTS = re.compile(r"kveval: random weights, version (\d+)")
_MAX_CONCURRENCY = re.compile(
    r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x"
)
_RELEASE = re.compile(
    r"(?:vLLM API server version |LLM engine \(v)(\d+\.\d+\.\d+[\w.+]*)"
)
METRICS: dict[str, dict[str, str]] = {
    "generation_tokens": {"*": "vllm:generation_tokens_total"},
    "prompt_tokens": {"*": "vllm:prompt_tokens_total"},
    "requests_completed": {"*": "vllm:request_success_total"},
    "requests_running": {"*": "vllm:num_requests_running"},
    "requests_waiting": {"*": "vllm:num_requests_waiting"},
    "requests_preempted": {"*": "vllm:num_preemptions_total"},
    "kv_cache_usage": {"*": "vllm:kv_cache_usage_perc"},
    "prefix_cache_hits": {"*": "vllm:prefix_cache_hits_total"},
    "prefix_cache_queries": {"*": "vllm:prefix_cache_queries_total"},
    "external_prefix_cache_hits": {"0.11.1": "vllm:external_prefix_cache_hits_total"},
    "external_prefix_cache_queries": {
        "0.11.1": "vllm:external_prefix_cache_queries_total"
    },
    "offload_load_bytes": {
        "0.16": 'vllm:kv_offload_total_bytes_total{transfer_type="CPU_to_GPU"}',
        "0.24": "vllm:kv_offload_load_bytes_total",
    },
    "offload_store_bytes": {
        "0.16": 'vllm:kv_offload_total_bytes_total{transfer_type="GPU_to_CPU"}',
        "0.24": "vllm:kv_offload_store_bytes_total",
    },
    "offload_load_seconds": {"0.24": "vllm:kv_offload_load_time_total"},
    "offload_store_seconds": {"0.24": "vllm:kv_offload_store_time_total"},
    "file_tier_read_bytes": {"0.32": "vllm:kv_offload_tiering_read_bytes_total"},
    "file_tier_written_bytes": {"0.32": "vllm:kv_offload_tiering_write_bytes_total"},
    "queue_seconds_sum": {"*": "vllm:request_queue_time_seconds_sum"},
    "queue_seconds_count": {"*": "vllm:request_queue_time_seconds_count"},
    "prefill_seconds_sum": {"*": "vllm:request_prefill_time_seconds_sum"},
    "prefill_seconds_count": {"*": "vllm:request_prefill_time_seconds_count"},
    "ttft_seconds_sum": {"*": "vllm:time_to_first_token_seconds_sum"},
    "ttft_seconds_count": {"*": "vllm:time_to_first_token_seconds_count"},
}


def startup_facts(log_text: str) -> dict[str, Any]:
    """Read from the log of a start the device's KV capacity, maximum concurrency, the tier, and the version of random
    weights under which answers depend on the prompt.
    """
    facts: dict[str, Any] = {}
    if match := _KV_TOKENS.search(log_text):
        facts["kv_cache_tokens"] = int(match[1].replace(",", ""))
    if match := _MAX_CONCURRENCY.search(log_text):
        facts["max_concurrency"] = float(match[1])
    if match := _TIER_BYTES.search(log_text):
        facts["tier_bytes"] = int(match[1])
    elif (match := _TIER_GB.search(log_text)) and float(match[1]) >= 1:
        # vLLM's own region; below a GB, two decimals are too imprecise.
        facts["tier_bytes"] = round(float(match[1]) * 1e9)
    if match := _WEIGHTS.search(log_text):
        facts["random_weights"] = int(match[1])
    return facts


def release_in_log(log_text: str) -> str | None:
    """Return the release that the log of a start names."""
    found = _RELEASE.search(log_text)
    return found and found[1]
