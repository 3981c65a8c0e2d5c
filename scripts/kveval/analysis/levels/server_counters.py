"""The server's own counters of a level, under names that are the same for all servers."""

import math
from collections.abc import Mapping

from kveval.stacks.registry import names_on_wire
from kveval.store.run_file import Change


def server_delta(counters: Mapping[str, Change], metric: str) -> float:
    """Return the increase of a metric, such as generation_tokens, during a level; NaN where the server has none.

    If the name depends on the server's release, the newest of those that were read counts.
    """
    return next(
        (counters[name].delta for name in names_on_wire(metric) if name in counters),
        math.nan,
    )


def looked_up_tokens(counters: Mapping[str, Change]) -> float:
    """Return the prompt tokens of a level that were looked up in caches; NaN where they are not counted.

    A server whose device has no prefix cache counts none there: then those of all prompts, which a tier looks up.
    """
    tokens = server_delta(counters, "prefix_cache_queries")
    prompts = server_delta(counters, "prompt_tokens")
    return prompts if not tokens and not math.isnan(prompts) else tokens
