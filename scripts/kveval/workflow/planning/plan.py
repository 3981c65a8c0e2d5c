"""The runs that a campaign still has to measure, and why, found by comparing measurement ids.

It checks what Snakemake checks (does a pointer exist, and is it to what the configuration now defines?), and then what
the job checks (does the store have that measurement, of this hardware?).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Literal

from kveval.campaign.cell import Cell
from kveval.campaign.specification import Specification, described, differences
from kveval.configuration.config import Config
from kveval.workflow.planning.order import block_of, in_order
from kveval.workflow.planning.stored import StoreIndex, can_adopt

_DELETED = ("deleted from the store", "deleted")
State = Literal["there", "adopt", "measure"]


@dataclass(frozen=True)
class PlannedRun:
    """One run of one cell. `state`: there - nothing to do; adopt - in the store; measure. `reason`: why not there.

    `code`: the kind of reason, by a name that does not change.
    """

    cell: Cell
    run: int
    block: int
    measurement: str
    state: State
    reason: str = ""
    code: str = ""

    @property
    def bridge(self) -> bool:
        """Whether it repeats a cell together with new ones."""
        return self.run > self.block


@dataclass(frozen=True)
class PlanNotes:
    """Lines that a plug-in adds to a plan: `first` before all others, `shown` after what the workload can show."""

    first: Sequence[str] = ()
    shown: Sequence[str] = ()


@dataclass(frozen=True)
class Plan:
    """The runs of a campaign, in the order in which they are measured.

    `frozen`: cell of a pilot -> the levels it found; empty unless the workload's levels are searched.
    """

    config: Config
    runs: tuple[PlannedRun, ...]
    frozen: Mapping[Cell, Sequence[int]]

    @cached_property
    def pilots(self) -> list[Cell]:
        """The cells whose pilots have not searched the levels yet."""
        found = (self.config.pilot(cell) for cell in self.config.cells)
        return [
            cell
            for cell in dict.fromkeys(found)
            if cell is not None and cell not in self.frozen
        ]

    def specification(self, cell: Cell) -> Specification:
        """Return a cell's specification; levels not known yet are placeholders, as many as there will be."""
        search, pilot = self.config.workload.searched, self.config.pilot(cell)
        if search is None or pilot is None:
            return self.config.specification(cell)
        return self.config.specification(
            cell,
            self.frozen.get(pilot, _between(search.start, search.stop, search.keep)),
        )

    def pilot_specification(self, cell: Cell) -> Specification:
        """Return a pilot's specification, with as many placeholder levels as it may try."""
        specification, search = (
            self.config.pilot_specification(cell),
            self.config.workload.searched,
        )
        if search is None:
            return specification
        return specification.with_workload(
            levels=tuple(_between(search.start, search.stop, search.budget))
        )

    def of(self, state: State) -> list[PlannedRun]:
        """Return the runs in a state."""
        return [run for run in self.runs if run.state == state]

    @cached_property
    def to_measure(self) -> dict[Cell, list[PlannedRun]]:
        """The runs to be measured by cell, in the order of the matrix."""
        found: dict[Cell, list[PlannedRun]] = {}
        for run in self.of("measure"):
            found.setdefault(run.cell, []).append(run)
        return {cell: found[cell] for cell in self.config.cells if cell in found}

    def stale_baselines(self, store: StoreIndex) -> dict[Cell, str]:
        """Return baseline -> date of its measurement, for cells to be measured whose baseline is not measured again."""
        bases = (self.config.baseline(cell) for cell in self.to_measure)
        ids = {
            run.cell: run.measurement
            for run in self.runs
            if run.cell not in self.to_measure
        }
        first = {
            base: store.get(ids[base]).first
            for base in bases
            if base is not None and base in ids
        }
        return {
            base: "" if facts is None else facts.finished[:10]
            for base, facts in first.items()
        }


def _between(start: int, stop: int, count: int) -> list[int]:
    """Return `count` levels in geometric steps, as placeholders for those that a search will find."""
    ratio = stop / start
    return [
        round(start * ratio ** (place / max(1, count - 1))) for place in range(count)
    ]


def make_plan(
    config: Config,
    pointers: Mapping[tuple[str, int], str],
    store: StoreIndex,
    hardware: str | None = None,
    frozen: Mapping[Cell, Sequence[int]] | None = None,
    deleted: Collection[tuple[str, int]] = (),
) -> Plan:
    """Compare a campaign with what was measured.

    `pointers`: (cell's path, run) -> measurement id; `hardware`: fingerprint of the machine that would measure, None
    if not known: stored runs of any hardware count then; `frozen`: as for Plan; `deleted`: (cell's path, run) of pointers
    to what the store no longer has.
    """
    found = frozen or {}
    pilots = {
        cell: pilot
        for cell in config.cells
        if (pilot := config.pilot(cell)) is not None
    }
    levels = {cell: found.get(pilot) for cell, pilot in pilots.items()}
    ids = {cell: config.measurement_id(cell, levels.get(cell)) for cell in config.cells}

    @cache
    def why(cell: Cell) -> tuple[str, str]:
        return _why(
            config, cell, config.specification(cell, levels.get(cell)), pointers, store
        )

    runs = []
    for cell, number in in_order(config):
        known = pointers.get((cell.path, number))
        run = PlannedRun(cell, number, block_of(config, number), ids[cell], "there")
        if known != run.measurement and cell in pilots and levels[cell] is None:
            reason = f"its levels follow from the pilot of {pilots[cell].path}"
            run = replace(
                run, measurement="", state="measure", reason=reason, code="pilot_first"
            )
        elif known != run.measurement:
            run = _missing(run, known, why(cell), store, hardware)
        elif (cell.path, number) in deleted:
            run = _missing(run, None, _DELETED, store, hardware)
        runs.append(run)
    return Plan(config, tuple(runs), found)


def _missing(
    run: PlannedRun,
    known: str | None,
    why: tuple[str, str],
    store: StoreIndex,
    hardware: str | None,
) -> PlannedRun:
    reason, code = why
    stored = store.get(run.measurement).runs(run.run)
    if can_adopt(stored, hardware):
        state: State = "adopt"
        reason, code = ("in the store", "stored") if known is None else why
    else:
        state = "measure"
        if stored:
            reason, code = (
                f"measured on other hardware ({stored[0].hardware.get('fingerprint')})",
                "other_hardware",
            )
        elif run.bridge:
            reason, code = "bridge: measured again together with new cells", "bridge"
    return replace(run, state=state, reason=reason, code=code)


def _why(
    config: Config,
    cell: Cell,
    planned: Specification,
    pointers: Mapping[tuple[str, int], str],
    store: StoreIndex,
) -> tuple[str, str]:
    """Return why a cell's run is not there (new cell, new run, or what changed), and the code of that reason."""
    measurement = planned.measurement_id
    pointed = {
        known
        for run in config.runs_of(cell)
        if (known := pointers.get((cell.path, run)))
    }
    if measurement in pointed or (store.get(measurement).places and not pointed):
        return "another run", "another_run"
    earlier = [
        facts
        for facts in store.by_cell.get(cell, [])
        if facts.measurement != measurement
    ]
    # Prefer measurements that the results point to over others in the store.
    candidates = [facts for facts in earlier if facts.measurement in pointed] or earlier
    if not candidates:
        return (
            ("changed; the earlier state is not in the store", "changed_unknown")
            if pointed
            else ("new", "new")
        )
    found = [
        list(differences(facts.specification, planned.to_json()))
        for facts in candidates
    ]
    return f"changed: {described(min(found, key=len))}", "changed"
