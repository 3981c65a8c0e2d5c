"""The runs of a campaign that exist, for a report before it is complete, and why the others are missing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kveval.campaign.cell import Cell
from kveval.host.errors import Failure
from kveval.measure.status import absence_of, job_log
from kveval.store.run_file import POINTER, read_run, stored_run
from kveval.store.store import listed, verify_file


@dataclass(frozen=True)
class SoFar:
    """The runs that exist and are intact, as (cell, folder's name), and why cells lack a run, as far as it is known."""

    runs: Sequence[tuple[Cell, str]]
    failures: Mapping[Cell, str]


OUTDATED = "is of an earlier form of the campaign: `report` measures it again"


def measured_so_far(
    runs: Iterable[tuple[Cell, str]],
    results: Path,
    logs: Path,
    is_outdated: Callable[[Cell, str], bool] = lambda cell, name: False,
) -> SoFar:
    """Return which of a campaign's runs, (cell, folder's name such as run-1), exist, with every checksum verified.

    `results`: folder of the cells; `logs`: the campaign's; the statuses of its jobs give the reasons. `is_outdated`
    tells whether the run that exists is of another measurement than is planned now.
    """
    there: list[tuple[Cell, str]] = []
    damaged: list[tuple[Cell, str]] = []
    absent: list[tuple[Cell, str]] = []
    for cell, name in runs:
        pointer = results / cell.path / name / POINTER
        if not pointer.exists():
            absence = absence_of(job_log(logs, Path(cell.path, name)))
            if absence is not None:
                absent.append((cell, str(absence)))
            continue
        if is_outdated(cell, name):
            absent.append((cell, f"{name} {OUTDATED}"))
            continue
        try:
            place = stored_run(pointer)
            read_run(place)
            for file, expected in listed(place).items():
                verify_file(place, file, expected)
            there.append((cell, name))
        except Failure as failure:
            damaged.append((cell, f"failed: {name} cannot be read: {failure}"))
    reasons: dict[Cell, list[str]] = {}
    for cell, reason in dict.fromkeys(damaged + absent):
        reasons.setdefault(cell, []).append(reason)
    return SoFar(there, {cell: "; ".join(texts) for cell, texts in reasons.items()})
