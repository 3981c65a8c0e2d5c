"""The rates at which tiers copied, from the counters of stored runs; without pandas and scipy, for plans."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kveval.store.conditions import Change
from kveval.store.run_file import Run
from kveval.tables.levels.server_counters import server_delta

# Copies of fewer bytes are too short to give a rate.
_LEAST_COPIED_BYTES = 1e6


@dataclass(frozen=True)
class TierCopies:
    """Bytes per second that tiers copied, one value per level and run, and the cells in which this was measured."""

    load_bytes_s: tuple[float, ...] = ()
    store_bytes_s: tuple[float, ...] = ()
    cells: tuple[str, ...] = ()


def tier_copies(runs: Sequence[Run]) -> TierCopies:
    """Return the rates at which the tiers of one model's runs copied, from the levels that copied enough."""
    loads, stores = _rates(runs, "offload_load"), _rates(runs, "offload_store")
    cells = dict.fromkeys(path for path, _ in loads)
    return TierCopies(
        tuple(rate for _, rate in loads),
        tuple(rate for _, rate in stores),
        tuple(cells),
    )


def _rates(runs: Sequence[Run], kind: str) -> list[tuple[str, float]]:
    """The cell and the copy rate, bytes per second, of each level that copied enough."""
    rates = []
    for run in runs:
        for level in run.levels:
            rate = _rate(level.counted, kind)
            if rate:
                rates.append((run.cell.path, rate))
    return rates


def _rate(counters: Mapping[str, Change], kind: str) -> float | None:
    copied, seconds = (
        server_delta(counters, f"{kind}_bytes"),
        server_delta(counters, f"{kind}_seconds"),
    )
    return copied / seconds if copied >= _LEAST_COPIED_BYTES and seconds > 0 else None
