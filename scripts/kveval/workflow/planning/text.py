"""A plan as text and as a table: what would be measured and why, its cost, its order, warnings."""

import csv
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from operator import itemgetter
from pathlib import Path

from kveval.campaign.cell import Cell
from kveval.campaign.sizing import memory_text
from kveval.engines.preflight import memory_bytes
from kveval.host.findings import aligned, pluralize
from kveval.report.data.run_facts import WEIGHTS
from kveval.store.entries import size_text
from kveval.workflow.planning.costs import Cost, cost, disk, shortages
from kveval.workflow.planning.gpus import server_gpus, stored_with_other_gpus
from kveval.workflow.planning.order import campaign_pointer
from kveval.workflow.planning.plan import Plan, PlannedRun, PlanNotes
from kveval.workflow.planning.reuse_table import (
    HEADER,
    device_notes,
    overflow_notes,
    pinned_notes,
    reuse_rows,
)
from kveval.workflow.planning.stored import StoreIndex

_ROWS = 60
_NEXT = 12
_OF_RUN = ("run", "block", "state", "reason", "measurement")
_COSTS = ("seconds", "gpus", "gpu_hours", "start_s", "basis")


class PlanText:
    """A plan with its cost.

    `cpus`: those of the host that would measure, to estimate the disk that reports take; `memory`: its memory, bytes,
    None if not known; `notes`: what plug-ins add.
    """

    def __init__(
        self,
        plan: Plan,
        store: StoreIndex,
        cpus: int,
        memory: int | None = None,
        notes: Sequence[PlanNotes] = (),
    ) -> None:
        self.plan = plan
        self.store = store
        self.cpus = cpus
        self.memory = memory
        self.notes = notes

    @cached_property
    def costs(self) -> dict[Cell, Cost]:
        """Cell to be measured -> the cost of one of its runs."""
        return {
            cell: cost(self.plan.specification(cell), self.store)
            for cell in self.plan.to_measure
        }

    def lines(self) -> Iterator[str]:
        """Yield the plan, line by line."""
        campaign = self.plan.config.campaign
        runs = self.plan.runs
        for note in self.notes:
            yield from note.first
        yield f"Campaign {campaign.name}: {campaign.title}"
        if campaign.server.weights == "random":
            yield f"{WEIGHTS['random'].capitalize()}: nothing is downloaded"
        states = Counter(run.state for run in runs)
        yield (
            f"{pluralize(len(self.plan.config.cells), 'cell')}, {pluralize(len(runs), 'run')}: {states['there']} measured,"
            f" {states['adopt']} in the store, {states['measure']} to be measured"
        )
        for reason, count in Counter(
            run.reason for run in self.plan.of("adopt")
        ).items():
            yield f"  adopted: {pluralize(count, 'run')} ({reason})"
        yield from server_gpus(self.plan)
        parts = (
            self._searched,
            self._measured,
            self._deleted,
            self._other_gpus,
            self._order,
            self._reuse,
            self._short,
            self._bridges,
        )
        for part in parts:
            yield from part()
        warnings = [*map(str, self.plan.config.warnings), *self._beyond_memory()]
        if warnings:
            yield from ("", "Warnings:", *(f"  {warning}" for warning in warnings))

    def _beyond_memory(self) -> Iterator[str]:
        """Yield the cell whose caches take most of the memory of this host, where servers run here and they exceed it.

        The others like it are counted.
        """
        if self.memory is None or self.plan.config.campaign.engine != "local":
            return
        needs = {
            cell: memory_bytes(self.plan.specification(cell))
            for cell in self.plan.config.cells
        }
        beyond = {
            cell: needed for cell, needed in needs.items() if needed > self.memory
        }
        if not beyond:
            return
        cell, needed = max(beyond.items(), key=itemgetter(1))
        more = (
            f" (and {pluralize(len(beyond) - 1, 'other cell')})"
            if len(beyond) > 1
            else ""
        )
        yield (
            f"{cell.path}{more} keeps {memory_text(needed)} of KV cache in host memory, and this host has"
            f" {memory_text(self.memory)}: its measurement will be refused here"
        )

    def _other_gpus(self) -> Iterator[str]:
        """Yield the cells that are stored with another number of GPUs a server, and the line that keeps them."""
        for gpus, cells in stored_with_other_gpus(self.plan, self.store).items():
            names = [cell.path for cell in cells]
            shown = ", ".join(names[:_NEXT]) + (
                f" and {len(names) - _NEXT} more" if len(names) > _NEXT else ""
            )
            yield ""
            yield (
                f"{pluralize(len(cells), 'cell')} to be measured {'is' if len(cells) == 1 else 'are'} in the store with"
                f" {pluralize(gpus, 'GPU')} a server, and else the same: {shown}. To keep these runs, add to `server:`"
            )
            yield f"  tensor_parallel_size: {gpus}"

    def _searched(self) -> Iterator[str]:
        if not self.plan.pilots:
            return
        each = [
            cost(self.plan.pilot_specification(cell), self.store)
            for cell in self.plan.pilots
        ]
        hours = sum(one.seconds for one in each) / 3600
        yield ""
        yield (
            f"Pilots that search the levels first: {len(each)}, at most {hours:.1f} h,"
            f" {sum(one.gpu_hours for one in each):.1f} GPU hours"
        )
        for cell in self.plan.pilots:
            yield f"  {cell.path}"

    def _measured(self) -> Iterator[str]:
        cells = self.plan.to_measure
        if not cells:
            return
        hours = (
            sum(self.costs[cell].seconds * len(runs) for cell, runs in cells.items())
            / 3600
        )
        gpu_hours = sum(
            self.costs[cell].gpu_hours * len(runs) for cell, runs in cells.items()
        )
        workload = self.plan.specification(next(iter(cells))).workload
        bytes_each, seen = disk(workload, self.store, self.cpus)
        total = size_text(bytes_each * sum(map(len, cells.values())))
        yield ""
        yield (
            f"To be measured: {pluralize(len(cells), 'cell')}, {hours:.1f} h one after the other,"
            f" {gpu_hours:.1f} GPU hours, {'about' if seen else 'at most'} {total} of disk"
        )
        rows: list[tuple[str, ...]] = [
            ("cell", "tier", "runs", "h", "GPU h", "why", "times")
        ]
        for cell, runs in list(cells.items())[:_ROWS]:
            one = self.costs[cell]
            numbers = ", ".join(map(str, sorted(run.run for run in runs)))
            all_hours = (
                f"{one.seconds * len(runs) / 3600:.2f}",
                f"{one.gpu_hours * len(runs):.2f}",
            )
            reasons = "; ".join(dict.fromkeys(run.reason for run in runs))
            rows.append(
                (
                    cell.path,
                    str(self.plan.specification(cell).budget.size),
                    numbers,
                    *all_hours,
                    reasons,
                    f"{one.start_s:.0f} s {one.basis}",
                )
            )
        yield from (f"  {line}" for line in aligned(rows))
        if len(cells) > _ROWS:
            yield f"  ... and {len(cells) - _ROWS} more cells, in the table"

    def _deleted(self) -> Iterator[str]:
        """Yield the pointers that still stand for runs that are gone; by them snakemake takes these for measured."""
        gone = [run for run in self.plan.of("measure") if run.code == "deleted"]
        if not gone:
            return
        config = self.plan.config
        yield ""
        yield (
            f"{pluralize(len(gone), 'run')} of these {'is' if len(gone) == 1 else 'are'} gone from the store, and snakemake"
            " measures them again once their pointers are removed:"
        )
        for run in gone[:_NEXT]:
            yield f"  rm {campaign_pointer(config, run.cell, run.run)}"
        if len(gone) > _NEXT:
            yield f"  ... and {len(gone) - _NEXT} more, in the table"

    def _order(self) -> Iterator[str]:
        following = self.plan.of("measure")
        if not following:
            return
        yield ""
        yield f"Order: randomised blocks, seed {self.plan.config.campaign.seed}"
        for number, run in enumerate(following[:_NEXT], start=1):
            yield f"  {number}. block {run.block}: {run.cell.path}, run {run.run}"
        if len(following) > _NEXT:
            yield f"  ... and {len(following) - _NEXT} more, in the table"

    def _reuse(self) -> Iterator[str]:
        rows = reuse_rows(self.plan, self.store)
        yield ""
        yield "What the workload can show, by server: sizes in tokens, shares of the prompt tokens in a steady state"
        yield "(assumes prefixes drawn at random, and caches that drop the least recently used blocks)"
        yield from (f"  {line}" for line in aligned([HEADER, *rows[:_ROWS]]))
        if len(rows) > _ROWS:
            yield f"  ... and {len(rows) - _ROWS} more"
        yield from device_notes(self.plan, self.store)
        yield from overflow_notes(self.plan)
        yield from pinned_notes(self.plan)
        for note in self.notes:
            yield from note.shown

    def _short(self) -> Iterator[str]:
        known = [
            cell
            for cell in self.plan.to_measure
            if self.plan.config.pilot(cell) not in self.plan.pilots
        ]
        found, unknown = shortages(map(self.plan.specification, known), self.store)
        if found:
            yield ""
            yield "Levels too short for some of the metrics:"
        for entry in found:
            enough = (
                ""
                if entry.seconds is None
                else f"; {entry.seconds:.0f} s would be enough"
            )
            yield f"  {entry.model}, level {entry.level}: {entry.lacks}{enough}"
        if unknown:
            yield ""
            yield (
                f"Not known yet: how many requests a level of {', '.join(unknown)} completes, and so whether it is long"
                " enough. Measure one run of the baseline, and plan again"
            )

    def _bridges(self) -> Iterator[str]:
        bridges = [run for run in self.plan.runs if run.bridge]
        if bridges:
            yield ""
            cells = dict.fromkeys(run.cell.path for run in bridges)
            yield f"Bridges, cells that are measured again together with the new ones: {', '.join(cells)}"
        stale = self.plan.stale_baselines(self.store)
        if not stale:
            return
        yield ""
        yield (
            "The new cells are compared with baselines that were measured at another time, so their verdicts are"
            " indicative at most. For verdicts, measure these baselines again beside them:"
        )
        models: dict[str, list[Cell]] = {}
        for cell, date in stale.items():
            yield f"  {cell.path}" + (f", measured {date}" if date else "")
            models.setdefault(cell.arm, []).append(cell)
        yield from ("with", "  bridges:")
        for cells_of_arm in models.values():
            names = ", ".join(cell.model for cell in cells_of_arm)
            arm = cells_of_arm[0]
            yield f"    - {{models: [{names}], scenarios: [{arm.scenario}], cpu_blocks: [{arm.cpu_blocks}]}}"

    def rows(self) -> list[dict[str, object]]:
        """Return a row per run, in the order of measuring: the columns of `write_table`, None where one is empty."""
        return [
            self._row(number, run) for number, run in enumerate(self.plan.runs, start=1)
        ]

    def _row(self, number: int, run: PlannedRun) -> dict[str, object]:
        row: dict[str, object] = {
            "order": number,
            "model": run.cell.model,
            "scenario": run.cell.scenario,
            "cpu_blocks": run.cell.cpu_blocks,
            **{name: getattr(run, name) for name in _OF_RUN},
            **dict.fromkeys(_COSTS),
        }
        if run.state == "measure":
            costs = self.costs[run.cell]
            row |= {name: getattr(costs, name) for name in _COSTS}
        return row

    def write_table(self, path: Path) -> None:
        """Write a CSV with one row per run, in the order of measuring."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", newline="") as file:
            columns = ["order", "model", "scenario", "cpu_blocks", *_OF_RUN, *_COSTS]
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(self.rows())
