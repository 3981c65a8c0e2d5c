"""The size of a server's device: as the campaign gives it, as a server reported it, or as estimated, with a range."""

from collections.abc import Iterable
from typing import NamedTuple

from kveval.campaign.cell import Cell
from kveval.configuration.config import Config
from kveval.configuration.reuse import serves_from_device
from kveval.workflow.planning.costs import device_tokens, reported_device
from kveval.workflow.planning.stored import StoreIndex


class DeviceSize(NamedTuple):
    """Tokens that one server's device holds for later requests, at least and at most; `source`: where they are from."""

    tokens: int
    low_tokens: int
    high_tokens: int
    source: str
    estimated: bool = False
    configured: bool = False

    def __str__(self) -> str:
        if not self.high_tokens:
            return "nothing for later requests"
        if not self.estimated:
            return f"{self.tokens:,} tokens"
        return f"about {self.tokens:,} tokens ({self.low_tokens:,} to {self.high_tokens:,})"

    @property
    def bounds(self) -> tuple[int, int, int]:
        """The size with its bounds, the smallest first."""
        return self.low_tokens, self.tokens, self.high_tokens


def device_size(config: Config, cell: Cell, store: StoreIndex) -> DeviceSize | None:
    """Return the size of the device of a cell's servers; None if it is neither given, nor reported, nor estimated."""
    specification = config.specification(cell)
    if not serves_from_device(specification):
        return DeviceSize(0, 0, 0, "its prefix cache is off", configured=True)
    given = specification.budget.device_tokens
    if given is not None:
        return DeviceSize(given, given, given, "as configured", configured=True)
    told = config.campaign.device_tokens
    told = told.get(cell.model) if isinstance(told, dict) else told
    if told is not None:
        return DeviceSize(told, told, told, "as device_tokens gives it")
    run = reported_device(specification, store)
    reported = device_tokens(run)
    if run is not None and reported is not None:
        machine = run.hardware.get("fingerprint", "unknown hardware")
        source = f"as a server reported it on {machine}"
        return DeviceSize(reported, reported, reported, source)
    estimate = config.device_estimate(cell)
    if estimate is None or not estimate.tokens:
        return None
    return DeviceSize(*estimate, estimated=True)


def first_device(
    config: Config, cells: Iterable[Cell], store: StoreIndex
) -> DeviceSize | None:
    """Return the size of the device for the first of the cells where it is known, one that is no estimate before others.

    Sizes that cells are configured with come last: they are those cells' own, whatever this returns.
    """
    sizes = [device_size(config, cell, store) for cell in cells]
    known = [size for size in sizes if size is not None]
    return min(known, key=lambda one: (one.configured, one.estimated), default=None)
