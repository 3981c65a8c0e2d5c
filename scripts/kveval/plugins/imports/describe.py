"""The definition of an imported run, as far as it is known: the parts of run.json that name no file of the store."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from kveval import __version__
from kveval.load.levels import OPEN_LOOP
from kveval.load.reports.data import SyntheticData
from kveval.load.reports.vllm_bench import VLLM_BENCH
from kveval.plugins.imports.facts import LevelFacts, ServerFacts
from kveval.plugins.imports.forms import parse_hardware
from kveval.plugins.imports.plan import UNKNOWN_RELEASE, LevelPlan, RunPlan
from kveval.plugins.imports.settings import (
    ServedSettings,
    configuration,
    connectors,
    parse_settings,
)
from kveval.store.run_file import time_text

# Requests per minute: the rounding error of a rate that is written in requests per second.
_SAME_RATE = 1e-3


@dataclass(frozen=True)
class ReadLevel:
    """A level of a run with what its files say; without `facts` one that failed, and `error` is why."""

    plan: LevelPlan
    facts: LevelFacts | None = None
    guidellm: str = ""
    server: ServerFacts = field(default_factory=ServerFacts)
    error: str = ""

    @property
    def identity(self) -> list[int | bool]:
        """The level's part of the run's id: its number, its benchmark, and whether it has a result."""
        if self.facts is None:
            return [self.plan.level, 0, False]
        return [self.plan.level, self.plan.benchmark, True]

    @property
    def settings(self) -> ServedSettings:
        """The settings of its server."""
        return parse_settings(self.server.settings)


@dataclass(frozen=True)
class _GoodLevel:
    """A level that has a result."""

    level: int
    facts: LevelFacts
    guidellm: str
    settings: ServedSettings


def describe_run(plan: RunPlan, levels: Sequence[ReadLevel]) -> dict[str, Any]:
    """Return the parts of run.json that name no file of the store; at least one level has a result."""
    good = [
        _GoodLevel(level.plan.level, level.facts, level.guidellm, level.settings)
        for level in levels
        if level.facts is not None
    ]
    settings = good[0].settings
    device_tokens = next(
        (level.server.device_tokens for level in levels if level.server.device_tokens),
        None,
    )
    guidellm = sorted({level.guidellm for level in good})
    budget = {**plan.budget, "device_tokens": device_tokens}
    argv = []
    if settings.args is not None:
        argv = ["vllm", "serve", plan.model["hf_id"], *settings.args]
    generator = "load generator" if guidellm == [VLLM_BENCH] else "guidellm"
    versions = {
        **({"vllm": plan.vllm} if plan.vllm != UNKNOWN_RELEASE else {}),
        generator: " / ".join(guidellm),
    }
    utilization = settings.values.get("GPU Memory Utilization")
    same_configuration = configuration(settings, plan.hardware, plan.software)
    return {
        "cell": asdict(plan.cell),
        "specification": {
            "cell": asdict(plan.cell),
            "engine": "imported",
            "weights": "full",
            "model": {
                **plan.model,
                "name": plan.cell.model,
                "tensor_parallel_size": plan.tensor_parallel_size,
                "gpu_memory_utilization": utilization,
            },
            "versions": versions,
            "software": plan.software,
            "hardware": plan.hardware,
            "argv": argv,
            "env": dict(settings.env),
            # Arms whose arguments are not known must not count as arms with equal arguments.
            "companions": []
            if settings.args is not None
            else [f"declared as {plan.arm}"],
            "budget": budget,
            "workload": _workload(good),
            "configuration": same_configuration,
        },
        "engine": "imported",
        "weights": "full",
        "started": time_text(min(level.facts.start for level in good)),
        "finished": time_text(max(level.facts.end for level in good)),
        "hardware": _hardware(plan),
        "versions": {**versions, "kveval": __version__},
        "server": {
            "argv": argv,
            "env": dict(settings.env),
            "facts": {"kv_cache_tokens": device_tokens},
        },
        "budget": budget,
        "declared": {
            "arm": plan.arm,
            "hardware": plan.hardware,
            "software": plan.software,
            "replicas": settings.number("Replicas") or plan.replicas,
        },
        "effective": {
            "cpu_blocks": plan.cell.cpu_blocks,
            "connectors": list(connectors(settings)),
            "gpu_memory_utilization": utilization,
            "tensor_parallel_size": plan.tensor_parallel_size,
            "configuration": same_configuration,
        },
        "remarks": list(plan.remarks),
        "phases": {},
    }


def _workload(good: Sequence[_GoodLevel]) -> dict[str, Any]:
    """Return the load: what was asked for where benchmark-config.txt says it, else what the reports say."""
    levels = sorted({level.level for level in good})
    # `vllm bench serve` sends a number of requests, without a limit of time; GuideLLM stops at its limit or just after.
    timed = good[0].guidellm != VLLM_BENCH
    seconds = (
        round(max(level.facts.end - level.facts.start for level in good))
        if timed
        else None
    )
    limits = [
        number for level in good if (number := level.settings.number("Max Seconds"))
    ]
    limit = max(limits, default=seconds)
    profile = _profile(good)
    prompt, output = next(
        (level.facts.tokens for level in good if level.facts.tokens), (0.0, 0.0)
    )
    reported = next((level.facts.data for level in good if level.facts.data), None)
    data = reported or SyntheticData(round(prompt), round(output))
    settings = good[0].settings
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


def _profile(levels: Sequence[_GoodLevel]) -> str:
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


def _prefix_count(good: Sequence[_GoodLevel]) -> int | dict[str, int]:
    """Return the number of distinct prefixes, or how many per stream if it grows with the level."""
    counts = {}
    for level in good:
        requested = level.settings.number("Prefix Count")
        reported = level.facts.data.prefix_count if level.facts.data else 0
        counts[level.level] = reported if requested is None else requested
    if len(set(counts.values())) == 1:
        return next(iter(counts.values()))
    per_level = {count / level for level, count in counts.items() if level}
    if len(per_level) == 1 and (ratio := per_level.pop()).is_integer():
        return {"per_level": int(ratio)}
    # Neither fixed nor proportional: the largest is what a cache would have to hold.
    return max(counts.values())


def _hardware(plan: RunPlan) -> dict[str, Any]:
    """Return the hardware as the sheet has it; nothing of it was probed."""
    description = "hardware not recorded"
    if plan.hardware is not None:
        named = parse_hardware(plan.hardware)
        description = f"{plan.hardware}, as the results' names say (not probed)"
        if named is not None:
            nodes = "" if named.nodes == 1 else f"{named.nodes} nodes with "
            description = f"{nodes}{named.gpus} x {named.gpu}, as the results' names say (not probed)"
    return {
        "fingerprint": f"imported-{plan.hardware or 'not recorded'}",
        "description": description,
        "software": plan.software,
        "gpus": [],
    }
