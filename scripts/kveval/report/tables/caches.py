"""The report's tables of caches: sizes of blocks, what tiers hold and did, whether they were used, what limits them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from kveval.campaign.cell import Cell, blocks_label
from kveval.campaign.size import GIB, Size
from kveval.campaign.types import BLOCK_TOKENS
from kveval.report.data import numbers as numerals
from kveval.report.data.arm_links import arm_link
from kveval.report.data.campaign import Measured, ReportPlan, Table
from kveval.report.data.run_facts import tier_size_text
from kveval.report.result.model import (
    CampaignResult,
    ReportedCeiling,
    ReportedCell,
    ReportedCounter,
    or_nan,
)
from kveval.report.tables.results import level_unit_of
from kveval.store.run_file import LevelRun
from kveval.tables.system.failed_transfers import FAILED_TRANSFERS, failed_transfers
from kveval.tables.system.lookups import lookups
from kveval.tables.system.tier_activity import COLUMNS

GB = 1e9


def blocks_table(result: CampaignResult) -> Table:
    """Return the bytes of a token, a block and each CPU tier, for each model as named and, if different, as served."""
    sizes = sorted({cell.cpu_blocks for cell in result.cells if cell.cpu_blocks})
    header = [
        "model",
        "KV cache per token, KiB",
        f"block of {BLOCK_TOKENS} tokens, MB",
        "MiB",
    ]
    for blocks in sizes:
        label = blocks_label(blocks)
        header += [label, f"{label}, GB"]
    rows = []
    for model, token_bytes in result.kv_bytes_per_token.items():
        if token_bytes.named:
            rows.append([model, *_block_bytes(token_bytes.named, sizes)])
        if token_bytes.served and token_bytes.served != token_bytes.named:
            served = f"{model}, as served (miniature)"
            rows.append([served, *_block_bytes(token_bytes.served, sizes)])
    return Table(header, rows, frozenset(range(1, 4 + 2 * len(sizes))))


def _block_bytes(bytes_per_token: float, sizes: Sequence[int]) -> list[str]:
    """The bytes of a token, of a block, and of tiers of so many blocks."""
    block = BLOCK_TOKENS * bytes_per_token
    texts = [_four_digits(bytes_per_token / 2**10)]
    texts += [_four_digits(block / 1e6), _four_digits(block / 2**20)]
    for blocks in sizes:
        size = Size(blocks, round(blocks * block))
        sized = numerals.NumberText(str(size), size.size_bytes)
        texts += [sized, _four_digits(size.size_bytes / GB)]
    return texts


def _four_digits(value: float) -> str:
    return numerals.NumberText(f"{value:,.4g}", value)


def budget_table(result: CampaignResult) -> Table:
    """Return the tokens that each cell's CPU tier holds, beside those of the device's cache and of all prefixes."""
    header = [
        "model",
        "arm",
        "tier in host memory",
        "tokens",
        "device cache, tokens",
    ]
    header += ["distinct prefixes, tokens", "note"]
    rows = []
    for cell in result.cells:
        if not cell.runs:
            continue
        sizes = sorted(set(cell.working_set_tokens.values())) or [0]
        working = list(dict.fromkeys((sizes[0], sizes[-1])))
        rows.append(
            [
                cell.model,
                arm_link(cell),
                tier_size_text(cell.cpu_blocks, cell.tier_size),
                numerals.rounded(or_nan(cell.cpu_tier_tokens), 0),
                numerals.rounded(or_nan(cell.device_cache_tokens), 0),
                numerals.NumberText(
                    " to ".join(map(numerals.count, working)), working[0]
                ),
                "; ".join(_notes(cell, working)),
            ]
        )
    return Table(header, rows, frozenset({2, 3, 4, 5}))


def _notes(cell: ReportedCell, working: Sequence[int]) -> Iterator[str]:
    """Yield remarks on what a cell's caches hold; `working`: tokens of the distinct prefixes, least and most."""
    device, tier = or_nan(cell.device_cache_tokens), or_nan(cell.cpu_tier_tokens)
    if pinned := cell.cpu_tier_pinned_bytes:
        yield f"takes up to {pinned / GIB:.4g} GiB of host memory: pinned tensors are rounded up to powers of two"
    if len(working) > 1:
        yield "the working set grows with the level"
    if max(working) <= device:
        yield "the prefixes fit the device: a tier has nothing to add"
    elif tier:
        if tier < device:
            yield "the tier is smaller than the device's cache"
        if tier < max(working):
            yield "the tier does not hold all prefixes"


