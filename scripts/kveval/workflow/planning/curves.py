"""The shares that caches of a campaign's sizes, and of others, would serve."""

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from kveval.campaign.cell import Cell
from kveval.campaign.specification import Specification
from kveval.configuration.config import Config
from kveval.curve.cells import CellCurves, block_count, curves_of
from kveval.curve.curve import ReuseCurve
from kveval.workflow.planning.answer_times import AnswerTime, answer_times
from kveval.workflow.planning.devices import DeviceSize, first_device
from kveval.workflow.planning.stored import StoreIndex

Range = tuple[float, float]


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
        return next(
            (one for one in self.cells.values() if one.tier_tokens),
            next(iter(self.cells.values())),
        )

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
