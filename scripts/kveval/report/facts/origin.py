"""Machines, loads, and the time of measuring, as the tables of the configuration have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kveval.load.levels import describe_requests
from kveval.load.workload import workload_of
from kveval.report.data import numbers as numerals
from kveval.report.data.run_facts import gpus_of
from kveval.report.facts.caches import Columns
from kveval.report.result.model import CampaignResult

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


def models_by_gpus(result: CampaignResult) -> dict[int, list[str]]:
    """Return the GPUs of one server -> its models; nothing where the device is the CPU."""
    models: dict[int, dict[str, None]] = {}
    for run in result.runs:
        if run.gpus_of_server is not None:
            models.setdefault(run.gpus_of_server, {})[run.model] = None
    return {gpus: [*models[gpus]] for gpus in sorted(models)}


def machine_facts(result: CampaignResult) -> Columns:
    """Return the machines as they were probed: their fingerprints, and a row per fact with a column for each."""
    names = [str(facts.get("fingerprint", "unknown")) for facts in result.hardware]
    columns = [_machine(facts) for facts in result.hardware]
    titles: dict[str, None] = {}
    for column in columns:
        titles |= dict.fromkeys(column)
    rows = []
    for title in titles:
        of_machines = [column.get(title, numerals.MISSING) for column in columns]
        rows.append([title, *of_machines])
    return Columns([f"`{name}`" for name in names], rows)


def _machine(facts: Mapping[str, Any]) -> dict[str, str]:
    """A machine's facts by title; facts without a title keep their names."""
    titles = {
        "cpu_model": "CPU",
        "cpus": "CPUs",
        "kernel": "kernel",
        "driver": "GPU driver",
    }
    shown = {
        title: str(facts[name])
        for name, title in titles.items()
        if facts.get(name) is not None
    }
    if facts.get("memory_bytes"):
        shown["memory, GiB"] = f"{facts['memory_bytes'] / 2**30:,.0f}"
    shown["GPUs"] = gpus_of(facts, _details) or "none"
    nodes = [gpu["numa_node"] for gpu in facts.get("gpus", ()) if "numa_node" in gpu]
    if nodes:
        shown["NUMA nodes of the GPUs"] = ", ".join(map(str, nodes))
    told = {*titles, "memory_bytes", "gpus", "fingerprint"}
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


def workload_facts(result: CampaignResult) -> Columns:
    """Return the declared workloads, a column for each that is distinct."""
    workloads = result.workloads
    rows = []
    for name, title in {**_WORKLOAD, "levels": result.level_unit}.items():
        if any(load.get(name) not in (None, (), []) for load in workloads):
            rows.append([title, *(_value(load.get(name)) for load in workloads)])
    return Columns([str(load.get("title") or "") for load in workloads], rows)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "; ".join(
            f"{number} {name.replace('_', ' ')}" for name, number in value.items()
        )
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(str, value))
    return f"{value:,g}" if isinstance(value, int | float) else str(value)


@dataclass(frozen=True)
class LoadWords:
    """A load: whether it replays a trace, and what its requests are like."""

    of_trace: bool
    requests: str


def workloads_in_words(result: CampaignResult) -> list[LoadWords]:
    """Return the loads in words, each once."""
    loads = map(workload_of, result.workloads)
    return [
        *dict.fromkeys(
            LoadWords(load.trace is not None, describe_requests(load)) for load in loads
        )
    ]


@dataclass(frozen=True)
class Phase:
    """A phase of measuring: its seconds over all runs, their share, and the mean of the runs that have it."""

    name: str
    seconds: float
    percent: float
    mean_s: float


def seconds_by_phase(result: CampaignResult) -> list[Phase]:
    """Return the phases of measuring, the longest first; none where nothing took any time."""
    seconds: dict[str, list[float]] = {}
    for run in result.runs:
        for name, taken in run.phases.items():
            seconds.setdefault(name, []).append(taken)
    total = sum(map(sum, seconds.values()))
    phases = [
        Phase(name, sum(taken), 100 * sum(taken) / total, sum(taken) / len(taken))
        for name, taken in seconds.items()
        if total
    ]
    return sorted(phases, key=lambda phase: phase.seconds, reverse=True)
