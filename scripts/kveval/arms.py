"""The KV-cache arms: scenario and software versions in, the server's extra arguments, environment and companions out.

One function per arm. What differs between hosts stays open as a placeholder: `{port}`, and for the servers an arm
needs beside vLLM `{redis_host}`, `{redis_port}`, `{lmcache_host}`, `{lmcache_port}`, `{lmcache_http_port}` (`valkey`
likewise); for a tier of files its empty folder, `{fs_dir}`.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from packaging.version import Version

from kveval.catalogue import Scenario
from kveval.errors import Failure
from kveval.sizing import Budget

LMCACHE_CHUNK_TOKENS = 256
HASH_SEED = "0"
"""One seed for every process that hashes prefixes: caches shared between processes depend on it."""
_HOST_SPEC = {"spec_name": "HostOffloadingSpec", "spec_module_path": "kveval_host_offload"}
_TIERING_SPEC = {"spec_name": "TieringOffloadingSpec"}
_HOST_TIERING_SPEC = {"spec_name": "HostTieringOffloadingSpec", "spec_module_path": "kveval_host_offload"}
# LMCache reports its use to its makers unless told not to.
_LMCACHE_PRIVATE = {"LMCACHE_TRACK_USAGE": "false"}


class ArmError(Failure):
    """This software cannot run this arm; the message says what can."""


@dataclass(frozen=True)
class Companion:
    """A server that an arm needs beside vLLM: a program with its arguments, or an image's command on a cluster."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ArmArguments:
    """What an arm adds to the server that every arm shares."""

    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    companions: tuple[Companion, ...] = ()


@dataclass(frozen=True)
class Platform:
    """What an arm's arguments depend on beside the scenario."""

    vllm: str
    lmcache: str | None
    on_cpu: bool
    engine: str
    block_size: int
    served_name: str
    staging_bytes: int = 0
    """Size of the buffer in host memory that a tier of files without a CPU tier passes through."""

    @property
    def version(self) -> Version:
        """The server's release, without its local part (0.32.0+cpu is 0.32.0)."""
        return Version(Version(self.vllm).public)


def canonical_json(value: Mapping[str, Any]) -> str:
    """Render one argument's JSON: sorted keys, no spaces, port placeholders as numbers once they are filled."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return re.sub(r'"(\{\w+_port\})"', r"\1", text)


def arm_arguments(scenario: Scenario, platform: Platform, budget: Budget) -> ArmArguments:
    """Return what `scenario` adds to the server. Raises ArmError when this software cannot run it."""
    return _ARMS[scenario.arm](scenario, platform, budget)


def no_offload(scenario: Scenario, platform: Platform, budget: Budget) -> ArmArguments:
    """The device's own prefix cache, nothing behind it."""
    return ArmArguments()


def native(scenario: Scenario, platform: Platform, budget: Budget) -> ArmArguments:
    """vLLM's OffloadingConnector: the budget in server blocks up to 0.13, in bytes over all ranks from 0.14.1."""
    version = platform.version
    if version < Version("0.11"):
        raise ArmError(f"native offload came with vLLM 0.11; {platform.vllm} has none")
    if Version("0.14") <= version < Version("0.14.1"):
        raise ArmError(
            f"native offload changed its keys around vLLM {platform.vllm}: declare 0.13.x or 0.14.1 or newer"
        )
    if budget.tier_blocks < 1:
        raise ArmError(
            f"{budget.cpu_blocks} cpu_blocks are less than one server block of {platform.block_size} tokens"
            f" ({platform.block_size // 16} cpu_blocks)"
        )
    in_bytes = version >= Version("0.14.1")
    if platform.on_cpu and version < Version("0.24"):
        raise ArmError(f"native offload on a CPU needs vLLM 0.24 or newer, not {platform.vllm}")
    if scenario.form == "size-flag":
        return _native_by_flag(scenario, platform, budget, in_bytes=in_bytes)
    size = {"cpu_bytes_to_use": budget.tier_bytes} if in_bytes else {"num_cpu_blocks": budget.tier_blocks}
    extra = _with_own(scenario, {**size, **(_HOST_SPEC if platform.on_cpu else {})})
    return ArmArguments(("--kv-transfer-config", _transfer("OffloadingConnector", extra)))


