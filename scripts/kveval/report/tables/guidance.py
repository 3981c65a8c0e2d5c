"""Guidance for deployments, made only from verdicts and computed sizes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from kveval.analysis.cells import CellKey, blocks_label
from kveval.config.types import BLOCK_TOKENS
from kveval.report.data import numbers as numerals
from kveval.report.data.campaign import Measured, ReportPlan, Table, cell_label
from kveval.report.data.run_facts import tiers_of
from kveval.report.tables.results import strategy_table
from kveval.spec.sizing import GIB, blocks_for_tokens

# Between these hit shares of the device's prefix cache, per cent, the hit share alone does not decide.
LOW_HITS, HIGH_HITS = 50, 70
HITS = "its prompt tokens found on the device, %"


@dataclass(frozen=True)
class Reuse:
    """The working set of a model's workload at the common level, and the capacity of the device's cache; tokens."""

    level: int
    working: int
    device: float


def guidance_table(plan: ReportPlan, measured: Measured) -> Table:
    """Return answers by model: which arm, how large a tier, what the hit share says, how much host memory."""
    strategies = {row[0]: row for row in strategy_table(plan, measured).rows}
    rows = []
    for model in plan.models_by_size:
        cells = measured.with_peak(plan.cells_of(model))
        if not cells:
            continue
        found = strategies.get(model)
        if found:
            better = f": {found[1]}" if found[1] else ""
            rows.append([model, "which arm", f"{found[-1]}{better}"])
        rows += [[model, "how large a tier", text] for text in _tier_sizes(measured, cells)]
        rows += [[model, "prefix hits on the device", text] for text in _hit_rates(plan, measured, cells)]
        rows += [[model, "host memory", text] for text in _host_memory(measured, cells)]
    return Table(["model", "question", "what these measurements say"], rows)


def guidance_numbers(plan: ReportPlan, measured: Measured) -> Table:
    """Return the numbers behind the guidance, a row per model and tier size."""
    header = ["model", measured.unit.heading, "distinct prefixes, tokens", f"the same in blocks of {BLOCK_TOKENS}"]
    header += ["device cache, tokens", "baseline", HITS, "tier, blocks"]
    header += ["tier, tokens", "tier", "resident in the server's processes, at most, GiB"]
    rows = []
    for model in plan.models_by_size:
        cells = measured.with_peak(plan.cells_of(model))
        reuse = _reuse(measured, cells)
        facts = [""] * 4
        if reuse is not None:
            blocks = f"{blocks_for_tokens(reuse.working):,}"
            facts = [f"{reuse.level}", f"{reuse.working:,}", blocks, numerals.rounded(reuse.device, 0)]
        hits = list(_hits(plan, measured, cells))
        baselines = ["; ".join(name for name, *_ in hits), "; ".join(shown for _, shown, *_ in hits)]
        sizes = [
            [blocks_label(size), numerals.rounded(tokens, 0), tier, held]
            for size, tokens, tier, held in _memory(measured, cells)
        ]
        rows += [[model, *facts, *baselines, *size] for size in sizes or ([[""] * 4] if reuse or hits else [])]
    return Table(header, rows, frozenset({1, 2, 3, 4, 6, 7, 8, 9, 10}))


def _reuse(measured: Measured, cells: list[CellKey]) -> Reuse | None:
    level = measured.common_level(cells[0][0]) if cells else None
    runs = [run for cell in cells for run in measured.runs_of(cell)[:1]]
    if not runs or level is None:
        return None
    tiers = tiers_of(runs[0])
    return Reuse(level, tiers.working_set.get(level, 0), tiers.device)


def _tier_sizes(measured: Measured, cells: list[CellKey]) -> Iterator[str]:
    """Yield the tier size that holds the working set at the common level, and which measured sizes do."""
    reuse = _reuse(measured, cells)
    if reuse is None:
        return
    if not reuse.working:
        yield "the workload shares no prefixes: nothing that a tier could serve again"
        return
    needed = f"the workload's prefixes have {reuse.working:,} tokens ({blocks_for_tokens(reuse.working):,} blocks)"
    if reuse.working <= reuse.device:
        yield f"{needed}; the device's cache holds {reuse.device:,.0f}, all of them, so a tier has nothing to add"
        return
    if math.isfinite(reuse.device):
        needed += f"; the device's cache holds {reuse.device:,.0f} of them"
    sizes = {size: tokens for size, tokens, *_ in _memory(measured, cells)}
    holding = [blocks_label(size) for size, tokens in sizes.items() if tokens >= reuse.working]
    short = [blocks_label(size) for size, tokens in sizes.items() if tokens < reuse.working]
    below = [blocks_label(size) for size, tokens in sizes.items() if tokens < reuse.device]
    parts = [f"large enough: {', '.join(holding)}"] if holding else []
    parts += [f"too small: {', '.join(short)}"] if short else []
    parts += [f"smaller than the device's cache, so mostly copies of it: {', '.join(below)}"] if below else []
    yield "; ".join([needed, *parts])


def _hit_rates(plan: ReportPlan, measured: Measured, cells: list[CellKey]) -> Iterator[str]:
    """Yield the baseline's hit share at the common level, and what it leaves for a tier."""
    for name, shown, mean, level in _hits(plan, measured, cells):
        if mean < LOW_HITS:
            says = f"below {LOW_HITS} %: more than half was computed, which a large enough tier could save in part"
        elif mean > HIGH_HITS:
            says = f"above {HIGH_HITS} %: the device serves most of the reuse itself and leaves little for a tier"
        else:
            says = f"between {LOW_HITS} % and {HIGH_HITS} %: not decisive by itself"
        yield f"{name}, at {measured.unit.at(level)}: {shown} % of prompt tokens; {says}"


