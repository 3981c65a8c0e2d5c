"""The KV-cache arms: scenario and software versions in, the server's extra arguments, environment and sidecars out.

One function per arm. What differs between hosts stays open as a placeholder: `{port}`, and for the servers an arm
needs beside vLLM `{redis_host}`, `{redis_port}`, `{lmcache_host}`, `{lmcache_port}`, `{lmcache_http_port}` (`valkey`
likewise); for a tier of files its empty folder, `{fs_dir}`; for an index `{epp_host}`, `{events_port}`.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from packaging.version import Version

from kveval.config.catalogue import Scenario
from kveval.config.release import CacheEvents
from kveval.host.errors import Failure
from kveval.spec.sizing import GIB, Budget
from kveval.spec.specification import SidecarSpec

LMCACHE_CHUNK_TOKENS = 256
HASH_SEED = "0"
"""One seed for every process that hashes prefixes: caches shared between processes depend on it."""
_HOST_SPEC = {"spec_name": "HostOffloadingSpec", "spec_module_path": "kveval_host_offload"}
_TIERING_SPEC = {"spec_name": "TieringOffloadingSpec"}
_HOST_TIERING_SPEC = {"spec_name": "HostTieringOffloadingSpec", "spec_module_path": "kveval_host_offload"}
# LMCache reports its use to its makers unless told not to.
_LMCACHE_PRIVATE = {"LMCACHE_TRACK_USAGE": "false"}
NATIVE_SHARE = 0.5
"""What vLLM's own tier gets of a hybrid arm's budget, unless the scenario says otherwise."""
_INDEX_BYTES = 4 * GIB


class ArmError(Failure):
    """This software cannot run this arm; the message says what can."""


@dataclass(frozen=True)
class ArmArguments:
    """What an arm adds to the server that every arm shares."""

    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    sidecars: tuple[SidecarSpec, ...] = ()


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
    lmcache_form: str | None = None
    """LMCache inside the server's "process" or as a "server" of its own; by vLLM's release where it is None."""
    events: CacheEvents | None = None
    """How cache events reach llm-d's endpoint picker."""

    @property
    def on_cluster(self) -> bool:
        """Whether sidecars are pods of their own, which others reach over the network."""
        return self.engine == "kubernetes"

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
    if lmcache_form(platform) == "server":
        return _lmcache_server(scenario, platform, budget)
    if platform.on_cpu:
        raise ArmError(
            f"LMCache on a CPU runs as a server of its own, which needs vLLM 0.23 or newer, not {platform.vllm}"
        )
    if platform.version < Version("0.11"):
        raise ArmError(f"LMCacheConnectorV1 is supported from vLLM 0.11; {platform.vllm} is older")
    return _lmcache_in_process(scenario, platform, budget)


def lmcache_form(platform: Platform) -> str:
    """Return whether LMCache is inside the server's "process" or a "server" of its own, as on a CPU it has to be."""
    if platform.version < Version("0.23"):
        return "process"
    return "server" if platform.on_cpu else platform.lmcache_form or "server"


def _lmcache_in_process(scenario: Scenario, platform: Platform, budget: Budget) -> ArmArguments:
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
    store = _store(scenario, platform, 2 * budget.tier_bytes)
    return ArmArguments(("--kv-transfer-config", _transfer("LMCacheConnectorV1", extra)), env, store)


def _lmcache_server(scenario: Scenario, platform: Platform, budget: Budget) -> ArmArguments:
    # On a cluster it is in the server's pod, and asked for its metrics from outside.
    http_host = "0.0.0.0" if platform.on_cluster else "{lmcache_host}"
    server = [
        *("lmcache", "server", "--host", "{lmcache_host}", "--port", "{lmcache_port}"),
        *("--http-host", http_host, "--http-port", "{lmcache_http_port}"),
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
        (
            *_store(scenario, platform, 2 * budget.tier_bytes),
            SidecarSpec("lmcache", tuple(server), {"PYTHONHASHSEED": HASH_SEED, **_LMCACHE_PRIVATE}),
        ),
    )


