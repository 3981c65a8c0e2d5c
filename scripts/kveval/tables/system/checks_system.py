"""Checks of a level's system metrics: that they belong to this level, are possible, and have the right unit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from kveval.estimators.spreads import Array
from kveval.load.reports import CLOSED_LOOP
from kveval.tables.levels.noise import batch_count, change_error
from kveval.tables.levels.outcomes import Outcome, check, fail, note, warn
from kveval.tables.system.windows import Window

# Blocks are allocated while a prompt is processed, so that running requests hold only a part of theirs for a while.
_PARTLY = 0.5
# A hit ratio that rises evenly by 0.15 changes by as much from the first third to the last.
_FILLED = 0.1
HIT_RATIO_DRIFT = ("hit_ratio_drift", "hit_ratio_drift_se")
# Keys of config/metrics.yaml: the share of prompt tokens on the device, and the share of the rest in the tier.
DEVICE_HITS, TIER_HITS = "prefix_cache_hit_percent", "external_cache_hit_percent"
_KV_USAGE = ("kv_cache_usage_percent", "kv_cache_usage_max_percent")


@dataclass(frozen=True)
class WindowMetrics:
    """The metrics of one window: column -> value, samples in it, why values are missing, and values per instance.

    `absent`: metrics that should have been recorded but were not; `refused`: those with an implausible value;
    `unscaled`: fractions that the catalogue does not convert to per cent.
    """

    values: dict[str, float]
    samples: int
    notes: list[str]
    breakdown: dict[str, str] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    unscaled: tuple[str, ...] = ()


@dataclass(frozen=True)
class SampledLevel:
    """A level's row with its system metrics, and the findings from reducing them; `min_samples` are needed."""

    row: Mapping[str, Any]
    metrics: WindowMetrics
    min_samples: int

    def value(self, name: str) -> float:
        """Return a column as a number, NaN where the row has none."""
        value = self.row.get(name, np.nan)
        return np.nan if value is None else float(value)

    @property
    def streams(self) -> float:
        """The concurrency asked for; NaN in an open loop."""
        return (
            self.value("streams_asked")
            if "streams_asked" in self.row
            else self.value("level")
        )

    def impossible_columns(self) -> tuple[str, ...]:
        """Return the columns whose value is impossible."""
        return _KV_USAGE if kv_usage_physical(self) else ()


@check("R1")
def plausible(sampled: SampledLevel) -> Iterator[Outcome]:
    """Every value is in the range that the catalogue calls plausible."""
    if sampled.metrics.refused:
        yield warn(
            "outside their plausible range: {columns}", columns=sampled.metrics.refused
        )


@check("R1")
def fraction_scaled(sampled: SampledLevel) -> Iterator[Outcome]:
    """A metric recorded as a fraction and shown in per cent is multiplied by 100."""
    if sampled.metrics.unscaled:
        yield warn(
            "fractions not scaled to per cent: {columns}",
            columns=sampled.metrics.unscaled,
        )


@check("R1")
def kv_usage_physical(sampled: SampledLevel) -> Iterator[Outcome]:
    """The reported usage of the device's cache is enough for the prompts of the running requests.

    It is not if a fraction was read as per cent. Prompts count without their shared prefix, which counts once.
    """
    usage, device = (
        sampled.value("kv_cache_usage_percent"),
        sampled.value("device_tokens"),
    )
    running, streams = sampled.value("requests_running"), sampled.streams
    prefix = (
        min(1.0, running / streams) * sampled.value("prefix_tokens")
        if streams > 0
        else 0.0
    )
    needed = running * sampled.value("turn_prompt_tokens") + prefix
    if usage / 100 * device < _PARTLY * needed:
        yield warn(
            "{usage_percent:.2g} % of {device_tokens:,.0f} tokens cannot hold the {needed_tokens:,.0f} tokens of"
            " {requests_running:.1f} running requests",
            usage_percent=usage,
            device_tokens=device,
            needed_tokens=needed,
            requests_running=running,
        )


@check("R3")
def samples(sampled: SampledLevel) -> Iterator[Outcome]:
    """The window holds enough samples of the recording."""
    if sampled.metrics.samples < sampled.min_samples:
        yield note(
            "{samples} samples of the recording in the window, {samples_needed} needed",
            samples=sampled.metrics.samples,
            samples_needed=sampled.min_samples,
        )


