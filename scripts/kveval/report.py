"""REPORT.md: what was measured, what it says and how sure it is. Every judgement in it comes from a verdict."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from kveval import numerals, stats
from kveval.errors import Failure
from kveval.figures import METRIC_TITLES, caption
from kveval.report_tables import (
    CellKey,
    Measured,
    Plan,
    Table,
    activity_table,
    budget_table,
    cell_label,
    check_tables,
    comparison_tables,
    peak_table,
    provenance_table,
    system_table,
    time_table,
)
from kveval.runfile import Run

TEMPLATES = Path(__file__).with_name("templates")
TEMPLATE = "REPORT.md.j2"
_SUMMARISED = ("throughput_tok_s", "ttft_ms_p50", "e2e_ms_p50")


class ReportError(Failure):
    """The measurements cannot stand in one report."""


def report_context(plan: Plan, measured: Measured, figures: Mapping[str, str]) -> dict[str, Any]:
    """Return everything the template prints. Pure.

    `figures`: name -> path relative to the report. Cells that were asked for and not measured are listed as missing,
    so the same function serves a campaign half done. Raises ReportError when nothing was measured, or when runs of
    different engines or weights are mixed.
    """
    if not measured.runs:
        raise ReportError(f"campaign {plan.name}: no run was measured, there is nothing to report")
    kinds = sorted({(run.engine, run.weights) for run in measured.runs})
    if len(kinds) > 1:
        raise ReportError(
            f"campaign {plan.name}: runs of different kinds cannot stand in one report: "
            + ", ".join(f"{weights} weights on the engine {engine}" for engine, weights in kinds)
        )
    failed, noted = check_tables(measured)
    return {
        "plan": plan,
        "engine": kinds[0][0],
        "miniature": kinds[0][1] == "miniature",
        "hardware": hardware(measured.runs),
        "versions": versions(measured.runs),
        "workload": workload(measured.runs),
        "missing": missing(plan, measured),
        "summary": summary(plan, measured),
        "peaks": peak_table(plan, measured),
        "edge_peaks": int((~measured.peaks["bracketed"].astype(bool)).sum()),
        "cells_measured": len(measured.peaks),
        "comparisons": [
            {"title": METRIC_TITLES.get(name, name), "open": name in _SUMMARISED, "table": table}
            for name, table in comparison_tables(measured).items()
        ],
        "activity": activity_table(plan, measured),
        "budgets": budget_table(plan, measured),
        "system": system_table(plan, measured),
        "failed_checks": failed,
        "noted_checks": noted,
        "figures": [
            {"path": path, "title": caption(name)[0], "caption": caption(name)[1]} for name, path in figures.items()
        ],
        "time": time_table(measured),
        "provenance": provenance_table(measured),
        "commands": commands(plan, measured),
    }


def render(context: Mapping[str, Any]) -> str:
    """Return the report as Markdown."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        # Markdown, not HTML; table cells are escaped by `markdown_table`.
        autoescape=False,
    )
    environment.filters["markdown_table"] = markdown_table
    return environment.get_template(TEMPLATE).render(context)


def markdown_table(table: Table) -> str:
    """Return a table in Markdown; columns of numbers are set right."""
    rule = ["---:" if number in table.numbers else "---" for number in range(len(table.header))]
    lines = [table.header, rule, *table.rows]
    return "\n".join(f"| {' | '.join(_cell_text(cell) for cell in line)} |" for line in lines)


def _cell_text(text: str) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")


def footer(runs: Sequence[Run], name: str) -> str:
    """Return the line under every figure: engine, weights, hardware, versions, campaign."""
    if not runs:
        return f"campaign {name}"
    kind = "random-weight miniature, not the named model" if runs[0].weights == "miniature" else "full weights"
    software = ", ".join(
        f"{tool} {version}" for tool, version in versions(runs).items() if tool in ("vLLM", "GuideLLM")
    )
    return f"{runs[0].engine} engine, {kind} · {hardware(runs)[0]} · {software} · campaign {name}"


def hardware(runs: Sequence[Run]) -> list[str]:
    """Return the machines the runs were measured on, each in one phrase, as they were probed."""
    machines: dict[str, str] = {}
    for run in runs:
        facts = run.hardware
        memory = f"{facts.get('memory_bytes', 0) / 2**30:.0f} GiB memory"
        gpus = [f"{gpu['name']} ({gpu['memory_bytes'] / 2**30:.0f} GiB)" for gpu in facts.get("gpus", ())]
        accelerators = ", ".join(f"{gpus.count(gpu)} x {gpu}" for gpu in dict.fromkeys(gpus)) or "no GPU"
        machine = f"{facts.get('cpu_model', 'unknown CPU')}, {facts.get('cpus', '?')} CPUs, {memory}, {accelerators}"
        machines.setdefault(str(facts.get("fingerprint")), machine)
    return list(machines.values())


_TOOLS = {"vllm": "vLLM", "lmcache": "LMCache", "guidellm": "GuideLLM", "pcp": "PCP", "kveval": "kveval"}


