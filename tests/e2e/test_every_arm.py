"""Every arm with something beside or behind vLLM, for real and briefly: does each do what it is there for?"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import psutil
import pytest
import yaml
from tests.support.paths import REPOSITORY

from kveval.engines.local.sidecars import find_program
from kveval.engines.servers.program import SidecarError
from kveval.pcp.installation import RecordingError, require_pcp

ENVIRONMENT = REPOSITORY / ".server-venv"
MODEL = "Qwen3-0.6B"
# 32,000 tokens, less than the working set of 40,000: what stands behind the CPU tier has something to do.
BLOCKS = 2000
CELLS = {
    "lmcache-local": BLOCKS,
    "lmcache-redis": BLOCKS,
    "lmcache-valkey": BLOCKS,
    "fs-offload": 0,
    "cpu+fs-offload": BLOCKS,
    # Either part as large as the others' tier.
    "hybrid": 2 * BLOCKS,
}


def missing() -> str | None:
    if not (ENVIRONMENT / "bin" / "guidellm").exists():
        return "no server environment: bash scripts/setup.sh server"
    try:
        require_pcp()
        for program in ("redis-server", "valkey-server", "lmcache"):
            find_program(program, ENVIRONMENT)
    except (RecordingError, SidecarError) as error:
        return str(error)
    return None


pytestmark = [pytest.mark.e2e, pytest.mark.skipif(missing() is not None, reason=missing() or "")]


def shared_memory() -> set[str]:
    """Segments of the tiers; those of vLLM's queues have names that others' have, too."""
    names = (path.name for path in Path("/dev/shm").iterdir())
    return {name for name in names if name.startswith(("lmcache_", "vllm_offload_"))}


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> dict[str, dict]:
    """Run one short level of every arm; return run.json by scenario."""
    folder = tmp_path_factory.mktemp("arms") / "repository"
    folder.mkdir()
    for part in ("config", "rules", "scripts", "profiles", "envs"):
        shutil.copytree(REPOSITORY / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy2(REPOSITORY / "Snakefile", folder)
    (folder / ".server-venv").symlink_to(ENVIRONMENT)
    campaign = yaml.safe_load((folder / "config" / "campaigns" / "laptop-all-arms.yaml").read_text())
    campaign |= {"name": "arms", "results": "results/campaigns/arms", "runs": 1}
    campaign["workloads"]["laptop-peak"] |= {"levels": [4], "seconds": 14, "warmup_s": 2}
    campaign.pop("comparison")
    campaign["matrix"] = [
        {"models": [MODEL], "scenarios": [name], "cpu_blocks": [blocks]} for name, blocks in CELLS.items()
    ]
    (folder / "config" / "campaigns" / "arms.yaml").write_text(yaml.safe_dump(campaign))
    before = shared_memory()
    pointers = [
        f"results/campaigns/arms/{MODEL}/{name}/{blocks}/run-1/measurement.json" for name, blocks in CELLS.items()
    ]
    done = subprocess.run(
        # Again at once where vLLM dies of a request that GuideLLM gave up, see docs/arms.md.
        ["snakemake", "--cores", "2", *pointers, "--retries", "2", "--configfile", "config/campaigns/arms.yaml"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1500,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    assert shared_memory() <= before
    runs = [json.loads((folder / pointer).read_text())["path"] for pointer in pointers]
    return {name: json.loads((folder / path / "run.json").read_text()) for name, path in zip(CELLS, runs, strict=True)}


def moved(run, counter):
    return run["levels"][0]["counters"].get(counter, {}).get("delta", 0.0)


def test_every_arm_proves_that_it_was_active(measured):
    for name, run in measured.items():
        assert run["exercised"]["exercised"], f"{name}: {run['exercised']}"
        assert moved(run, "vllm:external_prefix_cache_hits_total") > 1000, name


def test_every_arm_got_the_bytes_it_was_to_have(measured):
    per_token = measured["lmcache-local"]["specification"]["model"]["kv_bytes_per_token"]
    for name, blocks in CELLS.items():
        budget = measured[name]["budget"]
        wanted = blocks * 16 * per_token or budget["staging_bytes"]
        assert budget["requested_bytes"] == blocks * 16 * per_token
        assert abs(budget["reported_bytes"] - wanted) <= 0.02 * wanted, name
        assert budget["reported_tokens"] == budget["reported_bytes"] // per_token


def test_lmcaches_own_count_agrees_with_vllms(measured):
    for name in ("lmcache-local", "lmcache-redis", "lmcache-valkey"):
        run = measured[name]
        looked_up = moved(run, "lmcache_mp_lookup_hit_tokens_total")
        assert looked_up > 0
        # vLLM loads only what its own cache has not: never more than was found.
        assert moved(run, "vllm:external_prefix_cache_hits_total") <= looked_up


@pytest.mark.parametrize("store", ["redis", "valkey"])
def test_the_store_holds_what_lmcache_wrote(measured, store):
    run = measured[f"lmcache-{store}"]
    keys = run["levels"][0]["counters"][f"{store}_keys"]
    assert keys["before"] == 0, "the caches were not empty when the level began"
    assert keys["after"] > 0
    assert moved(run, f"{store}_received_bytes_total") > keys["after"] * 1024
    assert [sidecar["name"] for sidecar in run["companions"]] == [store, "lmcache"]
    assert all(sidecar["version"] for sidecar in run["companions"])


def test_files_are_written_and_read(measured):
    for name in ("fs-offload", "cpu+fs-offload"):
        run = measured[name]
        assert moved(run, "file_tier_bytes") > 0, name
    assert moved(measured["fs-offload"], "vllm:kv_offload_tiering_read_bytes_total") > 0


def test_both_tiers_of_one_budget_work(measured):
    run = measured["hybrid"]
    assert run["budget"]["split"] == dict.fromkeys(("native_bytes", "lmcache_bytes"), run["budget"]["tier_bytes"] // 2)
    # Each stores everything; a load comes from the first that has it.
    assert moved(run, "vllm:kv_offload_store_bytes_total") > 0
    assert moved(run, "lmcache_mp_lookup_hit_tokens_total") > 0


def test_nothing_is_left_running(measured):
    names = {"redis-server", "valkey-server"}
    ours = [process for process in psutil.process_iter(["name", "cmdline"]) if process.info["name"] in names]
    assert [process for process in ours if "--port" in (process.info["cmdline"] or [])] == []
    assert not any("lmcache" in (process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"]))
