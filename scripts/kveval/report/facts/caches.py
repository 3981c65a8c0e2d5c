"""Caches: what tiers hold and did, the size that a load needs, where hits are lost, what one request takes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kveval.campaign.cell import blocks_label
from kveval.campaign.size import Size
from kveval.campaign.sizing import blocks_for_tokens, size_for_tokens
from kveval.campaign.types import BLOCK_TOKENS
from kveval.report.data import numbers as numerals
from kveval.report.data.arm_links import arm_link
from kveval.report.data.run_facts import tier_size_text
from kveval.report.result.model import (
    CampaignResult,
    ReportedCell,
    ReportedLeak,
    ReportedTimes,
    or_nan,
)
from kveval.tables.system.tier_activity import COLUMNS

GB = 1e9


@dataclass(frozen=True)
class Columns:
    """A part of a table whose columns depend on the campaign: their titles, and the rows with the columns before them."""

    titles: Sequence[str]
    rows: Sequence[Sequence[str]]


def block_sizes(result: CampaignResult) -> Columns:
    """Return the bytes of a token, a block and each tier, for each model as named and, if different, as served."""
    sizes = sorted({cell.cpu_blocks for cell in result.cells if cell.cpu_blocks})
    titles = []
    for blocks in sizes:
        titles += [f"{blocks_label(blocks)}:", f"{blocks_label(blocks)}, GB:"]
    rows = []
    for model, token_bytes in result.kv_bytes_per_token.items():
        if token_bytes.named:
            rows.append([model, *_block_bytes(token_bytes.named, sizes)])
        if token_bytes.served and token_bytes.served != token_bytes.named:
            served = f"{model}, as served (miniature)"
            rows.append([served, *_block_bytes(token_bytes.served, sizes)])
    return Columns(titles, rows)


def _block_bytes(bytes_per_token: float, sizes: Sequence[int]) -> list[str]:
    """The bytes of a token, of a block, and of tiers of so many blocks."""
    block = BLOCK_TOKENS * bytes_per_token
    numbers = [bytes_per_token / 2**10, block / 1e6, block / 2**20]
    texts = [f"{number:,.4g}" for number in numbers]
    for blocks in sizes:
        size = Size(blocks, round(blocks * block))
        texts += [str(size), f"{size.size_bytes / GB:,.4g}"]
    return texts


_ACTIVITY = {
    "device_hit_percent": "found on the device, % of prompt tokens:",
    "external_hit_percent": "found behind it, %:",
    "store_hit_percent": "of that only in the store, %:",
    "loaded_mb": "tier to device, MB:",
    "stored_mb": "device to tier, MB:",
    "requests_preempted": "requests preempted:",
    "reloaded_tokens": "loaded again for them, tokens:",
    "second_read_mb": "read from behind the tier, MB:",
    "second_written_mb": "written there, MB:",
    "second_entries": "keys or files there at the end:",
}
_PREEMPTION = {"requests_preempted", "reloaded_tokens"}


def tier_work(
    result: CampaignResult, cells: Sequence[ReportedCell], level: int | None = None
) -> Columns:
    """Return a row per cell and level, means over runs, with the columns that some arm of the campaign counts.

    Of one level if asked, without the columns that name model and level. No rows where no more than one is counted.
    """
    counted: set[str] = set()
    preempted = 0.0
    for cell in result.cells:
        for means in cell.tier_activity.values():
            counted.update(means)
            preempted = max(preempted, means.get("requests_preempted") or 0.0)
    names = {*_ACTIVITY} if preempted else {*_ACTIVITY} - _PREEMPTION
    columns = [name for name in COLUMNS if name in names & counted]
    rows = []
    for cell in cells:
        for of_level, means in cell.tier_activity.items():
            row = [three_digits(means.get(name)) for name in columns]
            if level is None:
                rows.append([cell.model, arm_link(cell), of_level, *row])
            elif of_level == str(level):
                rows.append([arm_link(cell), *row])
    titles = [_ACTIVITY[name] for name in columns]
    return Columns(titles, rows if len(columns) > 1 else [])


def three_digits(value: float | None) -> str:
    """Return a number with at least three digits as text, "" for a missing one."""
    if value is None or math.isnan(value):
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def tier_size(cell: ReportedCell) -> str:
    """Return the size of a cell's tier in host memory: in blocks where its bytes are not known, "-" without one."""
    return tier_size_text(cell.cpu_blocks, cell.tier_size)


