"""Builds and writes the report. Every judgement in it comes from a verdict."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from kveval.host.errors import Failure
from kveval.report.build_result import campaign_result
from kveval.report.data.campaign import Measured, ReportPlan
from kveval.report.files import FOLDER, MAIN, NUMBERS
from kveval.report.markdown import render
from kveval.report.parts.appendices import appendices
from kveval.report.parts.blocks import Pictures
from kveval.report.parts.body import first_screen, main_sections
from kveval.report.result.model import CampaignResult
from kveval.report.sections import Section


class ReportError(Failure):
    """The measurements cannot be put into one report."""


def report_tree(
    plan: ReportPlan,
    measured: Measured,
    figures: Mapping[str, str],
    empty: Mapping[str, str] | None = None,
    beside: Sequence[Section] = (),
) -> Section:
    """Return the whole report as a tree of sections.

    `figures`: name -> path relative to the report; `empty`: name -> reason, of figures with nothing to show; `beside`:
    sections that plug-ins add. Cells that were not measured are listed as missing, so that unfinished campaigns have a
    report, too. Raises ReportError when nothing was measured, or when runs of different engines or weights are mixed.
    """
    return _tree_and_result(plan, measured, figures, empty or {}, beside)[0]


def _tree_and_result(
    plan: ReportPlan,
    measured: Measured,
    figures: Mapping[str, str],
    empty: Mapping[str, str],
    beside: Sequence[Section],
) -> tuple[Section, CampaignResult]:
    """Return the report, and what it shows. Parameters and errors are those of `report_tree`."""
    kinds = sorted({(run.engine, run.weights) for run in measured.runs})
    if not kinds:
        raise ReportError(
            f"campaign {plan.name}: no run was measured, there is nothing to report",
            code="no_run",
        )
    if len(kinds) > 1:
        raise ReportError(
            f"campaign {plan.name}: runs of different kinds cannot be in one report: "
            + ", ".join(
                f"{weights} weights on the engine {engine}" for engine, weights in kinds
            ),
            code="mixed_kinds",
            kinds=kinds,
        )
    pictures = Pictures(plan.models_by_size, figures, empty)
    result = campaign_result(plan, measured, figures, empty)
    # In this order, since each figure is placed once.
    first = [*first_screen(result, pictures)]
    middle = [*main_sections(result, pictures)]
    last = appendices(plan, measured, result, pictures)
    blocks = [*first, *middle, *beside, *last]
    return Section(plan.title or plan.name, blocks), result


def write_report(
    plan: ReportPlan,
    measured: Measured,
    figures: Sequence[Path],
    output: Path,
    empty: Mapping[str, str] | None = None,
    beside: Sequence[Section] = (),
) -> tuple[Section, CampaignResult]:
    """Write REPORT.md, its appendices, and report.json beside it; return the tree of the texts, and the result in it.

    `figures` are linked by their path relative to the report. `empty`: name -> reason, of figures with nothing to show;
    they are listed but not shown; `beside`: sections that plug-ins add. Raises ReportError as `report_tree` does.
    """
    shown = {
        path.stem: Path(os.path.relpath(path, output.parent)).as_posix()
        for path in figures
    }
    root, result = _tree_and_result(plan, measured, shown, empty or {}, beside)
    files = {
        output if name == MAIN else output.parent / name: text
        for name, text in render(root).items()
    }
    files[output.with_name(NUMBERS)] = result.to_json()
    (output.parent / FOLDER).mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
    return root, result
