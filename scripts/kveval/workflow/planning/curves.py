"""The shares that caches of a campaign's sizes, and of others, would serve."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from kveval.campaign.cell import Cell
from kveval.campaign.config import Config
from kveval.curve.cells import CellCurves, block_count, curves_of
from kveval.workflow.planning.costs import device_tokens, reported_device
from kveval.workflow.planning.stored import StoreIndex


@dataclass(frozen=True)
class LevelCurves:
    """The cells of a model at a level, each with its curves, in the order of the matrix; none if it was left out."""

    model: str
    level: int
    cells: dict[Cell, CellCurves]

    @property
    def widest(self) -> CellCurves:
        """The curves of the first cell with a tier, else of the device alone; they cover every tier size."""
        return next(
            (one for one in self.cells.values() if one.tier_tokens),
            next(iter(self.cells.values())),
        )


def level_curves(
    config: Config, store: StoreIndex, most_blocks: float = math.inf
) -> Iterator[LevelCurves]:
    """Yield the curves of every model and level; the sizes of devices as configured, or as servers reported them.

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
        reported = (reported_device(one, store) for one in specifications.values())
        device = next(filter(None, map(device_tokens, reported)), None)
        first = next(iter(specifications.values()))
        held = first.budget.device_tokens or device
        if limited and (
            held is None or not any(cell.cpu_blocks for cell in specifications)
        ):
            continue
        for level in first.workload.given_levels:
            # Models alike in these share one computation; counting the blocks of a long trace takes time.
            computation = (first.workload, level, first.block_size, held)
            if limited and computation not in counted:
                blocks = block_count(first.workload, level, first.block_size)
                if blocks > most_blocks:
                    yield LevelCurves(model, level, {})
                    continue
                most_blocks -= blocks
                counted.append(computation)
            found = {
                cell: curves_of(one, level, reported_tokens=device)
                for cell, one in specifications.items()
            }
            yield LevelCurves(model, level, found)