def hybrid(scenario: Scenario, platform: Platform, budget: Budget) -> ArmArguments:
    """vLLM's own tier and LMCache at once, through MultiConnector: both store, the first that holds a prefix loads it.

    Together they have the budget of every other arm.
    """
    if scenario.connector_config:
        raise ArmError("two connectors share no connector_config; leave it out")
    own, rest = hybrid_budgets(scenario, budget)
    parts = [native(scenario, platform, own), lmcache(scenario, platform, rest)]
    connectors = [json.loads(_port_as_text(part.argv[1])) for part in parts]
    return ArmArguments(
        ("--kv-transfer-config", _transfer("MultiConnector", {"connectors": connectors})),
        {**parts[0].env, **parts[1].env},
        parts[1].sidecars,
    )


def hybrid_budgets(scenario: Scenario, budget: Budget) -> tuple[Budget, Budget]:
    """Return what vLLM's own tier and LMCache get of a hybrid arm's budget: whole server blocks, equal in total."""
    share = NATIVE_SHARE if scenario.native_share is None else scenario.native_share
    blocks = int(budget.tier_blocks * share)
    if not 0 < blocks < budget.tier_blocks:
        raise ArmError(f"{budget.cpu_blocks} cpu_blocks are too few to share between two tiers")
    return budget.part(blocks), budget.part(budget.tier_blocks - blocks)


def files(scenario: Scenario, platform: Platform, budget: Budget) -> ArmArguments:
    """vLLM's tiered offload with files as the last tier, behind the CPU tier or behind a staging buffer alone."""
    if platform.version < Version("0.22.1"):
        raise ArmError(
            f"TieringOffloadingSpec, which offloads to files, came with vLLM 0.22.1; {platform.vllm} is older"
        )
    if platform.on_cpu and platform.version < Version("0.32"):
        raise ArmError(f"offload to files on a CPU is known to work from vLLM 0.32, not on {platform.vllm}")
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
    if not platform.on_cluster:
        raise ArmError(
            "the index lives in llm-d's endpoint picker, which routes between servers on a cluster: it needs engine"
            f" kubernetes, not {platform.engine}"
        )
    if platform.version < Version("0.11"):
        raise ArmError(f"the index is supported from vLLM 0.11; {platform.vllm} is older")
    if platform.events is None:
        raise ArmError("how servers publish their cache events depends on the release: set server.release")
    behind = native(scenario, platform, budget) if scenario.cpu_tier else ArmArguments()
    events = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": platform.events.endpoint,
        "topic": platform.events.topic.replace("{model}", platform.served_name),
    }
    return ArmArguments(
        (*behind.argv, "--kv-events-config", canonical_json(events), *platform.events.args),
        behind.env,
        _store(scenario, platform, _INDEX_BYTES),
    )


_ARMS: dict[str, Callable[[Scenario, Platform, Budget], ArmArguments]] = {
    "none": no_offload,
    "native": native,
    "lmcache": lmcache,
    "files": files,
    "hybrid": hybrid,
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


def _store(scenario: Scenario, platform: Platform, limit_bytes: int) -> tuple[SidecarSpec, ...]:
    """Return the store's server, holding everything in memory: a disk behind it would be another arm.

    On a cluster its memory is bounded, because a pod that outgrows its limit is killed.
    """
    if scenario.store is None:
        return ()
    name = scenario.store
    bind = "0.0.0.0" if platform.on_cluster else f"{{{name}_host}}"
    argv = [
        *(f"{name}-server", "--bind", bind, "--port", f"{{{name}_port}}"),
        *("--save", "", "--appendonly", "no"),
    ]
    if platform.on_cluster:
        # Without a password it would refuse everybody from outside its pod.
        argv += ["--protected-mode", "no", "--maxmemory", str(limit_bytes), "--maxmemory-policy", "allkeys-lru"]
    return (SidecarSpec(name, tuple(argv)),)


def _port_as_text(text: str) -> str:
    """Undo what canonical_json does with ports, so that an argument can be read again."""
    return re.sub(r"(?<!\")(\{\w+_port\})(?!\")", r'"\1"', text)
