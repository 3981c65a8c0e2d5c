"""Steps that would make a campaign's answer more certain, the most useful first."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from kveval.campaign.cell import Cell
from kveval.load.sample_sizes import MIN_RUNS
from kveval.report.data.campaign import Measured, ReportPlan
from kveval.report.data.comparisons import baseline_comparisons
from kveval.report.result.model import Remedy, ReportedStep, named_cells
from kveval.report.result.remedies import WORTHWHILE, remedies_of, runs_lacking
from kveval.tables.disturbed_blocks import blocks_to_add, disturbed_runs
from kveval.verdict import verdict_words as words
from kveval.verdict.findings import ground_codes

_MOST = 4
# Until these are done, the commands of others would not help.
_FIRST = frozenset({"disturbed"})


def next_steps(
    plan: ReportPlan, measured: Measured, metric: str
) -> tuple[ReportedStep, ...]:
    """Return at most four steps, the first of them with a command if any has one; `metric`: that of the answer."""
    rows = baseline_comparisons(plan, measured.comparison, metric)
    more = [*_undecided(plan, rows)] or [*_more_runs(plan, rows)]
    causes = [*_disturbed(plan, measured), *_missing(plan, measured)]
    without = [*_without_verdict(plan, rows)]
    idle = [step for step in without if step.code == "idle"]
    steps = [*causes, *(step for step in without if step not in idle), *more, *idle]
    steps += [*_edge(measured), *_miniature(measured)]
    return _with_command_first(steps[:_MOST])


def _with_command_first(steps: Sequence[ReportedStep]) -> tuple[ReportedStep, ...]:
    """Return the steps, the first that a command takes in front, unless another one has to come first."""
    taken = next((step for step in steps if step.command or step.code in _FIRST), None)
    if taken is None:
        return tuple(steps)
    return (taken, *(step for step in steps if step is not taken))


def _step(
    code: str,
    cells: Iterable[Cell] = (),
    command: str = "",
    remedies: Sequence[Remedy] = (),
    **facts: Any,
) -> ReportedStep:
    return ReportedStep(
        code=code,
        cells=named_cells(cells),
        command=command,
        facts=facts,
        remedies=[*remedies],
    )


def _missing(plan: ReportPlan, measured: Measured) -> Iterator[ReportedStep]:
    absent = [cell for cell in plan.cells if not measured.runs_of(cell)]
    runs = sum(plan.runs_of(cell) - len(measured.runs_of(cell)) for cell in plan.cells)
    if absent or runs > 0:
        yield _step("missing", absent, plan.command_with(""), runs=runs)


def _disturbed(plan: ReportPlan, measured: Measured) -> Iterator[ReportedStep]:
    """Yield what other programs took of the host's processors, if fewer blocks were quiet than a verdict rests on."""
    disturbed = disturbed_runs(measured.runs, plan.runs)
    blocks = blocks_to_add(disturbed, plan.runs)
    # With bridges, runs beyond the planned ones are those of a later time: no run can be added before them.
    bridged = any(plan.runs_of(cell) > plan.runs for cell in plan.cells)
    if bridged or not blocks:
        return
    runs = plan.runs + blocks
    facts: dict[str, Any] = {
        "disturbed_runs": len(disturbed),
        "measured_runs": len(measured.runs),
        "most_percent": max(run.others_percent for run in disturbed),
        "blocks": blocks,
    }
    if plan.measures:
        facts["runs"] = runs
    yield _step("disturbed", (), plan.command_with(f"runs={runs}"), **facts)


def _without_verdict(
    plan: ReportPlan, rows: list[dict[Any, Any]]
) -> Iterator[ReportedStep]:
    """Yield steps that would give verdicts, each with the arms without a verdict, or idle ones, that need it."""
    steps: dict[str, tuple[ReportedStep, list[Cell]]] = {}
    for row in rows:
        step = None if row.get("replicate") else _step_to_verdict(plan, row)
        if step is not None:
            _, cells = steps.setdefault(step.model_dump_json(), (step, []))
            cells.append(Cell.from_row(row))
    for step, cells in steps.values():
        yield _step(step.code, cells, step.command, step.remedies, **step.facts)


def _step_to_verdict(plan: ReportPlan, row: Mapping[Any, Any]) -> ReportedStep | None:
    """The step that would give a comparison a verdict, or make an idle arm active; None where neither is needed."""
    if row["verdict"] not in words.VERDICTS or _failed(row):
        more = runs_lacking(plan, row)
        if more is None or row["verdict"] == words.NOT_EXERCISED:
            return _step("no_verdict", remedies=remedies_of(plan, row))
        command = plan.command_with(more.settings(plan))
        return _step("few_runs", command=command, remedies=[more.remedy(plan)])
    if row["verdict"] == words.WORSE_IDLE:
        return _step("slower_while_idle")
    return _step("idle") if words.is_of_idle_arm(row) else None


def _failed(row: Mapping[Any, Any]) -> bool:
    """Whether too many runs failed for a verdict that the others would give."""
    return "many_failed" in ground_codes(row)


def _undecided(plan: ReportPlan, rows: list[dict[Any, Any]]) -> Iterator[ReportedStep]:
    """Yield the number of runs for a verdict if it is affordable, else another step; idle arms need another tier."""
    open_ = [
        row
        for row in rows
        if row["verdict"] == words.INCONCLUSIVE
        and not _failed(row)
        and not words.is_of_idle_arm(row)
    ]
    needed = {Cell.from_row(row): row.get("runs_to_decide", math.nan) for row in open_}
    few = {
        cell: int(runs)
        for cell, runs in needed.items()
        if pd.notna(runs) and runs <= WORTHWHILE
    }
    if few:
        # Runs that were left out are there already, and decide nothing.
        runs = max(*few.values(), plan.runs + 1)
        yield _step("undecided", few, plan.command_with(f"runs={runs}"), runs=runs)
    many = [cell for cell in needed if cell not in few]
    if many:
        yield _step("spread", many)


def _more_runs(plan: ReportPlan, rows: list[dict[Any, Any]]) -> Iterator[ReportedStep]:
    decided = [row for row in rows if row["verdict"] in words.VERDICTS]
    enough = MIN_RUNS + 2
    if decided and (kept := max(int(row["runs"]) for row in decided)) < enough:
        runs = enough if plan.runs < enough else plan.runs + enough - kept
        yield _step("few_runs", command=plan.command_with(f"runs={runs}"), runs=runs)


def _edge(measured: Measured) -> Iterator[ReportedStep]:
    if measured.peaks_at_edge:
        yield _step("peak_at_edge", measured.peaks_at_edge)


def _miniature(measured: Measured) -> Iterator[ReportedStep]:
    if measured.runs[0].weights == "miniature":
        yield _step("not_the_model")
