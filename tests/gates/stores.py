"""Stores in which every run of a campaign lies as a measurement would have left it, with effects that are known.

The same folder comes out whatever the day, the host and its processors: only the fingerprint under which this host
adopts runs is its own.
"""

import hashlib
import io
import json
import tarfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import zstandard
from benchmarks import campaign_files as files
from tests.gates.library import PlannedCell, host_fingerprint, planned_cells

from pcp_parquet.tests.test_archive_writer import (
    COUNTER,
    DOUBLE,
    NULL,
    U64,
    Metric,
    Writer,
    pmid,
    units,
)

HOUR_S = 3600.0
DEVICE_TOKENS = 17_920
TIMES = ("start", "end", "iteration")


@dataclass(frozen=True)
class Truth:
    """What a made-up campaign measures. `effects`: scenario -> effect on throughput, on the ln scale.

    `idle`: scenarios whose tier serves nothing. `strategy`: as the load generator names it, with the requests' due
    times if it is not a closed loop.
    """

    effects: dict[str, float]
    idle: frozenset[str] = frozenset()
    strategy: str = "concurrent"
    noise: float = 0.01
    base_tok_s: float = 900.0
    half_level: float = 6.0
    timed: bool = False


def fill_store(campaign: Path, catalogues: Path, store: Path, truth: Truth) -> None:
    """Put every run that a campaign file plans into `store`."""
    fingerprint = host_fingerprint()
    for number, cell in enumerate(planned_cells(campaign, catalogues)):
        for run in cell.runs:
            begin = 12 * HOUR_S * (run - 1) + HOUR_S / 2 * _place(number, run)
            _write_run(store, cell, run, begin, fingerprint, truth)


def _place(number: int, run: int) -> int:
    """The place of a cell in a block: every other block in the opposite order."""
    return number if run % 2 else 20 - number


def _write_run(
    store: Path,
    cell: PlannedCell,
    run: int,
    begin_s: float,
    fingerprint: str,
    truth: Truth,
) -> None:
    """Write a sealed run that began `begin_s` seconds after the epoch of the made-up files."""
    place = store / cell.measurement / f"run-{run}"
    (place / "raw").mkdir(parents=True)
    generator = np.random.default_rng(
        crc32(f"{cell.model} {cell.scenario} {cell.cpu_blocks} {run}".encode())
    )
    workload = cell.specification["workload"]
    seconds, levels = float(workload["seconds"]), []
    rates = []
    for number, level in enumerate(workload["levels"]):
        noise = generator.normal(0.03 * (run % 3), truth.noise)
        effect = truth.effects[cell.scenario] + noise
        rate = truth.base_tok_s * level / (level + truth.half_level)
        report, delivered_tok_s = _report(
            generator, number, level, rate * float(np.exp(effect)), seconds, begin_s
        )
        name = f"raw/guidellm-{level:04d}.json.zst"
        _write_report(place / name, report, truth.strategy)
        start = files.level_start(number, seconds) + begin_s
        rates.append((start, start + seconds, delivered_tok_s))
        window = report["benchmarks"][0]
        levels.append(
            {
                "level": level,
                "status": "ok",
                "report": name,
                "start": window["start_time"],
                "end": window["end_time"],
                "counters": _counters(cell, delivered_tok_s * seconds, truth),
            }
        )
    _write_recording(place / "raw" / "pcp.tar.zst", rates, cell, truth)
    facts = _description(cell, run, begin_s, fingerprint, truth, levels)
    (place / "run.json").write_text(json.dumps(facts, indent=1, sort_keys=True))
    _seal(place)


def _report(
    generator: np.random.Generator,
    number: int,
    level: int,
    rate_tok_s: float,
    seconds: float,
    begin_s: float,
) -> tuple[dict[str, Any], float]:
    """Return a report whose times begin at `begin_s`, and the output tokens per second of the whole level."""
    content = json.loads(
        zstandard.decompress(
            files.report(generator, number, level, rate_tok_s, seconds)
        )
    )
    benchmark = content["benchmarks"][0]
    benchmark["start_time"] += begin_s
    benchmark["end_time"] += begin_s
    tokens = 0
    for requests in benchmark["requests"].values():
        for request in requests:
            tokens += request["output_tokens"]
            _shift(request, begin_s)
    return content, tokens / seconds


def _shift(request: dict[str, Any], by_s: float) -> None:
    """Move a request in time; drop what is never read of it."""
    for name in [name for name in request if name.startswith("ballast")]:
        del request[name]
    timings = request["info"]["timings"]
    for fields, names in (
        (request, ("request_start_time", "request_end_time")),
        (
            timings,
            (
                "request_start",
                "request_end",
                "first_token_iteration",
                "last_token_iteration",
            ),
        ),
    ):
        for name in names:
            if fields.get(name) is not None:
                fields[name] += by_s
    timings["targeted_start"] = timings["request_start"] - 0.004


