"""Made-up campaigns with known effects, in the form of complete_metrics.csv and of run.json."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any
from zlib import crc32

import numpy as np
import pandas as pd
from tests.support.described import described_run

from kveval.campaign.campaign_file import Comparison
from kveval.store.run_file import Run
from kveval.tables.peaks import peak_row
from kveval.verdict.verdicts import compare_all

WORKLOAD = "prompt_tokens=64;output_tokens=64;prefix_tokens=2000;prefix_count=20;turns=3;primed=0"
EFFECTS = {
    "no-offload": 0.0,
    "native-offload": 0.12,
    "lmcache-redis": -0.12,
    "idle": 0.0,
}
BASELINES: dict[str, str | None] = {
    name: None if name == "no-offload" else "no-offload" for name in EFFECTS
}
METRICS: dict[str, dict[str, Any]] = {
    "kv_cache_usage_percent": {
        "title": "KV-cache usage",
        "unit": "percent",
        "table": "The server and its caches",
    },
    "prefix_cache_hit_percent": {
        "title": "device hits",
        "unit": "percent",
        "table": "The server and its caches",
    },
    "external_cache_hit_percent": {
        "title": "external hits",
        "unit": "percent",
        "table": "The server and its caches",
    },
    "requests_running": {
        "title": "running",
        "unit": "requests",
        "table": "The server and its caches",
    },
    "requests_waiting": {
        "title": "waiting",
        "unit": "requests",
        "table": "The server and its caches",
    },
    "memory_used_gib": {
        "title": "memory",
        "unit": "GiB",
        "table": "Processors and memory of the host",
    },
    "server_rss_gib": {
        "title": "server memory",
        "unit": "GiB",
        "table": "Processors and memory of the host",
    },
}


def levels_table(
    models: Sequence[str] = ("Qwen3-0.6B",),
    effects: Mapping[str, float] = EFFECTS,
    *,
    levels: Sequence[int] = (1, 8, 32),
    runs: int = 5,
    sd: float = 0.01,
    seed: int = 7,
) -> pd.DataFrame:
    """Throughput of scenario s = baseline x exp(effect), with block effects and a run-to-run SD on the ln scale."""
    generator = np.random.default_rng(seed)
    rows = []
    for model in models:
        blocks = generator.normal(0, 0.03, runs)
        for scenario, effect in effects.items():
            for run in range(runs):
                for level in levels:
                    rate = (
                        900
                        * level
                        / (level + 6)
                        * np.exp(effect + blocks[run] + generator.normal(0, sd))
                    )
                    rows.append(level_row(model, scenario, run + 1, level, rate))
    table = pd.DataFrame(rows)
    table["exercised"] = table["exercised"].astype("boolean")
    return table


def level_row(
    model: str, scenario: str, run: int, level: int, rate: float
) -> dict[str, Any]:
    """One row of complete_metrics.csv: a healthy level that delivers `rate` tok/s for 120 s."""
    latency = 64 * level / rate * 1000
    completed, tier = int(rate * 120 / 64), scenario not in ("no-offload", "idle")
    row = {
        **{
            "model": model,
            "scenario": scenario,
            "cpu_blocks": 0 if scenario == "no-offload" else 10_000,
        },
        **{
            "run": run,
            "measurement": f"{crc32(f'{model}/{scenario}'.encode()):016x}",
            "level": level,
        },
        **{
            "engine": "local",
            "weights": "miniature",
            "duration_s": 120.0,
            "warmup_s": 30.0,
        },
        **{
            "window_start": pd.Timestamp("2026-01-01T00:00Z"),
            "window_end": pd.Timestamp("2026-01-01T00:02Z"),
        },
        **{
            "requests_completed": completed,
            "requests_incomplete": level,
            "requests_errored": 0,
        },
        **{
            "throughput_tok_s": rate,
            "output_tokens": 120 * rate,
            "ttft_count": completed,
            "concurrency_mean": level,
        },
        **{"prefix_hit_ratio": 0.7, "external_hit_ratio": 0.4 if tier else np.nan},
        **{
            "external_hit_tokens": 1e5 if tier else np.nan,
            "offload_load_bytes": np.nan,
            "offload_store_bytes": np.nan,
        },
        "exercised": {"no-offload": None, "idle": False}.get(scenario, True),
        **{
            "checks_failed": "",
            "checks_warned": "",
            "checks_noted": "",
            "checks_findings": "",
        },
        **{
            "kv_cache_usage_percent": 45.2,
            "prefix_cache_hit_percent": 70.0,
            "requests_running": level * 0.8,
        },
        **{
            "external_cache_hit_percent": 40.0 if tier else np.nan,
            "requests_waiting": level * 0.15,
        },
        **{
            "memory_used_gib": 7.5,
            "server_rss_gib": np.nan,
            "pcp_samples": 120,
            "pcp_notes": "",
        },
        **{
            "throughput_completed_tok_s": 0.97 * rate,
            "incomplete_share": level / (completed + level),
        },
        **{
            "ttft_censored": 0,
            "e2e_count": completed,
            "e2e_censored": 0,
            "not_reached": "",
            "warmup_wanted_s": 30.0,
        },
        **{
            "configuration": f"{model}/{scenario}",
            "hardware": "f00d",
            "server_build": "vllm 0.32.0",
            "clock_offset_s": 0.0,
            "guidellm_version": "0.8.1",
        },
        **{
            "device_tokens": 17_920.0,
            "tier_tokens": 160_000.0 if tier else 0.0,
            "working_set_tokens": 40_000.0,
        },
        **{
            "prefix_tokens": 2000.0,
            "turn_prompt_tokens": 64.0,
            "strategy": "concurrent",
            "workload": WORKLOAD,
        },
        **{"request_prompt_tokens": 2064.0, "request_prompt_tokens_se": 0.0},
        **{
            "request_output_tokens": 64.0,
            "request_output_tokens_se": 0.0,
            "gpus": 0.0,
            "gpu_throttled": "",
        },
        **{
            "tier_reported_tokens": np.nan,
            "activity": {"no-offload": "", "idle": "none"}.get(scenario, "shown"),
        },
        **times(scenario, run),
    }
    for name, share in {
        "ttft": 0.3,
        "tpot": 1 / 64,
        "itl": 0.7 / 63,
        "e2e": 1.0,
    }.items():
        for statistic, factor in {
            "mean": 1.1,
            "p50": 1.0,
            "p90": 1.9,
            "p99": 3.0,
        }.items():
            row[f"{name}_ms_{statistic}"] = latency * share * factor
    return row


@cache
def times(scenario: str, run: int) -> Mapping[str, str]:
    """When a run was measured: an hour per block, the scenarios of every other block in the opposite order."""
    place = crc32(scenario.encode()) % 50
    place = place if run % 2 else 49 - place
    start = pd.Timestamp("2026-01-01T00:00Z") + pd.Timedelta(hours=run, minutes=place)
    return {
        "run_started": start.isoformat(),
        "run_finished": (start + pd.Timedelta(minutes=49)).isoformat(),
    }


def peaks_table(levels: pd.DataFrame) -> pd.DataFrame:
    """peak_throughput_all.csv of a table of levels."""
    cells = levels.groupby(["model", "scenario", "cpu_blocks"], sort=False)
    return pd.DataFrame([peak_row(cell, list(METRICS)) for _, cell in cells])


def comparison_table(levels: pd.DataFrame, **settings: Any) -> pd.DataFrame:
    """comparison.csv of a table of levels."""
    return compare_all(levels, BASELINES, Comparison(**settings)).baseline


def required_counters(scenario: str) -> list[dict[str, Any]]:
    """The counters that prove the arm of `scenario` active."""
    return (
        []
        if scenario == "no-offload"
        else [{"counter": "vllm:hits_total", "at_least": 1, "unit": "tokens"}]
    )


def run_description(
    model: str, scenario: str, cpu_blocks: int, run: int, **changes: Any
) -> dict[str, Any]:
    """The content of a run.json."""
    required = required_counters(scenario)
    moved = 0.0 if scenario == "idle" else 5000.0
    return {
        **{
            "schema": 1,
            "measurement": "0123456789abcdef",
            "run": run,
            "engine": "local",
            "weights": "miniature",
        },
        "cell": {"model": model, "scenario": scenario, "cpu_blocks": cpu_blocks},
        "specification": {
            "workload": {
                **{
                    "prompt_tokens": 64,
                    "output_tokens": 64,
                    "turns": 3,
                    "prefix_tokens": 2000,
                    "prefix_count": 20,
                },
                **{"levels": [1, 8, 32], "seconds": 150, "warmup_s": 30},
            },
        },
        "started": "2026-01-01T00:00:00.000000Z",
        "finished": "2026-01-01T00:10:00.000000Z",
        "hardware": {
            "cpu_model": "A CPU",
            "cpus": 2,
            "memory_bytes": 24 * 2**30,
            "gpus": [],
            "fingerprint": "f00d",
        },
        "versions": {"vllm": "0.32.0", "guidellm": "0.8.1"},
        "server": {
            "argv": ["vllm", "serve", "--kv-transfer-config", '{"a": "b|c"}'],
            "env": {"A": "1"},
        },
        "budget": {
            "cpu_blocks": cpu_blocks,
            "tokens": 16 * cpu_blocks,
            "requested_bytes": 16384 * cpu_blocks,
            "tier_bytes": 16384 * cpu_blocks,
        }
        | {"device_tokens": 17920},
        "phases": {"server_start_s": 30.0, "levels_s": 300.0},
        "exercised": {"required": required, "exercised": moved > 0},
        "levels": [
            {
                "level": level,
                "counters": {
                    "vllm:hits_total": {
                        "before": 1.0,
                        "after": 1.0 + moved,
                        "delta": moved,
                    }
                },
            }
            for level in (1, 8, 32)
        ],
        **changes,
    }


def runs(levels: pd.DataFrame, **changes: Any) -> list[Run]:
    """The runs that a table of levels came from."""
    keys = (
        levels[["model", "scenario", "cpu_blocks", "run"]]
        .drop_duplicates()
        .itertuples(index=False, name=None)
    )
    return [described_run(run_description(*key, **changes)) for key in keys]