def versions(runs: Sequence[Run]) -> dict[str, str]:
    """Return tool -> version as measured; several, joined by a slash, if the runs differ."""
    found: dict[str, dict[str, None]] = {}
    for run in runs:
        for tool, version in run.versions.items():
            found.setdefault(_TOOLS.get(tool, tool), {})[str(version)] = None
    return {tool: " / ".join(seen) for tool, seen in found.items()}


def workload(runs: Sequence[Run]) -> list[str]:
    """Return the workload in phrases; each distinct one, if the runs differ."""
    described: dict[str, None] = {}
    for run in runs:
        load = run.workload
        count = load.get("prefix_count", 0)
        prefixes = f"{count['per_level']} per concurrent request" if isinstance(count, Mapping) else f"{count}"
        levels = (
            ", ".join(str(level) for level in load.get("levels", ())) or f"a sweep of {load.get('sweep_size')} rates"
        )
        described[
            f"conversations of {load.get('turns', 1)} turns, {load.get('prompt_tokens')} prompt and "
            f"{load.get('output_tokens')} output tokens a turn, each opening with one of {prefixes} shared prefixes of "
            f"{load.get('prefix_tokens', 0):,} tokens; {levels} concurrent requests, {load.get('seconds'):g} s a level "
            f"of which the first {load.get('warmup_s', 0):g} s are not measured"
        ] = None
    return list(described)


def missing(plan: Plan, measured: Measured) -> list[str]:
    """Return what was asked for and is not there: whole cells, and runs of cells."""
    lines = []
    for cell in plan.cells:
        count = len(measured.runs_of(cell))
        name = f"{cell[0]}, {cell_label(cell)}"
        if count == 0:
            lines.append(f"{name}: {measured.failures.get(cell, 'not measured')}")
        elif count < plan.runs:
            lines.append(f"{name}: {count} of {plan.runs} runs")
    return lines


def summary(plan: Plan, measured: Measured) -> list[dict[str, Any]]:
    """Return the summary from the verdicts alone: per model and quantity, what was compared and with what verdict."""
    table = measured.comparison
    entries = []
    for model in dict.fromkeys(table["model"]):
        for metric in _SUMMARISED:
            rows = table[(table["model"] == model) & (table["metric"] == metric)].to_dict("records")
            if rows:
                title = f"{model} · {METRIC_TITLES[metric]}"
                entries.append({"title": title, "where": _where(rows), "verdicts": _verdicts(plan, rows)})
    return entries


def _where(rows: Sequence[Mapping[str, Any]]) -> str:
    against = sorted({cell_label(_key(str(row["baseline"]))) for row in rows if row["baseline"]})
    levels = sorted({f"{row['level']:.0f}" for row in rows if pd.notna(row["level"])})
    parts = [f"at {', '.join(levels)} concurrent requests"] if levels else []
    parts += [f"against {', '.join(against)}"] if against else []
    return " ".join(parts)


def _verdicts(plan: Plan, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return one line per verdict that occurs, each with the cells that have it."""
    lines = []
    for verdict in (stats.BETTER, stats.WORSE, stats.PARITY, stats.INCONCLUSIVE):
        named = [
            f"{_name(row)} {numerals.effect(row['effect_percent'], row['low_percent'], row['high_percent'])}"
            for row in rows
            if row["verdict"] == verdict
        ]
        if named:
            said = f"parity within {100 * plan.margin:g} %" if verdict == stats.PARITY else verdict
            lines.append(f"{said}: {'; '.join(named)}")
    for verdict in stats.WITHOUT_VERDICT:
        reasons: dict[str, list[str]] = {}
        for row in rows:
            if row["verdict"] == verdict:
                reasons.setdefault(str(row["reason"]), []).append(_name(row))
        lines += [f"{verdict}: {', '.join(names)} ({reason})" for reason, names in reasons.items()]
    return lines


def _name(row: Mapping[str, Any]) -> str:
    return cell_label((str(row["model"]), str(row["scenario"]), int(row["cpu_blocks"])))


def _key(joined: str) -> CellKey:
    model, scenario, blocks = joined.split("/")
    return model, scenario, int(blocks)


def commands(plan: Plan, measured: Measured) -> list[dict[str, str]]:
    """Return the server's command line and environment of every cell, as it ran."""
    found = []
    for cell in plan.cells:
        runs = measured.runs_of(cell)
        if not runs:
            continue
        server = runs[0].server
        environment = [f"{name}={shlex.quote(str(value))}" for name, value in sorted(server.get("env", {}).items())]
        line = " ".join([*environment, *(shlex.quote(argument) for argument in server.get("argv", ()))])
        levels = [shlex.join(level.command) for level in runs[0].levels if level.command]
        found.append({"cell": f"{cell[0]}, {cell_label(cell)}", "server": line, "load": levels[-1] if levels else ""})
    return found


def write_report(plan: Plan, measured: Measured, figures: Sequence[Path], output: Path) -> None:
    """Write REPORT.md, figures embedded by their path relative to it. Raises ReportError as `report_context` does."""
    names = {path.stem: Path(os.path.relpath(path, output.parent)).as_posix() for path in figures}
    output.write_text(render(report_context(plan, measured, names)), encoding="utf-8")
