"""The parts of KV-cache arms that are common to all servers: the platform, the arguments that an arm adds.

The arguments of each arm are in its server's class. What differs between hosts stays open as a
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

HASH_SEED = "0"
"""One seed for every process that hashes prefixes: caches shared between processes depend on it."""
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
