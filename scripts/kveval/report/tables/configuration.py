"""The report's tables of what was run: campaign, machines, software, workload, and every server's command line."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from kveval.report.data import numbers as numerals
from kveval.report.data.campaign import Measured, ReportPlan, Table, cell_label
from kveval.report.data.metric_titles import METRIC_TITLES
from kveval.report.data.run_facts import versions
from kveval.store.run_file import Run

_WORKLOAD = {
    "profile": "load",
    "levels": "levels",
    "sweep_size": "rates of the sweep",
    "seconds": "length of a level, s",
    "warmup_s": "of that warm-up, not measured, s",
    "turns": "turns of a conversation",
    "prompt_tokens": "prompt tokens a turn",
    "output_tokens": "output tokens a turn",
    "prefix_tokens": "tokens of a shared prefix",
    "prefix_count": "distinct prefixes",
    "request_timeout_s": "time limit of a request, s",
    "seed": "seed",
}


def campaign_table(plan: ReportPlan, measured: Measured) -> Table:
    """Return the cells and runs that the campaign asks for, and how many of them were measured."""
    present = sum(bool(measured.runs_of(cell)) for cell in plan.cells)
    runs = sum(len(measured.runs_of(cell)) for cell in plan.cells)
    asked = [plan.runs_of(cell) for cell in plan.cells]
    started = sorted(run.started for run in measured.runs)
    facts = {
        "campaign": f"`{plan.name}`",
        "cells measured": f"{present} of {len(plan.cells)}",
        "runs measured": f"{runs} of {sum(asked)} ({_range(asked)} of each cell)",
        "models": ", ".join(plan.models_by_size),
        "measured between (UTC)": f"{_minute(started[0])} and {_minute(started[-1])}" if started else numerals.MISSING,
        "margin that does not matter": f"{100 * plan.margin:g} %",
        "primary quantity": METRIC_TITLES[plan.primary],
        "error rate": f"{plan.alpha:g} for all verdicts on it together; for others, per model and quantity",
        "comparison method (hash)": f"`{method_of(measured) or numerals.MISSING}`",
    }
    return Table(["", ""], [[name, value] for name, value in facts.items()])


def method_of(measured: Measured) -> str | None:
    """Return the hash of everything that may change a verdict on the same data; None if nothing was compared."""
    hashes = list(measured.compared["method_hash"].unique()) if "method_hash" in measured.compared else []
    return str(hashes[0]) if hashes else None


def _range(counts: Sequence[int]) -> str:
    """A single number if all are equal, else "least to most"."""
    return " to ".join(str(count) for count in sorted({min(counts), max(counts)})) if counts else "0"


def _minute(timestamp: str) -> str:
    return timestamp[:16].replace("T", " ")


def hardware_table(measured: Measured) -> Table:
    """The machines as they were probed, one column each."""
    machines: dict[str, Mapping[str, Any]] = {}
    for run in measured.runs:
        machines.setdefault(str(run.hardware.get("fingerprint", "unknown")), run.hardware)
    columns = [_machine(facts) for facts in machines.values()]
    names = dict.fromkeys(name for column in columns for name in column)
    rows = [[name, *(column.get(name, numerals.MISSING) for column in columns)] for name in names]
    return Table(["machine", *(f"`{name}`" for name in machines)], rows)


def _machine(facts: Mapping[str, Any]) -> dict[str, str]:
    """A machine's facts by title; unknown facts keep their names."""
    known = {"cpu_model": "CPU", "cpus": "CPUs", "kernel": "kernel", "driver": "GPU driver"}
    shown = {title: str(facts[name]) for name, title in known.items() if facts.get(name) is not None}
    if facts.get("memory_bytes"):
        shown["memory, GiB"] = f"{facts['memory_bytes'] / 2**30:,.0f}"
    gpus = [_gpu(gpu) for gpu in facts.get("gpus", ())]
    shown["GPUs"] = "; ".join(f"{gpus.count(gpu)} x {gpu}" for gpu in dict.fromkeys(gpus)) or "none"
    nodes = [gpu["numa_node"] for gpu in facts.get("gpus", ()) if "numa_node" in gpu]
    if nodes:
        shown["NUMA nodes of the GPUs"] = ", ".join(map(str, nodes))
    told = {*known, "memory_bytes", "gpus", "fingerprint"}
    rest = {name: value for name, value in facts.items() if name not in told and isinstance(value, str | int | float)}
    return shown | {name.replace("_", " "): str(value) for name, value in rest.items()}


