"""The host a measurement ran on, as probed."""

import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from kveval.host.hashing import content_hash


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def gpus() -> list[dict[str, Any]]:
    """List the NVIDIA GPUs of this host: name, memory in bytes, driver.

    Empty when there is none or no driver answers.
    """
    if shutil.which("nvidia-smi") is None:
        return []
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout
    except (subprocess.SubprocessError, OSError):
        return []
    found = []
    for line in answer.splitlines():
        name, memory_mib, driver = (part.strip() for part in line.split(","))
        found.append({"name": name, "memory_bytes": int(memory_mib) * 2**20, "driver": driver})
    return found


def probe() -> dict[str, Any]:
    """Describe this host."""
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
    """Return what is equal for hosts, as described, whose measurements may stand for each other.

    Memory enters rounded to GiB, because kernels reserve slightly different amounts; the driver and the kernel are
    recorded but leave the fingerprint alone, so that an update does not disown a store. Raises KeyError or TypeError
    for a description of another form.
    """
    stable = {
        "cpu_model": facts["cpu_model"],
        "cpus": facts["cpus"],
        "memory_gib": round(facts["memory_bytes"] / 2**30),
        "gpus": sorted(gpu["name"] for gpu in facts["gpus"]),
    }
    return content_hash(stable, 12, spaced=True)