@check("R3")
def clock_offset(sampled: SampledLevel) -> Iterator[Outcome]:
    """The recording has the load generator's clock, or the offset was measured and corrected."""
    offset = sampled.value("clock_offset_s")
    if np.isnan(offset):
        yield warn("the offset of the recording's clock was not measured")
    elif abs(offset) > 1.0:
        yield note(
            "the recording's clock is {offset_s:+.1f} s off; the window was shifted by that",
            offset_s=offset,
        )


@check("R8")
def caches_filled(sampled: SampledLevel) -> Iterator[Outcome]:
    """The hit share changed by at most 10 points, or 2 standard errors, from the window's first third to its last.

    While a cache is still filling, every number depends on the length of the level.
    """
    change, error = (sampled.value(name) for name in HIT_RATIO_DRIFT)
    if not np.isnan(error) and abs(change) > max(_FILLED, 2 * error):
        yield warn(
            "the hit ratio of the prompts changed by {change_points:+.0f} points from the first third of the window to"
            " the last: the cache was still filling or changing: use longer warm-ups, or prime the prefixes",
            change_points=100 * change,
        )


@check("R4")
def queues(sampled: SampledLevel) -> Iterator[Outcome]:
    """The server had no more requests than were sent: else the samples are of another time or another server."""
    inside, sent = (
        sampled.value("requests_running") + sampled.value("requests_waiting"),
        sampled.streams,
    )
    if (
        sampled.row.get("strategy", "concurrent") in CLOSED_LOOP
        and inside > 1.05 * sent
    ):
        yield fail(
            "{requests_in_server:.1f} requests running and waiting on average, only {in_flight:g} were in flight",
            requests_in_server=inside,
            in_flight=sent,
        )


@check("R7")
def server_rate(sampled: SampledLevel) -> Iterator[Outcome]:
    """The server's counter rose by the tokens received in the same window: within 2 %, at most 5 %.

    The counter is sampled, so its value at the window's edges is uncertain by one interval; the limits allow for that.
    """
    counted, received = (
        sampled.value("server_generation_tok_s"),
        sampled.value("throughput_tok_s"),
    )
    apart = received / counted - 1 if counted > 0 else 0.0
    sampling = 1 / max(sampled.metrics.samples, 1)
    if abs(apart) > 0.02 + sampling:
        yield (fail if abs(apart) > 0.05 + sampling else warn)(
            "the generator received {difference_percent:+.1f} % tokens against the server's counter in the same window",
            difference_percent=100 * apart,
        )


@check("R19")
def recorded(sampled: SampledLevel) -> Iterator[Outcome]:
    """The recording has all metrics that this version of the server should have, under their names."""
    if sampled.metrics.absent:
        yield note("not in the recording: {metrics}", metrics=sampled.metrics.absent)


def hit_ratio_drift(
    percent: Callable[[str, Window], float], window: Window, level: Mapping[str, Any]
) -> dict[str, float]:
    """Return HIT_RATIO_DRIFT: the change of the hit share (0 to 1) from the first to the last third, and its error.

    `percent` reads a key of config/metrics.yaml in a part of the window, NaN where it was not recorded. `level`: the
    row of levels.csv, whose mean latency sets the length of the batches. NaN where a part of the window is not known.
    """

    def parts(count: int) -> Array:
        edges = np.linspace(*window, count + 1).astype(np.int64).tolist()
        return np.array([_hit_ratio(percent, part) for part in pairwise(edges)])

    thirds = parts(3)
    batches = parts(
        batch_count(
            (window[1] - window[0]) / 1e9,
            float(level.get("e2e_ms_mean", np.nan)) / 1000,
        )
    )
    error = change_error(batches) if not np.isnan(batches).any() else np.nan
    return dict(
        zip(HIT_RATIO_DRIFT, (float(thirds[2] - thirds[0]), error), strict=True)
    )


def _hit_ratio(percent: Callable[[str, Window], float], part: Window) -> float:
    device = percent(DEVICE_HITS, part) / 100
    # The tier is asked only for what the device does not have; without a tier or a lookup it adds nothing.
    return device + (1 - device) * float(np.nan_to_num(percent(TIER_HITS, part))) / 100
