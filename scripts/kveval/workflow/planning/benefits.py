"""The gain from a campaign's tiers, predicted from stored runs without a tier."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from kveval.analysis.benefit import Basis, Benefit, MeasuredLevel, basis_of, tier_copies
from kveval.analysis.cell_benefits import RUNS_READ, measured_levels, tier_benefits
from kveval.analysis.levels.tables import run_tables
from kveval.campaign.cell import Cell
from kveval.configuration.config import Config
from kveval.store.run_file import Run
from kveval.workflow.planning.costs import device_tokens
from kveval.workflow.planning.curves import LevelCurves
from kveval.workflow.planning.stored import StoreIndex, facts_of


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
    levels = pd.concat(
        [levels.assign(run=run) for run, (levels, _) in tables], ignore_index=True
    )
    requests = pd.concat(
        [requests.assign(run=run) for run, (_, requests) in tables], ignore_index=True
    )
    return measured_levels(levels, requests)
