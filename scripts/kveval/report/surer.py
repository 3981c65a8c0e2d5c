"""Steps that would make a campaign's answer surer, the most useful first, in plain words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from kveval.analysis.cells import cell_of
from kveval.analysis.levels.checks import MIN_RUNS
from kveval.analysis.statistics import verdicts as words
from kveval.report.data.campaign import Measured, ReportPlan, cell_label
from kveval.report.tables.not_assessed import settled_by
from kveval.report.tables.results import is_against_baseline

_MOST = 4
# Beyond so many runs a step is no advice.
_WORTHWHILE = 20


def surer(plan: ReportPlan, measured: Measured, metric: str) -> tuple[str, ...]:
    """Return at most four steps; `metric`: the quantity that the answer is about."""
    table = measured.comparison[measured.comparison["metric"] == metric]
    rows = [row for row in table.to_dict("records") if is_against_baseline(plan, row)]
    steps = [*_missing(plan, measured), *_without_verdict(rows), *_undecided(plan, rows)]
    return tuple([*steps, *_more_runs(rows), *_edge(measured), *_miniature(measured)][:_MOST])


def _missing(plan: ReportPlan, measured: Measured) -> Iterator[str]:
    absent = [cell for cell in plan.cells if not measured.runs_of(cell)]
    runs = sum(plan.runs_of(cell) - len(measured.runs_of(cell)) for cell in plan.cells)
    if absent:
        first = f"{absent[0][0]}, {cell_label(absent[0])}"
        more = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
        yield f"Measure what is missing ({first}{more}): the same command does only that."
    elif runs > 0:
        yield f"Measure the {runs} runs that are missing: the same command does only that."


def _without_verdict(rows: list[dict[Any, Any]]) -> Iterator[str]:
    """What would give a verdict to arms that have none, by step."""
    steps: dict[str, list[str]] = {}
    for row in rows:
        if row["verdict"] not in words.VERDICTS:
            steps.setdefault(settled_by(row), []).append(_name(row))
    for step, names in steps.items():
        yield f"{_few(names)}: {step}."


def _undecided(plan: ReportPlan, rows: list[dict[Any, Any]]) -> Iterator[str]:
    """The runs that would decide, where that many are affordable."""
    open_ = [row for row in rows if row["verdict"] == words.INCONCLUSIVE]
    needed = {_name(row): _needed(row) for row in open_}
    few = {name: runs for name, runs in needed.items() if runs <= _WORTHWHILE}
    if few:
        runs = max(*few.values(), max(int(row["runs"]) for row in open_) + 1)
        yield f"{_few([*few])}: `runs: {runs:.0f}` would tell a difference of {100 * plan.margin:g} %."
    many = [name for name in needed if name not in few]
    if many:
        yield (
            f"{_few(many)}: runs differ too much for more of them to decide; longer levels, or a machine that does "
            "nothing else, would."
        )


def _needed(row: Mapping[Any, Any]) -> float:
    needed = row.get("runs_to_resolve")
    return math.inf if needed is None or pd.isna(needed) else float(needed)


def _more_runs(rows: list[dict[Any, Any]]) -> Iterator[str]:
    decided = [row for row in rows if row["verdict"] in words.VERDICTS]
    if decided and max(int(row["runs"]) for row in decided) < MIN_RUNS + 2:
        yield f"`runs: {MIN_RUNS + 2}`: narrower intervals; the runs there are stay."


def _edge(measured: Measured) -> Iterator[str]:
    edge = measured.peaks[~measured.peaks["bracketed"].astype(bool)]
    several = edge[edge["levels_measured"] > 1] if "levels_measured" in edge else edge
    if len(several):
        names = [f"{row['model']}, {cell_label(cell_of(row))}" for row in several.to_dict("records")]
        yield f"Levels beyond those measured: the peak of {_few(names)} lies at their edge."


def _miniature(measured: Measured) -> Iterator[str]:
    if measured.runs[0].weights == "miniature":
        yield "The same campaign with `weights: full` on its GPU: a miniature says nothing of a GPU's speed."


def _name(row: Mapping[Any, Any]) -> str:
    return f"{row['model']}, {cell_label(cell_of(row))}"


def _few(names: list[str]) -> str:
    shown = names[:2]
    return "; ".join(shown) + (f" and {len(names) - len(shown)} more" if len(names) > len(shown) else "")
