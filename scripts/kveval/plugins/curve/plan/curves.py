"""The shares that caches of a campaign's sizes, and of others, would serve."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from kveval.campaign.cell import Cell
from kveval.campaign.specification import Specification
from kveval.configuration.config import Config
from kveval.plugins.curve.plan.answer_times import AnswerTime, answer_times
from kveval.plugins.curve.simulation.cells import CellCurves, block_count, curves_of
from kveval.plugins.curve.simulation.curve import ReuseCurve
from kveval.workflow.planning.devices import DeviceSize, first_device
from kveval.workflow.planning.stored import StoreIndex

Range = tuple[float, float]
DRAWS = 4
"""Draws of a load that are compared."""
# Of more blocks a draw takes seconds, and is so long that others hardly differ.
_MOST_BLOCKS_DRAWN = 10e6


@dataclass(frozen=True)
class LevelCurves:
    """The cells of a model at a level, each with its curves, in the order of the matrix; none if it was left out.

    `device`: the size of its servers' devices, None if not known; `answers`: how long answers take, where users pause;
    `bounds`: the curves with the least and the most of both, where they are not certain.
    """

    model: str
    level: int
    cells: dict[Cell, CellCurves]
    device: DeviceSize | None = None
    bounds: tuple[Mapping[Cell, CellCurves], ...] = ()
    answers: Mapping[Cell, AnswerTime] = field(default_factory=dict)

    @property
    def widest(self) -> CellCurves:
        """The curves of the first cell with a tier, else of the device alone; they cover every tier size."""
        return self.cells[self.widest_cell]

    @property
    def widest_cell(self) -> Cell:
        """The first cell with a tier, else the first."""
        tiers = (cell for cell, one in self.cells.items() if one.tier_tokens)
        return next(tiers, next(iter(self.cells)))

    @property
    def device_hit_range(self) -> Range | None:
        """Least and largest share that the device alone serves, as it may be large; None if its size is not known."""
        if self.device is None:
            return None
        curves = self.possible(self._without_tier)
        shares = [one.device.shares(self.device.bounds) for one in curves]
        return min(low for low, *_ in shares), max(high for *_, high in shares)

    @property
    def working_set_curves(self) -> list[ReuseCurve]:
        """The curves of the device alone, for every order of requests that is possible."""
        every = (self.cells, *self.bounds)
        return [one.device for cells in every for one in cells.values()]

    @property
    def _without_tier(self) -> Cell:
        """The first cell without a tier, else the first."""
        tierless = (cell for cell in self.cells if not cell.cpu_blocks)
        return next(tierless, next(iter(self.cells)))

    def hit_share_range(self, cell: Cell) -> Range | None:
        """Least and largest share that a cell's device and tier serve; None if the device's size is not known."""
        ranges = [curves.hit_share_range for curves in self.possible(cell)]
        known = [share for share in ranges if share is not None]
        if not known:
            return None
        return min(low for low, _ in known), max(high for _, high in known)

    def adds_range(self, cell: Cell) -> Range | None:
        """Percentage points that a cell's tier adds, at least and at most; None if the device's size is not known."""
        points = [curves.adds_points for curves in self.possible(cell)]
        known = [value for value in points if value is not None]
        return (min(known), max(known)) if known else None

    def possible(self, cell: Cell) -> list[CellCurves]:
        """Return a cell's curves, and those with the least and the most of what is not certain."""
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
            answers = answer_times(config, [*specifications], level, store)
            yield _at_level(model, specifications, level, device, answers)


def draw_error(config: Config, curves: LevelCurves) -> float:
    """Return how much the shares of a level differ between draws of its load: their largest standard deviation.

    It is that of the shares that caches of the cells' sizes, and of any size, serve; 0 of a load that is not drawn, and
    of one of very many blocks.
    """
    cell, first = curves.widest_cell, curves.widest
    specification = config.specification(cell)
    block_tokens = specification.block_size
    blocks = block_count(specification.workload, curves.level, block_tokens)
    if blocks > _MOST_BLOCKS_DRAWN:
        return 0.0
    further = [
        curves_of(
            specification,
            curves.level,
            run,
            reported_tokens=first.device_tokens,
            answer_s=_answer_s(curves.answers.get(cell), least=True),
        )
        for run in range(2, DRAWS + 1)
    ]
    tiers = [one.tier_tokens * one.usable[1] for one in curves.cells.values()]
    shares = np.array([_shares(one, tiers) for one in (first, *further)])
    return float(shares.std(axis=0, ddof=1).max())


def _shares(curves: CellCurves, tiers: Sequence[float]) -> list[float]:
    """Return the shares that the device alone, tiers of these sizes and a cache of any size serve."""
    device, tier = curves.device_hit_share, curves.tier
    of_tiers = [] if tier is None else tier.shares(tiers)
    return [device or 0.0, *of_tiers, curves.device.ceiling]


def _at_level(
    model: str,
    specifications: Mapping[Cell, Specification],
    level: int,
    device: DeviceSize | None,
    answers: Mapping[Cell, AnswerTime],
) -> LevelCurves:
    def curves(tokens: int | None, least: bool) -> dict[Cell, CellCurves]:
        return {
            cell: curves_of(
                one,
                level,
                reported_tokens=tokens,
                answer_s=_answer_s(answers.get(cell), least),
            )
            for cell, one in specifications.items()
        }

    tokens = None if device is None else device.tokens
    uncertain = any(one.least_s < one.most_s for one in answers.values())
    ends = (True, False) if uncertain else (True,)
    first, *others = [curves(tokens, least) for least in ends]
    found = LevelCurves(model, level, first, device, tuple(others), answers)
    if device is None:
        return found
    if not device.estimated:
        # Of models with several kinds of layers, what a device holds is not what its server reports.
        held = found.widest.device_tokens or 0
        exact = device._replace(tokens=held, low_tokens=held, high_tokens=held)
        return replace(found, device=exact)
    alone = found.working_set_curves
    if all(one.share(device.low_tokens) == one.ceiling for one in alone):
        # The least that it may hold serves everything: a tier adds nothing, whatever the device's size.
        return found
    sizes = (device.low_tokens, device.high_tokens)
    # The order of requests is drawn anew for each answer time, so that changes last.
    bounds = [curves(size, least) for least, size in itertools.product(ends, sizes)]
    return replace(found, bounds=tuple(bounds))


def _answer_s(answer: AnswerTime | None, least: bool) -> float | None:
    if answer is None:
        return None
    return answer.least_s if least else answer.most_s
