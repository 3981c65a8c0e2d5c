"""The parts of KV-cache arms that are common to all servers: platform, arguments, programs beside the server.

The arguments of each arm are its server's, see `kveval.campaign.servers`. What differs between hosts stays open as a
placeholder: `{port}`, and for what an arm needs beside its server `{redis_host}`, `{redis_port}`, `{lmcache_host}`,
`{lmcache_port}`, `{lmcache_http_port}` (`valkey` like `redis`); for a tier of files its empty folder, `{fs_dir}`; for
an index `{epp_host}`, `{events_port}`.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from packaging.version import Version

from kveval.campaign.catalogue import Scenario
from kveval.campaign.release import CacheEvents
from kveval.campaign.sizing import Budget, blocks_of_server
from kveval.campaign.specification import SidecarSpec
from kveval.host.errors import Failure

LMCACHE_CHUNK_TOKENS = 256
HASH_SEED = "0"
"""One seed for every process that hashes prefixes: caches shared between processes depend on it."""
REPLACEABLE = frozenset({"--eviction-policy"})
"""Arguments of the programs beside the server that a scenario may replace: nothing else is computed from them."""
LMCACHE_PRIVATE = {"LMCACHE_TRACK_USAGE": "false"}
"""Keeps LMCache from sending usage reports to its developers."""
NATIVE_SHARE = 0.5
"""Share of a hybrid arm's budget for the server's own tier, unless the scenario gives another."""


class ArmError(Failure):
    """This software cannot run this arm; the message says which can."""


@dataclass(frozen=True)
class ArmArguments:
    """The arguments and environment that an arm adds to the server that every arm shares."""

    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    sidecars: tuple[SidecarSpec, ...] = ()
    split: Mapping[str, int] = field(default_factory=dict)
    """native_bytes and lmcache_bytes, of an arm whose two tiers share the budget."""


@dataclass(frozen=True)
class Platform:
    """The facts that an arm's arguments depend on beside the scenario."""

    server_version: str
    lmcache: str | None
    on_cpu: bool
    engine: str
    block_size: int
    served_name: str
    lmcache_form: str | None = None
    """LMCache inside the server's "process" or as a "server" of its own; None: as the server's release has it."""
    events: CacheEvents | None = None
    """How cache events reach llm-d's endpoint picker."""

    @property
    def on_cluster(self) -> bool:
        """Whether sidecars are pods of their own, which others reach over the network."""
        return self.engine == "kubernetes"

    @property
    def version(self) -> Version:
        """The server's release, without its local part (0.32.0+cpu is 0.32.0)."""
        return Version(Version(self.server_version).public)


def canonical_json(value: Mapping[str, Any]) -> str:
    """Render one argument's JSON: sorted keys, no spaces, port placeholders as numbers once they are filled."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return re.sub(r'"(\{\w+_port\})"', r"\1", text)


def hybrid_budgets(
    scenario: Scenario, platform: Platform, whole: Budget
) -> tuple[Budget, Budget]:
    """Divide a budget between the server's own tier and LMCache, in whole server blocks. Raises ArmError."""
    share = NATIVE_SHARE if scenario.native_share is None else scenario.native_share
    blocks = int(whole.tier_blocks * share)
    if not 0 < blocks < whole.tier_blocks:
        message = (
            f"{whole.cpu_blocks} cpu_blocks are too few to share between two tiers"
        )
        raise ArmError(message, code="too_few_to_share")
    per_token, ranks = (
        whole.requested_bytes // whole.tokens,
        whole.tier_bytes // whole.rank_bytes,
    )
    size = platform.block_size
    native, lmcache = (
        Budget.from_blocks(per_token, blocks_of_server(part, size), size, ranks)
        for part in (blocks, whole.tier_blocks - blocks)
    )
    return native, lmcache


def lmcache_sidecars(
    scenario: Scenario, platform: Platform, budget: Budget
) -> tuple[SidecarSpec, ...]:
    """Return LMCache as a server of its own, sized over all ranks, and the store behind it, which starts first."""
    # On a cluster it runs in the server's pod, and its metrics are read from outside.
    http_host = "0.0.0.0" if platform.on_cluster else "{lmcache_host}"
    server = [
        *("lmcache", "server", "--host", "{lmcache_host}", "--port", "{lmcache_port}"),
        *("--http-host", http_host, "--http-port", "{lmcache_http_port}"),
        *("--l1-size-gb", repr(budget.tier_gib), "--eviction-policy", "LRU"),
        *("--chunk-size", str(LMCACHE_CHUNK_TOKENS)),
    ]
    if scenario.store is not None:
        # RESP is the protocol that Redis and Valkey share; one adapter serves both.
        adapter = {
            "type": "resp",
            "host": f"{{{scenario.store}_host}}",
            "port": f"{{{scenario.store}_port}}",
        }
        server += ["--l2-adapter", canonical_json(adapter)]
    store = store_sidecars(scenario, platform, 2 * budget.tier_bytes)
    return (
        *store,
        SidecarSpec(
            "lmcache", tuple(server), {"PYTHONHASHSEED": HASH_SEED, **LMCACHE_PRIVATE}
        ),
    )


def store_sidecars(
    scenario: Scenario, platform: Platform, limit_bytes: int
) -> tuple[SidecarSpec, ...]:
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
        # In protected mode without a password it would refuse all clients outside its pod.
        argv += [
            "--protected-mode",
            "no",
            "--maxmemory",
            str(limit_bytes),
            "--maxmemory-policy",
            "allkeys-lru",
        ]
    return (SidecarSpec(name, tuple(argv)),)
