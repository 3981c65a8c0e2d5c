"""The files and the text of `snakemake curve`: the share of a load that caches of every size serve, and the gain."""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from kveval.analysis.benefit import Basis, Benefit, Interval, MeasuredLevel
from kveval.config.types import BLOCK_TOKENS
from kveval.load import levels as workloads
from kveval.report.figures.draw import write_alone
from kveval.report.figures.reuse import draw_curves
from kveval.spec.config import Config
from kveval.spec.sizing import gib
from kveval.spec.specification import Specification
from kveval.workflow.planning.benefit import LevelBenefits, level_benefits
from kveval.workflow.planning.curves import CurveRow, LevelCurves, curve_lines, curve_panel, curve_rows, level_curves
from kveval.workflow.planning.stored import StoreIndex

_PREDICTED = tuple(f"{name}{end}" for name in ("throughput_percent", "ttft_ms_p50") for end in ("", "_low", "_high"))


def write_curve_files(config: Config, store: Path, table: Path, figure: Path) -> str:
    """Write a row for each cell and level into `table` (CSV) and the curves into `figure`; return what to print."""
    stored = StoreIndex.read(store)
    curves = list(level_curves(config, stored))
    bought = level_benefits(config, curves, stored)
    with table.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(CurveRow._fields + _PREDICTED)
        for one, benefits in zip(curves, bought, strict=True):
            for cell, row in zip(one.cells, curve_rows(config, one), strict=True):
                found = None if benefits is None else benefits.cells.get(cell)
                predicted = (
                    ("",) * len(_PREDICTED) if found is None else (*found.throughput_percent, *found.ttft_ms_p50)
                )
                writer.writerow((*row, *predicted))
    panels = [curve_panel(config, one) for one in curves]
    write_alone("What does a tier of each size serve?", lambda: draw_curves(panels), figure)
    notes = [benefit_lines(config, *both) for both in zip(curves, bought, strict=True)]
    return "\n".join([*curve_lines(config, curves, notes), "", f"Table: {table}", f"Figure: {figure}", ""])


def benefit_lines(config: Config, curves: LevelCurves, bought: LevelBenefits | None) -> Iterator[str]:
    """Yield the gain from the tiers at a level; without a measurement to predict it from, how to make one."""
    tiers = [cell for cell, one in curves.cells.items() if one.tier_tokens]
    if not tiers:
        return
    if bought is None:
        base = config.last_baseline(tiers[0]) or tiers[0]
        wanted = f"{config.campaign.results}/{base.path}/peak.csv"
        yield f"  To predict the gain, measure a run without a tier: snakemake --cores 4 {wanted}"
        return
    alone = bought.basis.levels[curves.level]
    throughput, mean, median = _figures(alone)
    yield f"  The gain, predicted from {bought.basis.cell.path} as measured (in brackets: 90 % of the simulations):"
    figures = f"{throughput:,.1f} tok/s, TTFT p50 {median:,.0f} ms, mean {mean:,.0f} ms"
    yield f"  {bought.basis.cell.scenario:<28} {figures}"
    for cell, benefit in bought.cells.items():
        seen = bought.measured.get(cell)
        measured = f"; measured {_against(seen, alone)}" if seen else ""
        yield f"  {f'{cell.scenario}/{cell.cpu_blocks}':<28} {_predicted(benefit)}{measured}"
    if bought.knee is not None:
        yield from _answer(config, curves, bought, *bought.knee)
    yield f"  Based on {'; '.join(_grounds(bought.basis, config.specification(tiers[0])))}."


def _answer(config: Config, curves: LevelCurves, bought: LevelBenefits, tokens: int, benefit: Benefit) -> Iterator[str]:
    workload, model = config.workload.specification, bought.basis.specification.model
    blocks = -(-tokens // BLOCK_TOKENS)
    at = f"{curves.level} {workloads.level_unit(workload)}"
    size = gib(blocks * BLOCK_TOKENS * model.kv_bytes_per_token)
    yield f"  {size:.2f} GiB ({blocks:,} blocks) of host memory serve 90 % of what a tier of any size could, at {at}:"
    yield f"  predicted {_predicted(benefit)}."


def _predicted(benefit: Benefit) -> str:
    gain, ttft = benefit.throughput_percent, benefit.ttft_ms_p50
    text = f"throughput {_ranged(gain, '+.0f')} %, TTFT p50 {_ranged(ttft, ',.0f')} ms, "
    text += f"mean {_ranged(benefit.ttft_ms_mean, ',.0f')} ms"
    return text + (
        ", and requests arrive faster than they are answered"
        if benefit.saturates
        else f", server busy {100 * benefit.busy:.0f} %"
    )


def _against(levels: Sequence[MeasuredLevel], alone: Sequence[MeasuredLevel]) -> str:
    throughput, mean, median = _figures(levels)
    gain = 100 * (throughput / _figures(alone)[0] - 1)
    return f"{gain:+.0f} %, {median:,.0f} ms, {mean:,.0f} ms"


def _figures(levels: Sequence[MeasuredLevel]) -> tuple[float, float, float]:
    found = np.mean([(one.throughput_tok_s, one.ttft_ms_mean, one.ttft_ms_p50) for one in levels], axis=0)
    return float(found[0]), float(found[1]), float(found[2])


def _ranged(interval: Interval, form: str) -> str:
    return f"{interval.value:{form}} ({interval.low:{form}} to {interval.high:{form}})"


def _grounds(basis: Basis, tier: Specification) -> Iterator[str]:
    speed, runs = basis.fitted.best, basis.runs
    prompt = round(np.mean([seen.prompt_tokens for levels in basis.levels.values() for seen in levels]))
    named = f"run {runs[0]}" if len(runs) == 1 else f"runs {runs[0]} to {runs[-1]}"
    prefill_tok_s = prompt / speed.prefill_s(0, prompt)
    yield (
        f"the server's speed in {basis.cell.path}, {named}: {prefill_tok_s:,.0f} tok/s for prompts of {prompt:,},"
        f" {1000 * (speed.batch_s + speed.answer_s):.1f} ms per token of a single answer,"
        f" {1000 * speed.request_s:.0f} ms a request before it is scheduled"
    )
    copies = basis.copies
    if copies.load_bytes_s:
        low, high = min(copies.load_bytes_s) / 1e9, max(copies.load_bytes_s) / 1e9
        yield f"copies to the device at {low:.1f} to {high:.1f} GB/s, as in {', '.join(copies.cells)}"
    else:
        yield "no time for copies, because no tier of this model was measured on this machine"
    if "lmcache" in tier.versions and copies.load_bytes_s:
        yield "the assumption that LMCache copies as fast as that tier"
