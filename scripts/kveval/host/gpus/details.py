"""Fixed properties of each GPU: name and memory, limits of clocks and power, PCI address.

From nvidia-smi; what it does not report is left out.
"""

import contextlib
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

# nvidia-smi's field -> the property, and its parser. Every driver that current vLLM releases support has all fields.
_FIELDS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "uuid": ("uuid", str),
    "name": ("name", str),
    "memory.total": ("memory_bytes", lambda text: round(float(text)) * 2**20),
    "driver_version": ("driver", str),
    "pci.bus_id": ("pci_bus", str),
    "clocks.max.sm": ("clock_limit_mhz", float),
    "clocks.max.memory": ("memory_clock_limit_mhz", float),
    "power.default_limit": ("power_default_w", float),
    "enforced.power.limit": ("power_limit_w", float),
    "pcie.link.gen.max": ("pcie_generation_max", int),
    "pcie.link.width.max": ("pcie_width_max", int),
    "pcie.link.gen.current": ("pcie_generation", int),
    "pcie.link.width.current": ("pcie_width", int),
}
QUERY = (f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits")
# Words for a missing value: [N/A], [Not Supported], [Unknown Error], N/A.
_UNTOLD = re.compile(r"^\[.*\]$|^N/A$|^$")
# Drivers since 590 call it the version of the user-mode driver.
_CUDA = re.compile(r"CUDA (?:UMD )?Version\s*:\s*(\d+\.\d+)")
_PCI = Path("/sys/bus/pci/devices")


def gpu_details(pci: Path = _PCI) -> list[dict[str, Any]]:
    """Describe each GPU of this host; empty if there is none or nvidia-smi fails.

    Properties: uuid, name, memory_bytes, driver, cuda (the newest that the driver supports), pci_bus, numa_node, limits
    of clocks in MHz and of power in W, generation and width of the PCIe link: current (an idle GPU slows its link down)
    and maximal.
    """
    gpus = parse(nvidia_smi(QUERY) or "")
    cuda = cuda_of(nvidia_smi(["-q", "-d", "COMPUTE"]) or "") if gpus else None
    shared = {} if cuda is None else {"cuda": cuda}
    nodes = [numa_node(str(gpu.get("pci_bus", "")), pci) for gpu in gpus]
    return [
        gpu | shared | ({} if node is None else {"numa_node": node})
        for gpu, node in zip(gpus, nodes, strict=True)
    ]


def parse(text: str) -> list[dict[str, Any]]:
    """Parse nvidia-smi's output for QUERY, one line per GPU; values that it does not report are left out."""
    gpus = []
    for line in text.splitlines():
        row = [part.strip() for part in line.split(",")]
        if len(row) == len(_FIELDS) and row[0].startswith("GPU-"):
            gpus.append(dict(_facts(zip(_FIELDS.values(), row, strict=True))))
    return gpus


def _facts(
    answers: Iterable[tuple[tuple[str, Callable[[str], Any]], str]],
) -> Iterator[tuple[str, Any]]:
    for (name, read), text in answers:
        if not _UNTOLD.match(text):
            with contextlib.suppress(ValueError):
                yield name, read(text)


def cuda_of(text: str) -> str | None:
    """Return the newest CUDA version that the driver supports, from the head of `nvidia-smi -q`; None if missing."""
    match = _CUDA.search(text)
    return None if match is None else match[1]


def numa_node(bus: str, pci: Path = _PCI) -> int | None:
    """Return the NUMA node of a PCI address in NVIDIA's form, 00000000:1B:00.0; None if the kernel has none."""
    domain, _, rest = bus.lower().partition(":")
    try:
        node = int((pci / f"{domain[-4:]}:{rest}" / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    # -1: a machine without NUMA nodes, or firmware that does not report them.
    return node if node >= 0 else None


def nvidia_smi(arguments: Sequence[str]) -> str | None:
    """Return nvidia-smi's output on this host; None if it is not installed or fails."""
    try:
        return subprocess.run(
            ["nvidia-smi", *arguments],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        ).stdout
    except (subprocess.SubprocessError, OSError):
        return None