def _hits(plan: ReportPlan, measured: Measured, cells: list[CellKey]) -> Iterator[tuple[str, str, float, int]]:
    """Yield baselines with their hit share on the device at the common level: name, % as text and number, level."""
    level = measured.common_level(cells[0][0]) if cells else None
    for cell in cells:
        if cell[1] not in plan.baselines - plan.compared_baselines or level is None:
            continue
        at = measured.levels_of(cell, level)
        if "prefix_cache_hit_percent" not in at or at["prefix_cache_hit_percent"].isna().all():
            continue
        values = at["prefix_cache_hit_percent"]
        yield cell_label(cell), numerals.mean_of(list(values)), float(values.mean()), level


def _host_memory(measured: Measured, cells: list[CellKey]) -> Iterator[str]:
    """Yield the size of each tier by the model's geometry, and the largest resident memory of its servers."""
    for size, _, tier, held in _memory(measured, cells):
        if tier == numerals.MISSING:
            continue
        text = f"{blocks_label(size)} blocks: {tier} for the tier"
        if held != numerals.MISSING:
            text += f"; at most {held} GiB resident in the server's processes, with shared memory counted once in each"
        yield text


def _memory(measured: Measured, cells: list[CellKey]) -> Iterator[tuple[int, float, str, str]]:
    """Yield each tier size with its tokens, its size as text, and the largest resident memory of its servers, GiB."""
    for size in sorted({cell[2] for cell in cells if cell[2]}):
        having = [cell for cell in cells if cell[2] == size and measured.runs_of(cell)]
        if not having:
            continue
        run = measured.runs_of(having[0])[0]
        bytes_ = run.budget.get("tier_bytes", run.budget.get("requested_bytes"))
        tier = numerals.MISSING if bytes_ is None else _size(bytes_)
        rows = pd.concat([measured.levels_of(cell) for cell in having])
        resident = rows["server_rss_gib"].max() if "server_rss_gib" in rows else math.nan
        yield size, tiers_of(run).cpu, tier, numerals.significant(float(resident), 3)


def _size(bytes_: float) -> str:
    """Bytes in GiB, or in MiB below 1 GiB."""
    return f"{bytes_ / GIB:,.4g} GiB" if bytes_ >= GIB else f"{bytes_ / 2**20:,.3g} MiB"
