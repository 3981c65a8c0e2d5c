"""A made-up campaign as files: run.json, GuideLLM 0.8 reports and pcp.parquet of every run, as in the workflow.

The campaign is that of the published evaluation - 4 models, 34 cells, 8 levels of 120 s - or a smaller or larger one.
The pcp.parquet is one file, linked into every run: 1,500 metrics at 1 s, most of them ballast.
"""

import itertools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import zstandard
from tests.support.synthetic import run_description

from kveval.campaign.cell import Cell
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

MODELS = ("Qwen3-0.6B", "Qwen3-8B", "Qwen3-14B", "Qwen3-32B-AWQ")
ARMS = (
    "no-offload",
    "native-offload",
    "lmcache-local",
    "lmcache-redis",
    "lmcache-valkey",
    "llm-d-redis",
    "llm-d-valkey",
)
LEVELS = (1, 50, 100, 200, 300, 400, 500, 650)
LEVEL_S, WARMUP_S = 120.0, 30.0
PUBLISHED_CELLS = 34
RECORDING_S = 30 + len(LEVELS) * (LEVEL_S + 20)
EPOCH = 1_767_225_600
SECOND = 10**9
_COUNTERS = (
    "generation_tokens",
    "prompt_tokens",
    "prefix_cache_queries",
    "prefix_cache_hits",
)
# A real record has 3 kB, most of them never read.
_UNREAD = {
    f"ballast_{number}": dict.fromkeys(("tokens", "words", "characters", "bytes"))
    for number in range(28)
}


def cells(count: int = PUBLISHED_CELLS) -> Iterator[Cell]:
    """Every model with every arm, a larger tier for three arms of two models; after these 34, more tiers."""
    tiered = [
        arm for arm in ARMS if arm != "no-offload" and not arm.startswith("llm-d")
    ]
    published = [
        Cell(model, arm, 10_000 if arm in tiered else 0)
        for model in MODELS
        for arm in ARMS
    ]
    published += [
        Cell(model, arm, 20_000)
        for model in MODELS[2:]
        for arm in ("native-offload", "lmcache-local", "lmcache-valkey")
    ]
    further = (
        Cell(model, arm, blocks)
        for blocks in itertools.count(20_500, 500)
        for model in MODELS
        for arm in tiered
    )
    return itertools.islice(itertools.chain(published, further), count)


def warmup_s(seconds: float) -> float:
    """The part of a level that is not counted."""
    return min(WARMUP_S, seconds / 4)


def level_start(number: int, seconds: float = LEVEL_S) -> float:
    """When a level's warm-up begins, seconds since 1970."""
    return EPOCH + 30 + number * (seconds + 20)


def report(
    generator: np.random.Generator,
    number: int,
    streams: int,
    rate: float,
    seconds: float = LEVEL_S,
) -> bytes:
    """A report of GuideLLM 0.8 with every request's record: 128 output tokens each, conversations of 5 turns."""
    begin, warmup = level_start(number, seconds), warmup_s(seconds)
    latency = min(100.0, streams * 128 / rate)
    waves = int(seconds / latency) + 2
    lengths = generator.lognormal(np.log(latency), 0.2, (streams, waves))
    ends = begin + np.cumsum(lengths, axis=1)
    starts = ends - lengths
    first = starts + 0.3 * lengths
    end = begin + seconds
    kept: dict[str, list[dict[str, Any]]] = {
        "successful": [],
        "incomplete": [],
        "errored": [],
    }
    for stream, wave in zip(*np.nonzero(starts < end), strict=True):
        t0, t1, t2 = (
            float(starts[stream, wave]),
            float(first[stream, wave]),
            float(ends[stream, wave]),
        )
        done = t2 < end
        tokens = 128 if done else max(0, int(128 * (end - t1) / (t2 - t1)))
        seen = t1 < end
        kept["successful" if done else "incomplete"].append(
            {
                "type_": "generative_request_stats",
                "info": {
                    "conversation_id": f"{stream:04d}-{wave // 5:04d}",
                    "turn_index": int(wave % 5),
                    "status": "completed" if done else "cancelled",
                    "timings": {
                        **{
                            "request_start": t0,
                            "first_token_iteration": t1 if seen else None,
                        },
                        **{
                            "last_token_iteration": min(t2, end) if seen else None,
                            "token_iterations": tokens,
                        },
                        "request_end": min(t2, end),
                    },
                    "error": None,
                },
                **{
                    "request_start_time": t0,
                    "request_end_time": min(t2, end),
                    "request_latency": t2 - t0 if done else None,
                },
                **{"prompt_tokens": 10_128, "output_tokens": tokens},
                "time_to_first_token_ms": 1000 * (t1 - t0) if seen else None,
                "time_per_output_token_ms": 1000 * (t2 - t0) / 128 if done else None,
                "inter_token_latency_ms": 1000 * (t2 - t1) / 127 if done else None,
                **_UNREAD,
            }
        )
    window = [
        record
        for record in kept["successful"]
        if record["request_end_time"] >= begin + warmup
    ]
    totals = {
        "successful": len(window),
        "errored": 0,
        "incomplete": len(kept["incomplete"]),
    }
    benchmark = {
        "config": {"strategy": {"type_": "concurrent", "streams": streams}},
        "scheduler_state": {
            "successful_requests": len(kept["successful"]),
            "errored_requests": 0,
        },
        "metrics": {"request_totals": {**totals, "total": sum(totals.values())}},
        "requests": kept,
        **{
            "start_time": begin + warmup,
            "end_time": end,
            "warmup_duration": warmup,
            "cooldown_duration": 0.0,
        },
    }
    content = {
        "metadata": {"version": 2, "guidellm_version": "0.8.1"},
        "benchmarks": [benchmark],
    }
    return zstandard.ZstdCompressor(level=1).compress(msgspec.json.encode(content))


