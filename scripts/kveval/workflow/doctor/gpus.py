"""Findings on the GPUs of this host before anything is measured on them, each with what is expected of it.

Some seconds; it copies to and from the first GPU and starts no server. What a server shows first, a generated token and
the size of its cache, takes a minute: the campaign gpu-smoke.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kveval.campaign.builds import BuildError, asked_of
from kveval.campaign.sizing import GIB
from kveval.host import copy_bandwidth, gpu_conditions
from kveval.host.findings import FindingRow, error, ok, warning
from kveval.host.gpus import exporter
from kveval.host.gpus.details import gpu_details, nvidia_smi

# GB/s of a lane in one direction, by generation, after encoding (PCI-SIG: 8, 16, 32 and 64 GT/s).
_LANE_GB_S: Mapping[int, float] = {3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
# An H100 copied at 87 % of its link's rate, in either direction.
_LEAST_LINK_SHARE = 0.6
_MOST_IN_USE_BYTES = GIB
# Of an idle GPU, these say that somebody holds its clocks down, or that it is too hot.
_HELD_DOWN = {
    "applications_clocks_setting": "nvidia-smi -rac",
    "hw_slowdown": "look for its cause in nvidia-smi -q -d PERFORMANCE",
    "sw_thermal_slowdown": "cool the host",
    "hw_thermal_slowdown": "cool the host",
    "hw_power_brake_slowdown": "look at the host's power supply",
}
_METRICS_PROGRAM = """
import json, runpy, sys
import pynvml
made = runpy.run_path(sys.argv[1])
pynvml.nvmlInit()
print(json.dumps(made["exposition"](pynvml, made["chosen"](pynvml, ""))))
"""
_METRICS_FIX = "install nvidia-ml-py into .server-venv, or measure without them"


@dataclass(frozen=True)
class GpuFacts:
    """The answers of the GPUs of this host.

    Attributes:
        details: of each, as `host.gpus.details` names them.
        samples: the state of each now.
        in_use_bytes: memory in use on each.
        copies_gb_s: rates of `host.copy_bandwidth`; empty if its probe failed.
        metrics: the exporter's text; or why there is none.
    """

    details: Sequence[Mapping[str, Any]]
    samples: Sequence[gpu_conditions.GpuSample]
    in_use_bytes: Sequence[int]
    copies_gb_s: Mapping[str, float]
    metrics: str | BuildError


def gpu_facts(
    environment: Path, smi: Callable[[Sequence[str]], str | None] = nvidia_smi
) -> GpuFacts:
    """Ask the GPUs of this host, by nvidia-smi and by the Python of the server's environment."""
    used = smi(["--query-gpu=memory.used", "--format=csv,noheader,nounits"]) or ""
    metrics: str | BuildError
    try:
        metrics = asked_of(environment, _METRICS_PROGRAM, exporter.__file__)
    except BuildError as failure:
        metrics = failure
    return GpuFacts(
        details=gpu_details(),
        samples=gpu_conditions.parse(smi(gpu_conditions.arguments()) or ""),
        in_use_bytes=[int(text) * 2**20 for text in used.split() if text.isdigit()],
        copies_gb_s=copy_bandwidth.probe(environment / "bin" / "python"),
        metrics=metrics,
    )


def examine_gpus(facts: GpuFacts) -> Iterator[FindingRow]:
    """Yield the findings that follow from these facts; nothing for a host without GPUs, of which `device` tells."""
    if facts.details:
        yield from _power(facts.details)
        yield from _in_use(facts.in_use_bytes)
        yield from _held_down(facts.samples)
        yield _copies(facts.details[0], facts.copies_gb_s)
        yield _metrics(facts.metrics)


def _power(details: Sequence[Mapping[str, Any]]) -> Iterator[FindingRow]:
    for number, gpu in enumerate(details):
        limit_w, default_w = gpu.get("power_limit_w"), gpu.get("power_default_w")
        if limit_w is None or default_w is None:
            continue
        said = f"GPU {number} may take {limit_w:.0f} W"
        if limit_w < default_w:
            fix = f"nvidia-smi -i {number} -pl {default_w:.0f}, unless it is to be measured so: verdicts hold for this limit"
            said += f", by default {default_w:.0f}"
            yield warning("GPU power", said, fix, gpu=number, limit_w=limit_w)
        else:
            yield ok("GPU power", f"{said}, its default", gpu=number, limit_w=limit_w)


def _in_use(in_use_bytes: Sequence[int]) -> Iterator[FindingRow]:
    busy = [*filter(lambda each: each[1] > _MOST_IN_USE_BYTES, enumerate(in_use_bytes))]
    for number, used in busy:
        said = f"other programs hold {used / GIB:.1f} GiB of GPU {number}"
        fix = "end them (nvidia-smi names them): a server takes its share of the whole memory"
        yield warning("GPU memory", said, fix, gpu=number, used_bytes=used)
    if in_use_bytes and not busy:
        yield ok("GPU memory", "no other program holds any that matters")


def _held_down(samples: Sequence[gpu_conditions.GpuSample]) -> Iterator[FindingRow]:
    for number, sample in enumerate(samples):
        for reason in sample.reasons:
            if reason in _HELD_DOWN:
                said = f"GPU {number} is held down: {reason}"
                fix = _HELD_DOWN[reason]
                yield warning("GPU clocks", said, fix, gpu=number, reason=reason)


def _copies(gpu: Mapping[str, Any], rates: Mapping[str, float]) -> FindingRow:
    to_device, to_host = (
        rates.get("host_to_device_gb_s"),
        rates.get("device_to_host_gb_s"),
    )
    if to_device is None or to_host is None:
        said = "torch of the server's environment does not reach the first GPU"
        fix = "bash scripts/setup.sh server-gpu, or the torch of the driver's CUDA (config/gpu_releases.yaml)"
        return error("GPU copies", said, fix, "no_cuda")
    said = f"{to_device:.1f} GB/s to the first GPU and {to_host:.1f} back, from pinned memory"
    told: dict[str, Any] = {
        "host_to_device_gb_s": to_device,
        "device_to_host_gb_s": to_host,
    }
    generation, lanes = gpu.get("pcie_generation_max"), gpu.get("pcie_width_max")
    lane_gb_s = _LANE_GB_S.get(generation or 0)
    if lane_gb_s is None or lanes is None:
        return ok("GPU copies", said, **told)
    link_gb_s = lanes * lane_gb_s
    said += f"; its link, PCIe {generation} with {lanes} lanes, carries {link_gb_s:.0f}"
    if min(to_device, to_host) < _LEAST_LINK_SHARE * link_gb_s:
        fix = "a slot with all lanes, no switch in between, the CPU at its highest clock: a tier is no faster than this"
        return warning("GPU copies", said, fix, "slow_link", **told)
    return ok("GPU copies", said, **told)


def _metrics(metrics: str | BuildError) -> FindingRow:
    if isinstance(metrics, BuildError):
        said = f"none are recorded: {metrics}"
        return warning("GPU metrics", said, _METRICS_FIX, metrics.code)
    missing = [name for name in exporter.NAMES if f"\n{name}{{" not in metrics]
    if missing:
        said = f"this GPU or its driver does not tell {', '.join(missing)}"
        fix = "nothing: they are left out of the recording, never 0"
        return warning("GPU metrics", said, fix, "not_told", missing=missing)
    return ok("GPU metrics", f"all {len(exporter.NAMES)} answer")
