"""Steps that would make a campaign's answer more certain, the most useful first, and their sentences."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd

from kveval.campaign.cell import Cell
from kveval.host.findings import pluralize
from kveval.load.sample_sizes import MIN_RUNS
from kveval.report.data.arm_links import arm_link
from kveval.report.data.campaign import (
    Measured,
    ReportPlan,
    abbreviate,
)
from kveval.report.data.comparisons import baseline_comparisons
from kveval.report.result.model import (
    CampaignResult,
    ReportedStep,
    named_cells,
)
from kveval.report.tables.not_assessed import (
    TO_BE_ACTIVE,
    next_step_for,
    runs_lacking,
)
from kveval.tables.disturbed_blocks import blocks_to_add, disturbed_runs
from kveval.verdict import verdict_words as words
from kveval.verdict.findings import ground_codes

_MOST = 4
_few = partial(abbreviate, most=2)
# More runs than this are not proposed.
_WORTHWHILE = 20
_WHILE_IDLE = "find out what slows it while its tier serves nothing; `check` compares two builds of the server"
# Until these are done, the commands of others would not help.
_FIRST = frozenset({"disturbed"})


def next_steps(
    plan: ReportPlan, measured: Measured, metric: str
) -> tuple[ReportedStep, ...]:
    """Return at most four steps, the first of them with a command if any has one; `metric`: that of the answer."""
    rows = baseline_comparisons(plan, measured.comparison, metric)
    more = [*_undecided(plan, rows)] or [*_more_runs(plan, rows)]
    causes = [*_disturbed(plan, measured), *_missing(plan, measured)]
    steps = [*causes, *_without_verdict(plan, rows), *more]
    steps += [*_edge(measured), *_miniature(measured)]
    return _with_command_first(steps[:_MOST])


def _with_command_first(steps: Sequence[ReportedStep]) -> tuple[ReportedStep, ...]:
    """Return the steps, the first that a command takes in front, unless another one has to come first."""
    taken = next((step for step in steps if step.command or step.code in _FIRST), None)
    if taken is None:
        return tuple(steps)
    return (taken, *(step for step in steps if step is not taken))


def _step(
    code: str, cells: Iterable[Cell] = (), command: str = "", **facts: Any
) -> ReportedStep:
    named = named_cells(cells)
    return ReportedStep(code=code, cells=named, command=command, facts=facts)


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
        yield _step(step.code, cells, step.command, **step.facts)


def _step_to_verdict(plan: ReportPlan, row: Mapping[Any, Any]) -> ReportedStep | None:
    """The step that would give a comparison a verdict, or make an idle arm active; None where neither is needed."""
    if row["verdict"] not in words.VERDICTS or _failed(row):
        more = runs_lacking(plan, row)
        if more is None or row["verdict"] == words.NOT_EXERCISED:
            return _step("no_verdict", settled_by=next_step_for(plan, row))
        name = "more_runs" if more.more else "missing_runs"
        facts = {name: more.more or more.missing, "settled_by": more.in_words(plan)}
        return _step("few_runs", (), plan.command_with(more.settings(plan)), **facts)
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
        if pd.notna(runs) and runs <= _WORTHWHILE
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


def step_sentence(result: CampaignResult, step: ReportedStep) -> str:
    """Return a step in a sentence, its cells with links to their runs."""
    several_models = len(result.common_levels) > 1
    names = [
        f"{cell.model} with {arm_link(cell)}" if several_models else arm_link(cell)
        for cell in step.cells
    ]
    return _SENTENCES[step.code](result, step, _few(names))


def _missing_sentence(_: CampaignResult, step: ReportedStep, cells: str) -> str:
    what = f"cells, {cells}" if cells else "runs"
    count = "" if cells else f"{step.facts['runs']} "
    return f"Measure the {count}missing {what}: `report` measures only those."


def _disturbed_sentence(_: CampaignResult, step: ReportedStep, __: str) -> str:
    facts = step.facts
    count = f"{facts['disturbed_runs']} of {facts['measured_runs']} runs"
    took = f"other programs took up to {facts['most_percent']:.0f} % of this machine's processors in {count}"
    blocks = pluralize(facts["blocks"], "further block")
    how = (
        f"`runs: {facts['runs']}`"
        if "runs" in facts
        else "more `runs` in the campaigns that measured them"
    )
    return (
        f"Wait until the machine is quiet, then {how}: {took}; it takes {blocks}, one run of every cell each, to make up"
        " for them."
    )


def _sentence_on_cells(_: CampaignResult, step: ReportedStep, cells: str) -> str:
    return f"For {cells}: {step.facts.get('settled_by') or _SETTLED_BY[step.code]}."


_SETTLED_BY = {
    "slower_while_idle": _WHILE_IDLE,
    "idle": TO_BE_ACTIVE,
    "spread": "longer levels, or a machine that does nothing else: at this spread it would take more than"
    f" {_WORTHWHILE} runs",
}


def _few_runs_sentence(result: CampaignResult, step: ReportedStep, cells: str) -> str:
    if cells:
        return _sentence_on_cells(result, step, cells)
    runs = step.facts["runs"]
    return f"`runs: {runs}` narrows the intervals; existing runs are kept."


def _undecided_sentence(_: CampaignResult, step: ReportedStep, cells: str) -> str:
    return f"`runs: {step.facts['runs']}` would decide on {cells}, at the effect and spread measured."


def _edge_sentence(_: CampaignResult, __: ReportedStep, cells: str) -> str:
    where = "at which the highest throughput was measured"
    return f"Add levels beyond the first or last, {where}: {cells}."


def _miniature_sentence(*_: object) -> str:
    return "The same campaign with `weights: full` on a GPU: a miniature does not show a GPU's speed."


_SENTENCES: Mapping[str, Callable[[CampaignResult, ReportedStep, str], str]] = {
    "disturbed": _disturbed_sentence,
    "missing": _missing_sentence,
    "no_verdict": _sentence_on_cells,
    "few_runs": _few_runs_sentence,
    "slower_while_idle": _sentence_on_cells,
    "idle": _sentence_on_cells,
    "undecided": _undecided_sentence,
    "spread": _sentence_on_cells,
    "peak_at_edge": _edge_sentence,
    "not_the_model": _miniature_sentence,
}
