"""The sizes of tiers in a plan: which serve no more than the device, which hardly differ, which to choose."""

import itertools
import math
from collections.abc import Hashable, Iterator

from kveval.config.types import BLOCK_TOKENS
from kveval.load import levels as workloads
from kveval.spec.config import Config
from kveval.spec.curve.of_cells import block_count, needed_sizes
from kveval.spec.reuse import reuse_of
from kveval.store.run_file import Cell
from kveval.workflow.planning.curves import (
    NOTHING_POINTS,
    LevelCurves,
    ModelCells,
    cells_by_model,
    curve_rows,
    gib_per_block,
)
from kveval.workflow.planning.stored import StoreIndex

# Takes about a second; a level with more blocks is left to `snakemake curve`.
_MOST_BLOCKS = 1_000_000
_NAMED = 5
_KNEE = (0.5, 0.9)


def tier_size_lines(config: Config, store: StoreIndex) -> Iterator[str]:
    """Yield, for models with tiers and a device of known size, what each tier size adds, computed from the requests.

    At most four lines per model. Levels beyond a total of a million blocks are left out, and a line says so.
    """
    room = float(_MOST_BLOCKS)
    made: set[Hashable] = set()
    head = ["", "What tiers add to the device, computed from the requests (in detail: snakemake curve)"]
    for cells in cells_by_model(config, store):
        known = any(one.budget.device_tokens or cells.device for one in cells.specifications.values())
        if not known or not any(cell.cpu_blocks for cell in cells.specifications):
            continue
        found = []
        for level in cells.levels:
            new = {way: blocks for way, blocks in _ways(cells, level).items() if way not in made}
            if sum(new.values()) <= room:
                room -= sum(new.values())
                made |= new.keys()
                found.append(cells.at(level))
        lines = [*_model_lines(config, found)] if found else []
        if left := len(cells.levels) - len(found):
            lines.append(
                f"  {cells.model}: {left} of {len(cells.levels)} levels have too many requests for this summary"
            )
        yield from (*head, *lines)
        head = []


def _ways(cells: ModelCells, level: int) -> dict[Hashable, float]:
    """Return computation -> its blocks, for a level; models with equal device size and lookup share a computation."""
    each = {("lmcache" in one.versions, one.budget.device_tokens): one for one in cells.specifications.values()}
    return {
        (chunked, device or cells.device, level): block_count(one.workload, level, one.block_size)
        for (chunked, device), one in each.items()
    }


def _model_lines(config: Config, found: list[LevelCurves]) -> Iterator[str]:
    adds: dict[Cell, list[float]] = {}
    for curves in found:
        for row in curve_rows(config, curves):
            if row.cpu_blocks and row.adds_points is not None:
                adds.setdefault(Cell(row.model, row.arm, row.cpu_blocks), []).append(row.adds_points)
    if not adds:
        return
    ladder = sorted(adds, key=lambda cell: (cell.scenario, cell.cpu_blocks))
    best = max(found, key=_gain)
    where = "" if len(found) == 1 else f", {len(found)} levels"
    if len(found) == 1:
        where = f", {best.level} {workloads.level_unit(config.workload.specification)}"
    alone = [100 * curves.widest.alone for curves in found if curves.widest.alone is not None]
    each = [f"{_name(cell)} {_points(adds[cell])}" for cell in ladder[:_NAMED]]
    each += [f"{len(ladder) - _NAMED} more"] if len(ladder) > _NAMED else []
    yield f"  {best.model}{where}: the device serves {_span(alone)} %; tiers add, in points: {', '.join(each)}"
    knee = _knee(config, best)
    useless = [cell for cell in ladder if max(adds[cell]) < NOTHING_POINTS]
    if useless:
        more = knee or "no tier of any size serves more"
        yield f"    no more than the device alone{_but(config, useless)}: {_first(useless)}; {more}"
    alike = [
        f"{_name(larger)}, {_span(_over(adds[larger], adds[smaller]))} points beyond {smaller.cpu_blocks:,} blocks"
        for smaller, larger in itertools.pairwise(ladder)
        if smaller.scenario == larger.scenario
        and smaller not in useless
        and max(_over(adds[larger], adds[smaller])) < NOTHING_POINTS
    ]
    if alike:
        yield f"    add no more: {'; '.join(alike[:_NAMED])}"
    if knee and not useless:
        yield f"    {knee}"


def _but(config: Config, cells: list[Cell]) -> str:
    """Return a remark on what else a tier may save where requests in progress outgrow a device."""
    reuses = (reuse for cell in cells for reuse in reuse_of(config.specification(cell)))
    outgrown = any(reuse.demand.in_use_tokens is not None and reuse.overflows for reuse in reuses)
    return " (apart from what preempted requests find)" if outgrown else ""


def _gain(curves: LevelCurves) -> float:
    curve = curves.widest.tier
    return 0.0 if curve is None else curve.ceiling - curve.base


def _knee(config: Config, curves: LevelCurves) -> str:
    """Return a line on the sizes that add 50 and 90 % of what any tier adds; "" if that is less than NOTHING_POINTS."""
    found = curves.widest
    if found.tier is None or 100 * _gain(curves) < NOTHING_POINTS:
        return ""
    sizes = [_rounded(size / found.usable[0] / BLOCK_TOKENS) for _, size in needed_sizes(found.tier, _KNEE)]
    per_block = gib_per_block(config, curves)
    amounts = " and ".join(f"{size * per_block:.2g}" for size in sizes)
    parts = " and ".join(f"{100 * part:.0f}" for part in _KNEE)
    return (
        f"cpu_blocks: {sizes} ({amounts} GiB) add {parts} % of the {100 * _gain(curves):.1f} points"
        " that a tier of any size adds"
    )


def _rounded(blocks: float) -> int:
    """Round up to two significant digits."""
    step = 10 ** max(0, math.floor(math.log10(blocks)) - 1) if blocks >= 1 else 1
    return math.ceil(blocks / step) * step


def _over(larger: list[float], smaller: list[float]) -> list[float]:
    return [one - other for one, other in zip(larger, smaller, strict=True)]


def _points(values: list[float]) -> str:
    return f"+{_span(values)}"


def _span(values: list[float]) -> str:
    low, high = f"{min(values):.1f}", f"{max(values):.1f}"
    return low if low == high else f"{low} to {high}"


def _name(cell: Cell) -> str:
    return f"{cell.scenario}/{cell.cpu_blocks}"


def _first(cells: list[Cell]) -> str:
    named = ", ".join(map(_name, cells[:_NAMED]))
    return named + (f" and {len(cells) - _NAMED} more" if len(cells) > _NAMED else "")
