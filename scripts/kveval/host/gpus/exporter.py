"""A Prometheus exporter of GPU metrics from NVML: PCP's agent for GPUs is often missing, and has no clock metrics.

Runs as a program of a Python with nvidia-ml-py, such as the server's environment; imports nothing of kveval:
`python exporter.py PORT [INDEX or UUID,...]`. A value that a GPU or a driver does not support is left out.
"""

import contextlib
import http.server
import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

# Name, help, and the NVML call; units are those of PCP's agent, converted to base units. Counters end in _total.
_METRICS: Sequence[tuple[str, str, Callable[[Any, Any], float]]] = (
    (
        "gpu_active_percent",
        "Time in which a kernel ran",
        lambda n, h: n.nvmlDeviceGetUtilizationRates(h).gpu,
    ),
    (
        "gpu_memory_active_percent",
        "Time in which GPU memory was read or written",
        lambda n, h: n.nvmlDeviceGetUtilizationRates(h).memory,
    ),
    (
        "gpu_memory_used_bytes",
        "GPU memory in use",
        lambda n, h: n.nvmlDeviceGetMemoryInfo(h).used,
    ),
    ("gpu_power_watts", "Power", lambda n, h: n.nvmlDeviceGetPowerUsage(h) / 1000),
    (
        "gpu_energy_joules_total",
        "Energy since the driver was loaded",
        lambda n, h: n.nvmlDeviceGetTotalEnergyConsumption(h) / 1000,
    ),
    (
        "gpu_temperature_celsius",
        "Temperature",
        lambda n, h: n.nvmlDeviceGetTemperature(h, n.NVML_TEMPERATURE_GPU),
    ),
    (
        "gpu_sm_clock_mhz",
        "Clock of the SMs",
        lambda n, h: n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_SM),
    ),
    (
        "gpu_throttle_reasons",
        "Bits of NVML's clocks event reasons",
        lambda n, h: n.nvmlDeviceGetCurrentClocksEventReasons(h),
    ),
    (
        "gpu_pcie_generation",
        "PCIe link now",
        lambda n, h: n.nvmlDeviceGetCurrPcieLinkGeneration(h),
    ),
    (
        "gpu_pcie_width",
        "PCIe lanes now",
        lambda n, h: n.nvmlDeviceGetCurrPcieLinkWidth(h),
    ),
)
NAMES = tuple(name for name, _, _ in _METRICS)
"""The metrics, by name."""


def exposition(nvml: Any, handles: Sequence[tuple[int, Any]]) -> str:
    """Return the GPUs' current metrics as Prometheus text; the label `gpu` is the index."""
    lines: list[str] = []
    for name, description, ask in _METRICS:
        values = []
        for index, handle in handles:
            with contextlib.suppress(nvml.NVMLError, AttributeError):
                values.append(f'{name}{{gpu="{index}"}} {float(ask(nvml, handle))}')
        if values:
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# HELP {name} {description}", f"# TYPE {name} {kind}", *values]
    return "\n".join([*lines, ""])


def chosen(nvml: Any, selection: str) -> list[tuple[int, Any]]:
    """Return (index, NVML handle) of the GPUs that `selection` names by index or UUID, comma-separated; "" means all."""
    every = [
        (index, nvml.nvmlDeviceGetHandleByIndex(index))
        for index in range(nvml.nvmlDeviceGetCount())
    ]
    names = {name for name in selection.split(",") if name}
    return [
        (index, handle)
        for index, handle in every
        if not names or names & {str(index), _uuid(nvml, handle)}
    ]


def _uuid(nvml: Any, handle: Any) -> str:
    uuid = nvml.nvmlDeviceGetUUID(handle)
    return str(uuid.decode() if isinstance(uuid, bytes) else uuid)


def serve(nvml: Any, port: int, selection: str) -> None:
    """Serve the metrics on the loopback interface until the process ends."""
    nvml.nvmlInit()
    handles = chosen(nvml, selection)

    class GpuHandler(http.server.BaseHTTPRequestHandler):
        """Serves the metrics at every path."""

        def do_GET(self) -> None:
            """Answer with the current values."""
            body = exposition(nvml, handles).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing: there is a request every second."""

    http.server.HTTPServer(("127.0.0.1", port), GpuHandler).serve_forever()


if __name__ == "__main__":
    serve(
        importlib.import_module("pynvml"),
        int(sys.argv[1]),
        sys.argv[2] if len(sys.argv) > 2 else "",
    )
