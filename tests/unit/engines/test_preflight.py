"""What is refused before anything starts, from the numbers of a specification alone."""

import json
from collections import namedtuple
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.support.config_files import BASE, CONFIG, LMCACHE, NATIVE

from kveval.campaign.random_model import model_config
from kveval.campaign.specification import Specification
from kveval.configuration.loading import load_config
from kveval.engines import preflight
from kveval.engines.preflight import (
    PreflightError,
    disk_bytes,
    memory_bytes,
    require_checkpoint,
    require_no_secret,
    require_room,
    shared_memory_bytes,
)
from kveval.engines.watchdog import DISK_RESERVE_BYTES, DiskFullError
from kveval.host.redaction import Redactor

MIB, GIB = 2**20, 2**30
Usage = namedtuple("Usage", "total used free")


def specification(cell: Any = BASE, **changes: Any) -> Specification:
    content = load_config(CONFIG / "config.yaml", CONFIG).specification(cell).to_json()
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = content
        for key in parents:
            place = place[key]
        place[last] = value
    return Specification.from_json(content)


def test_the_disk_estimate_covers_what_a_run_of_the_default_campaign_writes() -> None:
    # Measured: reports of 0.25 to 0.4 MB, an archive of 2.5 MB and a log of 63 kB, then 0.2 MB packed.
    workload = specification().workload
    estimate = disk_bytes(workload, cpus=2)
    assert DISK_RESERVE_BYTES + 5 * MIB < estimate < 300 * MIB
    longer = disk_bytes(workload.replace(seconds=10 * workload.seconds), cpus=2)
    assert estimate < longer < 10 * estimate


def test_a_cpu_servers_queues_lie_in_shared_memory() -> None:
    # Measured on vLLM 0.32: two segments, of 167,772,180 and 251,658,260 bytes.
    assert shared_memory_bytes(specification()) == 400 * MIB
    # The tier of a CPU server is private memory; LMCache's server reads the device's cache, of 17,920 tokens, in place.
    assert shared_memory_bytes(specification(NATIVE)) == 400 * MIB
    assert shared_memory_bytes(specification(LMCACHE)) == 400 * MIB + 17_920 * 1024


@pytest.mark.parametrize(
    ("ranks", "vllm", "tier_shared"),
    [(1, "0.32.0", True), (1, "0.22.1", False), (4, "0.22.1", False)],
)
def test_on_gpus_there_are_queues_between_ranks_and_since_0_32_the_tier(
    ranks: int, vllm: str, tier_shared: bool
) -> None:
    described = specification(
        NATIVE, build="vllm", versions__vllm=vllm, model__tensor_parallel_size=ranks
    )
    queues = 0 if ranks == 1 else (160 + ranks * 240) * MIB
    tier = described.budget.tier_bytes if tier_shared else 0
    assert shared_memory_bytes(described) == queues + tier


def test_a_tier_before_files_is_a_file_in_shared_memory_on_every_build() -> None:
    fs = load_config(CONFIG / "config.yaml", CONFIG).cell("Qwen3-0.6B/fs-offload/0")
    described = specification(fs)
    assert (
        shared_memory_bytes(described)
        == 400 * MIB + described.budget.staging_bytes
        > 400 * MIB
    )


def test_memory_is_tier_and_on_a_cpu_the_devices_cache() -> None:
    described = specification(NATIVE)
    per_token = described.model.kv_bytes_per_token
    assert memory_bytes(described) == (160_000 + 17_920) * per_token
    assert memory_bytes(specification(NATIVE, build="vllm")) == 160_000 * per_token


def test_a_host_with_room_is_accepted(tmp_path: Path) -> None:
    require_room(specification(), tmp_path / "store", cpus=2)


def test_a_host_without_room_is_refused_with_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    total = psutil.virtual_memory().total
    too_large = specification(budget__tier_bytes=total + GIB)
    with pytest.raises(PreflightError) as error:
        require_room(too_large, tmp_path, cpus=2)
    assert error.value.code == "no_room_in_memory"
    assert error.value.facts == {
        "needed_bytes": memory_bytes(too_large),
        "total_bytes": total,
    }
    free = {tmp_path: 2**40, preflight.SHARED_MEMORY: 64 * MIB}
    monkeypatch.setattr(
        "shutil.disk_usage", lambda path: Usage(0, 0, free.get(Path(path), 2**40))
    )
    with pytest.raises(PreflightError) as error:
        require_room(specification(), tmp_path, cpus=2)
    assert error.value.code == "no_room_in_shared_memory"
    assert error.value.facts == {"needed_bytes": 400 * MIB, "free_bytes": 64 * MIB}
    free[tmp_path] = 10 * MIB
    with pytest.raises(DiskFullError) as full:
        require_room(specification(), tmp_path, cpus=2)
    assert (full.value.facts["path"], full.value.facts["free_bytes"]) == (
        tmp_path,
        10 * MIB,
    )
    assert full.value.facts["needed_bytes"] == disk_bytes(
        specification().workload, cpus=2
    )


def test_a_secrets_value_in_the_specification_is_refused_by_its_name() -> None:
    redactor = Redactor({"HF_TOKEN": "hf_abc"})
    require_no_secret(specification(), redactor)
    with pytest.raises(PreflightError, match="HF_TOKEN") as error:
        require_no_secret(specification(argv=["--api-key=hf_abc"]), redactor)
    assert (error.value.code, error.value.facts["names"]) == (
        "secret_in_clear",
        ["HF_TOKEN"],
    )
    assert "hf_abc" not in str(error.value)


def test_a_checkpoint_on_disk_has_to_be_the_catalogues_model(tmp_path: Path) -> None:
    model = specification().model
    in_folder = model.model_copy(update={"folder": str(tmp_path)})
    require_checkpoint(model)
    with pytest.raises(PreflightError) as error:
        require_checkpoint(in_folder)
    assert error.value.code == "no_checkpoint"
    (tmp_path / "config.json").write_text(json.dumps(model_config(model.geometry)))
    require_checkpoint(in_folder)
    (tmp_path / "config.json").write_text(
        json.dumps(model_config(model.geometry) | {"num_hidden_layers": 99})
    )
    with pytest.raises(PreflightError) as error:
        require_checkpoint(in_folder)
    assert error.value.code == "other_geometry"
