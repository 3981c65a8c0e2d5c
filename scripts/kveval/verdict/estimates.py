"""Effects with their errors: cells of the same blocks are estimated together; errors include pauses and drift."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kveval.campaign.cell import Cell
from kveval.estimators.intervals import (
    Contrast,
    contrasts,
    holm,
    percent,
    welch,
)
from kveval.estimators.spreads import Array
from kveval.verdict.comparison import ComparisonBasis, Estimate
from kveval.verdict.findings import ComparisonFinding, new_finding
from kveval.verdict.inputs import failed_requests_bounds
from kveval.verdict.pairing import CellRows, epoch_seconds
from kveval.verdict.run_times import (
    constant_offset,
    pause_effect,
    trend_error,
)
from kveval.verdict.sides import Sides
from kveval.verdict.uncertainty import unsteady_refusals, widen_by_noise

# Each half of the runs is evaluated at the level chosen by the other half. If levels are alike, both halves are high
# when they choose the same level, else both low: a correlation of 0.29 (8 levels) to 0.36 (3), which the spread of runs
# does not show; the variance is raised by it.
_CROSS_FITTED = 1.36


def estimates(
    bases: Sequence[ComparisonBasis],
    alpha: float,
    pauses: Sequence[float] = (),
) -> list[Estimate]:
    """Return the comparisons with their effects, and with two or more runs their errors, in the order given.

    `bases`: all of one model and metric, those of cells that ran the same configuration among them; cells of the same
    blocks are estimated together. `pauses`: the times of the campaign's pauses, s since 1970.
    """
    made = {basis: Estimate(basis, basis.findings) for basis in bases}
    groups: dict[tuple[object, ...], list[ComparisonBasis]] = {}
    for basis in bases:
        if len(basis.sides) < 2 or basis.question.reference is None:
            continue
        if not basis.usable.paired.pairing.together:
            made[basis] = _of_other_times(basis)
        else:
            groups.setdefault(basis.group, []).append(basis)
    for members in groups.values():
        blocks = _Blocks.of(members, pauses)
        made |= {basis: blocks.estimate(basis) for basis in members}
    widened = _widened_by_copies([made[basis] for basis in bases], alpha)
    # First, so that what refuses a comparison for a more fundamental reason comes after it.
    return [
        replace(each, findings=(*unsteady_refusals(each.sides), *each.findings))
        for each in widened
    ]


def _of_other_times(basis: ComparisonBasis) -> Estimate:
    """The estimate of two cells that share no blocks."""
    contrast = welch(*basis.sides.logs[::-1])
    sd = float(contrast.se * np.sqrt(len(basis.sides) / 2))
    known = within_runs(contrast, basis.sides)
    return Estimate(basis, basis.findings, known, sd)


@dataclass(frozen=True)
class _Blocks:
    """Comparisons of cells that were measured in the same blocks; tables are runs x cells, in the order of `cells`."""

    cells: tuple[Cell, ...]
    contrasts: Mapping[ComparisonBasis, Contrast]
    starts: Array
    pause_effect: tuple[float, float] | None
    trend: float | None

    @classmethod
    def of(cls, members: Sequence[ComparisonBasis], pauses: Sequence[float]) -> _Blocks:
        """Return the blocks of these comparisons."""
        columns: dict[Cell, tuple[Array, Array]] = {}
        pairs = []
        for basis in members:
            question, sides = basis.question, basis.sides
            assert question.reference is not None
            of_both = (question.reference, sides.reference), (question.arm, sides.arm)
            for (cell, rows), logs in zip(of_both, sides.logs, strict=True):
                times = [epoch_seconds(row.get("run_started")) for row in rows]
                columns.setdefault(cell, (logs, np.array(times, dtype=np.float64)))
            places = [*columns]
            pairs.append((places.index(question.arm), places.index(question.reference)))
        table = np.column_stack([logs for logs, _ in columns.values()])
        starts = np.column_stack([times for _, times in columns.values()])
        estimated = contrasts(table, pairs)
        return cls(
            tuple(columns),
            dict(zip(members, estimated, strict=True)),
            starts,
            pause_effect(table, starts, pauses),
            trend_error(table, starts),
        )

    def estimate(self, basis: ComparisonBasis) -> Estimate:
        """Return the estimate of one of the comparisons."""
        contrast, runs = self.contrasts[basis], len(self.starts)
        sd = float(contrast.se * np.sqrt(runs / 2))
        factor = _CROSS_FITTED if basis.question.kind == "peak" else 1.0
        widened = replace(contrast, se=contrast.se * float(np.sqrt(factor)))
        if self.pause_effect is not None:
            variance_factor, df = self.pause_effect
            error = widened.se * float(np.sqrt(variance_factor))
            widened = replace(widened, se=error, df=min(widened.df, df))
        drift, order = self._drift(basis)
        widened = widened.with_error(drift)
        return Estimate(
            basis,
            (*basis.findings, order),
            within_runs(widened, basis.sides),
            sd,
            len(self.cells),
        )

    def _drift(self, basis: ComparisonBasis) -> tuple[float, ComparisonFinding]:
        """The error that a drift of the machine may have caused if the order never changed, and what is known of it."""
        assert basis.question.reference is not None
        arm, reference = map(
            self.cells.index, (basis.question.arm, basis.question.reference)
        )
        offset = constant_offset(self.starts, arm, reference)
        if offset is None:
            return 0.0, new_finding("order_unknown")
        if offset == 0 or self.trend is None:
            return 0.0, new_finding("order_varied")
        error = self.trend * abs(offset)
        return error, new_finding("fixed_order", percent=100 * error)


def within_runs(contrast: Contrast, sides: Sides) -> Contrast:
    """Return a contrast widened by the noise within its runs and by biases."""
    known = widen_by_noise(contrast, sides.reference, sides.arm, sides.metric)
    below, above = failed_requests_bounds(sides)
    return replace(known, below=known.below + below, above=known.above + above)


def _widened_by_copies(estimated: Sequence[Estimate], alpha: float) -> list[Estimate]:
    """Widen comparisons by the difference between cells that ran the same configuration, if it is significant.

    A difference between copies is a bias that the spread of runs does not show, and any other difference may contain it
    as well.
    """
    copies = [
        each.contrast for each in estimated if each.basis.replicate and each.contrast
    ]
    if not copies:
        return list(estimated)
    adjusted = holm([contrast.p_difference() for contrast in copies])
    significant = [
        abs(contrast.theta)
        for contrast, p in zip(copies, adjusted, strict=True)
        if p < alpha
    ]
    bias = max(significant, default=0.0)
    finding = new_finding("copies_alike")
    if significant:
        finding = new_finding("copies_differ", percent=percent(bias))
    return [_with_bias(each, bias, finding) for each in estimated]


def _with_bias(each: Estimate, bias: float, finding: ComparisonFinding) -> Estimate:
    """Return an estimate with a bias to either side, and why; those of copies, and without errors, as they are."""
    contrast = each.contrast
    if each.basis.replicate or contrast is None:
        return each
    return replace(
        each,
        findings=(*each.findings, finding),
        contrast=replace(
            contrast, below=contrast.below + bias, above=contrast.above + bias
        ),
    )


def configurations(cells: Mapping[Cell, CellRows]) -> dict[Cell, str]:
    """Return the configuration that each cell ran, as a hash; "" if it is not known, or its runs differ."""
    by_cell = {}
    for cell, rows in cells.items():
        names = {str(row.get("configuration") or "") for row in rows.values()} - {"nan"}
        by_cell[cell] = names.pop() if len(names) == 1 else ""
    return by_cell


def replicate_groups(cells: Mapping[Cell, CellRows]) -> list[list[Cell]]:
    """Return the groups of two or more cells of one model that ran the same configuration."""
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell, configuration in configurations(cells).items():
        if configuration:
            groups.setdefault((cell.model, configuration), []).append(cell)
    return [group for group in groups.values() if len(group) > 1]
