"""Transfers between caches that failed or were left out during levels, from the servers' own counters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from kveval.store.run_file import LevelRun
from kveval.tables.levels.server_counters import server_delta

FAILED_TRANSFERS: Mapping[str, str] = {
    "stores_dropped": "blocks not stored because the tier behind was slow",
    "stores_skipped": "blocks not stored because they were not asked for often enough",
    "store_allocations_failed": "stores without room in the tier",
    "stores_behind_failed": "stores to the tier behind failed",
    "promotions_failed": "loads from the tier behind failed",
    "promotion_allocations_failed": "loads from the tier behind without room in host memory",
    "lmcache_mp_l1_allocation_failure_chunks_total": "chunks without room in LMCache's tier in host memory",
    "lmcache_mp_l2_prefetch_failure_chunks_total": "chunks that LMCache could not load from its store",
}
"""Terms of servers, and counters of LMCache, of transfers that failed or were left out -> what they count."""


def failed_transfers(levels: Sequence[LevelRun]) -> dict[str, float]:
    """Return the transfers of some levels that failed or were left out, by FAILED_TRANSFERS, those that happened."""
    counts = {}
    for name in FAILED_TRANSFERS:
        deltas = [_delta(entry, name) for entry in levels]
        total = sum(delta for delta in deltas if not math.isnan(delta))
        if total > 0:
            counts[name] = total
    return counts


def _delta(entry: LevelRun, name: str) -> float:
    """Return the rise of a counter, given by its own name or as a term of servers; NaN where it is not counted."""
    if name in entry.counters:
        return entry.counters[name].delta
    return server_delta(entry.counted, name)
