"""Result trees as other suites left them: folders per level, with reports, archives and benchmark-config.txt."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import zstandard
from tests.support.guidellm_reports import START, Story, document

from pcp_parquet.tests.test_archive_writer import (
    COUNTER,
    DOUBLE,
    U64,
    Metric,
    Writer,
    indom,
    pmid,
    units,
)

HARDWARE, SOFTWARE = "1x2xL40S", "upstream-llm-d-0.4.0"
OFFLOADING = '{{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":{{"{}":{}}}}}'
LMCACHE = '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
HOUR = 3600.0


def native(blocks: int, key: str = "num_cpu_blocks") -> str:
    """Server arguments of vLLM's native offload."""
    return f"--kv-transfer-config '{OFFLOADING.format(key, blocks)}'"


def folder_name(
    model: str,
    arm: str,
    rate: int,
    *,
    software: str = SOFTWARE,
    hardware: str = HARDWARE,
) -> str:
    """The name of a result folder."""
    return f"{hardware}_{software}_{model}_{arm}_replica1_rate{rate}"


def write_config(
    folder: Path, name: str, *, args: str = "", env: str = "HOME=/tmp", **changes: Any
) -> None:
    """Write benchmark-config.txt of a folder's name."""
    fields = name.split("_")
    model, arm, rate = (
        (fields[2], fields[3], fields[5])
        if len(fields) == 6
        else ("Qwen3-0.6B", "no-offload", "rate1")
    )
    values = {
        "Run ID": name,
        "Date": "Thu 26 Mar 2026 20:37:22 AEDT",
        "Rate Type": "concurrent",
        "Rate (Concurrency)": rate.removeprefix("rate"),
        "Max Seconds": 60,
        "Prefix Tokens": 2000,
        "Prefix Count": 8,
        "Turns": 1,
        "Max Requests (Sample Requests)": 1000,
        "Model": f"Qwen/{model}",
        "Parameters": arm,
        "GPU Memory Utilization": 0.9,
        "Replicas": 1,
        "vLLM Extra Args": args,
        "vLLM Env Vars": env,
        **{key.replace("_", " "): value for key, value in changes.items()},
    }
    text = "".join(
        f"{key}: {value}\n" for key, value in values.items() if value is not None
    )
    (folder / "benchmark-config.txt").write_text(text)


def write_report(
    path: Path,
    stories: Sequence[Story],
    *,
    generation: str = "1",
    layers: int = 1,
    **options: Any,
) -> None:
    """Write a report, compressed `layers` times."""
    content = document(generation, stories, **options)
    data = json.dumps(content).encode()
    for _ in range(layers):
        data = zstandard.compress(data)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def write_archive(
    folder: Path,
    story: Story,
    *,
    host: str = "node-1",
    hits: float = 500.0,
    step: float = 2.0,
    lead: float = 20.0,
) -> list[Path]:
    """Write a PCP archive of a level's server and machine, from `lead` seconds before the level to as long after it.

    Its files are compressed one by one. Counters move during the level alone, `hits` with every sample.
    """
    folder.mkdir(parents=True, exist_ok=True)
    start, seconds = story.start - lead, story.seconds + 2 * lead
    writer = Writer(folder, "20260326.20.37.22", host=host, start=round(start * 1e9))
    prefix = "openmetrics.vllm.vllm."
    gauges = {
        "num_requests_running": 0.8 * story.streams,
        "num_requests_waiting": 0.1 * story.streams,
    }
    gauges |= {"kv_cache_usage_perc": 0.4}
    per_step = step / story.seconds
    counters = {
        **{
            "generation_tokens_total": story.delivered * per_step,
            "prompt_tokens_total": 128.0 * step,
        },
        **{
            "external_prefix_cache_hits_total": hits,
            "external_prefix_cache_queries_total": 2 * hits,
        },
        **{"prefix_cache_hits_total": 700.0, "prefix_cache_queries_total": 1000.0},
    }
    domain = indom(144, 1)
    numbers = {}
    for number, name in enumerate((*gauges, *counters)):
        semantics = COUNTER if name in counters else 3
        numbers[name] = pmid(144, 1, number)
        writer.metric(
            Metric(numbers[name], (prefix + name,), DOUBLE, domain, semantics)
        )
    writer.domain(writer.start, domain, {0: "0 engine:0 model_name:model"})
    memory, idle, user = pmid(60, 1, 0), pmid(60, 0, 1), pmid(60, 0, 2)
    writer.metric(
        Metric(memory, ("mem.util.used",), U64, units=units(space=1, scales=(1, 0, 0)))
    )
    for item, name in ((idle, "kernel.all.cpu.idle"), (user, "kernel.all.cpu.user")):
        writer.metric(
            Metric(
                item,
                (name,),
                U64,
                semantics=COUNTER,
                units=units(time=1, scales=(0, 2, 0)),
            )
        )
    singular = 0xFFFFFFFF
    for number in range(int(seconds / step) + 1):
        steps = min(max(number * step - lead, 0.0), story.seconds) / step
        values: dict[int, dict[int, object] | int] = {
            numbers[name]: {0: value} for name, value in gauges.items()
        }
        values |= {
            numbers[name]: {0: 1e6 + steps * gain} for name, gain in counters.items()
        }
        values |= {
            memory: {singular: 8 << 20},
            idle: {singular: number * 1000},
            user: {singular: number * 800},
        }
        writer.record(round((start + number * step) * 1e9), values)
    writer.close()
    written = []
    for path in sorted(folder.glob("20260326.20.37.22.*")):
        packed = path.with_name(path.name + ".zst")
        packed.write_bytes(zstandard.compress(path.read_bytes()))
        path.unlink()
        written.append(packed)
    return written


