"""The report's tables of what was run: campaign, machines, software, workload, command lines, and pilots' searches."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from kveval.report.data import numbers as numerals
from kveval.report.data.campaign import Measured, ReportPlan, Table
from kveval.report.data.metric_titles import METRIC_TITLES
from kveval.report.data.run_facts import gpus_of
from kveval.report.result.model import CampaignResult, ReportedOrigin, ReportedRun
from kveval.store.run_file import Run
from kveval.tables.levels.pilot import Pilot

_WORKLOAD = {
    "profile": "load",
    "levels": "levels",
    "sweep_size": "rates of the sweep",
    "seconds": "length of a level, s",
    "warmup_s": "of that warm-up, not measured, s",
    "turns": "turns of a conversation",
    "prompt_tokens": "prompt tokens a turn",
    "output_tokens": "output tokens a turn",
    "document_tokens": "tokens of a user's own document",
    "document_spread": "how they vary",
    "pause_s": "pause between an answer and the next question, s",
    "arrive_s": "the first users arrive within, s",
    "prefix_tokens": "tokens of a shared prefix",
    "prefix_count": "distinct prefixes",
    "prefix_zipf": "Zipf's exponent of their popularity",
    "request_timeout_s": "time limit of a request, s",
    "seed": "seed",
}


def campaign_table(result: CampaignResult) -> Table:
    """Return the cells and runs that the campaign asks for, and how many of them were measured."""
    cells, campaign = result.cells, result.campaign
    present = sum(bool(cell.runs) for cell in cells)
    runs = sum(len(cell.runs) for cell in cells)
    requested = [cell.runs_requested for cell in cells]
    started = sorted(run.started[:16].replace("T", " ") for run in result.runs)
    facts = {
        "campaign": f"`{campaign.name}`",
        "cells measured": f"{present} of {len(cells)}",
        "runs measured": f"{runs} of {sum(requested)} ({_range(requested)} of each cell)",
        "models": ", ".join(result.common_levels),
        **_server_gpus(result.runs),
        "measured between (UTC)": f"{started[0]} and {started[-1]}",
        "margin that does not matter": f"{100 * campaign.margin:g} %",
        "primary quantity": METRIC_TITLES[campaign.primary],
        "error rate": f"{campaign.alpha:g} for all verdicts on it together; for others, per model and quantity",
        "comparison method (hash)": f"`{result.method_hash or numerals.MISSING}`",
    }
    return Table(["", ""], [[name, value] for name, value in facts.items()])


def facts_line(name: str, origin: ReportedOrigin) -> str:
    """Return when, where and with what a campaign of this name was measured, in one line."""
    parts = [
        " to ".join(origin.measured_on),
        f"campaign `{name}`",
        "; ".join(origin.machines),
        _versions(origin),
    ]
    return " · ".join(filter(None, parts))


def origin_table(name: str, origin: ReportedOrigin) -> Table:
    """Return what is needed to find or repeat the campaign of this name."""
    facts = {
        "measured on": " to ".join(origin.measured_on),
        "campaign": f"`{name}`",
        "command": f"`{origin.command}`" if origin.command else "",
        "versions": _versions(origin),
        "commit of the workflow": _workflow_commit(origin),
        "commit of the server": _as_code(origin.server_commits, ", "),
        "machine": "; ".join(origin.machines),
        "measurements": _as_code(origin.measurements, " "),
    }
    return Table(["", ""], [[name, value] for name, value in facts.items() if value])


def _versions(origin: ReportedOrigin) -> str:
    return ", ".join(f"{tool} {version}" for tool, version in origin.versions.items())


def _workflow_commit(origin: ReportedOrigin) -> str:
    commit = origin.workflow_commit.removesuffix("-dirty")
    changed = commit != origin.workflow_commit
    also = ", with changes that are not committed" if changed else ""
    return f"`{commit}`{also}" if commit else ""


def _as_code(names: Sequence[str], separator: str) -> str:
    return separator.join(f"`{name}`" for name in names)


def _server_gpus(runs: Sequence[ReportedRun]) -> dict[str, str]:
    """Return the GPUs of one server as a row: a number, or each with its models; no row where the device is the CPU."""
    models_by_gpus: dict[int, dict[str, None]] = {}
    for run in runs:
        if run.gpus_of_server is not None:
            models_by_gpus.setdefault(run.gpus_of_server, {})[run.model] = None
    if not models_by_gpus:
        return {}
    parts = [
        f"{gpus} for {', '.join(models)}"
        for gpus, models in sorted(models_by_gpus.items())
    ]
    return {
        "GPUs of a server": "; ".join(parts)
        if len(models_by_gpus) > 1
        else str(*models_by_gpus)
    }


def _range(counts: Sequence[int]) -> str:
    """A single number if all are equal, else "least to most"."""
    return (
        " to ".join(str(count) for count in sorted({min(counts), max(counts)}))
        if counts
        else "0"
    )


def hardware_table(result: CampaignResult) -> Table:
    """The machines as they were probed, one column each."""
    names = [str(facts.get("fingerprint", "unknown")) for facts in result.hardware]
    columns = [_machine(facts) for facts in result.hardware]
    rows = []
    for name in dict.fromkeys(name for column in columns for name in column):
        values = [column.get(name, numerals.MISSING) for column in columns]
        rows.append([name, *values])
    return Table(["machine", *(f"`{name}`" for name in names)], rows)


def _machine(facts: Mapping[str, Any]) -> dict[str, str]:
    """A machine's facts by title; unknown facts keep their names."""
    known = {
        "cpu_model": "CPU",
        "cpus": "CPUs",
        "kernel": "kernel",
        "driver": "GPU driver",
    }
    shown = {
        title: str(facts[name])
        for name, title in known.items()
        if facts.get(name) is not None
    }
    if facts.get("memory_bytes"):
        shown["memory, GiB"] = f"{facts['memory_bytes'] / 2**30:,.0f}"
    shown["GPUs"] = gpus_of(facts, _details) or "none"
    nodes = [gpu["numa_node"] for gpu in facts.get("gpus", ()) if "numa_node" in gpu]
    if nodes:
        shown["NUMA nodes of the GPUs"] = ", ".join(map(str, nodes))
    told = {*known, "memory_bytes", "gpus", "fingerprint"}
    rest = {
        name: value
        for name, value in facts.items()
        if name not in told and isinstance(value, str | int | float)
    }
    return shown | {name.replace("_", " "): str(value) for name, value in rest.items()}


