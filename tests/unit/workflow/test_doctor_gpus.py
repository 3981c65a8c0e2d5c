"""What the doctor says of GPUs, from facts alone; and how they are asked."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from kveval.campaign.builds import BuildError
from kveval.host.findings import FindingRow, worst
from kveval.host.gpu_conditions import GpuSample
from kveval.host.gpus.exporter import NAMES
from kveval.workflow.doctor import gpus
from kveval.workflow.doctor.gpus import GpuFacts, examine_gpus

# An H100, as nvidia-smi, the probe and NVML told of it.
DETAILS = {
    "name": "NVIDIA H100 80GB HBM3",
    "power_default_w": 700.0,
    "power_limit_w": 700.0,
    "pcie_generation_max": 5,
    "pcie_width_max": 16,
}
SAMPLE = GpuSample("GPU-1", DETAILS["name"], (), 345.0, 1980.0, 700.0, 76.0, 30.0, 0.0)
H100 = GpuFacts(
    details=[DETAILS],
    samples=[SAMPLE],
    in_use_bytes=[0],
    copies_gb_s={
        "host_gb_s": 27.1,
        "host_to_device_gb_s": 55.2,
        "device_to_host_gb_s": 55.1,
    },
    metrics="".join(f'\n{name}{{gpu="0"}} 1.0' for name in NAMES),
)


def examined(**changes: Any) -> list[FindingRow]:
    return [*examine_gpus(dataclasses.replace(H100, **changes))]


def test_a_gpu_as_it_should_be_gets_no_complaint() -> None:
    rows = examined()
    assert worst(rows) == "ok"
    assert [row.check for row in rows] == [
        "GPU power",
        "GPU memory",
        "GPU copies",
        "GPU metrics",
    ]
    assert "PCIe 5 with 16 lanes, carries 63" in rows[2].what


def test_nothing_is_said_of_gpus_that_are_not_there() -> None:
    assert examined(details=[]) == []


@pytest.mark.parametrize(
    ("changes", "check", "level", "fix"),
    [
        (
            {"details": [DETAILS | {"power_limit_w": 400.0}]},
            "GPU power",
            "warning",
            "nvidia-smi -i 0 -pl 700",
        ),
        ({"in_use_bytes": [0, 3 * 2**30]}, "GPU memory", "warning", "end them"),
        (
            {"samples": [dataclasses.replace(SAMPLE, reasons=("hw_slowdown",))]},
            "GPU clocks",
            "warning",
            "nvidia-smi -q -d PERFORMANCE",
        ),
        ({"copies_gb_s": {}}, "GPU copies", "error", "server-gpu"),
        ({"copies_gb_s": {"host_gb_s": 20.0}}, "GPU copies", "error", "server-gpu"),
        (
            {
                "copies_gb_s": {
                    "host_to_device_gb_s": 12.0,
                    "device_to_host_gb_s": 12.0,
                }
            },
            "GPU copies",
            "warning",
            "a slot with all lanes",
        ),
        ({"metrics": H100.metrics[:-60]}, "GPU metrics", "warning", "left out"),
        (
            {"metrics": BuildError("no module named pynvml", code="no_answer")},
            "GPU metrics",
            "warning",
            "nvidia-ml-py",
        ),
    ],
)
def test_what_is_not_as_it_should_be_is_said_with_its_fix(
    changes: dict[str, Any], check: str, level: str, fix: str
) -> None:
    [row] = [row for row in examined(**changes) if row.level != "ok"]
    assert (row.check, row.level) == (check, level)
    assert fix in row.fix


@pytest.mark.parametrize("missing", ["pcie_generation_max", "pcie_width_max"])
def test_of_a_link_that_is_not_told_nothing_is_expected(missing: str) -> None:
    details = {name: value for name, value in DETAILS.items() if name != missing}
    rows = examined(details=[details], copies_gb_s=dict.fromkeys(H100.copies_gb_s, 9.0))
    assert worst(rows) == "ok"


def test_a_power_limit_and_idling_are_no_fault_of_a_gpu() -> None:
    capped = dataclasses.replace(SAMPLE, reasons=("sw_power_cap", "sync_boost"))
    assert worst(examined(samples=[capped])) == "ok"


def test_gpus_are_asked_by_nvidia_smi_and_by_the_servers_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's Python has a pynvml of one GPU that tells its power alone."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    # Without -I, which the real one is isolated by.
    python.write_text(f'#!/bin/bash\nPYTHONPATH={tmp_path} exec python3 "${{@:2}}"\n')
    python.chmod(0o755)
    (tmp_path / "pynvml.py").write_text(
        "class NVMLError(Exception): pass\n"
        "def nvmlInit(): pass\n"
        "def nvmlDeviceGetCount(): return 1\n"
        "def nvmlDeviceGetHandleByIndex(index): return index\n"
        "def nvmlDeviceGetPowerUsage(handle): return 76_000\n"
    )
    monkeypatch.setattr(gpus.copy_bandwidth, "probe", lambda python: {})
    monkeypatch.setattr(gpus, "gpu_details", lambda: [DETAILS])

    def smi(arguments: list[str]) -> str:
        return "512\n" if "--query-gpu=memory.used" in arguments else ""

    facts = gpus.gpu_facts(tmp_path, smi)
    assert facts.in_use_bytes == [512 * 2**20]
    assert isinstance(facts.metrics, str)
    assert 'gpu_power_watts{gpu="0"} 76.0' in facts.metrics
    assert [row.code for row in examine_gpus(facts) if row.level != "ok"] == [
        "no_cuda",
        "not_told",
    ]
