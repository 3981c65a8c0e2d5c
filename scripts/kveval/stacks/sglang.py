"""SGLang: how it is asked where it runs already; no campaign starts it.

Names and paths are those of its releases 0.5.10 to 0.5.23 (sglang/srt/entrypoints/http_server.py and
observability/metrics_collector.py there).
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from kveval.host.http import HttpError
from kveval.stacks.counters import MetricSample
from kveval.stacks.running_server import (
    Advice,
    RunningFacts,
    RunningServer,
    model_entries,
    whole_number,
)
from kveval.stacks.talk import Ask

_CACHED = "sglang:cached_tokens_total"
_SOURCE = re.compile(rf'{_CACHED}\{{(?:.*,)?cache_source="([^"]*)"')
_DEVICE = ("device",)
# Behind "storage" some releases name the kind of storage.
_TIERS = ("host", "storage")
_INFO_PATHS = ("/server_info", "/get_server_info")


class Sglang(RunningServer):
    """SGLang, with HiCache as its tier or without it.

    Its endpoint /flush_cache empties the device's cache and the tier in host memory together.
    """

    name = "sglang"
    title = "SGLang"
    prefix = "sglang:"
    metrics: ClassVar[dict[str, dict[str, str]]] = {
        "generation_tokens": {"*": "sglang:generation_tokens_total"},
        "prompt_tokens": {"*": "sglang:prompt_tokens_total"},
        "requests_completed": {"*": "sglang:num_requests_total"},
        "requests_running": {"*": "sglang:num_running_reqs"},
        "requests_waiting": {"*": "sglang:num_queue_reqs"},
    }
    health_path = "/health"
    model_path = "/v1/models"
    salted = True
    advice = Advice(
        metrics="start SGLang with --enable-metrics",
        emptying="SGLang empties the device's cache and the tier in host memory together",
        tier="start SGLang with --enable-hierarchical-cache and --hicache-size GB",
    )

    def served_tokens(
        self, counters: Mapping[str, float], *, tier: bool
    ) -> float | None:
        """Return the sum over the sources of a tier, host memory and storage, or the device's.

        A source appears when it first serves, so one that is absent has served nothing. None where the counter is there
        and tells none of these sources, as where it has a total alone.
        """
        if not counters:
            return None
        by_source: dict[str, float] = defaultdict(float)
        for name, value in counters.items():
            if match := _SOURCE.match(name):
                by_source[match[1]] += value
        tells_source = any(
            source.startswith((*_DEVICE, *_TIERS)) for source in by_source
        )
        if _CACHED in counters and not tells_source:
            return None
        sources = _TIERS if tier else _DEVICE
        return sum(
            value for source, value in by_source.items() if source.startswith(sources)
        )

    def facts(self, samples: Sequence[MetricSample], ask: Ask) -> RunningFacts:
        """Return what its arguments tell, and the sizes among its metrics, which count tokens of one rank."""
        info = _server_info(ask)
        gauges = {sample.name: sample.value for sample in samples}
        page = whole_number(info.get("page_size"))
        device = whole_number(
            gauges.get("sglang:max_total_num_tokens", info.get("max_total_num_tokens"))
        )
        tier_tokens = whole_number(gauges.get("sglang:hicache_host_total_tokens"))
        uncached = info.get("disable_radix_cache")
        read_from = {"its metrics": bool(gauges), "/server_info": bool(info)}
        return RunningFacts(
            block_tokens=page,
            device_blocks=device // page if device and page else None,
            device_tokens=device,
            device_caching=None if uncached is None else not uncached,
            connector=_hierarchy(info, tier_tokens),
            tier_bytes=_declared_bytes(info),
            tier_tokens=tier_tokens,
            engines=int(info.get("dp_size") or 1),
            read_from=tuple(place for place, read in read_from.items() if read),
        )

    def version(self, ask: Ask) -> str:
        """Return the release that /server_info has."""
        return str(_server_info(ask).get("version", ""))

    def models(self, ask: Ask) -> list[str]:
        """Return the names from /v1/models."""
        return [str(entry.get("id")) for entry in model_entries(ask(self.model_path))]

    def emptied(self, ask: Ask, *, tiers: bool = True) -> bool:
        """Empty device and tiers together; it refuses with 400 while requests run. Without `tiers` it cannot."""
        if not tiers:
            return False
        try:
            ask("/flush_cache", method="POST")
        except HttpError as error:
            if error.facts.get("status") != 400:
                raise
            return False
        return True


def _server_info(ask: Ask) -> dict[str, Any]:
    """Return arguments and sizes from the path that the release has; nothing where it has none."""
    for path in _INFO_PATHS:
        try:
            info = ask(path)
        except HttpError:
            continue
        if isinstance(info, dict):
            return info
    return {}


def _hierarchy(info: Mapping[str, Any], tier_tokens: int | None) -> str | None:
    """Return what is behind the device: "" for nothing, None where nothing tells it."""
    if not info.get("enable_hierarchical_cache", bool(tier_tokens)):
        return "" if info else None
    storage = info.get("hicache_storage_backend")
    return f"HiCache (host, {storage})" if storage else "HiCache (host)"


def _declared_bytes(info: Mapping[str, Any]) -> int | None:
    """Return the host tier's bytes over all ranks: --hicache-size is in GB a rank; 0 leaves the size to a ratio."""
    if not info.get("enable_hierarchical_cache") or not info.get("hicache_size"):
        return None
    return round(float(info["hicache_size"]) * 1e9) * int(info.get("tp_size") or 1)