def _details(gpu: Mapping[str, Any]) -> str:
    parts = [f", {name} {gpu[name]}" for name in ("driver", "cuda") if gpu.get(name)]
    if gpu.get("power_limit_w"):
        parts.append(f", {gpu['power_limit_w']:.0f} W")
    if gpu.get("pcie_generation_max") and gpu.get("pcie_width_max"):
        parts.append(f", PCIe {gpu['pcie_generation_max']} x{gpu['pcie_width_max']}")
    return "".join(parts)


def _reduced_environment(reduced: Mapping[str, Any]) -> str:
    """Describe what an environment that is not complete lacks, and which packages are not of the locks' versions."""
    text = f"reduced: code for compute capability {reduced['gpu_code']}, without {', '.join(reduced['left_out'])}"
    of_host = [
        f"{name} {versions['there']} in place of {versions['locked']}"
        for name, versions in reduced["of_host"].items()
        if versions["there"] != versions["locked"]
    ]
    return f"{text}; of the host: {', '.join(of_host)}" if of_host else text


def software_table(result: CampaignResult) -> Table:
    """Return versions as the software reported them, images of containers, and the builds that arms name."""
    origin = result.origin
    rows = [[tool, version] for tool, version in origin.versions.items()]
    rows += [["image", f"`{image}`"] for image in origin.images]
    for build in origin.builds:
        key = f" (`{build.key}`)" if build.key else ""
        rows.append([f"build of `{build.scenario}`", f"{build.title}{key}"])
    environments = dict.fromkeys(map(_reduced_environment, origin.reduced_environments))
    rows += [["server's environment", text] for text in environments]
    return Table(["software", "version"], rows)


def workload_table(result: CampaignResult) -> Table:
    """Return the declared workloads, one column per distinct workload."""
    workloads = result.workloads
    rows = []
    for name, title in {**_WORKLOAD, "levels": result.level_unit}.items():
        if any(load.get(name) not in (None, (), []) for load in workloads):
            rows.append([title, *(_value(load.get(name)) for load in workloads)])
    titles = (str(load.get("title") or "") for load in workloads)
    return Table(["workload", *titles], rows)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "; ".join(
            f"{number} {name.replace('_', ' ')}" for name, number in value.items()
        )
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(str, value))
    return f"{value:,g}" if isinstance(value, int | float) else str(value)


def command_lines(plan: ReportPlan, measured: Measured) -> dict[str, list[str]]:
    """Return the command lines of every cell, as they ran: the server's, with its environment, those of the programs
    beside it, and the last one of the load.
    """
    firsts = {
        cell: runs[0] for cell in plan.ordered_cells if (runs := measured.runs_of(cell))
    }
    lines_by_cell = {
        f"{cell.model}, {cell.label}": _command_lines(run)
        for cell, run in firsts.items()
    }
    return {cell: lines for cell, lines in lines_by_cell.items() if lines}


def _command_lines(run: Run) -> list[str]:
    environment = [
        f"{name}={shlex.quote(str(value))}"
        for name, value in sorted(run.server.get("env", {}).items())
    ]
    server = " ".join([*environment, *map(shlex.quote, run.server.get("argv", ()))])
    # Replicas have the same programs beside each of them.
    beside = dict.fromkeys(shlex.join(sidecar.argv) for sidecar in run.companions)
    load = next(
        (shlex.join(level.command) for level in reversed(run.levels) if level.command),
        "",
    )
    return [line for line in (server, *beside, load) if line]


_ENDINGS = {
    "resolution": "the peak's neighbours are as close as asked for",
    "budget": "the number of levels to try was reached",
    "unfinished": "the search was cut short",
}


def search_table(pilots: Sequence[Pilot]) -> Table:
    """Return every level that pilots tried, in the order of the search; no rows if levels were given."""
    rows = []
    for pilot in pilots:
        peak = "the peak" if pilot.above is not None else "the highest, not bracketed"
        role = {
            pilot.below: "next below it",
            pilot.above: "next above it",
            pilot.peak: peak,
        }
        for order, (level, throughput_tok_s) in enumerate(pilot.tried, start=1):
            row = [
                pilot.cell,
                f"{order}",
                numerals.count(level),
                numerals.significant(throughput_tok_s, 3),
                role.get(level, ""),
            ]
            last = order == len(pilot.tried)
            rows.append(
                [
                    *row,
                    "yes" if level in pilot.levels else "no",
                    _ENDINGS[pilot.ending] if last else "",
                ]
            )
    header = [
        "pilot",
        "tried",
        "concurrent requests",
        "output tok/s",
        "is",
        "all arms measured",
        "ended because",
    ]
    return Table(header, rows, frozenset({1, 2, 3}))
