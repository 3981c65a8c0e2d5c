"""The part of an imported run's run.json that needs no file: what defined the run, as far as that is known."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import msgspec

from kveval import __version__
from kveval.campaign import sizing
from kveval.campaign.catalogue import Model
from kveval.importing.interpret import FoundLevel, Result, settings_that_ran
from kveval.importing.runs import PlacedLevel
from kveval.load.levels import OPEN_LOOP
from kveval.load.reports.data import SyntheticData
from kveval.load.reports.vllm_bench import VLLM_BENCH
from kveval.store.run_file import time_text

UNKNOWN_RELEASE = "0"
# Requests per minute: the rounding error of a rate that is written in requests per second.
_SAME_RATE = 1e-3


def describe_run(
    members: Sequence[PlacedLevel], model: Model, vllm: str, remarks: Sequence[str]
) -> dict[str, Any]:
    """Return the parts of run.json that need no file; `members` are those of the run's draft."""
    good = [(member.result, member.usable) for member in members if member.usable]
    first = good[0][0]
    cell, declared = first.cell, first.declared
    assert cell is not None
    assert declared is not None
    starts = [level.facts.start for _, level in good]
    ends = [level.facts.end for _, level in good]
    guidellm = sorted({str(result.facts.guidellm) for result, _ in good})
    device_tokens = next(
        (
            result.facts.device_tokens
            for result, _ in good
            if result.facts.device_tokens
        ),
        None,
    )
    per_token = sizing.kv_bytes_per_token(
        model.geometry, model.kv_cache_dtype, first.ranks, model.dtype
    )
    sizes = sizing.Budget.from_blocks(per_token, cell.cpu_blocks, ranks=first.ranks)
    budget = {**msgspec.structs.asdict(sizes), "device_tokens": device_tokens}
    args = first.settings.args
    argv = [] if args is None else ["vllm", "serve", model.hf_id, *args]
    generator = "load generator" if guidellm == [VLLM_BENCH] else "guidellm"
    versions = {
        **({"vllm": vllm} if vllm != UNKNOWN_RELEASE else {}),
        generator: " / ".join(guidellm),
    }
    utilization = first.settings.values.get("GPU Memory Utilization")
    return {
        "cell": asdict(cell),
        "specification": {
            "cell": asdict(cell),
            "engine": "imported",
            "weights": "full",
            "model": {
                **model.model_dump(
                    include={
                        "hf_id",
                        "geometry",
                        "dtype",
                        "kv_cache_dtype",
                        "quantization",
                    }
                ),
                **{
                    "name": cell.model,
                    "tensor_parallel_size": first.ranks,
                    "gpu_memory_utilization": utilization,
                },
            },
            "versions": versions,
            "software": declared.software,
            "hardware": declared.hardware,
            "argv": argv,
            "env": dict(first.settings.env),
            # Arms whose arguments are not known must not count as arms with equal arguments.
            "companions": [] if args is not None else [f"declared as {declared.arm}"],
            "budget": budget,
            "workload": _workload(good),
            "configuration": first.configuration,
        },
        "engine": "imported",
        "weights": "full",
        "started": time_text(min(starts)),
        "finished": time_text(max(ends)),
        "hardware": _hardware(first),
        "versions": {**versions, "kveval": __version__},
        "server": {
            "argv": argv,
            "env": dict(first.settings.env),
            "facts": {"kv_cache_tokens": device_tokens},
        },
        "budget": budget,
        "declared": {**asdict(declared), "cpu_blocks": first.declared_blocks},
        "effective": dict(settings_that_ran(first)),
        "remarks": list(remarks),
        "phases": {},
    }


def _workload(good: Sequence[tuple[Result, FoundLevel]]) -> dict[str, Any]:
    """Return the load: what was asked for where benchmark-config.txt says it, else what the reports say."""
    levels = sorted({level.level for _, level in good})
    # `vllm bench serve` sends a number of requests, without a limit of time; GuideLLM stops at its limit or just after.
    timed = good[0][0].facts.guidellm != VLLM_BENCH
    seconds = (
        round(max(level.facts.end - level.facts.start for _, level in good))
        if timed
        else None
    )
    limits = [
        number
        for result, _ in good
        if (number := result.settings.number("Max Seconds"))
    ]
    limit = max(limits, default=seconds)
    profile = _profile([level for _, level in good])
    prompt, output = next(
        (level.facts.tokens for _, level in good if level.facts.tokens), (0.0, 0.0)
    )
    reported = next((level.facts.data for _, level in good if level.facts.data), None)
    data = reported or SyntheticData(round(prompt), round(output))
    settings = good[0][0].settings
    prefix_tokens = settings.number("Prefix Tokens")
    return {
        "profile": profile,
        "levels": [] if profile == "sweep" else levels,
        "sweep_size": len(levels) if profile == "sweep" else None,
        "seconds": None if limit is None else float(limit),
        "warmup_s": 0.0,
        "prompt_tokens": data.prompt_tokens,
        "output_tokens": data.output_tokens,
        "prefix_tokens": data.prefix_tokens if prefix_tokens is None else prefix_tokens,
        "prefix_count": _prefix_count(good),
        "turns": settings.number("Turns") or data.turns,
    }


def _profile(levels: Sequence[FoundLevel]) -> str:
    """Return how requests were sent: at fixed streams, at rates of whole requests a minute, or as a sweep does."""
    if all(level.facts.streams is not None for level in levels):
        return "concurrent"
    strategies = {level.facts.strategy for level in levels}
    declared = all(
        abs(60 * (level.facts.rate_req_s or 0.0) - level.level) < _SAME_RATE
        for level in levels
    )
    return (
        strategies.pop()
        if declared and len(strategies) == 1 and strategies <= set(OPEN_LOOP)
        else "sweep"
    )


def _prefix_count(good: Sequence[tuple[Result, FoundLevel]]) -> int | dict[str, int]:
    """Return the number of distinct prefixes, or how many per stream if it grows with the level."""
    counts = {}
    for result, level in good:
        declared = result.settings.number("Prefix Count")
        reported = level.facts.data.prefix_count if level.facts.data else 0
        counts[level.level] = reported if declared is None else declared
    if len(set(counts.values())) == 1:
        return next(iter(counts.values()))
    per_level = {count / level for level, count in counts.items() if level}
    if len(per_level) == 1 and (ratio := per_level.pop()).is_integer():
        return {"per_level": int(ratio)}
    # Neither fixed nor proportional: the largest is what a cache would have to hold.
    return max(counts.values())


def _hardware(result: Result) -> dict[str, Any]:
    """Return the hardware as the name has it; nothing of it was probed."""
    hardware, description = result.hardware, "hardware not recorded"
    if hardware is not None:
        nodes = "" if hardware.nodes == 1 else f"{hardware.nodes} nodes with "
        gpus = f"{hardware.gpus} x {hardware.gpu}" if hardware.gpus else hardware.name
        description = f"{nodes}{gpus}, as the results' names say (not probed)"
    return {
        "fingerprint": f"imported-{hardware.name if hardware else 'not recorded'}",
        "description": description,
        "software": result.declared.software if result.declared else None,
        "gpus": [],
    }
