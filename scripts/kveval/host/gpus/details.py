"""Facts of each GPU that do not change: name and memory, limits of clocks and power, its place on the bus.

From nvidia-smi, else from NVML where nvidia-ml-py is installed; what neither reports is left out.
"""

import contextlib
import importlib
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

# nvidia-smi's field -> the fact, and how it is read. All are older than any driver that a present vLLM runs with.
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
# In words: [N/A], [Not Supported], [Unknown Error], N/A.
_UNTOLD = re.compile(r"^\[.*\]$|^N/A$|^$")
# Drivers since 590 call it the version of the user-mode driver.
_CUDA = re.compile(r"CUDA (?:UMD )?Version\s*:\s*(\d+\.\d+)")
_PCI = Path("/sys/bus/pci/devices")


def gpu_details(pci: Path = _PCI) -> list[dict[str, Any]]:
    """Describe each GPU of this host; empty where there is none or nothing can be asked.

    Facts: uuid, name, memory_bytes, driver, cuda (the newest that the driver runs), pci_bus, numa_node, limits of
    clocks in MHz and of power in W, generation and width of the PCIe link: as it is now (an idle GPU slows its link
    down) and at most.
    """
    found = _told_by_smi()
    if not found:
        with contextlib.suppress(ImportError):
            found = told_by_nvml(importlib.import_module("pynvml"))
    nodes = [numa_node(str(gpu.get("pci_bus", "")), pci) for gpu in found]
    return [gpu if node is None else {**gpu, "numa_node": node} for gpu, node in zip(found, nodes, strict=True)]


def parse(text: str) -> list[dict[str, Any]]:
    """Read what nvidia-smi prints for QUERY, a line a GPU; what it does not tell of a GPU is left out."""
    rows = ([part.strip() for part in line.split(",")] for line in text.splitlines())
    return [
        dict(_facts(zip(_FIELDS.values(), row, strict=True)))
        for row in rows
        if len(row) == len(_FIELDS) and row[0].startswith("GPU-")
    ]


def _facts(told: Iterable[tuple[tuple[str, Callable[[str], Any]], str]]) -> Iterator[tuple[str, Any]]:
    for (name, read), text in told:
        if not _UNTOLD.match(text):
            with contextlib.suppress(ValueError):
                yield name, read(text)


def cuda_of(text: str) -> str | None:
    """Return the newest CUDA that the driver runs, from the head of `nvidia-smi -q`; None where it is not told."""
    found = _CUDA.search(text)
    return None if found is None else found[1]


def numa_node(bus: str, pci: Path = _PCI) -> int | None:
    """Return the NUMA node of a PCI address as NVIDIA writes it, 00000000:1B:00.0; None where the kernel knows none."""
    domain, _, rest = bus.lower().partition(":")
    try:
        node = int((pci / f"{domain[-4:]}:{rest}" / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    # -1: a machine without nodes, or firmware that does not say.
    return node if node >= 0 else None


def told_by_nvml(nvml: Any) -> list[dict[str, Any]]:
    """Ask NVML, the module pynvml, for the same; empty where the library or the driver is not there."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return []
    try:
        shared = {"driver": _asked(nvml, "SystemGetDriverVersion"), "cuda": _cuda_of_nvml(nvml)}
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        return [
            {name: fact for name, fact in _one(nvml, handle, shared).items() if fact is not None} for handle in handles
        ]
    except nvml.NVMLError:
        return []
    finally:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def _one(nvml: Any, handle: Any, shared: Mapping[str, Any]) -> dict[str, Any]:
    def device(name: str, *arguments: Any) -> Any:
        return _asked(nvml, f"Device{name}", handle, *arguments)

    memory, pci = device("GetMemoryInfo"), device("GetPciInfo")
    watts = {
        "power_default_w": device("GetPowerManagementDefaultLimit"),
        "power_limit_w": device("GetEnforcedPowerLimit"),
    }
    return {
        "uuid": device("GetUUID"),
        "name": device("GetName"),
        "memory_bytes": None if memory is None else int(memory.total),
        **shared,
        "pci_bus": None if pci is None else _text(pci.busId),
        "clock_limit_mhz": device("GetMaxClockInfo", nvml.NVML_CLOCK_SM),
        "memory_clock_limit_mhz": device("GetMaxClockInfo", nvml.NVML_CLOCK_MEM),
        **{name: None if value is None else value / 1000 for name, value in watts.items()},
        "pcie_generation_max": device("GetMaxPcieLinkGeneration"),
        "pcie_width_max": device("GetMaxPcieLinkWidth"),
        "pcie_generation": device("GetCurrPcieLinkGeneration"),
        "pcie_width": device("GetCurrPcieLinkWidth"),
    }


def _cuda_of_nvml(nvml: Any) -> str | None:
    version = _asked(nvml, "SystemGetCudaDriverVersion")
    return None if version is None else f"{version // 1000}.{version % 1000 // 10}"


def _asked(nvml: Any, name: str, *arguments: Any) -> Any:
    """Call a function of NVML by its name without the prefix; None for what this driver or GPU does not support."""
    try:
        return _text(getattr(nvml, f"nvml{name}")(*arguments))
    except (nvml.NVMLError, AttributeError):
        return None


def _text(value: Any) -> Any:
    # Bytes, from nvidia-ml-py before 12.
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _told_by_smi() -> list[dict[str, Any]]:
    found = parse(nvidia_smi(QUERY) or "")
    cuda = cuda_of(nvidia_smi(["-q", "-d", "COMPUTE"]) or "") if found else None
    return [gpu | ({} if cuda is None else {"cuda": cuda}) for gpu in found]


def nvidia_smi(arguments: Sequence[str]) -> str | None:
    """Return what nvidia-smi prints on this host; None where there is none, or where it fails."""
    try:
        return subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, timeout=30, check=True).stdout
    except (subprocess.SubprocessError, OSError):
        return None