def activity_table(result: CampaignResult) -> Table:
    """Return the rise per level of the counters that each arm requires, over levels and runs."""
    header = [
        "model",
        "arm",
        "counter",
        "needed per level",
        "increase per level, least to most",
        "active",
    ]
    header.append(f"not {level_unit_of(result).heading}")
    rows = [
        [
            *(counter.model, arm_link(counter), f"`{counter.counter}`"),
            f"{_needed(counter)} {counter.unit}".strip(),
            _rises(counter),
            _active_text(counter),
            ", ".join(map(str, counter.too_little_levels)),
        ]
        for counter in result.required_counters
    ]
    return Table(header, rows, frozenset({4}))


def _rises(counter: ReportedCounter) -> str:
    least, most = counter.rise_least, counter.rise_most
    if least is None or most is None:
        return "not recorded"
    return numerals.NumberText(
        f"{numerals.count(least)} to {numerals.count(most)}", least
    )


def _needed(counter: ReportedCounter) -> str:
    ends = (counter.needed_least, counter.needed_most)
    return " to ".join(dict.fromkeys(f"{or_nan(end):,.0f}" for end in ends))


def _active_text(counter: ReportedCounter) -> str:
    """Whether a counter rose enough, over levels and runs; "" where it is not known of any."""
    if counter.enough_levels:
        return "in part" if counter.too_little_levels else "yes"
    return "**no**" if counter.too_little_levels else ""


_ACTIVITY = {
    "device_hit_percent": "found on the device, % of prompt tokens",
    "external_hit_percent": "found behind it, %",
    "store_hit_percent": "of that only in the store, %",
    "loaded_mb": "tier to device, MB",
    "stored_mb": "device to tier, MB",
    "requests_preempted": "requests preempted",
    "reloaded_tokens": "loaded again for them, tokens",
    "second_read_mb": "read from behind the tier, MB",
    "second_written_mb": "written there, MB",
    "second_entries": "keys or files there at the end",
}
_PREEMPTION = {"requests_preempted", "reloaded_tokens"}


