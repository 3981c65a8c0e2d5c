"""The server's own counters of a level, under names that are the same for all servers."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from kveval.stacks.registry import names_on_wire
from kveval.store.run_file import Change

# More lookups than this multiple of the prompts are repeated ones, or those of requests in progress in a short level.
_REPEATED = 1.05


def server_delta(counters: Mapping[str, Change], metric: str) -> float:
    """Return the increase of a metric, such as generation_tokens, during a level; NaN where the server has none.

    If the name depends on the server's release, the newest of those that were read counts.
    """
    return next(
        (counters[name].delta for name in names_on_wire(metric) if name in counters),
        math.nan,
    )


@dataclass(frozen=True)
class FoundTokens:
    """The prompt tokens of a level and where caches found them, each prompt once; NaN for what is not counted.

    Attributes:
        prompts: tokens of the prompts that were looked up.
        device: of these, found in the device's cache.
        asked_behind: of these, looked up behind the device.
        behind: of these, found there.
    """

    prompts: float
    device: float
    asked_behind: float
    behind: float


def found_tokens(counters: Mapping[str, Change]) -> FoundTokens:
    """Return where the prompt tokens of a level were found.

    vLLM counts a lookup whenever its scheduler tries to begin a request, so that one which finds no room on the device,
    or whose tier has not answered yet, counts again and again (`get_computed_blocks` in vllm/v1/core/kv_cache_manager.py).
    Where that was so, prompts count as they were begun at last, by where their tokens came from.
    """
    lookups = FoundTokens(
        looked_up_tokens(counters),
        server_delta(counters, "prefix_cache_hits"),
        server_delta(counters, "external_prefix_cache_queries"),
        server_delta(counters, "external_prefix_cache_hits"),
    )
    prompts = server_delta(counters, "prompt_tokens")
    device = server_delta(counters, "delivered_device_tokens")
    behind = server_delta(counters, "delivered_external_tokens")
    begun = FoundTokens(prompts, device, prompts - device, behind)
    repeated = lookups.prompts > _REPEATED * prompts
    known = not math.isnan(device + behind)
    return begun if repeated and known else lookups


def looked_up_tokens(counters: Mapping[str, Change]) -> float:
    """Return the prompt tokens of a level that were looked up in caches; NaN where they are not counted.

    A server whose device has no prefix cache counts none there: then those of all prompts, which a tier looks up.
    """
    tokens = server_delta(counters, "prefix_cache_queries")
    prompts = server_delta(counters, "prompt_tokens")
    return prompts if not tokens and not math.isnan(prompts) else tokens