def _native_by_flag(scenario: Scenario, platform: Platform, budget: Budget, *, in_bytes: bool) -> ArmArguments:
    if platform.on_cpu:
        raise ArmError("form size-flag cannot name the spec that offloads on a CPU; use form connector")
    if not in_bytes:
        raise ArmError(
            f"--kv-offloading-size sets 0 blocks in vLLM {platform.vllm}; use form connector, or 0.14.1 or newer"
        )
    if scenario.connector_config:
        raise ArmError("form size-flag has no place for connector_config; use form connector")
    return ArmArguments(("--kv-offloading-backend", "native", "--kv-offloading-size", repr(budget.tier_gib)))


def lmcache(scenario: Scenario, platform: Platform, budget: Budget) -> ArmArguments:
    """LMCache: inside the server's process on GPUs before vLLM 0.23, as a server of its own otherwise.

    In process its CPU tier is sized per rank (GiB), as a server over all ranks.
    """
    if platform.lmcache is None:
        raise ArmError("LMCache's release is not declared: set server.lmcache, for instance 0.5.6")
    if LMCACHE_CHUNK_TOKENS % platform.block_size:
        raise ArmError(
            f"LMCache's chunks of {LMCACHE_CHUNK_TOKENS} tokens are no multiple of block_size {platform.block_size};"
            " valid is 16, 32, 64, 128 or 256"
        )
    if budget.tokens < LMCACHE_CHUNK_TOKENS:
        raise ArmError(
            f"{budget.cpu_blocks} cpu_blocks are less than one LMCache chunk ({LMCACHE_CHUNK_TOKENS // 16} cpu_blocks)"
        )
    if platform.version >= Version("0.23"):
        return _lmcache_server(scenario, platform, budget)
    if platform.on_cpu:
        raise ArmError(
            f"LMCache on a CPU runs as a server of its own, which needs vLLM 0.23 or newer, not {platform.vllm}"
        )
    if platform.version < Version("0.11"):
        raise ArmError(f"LMCacheConnectorV1 is supported from vLLM 0.11; {platform.vllm} is older")
    return _lmcache_in_process(scenario, budget)


def _lmcache_in_process(scenario: Scenario, budget: Budget) -> ArmArguments:
    env = {
        **_LMCACHE_PRIVATE,
        "LMCACHE_CHUNK_SIZE": str(LMCACHE_CHUNK_TOKENS),
        "LMCACHE_LOCAL_CPU": "True",
        "LMCACHE_MAX_LOCAL_CPU_SIZE": repr(budget.rank_gib),
    }
    if scenario.store is not None:
        env["LMCACHE_REMOTE_URL"] = f"{scenario.store}://{{{scenario.store}_host}}:{{{scenario.store}_port}}"
        env["LMCACHE_REMOTE_SERDE"] = "naive"
    extra = _with_own(scenario, {})
    return ArmArguments(("--kv-transfer-config", _transfer("LMCacheConnectorV1", extra)), env, _store(scenario))


def _lmcache_server(scenario: Scenario, platform: Platform, budget: Budget) -> ArmArguments:
    server = [
        *("lmcache", "server", "--host", "{lmcache_host}", "--port", "{lmcache_port}"),
        *("--http-host", "{lmcache_host}", "--http-port", "{lmcache_http_port}"),
        *("--l1-size-gb", repr(budget.tier_gib), "--eviction-policy", "LRU"),
        *("--chunk-size", str(LMCACHE_CHUNK_TOKENS)),
    ]
    if scenario.store is not None:
        # RESP is the protocol that Redis and Valkey share; one adapter serves both.
        adapter = {"type": "resp", "host": f"{{{scenario.store}_host}}", "port": f"{{{scenario.store}_port}}"}
        server += ["--l2-adapter", canonical_json(adapter)]
    client = {"lmcache.mp.host": "tcp://{lmcache_host}", "lmcache.mp.port": "{lmcache_port}"}
    if platform.on_cpu:
        # Left to itself the client chooses, for a CPU, the mode that the server does not offer, and waits five minutes.
        client["lmcache.mp.mp_transfer_mode"] = "lmcache_driven"
    return ArmArguments(
        ("--kv-transfer-config", _transfer("LMCacheMPConnector", _with_own(scenario, client))),
        dict(_LMCACHE_PRIVATE),
        (*_store(scenario), Companion("lmcache", tuple(server), {"PYTHONHASHSEED": HASH_SEED, **_LMCACHE_PRIVATE})),
    )


