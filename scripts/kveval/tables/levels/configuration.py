"""The columns that say what ran: the declared work, the machine, the GPUs' conditions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from kveval.load import levels as workloads
from kveval.load.reports import LevelReport
from kveval.load.workload import Pause, Workload, workload_of
from kveval.store.run_file import IMPORTED, Run

# Column after "gpu_" -> what run.json calls it.
_GPU_CONDITIONS = {
    "power_limit_w": "power_limit_w",
    "clock_limit_mhz": "clock_limit_mhz",
    "clock_mhz": "clock_mhz_mean",
}


def machine(run: Run) -> str:
    """Return a text that is equal on equal hardware: the fingerprint; on a cluster, followed by the GPUs that served.

    There the fingerprint is made of the node's labels, which need not name the GPUs.
    """
    cards = run.hardware.get("gpus") or () if run.engine == "kubernetes" else ()
    kinds = {
        f"{card.get('name')} {round((card.get('memory_bytes') or 0) / 2**30)} GiB"
        for card in cards
    }
    return ", ".join([str(run.hardware.get("fingerprint", "")), *sorted(kinds)])


def declared_work(run: Run, report: LevelReport, level: int) -> str:
    """Return the declared workload of a level as `name=value;...`; unknown values are left out.

    So is what may differ between runs that do the same work: levels, durations, time limits, the seed.
    """
    workload = workload_of(run.workload)
    work: dict[str, Any] = {
        "prompt_tokens": workload.prompt_tokens,
        "output_tokens": workload.output_tokens,
        "prompt_stdev": workload.prompt_spread.stdev if workload.prompt_spread else 0,
        "output_stdev": workload.output_spread.stdev if workload.output_spread else 0,
        "prefix_tokens": workloads.prefix_tokens_at(workload, level),
        "prefix_count": workloads.prefix_count_at(workload, level),
        "turns": workload.turns,
        "primed": int(workload.prime),
        "burst_factor": workload.bursts.factor if workload.bursts else None,
        **_seldom_given(workload),
    }
    if run.engine == IMPORTED:
        work |= _imported_work(report, work)
    return ";".join(
        f"{name}={value:g}" for name, value in work.items() if value is not None
    )


def _seldom_given(workload: Workload) -> dict[str, float]:
    """The numbers that most loads do not have, without those that are 0."""
    documents, pause = workload.document_spread, workload.pause_s
    work = {
        "document_tokens": workload.document_tokens,
        "document_stdev": documents.stdev if documents else 0,
        "pause_s": workload.mean_pause_s,
        "prefix_zipf": workload.prefix_zipf,
        "pause_stdev_s": pause.stdev if isinstance(pause, Pause) else 0,
    }
    return {name: value for name, value in work.items() if value}


def _imported_work(report: LevelReport, declared: Mapping[str, Any]) -> dict[str, Any]:
    """The workload of imported results: from the load's settings in the report; without them, lengths are unknown."""
    data = report.data
    if data is not None:
        spreads = {"prompt_stdev": data.prompt_stdev, "output_stdev": data.output_stdev}
        return {
            "prompt_tokens": data.prompt_tokens,
            "output_tokens": data.output_tokens,
            **spreads,
            "primed": None,
        }
    unknown = dict.fromkeys(
        ("prompt_tokens", "output_tokens", "prompt_stdev", "output_stdev", "primed")
    )
    unknown |= {
        name: None for name in ("prefix_tokens", "prefix_count") if not declared[name]
    }
    return unknown | ({"turns": None} if declared["turns"] == 1 else {})


def gpu_conditions(run: Run) -> dict[str, Any]:
    """Return the number of GPUs, NaN if not known, and their power and clock limits and clocks; means over GPUs.

    `gpu_throttled`: the reasons for which any GPU was throttled, `;`-joined.
    """
    conditions = run.gpu_conditions
    gpus = run.hardware.get("gpus")
    row: dict[str, Any] = {"gpus": math.nan}
    if gpus is not None and run.engine != IMPORTED:
        row["gpus"] = float(len(gpus))
    for name, source in _GPU_CONDITIONS.items():
        row[f"gpu_{name}"] = _mean([getattr(gpu, source) for gpu in conditions])
    reasons = {reason for gpu in conditions for reason in gpu.throttle_reasons}
    return {**row, "gpu_throttled": ";".join(sorted(reasons))}


def _mean(values: Sequence[float | None]) -> float:
    """The mean of the values that are known, NaN without any."""
    known = [value for value in values if value is not None]
    return float(sum(known)) / len(known) if known else math.nan
