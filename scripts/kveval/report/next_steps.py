"""Steps that would make a campaign's answer more certain, the most useful first."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pandas as pd

from kveval.analysis.disturbed_blocks import DisturbedBlocks
from kveval.analysis.statistics import verdict_words as words
from kveval.analysis.statistics.findings import ground_codes
from kveval.campaign.cell import Cell
from kveval.host.findings import pluralize
from kveval.load.sample_sizes import MIN_RUNS
from kveval.report.data.campaign import (
    Measured,
    ReportPlan,
    abbreviate,
)
from kveval.report.data.comparisons import baseline_comparisons
from kveval.report.tables.not_assessed import (
    TO_BE_ACTIVE,
    next_step_for,
    runs_lacking,
)

_MOST = 4
_few = partial(abbreviate, most=2)
# More runs than this are not proposed.
_WORTHWHILE = 20
_REPEAT = "`kveval repeat --disturbed`"
_WHILE_IDLE = "find out what slows it while its tier serves nothing; `check` compares two builds of the server"


@dataclass(frozen=True)
class NextStep:
    """A step in words, with the code of the warning that it answers (`vocabulary.WARNINGS`).

    `command`: what takes it, "" if nothing to paste does.
    `first`: until this is done, the commands of others would not help.
    """

    code: str
    text: str
    command: str = ""
    first: bool = False


def next_steps(
    plan: ReportPlan, measured: Measured, metric: str
) -> tuple[NextStep, ...]:
    """Return at most four steps, the first of them with a command if any has one; `metric`: that of the answer."""
    rows = baseline_comparisons(plan, measured.comparison, metric)
    name = _namer(plan)
    more = [*_undecided(plan, rows, name)] or [*_more_runs(plan, rows)]
    causes = [*_disturbed(plan, measured), *_missing(plan, measured, name)]
    steps = [*causes, *_without_verdict(plan, rows, name), *more]
    steps += [*_edge(measured, name), *_miniature(measured)]
    return _with_command_first(steps[:_MOST])


def _with_command_first(steps: Sequence[NextStep]) -> tuple[NextStep, ...]:
    """Return the steps, the first that a command takes in front, unless another one has to come first."""
    taken = next((step for step in steps if step.command or step.first), None)
    if taken is None:
        return tuple(steps)
    return (taken, *(step for step in steps if step is not taken))


def _namer(plan: ReportPlan) -> Callable[[Cell], str]:
    """Return a function that names cells, with the model if there are several."""
    single_model = len(plan.models_by_size) == 1
    return lambda cell: cell.label if single_model else cell.full_label


def _missing(
    plan: ReportPlan, measured: Measured, name: Callable[[Cell], str]
) -> Iterator[NextStep]:
    absent = [cell for cell in plan.cells if not measured.runs_of(cell)]
    runs = sum(plan.runs_of(cell) - len(measured.runs_of(cell)) for cell in plan.cells)
    if absent:
        cells = _few([name(cell) for cell in absent])
        text = f"Measure the missing cells, {cells}: `report` measures only those."
        yield NextStep("missing", text, plan.command_with(""))
    elif runs > 0:
        text = f"Measure the {runs} missing runs: `report` measures only those."
        yield NextStep("missing", text, plan.command_with(""))


def _disturbed(plan: ReportPlan, measured: Measured) -> Iterator[NextStep]:
    """Yield what other programs took of the host's processors, if fewer blocks were quiet than a verdict rests on."""
    disturbed = DisturbedBlocks.from_runs(measured.runs, plan.runs)
    # With bridges, runs beyond the planned ones are those of a later time: no run can be added before them.
    bridged = any(plan.runs_of(cell) > plan.runs for cell in plan.cells)
    if bridged or not disturbed.needed:
        return
    most = max(run.others_percent for run in disturbed.runs)
    count = f"{len(disturbed.runs)} of {len(measured.runs)} runs"
    took = f"other programs took up to {most:.0f} % of this machine's processors in {count}"
    blocks = pluralize(disturbed.needed, "further block")
    command = plan.repeat_command
    named = f"`{command}`" if command else f"{_REPEAT}, with the campaign's file"
    text = f"Wait until the machine is quiet, then {named}: {took}; it plans {blocks}, one run of every cell each."
    yield NextStep("disturbed", text, command, first=True)


