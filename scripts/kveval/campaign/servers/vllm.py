"""vLLM's arguments: what every server gets, and what each kind of arm adds; `vllm_wire` beside it has its names.

How vLLM behaves while it runs is in kveval.engines.servers.vllm.
"""

import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from packaging.version import Version

from kveval.campaign import sizing
from kveval.campaign.arms import (
    HASH_SEED,
    LMCACHE_CHUNK_TOKENS,
    LMCACHE_PRIVATE,
    ArmArguments,
    ArmError,
    Platform,
    canonical_json,
    hybrid_budgets,
    lmcache_sidecars,
    store_sidecars,
)
from kveval.campaign.cache_layout import CacheLayout, Retention
from kveval.campaign.campaign_file import ServerConfig
from kveval.campaign.catalogue import Scenario
from kveval.campaign.servers.software import ServerSoftware
from kveval.campaign.servers.vllm_memory import estimate_for, given_flags
from kveval.campaign.servers.vllm_wire import METRICS, release_in_log, startup_facts
from kveval.campaign.sizing import GIB, Budget, CacheSizes
from kveval.campaign.specification import ServedModel, SidecarSpec
from kveval.campaign.types import BLOCK_TOKENS

_HOST_SPEC = {
    "spec_name": "RowCopyOffloadingSpec",
    "spec_module_path": "kveval_host_offload",
}
_TIERING_SPEC = {"spec_name": "TieringOffloadingSpec"}
_HOST_TIERING_SPEC = {
    "spec_name": "RowCopyTieringOffloadingSpec",
    "spec_module_path": "kveval_host_offload",
}
_INDEX_BYTES = 4 * GIB
# From this release on the native tier of a GPU server is one file in /dev/shm, as the tier before files always was
# (vllm/v1/kv_offload/cpu/spec.py); earlier ones pin private memory.
_SHARED_TIER_SINCE = Version("0.27")
# From this release on the connector asks for all layers of a block in one tensor, which not every attention backend
# gives (vllm/v1/worker/kv_connector_model_runner_mixin.py).
_LAYERS_JOINED_SINCE = Version("0.12")
# From this release on windows and states of a prompt are kept at its end alone, and an argument asks for more; earlier
# ones keep all (vllm#52216).
_KEPT_AT_THE_END_SINCE = Version("0.29")
_INTERVAL, _MATCH_UNIT = "--prefix-cache-retention-interval", "--prefix-match-unit"
# vLLM's default on CPUs, and on GPUs below 70 GiB.
_BATCH_TOKENS = 2048


def common_arguments(
    model: ServedModel, server: ServerConfig, engine: str
) -> tuple[str, ...]:
    """Return the server arguments that every arm shares."""
    miniature = server.weights == "miniature"
    folder = _in_a_folder(model, server)
    argv = [
        "--model",
        "{model_dir}" if folder else model.hf_id,
        "--served-model-name",
        model.served_name,
    ]
    if server.weights != "full":
        argv += ["--load-format", "dummy"]
    if miniature or server.on_cpu:
        argv += ["--enforce-eager"]
    argv += ["--dtype", model.dtype, "--block-size", str(server.block_size)]
    if model.kv_cache_dtype != "auto":
        argv += ["--kv-cache-dtype", model.kv_cache_dtype]
    if server.device_blocks is not None:
        blocks = _device_layout(model, server)[0]
        argv += ["--num-gpu-blocks-override", str(blocks)]
    if model.gpu_memory_utilization is not None:
        argv += ["--gpu-memory-utilization", repr(model.gpu_memory_utilization)]
    if not miniature:
        argv += ["--tensor-parallel-size", str(model.tensor_parallel_size)]
    argv += ["--max-model-len", str(model.max_model_len)]
    if server.max_num_seqs is not None:
        argv += ["--max-num-seqs", str(server.max_num_seqs)]
    host = "127.0.0.1" if engine == "local" else "0.0.0.0"
    return (*argv, "--host", host, "--port", "{port}", "--no-enable-log-requests")