def tiers_table(
    result: CampaignResult, model: str = "", level: int | None = None
) -> Table:
    """Return a row per cell and level, means over runs; columns that no arm of the campaign counts are left out.

    With `model` and `level`, only their rows, without the columns that name them.
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
    for cell in result.cells_of(model) if model else result.cells:
        for cell_level, means in cell.tier_activity.items():
            if level is None or cell_level == str(level):
                row = (
                    [arm_link(cell)]
                    if model
                    else [cell.model, arm_link(cell), cell_level]
                )
                row += [tier_text(means.get(name)) for name in columns]
                rows.append(row)
    header = ["arm"] if model else ["model", "arm", level_unit_of(result).heading]
    first = len(header)
    header += [_ACTIVITY[name] for name in columns]
    return Table(
        header,
        rows if len(columns) > 1 else [],
        frozenset(range(first - (not model), len(header))),
    )


def tier_text(value: float | None) -> str:
    """Return a number with at least three digits as text, "" for a missing one."""
    if value is None or math.isnan(value):
        return ""
    text = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return numerals.NumberText(text, value)


_LOOKUPS = (
    *("model", "arm", "tier", "chunks looked up", "there, %"),
    *("lookup, ms: half within", "9 of 10 within"),
    *("put off, ms: half within", "9 of 10 put off within"),
)


def lookups_table(plan: ReportPlan, measured: Measured) -> Table:
    """Return a row per cell, level and tier with the lookups that a server counts, of all runs together."""
    header = [*_LOOKUPS[:2], measured.level_unit.heading, *_LOOKUPS[2:]]
    rows = []
    for cell, level, entries in _levels_of_cells(plan, measured):
        for of_tier in lookups(entries):
            rows.append(
                [
                    *(cell.model, arm_link(cell), f"{level}"),
                    of_tier.tier or "all, whole prompts",
                    "" if math.isnan(of_tier.chunks) else f"{of_tier.chunks:,.0f}",
                    tier_text(100 * of_tier.hits / of_tier.chunks)
                    if of_tier.chunks
                    else "",
                    *(_delay_text(seconds) for seconds in of_tier.blocked_s),
                    *(_delay_text(seconds) for seconds in of_tier.deferred_s),
                ]
            )
    return Table(header, rows, frozenset({2, *range(4, len(header))}))


def _levels_of_cells(
    plan: ReportPlan, measured: Measured
) -> Iterator[tuple[Cell, int, list[LevelRun]]]:
    """Yield each cell and level that was measured, with what its runs have of it."""
    for cell in plan.ordered_cells:
        entries = [
            level
            for run in measured.runs_of(cell)
            for level in run.levels
            if level.status == "ok"
        ]
        for number in sorted({level.level for level in entries}):
            of_level = [level for level in entries if level.level == number]
            yield cell, number, of_level


def _delay_text(seconds: float) -> str:
    """Return the end of a bucket in ms; infinite: beyond the last one."""
    if math.isnan(seconds):
        return ""
    return "longer" if math.isinf(seconds) else f"{1000 * seconds:g}"


def failed_transfers_table(plan: ReportPlan, measured: Measured) -> Table:
    """Return a row per cell, level and kind of transfer that failed or was left out, of all runs together."""
    header = ["model", "arm", measured.level_unit.heading, "what", "number"]
    rows = [
        [
            cell.model,
            arm_link(cell),
            f"{level}",
            FAILED_TRANSFERS[name],
            f"{count:,.0f}",
        ]
        for cell, level, entries in _levels_of_cells(plan, measured)
        for name, count in failed_transfers(entries).items()
    ]
    return Table(header, rows, frozenset({2, 4}))


PREFILL = "prefill, tokens/s"
"""The column of the rate at which the baseline computes prompts; absent where it is not known."""
_CEILINGS = (
    *(
        "tier loads, GB/s",
        "probe copies, GB/s",
        "loads, % of the probe",
        "loaded, tokens/s",
        PREFILL,
    ),
    *(
        "other time, ms a request",
        "loading is faster from, tokens",
        "measured: faster at",
    ),
)


def ceilings_table(result: CampaignResult, model: str) -> Table:
    """Return a row for each arm of a model whose tier's loads were counted, see `ReportedCeiling`."""
    header = ["arm", level_unit_of(result).heading, *_CEILINGS]
    rows = [
        [arm_link(ceiling), f"{ceiling.level}", *_ceiling_cells(ceiling)]
        for ceiling in result.ceilings
        if ceiling.model == model
    ]
    return Table(header, rows, frozenset(range(1, len(header)))).without_blank_columns()


def _ceiling_cells(ceiling: ReportedCeiling) -> Iterator[str]:
    loads, copies = or_nan(ceiling.load_gb_s), or_nan(ceiling.copy_gb_s)
    rates = [loads, copies, 100 * loads / copies]
    rates += map(or_nan, (ceiling.load_tok_s, ceiling.prefill_tok_s))
    for rate in (*rates, or_nan(ceiling.overhead_ms)):
        yield "" if math.isnan(rate) else numerals.significant(rate, 3)
    length = or_nan(ceiling.break_even_tokens)
    if ceiling.never_faster:
        yield "never"
    else:
        yield "" if math.isnan(length) else numerals.count(math.ceil(length))
    yield ", ".join(map(str, ceiling.faster_levels))