def working_set(cell: ReportedCell) -> list[int]:
    """Return the tokens of the distinct prefixes, least and most over the levels; one number where these are equal."""
    sizes = sorted(set(cell.working_set_tokens.values())) or [0]
    return list(dict.fromkeys((sizes[0], sizes[-1])))


@dataclass(frozen=True)
class SizedTier:
    """A size of a model's tier: a cell that has it, and the most that was resident in servers with it, GiB."""

    cell: ReportedCell
    resident_gib: float | None


def memory_by_size(cells: Sequence[ReportedCell]) -> list[SizedTier]:
    """Return the sizes of the tiers of a model, rising."""
    by_blocks: dict[int, list[ReportedCell]] = {}
    for cell in cells:
        if cell.cpu_blocks and cell.runs:
            by_blocks.setdefault(cell.cpu_blocks, []).append(cell)
    sizes = []
    for blocks in sorted(by_blocks):
        resident = [cell.resident_gib for cell in by_blocks[blocks]]
        most = max((gib for gib in resident if gib is not None), default=None)
        sizes.append(SizedTier(by_blocks[blocks][0], most))
    return sizes


@dataclass(frozen=True)
class TierGuide:
    """The working set of a model's load at the common level, beside what its caches hold.

    Attributes:
        model: the model.
        level: the common level; None where nothing was measured there.
        working_set: tokens of the distinct prefixes; None without a level.
        size: of a tier that holds them.
        device_tokens: of the device's cache; None where it is not known.
        large_enough, too_small, below_device: the tiers that have the computed size, of the working set where none was
            computed, those that do not, and those that are smaller than the device's cache.
        hits: the baselines with the shares of their prompt tokens that were found on the device, % of each run.
        tier: a size of the model's tier, None without one.
    """

    model: str
    level: int | None = None
    working_set: int | None = None
    size: str = ""
    device_tokens: float | None = None
    large_enough: Sequence[str] = ()
    too_small: Sequence[str] = ()
    below_device: Sequence[str] = ()
    hits: Sequence[tuple[ReportedCell, Sequence[float]]] = ()
    tier: SizedTier | None = None

    @property
    def fits_device(self) -> bool:
        """Whether the device's cache holds the working set."""
        return (self.working_set or 0) <= or_nan(self.device_tokens)


def tier_guide(result: CampaignResult, cells: Sequence[ReportedCell]) -> TierGuide:
    """Return the guide to the size of a tier for the cells of a model with a peak."""
    model = cells[0].model if cells else ""
    hits = device_hits(result, cells)
    first = next((cell for cell in cells if cell.runs), None)
    level = result.common_levels[first.model] if first else None
    if first is None or level is None:
        return TierGuide(model, hits=hits)
    working_set = first.working_set_tokens.get(f"{level}", 0)
    computed = result.tiers_needed.get(model)
    needed = computed.cpu_blocks * BLOCK_TOKENS if computed else working_set
    device = first.device_cache_tokens
    tokens = {
        tier_size(tier.cell): or_nan(tier.cell.cpu_tier_tokens)
        for tier in memory_by_size(cells)
    }
    return TierGuide(
        model,
        level,
        working_set,
        _size_for(cells, working_set),
        device,
        [size for size in tokens if tokens[size] >= needed],
        [size for size in tokens if tokens[size] < needed],
        [size for size in tokens if tokens[size] < or_nan(device)],
        hits,
    )


def tier_guides(result: CampaignResult) -> list[TierGuide]:
    """Return the guides of all models, one for each size of its tier."""
    guides = []
    for model in result.common_levels:
        cells = [cell for cell in result.cells_of(model) if cell.peak]
        guide = tier_guide(result, cells)
        sizes: list[SizedTier | None] = [*memory_by_size(cells)]
        if not sizes and (guide.level is not None or guide.hits):
            sizes = [None]
        guides += [replace(guide, model=model, tier=size) for size in sizes]
    return guides