def _gpu(facts: Mapping[str, Any]) -> str:
    parts = [str(facts.get("name", "unknown"))]
    if facts.get("memory_bytes"):
        parts.append(f"{facts['memory_bytes'] / 2**30:,.0f} GiB")
    parts += [f"{name} {facts[name]}" for name in ("driver", "cuda") if facts.get(name)]
    if facts.get("power_limit_w"):
        parts.append(f"{facts['power_limit_w']:.0f} W")
    if facts.get("pcie_generation_max") and facts.get("pcie_width_max"):
        parts.append(f"PCIe {facts['pcie_generation_max']} x{facts['pcie_width_max']}")
    return ", ".join(parts)


def software_table(measured: Measured) -> Table:
    """Return versions as the software reported them, images of containers, and the builds that arms name."""
    rows = [[tool, version] for tool, version in versions(measured.runs).items()]
    images: dict[str, None] = {}
    for run in measured.runs:
        found = run.server.get("images", ())
        images |= dict.fromkeys(map(str, found.values() if isinstance(found, Mapping) else found))
    rows += [["image", f"`{image}`"] for image in images]
    return Table(["software", "version"], [*rows, *_builds(measured.runs)])


def _builds(runs: Sequence[Run]) -> list[list[str]]:
    """The builds that arms ran in place of the installed one."""
    found: dict[tuple[str, str], None] = {}
    for run in runs:
        if run.build:
            key = f" (`{run.build.get('key')}`)" if run.build.get("kind") != "release" else ""
            found[f"build of `{run.cell.scenario}`", f"{run.build.get('title')}{key}"] = None
    return [list(row) for row in found]


def workload_table(measured: Measured) -> Table:
    """Return the declared workloads, one column per distinct workload."""
    distinct: list[Mapping[str, Any]] = []
    for run in measured.runs:
        if run.workload not in distinct:
            distinct.append(run.workload)
    rows = []
    for name, title in {**_WORKLOAD, "levels": measured.unit.axis}.items():
        if any(load.get(name) not in (None, (), []) for load in distinct):
            rows.append([title, *(_value(load.get(name)) for load in distinct)])
    return Table(["workload", *(str(load.get("title") or "") for load in distinct)], rows)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "; ".join(f"{number} {name.replace('_', ' ')}" for name, number in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(str, value))
    return f"{value:,g}" if isinstance(value, int | float) else str(value)


def provenance_commands(plan: ReportPlan, measured: Measured) -> list[dict[str, Any]]:
    """Return the command lines of every cell, as they ran: the server's, with its environment, those of the programs
    beside it, and the last one of the load."""
    found = []
    for cell in plan.ordered:
        runs = measured.runs_of(cell)
        shown = {"server": _server(runs[0]), "beside": _beside(runs[0]), "load": _load(runs[0])} if runs else {}
        if any(shown.values()):
            found.append({"cell": f"{cell[0]}, {cell_label(cell)}", **shown})
    return found


def _server(run: Run) -> str:
    environment = [f"{name}={shlex.quote(str(value))}" for name, value in sorted(run.server.get("env", {}).items())]
    return " ".join([*environment, *(shlex.quote(argument) for argument in run.server.get("argv", ()))])


def _beside(run: Run) -> list[str]:
    # Replicas have the same programs beside each of them.
    return list(dict.fromkeys(shlex.join(sidecar.argv) for sidecar in run.companions if sidecar.argv))


def _load(run: Run) -> str:
    return next((shlex.join(level.command) for level in reversed(run.levels) if level.command), "")
