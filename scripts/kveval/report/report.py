"""REPORT.md: what was measured, what it says and how sure it is. Every judgement in it comes from a verdict."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from kveval.analysis.cells import THROUGHPUT, cell_named, cell_of
from kveval.analysis.statistics import verdicts as words
from kveval.config.arm_kinds import kinds_of
from kveval.host.errors import Failure
from kveval.load.levels import in_words
from kveval.load.workload import workload_of
from kveval.report.data.campaign import Measured, ReportPlan, Table, baseline_label, cell_label
from kveval.report.data.level_units import LevelUnit
from kveval.report.data.metric_titles import METRIC_TITLES
from kveval.report.data.run_facts import hardware, repeats
from kveval.report.export.report_json import build, dump
from kveval.report.figures.names import figures_of
from kveval.report.tables.caches import activity_table, blocks_table, budget_table
from kveval.report.tables.configuration import (
    campaign_table,
    hardware_table,
    provenance_commands,
    software_table,
    workload_table,
)
from kveval.report.tables.guidance import guidance_numbers, guidance_table
from kveval.report.tables.not_assessed import alike, gap_table
from kveval.report.tables.pairs import native_table, store_table, tier_table
from kveval.report.tables.results import (
    area_table,
    comparison_table,
    completed_table,
    effect_text,
    guide_table,
    peak_table,
    strategy_table,
    text,
)
from kveval.report.tables.search import search_table
from kveval.report.tables.system import (
    average_table,
    check_tables,
    panel_table,
    provenance_table,
    system_tables,
    time_table,
)
from kveval.report.tables.tiers import tiers_table

TEMPLATE = Path(__file__).with_name("REPORT.md.j2")
_SUMMARISED = ("throughput_tok_s", "ttft_ms_p50", "e2e_ms_p50")


class ReportError(Failure):
    """The measurements cannot stand in one report."""


def report_context(
    plan: ReportPlan, measured: Measured, figures: Mapping[str, str], empty: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return everything the template prints. Pure.

    `figures`: name -> path relative to the report; `empty`: those with nothing to show -> the reason. Cells that were
    asked for and not measured are listed as missing, so the same function serves a campaign half done. Raises
    ReportError when nothing was measured, or when runs of different engines or weights are mixed.
    """
    engine, weights = kind_of(plan, measured)
    failed, noted = check_tables(measured)
    return {
        "plan": plan,
        "engine": engine,
        "miniature": weights == "miniature",
        "hardware": hardware(measured.runs),
        "missing": missing(plan, measured),
        "summary": summary(plan, measured),
        "strategies": strategy_table(plan, measured),
        "configuration": [
            campaign_table(plan, measured),
            hardware_table(measured),
            software_table(measured),
            workload_table(measured),
        ],
        "search": search_table(measured.pilots),
        "commands": provenance_commands(plan, measured),
        "models": [model_section(plan, measured, model) for model in plan.models_by_size],
        "edge_peaks": bool((~measured.peaks["bracketed"].astype(bool)).any()),
        "completed": completed_table(plan, measured),
        "guide": guide_table(plan, measured),
        "offload": area_table(plan, measured, kinds_of("offload")),
        "indexing": area_table(plan, measured, kinds_of("indexing")),
        "stores": store_table(plan, measured),
        "native": native_table(plan, measured),
        "activity": activity_table(plan, measured),
        "tier_work": tiers_table(plan, measured),
        "tiers": tier_table(plan, measured),
        "blocks": blocks_table(plan, measured),
        "budgets": budget_table(plan, measured),
        "system": system_tables(plan, measured),
        "panels": panel_table(plan, measured),
        "averages": average_table(measured),
        "failed_checks": failed,
        "noted_checks": noted,
        "repeats": repeats(measured.runs),
        "guidance": guidance_table(plan, measured),
        "guidance_numbers": guidance_numbers(plan, measured),
        # What the rendered text is found to claim beyond its tables: see `write_report`.
        "gaps": gap_table(plan, measured, empty or {}),
        "alike": alike(measured),
        "few_runs": plan.runs < 5,
        "workloads": list(dict.fromkeys(in_words(workload_of(run.workload)) for run in measured.runs)),
        "figures": _figures(plan, figures, empty or {}),
        "time": time_table(measured),
        "provenance": provenance_table(measured),
    }