def write_level(
    root: Path,
    model: str,
    arm: str,
    rate: int,
    *,
    start: float = START,
    args: str = "",
    env: str = "HOME=/tmp",
    name: str | None = None,
    config: Mapping[str, Any] | None = None,
    archive: bool = True,
    log: bool = True,
    hits: float = 500.0,
    software: str = SOFTWARE,
    layers: int = 1,
    step: float = 2.0,
    served: str | None = None,
    **options: Any,
) -> Path:
    """Write a result folder of the newest form; `options` are those of the report and of its story.

    `served` is the model that the report names, that of the arguments if None.
    """
    name = name or folder_name(model, arm, rate, software=software)
    folder = root / name
    folder.mkdir(parents=True)
    write_config(folder, name, args=args, env=env, **(config or {}))
    served = served or (config or {}).get("Model", f"Qwen/{model}")
    of_story = ("latency_s", "ttft_s", "seconds", "streams", "tokens", "prompt_tokens")
    story_options = {key: options.pop(key) for key in of_story if key in options}
    story = Story(**{"streams": rate, "start": start, "model": served, **story_options})
    report = folder / ("guidellm-results.json" + layers * ".zst")
    write_report(report, [story], layers=layers, **options)
    if archive:
        write_archive(folder / "pcp-archives" / "node-1", story, hits=hits, step=step)
    if log:
        text = "INFO [api_server.py] vLLM API server version 0.11.2\nGPU KV cache size: 208,640 tokens\n"
        (folder / "vllm-startup.log.zst").write_bytes(zstandard.compress(text.encode()))
    return folder


def write_campaign_tree(
    root: Path, *, runs: int = 1, rates: Sequence[int] = (1, 4, 8)
) -> None:
    """Write a baseline and a native arm of one model, `runs` repetitions in folders of their own.

    The arm's first tokens come a little later: results that are equal to the digit would be copies.
    """
    for run in range(runs):
        place = root if runs == 1 else root / f"repetition-{run + 1}"
        for number, rate in enumerate(rates):
            start = START + (10 * run + number) * HOUR / 4
            faster = {"latency_s": 2.0 + 0.1 * rate + 0.02 * run}
            write_level(
                place, "Qwen3-0.6B", "no-offload", rate, start=start, hits=0.0, **faster
            )
            write_level(
                place,
                "Qwen3-0.6B",
                "native-offload-10k",
                rate,
                start=start + HOUR,
                args=native(10_000),
                ttft_s=0.21,
                **faster,
            )
