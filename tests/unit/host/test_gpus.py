"""GPUs from what nvidia-smi prints, whole or in part; the exporter by NVML; which software fits them."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.fake_nvml import A, B, FakeNvml
from tests.support.paths import REPOSITORY

from kveval.host import hardware
from kveval.host.errors import Failure
from kveval.host.gpus import details
from kveval.host.gpus.details import cuda_of, gpu_details, numa_node, parse
from kveval.host.gpus.exporter import chosen, exposition
from kveval.host.gpus.releases import (
    GpuRelease,
    built_for,
    judge_release,
    read_releases,
    same_release,
)
from kveval.pcp.direct.prometheus import Exporter

H200 = f"{A}, NVIDIA H200, 143771, 580.95.05, 00000000:1B:00.0, 1980, 3201, 700.00, 650.00, 5, 16, 4, 16"
DESK = f"{B}, NVIDIA GeForce RTX 3080, 10240, 580.95.05, 00000000:3D:00.0, 2100, 9501, [N/A], [Not Supported], 4, 16, "
DESK += "[Unknown Error], N/A"
HEAD = "\n=====NVSMI LOG=====\n\nDriver Version : 580.95.05\nCUDA Version   : 13.0\n\nAttached GPUs : 1\n"


def test_a_line_of_nvidia_smi_is_a_gpu_s_facts() -> None:
    (found,) = parse(H200 + "\n")
    assert found == {
        **{
            "uuid": A,
            "name": "NVIDIA H200",
            "memory_bytes": 143771 * 2**20,
            "driver": "580.95.05",
        },
        **{
            "pci_bus": "00000000:1B:00.0",
            "clock_limit_mhz": 1980.0,
            "memory_clock_limit_mhz": 3201.0,
        },
        **{"power_default_w": 700.0, "power_limit_w": 650.0},
        **{
            "pcie_generation_max": 5,
            "pcie_width_max": 16,
            "pcie_generation": 4,
            "pcie_width": 16,
        },
    }


def test_what_a_gpu_does_not_tell_is_left_out() -> None:
    (found,) = parse(DESK)
    assert {
        "power_default_w",
        "power_limit_w",
        "pcie_generation",
        "pcie_width",
    }.isdisjoint(found)
    assert (found["name"], found["pcie_generation_max"]) == (
        "NVIDIA GeForce RTX 3080",
        4,
    )


@pytest.mark.parametrize(
    "text",
    ["", "No devices were found\n", 'Field "x" is not a valid field to query.\n'],
)
def test_what_is_no_answer_is_no_gpu(text: str) -> None:
    assert parse(text) == []


def test_the_driver_s_cuda_is_in_the_head_under_either_name() -> None:
    assert (
        cuda_of(HEAD)
        == cuda_of(HEAD.replace("CUDA Version", "CUDA UMD Version"))
        == "13.0"
    )
    assert cuda_of(HEAD.replace("13.0", "N/A")) is None


def test_the_numa_node_is_the_kernel_s(tmp_path: Path) -> None:
    for address, node in (("0000:1b:00.0", "1\n"), ("0000:3d:00.0", "-1\n")):
        (tmp_path / address).mkdir()
        (tmp_path / address / "numa_node").write_text(node)
    told = [
        numa_node(bus, tmp_path)
        for bus in ("00000000:1B:00.0", "00000000:3D:00.0", "00000000:FF:00.0", "")
    ]
    assert told == [1, None, None, None]


def shim(folder: Path, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    """Put a program nvidia-smi first on the path."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/bash\n{answer}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_a_host_is_asked_through_nvidia_smi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "0000:1b:00.0").mkdir()
    (tmp_path / "0000:1b:00.0" / "numa_node").write_text("0\n")
    (tmp_path / "head").write_text(HEAD)
    (tmp_path / "line").write_text(H200 + "\n")
    shim(
        tmp_path,
        monkeypatch,
        f'[[ $1 == -q ]] && exec cat "{tmp_path}/head"; exec cat "{tmp_path}/line"',
    )
    (found,) = gpu_details(tmp_path)
    assert (found["numa_node"], found["cuda"], found["power_limit_w"]) == (
        0,
        "13.0",
        650.0,
    )


def test_a_driver_that_refuses_the_details_still_names_its_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shim(
        tmp_path,
        monkeypatch,
        "[[ $1 == *pcie* || $1 == -q ]] && exit 2; echo 'NVIDIA H200, 143771, 580.95.05'",
    )
    assert hardware.gpus() == [
        {"name": "NVIDIA H200", "memory_bytes": 143771 * 2**20, "driver": "580.95.05"}
    ]


