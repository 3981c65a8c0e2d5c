"""Sizes that the memory or the /dev/shm of a server's host does not hold: refused, and what would be right."""

import copy
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.command import kveval
from tests.support.config_files import CONFIG, RAW, load_raw, on_gpus

from kveval.campaign.problems import ConfigProblem
from kveval.configuration.config import Config
from kveval.configuration.loading import load_config
from kveval.engines.preflight import MEMORY_SHARE, memory_bytes, shared_memory_bytes
from kveval.workflow.doctor.doctor import diagnose
from kveval.workflow.planning.host_room import HostRoom, known_room, room_problems

GIB = 2**30
LAPTOP = {"memory_bytes": 16 * GIB, "gpus": []}
GPU_HOST = LAPTOP | {"gpus": [{"name": "NVIDIA L40S"}]}
MODEL = "Qwen3-32B-AWQ"
TIER = f"{MODEL}/native-offload/10000"


@pytest.fixture(scope="module")
def on_gpu(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """One tier of 39 GiB, which vLLM 0.22.1 pins as 64 GiB, on two GPUs."""
    server = {"tensor_parallel_size": 2}
    raw = on_gpus(MODEL, "native-offload", 10_000, **server)
    return load_raw(raw, tmp_path_factory.mktemp("config"))


def with_host(**values: Any) -> Config:
    return load_config(copy.deepcopy(RAW["config"]) | values, CONFIG)


def problems(config: Config, room: HostRoom) -> list[ConfigProblem]:
    return list(room_problems(config, config.cells, room, "mine.yaml"))


def test_a_size_beyond_the_memory_names_arm_size_memory_and_the_largest_that_fits(
    on_gpu: Config,
) -> None:
    (cell,) = on_gpu.cells
    needed = memory_bytes(on_gpu.specification(cell))
    assert problems(on_gpu, HostRoom("host_gib is", needed)) == []
    (problem,) = problems(on_gpu, HostRoom("host_gib is", needed - 1))
    assert (problem.file, problem.key) == ("mine.yaml", "matrix")
    for told in (TIER, "39.1 GiB (10,000 blocks)", "host_gib is"):
        assert told in problem.message
    (text,) = re.findall(r"at most .* GiB \(([\d,]+) blocks\)", problem.valid)
    largest = int(text.replace(",", ""))

    def share(blocks: int) -> float:
        of_size = on_gpu.specification(replace(cell, cpu_blocks=blocks))
        return memory_bytes(of_size) / (needed - 1)

    assert share(largest) <= MEMORY_SHARE < share(largest + 1)


def test_a_tier_in_shared_memory_needs_room_there(tmp_path: Path) -> None:
    config = load_config(CONFIG / "campaigns" / "ttft.yaml", CONFIG)
    cells = {cell.scenario: cell for cell in config.cells}
    native = cells["native-offload"]
    shared = shared_memory_bytes(config.specification(native))
    lmcache = shared_memory_bytes(config.specification(cells["lmcache-local"]))
    assert shared > 39 * GIB > lmcache
    room = HostRoom("this host has", 512 * GIB, shared - 1)
    (problem,) = problems(config, room)
    assert native.path in problem.message and "/dev/shm" in problem.message
    assert "at most 39.1 GiB (19,9" in problem.valid
    assert problems(config, HostRoom("this host has", 512 * GIB, shared)) == []


def test_a_shared_memory_too_small_for_any_size_is_left_to_the_doctor() -> None:
    config = with_host()
    assert problems(config, HostRoom("this host has", 64 * GIB, 2**20)) == []


def test_a_device_cache_beyond_the_memory_is_no_fault_of_the_size() -> None:
    config = with_host()
    found = problems(config, HostRoom("this host has", 2**20))
    assert {problem.valid for problem in found} == {
        "a smaller server.device_blocks, or a larger host (host_gib)"
    }
    assert len(found) == len(config.cells)


def test_the_host_is_the_declared_one_else_this_one_where_servers_can_run_on_it(
    on_gpu: Config,
) -> None:
    declared = known_room(with_host(host_gib="64 GB"), LAPTOP)
    assert declared == HostRoom("host_gib is", 64_000_000_000)
    of_this = known_room(with_host(), LAPTOP)
    assert of_this and of_this.memory_bytes == 16 * GIB
    assert known_room(on_gpu, LAPTOP) is None
    of_gpus = known_room(on_gpu, GPU_HOST)
    assert of_gpus and of_gpus.subject == "this host has"
    cluster = load_config(CONFIG / "campaigns" / "feb-2026.yaml", CONFIG)
    assert known_room(cluster, {}) is None


def test_a_declared_host_changes_no_measurement() -> None:
    plain, declared = with_host(), with_host(host_gib=64)
    for cell in plain.cells:
        assert plain.measurement_id(cell) == declared.measurement_id(cell)


def test_a_plan_is_refused_and_one_that_fits_is_not(tmp_path: Path) -> None:
    campaign = str(CONFIG / "campaigns" / "feb-2026.yaml")
    status, text = kveval(tmp_path, "plan", campaign, "--set", "host_gib=48")
    assert status == 2
    assert f"{campaign.rpartition('/')[2]}: matrix: {TIER}" in text
    assert "Qwen3-14B" not in text
    assert kveval(tmp_path, "plan", campaign, "--set", "host_gib=512")[0] == 0


def test_the_doctor_names_a_size_beyond_the_declared_host(tmp_path: Path) -> None:
    config = with_host(host_gib="180 MB")
    places = {"store": tmp_path / "store", "server_environment": tmp_path}
    found = diagnose(config, "own.yaml", at_once=1, say=lambda text: None, **places)
    (finding,) = (one for one in found if one.check == "host_gib")
    assert (finding.level, finding.code) == ("error", "no_room_on_host")
    assert "native-offload/10000, a tier of 0.153 GiB (10,000 blocks)" in finding.what
    assert finding.fix.startswith("matrix: at most 0.100 GiB (6,570 blocks)")
