"""The shares that caches of a campaign's sizes, and of others, would serve; the gain, predicted from stored runs."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from kveval.analysis.benefit import Basis, Benefit, MeasuredLevel, basis_of, tier_copies
from kveval.analysis.cell_benefits import RUNS_READ, measured_levels, tier_benefits
from kveval.analysis.levels.tables import run_tables
from kveval.campaign.config import Config
from kveval.curve.cells import CellCurves, block_count, curves_of
from kveval.store.run_file import Cell, Run
from kveval.workflow.planning.costs import device_tokens, reported_device
from kveval.workflow.planning.stored import StoreIndex, facts_of


@dataclass(frozen=True)
class LevelCurves:
    """The cells of a model at a level, each with its curves, in the order of the matrix; none if it was left out."""

    model: str
    level: int
    cells: dict[Cell, CellCurves]

    @property
    def widest(self) -> CellCurves:
        """The curves of the first cell with a tier, else of the device alone; they cover every tier size."""
        return next(
            (one for one in self.cells.values() if one.tier_tokens),
            next(iter(self.cells.values())),
        )


@dataclass(frozen=True)
class LevelBenefits:
    """The gain from the tiers of a model at a level.

    Attributes:
        basis: the measurement without a tier, from which the gain is predicted.
        cells: cell with a tier -> predicted gain.
        measured: cell with a tier -> what was measured, for those in the store.
        knee: the size in tokens with 90 % of the gain of any size, and its gain; None if no size has a gain.
    """

    basis: Basis
    cells: Mapping[Cell, Benefit]
    measured: Mapping[Cell, Sequence[MeasuredLevel]]
    knee: tuple[int, Benefit] | None


def level_curves(
    config: Config, store: StoreIndex, most_blocks: float = math.inf
) -> Iterator[LevelCurves]:
    """Yield the curves of every model and level; the sizes of devices as configured, or as servers reported them.

    Levels beyond a total of `most_blocks` blocks of requests come without their cells; with that limit, models without
    a tier or without a known size of the device are left out.
    """
    limited, counted = most_blocks < math.inf, []
    for model in dict.fromkeys(cell.model for cell in config.cells):
        specifications = {
            cell: config.specification(cell)
            for cell in config.cells
            if cell.model == model
        }
        reported = (reported_device(one, store) for one in specifications.values())
        device = next(filter(None, map(device_tokens, reported)), None)
        first = next(iter(specifications.values()))
        held = first.budget.device_tokens or device
        if limited and (
            held is None or not any(cell.cpu_blocks for cell in specifications)
        ):
            continue
        for level in first.workload.given_levels:
            # Models alike in these share one computation; counting the blocks of a long trace takes time.
            computation = (first.workload, level, first.block_size, held)
            if limited and computation not in counted:
                blocks = block_count(first.workload, level, first.block_size)
                if blocks > most_blocks:
                    yield LevelCurves(model, level, {})
                    continue
                most_blocks -= blocks
                counted.append(computation)
            found = {
                cell: curves_of(one, level, reported_tokens=device)
                for cell, one in specifications.items()
            }
            yield LevelCurves(model, level, found)


def level_benefits(
    config: Config, all_curves: Sequence[LevelCurves], store: StoreIndex
) -> list[LevelBenefits | None]:
    """Return the predicted gains, for each of the curves; None where no cell without a tier was measured."""
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
                measured[cell] = _measured(_stored_runs(config, cell, store))
        specifications = {cell: config.specification(cell) for cell in alike}
        cells, knee = tier_benefits(
            basis,
            curves.level,
            {cell: curves.cells[cell] for cell in alike},
            specifications,
        )
        seen = {
            cell: levels[curves.level]
            for cell in cells
            if curves.level in (levels := measured[cell])
        }
        found.append(LevelBenefits(basis, cells, seen, knee))
    return found


def _stored_basis(config: Config, cell: Cell, store: StoreIndex) -> Basis | None:
    """Return the basis from the stored runs of a cell without a tier; None if the store has none of its levels."""
    specification = config.specification(cell)
    runs = _stored_runs(config, cell, store)
    levels = _measured(runs)
    reported = (tokens for facts, _ in runs if (tokens := device_tokens(facts)))
    held = specification.budget.device_tokens or next(reported, None)
    if not levels or held is None:
        return None
    machine = runs[0][0].hardware.get("fingerprint")
    *_, of_model = store.like(specification.to_json())
    copies = tier_copies(
        [facts for facts in of_model if facts.hardware.get("fingerprint") == machine]
    )
    return basis_of(specification, held, levels, copies)


def _stored_runs(
    config: Config, cell: Cell, store: StoreIndex
) -> list[tuple[Run, Path]]:
    """Return the first stored runs of a cell with their folders, at most RUNS_READ, all of one machine."""
    found: list[tuple[Run, Path]] = []
    for _, places in sorted(store.get(config.measurement_id(cell)).places.items()):
        read = (
            (facts, place) for place in places if (facts := facts_of(place)) is not None
        )
        machine = found[0][0].hardware.get("fingerprint") if found else None
        alike = (
            one
            for one in read
            if not found or one[0].hardware.get("fingerprint") == machine
        )
        found += [*itertools.islice(alike, 1)]
    return found[:RUNS_READ]


def _measured(runs: Sequence[tuple[Run, Path]]) -> dict[int, list[MeasuredLevel]]:
    """Read the reports of a cell's runs."""
    tables = [(facts.run, run_tables(place)) for facts, place in runs]
    if not tables:
        return {}
    numbered = ([each[part].assign(run=run) for run, each in tables] for part in (0, 1))
    levels, requests = (pd.concat(parts, ignore_index=True) for parts in numbered)
    return measured_levels(levels, requests)
