"""Builds and writes the report. Every judgement in it comes from a verdict."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from kveval.host.errors import Failure
from kveval.report.build import campaign_result
from kveval.report.data.campaign import Measured, ReportPlan
from kveval.report.files import FOLDER, MAIN, NUMBERS
from kveval.report.render import render_report, written_files
from kveval.report.result.model import CampaignResult


class ReportError(Failure):
    """The measurements cannot be put into one report."""


def build_result(
    plan: ReportPlan,
    measured: Measured,
    figures: Mapping[str, str],
    empty: Mapping[str, str] | None = None,
) -> CampaignResult:
    """Return the result of a campaign.

    `figures`: name -> path relative to the report; `empty`: name -> reason, of figures with nothing to show. Cells that
    were not measured are listed as missing, so that unfinished campaigns have a report, too. Raises ReportError when
    nothing was measured, or when runs of different engines or weights are mixed.
    """
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
    return campaign_result(plan, measured, figures, empty or {})


def write_report(
    plan: ReportPlan,
    measured: Measured,
    figures: Sequence[Path],
    output: Path,
    empty: Mapping[str, str] | None = None,
    beside: Mapping[Path, str] = MappingProxyType({}),
) -> tuple[dict[str, str], CampaignResult]:
    """Write REPORT.md, its appendices, and report.json beside it; return the Markdown with marks, and the result.

    `figures` are linked by their path relative to the report. `empty`: name -> reason, of figures with nothing to show;
    they are listed but not shown; `beside`: templates of sections that plug-ins add -> the part
    after which each stands. Raises ReportError as `build_result`.
    """
    folder = output.parent
    paths = {
        path.stem: Path(os.path.relpath(path, folder)).as_posix() for path in figures
    }
    result = build_result(plan, measured, paths, empty)
    files = render_report(result, beside, folder)
    (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    for name, text in written_files(files).items():
        path = output if name == MAIN else folder / name
        path.write_text(text, encoding="utf-8")
    output.with_name(NUMBERS).write_text(result.to_json(), encoding="utf-8")
    return files, result
