"""The arguments of every arm, by vLLM version and platform."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kveval.campaign import sizing
from kveval.campaign.catalogue import Scenario
from kveval.campaign.release import CacheEvents
from kveval.campaign.verbatim import SIZES, size_numbers
from kveval.stacks.arms import ArmError, Platform, canonical_json
from kveval.stacks.vllm import VLLM

MOVED = ({"name": "vllm:external_prefix_cache_hits_total", "unit": "tokens"},)
GPU = Platform(
    server_version="0.32.0",
    lmcache="0.5.6",
    on_cpu=False,
    engine="local",
    block_size=16,
    served_name="Qwen/Qwen3-14B",
)
CPU = replace(GPU, on_cpu=True, block_size=32)
EVENTS = CacheEvents(
    endpoint="tcp://*:{events_port}",
    topic="kv@$(POD_IP)@{model}",
    args=("--hash", "cbor"),
)
CLUSTER = replace(GPU, engine="kubernetes", events=EVENTS, lmcache_form="process")


class Shape:
    """Qwen3-14B: 160 KiB per token."""

    layers, kv_heads, head_dim = 40, 8, 128
    sliding = recurrent = latent = None


def budget(shape, cpu_blocks, block_size=16, tensor_parallel_size=1, staging_bytes=0):
    return sizing.CacheSizes.from_blocks(
        sizing.kv_bytes_per_token(shape, "auto", tensor_parallel_size),
        cpu_blocks,
        block_size,
        tensor_parallel_size,
        staging_bytes=staging_bytes,
        device_blocks=None,
        device_tokens=None,
    )


SIZE = budget(Shape, 10_000, tensor_parallel_size=2)
STAGED = budget(Shape, 0, staging_bytes=1)
BYTES = 26_214_400_000


def scenario(arm, **changed):
    fields = {
        "title": "an arm",
        "arm": arm,
        "cpu_tier": arm in ("native", "lmcache", "hybrid"),
        **changed,
    }
    if arm != "none":
        fields.setdefault("exercised", MOVED)
    return Scenario.model_validate(fields)


def transfer(arguments):
    text = arguments.argv[arguments.argv.index("--kv-transfer-config") + 1]
    return json.loads(text.replace("{lmcache_port}", "5555"))


def extra(arguments):
    return transfer(arguments)["kv_connector_extra_config"]


def server_env(arm):
    return arm.sidecars[-1].env


def test_no_offload_changes_nothing():
    arm = VLLM.arm_arguments(scenario("none"), GPU, budget(Shape, 0))
    assert (arm.argv, arm.env, arm.sidecars) == ((), {}, ())


@pytest.mark.parametrize("version", ["0.11.0", "0.11.2", "0.12.0", "0.13.4"])
def test_native_counts_server_blocks_up_to_0_13(version):
    arm = VLLM.arm_arguments(
        scenario("native"), replace(GPU, server_version=version), SIZE
    )
    assert transfer(arm)["kv_connector"] == "OffloadingConnector"
    assert transfer(arm)["kv_role"] == "kv_both"
    assert extra(arm) == {"num_cpu_blocks": 10_000}


def test_native_blocks_are_the_servers_own():
    size = budget(Shape, 10_000, block_size=64)
    arm = VLLM.arm_arguments(
        scenario("native"), replace(GPU, server_version="0.11.2", block_size=64), size
    )
    assert extra(arm) == {"num_cpu_blocks": 2_500}


@pytest.mark.parametrize("version", ["0.14.1", "0.22.1", "0.33.0", "0.32.0+cpu"])
def test_native_counts_bytes_over_all_ranks_from_0_14_1(version):
    assert extra(
        VLLM.arm_arguments(
            scenario("native"), replace(GPU, server_version=version), SIZE
        )
    ) == {"cpu_bytes_to_use": BYTES}


def test_native_on_a_cpu_brings_its_own_spec():
    size = budget(Shape, 10_000, block_size=32)
    assert extra(VLLM.arm_arguments(scenario("native"), CPU, size)) == {
        "cpu_bytes_to_use": BYTES,
        "spec_name": "RowCopyOffloadingSpec",
        "spec_module_path": "kveval_host_offload",
    }


def test_native_by_flag_is_in_gib():
    arm = VLLM.arm_arguments(scenario("native", form="size-flag"), GPU, SIZE)
    assert arm.argv == (
        "--kv-offloading-backend",
        "native",
        "--kv-offloading-size",
        repr(BYTES / 2**30),
    )


def test_a_scenario_can_configure_its_connector():
    arm = VLLM.arm_arguments(
        scenario("native", connector_config={"eviction_policy": "arc"}), GPU, SIZE
    )
    assert extra(arm) == {"cpu_bytes_to_use": BYTES, "eviction_policy": "arc"}


def test_lmcache_in_process_is_sized_per_rank():
    arm = VLLM.arm_arguments(
        scenario("lmcache"), replace(GPU, server_version="0.22.1"), SIZE
    )
    assert transfer(arm) == {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}
    assert float(arm.env["LMCACHE_MAX_LOCAL_CPU_SIZE"]) * 2**30 * 2 == BYTES
    assert arm.env["LMCACHE_CHUNK_SIZE"] == "256"
    assert "LMCACHE_REMOTE_URL" not in arm.env
    assert arm.sidecars == ()


@pytest.mark.parametrize("store", ["redis", "valkey"])
def test_lmcache_in_process_reaches_its_store(store):
    arm = VLLM.arm_arguments(
        scenario("lmcache", store=store), replace(GPU, server_version="0.11.2"), SIZE
    )
    assert (
        arm.env["LMCACHE_REMOTE_URL"] == f"{store}://{{{store}_host}}:{{{store}_port}}"
    )
    assert arm.env["LMCACHE_REMOTE_SERDE"] == "naive"
    (sidecar,) = arm.sidecars
    assert sidecar.name == store
    assert sidecar.argv[0] == f"{store}-server"
    assert f"{{{store}_port}}" in sidecar.argv


@pytest.mark.parametrize("platform", [CPU, replace(GPU, server_version="0.23.0"), GPU])
def test_lmcache_as_a_server_is_sized_over_all_ranks(platform):
    arm = VLLM.arm_arguments(scenario("lmcache"), platform, SIZE)
    assert transfer(arm)["kv_connector"] == "LMCacheMPConnector"
    assert (
        extra(arm).items()
        >= {"lmcache.mp.host": "tcp://{lmcache_host}", "lmcache.mp.port": 5555}.items()
    )
    # On a CPU the client would choose a mode that the server does not offer.
    assert extra(arm).get("lmcache.mp.mp_transfer_mode") == (
        "lmcache_driven" if platform.on_cpu else None
    )
    assert (
        arm.env["LMCACHE_TRACK_USAGE"]
        == server_env(arm)["LMCACHE_TRACK_USAGE"]
        == "false"
    )
    (server,) = arm.sidecars
    assert server.argv[:2] == ("lmcache", "server")
    assert float(server.argv[server.argv.index("--l1-size-gb") + 1]) * 2**30 == BYTES
    assert server.argv[server.argv.index("--chunk-size") + 1] == "256"
    assert "--l2-adapter" not in server.argv
    assert server.env["PYTHONHASHSEED"] == "0"


@pytest.mark.parametrize("store", ["redis", "valkey"])
def test_lmcache_as_a_server_starts_after_its_store_and_speaks_resp(store):
    arm = VLLM.arm_arguments(scenario("lmcache", store=store), GPU, SIZE)
    assert [sidecar.name for sidecar in arm.sidecars] == [store, "lmcache"]
    argv = arm.sidecars[1].argv
    adapter = argv[argv.index("--l2-adapter") + 1].replace(f"{{{store}_port}}", "6379")
    assert json.loads(adapter) == {
        "type": "resp",
        "host": f"{{{store}_host}}",
        "port": 6379,
    }


@pytest.mark.parametrize(
    ("platform", "spec"),
    [(GPU, "TieringOffloadingSpec"), (CPU, "RowCopyTieringOffloadingSpec")],
)
def test_files_stand_behind_the_cpu_tier(platform, spec):
    size = budget(Shape, 10_000, block_size=32)
    arm = VLLM.arm_arguments(scenario("files", cpu_tier=True), platform, size)
    assert transfer(arm)["kv_connector"] == "OffloadingConnector"
    assert extra(arm)["spec_name"] == spec
    assert extra(arm)["cpu_bytes_to_use"] == BYTES
    assert extra(arm)["secondary_tiers"] == [{"type": "fs", "root_dir": "{fs_dir}"}]


def test_files_without_a_cpu_tier_pass_through_a_staging_buffer():
    arm = VLLM.arm_arguments(
        scenario("files"), GPU, budget(Shape, 0, staging_bytes=5 * 2**20)
    )
    assert extra(arm)["cpu_bytes_to_use"] == 5 * 2**20


@pytest.mark.parametrize("store", ["redis", "valkey"])
def test_an_index_publishes_cache_events_as_the_release_wants_them(store):
    arm = VLLM.arm_arguments(
        scenario("llm-d-index", store=store), CLUSTER, budget(Shape, 0)
    )
    events = json.loads(arm.argv[arm.argv.index("--kv-events-config") + 1])
    assert events == {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": "tcp://*:{events_port}",
        "topic": "kv@$(POD_IP)@Qwen/Qwen3-14B",
    }
    assert arm.argv[-2:] == ("--hash", "cbor")
    assert "--kv-transfer-config" not in arm.argv
    assert [sidecar.name for sidecar in arm.sidecars] == [store]


def test_an_index_can_stand_before_a_native_tier():
    arm = VLLM.arm_arguments(
        scenario("llm-d-index", store="redis", cpu_tier=True), CLUSTER, SIZE
    )
    assert extra(arm) == {"cpu_bytes_to_use": BYTES}
    assert "--kv-events-config" in arm.argv


@pytest.mark.parametrize("share", [None, 0.25, 0.9])
@pytest.mark.parametrize("version", ["0.11.2", "0.23.0"])
def test_two_tiers_share_one_budget(version, share):
    platform = replace(CLUSTER, server_version=version)
    arm = VLLM.arm_arguments(scenario("hybrid", native_share=share), platform, SIZE)
    assert transfer(arm)["kv_connector"] == "MultiConnector"
    native, lmcache = extra(arm)["connectors"]
    assert (native["kv_connector"], lmcache["kv_connector"]) == (
        "OffloadingConnector",
        "LMCacheConnectorV1",
    )
    own = native["kv_connector_extra_config"]
    own_bytes = own.get(
        "cpu_bytes_to_use",
        own.get("num_cpu_blocks", 0) * SIZE.tier_bytes // SIZE.tier_blocks,
    )
    others = 2 * float(arm.env["LMCACHE_MAX_LOCAL_CPU_SIZE"]) * 2**30
    assert own_bytes + others == SIZE.tier_bytes
    assert own_bytes == pytest.approx(
        (share or 0.5) * SIZE.tier_bytes, abs=SIZE.tier_bytes / SIZE.tier_blocks
    )


def test_two_tiers_on_a_cpu_keep_lmcache_in_a_server_of_its_own():
    platform = replace(CLUSTER, on_cpu=True, block_size=32, server_version="0.32.0")
    arm = VLLM.arm_arguments(
        scenario("hybrid", store="redis"),
        platform,
        budget(Shape, 10_000, block_size=32),
    )
    # LMCache moves the device's cache when it is registered: a native tier before it would copy stale memory.
    lmcache, native = extra(arm)["connectors"]
    assert native["kv_connector_extra_config"]["spec_name"] == "RowCopyOffloadingSpec"
    assert lmcache["kv_connector_extra_config"]["lmcache.mp.port"] == 5555
    assert [sidecar.name for sidecar in arm.sidecars] == ["redis", "lmcache"]


def test_arguments_that_gave_wrong_answers_are_told_apart():
    platform = replace(CLUSTER, on_cpu=True, block_size=32, server_version="0.32.0")
    arm = VLLM.arm_arguments(
        scenario("hybrid"), platform, budget(Shape, 10_000, block_size=32)
    )
    config = json.loads(arm.argv[1].replace("{lmcache_port}", "5555"))
    parts = config["kv_connector_extra_config"]["connectors"]
    before = (
        "--kv-transfer-config",
        json.dumps(config | {"kv_connector_extra_config": {"connectors": parts[::-1]}}),
    )
    unfilled = tuple(argument.replace("5555", "{lmcache_port}") for argument in before)
    for argv in (before, unfilled):
        assert "wrong answers" in VLLM.wrong_answers(argv, on_cpu=True)
        assert VLLM.wrong_answers(argv, on_cpu=False) == ""
    right = [
        arm.argv,
        (),
        ("--kv-transfer-config",),
        ("--kv-transfer-config", "no JSON"),
        ("--kv-transfer-config", '{"kv_connector":"OffloadingConnector"}'),
    ]
    assert [VLLM.wrong_answers(argv, on_cpu=True) for argv in right] == [""] * len(
        right
    )


def test_a_store_on_a_cluster_takes_strangers_and_stays_within_its_memory():
    argv = (
        VLLM.arm_arguments(scenario("lmcache", store="valkey"), CLUSTER, SIZE)
        .sidecars[0]
        .argv
    )
    options = dict(zip(argv[1::2], argv[2::2], strict=True))
    assert options["--bind"] == "0.0.0.0"
    assert options["--protected-mode"] == "no"
    assert int(options["--maxmemory"]) == 2 * SIZE.tier_bytes


@pytest.mark.parametrize(
    ("fields", "platform", "size", "code"),
    [
        (
            {"arm": "native"},
            replace(GPU, server_version="0.10.2"),
            SIZE,
            "native_too_old",
        ),
        (
            {"arm": "native"},
            replace(GPU, server_version="0.14.0"),
            SIZE,
            "native_keys_changing",
        ),
        (
            {"arm": "native"},
            replace(CPU, server_version="0.23.0"),
            SIZE,
            "native_on_cpu_too_old",
        ),
        ({"arm": "native"}, CPU, budget(Shape, 1, block_size=32), "less_than_a_block"),
        ({"arm": "native", "form": "size-flag"}, CPU, SIZE, "size_flag_on_cpu"),
        (
            {"arm": "native", "form": "size-flag"},
            replace(GPU, server_version="0.11.2"),
            SIZE,
            "size_flag_sets_none",
        ),
        (
            {"arm": "native", "connector_config": {"cpu_bytes_to_use": 5}},
            GPU,
            SIZE,
            "config_computed",
        ),
        ({"arm": "lmcache"}, replace(GPU, lmcache=None), SIZE, "lmcache_undeclared"),
        ({"arm": "lmcache"}, replace(GPU, block_size=48), SIZE, "chunks_uneven"),
        ({"arm": "lmcache"}, GPU, budget(Shape, 15), "less_than_a_chunk"),
        (
            {"arm": "lmcache"},
            replace(CPU, server_version="0.22.1"),
            SIZE,
            "lmcache_on_cpu_too_old",
        ),
        (
            {"arm": "files"},
            replace(GPU, server_version="0.22.0"),
            STAGED,
            "files_too_old",
        ),
        (
            {"arm": "files"},
            replace(CPU, server_version="0.31.0"),
            STAGED,
            "files_on_cpu_too_old",
        ),
        (
            {"arm": "files", "cpu_tier": True},
            CPU,
            budget(Shape, 1, block_size=32),
            "less_than_a_block",
        ),
        (
            {"arm": "files"},
            CPU,
            budget(Shape, 0),
            "less_than_a_block",
        ),
        (
            {"arm": "files", "connector_config": {"spec_name": "mine"}},
            GPU,
            STAGED,
            "config_computed",
        ),
        ({"arm": "llm-d-index", "store": "redis"}, GPU, SIZE, "index_on_cluster_alone"),
        (
            {"arm": "llm-d-index", "store": "redis"},
            replace(CLUSTER, events=None),
            SIZE,
            "release_undeclared",
        ),
        ({"arm": "hybrid"}, CLUSTER, budget(Shape, 1), "too_few_to_share"),
        (
            {"arm": "hybrid", "connector_config": {"a": 1}},
            CLUSTER,
            SIZE,
            "config_shared",
        ),
    ],
)
def test_what_cannot_run_is_refused(fields, platform, size, code):
    with pytest.raises(ArmError) as error:
        VLLM.arm_arguments(scenario(**fields), platform, size)
    assert error.value.code == code
    if code == "config_computed":
        assert error.value.facts["keys"] == [*fields["connector_config"]]


def test_arms_of_one_budget_get_equal_bytes():
    """The published evaluation called 4, 9, 29 and 10 GB per rank all "10,000 blocks"."""
    old, new = replace(GPU, server_version="0.11.2"), GPU
    native_bytes = extra(VLLM.arm_arguments(scenario("native"), new, SIZE))[
        "cpu_bytes_to_use"
    ]
    native_blocks = extra(VLLM.arm_arguments(scenario("native"), old, SIZE))[
        "num_cpu_blocks"
    ]
    in_process = VLLM.arm_arguments(scenario("lmcache"), old, SIZE).env[
        "LMCACHE_MAX_LOCAL_CPU_SIZE"
    ]
    server = VLLM.arm_arguments(scenario("lmcache"), new, SIZE).sidecars[0].argv
    assert native_blocks * 16 * 160 * 2**10 == native_bytes
    assert float(in_process) * 2 * 2**30 == native_bytes
    assert float(server[server.index("--l1-size-gb") + 1]) * 2**30 == native_bytes


@given(
    st.dictionaries(
        st.text(max_size=8), st.integers() | st.booleans() | st.text(max_size=8)
    )
)
def test_arguments_json_does_not_depend_on_the_order_of_keys(content):
    backwards = dict(reversed(content.items()))
    assert canonical_json(content) == canonical_json(backwards)
    assert json.loads(canonical_json(content)) == content


HOST_WORKER = {
    "kv_connector": "OffloadingConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {
        "cpu_bytes_to_use": "{cpu_bytes}",
        "spec_name": "RowCopyOffloadingSpec",
        "spec_module_path": "kveval_host_offload",
    },
}


def verbatim(config, **changed):
    fields = {"cpu_tier": True, "kv_transfer_config": config, **changed}
    return scenario("verbatim", **fields)


def filled(given, sizes, ranks=1):
    return given.with_sizes(size_numbers(sizes, ranks))


def test_a_connector_given_as_it_is_starts_the_server_that_the_arm_of_its_kind_does():
    sizes = budget(Shape, 10_000, 32)
    own = VLLM.arm_arguments(filled(verbatim(HOST_WORKER), sizes), CPU, sizes)
    assert own == VLLM.arm_arguments(scenario("native"), CPU, sizes)
    assert VLLM.modules(own.argv) == ["kveval_host_offload"]


@given(
    blocks=st.integers(2, 10**6),
    block_size=st.sampled_from([16, 32, 64]),
    ranks=st.sampled_from([1, 2, 4, 8]),
)
def test_every_placeholder_is_the_tier_that_every_other_arm_gets(
    blocks, block_size, ranks
):
    sizes = budget(Shape, blocks, block_size, ranks)
    extra = {name: f"{{{name}}}" for name in SIZES} | {"other": [1, None]}
    config = {**HOST_WORKER, "kv_connector_extra_config": extra}
    given = verbatim(config, env={"POOL": "{cpu_gib_per_rank}G"}, args=["--x={other}"])
    own = filled(given, sizes, ranks)
    sized = own.kv_transfer_config["kv_connector_extra_config"]
    assert sized["cpu_bytes"] == sizes.tier_bytes
    assert sized["cpu_bytes_per_rank"] == sizes.rank_bytes
    assert sized["cpu_gib"] * sizing.GIB == sizes.tier_bytes
    assert sized["cpu_gib_per_rank"] == sizes.rank_gib
    assert (sized["cpu_blocks"], sized["server_blocks"]) == (blocks, sizes.tier_blocks)
    assert sized["other"] == [1, None]
    assert own.env == {"POOL": f"{sizes.rank_gib}G"}
    assert own.args == ("--x={other}",)
    assert given.kv_transfer_config == config


def test_a_tier_of_files_gets_a_folder_on_this_host_alone():
    tiers = [{"type": "Mine", "module_path": "my_tier.fs", "root_dir": "{fs_dir}"}]
    extra = {
        **HOST_WORKER["kv_connector_extra_config"],
        "secondary_tiers": tiers,
        "cache_policy_module_path": "my_tier.policy",
    }
    own = verbatim({**HOST_WORKER, "kv_connector_extra_config": extra})
    assert own.keeps_files
    arm = VLLM.arm_arguments(filled(own, SIZE), GPU, SIZE)
    assert transfer(arm)["kv_connector_extra_config"]["secondary_tiers"] == tiers
    assert sorted(VLLM.modules(arm.argv)) == [
        "kveval_host_offload",
        "my_tier.fs",
        "my_tier.policy",
    ]
    with pytest.raises(ArmError) as error:
        VLLM.arm_arguments(own, CLUSTER, SIZE)
    assert error.value.code == "verbatim_files_on_cluster"


@pytest.mark.parametrize(
    ("config", "changed", "code"),
    [
        ({"kv_role": "kv_both"}, {}, "no_connector_named"),
        ({"kv_connector": "Mine"}, {}, "transfer_role"),
        ({"kv_connector": "Mine", "kv_role": "both"}, {}, "transfer_role"),
        ({**HOST_WORKER, "cpu_bytes_to_use": 1}, {}, "transfer_key"),
        ({**HOST_WORKER, "kv_connector_extra_config": "x"}, {}, "transfer_extra"),
        ({**HOST_WORKER, "kv_port": float("nan")}, {}, "no_json"),
        ({**HOST_WORKER, "kv_connector_extra_config": {1: "{cpu_gib}"}}, {}, "no_json"),
        (
            {**HOST_WORKER, "kv_connector_extra_config": {"size": "{cpu_gb}"}},
            {},
            "unknown_placeholder",
        ),
        ({**HOST_WORKER, "kv_connector_extra_config": {}}, {}, "unsized"),
        (HOST_WORKER, {"cpu_tier": False}, "size_of_no_tier"),
        (HOST_WORKER, {"connector_config": {"a": 1}}, "config_beside_verbatim"),
        (HOST_WORKER, {"arm": "native"}, "transfer_config_alone"),
        (None, {}, "transfer_config_alone"),
        (HOST_WORKER, {"exercised": ()}, "exercised_empty"),
    ],
)
def test_what_is_no_connector_is_refused_by_name(config, changed, code):
    with pytest.raises(ValidationError) as error:
        Scenario.model_validate(
            {
                "title": "an arm",
                "arm": "verbatim",
                "cpu_tier": True,
                "kv_transfer_config": config,
                "exercised": MOVED,
                **changed,
            }
        )
    (mistake,) = error.value.errors()
    assert mistake["ctx"]["error"].code == code


@pytest.mark.parametrize("argv", [(), ("--kv-transfer-config", '{"a": {port}}')])
def test_arguments_without_a_connector_or_with_open_ports_name_no_module(argv):
    assert VLLM.modules(argv) == []
