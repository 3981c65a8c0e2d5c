"""The reuse curves of a campaign, computed without measuring: what caches of its sizes, and of others, would serve."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kveval.config.types import BLOCK_TOKENS
from kveval.load import levels as workloads
from kveval.report.figures.reuse import CurvePanel
from kveval.spec.config import Config
from kveval.spec.curve.of_cells import CellCurves, curves_of, needed_sizes, order_is_assumed
from kveval.spec.sizing import gib
from kveval.store.run_file import Cell
from kveval.workflow.planning.costs import device_tokens, reported_device
from kveval.workflow.planning.stored import StoreIndex

# Percentage points: a tier that adds less is of no use.
_NOTHING_POINTS = 0.5
_ALIKE = 0.05


class CurveRow(NamedTuple):
    """A cell at a level: percent of the prompt tokens served, least and most, and percentage points from the tier."""

    model: str
    level: int
    arm: str
    cpu_blocks: int
    gib: float
    served_percent: float | None
    served_percent_most: float | None
    adds_points: float | None


@dataclass(frozen=True)
class LevelCurves:
    """The cells of a model at a level, each with its curves, in the order of the matrix."""

    model: str
    level: int
    cells: dict[Cell, CellCurves]

    @property
    def widest(self) -> CellCurves:
        """The curves of the first cell with a tier, else of the device alone; they cover every tier size."""
        return next((one for one in self.cells.values() if one.tier_tokens), next(iter(self.cells.values())))


def level_curves(config: Config, store: StoreIndex) -> Iterator[LevelCurves]:
    """Yield the curves of every model and level; the sizes of devices as configured, or as servers reported them."""
    for model in dict.fromkeys(cell.model for cell in config.cells):
        specifications = {cell: config.specification(cell) for cell in config.cells if cell.model == model}
        reported = (reported_device(one, store) for one in specifications.values())
        device = next(filter(None, map(device_tokens, reported)), None)
        for level in next(iter(specifications.values())).workload.given_levels:
            found = {cell: curves_of(one, level, reported_tokens=device) for cell, one in specifications.items()}
            yield LevelCurves(model, level, found)


def curve_panel(config: Config, curves: LevelCurves) -> CurvePanel:
    """Return the panel of a level in the figure."""
    found, unit = curves.widest, workloads.level_unit(config.workload.specification)
    return CurvePanel(
        title=f"{curves.model}, {curves.level} {unit}",
        curve=found.tier or found.device,
        device=found.alone,
        asked=[cell.cpu_blocks for cell in curves.cells if cell.cpu_blocks],
    )


def curve_rows(config: Config, curves: LevelCurves) -> Iterator[CurveRow]:
    """Yield a row for each cell."""
    for cell, found in curves.cells.items():
        served = found.served
        low, high = (None, None) if served is None else (100 * served[0], 100 * served[1])
        adds = None if found.alone is None or high is None else high - 100 * found.alone
        size = gib(config.specification(cell).budget.tier_bytes)
        yield CurveRow(curves.model, curves.level, cell.scenario, cell.cpu_blocks, size, low, high, adds)


def curve_lines(
    config: Config, all_curves: Sequence[LevelCurves], notes: Sequence[Iterable[str]] = ()
) -> Iterator[str]:
    """Yield the curves as text, line by line; `notes`: lines to add after each level."""
    workload = config.workload.specification
    yield f"Campaign {config.campaign.name}: shares of the prompt tokens that its caches can serve, from the requests"
    yield f"themselves: {workloads.in_words(workload)}."
    if order_is_assumed(workload):
        yield "Approximate: assumes that each conversation ends before the next begins. Where answers take longer than"
        yield "the time between arrivals, conversations interleave, and a later turn needs a larger cache."
    for curves, lines in zip(all_curves, notes or [()] * len(all_curves), strict=True):
        yield ""
        yield from _level_lines(config, curves)
        yield from lines


def _level_lines(config: Config, curves: LevelCurves) -> Iterator[str]:
    workload, found = config.workload.specification, curves.widest
    unit = workloads.level_unit(workload)
    yield f"{curves.model}, {curves.level} {unit}"
    worst = max((found.device, *(one.tier for one in curves.cells.values() if one.tier)), key=lambda one: one.error)
    if worst.sampled < 1:
        error = f"standard error {100 * worst.error:.2f} points at most"
        yield f"  from a sample of one block in {1 / worst.sampled:,.0f}: {error}"
    if found.device_tokens is None:
        yield "  device alone        not known: no server of this model has reported how much its device holds"
    else:
        yield f"  {'device alone':<28} {found.device_tokens:>10,.0f} tokens  {_percent(found.alone)}"
    for row in curve_rows(config, curves):
        name = f"{f'{row.arm}/{row.cpu_blocks}':<28} {row.gib:6.2f} GiB"
        if not row.cpu_blocks:
            continue
        if row.served_percent is None or row.served_percent_most is None or row.adds_points is None:
            tier = curves.cells[Cell(row.model, row.arm, row.cpu_blocks)]
            yield f"  {name}  at least {_percent(tier.device.share(tier.tier_tokens * tier.usable[0]))}"
            continue
        low, high, adds = row.served_percent, row.served_percent_most, row.adds_points
        served = f"{high:.1f} %" if high - low < _ALIKE else f"{low:.1f} to {high:.1f} %"
        yield f"  {name}  {served}, {'adds nothing' if adds < _NOTHING_POINTS else f'adds {adds:.1f} points'}"
    yield f"  {'of any size':<41} {_percent(found.device.ceiling)}: no cache serves a first visit"
    curve = found.tier or found.device
    sizes = needed_sizes(curve)
    if not sizes:
        why = "The device serves everything that is repeated" if curve.ceiling else "Nothing is repeated"
        yield f"  {why}: no tier adds anything"
        return
    model = config.specification(next(iter(curves.cells))).model
    per_block = gib(BLOCK_TOKENS * model.kv_bytes_per_token)
    blocks = [(part, -(-size // BLOCK_TOKENS)) for part, size in sizes]
    steps = ", ".join(f"{100 * part:.0f} % with {one:,} blocks ({one * per_block:.2f} GiB)" for part, one in blocks)
    what = "cache serves" if found.tier is None else "tier adds"
    yield f"  Of what any {what}, {100 * (curve.ceiling - curve.base):.1f} points: {steps}"


def _percent(share: float | None) -> str:
    return "not known" if share is None else f"{100 * share:.1f} %"