def kind_of(plan: ReportPlan, measured: Measured) -> tuple[str, str]:
    """Return the engine and the weights of all runs. Raises ReportError when there is no run or they are mixed."""
    if not measured.runs:
        raise ReportError(f"campaign {plan.name}: no run was measured, there is nothing to report", code="no_run")
    kinds = sorted({(run.engine, run.weights) for run in measured.runs})
    if len(kinds) > 1:
        raise ReportError(
            f"campaign {plan.name}: runs of different kinds cannot stand in one report: "
            + ", ".join(f"{weights} weights on the engine {engine}" for engine, weights in kinds),
            code="mixed_kinds",
            kinds=kinds,
        )
    return kinds[0]


def model_section(plan: ReportPlan, measured: Measured, model: str) -> dict[str, Any]:
    """Return what the report shows of one model: its peaks and its comparisons, quantity by quantity."""
    metrics = dict.fromkeys(measured.compared[measured.compared["model"] == model]["metric"])
    return {
        "name": model,
        "peaks": peak_table(plan, measured, model),
        "comparisons": [
            {
                "title": METRIC_TITLES.get(name, name),
                "open": name in _SUMMARISED,
                "table": comparison_table(measured, model, name),
            }
            for name in metrics
        ],
    }


def _figures(plan: ReportPlan, paths: Mapping[str, str], empty: Mapping[str, str]) -> list[dict[str, str | None]]:
    """The figures that show something, with what the template needs of them, in the order of the report."""
    return [
        {
            **{"section": figure.entry.section, "model": figure.model, "path": paths[figure.name]},
            **{"title": figure.title, "caption": figure.caption},
        }
        for figure in figures_of(plan.models_by_size)
        if figure.name in paths and figure.name not in empty
    ]


