"""Whether a campaign's load fits the device, so that no tier pays; else from which size or level on one may."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from kveval.campaign.cell import Cell
from kveval.configuration.config import Config
from kveval.configuration.reuse import reuse_of
from kveval.load import levels as workloads
from kveval.plugins.curve.plan.curves import LevelCurves
from kveval.plugins.curve.plan.loading import slower_than_computing
from kveval.plugins.curve.plan.overload import overload_lines
from kveval.plugins.curve.simulation.cells import NOTHING_POINTS, CellCurves, curves_of
from kveval.stacks.tier_layout import needed_size
from kveval.workflow.planning.devices import DeviceSize, first_device
from kveval.workflow.planning.stored import StoreIndex

# What holds so much of everything that is repeated is the working set: the rest is what the oldest prompts left.
_WORKING_PART = 0.99
_PARTS = (0.5, 0.9)
_REPORTED = "a server has reported what its device holds"


def fit_lines(
    config: Config, all_curves: Sequence[LevelCurves], store: StoreIndex
) -> Iterator[str]:
    """Yield a line for each model with tiers: whether one can pay, and what that rests on.

    A second line names the tiers that are smaller than the device's cache, and so are copies of a part of it.
    """
    tiers = [cell for cell in config.cells if cell.cpu_blocks]
    for model in dict.fromkeys(cell.model for cell in tiers):
        levels = [
            curves for curves in all_curves if curves.model == model and curves.cells
        ]
        cells = [cell for cell in config.cells if cell.model == model]
        if levels:
            yield from _model_lines(config, model, levels, store)
            continue
        device = first_device(config, cells, store)
        if device is None:
            yield f"{model}: {_unknown(config, cells[0])}"
        elif any(curves.model == model for curves in all_curves):
            yield f"{model}: {_left_to_curve(config, cells[0], device)}"


def _model_lines(
    config: Config, model: str, levels: Sequence[LevelCurves], store: StoreIndex
) -> Iterator[str]:
    """Yield the lines of a model: one verdict for each size of the device that its arms are configured with."""
    arms: dict[int | None, list[Cell]] = {}
    for cell, curves in levels[0].cells.items():
        if cell.cpu_blocks:
            arms.setdefault(curves.device_tokens, []).append(cell)
    yield from overload_lines(config, levels, store)
    for tokens, cells in arms.items():
        alike = [_with_tiers(curves, cells, tokens) for curves in levels]
        scenarios = ", ".join(dict.fromkeys(cell.scenario for cell in cells))
        name = f"{model} with {scenarios}" if len(arms) > 1 else model
        device = alike[0].device
        yield f"{name}: {_verdict(config, alike, device, store)}"
        yield from _mirrors(config, alike, device)


def _with_tiers(
    curves: LevelCurves, cells: Sequence[Cell], tokens: int | None
) -> LevelCurves:
    """Return the curves of these cells alone, whose devices hold `tokens`, None if not known."""
    device = curves.device
    if device is not None and tokens is not None and tokens != device.tokens:
        device = DeviceSize(tokens, tokens, tokens, "as configured", configured=True)
    of_cells = {cell: curves.cells[cell] for cell in cells}
    bounds = list[dict[Cell, CellCurves]]()
    for bound in curves.bounds:
        bounds.append({cell: bound[cell] for cell in cells})
    return replace(curves, cells=of_cells, device=device, bounds=tuple(bounds))


def _left_to_curve(config: Config, cell: Cell, device: DeviceSize) -> str:
    """Say what is known of a load that has too many requests for a plan: the tokens of what is in progress."""
    text = "kveval curve computes whether a tier can pay: this load has too many requests for a plan"
    unit = workloads.level_unit(config.workload.definition)
    last = reuse_of(config.specification(cell))[-1]
    if last.demand.in_use_tokens is None:
        return f"{text}; the device holds {device}"
    used = f"conversations in progress have {last.demand.in_use_tokens:,.0f} tokens at {last.level} {unit}"
    return f"{text}; {used}, the device holds {device}"


def _unknown(config: Config, cell: Cell) -> str:
    """Say why it is not known what the device holds, and what would tell."""
    text = "whether a tier can pay cannot be known"
    if config.gpu is None:
        return f"{text} until gpu or device_gib says which GPU it is, or {_REPORTED}"
    estimate = config.device_estimate(cell)
    if estimate is None:
        return f"{text} until {_REPORTED}: with this model and these arguments it is not estimated"
    return f"{text}: the device has no room for a cache; {estimate.source}"


def _verdict(
    config: Config,
    levels: Sequence[LevelCurves],
    device: DeviceSize | None,
    store: StoreIndex,
) -> str:
    unit = workloads.level_unit(config.workload.definition)
    needs = {curves.level: _working_set(curves) for curves in levels}
    largest = max(needs, key=lambda level: needs[level])
    if not needs[largest]:
        return "no tier pays: nothing is repeated"
    rests = f"the load needs {needs[largest]:,} tokens at {largest} {unit}"
    if device is None:
        return f"{_unknown(config, next(iter(levels[0].cells)))}; {rests}"
    rests += f", the device holds {device}{', estimated' if device.estimated else ''}"
    if needs[largest] <= device.low_tokens:
        return f"it fits: no tier pays; {rests}{_until(config, levels, device)}"
    outgrown = [curves for curves in levels if needs[curves.level] > device.high_tokens]
    if not outgrown:
        return f"whether it fits cannot be known until {_REPORTED}; {rests}"
    slower = slower_than_computing(config, levels[0].model, store)
    if slower:
        return f"no tier pays: {slower}; {rests}"
    fitting = [curves for curves in levels if needs[curves.level] <= device.low_tokens]
    return f"{_pays(config, fitting, outgrown, device)}; {rests}"


def _pays(
    config: Config,
    fitting: Sequence[LevelCurves],
    outgrown: Sequence[LevelCurves],
    device: DeviceSize,
) -> str:
    """Say from which level and which size of a tier on one pays."""
    first = min(outgrown, key=lambda curves: curves.level)
    sizes = _sizes_that_pay(config, first)
    unit = workloads.level_unit(config.workload.definition)
    if sizes is None:
        return f"no tier pays, of any size: it adds less than {NOTHING_POINTS:g} points"
    below = [curves for curves in fitting if curves.level < first.level]
    if not below:
        return f"a tier can pay, at {first.level} {unit}: {sizes}"
    last = max(below, key=lambda curves: curves.level)
    ends = (last.level, _working_set(last)), (first.level, _working_set(first))
    levels = _outgrown_at(*ends, device)
    return f"a tier can pay from about {levels} {unit} on, at {first.level}: {sizes}"


def _working_set(curves: LevelCurves) -> int:
    """Return the tokens of a cache that holds what is repeated, however long answers take; 0 if nothing is."""
    each = (curve.size_for(_WORKING_PART) or 0 for curve in curves.working_set_curves)
    return max(each)


def _sizes_that_pay(config: Config, curves: LevelCurves) -> str | None:
    """Say which sizes of a tier add half and 90 % of the most that any adds; None if none adds anything.

    Where the device's size is an estimate, these sizes suffice for all of its range.
    """
    specifications = [config.specification(cell) for cell in curves.cells]
    sizes = [
        size
        for cell in curves.cells
        if cell.cpu_blocks
        and (size := _sizes_of_arm(curves.possible(cell))) is not None
    ]
    if not sizes:
        return None
    points = max(size.points for size in sizes)
    pairs = [size.tokens for size in sizes]
    least = [min(tokens) for tokens in zip(*pairs, strict=True)]
    half, most = (needed_size(specifications, tokens, curves.level) for tokens in least)
    return (
        f"half of the {points:.1f} points that it can add with {half}, 90 % with {most}"
    )


class _SizesOfArm(NamedTuple):
    """Tokens with which a tier of an arm adds _PARTS of the most that any size adds, and that most."""

    tokens: tuple[int, int]
    points: float


def _sizes_of_arm(possible: Sequence[CellCurves]) -> _SizesOfArm | None:
    """Return the sizes that suffice, whichever curves hold and how little of the tier is used; None if none adds anything."""
    first, full, points = 0, 0, 0.0
    for curves in possible:
        gain = 0.0
        if curves.tier is not None:
            gain = 100 * (curves.tier.ceiling - curves.tier.base)
        if curves.tier is None or gain < NOTHING_POINTS:
            continue
        used = curves.usable[0]
        half, most = (
            math.ceil((curves.tier.size_for(part) or 0) / used) for part in _PARTS
        )
        first, full, points = max(first, half), max(full, most), max(points, gain)
    return _SizesOfArm((first, full), points) if points else None


def _until(config: Config, levels: Sequence[LevelCurves], device: DeviceSize) -> str:
    """Say from which level on a load that fits will not, if that is streams or users; "" if not known."""
    workload, last = config.workload.definition, levels[-1]
    if workload.profile not in ("concurrent", "users"):
        return ""
    if len(levels) > 1:
        other, needed = levels[-2].level, _working_set(levels[-2])
    else:
        other = 2 * last.level
        doubled = config.specification(next(iter(last.cells))).with_workload(
            levels=(other,)
        )
        longest_s = max((one.most_s for one in last.answers.values()), default=None)
        curve = curves_of(doubled, other, answer_s=longest_s).device
        needed = curve.size_for(_WORKING_PART) or 0
    outgrown = _outgrown_at((last.level, _working_set(last)), (other, needed), device)
    unit = workloads.level_unit(workload)
    return f"; from about {outgrown} {unit} on it does not" if outgrown else ""


def _outgrown_at(
    lower: tuple[int, int], upper: tuple[int, int], device: DeviceSize
) -> str:
    """Return the first levels that do not fit the most and the least that the device may hold, as text; "" if none.

    `lower`, `upper`: levels with their working sets, which are taken to grow evenly.
    """
    (level, need), (second, needed) = lower, upper
    growth = (needed - need) / (second - level)
    if growth <= 0:
        return ""
    first, certain = (
        int(level + (tokens - need) / growth) + 1
        for tokens in (device.low_tokens, device.high_tokens)
    )
    return f"{first}" if first == certain else f"{first} to {certain}"


def _mirrors(
    config: Config, levels: Sequence[LevelCurves], device: DeviceSize | None
) -> Iterator[str]:
    """Yield a line on the tiers that are smaller than the device's cache and add nothing to it."""
    if device is None:
        return
    idle = [
        f"{cell.scenario} with {config.specification(cell).budget.size}"
        for cell, curves in levels[0].cells.items()
        if 0 < curves.tier_tokens <= device.low_tokens and _is_idle(levels, cell)
    ]
    if idle:
        yield f"  only mirror a part of the device's cache, which is larger: {', '.join(idle)}"


def _is_idle(levels: Sequence[LevelCurves], cell: Cell) -> bool:
    """Return whether a cell's tier adds nothing at any level."""
    ranges = [curves.adds_range(cell) for curves in levels]
    return all(adds is not None and adds[1] < NOTHING_POINTS for adds in ranges)
