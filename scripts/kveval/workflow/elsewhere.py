"""Runs that a campaign does not measure: another one has measured them, or a plug-in brings them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from kveval.campaign.cell import Cell


class RunElsewhere(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run that was measured elsewhere.

    `required`: the counters that its arm requires. What a plug-in adds to it, its rule gets as plain values.
    """

    cell: Cell
    run: int
    required: list[dict[str, Any]] = []


@dataclass(frozen=True)
class RunsElsewhere:
    """Runs that were measured elsewhere, in the order of their cells; none for a campaign that measures.

    Attributes:
        runs: the runs.
        remarks: what the report says of them, Markdown.
        summary: a line for the console; "" for none.
        rules: the file with the rule that makes their pointers, in place of the rules that measure.
    """

    runs: Sequence[RunElsewhere] = ()
    remarks: str = ""
    summary: str = ""
    rules: Path | None = None

    @property
    def cells(self) -> list[Cell]:
        """The cells that have at least one run, in the order of the runs."""
        return [runs[0].cell for runs in self._by_cell.values()]

    def runs_of(self, cell: str) -> list[RunElsewhere]:
        """Return the runs of a cell, given by its path, in their order."""
        return self._by_cell.get(cell, [])

    @cached_property
    def _by_cell(self) -> dict[str, list[RunElsewhere]]:
        # Asked for once for every job of a plan.
        runs_by_path: dict[str, list[RunElsewhere]] = {}
        for run in self.runs:
            runs_by_path.setdefault(run.cell.path, []).append(run)
        return runs_by_path
