"""Effects with their errors: cells of the same blocks are estimated together; errors include sessions and drift."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kveval.analysis.estimators.intervals import (
    Contrast,
    contrasts,
    holm,
    percent,
    welch,
)
from kveval.analysis.estimators.power import parity_power, runs_to_resolve
from kveval.analysis.estimators.spreads import Array
from kveval.analysis.statistics.comparison import (
    CellRows,
    ComparedCell,
    missing_value_reason,
    unfit_reason,
)
from kveval.analysis.statistics.evidence import Evidence
from kveval.analysis.statistics.inputs import failed_requests_bounds
from kveval.analysis.statistics.pairing import epoch_seconds
from kveval.analysis.statistics.run_times import (
    constant_offset,
    group_by_session,
    session_effect,
    trend_error,
)
from kveval.analysis.statistics.uncertainty import widen_by_noise
from kveval.campaign.cell import Cell

# Each half of the runs is evaluated at the level chosen by the other half. If levels are alike, both halves are high
# when they choose the same level, else both low: a correlation of 0.29 (8 levels) to 0.36 (3), which the spread of runs
# does not show; the variance is raised by it.
_CROSS_FITTED = 1.36


def estimate(
    entries: Sequence[ComparedCell],
    margin: float,
    alpha: float,
    method: str,
    pauses: Sequence[float] = (),
) -> None:
    """Fill in effects, and with two or more runs their errors, for all cells of the same blocks together.

    `pauses`: the times of the campaign's pauses, s since 1970, which separate sessions.
    """
    groups: dict[tuple[Any, ...], list[ComparedCell]] = {}
    for entry in entries:
        if len(entry.sides) == 0 or entry.reference is None:
            continue
        entry.row["effect_percent"] = percent(entry.sides.difference)
        if len(entry.sides) >= 2 and entry.other_time:
            contrast = welch(*entry.sides.logs[::-1])
            write_estimate(
                entry,
                contrast,
                float(contrast.se * np.sqrt(len(entry.sides) / 2)),
                margin,
                alpha,
            )
        elif len(entry.sides) >= 2:
            groups.setdefault(entry.group, []).append(entry)
    for members in groups.values():
        _estimate_blocks(members, margin, alpha, method, pauses)


def _estimate_blocks(
    members: Sequence[ComparedCell],
    margin: float,
    alpha: float,
    method: str,
    pauses: Sequence[float],
) -> None:
    """Estimate the comparisons of cells that were measured in the same blocks."""
    columns: dict[Cell, tuple[Array, Array]] = {}
    for entry in members:
        assert entry.reference is not None
        of_both = (entry.reference, entry.sides.reference), (entry.arm, entry.sides.arm)
        for (cell, rows), logs in zip(of_both, entry.sides.logs, strict=True):
            starts = np.array(
                [epoch_seconds(row.get("run_started")) for row in rows],
                dtype=np.float64,
            )
            columns.setdefault(cell, (logs, starts))
    place = {cell: number for number, cell in enumerate(columns)}
    table = np.column_stack([logs for logs, _ in columns.values()])
    starts = np.column_stack([times for _, times in columns.values()])
    pairs = [
        (place[entry.arm], place[entry.reference])
        for entry in members
        if entry.reference is not None
    ]
    groups = group_by_session(starts, pauses)
    session_part = session_effect(table, groups)
    trend = trend_error(table, starts)
    for entry, contrast, (arm, reference) in zip(
        members, contrasts(table, pairs, method), pairs, strict=True
    ):
        entry.cells = len(columns)
        sd = float(contrast.se * np.sqrt(len(table) / 2))
        widened = replace(
            contrast,
            se=contrast.se
            * float(np.sqrt(_CROSS_FITTED if entry.kind == "peak" else 1.0)),
        )
        if session_part:
            error = widened.se * float(np.sqrt(session_part.variance_factor))
            widened = replace(
                widened,
                se=error,
                df=min(widened.df, session_part.df),
                method="sessions",
            )
        if session_part and session_part.significant:
            reason = (
                f"the {len(table)} runs were measured in {len(groups)} sessions and differ less within a session than "
                "between them; the interval allows for that, and runs in further sessions would narrow it"
            )
            entry.add_evidence(
                Evidence("blocks", f"{len(groups)} sessions", "qualifies", reason)
            )
        write_estimate(
            entry,
            _after_drift(
                entry, widened, trend, constant_offset(starts, arm, reference)
            ),
            sd,
            margin,
            alpha,
        )


def _after_drift(
    entry: ComparedCell, contrast: Contrast, trend: float | None, offset: float | None
) -> Contrast:
    """Return a contrast with the error that a drift of the machine may have caused if the order never changed."""
    if offset is None:
        entry.add_evidence(Evidence("order", "not known", "unknown"))
        return contrast
    if offset == 0 or trend is None:
        entry.add_evidence(Evidence("order", "varied"))
        return contrast
    error = trend * abs(offset)
    reason = (
        "every block was measured in the same order, so a drift of the machine looks like an effect of the arm: the "
        f"interval allows for the runs' trend, {100 * error:.1f} % between the two cells; measure in random order"
    )
    entry.add_evidence(Evidence("order", "fixed order", "qualifies", reason))
    return contrast.with_error(error)


def write_estimate(
    entry: ComparedCell, contrast: Contrast, sd: float, margin: float, alpha: float
) -> None:
    """Write a contrast into an entry, widened by the noise within its runs and by biases.

    `sd` is the spread of one run on the ln scale.
    """
    entry.row["sd_percent"] = 100 * sd
    sides = entry.sides
    known = widen_by_noise(contrast, sides.reference, sides.arm, sides.metric)
    below, above = failed_requests_bounds(sides)
    _write(
        entry,
        replace(known, below=known.below + below, above=known.above + above),
        margin,
        alpha,
    )


def _write(
    entry: ComparedCell, contrast: Contrast, margin: float, alpha: float
) -> None:
    entry.contrast = contrast
    entry.row |= {
        "effect_percent": percent(contrast.theta),
        "p_value": contrast.p_difference(),
        "p_parity": contrast.p_equivalence(margin),
        "method": contrast.method,
    }
    show_interval(entry, 1 - alpha)


def show_interval(entry: ComparedCell, confidence: float) -> None:
    """Write the interval with a given confidence into an estimated entry."""
    assert entry.contrast is not None
    low, high = entry.contrast.interval(confidence)
    entry.row |= {
        "low_percent": percent(low),
        "high_percent": percent(high),
        "interval_percent": 100 * confidence,
    }


def widen_by_copies(
    entries: Sequence[ComparedCell], margin: float, alpha: float
) -> None:
    """Widen comparisons by the difference between cells that ran the same configuration, if it is significant.

    `entries`: all of one model and metric, including those of copies with each other. A difference between copies is a
    bias that the spread of runs does not show, and any other difference may contain it as well.
    """
    copies = [
        entry for entry in entries if entry.replicate and entry.contrast is not None
    ]
    adjusted = holm([entry.row["p_value"] for entry in copies])
    significant = [
        abs(copy.contrast.theta)
        for copy, p in zip(copies, adjusted, strict=True)
        if copy.contrast and p < alpha
    ]
    bias = max(significant, default=0.0)
    evidence = Evidence("replicates", "copies alike")
    if significant:
        apart = f"differ by {percent(bias):.1f} %"
        reason = f"cells that ran the same configuration {apart}, more than by chance, so smaller differences get no verdict"
        evidence = Evidence("replicates", f"replicates {apart}", "qualifies", reason)
    for entry in entries if copies else ():
        if not entry.replicate and entry.contrast is not None:
            entry.add_evidence(evidence)
            widened = replace(
                entry.contrast,
                below=entry.contrast.below + bias,
                above=entry.contrast.above + bias,
            )
            _write(entry, widened, margin, alpha)


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


def pooled_spread(
    cells: Mapping[Cell, CellRows],
    groups: Iterable[Sequence[Cell]],
    metric: str,
    levels: Mapping[str, int | None],
) -> tuple[float, int] | None:
    """Return the spread of replicates about the mean of their group, run by run, at each model's compared level.

    That is the standard deviation of one run on the ln scale, and its degrees of freedom. Levels that failed a check
    are left out. None without any replicate. It is tested on a published case: 58.7, 60.6, 64.5 and 66.3, 74.6 tok/s
    give 6.2 % on the ln scale with 3 degrees of freedom.
    """
    squares, freedom = 0.0, 0
    for group in groups:
        level = levels.get(group[0].model)
        by_run: dict[int, list[float]] = {}
        for cell in group:
            for (run, at), row in cells[cell].items():
                if (
                    at == level
                    and not missing_value_reason(row, metric)
                    and not unfit_reason(row, metric)
                ):
                    by_run.setdefault(run, []).append(float(np.log(row[metric])))
        for logs in by_run.values():
            # Equal to the digit are copies of one run.
            values = list(dict.fromkeys(logs))
            squares += float(np.var(values)) * len(values)
            freedom += len(values) - 1
    return (float(np.sqrt(squares / freedom)), freedom) if freedom else None


def add_runs_needed(
    entry: ComparedCell, margin: float, alpha: float, comparisons: int
) -> None:
    """Write the runs needed for a verdict, and the power of these runs, adjusted for the family's `comparisons`."""
    if entry.contrast is None:
        return
    sd, runs = entry.row["sd_percent"] / 100, max(len(entry.sides), 2)
    count = max(comparisons, 1)
    entry.row |= {
        "runs_to_resolve": runs_to_resolve(sd, margin, entry.cells, alpha, count),
        "parity_power_percent": 100
        * parity_power(sd, margin, runs, entry.cells, alpha, count),
    }
