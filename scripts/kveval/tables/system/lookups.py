"""Lookups in the tiers behind the device during a level, from the servers' own counters: how many hit, and how long."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kveval.store.run_file import LevelRun

_LABEL = re.compile(r'(\w+)="([^"]*)"')
QUANTILES = (0.5, 0.9)
ALL_TIERS = ""


@dataclass(frozen=True)
class Lookups:
    """Lookups of some levels in one tier; NaN for what is not counted.

    Attributes:
        tier: as the server calls it, such as `1:fs`; ALL_TIERS for whole prompts, behind the device.
        chunks: chunks looked up.
        hits: of these, those that were there.
        blocked_s: QUANTILES of the seconds that a lookup blocked, each at most.
        deferred_s: the same of lookups that were put off, until they had an answer.
    """

    tier: str
    chunks: float
    hits: float
    blocked_s: tuple[float, ...]
    deferred_s: tuple[float, ...]


def lookups(levels: Sequence[LevelRun]) -> list[Lookups]:
    """Return the lookups of some levels together, by tier; none where a server counts none."""
    chunks, hits = (
        _sums(levels, term, "tier")
        for term in ("tier_chunk_queries", "tier_chunk_hits")
    )
    by_tier = []
    for tier in sorted({*chunks, *hits}):
        blocked, deferred = (
            _delays(levels, term, tier)
            for term in ("tier_lookup_seconds", "tier_deferred_seconds")
        )
        of_tier = chunks.get(tier, math.nan), hits.get(tier, 0.0)
        by_tier.append(Lookups(tier, *of_tier, blocked, deferred))
    blocked, deferred = (
        _delays(levels, term, None) for term in ("lookup_seconds", "deferred_seconds")
    )
    if not all(map(math.isnan, (*blocked, *deferred))):
        by_tier.insert(0, Lookups(ALL_TIERS, math.nan, math.nan, blocked, deferred))
    return by_tier


def _sums(levels: Sequence[LevelRun], term: str, label: str) -> dict[str, float]:
    """Return the rise of a counter over levels, by a label's value."""
    sums: dict[str, float] = {}
    for labels, rise in _samples(levels, term):
        sums[labels[label]] = sums.get(labels[label], 0.0) + rise
    return sums


def _samples(
    levels: Sequence[LevelRun], term: str
) -> Iterator[tuple[dict[str, str], float]]:
    """Yield the labels and the rise of each labelled sample of a term."""
    for level in levels:
        for name, change in level.counted.items():
            if name.startswith(f"{term}{{"):
                yield dict(_LABEL.findall(name)), change.delta


def _delays(
    levels: Sequence[LevelRun], term: str, tier: str | None
) -> tuple[float, ...]:
    """Return QUANTILES of a histogram of delays, in seconds, of one tier if given; NaN without any delay."""
    buckets: dict[float, float] = {}
    for labels, rise in _samples(levels, term):
        if tier in (None, labels.get("tier")):
            end_s = float(labels["le"])
            buckets[end_s] = buckets.get(end_s, 0.0) + rise
    return tuple(quantile(buckets, part) for part in QUANTILES)


def quantile(buckets: Mapping[float, float], part: float) -> float:
    """Return the end of the bucket in which a quantile lies, which is at most that; infinite beyond the last one.

    `buckets`: the end of each -> the number of values up to it, as Prometheus has histograms. NaN without values.
    """
    count = max(buckets.values(), default=0.0)
    if count <= 0:
        return math.nan
    return min(end for end, below in buckets.items() if below >= part * count)
