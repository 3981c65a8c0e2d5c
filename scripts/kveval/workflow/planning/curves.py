"""The shares that caches of a campaign's sizes, and of others, would serve."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kveval.campaign.cell import Cell
from kveval.campaign.specification import Specification
from kveval.configuration.config import Config
from kveval.curve.cells import CellCurves, block_count, curves_of
from kveval.workflow.planning.devices import DeviceSize, first_device
from kveval.workflow.planning.stored import StoreIndex

Range = tuple[float, float]


@dataclass(frozen=True)
class LevelCurves:
    """The cells of a model at a level, each with its curves, in the order of the matrix; none if it was left out.

    `device`: the size of its servers' devices, None if not known; `bounds`: where that is an estimate, the curves with
    the least and the most that the device may hold.
    """

    model: str
    level: int
    cells: dict[Cell, CellCurves]
    device: DeviceSize | None = None
    bounds: tuple[Mapping[Cell, CellCurves], ...] = ()

    @property
    def widest(self) -> CellCurves:
        """The curves of the first cell with a tier, else of the device alone; they cover every tier size."""
        return next(
            (one for one in self.cells.values() if one.tier_tokens),
            next(iter(self.cells.values())),
        )

    @property
    def device_hit_range(self) -> Range | None:
        """Least and largest share that the device alone serves, as it may be large; None if its size is not known."""
        if self.device is None:
            return None
        low, *_, high = self.widest.device.shares(self.device.bounds)
        return low, high

    def hit_share_range(self, cell: Cell) -> Range | None:
        """Least and largest share that a cell's device and tier serve; None if the device's size is not known."""
        ranges = [curves.hit_share_range for curves in self._each(cell)]
        known = [share for share in ranges if share is not None]
        if not known:
            return None
        return min(low for low, _ in known), max(high for _, high in known)

    def adds_range(self, cell: Cell) -> Range | None:
        """Percentage points that a cell's tier adds, at least and at most; None if the device's size is not known."""
        points = [curves.adds_points for curves in self._each(cell)]
        known = [value for value in points if value is not None]
        return (min(known), max(known)) if known else None

    def _each(self, cell: Cell) -> list[CellCurves]:
        return [self.cells[cell], *(bound[cell] for bound in self.bounds)]


def level_curves(
    config: Config, store: StoreIndex, most_blocks: float = math.inf
) -> Iterator[LevelCurves]:
    """Yield the curves of every model and level; the sizes of devices as configured, reported or estimated.

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
        device = first_device(config, specifications, store)
        first = next(iter(specifications.values()))
        if limited and (
            device is None or not any(cell.cpu_blocks for cell in specifications)
        ):
            continue
        for level in first.workload.given_levels:
            # Models alike in these share one computation; counting the blocks of a long trace takes time.
            computation = (first.workload, level, first.block_size, device)
            if limited and computation not in counted:
                blocks = block_count(first.workload, level, first.block_size)
                if blocks > most_blocks:
                    yield LevelCurves(model, level, {})
                    continue
                most_blocks -= blocks
                counted.append(computation)
            yield _at_level(model, specifications, level, device)


def _at_level(
    model: str,
    specifications: Mapping[Cell, Specification],
    level: int,
    device: DeviceSize | None,
) -> LevelCurves:
    def curves(tokens: int | None) -> dict[Cell, CellCurves]:
        return {
            cell: curves_of(one, level, reported_tokens=tokens)
            for cell, one in specifications.items()
        }

    found = LevelCurves(
        model, level, curves(None if device is None else device.tokens), device
    )
    if device is None:
        return found
    if not device.estimated:
        # Of models with several kinds of layers, what a device holds is not what its server reports.
        held = found.widest.device_tokens or 0
        exact = device._replace(tokens=held, low_tokens=held, high_tokens=held)
        return LevelCurves(model, level, found.cells, exact)
    alone = found.widest.device
    if alone.share(device.low_tokens) == alone.ceiling:
        # The least that it may hold serves everything: a tier adds nothing, whatever the device's size.
        return found
    bounds = curves(device.low_tokens), curves(device.high_tokens)
    return LevelCurves(model, level, found.cells, device, bounds)
