"""Gaps of the campaign: what was not assessed, why, and what would settle it; the sentences are in its appendix."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kveval.campaign.cell import Cell
from kveval.report.data.campaign import (
    Measured,
    ReportPlan,
    text_or_blank,
)
from kveval.report.result.model import ComparedCells, Gap
from kveval.report.result.pairs import pairs_of, undeclared_pairs
from kveval.report.result.remedies import remedies_of
from kveval.tables.cells import baseline_of
from kveval.verdict import verdict_words as words

# A cell, and the one that it is compared with.
_Pair = tuple[Cell, Cell | None]


def gaps_of(
    plan: ReportPlan, measured: Measured, empty: Mapping[str, str]
) -> list[Gap]:
    """Return cells, comparisons and figures without a verdict or data; `empty`: figure -> reason."""
    missing = [cell for cell in plan.cells if not measured.runs_of(cell)]
    return [
        *(
            Gap(
                code="no_run",
                cells=_compared([(cell, None)]),
                reason=measured.why_missing(cell),
            )
            for cell in missing
        ),
        *_open_comparisons(plan, measured),
        *_undeclared(plan, measured),
        *_scope(plan, measured),
        *(
            Gap(code="figure", reason=reason, facts={"figure": name})
            for name, reason in empty.items()
        ),
    ]


def _open_comparisons(plan: ReportPlan, measured: Measured) -> Iterator[Gap]:
    """Yield comparisons without a deciding verdict; those of one model with the same reason are grouped."""
    groups: dict[str, tuple[Gap, dict[str, list[_Pair]]]] = {}
    for row in filter(is_open, measured.all_comparisons.to_dict("records")):
        remedies = remedies_of(plan, row)
        gap = Gap(
            code="no_verdict", reason=text_or_blank(row["reason"]), remedies=remedies
        )
        key = f"{row['model']} {gap.model_dump_json()}"
        _, metrics = groups.setdefault(key, (gap, {}))
        pair = Cell.from_row(row), baseline_of(row)
        metrics.setdefault(str(row["metric"]), []).append(pair)
    for gap, metrics in groups.values():
        # A gap in many metrics is listed once.
        alike: dict[tuple[_Pair, ...], list[str]] = {}
        for metric, pairs in metrics.items():
            alike.setdefault(tuple(dict.fromkeys(pairs)), []).append(metric)
        for compared, of_pairs in alike.items():
            changes = {"cells": _compared(compared), "metrics": of_pairs}
            yield gap.model_copy(update=changes)


def _compared(pairs: Iterable[_Pair]) -> list[ComparedCells]:
    return [
        ComparedCells.model_validate(
            {"cell": cell.row, "against": against and against.row}
        )
        for cell, against in pairs
    ]


def is_open(row: Mapping[Any, Any]) -> bool:
    """Return whether a comparison has no deciding verdict; what an idle arm would gain is open, whatever it costs."""
    settled = {*words.DECIDED, words.NOT_JUDGED} - {words.IDLE}
    return row["verdict"] not in settled


def _undeclared(plan: ReportPlan, measured: Measured) -> Iterator[Gap]:
    """Yield pairs of arms that have no verdict because the campaign does not declare them as contrasts."""
    for names, models in undeclared_pairs(plan, measured).items():
        arms = [_label(plan, name) for name in names]
        facts = {"arms": arms, "models": models, "names": [*names]}
        yield Gap(code="not_declared", facts=facts)


def _label(plan: ReportPlan, name: str) -> str:
    """The label of an arm that is named as in campaign files: SCENARIO or SCENARIO/CPU_BLOCKS."""
    labels = {cell.arm: cell.label for cell in plan.cells}
    return labels.get(name, name)


def _scope(plan: ReportPlan, measured: Measured) -> Iterator[Gap]:
    """Yield what the campaign as a whole lacks."""
    for what, pairs in pairs_of(plan, measured).items():
        if not pairs:
            yield Gap(code=what)
    if {run.replicas for run in measured.runs} == {1}:
        yield Gap(code="replicas")
    alone = [run for run in measured.runs if run.recorded_by_exporters]
    if alone:
        facts = {"runs": len(alone), "of_runs": len(measured.runs)}
        yield Gap(code="host_recording", facts=facts)
