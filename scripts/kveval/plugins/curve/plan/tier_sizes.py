"""The sizes of tiers in a plan: which serve no more than the device, which hardly differ, which to choose."""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter

from kveval.campaign.cell import Cell
from kveval.campaign.sizing import size_for_tokens
from kveval.campaign.types import BLOCK_TOKENS
from kveval.configuration.config import Config
from kveval.configuration.reuse import reuse_of
from kveval.load import levels as workloads
from kveval.plugins.curve.plan.curves import LevelCurves, level_curves
from kveval.plugins.curve.simulation.cells import NOTHING_POINTS, needed_sizes
from kveval.stacks.tier_layout import needed_size
from kveval.workflow.planning.stored import StoreIndex

# Takes about a second; levels with more blocks are left to `kveval curve`.
MOST_BLOCKS = 1_000_000
_NAMED = 5


def tier_size_lines(config: Config, store: StoreIndex) -> Iterator[str]:
    """Yield, for models with tiers and a device of known size, what each tier size adds, computed from the requests.

    At most four lines per model. Levels beyond a total of a million blocks are left out, and a line says so.
    """
    lines: list[str] = []
    for model, found in itertools.groupby(
        level_curves(config, store, MOST_BLOCKS), attrgetter("model")
    ):
        levels = list(found)
        known = [curves for curves in levels if curves.cells]
        lines += _model_lines(config, known)
        if left_out := len(levels) - len(known):
            lines.append(
                f"  {model}: {left_out} of {len(levels)} levels have too many requests for this summary"
            )
    if lines:
        yield ""
        yield "What tiers add to the device, computed from the requests (in detail: kveval curve)"
        yield from lines


def _model_lines(config: Config, found: Sequence[LevelCurves]) -> Iterator[str]:
    each = [
        (cell, points)
        for curves in found
        for cell in curves.cells
        if cell.cpu_blocks
        for points in curves.adds_range(cell) or (None,)
    ]
    ladder = sorted(
        {cell for cell, points in each if points is not None},
        key=lambda one: (one.scenario, one.cpu_blocks),
    )
    if not ladder:
        return
    adds: dict[Cell, list[float]] = {cell: [] for cell in ladder}
    for cell, points in each:
        if points is not None:
            adds[cell].append(points)
    best = max(found, key=_gain)
    unit = workloads.level_unit(config.workload.definition)
    where = f"{best.level} {unit}" if len(found) == 1 else f"{len(found)} levels"
    alone = _span(
        [100 * share for curves in found for share in curves.device_hit_range or ()]
    )
    listed = _listed([f"{cell.arm} +{_span(adds[cell])}" for cell in ladder])
    yield f"  {best.model}, {where}: the device serves {alone} %; tiers add, in points: {listed}"
    knee = _knee(config, best)
    useless = [cell for cell in ladder if max(adds[cell]) < NOTHING_POINTS]
    if useless:
        device = best.device and best.device.tokens
        reuses = (
            reuse
            for cell in useless
            for reuse in reuse_of(config.specification(cell), device)
        )
        outgrown = any(
            reuse.demand.in_use_tokens is not None and reuse.overflows
            for reuse in reuses
        )
        but = " (apart from what preempted requests find)" if outgrown else ""
        more = knee or "no tier of any size serves more"
        yield f"    no more than the device alone{but}: {_listed([cell.arm for cell in useless])}; {more}"
    alike = []
    for smaller, larger in itertools.pairwise(ladder):
        beyond = [
            one - other for one, other in zip(adds[larger], adds[smaller], strict=True)
        ]
        if (
            smaller.scenario == larger.scenario
            and smaller not in useless
            and max(beyond) < NOTHING_POINTS
        ):
            alike.append(
                f"{larger.arm}, {_span(beyond)} points beyond {config.specification(smaller).budget.size}"
            )
    if alike:
        yield f"    add no more: {_listed(alike, '; ')}"
    if knee and not useless:
        yield f"    {knee}"


def _gain(curves: LevelCurves) -> float:
    """Percentage points that a tier of any size adds."""
    curve = curves.widest.tier
    return 0.0 if curve is None else 100 * (curve.ceiling - curve.base)


def _knee(config: Config, curves: LevelCurves) -> str:
    """Return a line on the sizes that add 50 and 90 % of what any tier adds; "" if that is less than NOTHING_POINTS."""
    found = curves.widest
    if found.tier is None or _gain(curves) < NOTHING_POINTS:
        return ""
    cells = [config.specification(cell) for cell in curves.cells]
    token_bytes = cells[0].model.kv_bytes_per_token
    named = []
    for _, tokens in needed_sizes(found.tier):
        held = math.ceil(tokens / found.usable[0])
        count = _rounded(needed_size(cells, held, curves.level).cpu_blocks)
        named.append(str(size_for_tokens(count * BLOCK_TOKENS, token_bytes)))
    sizes = " and ".join(named)
    of_any = f"{_gain(curves):.1f} points that a tier of any size adds"
    return f"{sizes} add 50 and 90 % of the {of_any}"


def _rounded(blocks: float) -> int:
    """Round up to two significant digits."""
    step = 10 ** max(0, math.floor(math.log10(blocks)) - 1) if blocks >= 1 else 1
    return math.ceil(blocks / step) * step


def _span(values: Sequence[float]) -> str:
    low, high = f"{min(values):.1f}", f"{max(values):.1f}"
    return low if low == high else f"{low} to {high}"


def _listed(texts: Iterable[str], between: str = ", ") -> str:
    """Join the first of these texts, and say how many more there are."""
    first, rest = (every := list(texts))[:_NAMED], len(every) - _NAMED
    return between.join(first) + (f" and {rest} more" if rest > 0 else "")
