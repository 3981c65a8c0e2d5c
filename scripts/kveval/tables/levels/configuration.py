"""The columns that say what ran: a hash of everything, the server's build, the declared work, the GPUs' conditions.

Two cells with the same hash are replicates, whatever their names.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from kveval.campaign.builds import BESIDE
from kveval.host.hashing import content_hash
from kveval.load import levels as workloads
from kveval.load.reports import LevelReport
from kveval.load.workload import Pause, Workload, workload_of
from kveval.stacks.registry import SERVERS, server_version
from kveval.store.run_file import IMPORTED, Run

# The fields of a specification that say what ran; the cell's name and its declared size do not.
_FACTS = (
    "engine",
    "weights",
    "model",
    "versions",
    "build",
    "block_size",
    "companions",
    "workload",
    "reset_caches",
)
# The facts that identify the build only.
_OF_BUILD = ("versions", "build", "source", "images")

# Column after "gpu_" -> what run.json calls it.
_GPU_CONDITIONS = {
    "power_limit_w": "power_limit_w",
    "clock_limit_mhz": "clock_limit_mhz",
    "clock_mhz": "clock_mhz_mean",
}


def effective_configuration(run: Run) -> str:
    """Return 12 hex digits of the SHA-256 of what ran: arguments, environment, images, versions, model, workload.

    The CPU tier is part of it through arguments and environment; for a run that records neither, through its budget.
    """
    return content_hash(_what_ran(run), 12, spaced=True)


def arm_settings(run: Run) -> str:
    """Return 12 hex digits, equal for runs that differ in nothing but the build; "" if the run has no arguments."""
    facts = _what_ran(run)
    settings = {name: value for name, value in facts.items() if name not in _OF_BUILD}
    return (
        content_hash(settings, 12, spaced=True) if facts["argv"] or facts["env"] else ""
    )


def _what_ran(run: Run) -> dict[str, Any]:
    specification = run.specification
    argv = specification.get("argv") or run.server.get("argv") or ()
    env = specification.get("env") or run.server.get("env") or {}
    facts: dict[str, Any] = {
        **{name: specification.get(name) for name in _FACTS},
        "argv": _without_start_flags(argv),
        "env": dict(env),
        "images": run.server.get("images") or specification.get("images"),
        "hardware": run.hardware.get("fingerprint"),
    }
    if not argv and not env:
        facts["budget"] = run.budget.get("tier_bytes")
    for name in ("source", "load_from_tier"):
        if name in specification:
            facts[name] = specification[name]
    return facts


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


def server_build(run: Run) -> str:
    """Return what the run records of the server's build: image, build, version, the content hash of a build that the
    arm names; "" if nothing is recorded.
    """
    images = run.server.get("images") or run.specification.get("images") or {}
    image = images.get("server", "") if isinstance(images, Mapping) else ""
    parts = [
        image,
        run.specification.get("build"),
        server_version(run.versions),
        run.specification.get("source"),
    ]
    # The release of a program beside the server, such as LMCache, if the arm's build is one of that program.
    key = str(run.build.get("key", ""))
    parts.append(key if key.startswith(f"{BESIDE}-") else "")
    return " ".join(str(part) for part in parts if part)


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


def _without_start_flags(argv: Sequence[str]) -> list[str]:
    """Return the arguments without those that differ from start to start; JSON values with their keys sorted."""
    per_start = {flag for server in SERVERS.values() for flag in server.flags_per_start}
    kept: list[str] = []
    skip = False
    for argument in argv:
        if not skip and argument not in per_start:
            kept.append(_canonical(argument))
        skip = argument in per_start
    return kept


def _canonical(argument: str) -> str:
    if not argument.startswith("{"):
        return argument
    try:
        return json.dumps(json.loads(argument), sort_keys=True)
    except ValueError:
        return argument
