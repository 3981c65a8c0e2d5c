"""The arguments that each kind of arm adds to vLLM: its connectors, their sizes by release, the programs beside it."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from packaging.version import Version

from kveval.campaign.catalogue import Scenario
from kveval.campaign.sizing import GIB, Budget, CacheSizes
from kveval.campaign.specification import SidecarSpec
from kveval.campaign.types import BLOCK_TOKENS
from kveval.stacks.arms import (
    ArmArguments,
    ArmError,
    Platform,
    canonical_json,
    hybrid_budgets,
)
from kveval.stacks.keyvalue import store_sidecars
from kveval.stacks.lmcache import CHUNK_TOKENS, PRIVATE, LMCacheServer

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


def none(scenario: Scenario, platform: Platform, budget: Budget) -> ArmArguments:
    """Nothing: the device's own cache alone."""
    return ArmArguments()


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
    if CHUNK_TOKENS % platform.block_size:
        message = f"block_size {platform.block_size} does not divide LMCache's chunks of {CHUNK_TOKENS} tokens"
        raise ArmError(
            f"{message}; valid is 16, 32, 64, 128 or 256",
            code="chunks_uneven",
            block_size=platform.block_size,
        )
    if budget.tokens < CHUNK_TOKENS:
        least = CHUNK_TOKENS // BLOCK_TOKENS
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
        **PRIVATE,
        "LMCACHE_CHUNK_SIZE": str(CHUNK_TOKENS),
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
    sidecars = LMCacheServer.beside(scenario, platform, budget)
    return _connected(scenario, "LMCacheMPConnector", client, PRIVATE, sidecars)


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
        message = (
            "the index lives in llm-d's endpoint picker, which this workflow starts on clusters alone"
            " (llm-d's guide runs it without Kubernetes, too, with docker): it needs engine kubernetes"
        )
        raise ArmError(
            f"{message}, not {platform.engine}",
            code="index_on_cluster_alone",
        )
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


def verbatim(scenario: Scenario, platform: Platform, sizes: CacheSizes) -> ArmArguments:
    """A connector as the scenario gives it; whether the release and the device can run it, its author knows."""
    if scenario.keeps_files and platform.on_cluster:
        message = "a folder {fs_dir} for an arm of your own is there with engine local alone; name a path of the image"
        raise ArmError(message, code="verbatim_files_on_cluster")
    config = scenario.kv_transfer_config or {}
    return ArmArguments(("--kv-transfer-config", canonical_json(config)))


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


def _since(platform: Platform, release: str, what: str, code: str) -> None:
    """Refuse a server that is older than what it is to run. Raises ArmError."""
    if platform.version < Version(release):
        raise ArmError(
            f"{what} needs vLLM {release} or newer, not {platform.server_version}",
            code=code,
        )