def _size_for(cells: Sequence[ReportedCell], tokens: int) -> str:
    """The size of a tier that holds `tokens` of a model; in blocks where its bytes are not known."""
    sized = next((cell.tier_size for cell in cells if cell.tier_size), None)
    if sized is None:
        return f"{blocks_for_tokens(tokens):,} blocks"
    per_token = sized.size_bytes // (sized.cpu_blocks * BLOCK_TOKENS)
    return str(size_for_tokens(tokens, per_token))


def device_hits(
    result: CampaignResult, cells: Sequence[ReportedCell]
) -> list[tuple[ReportedCell, Sequence[float]]]:
    """Return the baselines with their hit shares on the device at the common level, % of each run."""
    hits: list[tuple[ReportedCell, Sequence[float]]] = []
    for cell in cells:
        level = result.common_levels[cell.model]
        shares = cell.values(level, "prefix_cache_hit_percent")
        if cell.is_baseline and shares:
            hits.append((cell, shares))
    return hits


def shown_leaks(result: CampaignResult) -> list[ReportedLeak]:
    """Return the leaks in the order of every table; none where no more is known than what was found."""
    if all(leak.code == "unknown" for leak in result.leaks):
        return []
    leaks = {leak.cell: leak for leak in result.leaks}
    return [leaks[cell] for cell in result.by_cell if cell in leaks]


def needed_size(facts: Mapping[str, Any]) -> str:
    """Return the size of a tier that would serve most of what is lost; "" where it is not known."""
    blocks, size_bytes = or_nan(facts["needed_blocks"]), or_nan(facts["needed_bytes"])
    if math.isnan(blocks):
        return ""
    if math.isnan(size_bytes):
        return f"{blocks:,.0f} blocks"
    return str(Size(round(blocks), round(size_bytes)))


@dataclass(frozen=True)
class TimedRequest:
    """The times of one request in a cell by source; none of a cell whose requests were not timed."""

    cell: ReportedCell
    cold: ReportedTimes | None = None
    device: ReportedTimes | None = None
    tier: ReportedTimes | None = None

    @property
    def model(self) -> str:
        """The model."""
        return self.cell.model

    @property
    def label(self) -> str:
        """The arm with its size."""
        return self.cell.label

    @property
    def in_order(self) -> list[ReportedTimes]:
        """The times that there are."""
        return [*filter(None, (self.cold, self.device, self.tier))]

    @property
    def cold_to_tier(self) -> float | None:
        """How many times as long computing takes as loading; None where one of the times is missing."""
        if self.cold is None or self.tier is None:
            return None
        ratio = or_nan(self.cold.ttft_ms["median"]) / or_nan(
            self.tier.ttft_ms["median"]
        )
        return None if math.isnan(ratio) else ratio

    @property
    def slower(self) -> bool:
        """Whether loading is not shown to take less time than computing."""
        return self.surely_slower or (self.cold_to_tier or math.inf) <= 1

    @property
    def surely_slower(self) -> bool:
        """Whether even the quickest load takes longer than the slowest computation."""
        if self.cold is None or self.tier is None or self.cold_to_tier is None:
            return False
        return or_nan(self.tier.ttft_ms["least"]) > or_nan(self.cold.ttft_ms["most"])


def timed_requests(result: CampaignResult) -> list[TimedRequest]:
    """Return the times of one request of every cell that was measured; none if no run has times."""
    if not result.one_request:
        return []
    by_cell: dict[Any, dict[str, ReportedTimes]] = {}
    for times in result.one_request:
        by_cell.setdefault(times.cell, {})[times.source] = times
    return [
        TimedRequest(cell, **by_cell.get(cell.cell, {}))
        for cell in result.cells
        if cell.runs
    ]


def time_of(times: ReportedTimes) -> str:
    """Return a time to the first token with the least and the most."""
    ends = times.ttft_ms
    return numerals.with_interval(
        or_nan(ends["median"]), or_nan(ends["least"]), or_nan(ends["most"])
    )
