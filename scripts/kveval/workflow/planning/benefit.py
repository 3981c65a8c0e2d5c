"""The gain from the tiers of a campaign, predicted from what the store has of its cells without one."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from kveval.analysis.benefit import Basis, Benefit, MeasuredLevel, basis_of, tier_copies
from kveval.analysis.levels.tables import run_tables
from kveval.config.campaign import Cell
from kveval.spec.config import Config
from kveval.spec.curve.of_cells import CellCurves, serving_of
from kveval.store.run_file import Run
from kveval.workflow.planning.costs import device_tokens
from kveval.workflow.planning.curves import LevelCurves
from kveval.workflow.planning.stored import StoreIndex

# Of a cell; each takes a second and more to read.
_RUNS_READ = 3


@dataclass(frozen=True)
class LevelBenefits:
    """The gain from the tiers of a model at a level.

    Attributes:
        basis: what was measured without one.
        cells: the tiers that are asked for, predicted.
        measured: those of them that the store has.
        knee: the size in tokens that adds nine tenths of what any does, and what it buys; None where none adds any.
    """

    basis: Basis
    cells: Mapping[Cell, Benefit]
    measured: Mapping[Cell, Sequence[MeasuredLevel]]
    knee: tuple[int, Benefit] | None


class BenefitRow(NamedTuple):
    """A cell at a level: what a tier of its size is predicted to do; of a cell without one, or unknown, nothing."""

    throughput_percent: float | None = None
    throughput_percent_low: float | None = None
    throughput_percent_high: float | None = None
    ttft_ms_p50: float | None = None
    ttft_ms_p50_low: float | None = None
    ttft_ms_p50_high: float | None = None


def benefit_row(bought: LevelBenefits | None, cell: Cell) -> BenefitRow:
    """Return the predicted figures of a cell."""
    found = None if bought is None else bought.cells.get(cell)
    if found is None:
        return BenefitRow()
    gain, ttft = found.throughput_percent, found.ttft_ms_p50
    return BenefitRow(gain.value, gain.low, gain.high, ttft.value, ttft.low, ttft.high)


def level_benefits(config: Config, all_curves: Sequence[LevelCurves], store: StoreIndex) -> list[LevelBenefits | None]:
    """Return what tiers buy, for each of the curves; None where nothing was measured without a tier."""
    bases: dict[Cell, Basis | None] = {}
    measured: dict[Cell, dict[int, list[MeasuredLevel]]] = {}
    found: list[LevelBenefits | None] = []
    for curves in all_curves:
        tiers = [cell for cell, one in curves.cells.items() if one.tier_tokens]
        base = next((config.last_baseline(cell) for cell in tiers), None)
        if base is not None and base not in bases:
            bases[base] = _stored_basis(config, base, store)
        basis = None if base is None else bases[base]
        if basis is None or curves.level not in basis.levels:
            found.append(None)
            continue
        alike = [cell for cell in tiers if config.last_baseline(cell) == base]
        for cell in alike:
            if cell not in measured:
                measured[cell] = measured_levels(_stored_runs(config, cell, store))
        found.append(_level_benefits(config, curves, basis, alike, measured))
    return found


def _level_benefits(
    config: Config,
    curves: LevelCurves,
    basis: Basis,
    tiers: Sequence[Cell],
    measured: Mapping[Cell, Mapping[int, Sequence[MeasuredLevel]]],
) -> LevelBenefits:
    knee = curves.cells[tiers[0]].tier
    size = None if knee is None else knee.size_for()
    bought: dict[Cell | None, Benefit] = {}
    for serving in dict.fromkeys(serving_of(config.specification(cell)) for cell in tiers):
        alike = [cell for cell in tiers if serving_of(config.specification(cell)) == serving]
        sizes: dict[Cell | None, tuple[float, float]] = {cell: _in_use(curves.cells[cell]) for cell in alike}
        if size is not None and alike[0] == tiers[0]:
            sizes[None] = size, size
        found = basis.benefits(config.specification(alike[0]), curves.level, [*sizes.values()])
        bought |= zip(sizes, found, strict=True)
    cells = {cell: bought[cell] for cell in tiers}
    seen = {cell: levels[curves.level] for cell, levels in measured.items() if cell in cells and curves.level in levels}
    return LevelBenefits(basis, cells, seen, None if size is None else (size, bought[None]))


def _in_use(curves: CellCurves) -> tuple[float, float]:
    low, high = (part * curves.tier_tokens for part in curves.usable)
    return low, high


def _stored_basis(config: Config, cell: Cell, store: StoreIndex) -> Basis | None:
    """Return what follows from a cell without a tier; None where the store has none of its levels."""
    specification = config.specification(cell)
    runs = _stored_runs(config, cell, store)
    levels = measured_levels(runs)
    reported = (tokens for facts, _ in runs if (tokens := device_tokens(facts)))
    held = specification.budget.device_tokens or next(reported, None)
    if not levels or held is None:
        return None
    machine = runs[0][0].hardware.get("fingerprint")
    *_, of_model = store.like(specification.to_json())
    copies = tier_copies(facts for facts in of_model if facts.hardware.get("fingerprint") == machine)
    return basis_of(specification, held, levels, copies)


def _stored_runs(config: Config, cell: Cell, store: StoreIndex) -> list[tuple[Run, Path]]:
    """The first runs of a cell that the store has, of one machine."""
    shelf = store.get(config.measurement_id(cell))
    found: list[tuple[Run, Path]] = []
    for number, places in sorted(shelf.places.items()):
        for facts, place in zip(shelf.runs(number), places, strict=False):
            if not found or facts.hardware.get("fingerprint") == found[0][0].hardware.get("fingerprint"):
                found.append((facts, place))
                break
    return found[:_RUNS_READ]


def measured_levels(runs: Sequence[tuple[Run, Path]]) -> dict[int, list[MeasuredLevel]]:
    """Read the reports of runs: what each level served, of the levels in which answers were completed."""
    found: dict[int, list[MeasuredLevel]] = {}
    for facts, place in runs:
        levels, requests = run_tables(place)
        failed = levels["throughput_tok_s"].isna()
        for row in levels[~failed].to_dict("records"):
            one = _measured_level(facts.run, row, requests[requests["level"] == row["level"]])
            if one is not None:
                found.setdefault(int(row["level"]), []).append(one)
    return found


def _measured_level(run: int, row: Mapping[Hashable, Any], requests: pd.DataFrame) -> MeasuredLevel | None:
    if not row["throughput_tok_s"] > 0 or not row["requests_completed"] > 0:
        return None
    inside = requests["first_token"].between(row["window_start"], row["window_end"])
    start = float(row["warmup_s"])
    return MeasuredLevel(
        run=run,
        window=(start, start + float(row["duration_s"])),
        requests=len(requests),
        prompt_tokens=float(row["request_prompt_tokens"]),
        ttft_ms=requests.loc[inside, "ttft_ms"].to_numpy(float),
        itl_ms=float(row["itl_ms_mean"]),
        **{name: float(row[name]) for name in ("throughput_tok_s", "ttft_ms_mean", "ttft_ms_p50")},
    )
