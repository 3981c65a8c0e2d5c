"""Every arm with something beside or behind vLLM, for real and briefly: does each do what it is there for?"""

import pytest
import yaml
from tests.support.known_crash import KNOWN, NAME
from tests.support.paths import REPOSITORY
from tests.support.tree import Tree, served

from kveval.engines.local.sidecars import find_program
from kveval.measure.status import absences
from kveval.pcp.installation import RecordingError, require_pcp
from kveval.stacks.sidecar import SidecarError

ENVIRONMENT = REPOSITORY / ".server-venv"
MODEL = "Qwen3-0.6B"
# A quarter of the campaign's lengths, which a slow processor prefills in seconds: 8,000 tokens, less than the working
# set of 10,240, so that what stands behind the CPU tier has something to do.
BLOCKS = 500
SERVER = {"device_blocks": 320, "max_model_len": 2048}
# Requests at given times: few or none are in flight at the end, when the generator cancels them, on a machine that keeps
# up; each stream always has one. vLLM with LMCache's server often crashes on a cancelled request, and the attempt after
# that starts a server, which costs more than all the rest.
LOAD = {
    "profile": "constant",
    "prefix_tokens": 1024,
    "output_tokens": 8,
    "warmup_s": 2,
}
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


pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(missing() is not None, reason=missing() or ""),
]


# Each of ten prefixes is in a cache before the level; the device holds less than half of them, and the tier seven: by
# as many requests, some of each have come again.
REQUESTS = 25
# Requests a minute, and how long: as many requests more slowly for arms with too few on a slow machine.
PACES = ((120, 16), (60, 42))


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Tree:
    """A copy of the workflow with a short campaign of all these arms; nothing has run."""
    campaign = yaml.safe_load(
        (REPOSITORY / "config" / "campaigns" / "laptop-all-arms.yaml").read_text()
    )
    campaign |= {"name": "arms", "results": "results/campaigns/arms", "runs": 1}
    campaign["server"] |= SERVER
    campaign.pop("comparison")
    campaign["matrix"] = [
        {"models": [MODEL], "scenarios": [name], "cpu_blocks": [blocks]}
        for name, blocks in CELLS.items()
    ]
    return Tree(
        tmp_path_factory.mktemp("arms") / "repository",
        campaign,
        environment=ENVIRONMENT,
    )


@pytest.fixture(scope="module")
def measured(tree) -> dict[str, dict]:
    """Run one level of every arm; return run.json by scenario.

    Arms with too few requests are measured once more, more slowly. So are those of which a known defect of vLLM
    ended all attempts.
    """
    runs: dict[str, dict] = {}
    for level, seconds in PACES:
        wanting = [
            name for name in CELLS if name not in runs or served(runs[name]) < REQUESTS
        ]
        if wanting:
            runs |= run_arms(tree, wanting, level, seconds)
    assert runs.keys() == CELLS.keys(), (
        f"every attempt at the others ended with {KNOWN[NAME].link}"
    )
    few = {name: served(run) for name, run in runs.items() if served(run) < REQUESTS}
    assert not few, f"requests at {PACES[-1][0]} a minute: this machine is too busy"
    return runs


def run_arms(tree: Tree, names: list[str], level: int, seconds: int) -> dict[str, dict]:
    """Measure these arms at a level of so many seconds; return run.json of those that a known defect did not end."""
    tree.campaign["workloads"]["laptop-peak"] |= LOAD | {
        "levels": [level],
        "seconds": seconds,
    }
    tree.configure(tree.campaign)
    pointers = [
        f"results/campaigns/arms/{MODEL}/{name}/{CELLS[name]}/run-1/measurement.json"
        for name in names
    ]
    code, output = tree.run(*pointers, limit_s=900 * len(names))
    failed = absences(
        [tree.folder / path for path in pointers],
        tree.results,
        tree.folder / "logs" / "arms",
    )
    assert (code == 0) == (not failed), output[-6000:]
    assert all(KNOWN[NAME].link in absence.reason for absence in failed.values()), (
        output[-6000:]
    )
    measured = [name for name in names if name in tree.measured()]
    return {name: tree.run_json(f"{MODEL}/{name}/{CELLS[name]}") for name in measured}


def moved(run, counter):
    return run["levels"][0]["counters"].get(counter, {}).get("delta", 0.0)


def test_every_arm_proves_that_it_was_active(measured):
    for name, run in measured.items():
        assert run["exercised"]["exercised"], f"{name}: {run['exercised']}"
        assert moved(run, "vllm:external_prefix_cache_hits_total") > 1000, name


def test_every_arm_gives_the_answers_of_a_cold_server(measured):
    for name, run in measured.items():
        answers = run["answers"]
        for source in (answers, answers.get("device")):
            assert source["changed"] == 0, f"{name}: {answers}"
            assert not source["unchecked"], f"{name}: {answers}"


def test_every_arm_got_the_bytes_it_was_to_have(measured):
    per_token = measured["lmcache-local"]["specification"]["model"][
        "kv_bytes_per_token"
    ]
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
    level = run["levels"][0]
    keys, received = (
        level["counters"][f"{store}_{name}"]
        for name in ("keys", "received_bytes_total")
    )
    # Every prefix was sent once before the counters were read.
    assert level["primed"]["prefixes"] == 10
    assert keys["after"] >= keys["before"] > 0
    assert received["after"] > keys["after"] * 1024
    assert [sidecar["name"] for sidecar in run["companions"]] == [store, "lmcache"]
    assert all(sidecar["version"] for sidecar in run["companions"])


def test_files_are_written_and_read(measured):
    for name in ("fs-offload", "cpu+fs-offload"):
        run = measured[name]
        assert moved(run, "file_tier_bytes") > 0, name
    assert moved(measured["fs-offload"], "vllm:kv_offload_tiering_read_bytes_total") > 0


def test_both_tiers_of_one_budget_work(measured):
    run = measured["hybrid"]
    assert run["budget"]["split"] == dict.fromkeys(
        ("native_bytes", "lmcache_bytes"), run["budget"]["tier_bytes"] // 2
    )
    # Each stores everything; a load comes from the first that has it.
    assert moved(run, "vllm:kv_offload_store_bytes_total") > 0
    assert moved(run, "lmcache_mp_num_chunks_loaded_total") > 0


def test_nothing_is_left_running(tree, measured):
    seen = [line for trace in tree.traces for line in trace.seen()]
    for program in ("redis-server", "valkey-server", "lmcache", "vllm.entrypoints"):
        assert any(program in line for line in seen), program
    assert tree.left() == []
