"""The part of an imported run's run.json that needs no file: what defined the run, as far as that is known."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import msgspec

from kveval import __version__
from kveval.config.catalogue import Model
from kveval.importing.interpret import FoundLevel, Result, effective
from kveval.load.levels import OPEN_LOOP
from kveval.load.reports.vllm_bench import VLLM_BENCH
from kveval.spec import sizing
from kveval.store.run_file import time_text

UNKNOWN_RELEASE = "0"
# Requests per minute: the rounding error of a rate that is written in requests per second.
_SAME_RATE = 1e-3
Members = Sequence[tuple[Result, FoundLevel | None]]


def describe_run(members: Members, model: Model, vllm: str, remarks: Sequence[str]) -> dict[str, Any]:
    """Return the parts of run.json that need no file; `members` are the run's results, None for a level without one."""
    good = [(result, level) for result, level in members if level is not None and level.error is None]
    first = good[0][0]
    cell, declared = first.cell, first.declared
    if cell is None or declared is None:
        raise AssertionError("only interpreted results are described")
    starts = [level.facts.start for _, level in good]
    ends = [level.facts.end for _, level in good]
    guidellm = sorted({str(result.source.facts.guidellm) for result, _ in good})
    device_tokens = next((r.source.facts.device_tokens for r, _ in good if r.source.facts.device_tokens), None)
    per_token = sizing.kv_bytes_per_token(model.geometry, model.kv_cache_dtype, first.ranks, model.dtype)
    sizes = sizing.budget(per_token, cell.cpu_blocks, ranks=first.ranks)
    budget = {**msgspec.structs.asdict(sizes), "device_tokens": device_tokens}
    args = first.settings.args
    argv = [] if args is None else ["vllm", "serve", model.hf_id, *args]
    generator = "load generator" if guidellm == [VLLM_BENCH] else "guidellm"
    versions = {**({"vllm": vllm} if vllm != UNKNOWN_RELEASE else {}), generator: " / ".join(guidellm)}
    utilization = first.settings.values.get("GPU Memory Utilization")
    return {
        "cell": asdict(cell),
        "specification": {
            "cell": asdict(cell),
            "engine": "imported",
            "weights": "full",
            "model": {
                **{"name": cell.model, "hf_id": model.hf_id, "geometry": model.geometry.model_dump()},
                **{"dtype": model.dtype, "kv_cache_dtype": model.kv_cache_dtype, "quantization": model.quantization},
                **{"tensor_parallel_size": first.ranks, "gpu_memory_utilization": utilization},
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
        "server": {"argv": argv, "env": dict(first.settings.env), "facts": {"kv_cache_tokens": device_tokens}},
        "budget": budget,
        "declared": {**asdict(declared), "cpu_blocks": first.declared_blocks},
        "effective": dict(effective(first)),
        "remarks": list(remarks),
        "phases": {},
    }


def _workload(good: Sequence[tuple[Result, FoundLevel]]) -> dict[str, Any]:
    """Return the load: what was asked for where benchmark-config.txt says it, else what the reports say."""
    levels = sorted({level.level for _, level in good})
    # `vllm bench serve` sends a number of requests, without a limit of time; GuideLLM stops at its limit or just after.
    timed = good[0][0].source.facts.guidellm != VLLM_BENCH
    seconds = round(max(level.facts.end - level.facts.start for _, level in good)) if timed else None
    asked = [number for result, _ in good if (number := result.settings.number("Max Seconds"))]
    limit = max(asked, default=seconds)
    profile = _profile([level for _, level in good])
    data = next((level.facts.data for _, level in good if level.facts.data), None)
    tokens = next((level.facts.tokens for _, level in good if level.facts.tokens), None) or (0.0, 0.0)
    settings = good[0][0].settings
    prompt, output, prefix_tokens, _, turns = data or (round(tokens[0]), round(tokens[1]), 0, 0, 1)
    said = settings.number("Prefix Tokens")
    return {
        "profile": profile,
        "levels": [] if profile == "sweep" else levels,
        "sweep_size": len(levels) if profile == "sweep" else None,
        "seconds": None if limit is None else float(limit),
        "warmup_s": 0.0,
        "prompt_tokens": prompt,
        "output_tokens": output,
        "prefix_tokens": prefix_tokens if said is None else said,
        "prefix_count": _prefix_count(good),
        "turns": settings.number("Turns") or turns,
    }


def _profile(levels: Sequence[FoundLevel]) -> str:
    """Return how requests were sent: at fixed streams, at rates of whole requests a minute, or as a sweep does."""
    if all(level.facts.streams is not None for level in levels):
        return "concurrent"
    strategies = {level.facts.strategy for level in levels}
    declared = all(abs(60 * (level.facts.rate_req_s or 0.0) - level.level) < _SAME_RATE for level in levels)
    return strategies.pop() if declared and len(strategies) == 1 and strategies <= set(OPEN_LOOP) else "sweep"


def _prefix_count(good: Sequence[tuple[Result, FoundLevel]]) -> int | dict[str, int]:
    """Return the number of distinct prefixes, or how many per stream if it grows with the level."""
    counts = {}
    for result, level in good:
        said = result.settings.number("Prefix Count")
        counts[level.level] = said if said is not None else level.facts.data[3] if level.facts.data else 0
    if len(set(counts.values())) == 1:
        return next(iter(counts.values()))
    per_level = {count / level for level, count in counts.items() if level}
    if len(per_level) == 1 and (each := per_level.pop()).is_integer():
        return {"per_level": int(each)}
    # Neither fixed nor proportional: the largest is what a cache would have to hold.
    return max(counts.values())


def _hardware(result: Result) -> Mapping[str, Any]:
    """Return the hardware as the name has it; nothing of it was probed."""
    hardware, declared = result.hardware, result.declared
    name = hardware.name if hardware else "not recorded"
    nodes = "" if hardware is None or hardware.nodes == 1 else f"{hardware.nodes} nodes with "
    gpus = f"{hardware.gpus} x {hardware.gpu}" if hardware and hardware.gpus else name
    return {
        "fingerprint": f"imported-{name}",
        "description": f"{nodes}{gpus}, as the results' names say (not probed)"
        if hardware
        else "hardware not recorded",
        "software": declared.software if declared else None,
        "gpus": [],
    }
