"""vLLM's names on the wire and in its log: counters by release, and what it says of itself at start-up and later."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from kveval.stacks.counters import MetricSample
from kveval.stacks.running_server import Advice, RunningFacts, whole_number

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
    "tier_chunk_queries": {"0.32": "vllm:kv_offload_tiering_chunk_queries_total"},
    "tier_chunk_hits": {"0.32": "vllm:kv_offload_tiering_chunk_hits_total"},
    "tier_lookup_seconds": {
        "0.32": "vllm:kv_offload_tiering_lookup_sync_delay_seconds_bucket"
    },
    "tier_deferred_seconds": {
        "0.32": "vllm:kv_offload_tiering_lookup_async_delay_seconds_bucket"
    },
    "lookup_seconds": {"0.32": "vllm:kv_offload_lookup_sync_delay_seconds_bucket"},
    "deferred_seconds": {"0.32": "vllm:kv_offload_lookup_async_delay_seconds_bucket"},
    "delivered_device_tokens": {
        "0.16": 'vllm:prompt_tokens_by_source_total{source="local_cache_hit"}'
    },
    "delivered_external_tokens": {
        "0.16": 'vllm:prompt_tokens_by_source_total{source="external_kv_transfer"}'
    },
    "stores_dropped": {
        "0.32": "vllm:kv_offload_tiering_backpressure_blocks_dropped_total"
    },
    "stores_skipped": {"0.32": "vllm:kv_offload_stores_skipped_total"},
    "store_allocations_failed": {"0.32": "vllm:kv_offload_allocation_failure_total"},
    "stores_behind_failed": {
        "0.32": "vllm:kv_offload_tiering_cascade_job_failures_total"
    },
    "promotions_failed": {
        "0.32": "vllm:kv_offload_tiering_promotion_job_failures_total"
    },
    "promotion_allocations_failed": {
        "0.32": "vllm:kv_offload_tiering_promotion_allocation_failures_total"
    },
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


_CACHE_INFO = "vllm:cache_config_info"
_GIB = 2**30
# Programs behind the device by what the names of their counters begin with, where the arguments are not told.
_CONNECTORS_BY_COUNTER = {
    "vllm:kv_offload_": "OffloadingConnector",
    "vllm:simple_kv_offload_": "SimpleCPUOffloadConnector",
    "lmcache:": "LMCache",
}
ADVICE = Advice(
    metrics="start vLLM without --disable-log-stats and let /metrics through",
    emptying="start vLLM with VLLM_SERVER_DEV_MODE=1, which opens /reset_prefix_cache, on a server that is not public",
    tier="start vLLM with --kv-offloading-size GIB, or with --kv-transfer-config",
)
"""What would let a vLLM server tell more."""


def server_facts(samples: Sequence[MetricSample], info: Any) -> RunningFacts:
    """Return what the metrics of a server tell of its caches, and its configuration.

    `info`: the answer of its development endpoint /server_info, None where that is closed. Of the configuration only
    names and sizes are read: it may have passwords.
    """
    engines = [sample.labels for sample in samples if sample.name == _CACHE_INFO]
    labels = engines[0] if engines else {}
    block, blocks = (
        whole_number(labels.get(name)) for name in ("block_size", "num_gpu_blocks")
    )
    tokens = whole_number(labels.get("kv_cache_size_tokens"))
    if tokens is None and block and blocks:
        tokens = block * blocks
    caching = labels.get("enable_prefix_caching")
    config = info.get("vllm_config") if isinstance(info, dict) else None
    connector, tier_bytes, tier_blocks = _tier(labels, samples, config)
    read_from = {
        "labels of its metrics": bool(labels),
        "/server_info": isinstance(config, dict),
    }
    return RunningFacts(
        block_tokens=block,
        device_blocks=blocks,
        device_tokens=tokens,
        engines=max(1, len(engines)),
        device_caching=None if caching is None else caching == "True",
        connector=connector,
        tier_bytes=tier_bytes,
        tier_tokens=tier_blocks * block if tier_blocks and block else None,
        read_from=tuple(place for place, read in read_from.items() if read),
    )


def _tier(
    labels: Mapping[str, str], samples: Sequence[MetricSample], config: Any
) -> tuple[str | None, int | None, int | None]:
    """Return what is behind the device ("" for nothing), its bytes, and its blocks as releases before 0.14 declare it."""
    offloading_gib = labels.get("kv_offloading_size", "None")
    flag_bytes = None
    if offloading_gib != "None":
        flag_bytes = round(float(offloading_gib) * _GIB)
    if isinstance(config, dict):
        transfer = config.get("kv_transfer_config")
        if not isinstance(transfer, dict) or not transfer.get("kv_connector"):
            return "", None, None
        return _connector(transfer, flag_bytes)
    for prefix, name in _CONNECTORS_BY_COUNTER.items():
        if any(sample.name.startswith(prefix) for sample in samples):
            return name, flag_bytes, None
    return ("OffloadingConnector" if flag_bytes else None), flag_bytes, None


def _connector(
    transfer: Mapping[str, Any], flag_bytes: int | None
) -> tuple[str, int | None, int | None]:
    """Return the name of a connector with what it consists of, and its tier's bytes and blocks."""
    extra = transfer.get("kv_connector_extra_config") or {}
    parts = extra.get("connectors") or []
    if parts:
        described = [_connector(part, flag_bytes) for part in parts]
        sizes = [size for _, size, _ in described if size]
        names = " + ".join(name for name, _, _ in described)
        return f"{transfer['kv_connector']}: {names}", sum(sizes) or None, None
    tiers = [str(tier.get("type")) for tier in extra.get("secondary_tiers") or []]
    details = [str(extra[key]) for key in ("spec_name",) if extra.get(key)] + tiers
    name = str(transfer.get("kv_connector"))
    described_name = f"{name} ({', '.join(details)})" if details else name
    size = whole_number(extra.get("cpu_bytes_to_use")) or flag_bytes
    return described_name, size, whole_number(extra.get("num_cpu_blocks"))
