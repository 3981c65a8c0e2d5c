"""Guidance for deployments, made only from verdicts and computed sizes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from kveval.campaign.sizing import blocks_for_tokens, size_for_tokens
from kveval.campaign.types import BLOCK_TOKENS
from kveval.report.data import numbers as numerals
from kveval.report.data.arm_links import arm_link
from kveval.report.data.campaign import Table
from kveval.report.data.run_facts import tier_size_text
from kveval.report.result.model import CampaignResult, ReportedCell, or_nan
from kveval.report.tables.results import level_unit_of, strategy_table

# Between these hit shares of the device's prefix cache, per cent, the hit share alone does not decide.
LOW_HITS, HIGH_HITS = 50, 70
HITS = "its prompt tokens found on the device, %"


def guidance_table(result: CampaignResult) -> Table:
    """Return answers by model: which arm, how large a tier, what the hit share says, how much host memory."""
    strategies = {
        row[0]: ": ".join(filter(None, (row[-1], row[1])))
        for row in strategy_table(result).rows
    }
    rows = []
    for model in result.common_levels:
        cells = _with_peak(result, model)
        answers = {
            "which arm": [strategies[model]] if cells and model in strategies else [],
            "how large a tier": _tier_sizes(result, cells),
            "prefix hits on the device": _hit_rates(result, cells),
            "host memory": _host_memory(cells),
        }
        rows += [
            [model, question, text]
            for question, texts in answers.items()
            for text in texts
        ]
    return Table(["model", "question", "what these measurements say"], rows)


def guidance_numbers(result: CampaignResult) -> Table:
    """Return the numbers behind the guidance, a row per model and tier size."""
    header = [
        "model",
        level_unit_of(result).heading,
        "distinct prefixes, tokens",
        "a tier for all of them",
    ]
    header += ["device cache, tokens", "baseline", HITS]
    header += [
        "tier in host memory",
        "tier, tokens",
        "resident in the server's processes, at most, GiB",
    ]
    rows = []
    for model in result.common_levels:
        cells = _with_peak(result, model)
        facts = [""] * 4
        if reuse := _reuse(result, cells):
            level, working, device = reuse
            facts = [
                f"{level}",
                numerals.count(working),
                _size_for(cells, working),
                numerals.rounded(device, 0),
            ]
        hits = _hits(result, cells)
        baselines = [
            "; ".join(name for name, _ in hits),
            "; ".join(share for _, share in hits),
        ]
        sizes = [
            [_size_text(cell), numerals.rounded(or_nan(cell.cpu_tier_tokens), 0), held]
            for cell, held in _memory(cells)
        ]
        rows += [
            [model, *facts, *baselines, *size]
            for size in sizes or ([[""] * 3] if reuse or hits else [])
        ]
    return Table(header, rows, frozenset({1, 2, 3, 4, 6, 7, 8, 9}))


def _with_peak(result: CampaignResult, model: str) -> list[ReportedCell]:
    return [cell for cell in result.cells_of(model) if cell.peak]


def _reuse(
    result: CampaignResult, cells: Sequence[ReportedCell]
) -> tuple[int, int, float] | None:
    """The common level, and the tokens of the working set there and of the device's cache."""
    first = next((cell for cell in cells if cell.runs), None)
    level = result.common_levels[first.model] if first else None
    if first is None or level is None:
        return None
    working = first.working_set_tokens.get(f"{level}", 0)
    return level, working, or_nan(first.device_cache_tokens)


