"""The host a measurement ran on, as probed."""

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from kveval.host.gpus.details import gpu_details, nvidia_smi
from kveval.host.hashing import content_hash

GPU_QUERY = (
    "--query-gpu=name,memory.total,driver_version",
    "--format=csv,noheader,nounits",
)
"""Arguments of nvidia-smi."""


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def gpus() -> list[dict[str, Any]]:
    """List the NVIDIA GPUs of this host: name, memory in bytes, driver, and what kveval.host.gpus.details adds.

    Empty when there is none or no driver answers.
    """
    if details := gpu_details():
        return details
    # If a driver does not know one field, the whole query of `gpu_details` fails.
    return parse_gpus(nvidia_smi(GPU_QUERY) or "")


def parse_gpus(text: str) -> list[dict[str, Any]]:
    """Parse nvidia-smi's output for GPU_QUERY, one line per GPU; memory in bytes."""
    rows = map(_comma_separated, text.splitlines())
    return [
        {
            "name": row[0],
            "memory_bytes": int(row[1]) * 2**20 if row[1].isdigit() else None,
            "driver": row[2],
        }
        for row in rows
        if len(row) == 3
    ]


def _comma_separated(line: str) -> list[str]:
    return [part.strip() for part in line.split(",")]


def probe() -> dict[str, Any]:
    """Describe this host: CPU, usable cores, memory in bytes, GPUs, kernel, fingerprint."""
    memory_bytes = psutil.virtual_memory().total
    facts: dict[str, Any] = {
        "cpu_model": _cpu_model(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": memory_bytes,
        "gpus": gpus(),
        "kernel": platform.release(),
    }
    facts["fingerprint"] = fingerprint(facts)
    return facts


def fingerprint(facts: Mapping[str, Any]) -> str:
    """Return 12 hexadecimal digits that are equal for hosts whose measurements may be adopted for each other.

    Memory is rounded to GiB, because kernels reserve slightly different amounts; driver and kernel are recorded but do
    not enter, so that stored runs stay valid after an update. Raises KeyError or TypeError for a description of
    another form.
    """
    stable = {
        "cpu_model": facts["cpu_model"],
        "cpus": facts["cpus"],
        "memory_gib": round(facts["memory_bytes"] / 2**30),
        "gpus": sorted(gpu["name"] for gpu in facts["gpus"]),
    }
    return content_hash(stable, 12, spaced=True)