def test_the_details_leave_the_fingerprint_alone() -> None:
    facts = {"cpu_model": "x", "cpus": 8, "memory_bytes": 2**34}
    plain = {**facts, "gpus": [{"name": "NVIDIA H200"}]}
    assert hardware.fingerprint({**facts, "gpus": parse(H200)}) == hardware.fingerprint(
        plain
    )


def test_the_exporter_tells_what_each_gpu_supports() -> None:
    nvml = FakeNvml()
    found = {
        (one.metric, one.instance): one
        for one in Exporter("nvml").read(exposition(nvml, chosen(nvml, "")))
    }
    place = "openmetrics.nvml."
    assert found[place + "gpu_active_percent", "0 gpu:0"].value == 97
    assert found[place + "gpu_memory_used_bytes", "1 gpu:1"].value == 2000
    assert found[place + "gpu_memory_used_bytes", "0 gpu:0"].about.units == "byte"
    assert found[place + "gpu_power_watts", "0 gpu:0"].value == 689.31
    assert (
        found[place + "gpu_energy_joules_total", "0 gpu:0"].about.semantics == "counter"
    )
    assert found[place + "gpu_throttle_reasons", "0 gpu:0"].value == 4
    assert (place + "gpu_power_watts", "1 gpu:1") not in found


def test_the_exporter_keeps_to_the_gpus_that_are_visible() -> None:
    nvml = FakeNvml()
    assert (
        [index for index, _ in chosen(nvml, "1")]
        == [index for index, _ in chosen(nvml, B)]
        == [1]
    )
    assert [index for index, _ in chosen(nvml, f"0,{B}")] == [0, 1]


def test_the_exporter_is_a_program_that_says_what_it_lacks() -> None:
    program = Path(details.__file__).with_name("exporter.py")
    done = subprocess.run(
        [sys.executable, "-I", program, "0"], capture_output=True, text=True
    )
    assert done.returncode != 0
    assert (
        done.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'pynvml'"
    )


RELEASES = [
    GpuRelease("vllm", "0.26.0", "2.11.0", "read", cuda="13.0", locks="gpu"),
    GpuRelease("vllm", "0.25.1", "2.11.0", "read"),
    GpuRelease("vllm", "0.32.0", "2.13.0", "read"),
]


@pytest.mark.parametrize(
    ("version", "torch", "driver", "level", "code"),
    [
        ("0.26.0", "2.11.0+cu130", "13.0", "ok", ""),
        ("0.26.0", "2.11.0+cu130", None, "ok", ""),
        ("0.26.0", "2.11.0+cu130", "12.8", "error", "old_driver"),
        ("0.26.0", "2.13.0", "13.0", "error", "other_torch"),
        ("0.99.0", "2.13.0", "13.0", "ok", "unknown"),
        (None, "2.11.0", "13.0", "warning", "none_there"),
    ],
)
def test_a_server_is_judged_beside_its_torch(
    version: str | None, torch: str, driver: str | None, level: str, code: str
) -> None:
    found = judge_release(RELEASES, "vllm", version, torch, driver)
    assert found is not None
    assert (found.level, found.code) == (level, code)


def test_without_torch_there_is_nothing_to_judge() -> None:
    assert judge_release(RELEASES, "vllm", None, None, None) is None


def test_a_host_s_torch_says_what_fits_those_that_can_be_bundled_first() -> None:
    assert [one.version for one in built_for("2.11.0+cu130", RELEASES, "vllm")] == [
        "0.26.0",
        "0.25.1",
    ]
    assert same_release("2.11.0+cu130", "2.11.0")
    assert not same_release("2.11.0", "2.11.1")


def test_the_table_fits_the_locks() -> None:
    releases = read_releases(REPOSITORY / "config" / "gpu_releases.yaml")
    (locked,) = (one for one in releases if one.locks)
    envs = REPOSITORY / "envs"
    for lock, pin in (
        ("torch", f"torch=={locked.torch}"),
        ("server", f"{locked.program}=={locked.version}"),
        ("lmcache", f"lmcache=={locked.lmcache}"),
    ):
        assert f"\n{pin} " in (envs / f"{lock}-{locked.locks}.lock").read_text(), lock
    assert all(one.tried for one in releases)


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "releases.yaml").write_text("- {program: vllm, speed: 3}\n")
    with pytest.raises(Failure) as error:
        read_releases(tmp_path / "releases.yaml")
    assert error.value.code == "no_releases"