def _tier_sizes(result: CampaignResult, cells: Sequence[ReportedCell]) -> Iterator[str]:
    """Yield the tier size that holds the working set at the common level, and which measured sizes do."""
    _, working, device = _reuse(result, cells) or (0, -1, math.nan)
    needed = (
        f"the workload's prefixes have {working:,} tokens, {_size_for(cells, working)}"
    )
    if working == 0:
        yield "the workload shares no prefixes: nothing that a tier could serve again"
    elif 0 < working <= device:
        yield f"{needed}; the device's cache holds {device:,.0f}, all of them, so a tier has nothing to add"
    elif working > 0:
        sizes = {
            _size_text(cell): or_nan(cell.cpu_tier_tokens) for cell, _ in _memory(cells)
        }
        groups = {
            "large enough": [
                size for size, tokens in sizes.items() if tokens >= working
            ],
            "too small": [size for size, tokens in sizes.items() if tokens < working],
            "smaller than the device's cache, so mostly copies of it": [
                size for size in sizes if sizes[size] < device
            ],
        }
        held = (
            [f"the device's cache holds {device:,.0f} of them"]
            if math.isfinite(device)
            else []
        )
        yield "; ".join(
            [
                needed,
                *held,
                *(
                    f"{what}: {', '.join(members)}"
                    for what, members in groups.items()
                    if members
                ),
            ]
        )


def _size_text(cell: ReportedCell) -> str:
    return tier_size_text(cell.cpu_blocks, cell.tier_size)


def _size_for(cells: Sequence[ReportedCell], tokens: int) -> str:
    """The size of a tier that holds `tokens` of a model; in blocks where its bytes are not known."""
    known = next((cell.tier_size for cell in cells if cell.tier_size), None)
    if known is None:
        return f"{blocks_for_tokens(tokens):,} blocks"
    per_token = known.size_bytes // (known.cpu_blocks * BLOCK_TOKENS)
    return str(size_for_tokens(tokens, per_token))


def _hit_rates(result: CampaignResult, cells: Sequence[ReportedCell]) -> Iterator[str]:
    """Yield the baselines' hit shares at the common level, and what they leave for a tier."""
    for name, share in _hits(result, cells):
        if share.number < LOW_HITS:
            says = f"below {LOW_HITS} %: more than half was computed, which a large enough tier could save in part"
        elif share.number > HIGH_HITS:
            says = f"above {HIGH_HITS} %: the device serves most of the reuse itself and leaves little for a tier"
        else:
            says = f"between {LOW_HITS} % and {HIGH_HITS} %: not decisive by itself"
        at = level_unit_of(result).label(result.common_levels[cells[0].model])
        yield f"{name}, at {at}: {share} % of prompt tokens; {says}"


def _hits(
    result: CampaignResult, cells: Sequence[ReportedCell]
) -> list[tuple[str, numerals.NumberText]]:
    """The baselines with their hit share on the device at the common level, %."""
    hits = []
    for cell in cells:
        level = result.common_levels[cell.model]
        shares = cell.values(level, "prefix_cache_hit_percent")
        if cell.is_baseline and shares:
            hits.append((arm_link(cell), numerals.mean_of(shares)))
    return hits


def _host_memory(cells: Sequence[ReportedCell]) -> Iterator[str]:
    """Yield the size of each tier by the model's geometry, and the largest resident memory of its servers."""
    for cell, held in _memory(cells):
        most = f"; at most {held} GiB resident in the server's processes, with shared memory counted once in each"
        if size := cell.tier_size:
            yield f"{size} for the tier{most if held != numerals.MISSING else ''}"


def _memory(cells: Sequence[ReportedCell]) -> Iterator[tuple[ReportedCell, str]]:
    """Yield a cell with a tier of each size, and the largest resident memory of the servers with that size, GiB."""
    by_blocks: dict[int, list[ReportedCell]] = {}
    for cell in cells:
        if cell.cpu_blocks and cell.runs:
            by_blocks.setdefault(cell.cpu_blocks, []).append(cell)
    for blocks in sorted(by_blocks):
        resident = [or_nan(cell.resident_gib) for cell in by_blocks[blocks]]
        most = max(filter(math.isfinite, resident), default=math.nan)
        yield by_blocks[blocks][0], numerals.significant(most, 3)
