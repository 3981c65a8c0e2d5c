"""A made-up campaign as large as a published one: four models, seven arms, two tier sizes, eight levels, three runs."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
import numpy as np
import pandas as pd
import yaml
from tests.support.described import described_run
from tests.support.paths import CONFIG
from tests.support.predicted import with_predicted
from tests.support.synthetic import level_row, run_description

from kveval.campaign.campaign_file import Comparison
from kveval.campaign.cell import Cell
from kveval.conditions.facts import described
from kveval.report.data.campaign import Measured, ReportPlan
from kveval.store.conditions import Change
from kveval.store.run_file import Run
from kveval.tables.peaks import peak_row
from kveval.verdict.verdicts import compare_all
from pcp_parquet.conversion.conversion import convert
from pcp_parquet.tests.test_archive_writer import (
    COUNTER,
    DOUBLE,
    NULL,
    U64,
    Metric,
    Writer,
    indom,
    pmid,
    units,
)

METRICS: dict[str, dict[str, Any]] = yaml.load(
    (CONFIG / "metrics.yaml").read_bytes(), Loader=yaml.CSafeLoader
)
LEVELS = (1, 50, 100, 200, 300, 400, 500, 650)
# Name -> parameters, tok/s at saturation, tokens of the device's KV cache, bytes of KV cache per token.
MODELS = {
    "Qwen3-32B-AWQ": (32_800_000_000, 130.0, 208_080, 262_144),
    "Qwen3-0.6B": (600_000_000, 1900.0, 635_200, 114_688),
    "Qwen3-8B": (8_200_000_000, 420.0, 390_704, 147_456),
    "Qwen3-14B": (14_800_000_000, 250.0, 269_712, 163_840),
}
# Effect of an arm on ln throughput, times how small the model's cache is.
ARMS = {
    "no-offload": 0.0,
    "native-offload": -0.08,
    "lmcache-local": 0.06,
    "lmcache-redis": 0.03,
    "lmcache-valkey": 0.035,
    "llm-d-redis": 0.001,
    "llm-d-valkey": -0.001,
}
TIERED = ("native-offload", "lmcache-local", "lmcache-redis", "lmcache-valkey")
BASELINES: dict[str, str | None] = {
    arm: None if arm == "no-offload" else "no-offload" for arm in ARMS
}
_KIND = {"no": "none", "native": "native", "lmcache": "lmcache", "llm-d": "llm-d-index"}
PARAMETERS = {model: facts[0] for model, facts in MODELS.items()}
START = pd.Timestamp("2026-01-01T00:00Z")
WINDOW_S = 60


def cells(
    models: Sequence[str] = tuple(MODELS), arms: Sequence[str] = tuple(ARMS)
) -> list[Cell]:
    """Every model with every arm at 10,000 blocks, and three arms of the two largest models at 20,000: 34 cells."""
    result = [
        Cell(model, arm, 10_000 if arm in TIERED else 0)
        for model in models
        for arm in arms
    ]
    larger = [model for model in models if model in ("Qwen3-14B", "Qwen3-32B-AWQ")]
    again = [
        arm
        for arm in ("native-offload", "lmcache-local", "lmcache-valkey")
        if arm in arms
    ]
    return result + [Cell(model, arm, 20_000) for model in larger for arm in again]


def levels_table(
    keys: Sequence[Cell], runs: int = 3, levels: Sequence[int] = LEVELS
) -> pd.DataFrame:
    """complete_metrics.csv of these cells: plausible, with block effects and a run-to-run SD of 1.5 %."""
    generator = np.random.default_rng(11)
    rows = []
    for cell in keys:
        model, arm, blocks = cell.key
        _, top, device, _ = MODELS[model]
        need = np.log(1_600_000 / device) - 0.9
        for run in range(1, runs + 1):
            block = 0.02 * np.sin(7 * run)
            for level in levels:
                effect = (
                    ARMS[arm]
                    * need
                    * (2 if blocks > 10_000 else 1)
                    * min(level / 50, 1)
                )
                rate = top * level / (level + 30) * (1 - level / 4000)
                rate *= np.exp(effect + block + generator.normal(0, 0.015))
                rows.append(_row(cell, run, level, rate, generator))
    table = pd.DataFrame(rows)
    table["exercised"] = table["exercised"].astype("boolean")
    return table


def _row(
    cell: Cell, run: int, level: int, rate: float, generator: np.random.Generator
) -> dict[str, Any]:
    model, arm, blocks = cell.key
    row = level_row(model, arm, run, level, rate)
    tier, jitter = arm in TIERED, generator.normal(1, 0.02, 12)
    running = min(level, 18.0 * jitter[0])
    absent = float("nan")
    system = {
        "kv_cache_usage_percent": min(100, 30 + 0.1 * level) * jitter[1],
        "kv_cache_usage_max_percent": min(100, 40 + 0.1 * level),
        "prefix_cache_hit_percent": min(95, (20 + 8 * np.log2(level)) * jitter[2]),
        "external_cache_hit_percent": (35 if blocks > 10_000 else 22) * jitter[3]
        if tier
        else absent,
        "requests_running": running,
        "requests_waiting": max(0.0, level - running),
        "preemptions": 0.0,
        "offload_load_mb_s": 900 * jitter[4] * rate / 250 if tier else absent,
        "offload_store_mb_s": 400 * jitter[5] * rate / 250 if tier else absent,
        "cpu_utilisation_percent": (8 + (4 if tier else 0)) * jitter[6],
        "cpu_steal_percent": 0.1,
        "processes_runnable": 12 * jitter[7],
        "memory_used_gib": 60 + (27 * blocks / 10_000) * jitter[8],
        "memory_available_gib": 400.0,
        "shared_memory_gib": 2.0,
        "server_rss_gib": (4 + 25 * blocks / 10_000) * jitter[9],
        "gpu_utilisation_percent": min(100, 55 + 40 * rate / MODELS[model][1])
        * jitter[10],
        "gpu_memory_used_gib": 86.0,
        "gpu_power_w": 480 * jitter[11],
    }
    known = {name: system.get(name, absent) for name in METRICS}
    start = START + pd.Timedelta(seconds=1)
    return {
        **row,
        **{
            name: value
            for name, value in known.items()
            if name not in row or name in system
        },
        **{"cpu_blocks": blocks, "engine": "kubernetes", "weights": "full", "run": run},
        "configuration": f"{model}/{arm}/{blocks}",
        **{
            "window_start": start,
            "window_end": start + pd.Timedelta(seconds=WINDOW_S - 2),
        },
        **{
            "total_tok_s": 40 * rate,
            "throughput_completed_tok_s": 0.97 * rate,
            "duration_s": 120.0,
        },
        **{
            "requests_total": row["requests_completed"] + level,
            "incomplete_share": 0.03,
        },
        **{"prompt_tokens": 39 * 120 * rate, "throughput_req_s": rate / 128},
    }


def plan(keys: Sequence[Cell] | None = None, **changes: Any) -> ReportPlan:
    """The plan of the whole campaign, or of these cells."""
    scenarios = {
        arm: {
            **{"title": arm, "baseline": baseline, "arm": _KIND[arm.rsplit("-", 1)[0]]},
            "store": next(
                (store for store in ("redis", "valkey") if arm.endswith(store)), None
            ),
            "required": [
                {"counter": "vllm:hits_total", "at_least": 1, "unit": "tokens"}
            ]
            if arm in TIERED
            else [],
        }
        for arm, baseline in BASELINES.items()
    }
    models = {
        name: {"parameters": facts[0], "kv_bytes_per_token": facts[3]}
        for name, facts in MODELS.items()
    }
    facts = {
        "name": "large",
        "title": "A large campaign",
        "description": "",
        "runs": 3,
        "cells": keys or cells(),
    }
    return ReportPlan(
        **{
            **facts,
            "scenarios": scenarios,
            "metrics": METRICS,
            "models": models,
            **changes,
        }
    )


def runs_of(levels: pd.DataFrame) -> list[Run]:
    """The runs that a table of levels came from."""
    keys = (
        levels[["model", "scenario", "cpu_blocks", "run"]]
        .drop_duplicates()
        .itertuples(index=False, name=None)
    )
    return [described_run(_run(*key)) for key in keys]


def _run(model: str, scenario: str, blocks: int, run: int) -> dict[str, Any]:
    _, _, device, per_token = MODELS[model]
    described = run_description(model, scenario, blocks, run)
    workload = {
        **{
            "prompt_tokens": 128,
            "output_tokens": 128,
            "turns": 5,
            "prefix_tokens": 10_000,
            "prefix_count": 160,
        },
        **{
            "levels": list(LEVELS),
            "seconds": 150,
            "warmup_s": 30,
            "profile": "concurrent",
        },
    }
    gpu = {"name": "NVIDIA L40S", "memory_bytes": 48 * 2**30}
    return {
        **described,
        **{
            "engine": "kubernetes",
            "weights": "full",
            "measurement": f"{crc32(f'{model}/{scenario}/{blocks}'.encode()):016x}",
        },
        "specification": {
            "workload": workload,
            "model": {
                "kv_bytes_per_token": per_token,
                "hf_id": f"Qwen/{model}",
                "tensor_parallel_size": 2,
            },
            **{
                "block_size": 16,
                "argv": ["vllm", "serve", scenario, str(blocks)],
                "env": {},
            },
        },
        "hardware": {
            **{"cpu_model": "A server CPU", "cpus": 48, "memory_bytes": 512 * 2**30},
            **{"gpus": [gpu, gpu], "fingerprint": "f00d"},
        },
        "versions": {"vllm": "0.32.0", "guidellm": "0.8.1", "pcp": "7.0.3"},
        "budget": {
            **{"cpu_blocks": blocks, "tokens": 16 * blocks, "device_tokens": device},
            **{
                "requested_bytes": 16 * blocks * per_token,
                "tier_bytes": 16 * blocks * per_token,
            },
        },
        "levels": [{**described["levels"][0], "level": level} for level in LEVELS],
    }


def measured(levels: pd.DataFrame, **settings: Any) -> Measured:
    """Everything that is made from a table of levels."""
    groups = levels.groupby(["model", "scenario", "cpu_blocks"], sort=False)
    peaks = pd.DataFrame([peak_row(cell, list(METRICS)) for _, cell in groups])
    tables = compare_all(levels, BASELINES, Comparison(**settings))
    facts = Measured(
        runs_of(levels), levels, peaks, tables.baseline, contrasts=tables.contrasts
    )
    return with_predicted(facts, levels)


@cache
def whole() -> Measured:
    """Everything of all cells, three runs at four levels; its tests share it and change it nowhere."""
    return measured(levels_table(cells(), levels=(1, 50, 300, 650)))


def with_reuse(measured: Measured) -> Measured:
    """The same with hits that the servers counted as they were recorded, and with shares that were computed."""
    levels, prompt_tokens = measured.levels, 1e6
    device = levels["prefix_cache_hit_percent"] / 100
    served = (
        device + (1 - device) * levels["external_cache_hit_percent"].fillna(0.0) / 100
    )
    sizes = levels["cpu_blocks"]
    curve = [
        f"0={alone:.4f};{size}={both:.4f}"
        for alone, both, size in zip(device, served, sizes, strict=True)
    ]
    predicted = levels.assign(
        **{
            "predicted_device_ratio": device,
            "predicted_ratio_low": served - 0.02,
            "predicted_ratio_high": served,
        },
        **{
            "predicted_offered_ratio": np.maximum(served, 0.9),
            "predicted_pooled_ratio": served,
            "predicted_prompt_tokens": prompt_tokens,
            "predicted_tier_blocks": sizes.astype(float),
            "predicted_not": "",
        },
        predicted_curve=np.where(sizes > 0, curve, ""),
    )
    hits = {
        (Cell.from_row(row), row["run"], row["level"]): {
            "vllm:prefix_cache_queries_total": prompt_tokens,
            "vllm:prefix_cache_hits_total": prompt_tokens * alone,
            **(
                {
                    "vllm:external_prefix_cache_hits_total": prompt_tokens
                    * (both - alone)
                }
                if row["cpu_blocks"]
                else {}
            ),
        }
        for row, alone, both in zip(
            levels.to_dict("records"), device, served, strict=True
        )
    }
    runs = []
    for run in measured.runs:
        counted = {
            level: {name: Change(0.0, delta, delta) for name, delta in moved.items()}
            for (cell, number, level), moved in hits.items()
            if (cell, number) == (run.cell, run.run)
        }
        first = run.levels[0]
        entries = [
            msgspec.structs.replace(
                first, level=level, counters=first.counters | changes
            )
            for level, changes in counted.items()
        ]
        runs.append(described(msgspec.structs.replace(run, levels=entries)))
    return with_predicted(replace(measured, runs=runs), predicted)


def recording(folder: Path, cpus: int = 16) -> Path:
    """A pcp.parquet of WINDOW_S seconds at 1 s: vLLM's gauges and counters, and every CPU."""
    generator = np.random.default_rng(3)
    writer = Writer(folder, start=START.value)
    numbers = iter(range(1, 100))
    per_cpu = indom(60, 0)
    writer.domain(START.value, per_cpu, {cpu: f"cpu{cpu}" for cpu in range(cpus)})

    def metric(name: str, kind: int = DOUBLE, **facts: Any) -> int:
        number = pmid(60, 0, next(numbers))
        writer.metric(Metric(number, (name,), kind, **facts))
        return number

    vllm = "openmetrics.vllm.vllm."
    gauges = {metric(f"{vllm}{name}"): top for name, top in _GAUGES.items()}
    counters = {
        metric(
            f"{vllm}{name}",
            semantics=COUNTER,
            units=units(1) if "bytes" in name else units(0),
        ): slope
        for name, slope in _COUNTERS.items()
    }
    states = {
        state: metric(
            f"kernel.percpu.cpu.{state}",
            U64,
            indom=per_cpu,
            semantics=COUNTER,
            units=units(0, 1, 0, (0, 1, 0)),
        )
        for state in ("user", "sys", "idle")
    }
    host = {
        state: metric(
            f"kernel.all.cpu.{state}",
            U64,
            semantics=COUNTER,
            units=units(0, 1, 0, (0, 1, 0)),
        )
        for state in ("user", "nice", "sys", "intr", "steal", "idle", "wait.total")
    }
    share_of_each = metric("kernel.percpu.share", indom=per_cpu)
    busy = np.sort(generator.beta(0.6, 1.6, cpus))[::-1]
    totals = dict.fromkeys(counters, 0.0)
    for step in range(WINDOW_S):
        wave = 1 + 0.15 * np.sin(step / 5) + generator.normal(0, 0.05)
        values: dict[int, dict[int, object] | int] = {
            number: {NULL: top * wave} for number, top in gauges.items()
        }
        for number, slope in counters.items():
            totals[number] += slope * max(wave, 0)
            values[number] = {NULL: totals[number]}
        for state, share in (
            ("user", 0.8 * busy),
            ("sys", 0.2 * busy),
            ("idle", 1 - busy),
        ):
            values[states[state]] = {
                cpu: int(1000 * step * share[cpu]) for cpu in range(cpus)
            }
        for state, number in host.items():
            values[number] = {
                NULL: 1000
                * step
                * cpus
                * {"user": 3, "sys": 1, "idle": 6}.get(state, 0)
                // 10
            }
        values[share_of_each] = {cpu: float(busy[cpu]) for cpu in range(cpus)}
        writer.record(START.value + step * 10**9, values)
    convert(writer.close(), folder / "pcp.parquet")
    return folder / "pcp.parquet"


_GAUGES = {
    "num_requests_running": 17,
    "num_requests_waiting": 31,
    "kv_cache_usage_perc": 0.55,
}
_COUNTERS = {
    "generation_tokens_total": 240,
    "kv_offload_load_bytes_total": 9e8,
    "kv_offload_store_bytes_total": 4e8,
    "prefix_cache_queries_total": 9000,
    "prefix_cache_hits_total": 2200,
    "external_prefix_cache_queries_total": 6800,
    "external_prefix_cache_hits_total": 3500,
}