def render(context: Mapping[str, Any]) -> str:
    """Return the report as Markdown."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATE.parent),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        # Markdown, not HTML; table cells are escaped by `markdown_table`.
        autoescape=False,
    )
    environment.filters["markdown_table"] = markdown_table
    return environment.get_template(TEMPLATE.name).render(context)


def markdown_table(table: Table) -> str:
    """Return a table in Markdown; columns of numbers are set right."""
    rule = ["---:" if number in table.numbers else "---" for number in range(len(table.header))]
    lines = [table.header, rule, *table.rows]
    return "\n".join(f"| {' | '.join(_cell_text(cell) for cell in line)} |" for line in lines)


def _cell_text(text: str) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")


def missing(plan: ReportPlan, measured: Measured) -> list[str]:
    """Return what was asked for and is not there: whole cells, and runs of cells."""
    lines = []
    for cell in plan.cells:
        runs = len(measured.runs_of(cell))
        name = f"{cell[0]}, {cell_label(cell)}"
        if runs == 0:
            lines.append(f"{name}: {measured.failures.get(cell, 'not measured')}")
        elif runs < plan.runs_of(cell):
            reason = f"; {measured.failures[cell]}" if cell in measured.failures else ""
            lines.append(f"{name}: {runs} of {plan.runs_of(cell)} runs{reason}")
    return lines


def summary(plan: ReportPlan, measured: Measured) -> list[dict[str, Any]]:
    """Return the summary from the verdicts alone: per model what was compared and with what verdict.

    Throughput with the effects; latencies by their verdicts only, where one decides something.
    """
    table = measured.compared
    entries = []
    for model in plan.models_by_size:
        rows = table[table["model"] == model]
        throughput = rows[rows["metric"] == THROUGHPUT].to_dict("records")
        if not throughput:
            continue
        lines = _verdicts(plan, throughput)
        for metric in _SUMMARISED[1:]:
            decided = rows[(rows["metric"] == metric) & rows["verdict"].isin(words.VERDICTS[:3])].to_dict("records")
            if decided:
                lines.append(f"{METRIC_TITLES[metric]}: {'; '.join(_by_verdict(decided))}")
        where = _where(throughput, measured.unit)
        entries.append({"title": f"{model} · throughput", "where": where, "verdicts": lines})
    return entries


def _where(rows: Sequence[Mapping[Any, Any]], unit: LevelUnit) -> str:
    """The level, and the cell that all are compared with, if it is one."""
    levels = sorted({int(row["level"]) for row in rows if pd.notna(row["level"])})
    parts = [f"at {unit.said(levels)}"] if levels else []
    against = {str(row["baseline"]) for row in rows if row["baseline"]}
    parts += [f"against {cell_label(cell_named(against.pop()))}"] if len(against) == 1 else []
    return " ".join(parts)


def _verdicts(plan: ReportPlan, rows: Sequence[Mapping[Any, Any]]) -> list[str]:
    """Return one line per verdict that occurs, each with the comparisons that have it; without a verdict, by reason.

    The percentages of a line are of one and the same cell: each that others are held against has lines of its own.
    """
    against: dict[str, list[Mapping[Any, Any]]] = {}
    for row in rows:
        against.setdefault(str(row["baseline"]), []).append(row)
    one = len([baseline for baseline in against if baseline]) <= 1
    lines = []
    for baseline, held in against.items():
        reference = "" if one or not baseline else f", against {cell_label(cell_named(baseline))}"
        lines += _verdicts_of(plan, held, reference)
    return lines


def _verdicts_of(plan: ReportPlan, rows: Sequence[Mapping[Any, Any]], reference: str) -> list[str]:
    found: dict[str, list[Mapping[Any, Any]]] = {verdict: [] for verdict in words.VERDICTS}
    for row in rows:
        found.setdefault(str(row["verdict"]), []).append(row)
    lines = []
    for verdict, having in found.items():
        if verdict.startswith("not "):
            reasons: dict[str, list[str]] = {}
            for row in having:
                reasons.setdefault(str(row["reason"]), []).append(_name(row, one=True))
            lines += [f"{verdict}{reference}: {', '.join(names)} ({reason})" for reason, names in reasons.items()]
        elif having:
            said = f"parity within {100 * plan.margin:g} %" if verdict == words.PARITY else verdict
            lines.append(f"{said}{reference}: {'; '.join(map(_effect, having))}")
    return lines


def _effect(row: Mapping[Any, Any]) -> str:
    indication = text(row.get("indication"))
    return f"{_name(row, one=True)} {effect_text(row)}" + (f", towards {indication}" if indication else "")


def _by_verdict(rows: Sequence[Mapping[Any, Any]]) -> list[str]:
    found: dict[str, list[str]] = {}
    one = len({str(row["baseline"]) for row in rows}) <= 1
    for row in rows:
        found.setdefault(str(row["verdict"]), []).append(_name(row, one))
    return [f"{verdict} {', '.join(found[verdict])}" for verdict in words.VERDICTS if verdict in found]


def _name(row: Mapping[Any, Any], one: bool) -> str:
    """The compared arm, and its baseline unless that goes without saying."""
    cell = cell_label(cell_of(row))
    return f"{cell} against {baseline_label(row)}" if row["baseline"] and not one else cell


def write_report(
    plan: ReportPlan, measured: Measured, figures: Sequence[Path], output: Path, empty: Mapping[str, str] | None = None
) -> None:
    """Write REPORT.md, and report.json beside it.

    Raises ReportError as `report_context` does.

    `figures` are embedded by their path relative to the report. `empty`: those that have nothing to show, each with the
    reason; they are listed and not shown.
    """
    empty = empty or {}
    output.parent.mkdir(parents=True, exist_ok=True)
    names = {path.name.removesuffix(path.suffix): path for path in figures}
    shown = {name: Path(os.path.relpath(path, output.parent)).as_posix() for name, path in names.items()}
    context = report_context(plan, measured, shown, empty)
    content = build(plan, measured, shown, empty, context["gaps"])
    output.with_name("report.json").write_text(dump(content), encoding="utf-8")
    output.write_text(render(context), encoding="utf-8")