def _without_verdict(
    plan: ReportPlan, rows: list[dict[Any, Any]], name: Callable[[Cell], str]
) -> Iterator[NextStep]:
    """Yield steps that would give verdicts, each with the arms without a verdict, or idle ones, that need it."""
    steps: dict[NextStep, list[str]] = {}
    for row in rows:
        if row.get("replicate"):
            continue
        if step := _step_to_verdict(plan, row):
            steps.setdefault(step, []).append(name(Cell.from_row(row)))
    for step, names in steps.items():
        yield replace(step, text=f"For {_few(names)}: {step.text}.")


def _step_to_verdict(plan: ReportPlan, row: Mapping[Any, Any]) -> NextStep | None:
    """The step that would give a comparison a verdict, or make an idle arm active; None where neither is needed."""
    if row["verdict"] not in words.VERDICTS or _failed(row):
        more = runs_lacking(plan, row)
        if more is None or row["verdict"] == words.NOT_EXERCISED:
            return NextStep("no_verdict", next_step_for(plan, row))
        text = more.in_words(plan)
        return NextStep("few_runs", text, plan.command_with(more.settings(plan)))
    if row["verdict"] == words.WORSE_IDLE:
        return NextStep("slower_while_idle", _WHILE_IDLE)
    return NextStep("idle", TO_BE_ACTIVE) if words.is_of_idle_arm(row) else None


def _failed(row: Mapping[Any, Any]) -> bool:
    """Whether too many runs failed for a verdict that the others would give."""
    return "many_failed" in ground_codes(row)


def _undecided(
    plan: ReportPlan, rows: list[dict[Any, Any]], name: Callable[[Cell], str]
) -> Iterator[NextStep]:
    """Yield the number of runs for a verdict if it is affordable, else another step."""
    open_ = [
        row for row in rows if row["verdict"] == words.INCONCLUSIVE and not _failed(row)
    ]
    needed = {
        name(Cell.from_row(row)): row.get("runs_to_resolve", math.nan) for row in open_
    }
    few = {
        named: runs
        for named, runs in needed.items()
        if pd.notna(runs) and runs <= _WORTHWHILE
    }
    if few:
        runs = max(*few.values(), max(int(row["runs"]) for row in open_) + 1)
        difference = f"a difference of {100 * plan.margin:g} % for {_few([*few])}"
        text = f"`runs: {runs:.0f}` would resolve {difference}."
        yield NextStep("undecided", text, plan.command_with(f"runs={runs:.0f}"))
    many = [named for named in needed if named not in few]
    if many:
        step = "longer levels, or a machine that does nothing else: at this spread, more runs are not enough"
        yield NextStep("spread", f"For {_few(many)}: {step}.")


def _more_runs(plan: ReportPlan, rows: list[dict[Any, Any]]) -> Iterator[NextStep]:
    decided = [row for row in rows if row["verdict"] in words.VERDICTS]
    if decided and max(int(row["runs"]) for row in decided) < MIN_RUNS + 2:
        text = f"`runs: {MIN_RUNS + 2}` narrows the intervals; existing runs are kept."
        command = plan.command_with(f"runs={MIN_RUNS + 2}")
        yield NextStep("few_runs", text, command)


def _edge(measured: Measured, name: Callable[[Cell], str]) -> Iterator[NextStep]:
    edge = measured.peaks[
        ~measured.peaks["bracketed"].astype(bool)
        & (measured.peaks["levels_measured"] > 1)
    ]
    if len(edge):
        names = _few([name(Cell.from_row(row)) for row in edge.to_dict("records")])
        where = "at which the highest throughput was measured"
        yield NextStep(
            "peak_at_edge", f"Add levels beyond the first or last, {where}: {names}."
        )


def _miniature(measured: Measured) -> Iterator[NextStep]:
    if measured.runs[0].weights == "miniature":
        yield NextStep(
            "not_the_model",
            "The same campaign with `weights: full` on a GPU: a miniature does not show a GPU's speed.",
        )
