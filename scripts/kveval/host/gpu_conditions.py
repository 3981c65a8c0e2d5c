"""The operating conditions of GPUs, from nvidia-smi: clocks, power and reasons for throttling."""

import csv
import os
import re
import shutil
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kveval.host.gpus.details import nvidia_smi

INTERVAL_S = 10.0
Smi = Callable[[Sequence[str]], str | None]
"""Runs nvidia-smi with these arguments where the GPUs are; returns its output, None if it failed."""

_FIELDS = (
    "uuid",
    "name",
    "clocks.sm",
    "clocks.max.sm",
    "enforced.power.limit",
    "power.draw",
    "temperature.gpu",
    "utilization.gpu",
    "clocks_event_reasons.active",
)
# Bits of NVML's clocks event reasons, without that of an idle GPU (0x1), which is no throttling.
_BITS = {
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
_TRIES = 3


@dataclass(frozen=True)
class GpuSample:
    """One GPU at one moment: MHz, W, degrees C, percent; None for values that its driver does not report."""

    uuid: str
    name: str
    reasons: tuple[str, ...]
    clock_mhz: float | None
    clock_limit_mhz: float | None
    power_limit_w: float | None
    power_w: float | None
    temperature_c: float | None
    utilization_percent: float | None


def parse(text: str) -> list[GpuSample]:
    """Parse nvidia-smi's output for `arguments`: one line per GPU, without header and units; ignore other lines."""
    rows = (
        row
        for row in csv.reader(text.splitlines(), skipinitialspace=True)
        if len(row) == len(_FIELDS)
    )
    return [
        GpuSample(uuid, name, _reasons(mask), *map(_number, values))
        for uuid, name, *values, mask in rows
        if uuid.startswith("GPU-")
    ]


def arguments(chosen: str = "") -> list[str]:
    """Return nvidia-smi's arguments; `chosen`: GPUs by index or UUID, comma-separated, "" for all."""
    of_these = [f"--id={chosen}"] if chosen else []
    return [
        *of_these,
        f"--query-gpu={','.join(_FIELDS)}",
        "--format=csv,noheader,nounits",
    ]


@dataclass
class GpuWatch:
    """Samples of the GPUs that `smi` reaches; after a few failed queries in a row, it makes no more."""

    smi: Smi
    chosen: str = ""
    samples: list[GpuSample] = field(default_factory=list)
    _failed: int = 0

    def sample(self) -> None:
        """Take a sample; a failure is ignored, because it does not invalidate a measurement."""
        if self._failed < _TRIES:
            samples = parse(self.smi(arguments(self.chosen)) or "")
            self.samples += samples
            self._failed = 0 if samples else self._failed + 1

    def conditions(self) -> list[dict[str, Any]]:
        """Return the entry of run.json, see kveval.store.run_file.GpuConditions."""
        return summary(self.samples)


def summary(samples: Sequence[GpuSample]) -> list[dict[str, Any]]:
    """Summarise each GPU's samples with utilization above 0; always idle GPUs are left out, unless all were idle."""
    by_gpu: dict[str, list[GpuSample]] = {}
    for sample in samples:
        by_gpu.setdefault(sample.uuid, []).append(sample)
    working: dict[str, list[GpuSample]] = {}
    for sample in samples:
        # A sample without utilization counts as one of a working GPU.
        if sample.utilization_percent != 0:
            working.setdefault(sample.uuid, []).append(sample)
    chosen = working or by_gpu
    return [
        _one(index, chosen[uuid]) for index, uuid in enumerate(by_gpu) if uuid in chosen
    ]


def local_watch(environment: Mapping[str, str] = os.environ) -> GpuWatch | None:
    """Return a watch of this host's GPUs in CUDA_VISIBLE_DEVICES, or of all; None without nvidia-smi."""
    if shutil.which("nvidia-smi") is None:
        return None
    return GpuWatch(nvidia_smi, visible_gpus(environment))


def visible_gpus(environment: Mapping[str, str] = os.environ) -> str:
    """Return the GPUs that CUDA_VISIBLE_DEVICES names, by index or UUID, comma-separated; "" means all."""
    # nvidia-smi and NVML have no indices for MIG parts of GPUs: with MIG, all GPUs are sampled.
    named = environment.get("CUDA_VISIBLE_DEVICES", "")
    return named if re.fullmatch(r"(?:(?:\d+|GPU-[\w-]+),?)+", named) else ""


def _one(index: int, samples: Sequence[GpuSample]) -> dict[str, Any]:
    def reduced(reduce: Callable[[list[float]], float], name: str) -> float | None:
        values = [
            value for sample in samples if (value := getattr(sample, name)) is not None
        ]
        return round(reduce(values), 1) if values else None

    counts: Counter[str] = Counter()
    for sample in samples:
        counts.update(sample.reasons)
    shares = {
        reason: round(counts[reason] / len(samples), 3)
        for reason in _BITS.values()
        if counts[reason]
    }
    return {
        "index": index,
        "name": samples[0].name,
        "samples": len(samples),
        "clock_mhz_mean": reduced(statistics.fmean, "clock_mhz"),
        "clock_limit_mhz": reduced(min, "clock_limit_mhz"),
        "power_limit_w": reduced(min, "power_limit_w"),
        "power_w_mean": reduced(statistics.fmean, "power_w"),
        "temperature_c_max": reduced(max, "temperature_c"),
        "throttle_reasons": sorted(shares),
        "throttle_shares": shares,
    }


def _number(text: str) -> float | None:
    """Parse a number; None for nvidia-smi's words for a missing value: [N/A], [Not Supported], [Unknown Error]."""
    try:
        return float(text)
    except ValueError:
        return None


def _reasons(mask: str) -> tuple[str, ...]:
    try:
        bits = int(mask, 16)
    except ValueError:
        return ()
    return tuple(name for bit, name in _BITS.items() if bits & bit)