def _device_layout(model: ServedModel, server: ServerConfig) -> tuple[int, int]:
    """Return the blocks of the device's pool, of a server with `device_blocks`, and their bytes.

    With layers of several kinds so many that the device holds `device_tokens` in conversations of full length, which is
    what the server reports as its size (get_kv_cache_capacity in vllm/v1/core/kv_cache_utils.py).
    """
    assert server.device_blocks is not None and server.device_tokens is not None
    if not model.geometry.grouped:
        blocks = sizing.server_blocks(server.device_blocks, server.block_size)
        return blocks, server.device_tokens * model.kv_bytes_per_token
    layout = CacheLayout.from_model(
        model,
        server.block_size,
        on_cpu=server.on_cpu,
        retention=_retention(server.args, server.declared_version),
    )
    longest = model.max_model_len
    needed = layout.blocks_in_use(longest, _batch_tokens(server.args))
    blocks = -(-server.device_tokens * needed // longest)
    return blocks, blocks * layout.row_bytes


def _in_a_folder(model: ServedModel, server: ServerConfig) -> bool:
    """Whether this host has the model's files, so that no hub is asked."""
    return server.weights != "full" or model.folder is not None


def common_environment(model: ServedModel, server: ServerConfig) -> dict[str, str]:
    """Return the server environment that every arm shares."""
    env = {
        "PYTHONHASHSEED": HASH_SEED,
        # The endpoint that empties the caches between levels is a development one.
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    if _in_a_folder(model, server):
        env["HF_HUB_OFFLINE"] = "1"
    if server.on_cpu:
        # With a KV connector vLLM would keep one more core from its worker than without: an arm and its baseline would
        # then run on different numbers of cores.
        env["VLLM_CPU_NUM_OF_RESERVED_CPU"] = "1"
    if server.on_cpu and server.device_tokens is not None:
        # Whole GiB only; the override of the number of blocks then takes what it needs of it.
        device_bytes = _device_layout(model, server)[1]
        env["VLLM_CPU_KVCACHE_SPACE"] = str(math.ceil(sizing.gib(device_bytes)))
    return env


def _since(platform: Platform, release: str, what: str, code: str) -> None:
    """Refuse a server that is older than what it is to run. Raises ArmError."""
    if platform.version < Version(release):
        raise ArmError(
            f"{what} needs vLLM {release} or newer, not {platform.server_version}",
            code=code,
        )


def native(scenario: Scenario, platform: Platform, budget: Budget) -> ArmArguments:
    """vLLM's OffloadingConnector: the budget in server blocks up to 0.13, in bytes over all ranks from 0.14.1."""
    _since(platform, "0.11", "native offload", "native_too_old")
    if platform.on_cpu:
        _since(platform, "0.24", "native offload on a CPU", "native_on_cpu_too_old")
    in_bytes = platform.version >= Version("0.14.1")
    if not in_bytes and platform.version >= Version("0.14"):
        message = f"native offload changed its keys around vLLM {platform.server_version}: declare 0.13.x or 0.14.1"
        raise ArmError(f"{message} or newer", code="native_keys_changing")
    if scenario.form == "size-flag":
        return _native_by_flag(scenario, platform, budget)
    size = (
        {"cpu_bytes_to_use": budget.tier_bytes}
        if in_bytes
        else {"num_cpu_blocks": budget.tier_blocks}
    )
    return _connected(
        scenario,
        "OffloadingConnector",
        {**size, **(_HOST_SPEC if platform.on_cpu else {})},
    )


def _native_by_flag(
    scenario: Scenario, platform: Platform, budget: Budget
) -> ArmArguments:
    if platform.on_cpu:
        message = "form size-flag cannot name the spec that offloads on a CPU; use form connector"
        raise ArmError(message, code="size_flag_on_cpu")
    # Older releases read the flag, and set 0 blocks.
    _since(platform, "0.14.1", "form size-flag", "size_flag_sets_none")
    if scenario.connector_config:
        message = "form size-flag has no place for connector_config; use form connector"
        raise ArmError(message, code="size_flag_configured")
    return ArmArguments(
        (
            "--kv-offloading-backend",
            "native",
            "--kv-offloading-size",
            repr(budget.tier_gib),
        )
    )


def lmcache(scenario: Scenario, platform: Platform, budget: Budget) -> ArmArguments:
    """LMCache: inside the server's process on GPUs before vLLM 0.23, as a server of its own otherwise.

    Its CPU tier, GiB, is sized per rank inside the process, and over all ranks as a server.
    """
    if platform.lmcache is None:
        message = (
            "LMCache's release is not declared: set server.lmcache, for instance 0.5.6"
        )
        raise ArmError(message, code="lmcache_undeclared")
    if LMCACHE_CHUNK_TOKENS % platform.block_size:
        message = f"block_size {platform.block_size} does not divide LMCache's chunks of {LMCACHE_CHUNK_TOKENS} tokens"
        raise ArmError(
            f"{message}; valid is 16, 32, 64, 128 or 256",
            code="chunks_uneven",
            block_size=platform.block_size,
        )
    if budget.tokens < LMCACHE_CHUNK_TOKENS:
        least = LMCACHE_CHUNK_TOKENS // BLOCK_TOKENS
        message = f"{budget.cpu_blocks} cpu_blocks are less than one LMCache chunk ({least} cpu_blocks)"
        raise ArmError(message, code="less_than_a_chunk")
    if lmcache_form(platform) == "server":
        return _lmcache_server(scenario, platform, budget)
    if platform.on_cpu:
        _since(
            platform,
            "0.23",
            "LMCache on a CPU, a server of its own,",
            "lmcache_on_cpu_too_old",
        )
    _since(platform, "0.11", "LMCacheConnectorV1", "lmcache_too_old")
    return _lmcache_in_process(scenario, platform, budget)


def lmcache_form(platform: Platform) -> str:
    """Return whether LMCache is inside the server's "process" or a "server" of its own, the only form for a CPU."""
    if platform.version < Version("0.23"):
        return "process"
    return "server" if platform.on_cpu else platform.lmcache_form or "server"


def _lmcache_in_process(
    scenario: Scenario, platform: Platform, budget: Budget
) -> ArmArguments:
    env = {
        **LMCACHE_PRIVATE,
        "LMCACHE_CHUNK_SIZE": str(LMCACHE_CHUNK_TOKENS),
        "LMCACHE_LOCAL_CPU": "True",
        "LMCACHE_MAX_LOCAL_CPU_SIZE": repr(budget.rank_gib),
    }
    if scenario.store is not None:
        env["LMCACHE_REMOTE_URL"] = (
            f"{scenario.store}://{{{scenario.store}_host}}:{{{scenario.store}_port}}"
        )
        env["LMCACHE_REMOTE_SERDE"] = "naive"
    store = store_sidecars(scenario, platform, 2 * budget.tier_bytes)
    return _connected(scenario, "LMCacheConnectorV1", {}, env, store)


def _lmcache_server(
    scenario: Scenario, platform: Platform, budget: Budget
) -> ArmArguments:
    client = {
        "lmcache.mp.host": "tcp://{lmcache_host}",
        "lmcache.mp.port": "{lmcache_port}",
    }
    if platform.on_cpu:
        # Left to itself the client chooses, for a CPU, the mode that the server does not offer, and waits five minutes.
        client["lmcache.mp.mp_transfer_mode"] = "lmcache_driven"
    sidecars = lmcache_sidecars(scenario, platform, budget)
    return _connected(scenario, "LMCacheMPConnector", client, LMCACHE_PRIVATE, sidecars)


def hybrid(scenario: Scenario, platform: Platform, budget: Budget) -> ArmArguments:
    """vLLM's own tier and LMCache at once, through MultiConnector: both store, the first that holds a prefix loads it.

    Together they have the budget of every other arm. On a CPU LMCache comes first, see `wrong_answers`.
    """
    if scenario.connector_config:
        raise ArmError(
            "two connectors cannot share one connector_config; leave it out",
            code="config_shared",
        )
    own, rest = hybrid_budgets(scenario, platform, budget)
    first, second = native(scenario, platform, own), lmcache(scenario, platform, rest)
    # Ports are not text in an argument, which is to be read again.
    texts = (
        re.sub(r"(?<!\")(\{\w+_port\})(?!\")", r'"\1"', part.argv[1])
        for part in (first, second)
    )
    connectors = [json.loads(text) for text in texts]
    if platform.on_cpu:
        connectors.reverse()
    env = {**first.env, **second.env}
    arm = _connected(
        scenario, "MultiConnector", {"connectors": connectors}, env, second.sidecars
    )
    split = {"native_bytes": own.tier_bytes, "lmcache_bytes": rest.tier_bytes}
    return replace(arm, split=split)


def files(scenario: Scenario, platform: Platform, sizes: CacheSizes) -> ArmArguments:
    """vLLM's tiered offload with files as the last tier, behind the CPU tier or behind a staging buffer alone."""
    _since(
        platform,
        "0.22.1",
        "TieringOffloadingSpec, which offloads to files,",
        "files_too_old",
    )
    if platform.on_cpu:
        _since(platform, "0.32", "offload to files on a CPU", "files_on_cpu_too_old")
    size = sizes.tier_bytes if scenario.cpu_tier else sizes.staging_bytes
    if size < 1:
        message = f"two requests of max_model_len, the staging buffer, are less than a block of {platform.block_size} tokens"
        raise ArmError(message, code="less_than_a_block")
    computed = {
        "cpu_bytes_to_use": size,
        "secondary_tiers": [{"type": "fs", "root_dir": "{fs_dir}"}],
        **(_HOST_TIERING_SPEC if platform.on_cpu else _TIERING_SPEC),
    }
    return _connected(scenario, "OffloadingConnector", computed)


def llm_d_index(scenario: Scenario, platform: Platform, budget: Budget) -> ArmArguments:
    """llm-d's KV-block index: the server publishes its cache events, the endpoint picker keeps them in Redis or Valkey.

    With a CPU tier, vLLM's native one stands behind the index.
    """
    if not platform.on_cluster:
        message = "the index lives in llm-d's endpoint picker, which routes between servers on a cluster: it needs engine"
        raise ArmError(
            f"{message} kubernetes, not {platform.engine}",
            code="index_on_cluster_alone",
        )
    _since(platform, "0.11", "the index", "index_too_old")
    if platform.events is None:
        message = "how servers publish their cache events depends on the release: set server.release"
        raise ArmError(message, code="release_undeclared")
    behind = native(scenario, platform, budget) if scenario.cpu_tier else ArmArguments()
    events = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": platform.events.endpoint,
        "topic": platform.events.topic.replace("{model}", platform.served_name),
    }
    return ArmArguments(
        (
            *behind.argv,
            "--kv-events-config",
            canonical_json(events),
            *platform.events.args,
        ),
        behind.env,
        store_sidecars(scenario, platform, _INDEX_BYTES),
    )


def _connected(
    scenario: Scenario,
    connector: str,
    computed: Mapping[str, Any],
    env: Mapping[str, str] | None = None,
    sidecars: tuple[SidecarSpec, ...] = (),
) -> ArmArguments:
    """Return an arm with a connector, whose computed keys a scenario may add to, not replace. Raises ArmError."""
    computed_always = {
        "cpu_bytes_to_use",
        "num_cpu_blocks",
        "spec_name",
        "spec_module_path",
        *computed,
    }
    taken = sorted(computed_always & scenario.connector_config.keys())
    if taken:
        message = f"connector_config must not set {', '.join(taken)}: computed from cpu_blocks and the software"
        raise ArmError(message, code="config_computed", keys=[*taken])
    config: dict[str, Any] = {"kv_connector": connector, "kv_role": "kv_both"}
    if extra := {**computed, **scenario.connector_config}:
        config["kv_connector_extra_config"] = extra
    return ArmArguments(
        ("--kv-transfer-config", canonical_json(config)), dict(env or {}), sidecars
    )


def wrong_answers(argv: Sequence[str], *, on_cpu: bool) -> str:
    """Return why a server with these arguments gives wrong answers from its tier, "" if nothing is known to.

    On a CPU LMCache moves the device's cache into shared memory when it is registered
    (lmcache/v1/platform/devices/cpu/shm.py). MultiConnector registers in the order given: a native tier before it keeps
    the address of the memory that was left, and copies stale blocks.
    """
    flag = "--kv-transfer-config"
    value = next(
        (value for name, value in itertools.pairwise(argv) if name == flag), ""
    )
    if not on_cpu or not value:
        return ""
    try:
        # A port that is not filled in is no number.
        config = json.loads(re.sub(r"(?<!\")\{\w+_port\}(?!\")", "0", value))
    except ValueError:
        return ""
    parts = config.get("kv_connector_extra_config", {}).get("connectors", ())
    names = [part.get("kv_connector", "") for part in parts]
    if "OffloadingConnector" not in names:
        return ""
    after_native = names[names.index("OffloadingConnector") + 1 :]
    if not any(name.startswith("LMCache") for name in after_native):
        return ""
    return "vLLM's own tier was registered before LMCache, which moves the device's cache on a CPU: wrong answers"


def _retention(argv: Sequence[str], version: str) -> Retention:
    """Return what is kept of windows and states, and in which steps prompts are compared."""
    flags = given_flags(argv)
    interval, match = flags.get(_INTERVAL, ""), flags.get(_MATCH_UNIT, "")
    kept = 0 if Version(version) >= _KEPT_AT_THE_END_SINCE else None
    return Retention(
        interval_tokens=int(interval) if interval.isdecimal() else kept,
        match_tokens=int(match) if match.isdecimal() else None,
        grouped="--disable-hybrid-kv-cache-manager" not in argv,
    )


def _unserved_prefix(
    layout: CacheLayout, prefix_tokens: int
) -> Iterator[tuple[str, str, str]]:
    """Yield why a shared prefix is stored and never loaded, and the argument that helps."""
    step = layout.match_tokens
    if 0 < prefix_tokens < step:
        why = f"a shared prefix of {prefix_tokens:,} tokens is shorter than a block of {step:,} (vllm#53749)"
        yield "prefix_below_block", why, f"longer prefixes, or {_MATCH_UNIT}"
    elif prefix_tokens and not layout.shared_tokens(prefix_tokens):
        why = f"of {prefix_tokens:,} shared tokens it keeps windows or states at the end of each prompt alone"
        interval = prefix_tokens // step * step
        fix = f"server.args: [{_INTERVAL}, '{interval}']"
        yield "windows_at_the_end", f"{why} (vllm#53595)", fix


def _refusals(
    model: ServedModel,
    argv: Sequence[str],
    version: str,
    block_size: int,
    *,
    on_cpu: bool,
) -> Iterator[tuple[str, str, str]]:
    """Yield combinations that a server ignores, refuses after its model is loaded, or answers wrongly with."""
    tier = _offloads(argv) or any("LMCache" in argument for argument in argv)
    if _offloads(argv) and any(name.startswith("--spec") for name in argv):
        what = "speculative decoding together with the server's own tier: the drafting layers make every lookup a miss"
        yield f"{what} (vllm#47890)", "one of them", "speculative_offload"
    shape = model.geometry
    if shape.latent is not None and on_cpu and tier:
        what = f"{model.name} has latent attention (MLA), and a tier behind it on a CPU gave wrong answers"
        yield what, "no-offload, or a GPU", "latent_on_cpu"
    if shape.recurrent is not None and on_cpu and "LMCacheMPConnector" in str(argv):
        what = f"{model.name} has layers with a recurrent state, with which LMCache 0.5 starts in no mode on a CPU"
        yield what, "native-offload", "lmcache_recurrent"
    interval = given_flags(argv).get(_INTERVAL, "")
    if not interval.isdecimal() or not int(interval):
        return
    if not shape.grouped:
        what = f"{model.name} has no windows or states that {_INTERVAL} could keep, and the server does not start with it"
        right = "extra_args of the models that have them"
        yield what, right, "retention_without_windows"
        return
    layout = CacheLayout.from_model(
        model, block_size, on_cpu=on_cpu, retention=_retention(argv, version)
    )
    step = math.lcm(*(group.block_tokens for group in layout.groups))
    if int(interval) % step:
        what = f"{_INTERVAL} {interval} is no multiple of the blocks of {model.name}, {step} tokens"
        right = str(max(1, round(int(interval) / step)) * step)
        yield what, right, "retention_uneven"


def shares_native_tier(argv: Sequence[str], version: str, *, on_cpu: bool) -> bool:
    """Whether the native tier is a file in /dev/shm."""
    tiered = any("TieringOffloadingSpec" in argument for argument in argv)
    return tiered or (
        _offloads(argv) and not on_cpu and Version(version) >= _SHARED_TIER_SINCE
    )


def _offloads(argv: Sequence[str]) -> bool:
    return "--kv-offloading-size" in argv or any(
        '"OffloadingConnector"' in argument for argument in argv
    )


def _pinned_layouts(
    argv: Sequence[str], version: str, layers: int, on_cpu: bool
) -> tuple[int, ...]:
    """Return the numbers of tensors of a tier in private pinned memory: one, or one a layer."""
    if (
        on_cpu
        or not _offloads(argv)
        or shares_native_tier(argv, version, on_cpu=on_cpu)
    ):
        return ()
    return (layers,) if Version(version) < _LAYERS_JOINED_SINCE else (1, layers)


def _batch_tokens(argv: Sequence[str]) -> int:
    flag = "--max-num-batched-tokens"
    return int(argv[argv.index(flag) + 1]) if flag in argv else _BATCH_TOKENS


def _tokenizer(model: str, served_name: str) -> tuple[str, ...]:
    """Return the command of a server without a device, which turns prompts into the model's tokens."""
    named = ("--served-model-name", served_name)
    return (
        "vllm",
        "launch",
        "render",
        model,
        *named,
        "--host",
        "0.0.0.0",
        "--port",
        "{tokenizer_port}",
    )


VLLM = ServerSoftware(
    name="vllm",
    title="vLLM",
    prefix="vllm:",
    metrics=METRICS,
    common_arguments=common_arguments,
    common_environment=common_environment,
    arms={
        "none": lambda scenario, platform, budget: ArmArguments(),
        "native": native,
        "lmcache": lmcache,
        "files": files,
        "hybrid": hybrid,
        "llm-d-index": llm_d_index,
    },
    arm_flags=frozenset(
        {
            "--kv-transfer-config",
            "--kv-offloading-size",
            "--kv-offloading-backend",
            "--kv-events-config",
        }
    ),
    flags_per_start=frozenset({"--port"}),
    # They circulate in articles.
    invented_counters=frozenset(
        {
            "vllm_kv_offload_total",
            "vllm_kv_offload_bytes",
            "vllm_kv_reload_total",
            "vllm_kv_cache_hit_rate",
            "kv_cache_hit_rate",
        }
    ),
    lmcache_form=lmcache_form,
    reset_reaches_tiers=lambda platform: platform.version >= Version("0.24"),
    pinned_layouts=_pinned_layouts,
    batch_tokens=_batch_tokens,
    startup_facts=startup_facts,
    release_in_log=release_in_log,
    tokenizer=_tokenizer,
    offloads=_offloads,
    serves_from_device=lambda argv: "--no-enable-prefix-caching" not in argv,
    retention=_retention,
    unserved_prefix=_unserved_prefix,
    refusals=_refusals,
    device_estimate=estimate_for,
    wrong_answers=wrong_answers,
)
