"""Counters of a level, by terms that are the same for all servers (`LevelRun.counted`)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from kveval.store.conditions import Change

# More lookups than this multiple of the prompts are repeated ones, or those of requests in progress in a short level.
_REPEATED = 1.05


def server_delta(counted: Mapping[str, Change], term: str) -> float:
    """Return the increase of a term, such as generation_tokens, during a level; NaN where the server counts none."""
    return counted[term].delta if term in counted else math.nan


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


def found_tokens(counted: Mapping[str, Change]) -> FoundTokens:
    """Return where the prompt tokens of a level were found.

    vLLM counts a lookup whenever its scheduler tries to begin a request, so that one which finds no room on the device,
    or whose tier has not answered yet, counts again and again (`get_computed_blocks` in vllm/v1/core/kv_cache_manager.py).
    Where that was so, prompts count as they were begun at last, by where their tokens came from.
    """
    lookups = FoundTokens(
        looked_up_tokens(counted),
        server_delta(counted, "prefix_cache_hits"),
        server_delta(counted, "external_prefix_cache_queries"),
        server_delta(counted, "external_prefix_cache_hits"),
    )
    prompts = server_delta(counted, "prompt_tokens")
    device = server_delta(counted, "delivered_device_tokens")
    behind = server_delta(counted, "delivered_external_tokens")
    begun = FoundTokens(prompts, device, prompts - device, behind)
    repeated = lookups.prompts > _REPEATED * prompts
    known = not math.isnan(device + behind)
    return begun if repeated and known else lookups


def looked_up_tokens(counted: Mapping[str, Change]) -> float:
    """Return the prompt tokens of a level that were looked up in caches; NaN where they are not counted.

    A server whose device has no prefix cache counts none there: then those of all prompts, which a tier looks up.
    """
    tokens = server_delta(counted, "prefix_cache_queries")
    prompts = server_delta(counted, "prompt_tokens")
    return prompts if not tokens and not math.isnan(prompts) else tokens