def files(scenario: Scenario, platform: Platform, budget: Budget) -> ArmArguments:
    """vLLM's tiered offload with files as the last tier, behind the CPU tier or behind a staging buffer alone."""
    if platform.version < Version("0.22.1"):
        raise ArmError(
            f"TieringOffloadingSpec, which offloads to files, came with vLLM 0.22.1; {platform.vllm} is older"
        )
    if platform.on_cpu and platform.version < Version("0.32"):
        raise ArmError(f"offload to files on a CPU is known to work from vLLM 0.32, not on {platform.vllm}")
    if platform.engine != "local":
        raise ArmError(f"the folder of a file tier is this host's: it needs engine local, not {platform.engine}")
    size = budget.tier_bytes if scenario.cpu_tier else platform.staging_bytes
    if size < 1:
        raise ArmError(
            f"{budget.cpu_blocks} cpu_blocks are less than one server block of {platform.block_size} tokens"
            f" ({platform.block_size // 16} cpu_blocks)"
        )
    computed = {
        "cpu_bytes_to_use": size,
        "secondary_tiers": [{"type": "fs", "root_dir": "{fs_dir}"}],
        **(_HOST_TIERING_SPEC if platform.on_cpu else _TIERING_SPEC),
    }
    return ArmArguments(("--kv-transfer-config", _transfer("OffloadingConnector", _with_own(scenario, computed))))


def llm_d_index(scenario: Scenario, platform: Platform, budget: Budget) -> ArmArguments:
    """llm-d's KV-block index: the server publishes its cache events, the endpoint picker keeps them in Redis or Valkey.

    With a CPU tier, vLLM's native one stands behind the index.
    """
    if platform.engine != "kubernetes":
        raise ArmError(
            "the index lives in llm-d's endpoint picker, which routes between servers on a cluster: it needs engine"
            f" kubernetes, not {platform.engine}"
        )
    if platform.version < Version("0.11"):
        raise ArmError(f"the index is supported from vLLM 0.11; {platform.vllm} is older")
    behind = native(scenario, platform, budget) if scenario.cpu_tier else ArmArguments()
    # Schedulers of the llm-d 0.4 generation (vLLM 0.11) hash blocks themselves, in CBOR, and listen on another port.
    older = platform.version < Version("0.12")
    events = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": "tcp://*:5557" if older else "tcp://*:5556",
        "topic": f"kv@$(POD_IP):$(POD_PORT)@{platform.served_name}",
    }
    hashing = ("--prefix-caching-hash-algo", "sha256_cbor") if older else ()
    return ArmArguments(
        (*behind.argv, "--kv-events-config", canonical_json(events), *hashing), behind.env, _store(scenario)
    )


_ARMS: dict[str, Callable[[Scenario, Platform, Budget], ArmArguments]] = {
    "none": no_offload,
    "native": native,
    "lmcache": lmcache,
    "files": files,
    "llm-d-index": llm_d_index,
}


def _transfer(connector: str, extra: Mapping[str, Any]) -> str:
    config: dict[str, Any] = {"kv_connector": connector, "kv_role": "kv_both"}
    if extra:
        config["kv_connector_extra_config"] = dict(extra)
    return canonical_json(config)


def _with_own(scenario: Scenario, computed: Mapping[str, Any]) -> dict[str, Any]:
    """Add the scenario's own connector keys; one that is computed here would make the budget a lie."""
    computed_always = {"cpu_bytes_to_use", "num_cpu_blocks", "spec_name", "spec_module_path", *computed}
    taken = sorted(computed_always & scenario.connector_config.keys())
    if taken:
        raise ArmError(f"connector_config must not set {', '.join(taken)}: computed from cpu_blocks and the software")
    return {**computed, **scenario.connector_config}


def _store(scenario: Scenario) -> tuple[Companion, ...]:
    """Return the store's server, holding everything in memory: a disk behind it would be another arm."""
    if scenario.store is None:
        return ()
    name = scenario.store
    argv = (
        *(f"{name}-server", "--bind", f"{{{name}_host}}", "--port", f"{{{name}_port}}"),
        *("--save", "", "--appendonly", "no"),
    )
    return (Companion(name, argv),)