def _write_report(path: Path, report: dict[str, Any], strategy: str) -> None:
    if strategy != "concurrent":
        report["benchmarks"][0]["config"]["strategy"] = {"kind": strategy}
    data = json.dumps(report).encode()
    path.write_bytes(zstandard.ZstdCompressor(level=1).compress(data))


def _counters(cell: PlannedCell, tokens: float, truth: Truth) -> dict[str, Any]:
    """What the server counted during a level that delivered `tokens` output tokens."""
    prompts = 30.0 * round(tokens)
    deltas = {
        "vllm:generation_tokens_total": float(round(tokens)),
        "vllm:prompt_tokens_total": prompts,
        "vllm:request_success_total": float(round(tokens / 128)),
        "vllm:prefix_cache_queries_total": prompts,
        "vllm:prefix_cache_hits_total": round(0.25 * prompts),
    }
    serves = bool(cell.required) and cell.scenario not in truth.idle
    if cell.required:
        deltas["vllm:external_prefix_cache_queries_total"] = round(0.75 * prompts)
        deltas["vllm:kv_offload_store_bytes_total"] = (
            0.1 * prompts * bytes_per_token(cell)
        )
    for entry in cell.required:
        deltas[entry["counter"]] = 0.0
        if serves:
            per_token = {"bytes": bytes_per_token(cell), "chunks": 1 / 256}
            deltas[entry["counter"]] = float(
                round(0.4 * prompts) * per_token.get(entry["unit"], 1)
            )
    return {
        name: {"before": 1000.0, "after": 1000.0 + delta, "delta": float(delta)}
        for name, delta in deltas.items()
    }


def bytes_per_token(cell: PlannedCell) -> int:
    """Return the bytes of KV cache of a token."""
    return int(cell.specification["model"]["kv_bytes_per_token"])


def _write_recording(
    path: Path,
    rates: list[tuple[float, float, float]],
    cell: PlannedCell,
    truth: Truth,
) -> None:
    """Write a run's PCP archive at 1 s; `rates`: start and end of each level and its output tokens per second."""
    folder = path.parents[1] / "archive"
    begin, end = rates[0][0] - 20, rates[-1][1] + 20
    writer = Writer(folder, "20260101.00.00.00", start=round(begin * 1e9))
    prefix = "openmetrics.vllm.vllm."
    shares = {
        "generation_tokens_total": 1.0,
        "prompt_tokens_total": 30.0,
        "prefix_cache_queries_total": 30.0,
        "prefix_cache_hits_total": 7.5,
    }
    if cell.required:
        served = 0.0 if cell.scenario in truth.idle else 12.0
        shares["external_prefix_cache_queries_total"] = 22.5
        shares["external_prefix_cache_hits_total"] = served
        shares["kv_offload_load_bytes_total"] = served * bytes_per_token(cell)
    gauges = {
        f"{prefix}kv_cache_usage_perc": 0.55,
        f"{prefix}num_requests_running": 0.8,
        f"{prefix}num_requests_waiting": 0.1,
    }
    numbers = iter(range(1, 100))
    counters: dict[int, float] = {}
    constants: dict[int, float | int] = {}
    for name, share in shares.items():
        metric = writer.metric(
            Metric(pmid(144, 1, next(numbers)), (prefix + name,), DOUBLE, NULL, COUNTER)
        )
        counters[metric.pmid] = share
    for name, value in gauges.items():
        metric = writer.metric(
            Metric(pmid(144, 1, next(numbers)), (name,), DOUBLE, NULL, 3)
        )
        constants[metric.pmid] = value
    memory = Metric(
        pmid(60, 1, 0),
        ("mem.util.used",),
        U64,
        NULL,
        3,
        units=units(space=1, scales=(1, 0, 0)),
    )
    constants[writer.metric(memory).pmid] = 8 << 20
    processors: dict[int, int] = {}
    for number, (kind, per_s) in enumerate((("idle", 400), ("user", 1500))):
        metric = Metric(
            pmid(60, 0, number),
            (f"kernel.all.cpu.{kind}",),
            U64,
            NULL,
            COUNTER,
            units=units(time=1, scales=(0, 2, 0)),
        )
        processors[writer.metric(metric).pmid] = per_s
    total = 0.0
    for step in range(int(end - begin)):
        now = begin + step
        total += sum(rate for start, stop, rate in rates if start < now <= stop)
        values: dict[int, Any] = {key: {NULL: v} for key, v in constants.items()}
        values |= {key: {NULL: 1e6 + share * total} for key, share in counters.items()}
        values |= {key: {NULL: per_s * step} for key, per_s in processors.items()}
        writer.record(round(now * 1e9), values)
    writer.close()
    _pack(folder, path)


