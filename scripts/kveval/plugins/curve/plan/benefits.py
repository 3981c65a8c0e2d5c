"""The gain from a campaign's tiers, predicted from stored runs without a tier."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from kveval.campaign.cell import Cell
from kveval.conditions.facts import described
from kveval.configuration.config import Config
from kveval.host.disturbance import DISTURBED_PERCENT
from kveval.plugins.curve.plan.curves import LevelCurves
from kveval.plugins.curve.predicted.benefit import (
    Basis,
    Benefit,
    MeasuredLevel,
    basis_of,
)
from kveval.plugins.curve.predicted.cell_benefits import (
    RUNS_READ,
    measured_levels,
    tier_benefits,
)
from kveval.plugins.curve.predicted.tier_copies import tier_copies
from kveval.store.run_file import Run
from kveval.tables.levels.rows import run_tables
from kveval.workflow.planning.costs import device_tokens
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


class StoredBenefits:
    """The gains that the stored runs of a campaign without a tier predict, each level's when it is asked for."""

    def __init__(self, config: Config, store: StoreIndex) -> None:
        self.config = config
        self.store = store
        self._predicted: dict[tuple[str, int], LevelBenefits | None] = {}
        self._bases: dict[Cell, Basis | None] = {}
        self._levels: dict[Cell, dict[int, list[MeasuredLevel]]] = {}

    def at(self, curves: LevelCurves) -> LevelBenefits | None:
        """Return the gains at the level of these curves; None where no cell without a tier was measured at it."""
        key = curves.model, curves.level
        if key not in self._predicted:
            self._predicted[key] = self._predict(curves)
        return self._predicted[key]

    def _predict(self, curves: LevelCurves) -> LevelBenefits | None:
        tiers = [cell for cell, one in curves.cells.items() if one.tier_tokens]
        base = next((self.config.last_baseline(cell) for cell in tiers), None)
        basis = None if base is None else self._basis(base)
        if basis is None or curves.level not in basis.levels:
            return None
        alike = [cell for cell in tiers if self.config.last_baseline(cell) == base]
        cells, knee = tier_benefits(
            basis,
            curves.level,
            {cell: curves.cells[cell] for cell in alike},
            {cell: self.config.specification(cell) for cell in alike},
        )
        seen = {
            cell: levels[curves.level]
            for cell in cells
            if curves.level in (levels := self._measured(cell))
        }
        return LevelBenefits(basis, cells, seen, knee)

    def _basis(self, cell: Cell) -> Basis | None:
        if cell not in self._bases:
            self._bases[cell] = _stored_basis(self.config, cell, self.store)
        return self._bases[cell]

    def _measured(self, cell: Cell) -> dict[int, list[MeasuredLevel]]:
        if cell not in self._levels:
            runs = _stored_runs(self.config, cell, self.store)
            self._levels[cell] = _measured(runs)
        return self._levels[cell]


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
        [
            described(facts)
            for facts in of_model
            if facts.hardware.get("fingerprint") == machine
        ]
    )
    return basis_of(specification, held, levels, copies, runs[0][0].hardware)


def _stored_runs(
    config: Config, cell: Cell, store: StoreIndex
) -> list[tuple[Run, Path]]:
    """Return the first stored runs of a cell with their folders, at most RUNS_READ, all of one machine, quiet ones first."""
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
    # What is read is not all, and disturbed runs show nothing.
    quiet_first = sorted(
        found, key=lambda one: one[0].others_percent > DISTURBED_PERCENT
    )
    return quiet_first[:RUNS_READ]


def _measured(runs: Sequence[tuple[Run, Path]]) -> dict[int, list[MeasuredLevel]]:
    """Read the reports of a cell's runs."""
    tables = [(facts.run, run_tables(described(facts), place)) for facts, place in runs]
    if not tables:
        return {}
    levels = pd.concat(
        [levels.assign(run=run) for run, (levels, _) in tables], ignore_index=True
    )
    requests = pd.concat(
        [requests.assign(run=run) for run, (_, requests) in tables], ignore_index=True
    )
    return measured_levels(levels, requests)
