"""Facts recorded by the runs: machines, versions, workload, cache capacities."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kveval.campaign.cell import Cell, blocks_label
from kveval.campaign.size import Size, size_range
from kveval.load.levels import working_set_tokens_at
from kveval.load.workload import Workload, workload_of
from kveval.store.run_file import Run

_TOOLS = {"guidellm": "GuideLLM", "pcp": "PCP", "kveval": "kveval"}
WEIGHTS = {
    "miniature": "random-weight miniature, not the named model",
    "random": "random weights, full geometry",
    "full": "full weights",
}
"""Descriptions of the kinds of weights, in all outputs."""


def footer(runs: Sequence[Run], name: str) -> str:
    """Return the line under every figure: engine, weights, hardware, versions, campaign."""
    if not runs:
        return f"campaign {name}"
    kind = WEIGHTS.get(runs[0].weights, runs[0].weights)
    named = {*(run.described.server for run in runs), _TOOLS["guidellm"]}
    software = ", ".join(
        f"{tool} {version}"
        for tool, version in versions_by_title(runs).items()
        if tool in named
    )
    where = (
        "imported results"
        if runs[0].engine == "imported"
        else f"{runs[0].engine} engine"
    )
    return f"{where}, {kind} · {'; '.join(machine_descriptions(runs))} · {software} · campaign {name}"


def run_places(runs: Sequence[Run]) -> dict[tuple[Cell, int], Path]:
    """Return cell and run -> the run's folder in the store, of the runs that have one on this machine."""
    return {(run.cell, run.run): Path(run.place) for run in runs if run.place}


def machines(runs: Sequence[Run]) -> dict[str, Mapping[str, Any]]:
    """Return fingerprint -> facts of the runs' machines, as they were probed."""
    by_fingerprint: dict[str, Mapping[str, Any]] = {}
    for run in runs:
        by_fingerprint.setdefault(
            str(run.hardware.get("fingerprint", "unknown")), run.hardware
        )
    return by_fingerprint


def machine_descriptions(runs: Sequence[Run]) -> list[str]:
    """Return the machines of the runs as they were probed, each in one phrase."""
    return [_machine(facts) for facts in machines(runs).values()]


def _machine(facts: Mapping[str, Any]) -> str:
    if "description" in facts:
        # Imported runs have a description instead of probed facts.
        return str(facts["description"])
    parts = [str(facts.get("cpu_model", "unknown CPU"))]
    if "cpus" in facts:
        parts.append(f"{facts['cpus']} CPUs")
    if facts.get("memory_bytes"):
        parts.append(f"{facts['memory_bytes'] / 2**30:.0f} GiB memory")
    return ", ".join([*parts, gpus_of(facts) or "no GPU"])


def gpus_of(
    facts: Mapping[str, Any],
    describe: Callable[[Mapping[str, Any]], str] = lambda _: "",
) -> str:
    """Return a machine's GPUs by kind with their numbers, "" if it has none; `describe`: further facts of one."""
    gpus = Counter(f"{_gpu(gpu)}{describe(gpu)}" for gpu in facts.get("gpus", ()))
    return " and ".join(f"{count} x {gpu}" for gpu, count in gpus.items())


def _gpu(facts: Mapping[str, Any]) -> str:
    memory = facts.get("memory_bytes")
    return f"{facts.get('name', 'unknown GPU')}{f' ({memory / 2**30:.0f} GiB)' if memory else ''}"


def versions_by_tool(runs: Sequence[Run]) -> dict[str, dict[str, None]]:
    """Return tool -> the versions measured, each once."""
    by_tool: dict[str, dict[str, None]] = {}
    for run in runs:
        for tool, version in run.software.items():
            by_tool.setdefault(tool, {})[str(version)] = None
    return by_tool


def versions_by_title(runs: Sequence[Run]) -> dict[str, str]:
    """Return the title of each tool -> its version as measured; several, joined by a slash, if the runs differ."""
    titles = dict(_TOOLS)
    for run in runs:
        titles |= run.described.titles
    return {
        titles.get(tool, tool): " / ".join(seen)
        for tool, seen in versions_by_tool(runs).items()
    }


def distinct_workloads(runs: Sequence[Run]) -> list[Mapping[str, Any]]:
    """Return the workloads of the runs, each once."""
    return distinct(run.workload for run in runs)


def distinct(records: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return records of JSON, each once, in the order in which they first come."""
    by_text = {
        json.dumps(record, sort_keys=True, default=str): record for record in records
    }
    return list(by_text.values())


def working_set(workload: Workload) -> dict[int, int]:
    """Return level -> tokens of all distinct prefixes of a workload."""
    return {
        level: working_set_tokens_at(workload, level) for level in workload.given_levels
    }


@dataclass(frozen=True)
class Tiers:
    """Capacities of a cell in tokens (NaN: unknown), and the tokens of all distinct prefixes at each level."""

    device: float
    cpu: float
    working_set: Mapping[int, int]


def tiers_of(run: Run) -> Tiers:
    """Return the capacities of a run's caches, and the working set of its workload."""
    budget = run.budget
    cpu = float(budget.get("tokens", math.nan)) if run.cell.cpu_blocks else 0.0
    return Tiers(
        float(budget.get("device_tokens") or math.nan),
        cpu,
        working_set(workload_of(run.workload)),
    )


def tier_size(run: Run) -> Size | None:
    """Return the size of a run's tier in host memory; None without a tier, or where the run does not say its bytes."""
    size_bytes = run.budget.get("requested_bytes")
    if not run.cell.cpu_blocks or not size_bytes:
        return None
    return Size(run.cell.cpu_blocks, int(size_bytes))


def tier_size_text(cpu_blocks: int, size: Size | None) -> str:
    """Return the size of a tier in host memory as text: in blocks where its bytes are not known, "-" for no blocks."""
    if not cpu_blocks:
        return "-"
    return str(size or f"{cpu_blocks:,} blocks")


def tier_sizes(runs: Iterable[Run]) -> dict[Cell, Size]:
    """Return the sizes of the tiers in host memory, of the cells that have one."""
    sizes = {run.cell: tier_size(run) for run in runs}
    return {cell: size for cell, size in sizes.items() if size is not None}


def tier_sizes_in_words(sizes: Mapping[Cell, Size]) -> str:
    """Return what the short sizes in the names of arms stand for, as a list; "" without sizes.

    Of several models, from the least to the largest: "10K is 17.5 to 25.0 GiB (10,000 blocks)".
    """
    by_blocks: dict[int, list[Size]] = {}
    for size in sizes.values():
        by_blocks.setdefault(size.cpu_blocks, []).append(size)
    return ", ".join(
        f"{blocks_label(blocks)} is {size_range(by_blocks[blocks])}"
        for blocks in sorted(by_blocks)
    )
