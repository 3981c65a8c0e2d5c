"""The report's tables of caches: sizes of blocks, what the tiers hold, whether they were used."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kveval.analysis.cells import blocks_label
from kveval.config.types import BLOCK_TOKENS
from kveval.load.workload import workload_of
from kveval.report.data import numbers as numerals
from kveval.report.data.campaign import Measured, ReportPlan, Table, cell_label
from kveval.report.data.run_facts import working_set
from kveval.spec.sizing import GIB
from kveval.store.run_file import Run

GB = 1e9


def blocks_table(plan: ReportPlan, measured: Measured) -> Table:
    """Return the bytes of a token, a block and each CPU tier, for each model as named and, if different, as served."""
    sizes = sorted({cell[2] for cell in plan.cells if cell[2]})
    header = ["model", "KV cache per token, KiB", f"block of {BLOCK_TOKENS} tokens, MB", "MiB"]
    header += [f"{blocks_label(size)} blocks, {unit}" for size in sizes for unit in ("GB", "GiB")]
    rows = []
    for model in plan.models_by_size:
        weights = {model: plan.models.get(model, {}).get("kv_bytes_per_token")}
        served = next((run.kv_bytes_per_token for run in measured.runs if run.cell.model == model), None)
        if served is not None and served != weights[model]:
            weights[f"{model}, as served (miniature)"] = served
        rows += [_weights(name, bytes_, sizes) for name, bytes_ in weights.items() if bytes_]
    return Table(header, rows, frozenset(range(1, 4 + 2 * len(sizes))))


def _weights(name: str, per_token: int, sizes: Sequence[int]) -> list[str]:
    block = BLOCK_TOKENS * per_token
    row = [name, f"{per_token / 2**10:,.4g}", f"{block / 1e6:,.4g}", f"{block / 2**20:,.4g}"]
    return row + [f"{size * block / unit:,.4g}" for size in sizes for unit in (GB, GIB)]


def budget_table(plan: ReportPlan, measured: Measured) -> Table:
    """Return the tokens that each cell's CPU tier holds, beside those of the device's cache and of all prefixes."""
    header = [
        "model",
        "arm",
        "CPU tier, blocks",
        "tokens",
        "GiB",
        "device cache, tokens",
        "distinct prefixes, tokens",
        "note",
    ]
    rows = []
    for cell in plan.ordered:
        runs = measured.runs_of(cell)
        if not runs:
            continue
        budget = runs[0].budget
        tier = float(budget.get("tokens", math.nan)) if cell[2] else 0.0
        device = float(budget.get("device_tokens") or math.nan)
        bytes_ = budget.get("tier_bytes", budget.get("requested_bytes"))
        working = sorted(set(working_set(workload_of(runs[0].workload)).values())) or [0]
        working = [working[0], working[-1]] if len(working) > 1 else working
        rows.append(
            [
                *(cell[0], cell_label(cell), f"{cell[2]:,}", numerals.rounded(tier, 0)),
                f"{bytes_ / GIB:.4g}" if bytes_ is not None else numerals.MISSING,
                numerals.rounded(device, 0),
                " to ".join(f"{size:,}" for size in working),
                "; ".join([*_held(budget, bytes_), *_budget_notes(tier, device, working)]),
            ]
        )
    return Table(header, rows, frozenset({2, 3, 4, 5, 6}))


def _held(budget: Mapping[str, Any], asked: int | None) -> Iterator[str]:
    """Yield a note if a tier may take more host memory than its size, because pinned tensors are rounded up."""
    held = budget.get("held_bytes")
    if held and asked and held > asked:
        yield f"takes up to {held / GIB:.4g} GiB of host memory: pinned tensors are rounded up to powers of two"


def _budget_notes(tier: float, device: float, working: Sequence[int]) -> Iterator[str]:
    if len(working) > 1:
        yield "the working set grows with the level"
    if max(working) <= device:
        yield "the prefixes fit the device: a tier has nothing to add"
    elif tier:
        if tier < device:
            yield "the tier is smaller than the device's cache"
        if tier < max(working):
            yield "the tier does not hold all prefixes"


def activity_table(plan: ReportPlan, measured: Measured) -> Table:
    """Return the increase per level of the counters that prove an arm active, over levels and runs."""
    header = [
        "model",
        "arm",
        "counter",
        "needed per level",
        "increase per level, least to most",
        "active",
        f"not {measured.unit.heading}",
    ]
    rows = []
    for cell in plan.ordered:
        runs = measured.runs_of(cell)
        for entry in plan.scenarios[cell[1]].get("exercised", ()):
            levels = sorted({level.level for run in runs for level in run.levels})
            moved = {level: list(_movements(runs, level, entry["counter"])) for level in levels}
            needed = entry.get("at_least", 1)
            still = [level for level, values in moved.items() if any(value < needed for value in values)]
            everything = [value for values in moved.values() for value in values]
            if everything:
                active = "**no**" if max(everything) < needed else "in part" if still else "yes"
                rows.append(
                    [
                        *(cell[0], cell_label(cell), f"`{entry['counter']}`"),
                        f"{needed:g} {entry.get('unit', '')}".strip(),
                        f"{min(everything):,.0f} to {max(everything):,.0f}",
                        *(active, ", ".join(map(str, still))),
                    ]
                )
    return Table(header, rows, frozenset({4}))


def _movements(runs: Sequence[Run], level: int, counter: str) -> Iterator[float]:
    for run in runs:
        for entry in run.levels:
            if entry.level == level and entry.status == "ok":
                yield entry.counters[counter].delta if counter in entry.counters else 0.0
