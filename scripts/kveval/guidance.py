"""What the measurements say to somebody who deploys: verdicts quoted, sizes computed, nothing beyond them."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pandas as pd

from kveval import numerals
from kveval.figure_data import CellKey, blocks_label, common_level
from kveval.report_data import Measured, Plan, Table, cell_label, rows_of
from kveval.run_facts import tiers_of
from kveval.sizing import BLOCK_TOKENS, GIB, blocks_for_tokens
from kveval.tables_results import cells_of, models_of, strategy_table

# Shares of prompt tokens found in the device's prefix cache between which a hit rate says little by itself, per cent.
LOW_HITS, HIGH_HITS = 50, 70


def guidance_table(plan: Plan, measured: Measured) -> Table:
    """Answers by model: which arm, how large a tier, what the hit rate says, how much host memory."""
    strategies = {row[0]: row for row in strategy_table(plan, measured).rows}
    rows = []
    for model in models_of(plan):
        cells = [cell for cell in cells_of(plan, model) if len(rows_of(measured.peaks, cell))]
        if not cells:
            continue
        found = strategies.get(model)
        if found:
            better = f" ({found[1]})" if found[1] else ""
            rows.append([model, "which arm", f"{found[-1]}{better}"])
        rows += [[model, "how large a tier", text] for text in _tier_sizes(measured, cells)]
        rows += [[model, "prefix hits on the device", text] for text in _hit_rate(plan, measured, cells)]
        rows += [[model, "host memory", text] for text in _host_memory(measured, cells)]
    return Table(["model", "question", "what these measurements say"], rows)


def _tier_sizes(measured: Measured, cells: list[CellKey]) -> Iterator[str]:
    """The tier that would hold the working set at the common level, and which of those measured do."""
    level = common_level(measured.comparison, measured.peaks, cells[0][0])
    tiers = {cell: tiers_of(measured.runs_of(cell)[0]) for cell in cells if measured.runs_of(cell)}
    if not tiers or level is None:
        return
    first = next(iter(tiers.values()))
    working = first.working_set.get(level, 0)
    if not working:
        yield "the workload shares no prefixes: nothing that a tier could serve again"
        return
    needed = f"{blocks_for_tokens(working):,} blocks of {BLOCK_TOKENS} tokens hold its {working:,} prefix tokens"
    if working <= first.device:
        yield f"{needed}; the device's cache of {first.device:,.0f} tokens does already, so a tier has nothing to add"
        return
    if math.isfinite(first.device):
        needed += f", the device's cache {first.device:,.0f} tokens"
    sizes = {cell[2]: tiers[cell].cpu for cell in tiers if cell[2]}
    holding = [blocks_label(size) for size, tokens in sorted(sizes.items()) if tokens >= working]
    short = [blocks_label(size) for size, tokens in sorted(sizes.items()) if tokens < working]
    parts = [f"holding it all: {', '.join(holding)}"] if holding else []
    parts += [f"too small for all of it: {', '.join(short)}"] if short else []
    yield "; ".join([needed, *parts])


def _hit_rate(plan: Plan, measured: Measured, cells: list[CellKey]) -> Iterator[str]:
    """The baseline's hit rate at the common level, and what it leaves for a tier."""
    level = common_level(measured.comparison, measured.peaks, cells[0][0])
    for cell in cells:
        if cell[1] not in plan.baselines:
            continue
        at = measured.levels_of(cell, level)
        if "prefix_cache_hit_percent" not in at or at["prefix_cache_hit_percent"].isna().all():
            continue
        mean = float(at["prefix_cache_hit_percent"].mean())
        if mean < LOW_HITS:
            says = f"below {LOW_HITS} %: most prompt tokens were computed anew, which a tier large enough could save"
        elif mean > HIGH_HITS:
            says = f"above {HIGH_HITS} %: the device serves most of the reuse itself, little is left for a tier"
        else:
            says = f"between {LOW_HITS} % and {HIGH_HITS} %: by itself it says little"
        shown = numerals.mean_of(list(at["prefix_cache_hit_percent"]))
        yield f"{cell_label(cell)}, at {level} concurrent: {shown} % of prompt tokens; {says}"


def _host_memory(measured: Measured, cells: list[CellKey]) -> Iterator[str]:
    """The bytes of each tier by the model's geometry, beside what the servers with it were seen to hold."""
    for size in sorted({cell[2] for cell in cells if cell[2]}):
        having = [cell for cell in cells if cell[2] == size and measured.runs_of(cell)]
        if not having:
            continue
        budget = measured.runs_of(having[0])[0].budget
        bytes_ = budget.get("tier_bytes", budget.get("requested_bytes"))
        if bytes_ is None:
            continue
        text = f"{blocks_label(size)} blocks: {bytes_ / GIB:,.4g} GiB for the tier"
        rows = pd.concat([measured.levels_of(cell) for cell in having])
        if "server_rss_gib" in rows and rows["server_rss_gib"].notna().any():
            held = numerals.significant(float(rows["server_rss_gib"].max()), 3)
            text += f"; at most {held} GiB resident in the server's processes, memory they share counted in each"
        yield text
