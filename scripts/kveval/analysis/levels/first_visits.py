"""First visits: the part of a window's prompts that no cache can serve, because it was not sent before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from kveval.analysis.levels.requests import Requests
from kveval.load.levels import prefix_count_at, prefix_tokens_at
from kveval.load.workload import workload_of


def first_visits(prefixes: int, before: int, within: int) -> float:
    """Return how many of `within` conversations are expected to be the first of their prefix.

    Each draws one of `prefixes` uniformly at random, after `before` others:
    K ((1 - 1/K)^before - (1 - 1/K)^(before + within)). 0 without prefixes.
    """
    if prefixes < 1:
        return 0.0
    missed = 1 - 1 / prefixes
    return float(prefixes * (missed**before - missed ** (before + within)))


def prompt_shares(
    workload: Mapping[str, Any], level: int, requests: Requests, window: tuple[float, float]
) -> tuple[float, float]:
    """Return two shares of the window's prompt tokens: first visits of prefixes, and prompts new in each turn.

    The first is an expectation, see `first_visits`, and 0 if every prefix was sent before the level (`prime`). Requests
    belong to the window that holds their first token, as for `prompt_tokens`. NaN without such requests, or if the
    workload does not declare its prefixes.
    """
    start, end = window
    first = requests.column("first_token")
    inside = (first >= start) & (first < end) & ~requests.status("errored")
    total = float(np.nansum(requests.column("prompt_tokens")[inside]))
    if workload.get("prefix_count") is None or workload.get("prefix_tokens") is None or not total > 0:
        return np.nan, np.nan
    spec = workload_of(workload)
    opening = np.nan_to_num(requests.column("turn"), nan=0.0) == 0
    before, within = int(np.count_nonzero(opening & (first < start))), int(np.count_nonzero(opening & inside))
    count, tokens = prefix_count_at(spec, level), prefix_tokens_at(spec, level)
    visits = 0.0 if spec.prime else first_visits(count, before, within)
    unshared = float(inside.sum()) * spec.prompt_tokens
    return min(1.0, visits * tokens / total), min(1.0, unshared / total)