def recording(folder: Path, metrics: int, seconds: float = RECORDING_S) -> Path:
    """A pcp.parquet, and its archive, of `metrics` metrics at 1 s: those of config/metrics.yaml, the rest ballast."""
    writer = Writer(folder, start=EPOCH * SECOND)
    cpus, gpus = indom(60, 0), indom(120, 0)
    writer.domain(
        EPOCH * SECOND, cpus, {number: f"cpu{number}" for number in range(32)}
    )
    writer.domain(EPOCH * SECOND, gpus, {number: f"gpu{number}" for number in range(2)})
    counters: dict[int, float] = {}
    gauges: dict[int, float] = {}
    item = iter(range(1, metrics + 1))

    def add(
        name: str, *, counter: bool, rate: float, domain: int = NULL, unit: int = 0
    ) -> None:
        number = next(item)
        ident = pmid(60 + number // 1000, 0, number % 1000)
        kind = U64 if unit and not name.startswith("openmetrics") else DOUBLE
        writer.metric(
            Metric(ident, (name,), kind, domain, COUNTER if counter else 3, unit)
        )
        (counters if counter else gauges)[ident] = rate

    for name in _COUNTERS:
        add(f"openmetrics.vllm.vllm.{name}_total", counter=True, rate=1000.0)
    for name, value in {
        "kv_cache_usage_perc": 0.5,
        "num_requests_running": 0.8,
        "num_requests_waiting": 0.1,
    }.items():
        add(f"openmetrics.vllm.vllm.{name}", counter=False, rate=value)
    for kind in ("user", "nice", "sys", "intr", "steal", "idle", "wait.total"):
        add(
            f"kernel.all.cpu.{kind}",
            counter=True,
            rate=100.0,
            unit=units(0, 1, 0, (0, 2, 0)),
        )
        add(
            f"kernel.percpu.cpu.{kind}",
            counter=True,
            rate=100.0,
            domain=cpus,
            unit=units(0, 1, 0, (0, 2, 0)),
        )
    for name in ("gpuactive", "memactive", "power"):
        add(f"nvidia.{name}", counter=False, rate=60.0, domain=gpus)
    for name in ("mem.util.used", "mem.util.available", "mem.util.shmem"):
        add(name, counter=False, rate=2.0**24, unit=units(1, 0, 0, (1, 0, 0)))
    for name in ("disk.all.read_bytes", "disk.all.write_bytes"):
        add(name, counter=True, rate=1000.0, unit=units(1, 0, 0, (1, 0, 0)))
    for number in item:
        ident = pmid(60 + number // 1000, 0, number % 1000)
        writer.metric(
            Metric(ident, (f"ballast.metric{number:04d}",), DOUBLE, NULL, COUNTER, 0)
        )
        counters[ident] = 10.0
    instances = {ident: writer.metrics[ident].indom for ident in (*counters, *gauges)}
    numbers = {NULL: (NULL,), cpus: tuple(range(32)), gpus: (0, 1)}
    for step in range(int(seconds)):
        values: dict[int, dict[int, object] | int] = {}
        for ident, rate in counters.items():
            whole = writer.metrics[ident].type == U64
            value = rate * step
            values[ident] = dict.fromkeys(
                numbers[instances[ident]], int(value) if whole else value
            )
        for ident, value in gauges.items():
            whole = writer.metrics[ident].type == U64
            values[ident] = dict.fromkeys(
                numbers[instances[ident]], int(value) if whole else value
            )
        writer.record((EPOCH + step) * SECOND, values)
    archive = writer.close()
    convert(archive, folder / "pcp.parquet")
    return folder / "pcp.parquet"


def write_campaign(
    folder: Path,
    runs: int,
    metrics: int,
    count: int = PUBLISHED_CELLS,
    levels: Sequence[int] = LEVELS,
    seconds: float = LEVEL_S,
    reported: int | None = None,
    measurement_id: Callable[[Cell], str] | None = None,
) -> dict[Cell, list[Path]]:
    """Write a campaign's store and pointers below `folder`, its results; return cell -> the folders of its runs.

    Pointers name their run relative to the folder above, the repository. Only the first `reported` cells have reports.
    `measurement_id`: that of a planned cell; without it the cells are numbered, for those who plan none.
    """
    generator = np.random.default_rng(1)
    (folder / "recording").mkdir(parents=True)
    parquet = recording(
        folder / "recording", metrics, level_start(len(levels), seconds) - EPOCH
    )
    folders: dict[Cell, list[Path]] = {}
    for number, cell in enumerate(cells(count)):
        measurement = measurement_id(cell) if measurement_id else f"{number:016x}"
        for run in range(1, runs + 1):
            stored = folder / "measurements" / measurement / f"run-{run}"
            (stored / "raw").mkdir(parents=True)
            speed = (
                200
                * (1 + MODELS[::-1].index(cell.model))
                * (1 + 0.02 * ARMS.index(cell.scenario))
            )
            measured = []
            for place, streams in enumerate(levels):
                rate = (
                    speed
                    * streams
                    / (streams + 40)
                    * float(np.exp(generator.normal(0, 0.02)))
                )
                name = f"raw/guidellm-{streams:04d}.json.zst"
                if reported is None or number < reported:
                    (stored / name).write_bytes(
                        report(generator, place, streams, rate, seconds)
                    )
                begin = level_start(place, seconds)
                window = {"start": begin + warmup_s(seconds), "end": begin + seconds}
                measured.append(
                    {"level": streams, "status": "ok", "report": name, **window}
                )
            description = _description(cell, run, measurement, measured, seconds)
            (stored / "run.json").write_text(json.dumps(description))
            run_folder = folder / cell.path / f"run-{run}"
            run_folder.mkdir(parents=True)
            os.link(parquet, run_folder / "pcp.parquet")
            pointer = {
                "measurement": stored.parent.name,
                "path": str(stored.relative_to(folder.parent)),
            }
            (run_folder / "measurement.json").write_text(json.dumps(pointer))
            folders.setdefault(cell, []).append(run_folder)
    return folders


def _description(
    cell: Cell,
    run: int,
    measurement: str,
    levels: list[dict[str, Any]],
    seconds: float,
) -> dict[str, Any]:
    description = run_description(
        *cell.key, run, measurement=measurement, levels=levels
    )
    workload = {
        "prompt_tokens": 128,
        "output_tokens": 128,
        "turns": 5,
        "prefix_tokens": 10_000,
        "prefix_count": 800,
    }
    numbers = [level["level"] for level in levels]
    workload |= {"levels": numbers, "seconds": seconds, "warmup_s": warmup_s(seconds)}
    description["specification"] = {
        "workload": workload,
        "argv": [str(value) for value in cell.key],
        "env": {},
    }
    begin = f"2026-01-{run:02d}T{ARMS.index(cell.scenario):02d}"
    description |= {"started": f"{begin}:00:00Z", "finished": f"{begin}:25:00Z"}
    return description