def _pack(folder: Path, target: Path) -> None:
    """Pack a folder's files into a .tar.zst, and remove them."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(folder.iterdir()):
            info = tarfile.TarInfo(path.name)
            info.size = path.stat().st_size
            with path.open("rb") as file:
                tar.addfile(info, file)
            path.unlink()
    folder.rmdir()
    target.write_bytes(zstandard.compress(buffer.getvalue()))


def _description(
    cell: PlannedCell,
    run: int,
    begin_s: float,
    fingerprint: str,
    truth: Truth,
    levels: list[dict[str, Any]],
) -> dict[str, Any]:
    """What run.json says."""
    tier_tokens = 16 * cell.cpu_blocks
    active = not cell.required or cell.scenario not in truth.idle
    proof = []
    for entry in cell.required:
        moved = [level["counters"][entry["counter"]]["delta"] for level in levels]
        proof.append(
            {
                **entry,
                "moved": sum(moved),
                "level_max": levels[moved.index(max(moved))]["level"],
                "exercised": active,
            }
        )
    answers = {
        "prompts": 8,
        "tokens": 24,
        "same": 8,
        "served_from": "tier" if tier_tokens else "device",
        "prompt_tokens": 4096,
        "served_tokens": 3968,
        "tolerance_nats": 0.05,
    }
    return {
        "schema": 1,
        "measurement": cell.measurement,
        "run": run,
        "cell": cell.specification["cell"],
        "specification": cell.specification,
        "engine": cell.specification["engine"],
        "weights": cell.specification["weights"],
        "started": _time_text(files.EPOCH + begin_s),
        "finished": _time_text(files.EPOCH + begin_s + 1200),
        "hardware": {
            "cpu_model": "A CPU",
            "cpus": 2,
            "memory_bytes": 24 * 2**30,
            "gpus": [],
            "kernel": "6.12.0",
            "fingerprint": fingerprint,
        },
        "versions": {
            **cell.specification["versions"],
            "pcp": "6.3.8",
            "kveval": "1.0",
        },
        "server": {
            "argv": [
                "vllm",
                "serve",
                cell.model,
                "--kv-transfer-config",
                f'{{"arm": "{cell.scenario}"}}',
            ],
            "env": {"VLLM_CPU_KVCACHE_SPACE": "1"},
            "startup_s": 21.5,
            "facts": {"kv_cache_tokens": DEVICE_TOKENS},
        },
        "budget": {
            **cell.specification["budget"],
            "device_tokens": DEVICE_TOKENS,
            "held_bytes": tier_tokens * bytes_per_token(cell),
            "reported_bytes": None,
            "reported_tokens": None,
        },
        "companions": [],
        "clock_offset_s": 0.0,
        "levels": levels,
        "phases": {"server_start_s": 21.5, "levels_s": 90.0},
        "times": {"total_s": 130.0},
        "recording": {"archive": "raw/pcp.tar.zst"},
        "exercised": {"required": proof, "exercised": active},
        "answers": answers,
        **({"one_request": _one_request(cell, run)} if truth.timed else {}),
        "copy_bandwidth": {"host_gb_s": 9.5},
    }


def _one_request(cell: PlannedCell, run: int) -> dict[str, Any]:
    """Times of one request: a tier of 500 blocks serves none, a larger one at half the time of computing."""

    def requests(ttft_ms: float, served: int) -> dict[str, Any]:
        timed = [
            {
                "ttft_ms": ttft_ms + run + number,
                "prompt_tokens": 1120 + number,
                "served_tokens": served,
            }
            for number in range(3)
        ]
        return {"requests": timed}

    times = {"cold": requests(240.0, 0), "device": requests(12.0, 1104)}
    if cell.cpu_blocks > 500:
        times["tier"] = requests(120.0, 1104)
    elif cell.cpu_blocks:
        reason = "the tier served 0 of the prompts' 1,121 tokens"
        times["tier"] = {"reason": reason}
    return times


def _time_text(epoch_s: float) -> str:
    return datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _seal(place: Path) -> None:
    """Write the list of checksums."""
    paths = sorted(path for path in place.rglob("*") if path.is_file())
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(place)}\n"
        for path in paths
    ]
    (place / "SHA256SUMS").write_text("".join(lines))
