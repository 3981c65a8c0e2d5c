"""All that the gates need of the library by import: what a campaign plans, and this host's fingerprint."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kveval.host import hardware
from kveval.spec.loading import load_config


@dataclass(frozen=True)
class PlannedCell:
    """A cell with the id and the definition of its measurement, the counters that prove it active, its runs."""

    model: str
    scenario: str
    cpu_blocks: int
    measurement: str
    specification: dict[str, Any]
    required: tuple[dict[str, Any], ...]
    runs: tuple[int, ...]


def planned_cells(campaign: Path, catalogues: Path) -> Iterator[PlannedCell]:
    """Yield the cells of a campaign file in its order."""
    config = load_config(campaign, catalogues)
    for cell in config.cells:
        yield PlannedCell(
            cell.model,
            cell.scenario,
            cell.cpu_blocks,
            config.measurement_id(cell),
            dict(config.specification(cell).to_json()),
            tuple(dict(entry) for entry in config.required_counters(cell)),
            tuple(config.runs_of(cell)),
        )


def host_fingerprint() -> str:
    """Return the fingerprint under which this host adopts stored runs."""
    return str(hardware.probe()["fingerprint"])
