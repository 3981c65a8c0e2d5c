"""Guidance for deployments, made only from verdicts and computed sizes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import pandas as pd

from kveval.campaign.cell import Cell
from kveval.campaign.sizing import blocks_for_tokens, size_for_tokens
from kveval.campaign.types import BLOCK_TOKENS
from kveval.report.data import numbers as numerals
from kveval.report.data.campaign import Measured, ReportPlan, Table
from kveval.report.data.run_facts import tier_size, tier_size_text, tiers_of
from kveval.report.result.model import CampaignResult
from kveval.report.tables.results import strategy_table
from kveval.store.run_file import Run

# Between these hit shares of the device's prefix cache, per cent, the hit share alone does not decide.
LOW_HITS, HIGH_HITS = 50, 70
HITS = "its prompt tokens found on the device, %"


def guidance_table(
    plan: ReportPlan, measured: Measured, result: CampaignResult
) -> Table:
    """Return answers by model: which arm, how large a tier, what the hit share says, how much host memory."""
    strategies = {
        row[0]: ": ".join(filter(None, (row[-1], row[1])))
        for row in strategy_table(result).rows
    }
    rows = []
    for model in plan.models_by_size:
        cells = measured.cells_with_peak(plan.cells_of(model))
        answers = {
            "which arm": [strategies[model]] if cells and model in strategies else [],
            "how large a tier": _tier_sizes(measured, cells),
            "prefix hits on the device": _hit_rates(plan, measured, cells),
            "host memory": _host_memory(measured, cells),
        }
        rows += [
            [model, question, text]
            for question, texts in answers.items()
            for text in texts
        ]
    return Table(["model", "question", "what these measurements say"], rows)


def guidance_numbers(plan: ReportPlan, measured: Measured) -> Table:
    """Return the numbers behind the guidance, a row per model and tier size."""
    header = [
        "model",
        measured.level_unit.heading,
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
    for model in plan.models_by_size:
        cells = measured.cells_with_peak(plan.cells_of(model))
        facts = [""] * 4
        if reuse := _reuse(measured, cells):
            level, working, device = reuse
            facts = [
                f"{level}",
                numerals.count(working),
                _size_for(measured, cells, working),
                numerals.rounded(device, 0),
            ]
        hits = _hits(plan, measured, cells)
        baselines = [
            "; ".join(name for name, _ in hits),
            "; ".join(share for _, share in hits),
        ]
        sizes = [
            [tier_size_text(run), numerals.rounded(tiers_of(run).cpu, 0), held]
            for run, held in _memory(measured, cells)
        ]
        rows += [
            [model, *facts, *baselines, *size]
            for size in sizes or ([[""] * 3] if reuse or hits else [])
        ]
    return Table(header, rows, frozenset({1, 2, 3, 4, 6, 7, 8, 9}))


def _reuse(measured: Measured, cells: Sequence[Cell]) -> tuple[int, int, float] | None:
    """The common level, and the tokens of the working set there and of the device's cache."""
    level = measured.common_level(cells[0].model) if cells else None
    run = next((run for cell in cells for run in measured.runs_of(cell)), None)
    if run is None or level is None:
        return None
    tiers = tiers_of(run)
    return level, tiers.working_set.get(level, 0), tiers.device


def _tier_sizes(measured: Measured, cells: Sequence[Cell]) -> Iterator[str]:
    """Yield the tier size that holds the working set at the common level, and which measured sizes do."""
    _, working, device = _reuse(measured, cells) or (0, -1, math.nan)
    needed = f"the workload's prefixes have {working:,} tokens, {_size_for(measured, cells, working)}"
    if working == 0:
        yield "the workload shares no prefixes: nothing that a tier could serve again"
    elif 0 < working <= device:
        yield f"{needed}; the device's cache holds {device:,.0f}, all of them, so a tier has nothing to add"
    elif working > 0:
        sizes = {
            tier_size_text(run): tiers_of(run).cpu
            for run, _ in _memory(measured, cells)
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


def _size_for(measured: Measured, cells: Sequence[Cell], tokens: int) -> str:
    """The size of a tier that holds `tokens` of a model; in blocks where its bytes are not known."""
    runs = (run for cell in cells for run in measured.runs_of(cell))
    known = next(filter(None, map(tier_size, runs)), None)
    if known is None:
        return f"{blocks_for_tokens(tokens):,} blocks"
    per_token = known.size_bytes // (known.cpu_blocks * BLOCK_TOKENS)
    return str(size_for_tokens(tokens, per_token))


def _hit_rates(
    plan: ReportPlan, measured: Measured, cells: Sequence[Cell]
) -> Iterator[str]:
    """Yield the baselines' hit shares at the common level, and what they leave for a tier."""
    for name, share in _hits(plan, measured, cells):
        if share.number < LOW_HITS:
            says = f"below {LOW_HITS} %: more than half was computed, which a large enough tier could save in part"
        elif share.number > HIGH_HITS:
            says = f"above {HIGH_HITS} %: the device serves most of the reuse itself and leaves little for a tier"
        else:
            says = f"between {LOW_HITS} % and {HIGH_HITS} %: not decisive by itself"
        at = measured.level_unit.label(measured.common_level(cells[0].model))
        yield f"{name}, at {at}: {share} % of prompt tokens; {says}"


def _hits(
    plan: ReportPlan, measured: Measured, cells: Sequence[Cell]
) -> list[tuple[str, numerals.NumberText]]:
    """The baselines with their hit share on the device at the common level, %."""
    hits = []
    for cell in (
        cells if cells and measured.common_level(cells[0].model) is not None else ()
    ):
        at = measured.levels_of(cell, measured.common_level(cell.model)).get(
            "prefix_cache_hit_percent", pd.Series()
        )
        if (
            cell.scenario in plan.baselines - plan.intermediate_baselines
            and at.notna().any()
        ):
            hits.append((cell.label, numerals.mean_of(list(at))))
    return hits


def _host_memory(measured: Measured, cells: Sequence[Cell]) -> Iterator[str]:
    """Yield the size of each tier by the model's geometry, and the largest resident memory of its servers."""
    for run, held in _memory(measured, cells):
        most = f"; at most {held} GiB resident in the server's processes, with shared memory counted once in each"
        if size := tier_size(run):
            yield f"{size} for the tier{most if held != numerals.MISSING else ''}"


def _memory(measured: Measured, cells: Sequence[Cell]) -> Iterator[tuple[Run, str]]:
    """Yield a run with a tier of each size, and the largest resident memory of the servers with that size, GiB."""
    for blocks in sorted({cell.cpu_blocks for cell in cells if cell.cpu_blocks}):
        having = [
            cell
            for cell in cells
            if cell.cpu_blocks == blocks and measured.runs_of(cell)
        ]
        if having:
            run = measured.runs_of(having[0])[0]
            rows = pd.concat([measured.levels_of(cell) for cell in having])
            resident = (
                rows["server_rss_gib"].max() if "server_rss_gib" in rows else math.nan
            )
            held = numerals.significant(float(resident), 3)
            yield run, held
