"""`lmcache server`: LMCache's tier in host memory in a process of its own."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from kveval.campaign.catalogue import Scenario
from kveval.campaign.sizing import GIB, Budget, CacheSizes
from kveval.campaign.specification import SidecarSpec
from kveval.host.http import HttpError, decoded
from kveval.stacks.arms import HASH_SEED, Platform, canonical_json
from kveval.stacks.counters import CounterError, parse_counters
from kveval.stacks.keyvalue import store_sidecars
from kveval.stacks.sidecar import POLL_S, HttpSidecar, Port, SidecarError
from kveval.stacks.versions import same_release

CHUNK_TOKENS = 256
"""Tokens of one chunk of LMCache, in its server and inside a model server's process."""
HOLDS = (0.64, 0.8)
"""Shares of its size that LMCache holds at least and at most: version 0.5 evicts a fifth of its chunks as soon as it is
four fifths full."""
PRIVATE = {"LMCACHE_TRACK_USAGE": "false"}
"""Environment that keeps LMCache from sending usage reports to its developers."""
# A request that is aborted between lookup and retrieval leaves its read locks behind for 300 s (LMCache 0.5.6). Locks
# that exist for this many seconds, without a transfer and without a request in vLLM, are taken to be such locks.
ABANDONED_S = 3.0
_BY_NAME = {"l1_manager": "l1_managers", "store_controller": "store_controllers"}
_ANSWER_S = 10.0


class LMCacheServer(HttpSidecar):
    """LMCache's server."""

    name = "lmcache"
    title = "LMCache"
    install = "run scripts/setup.sh"
    metrics_port = "lmcache_http_port"
    ports: ClassVar[Mapping[str, Port]] = {
        "lmcache_port": Port(5555),
        "lmcache_http_port": Port(8081, "lmcache-http"),
    }
    in_server_pod = True
    health_path = "/healthcheck"
    executable = "lmcache"
    replaceable = frozenset({"--eviction-policy"})
    # What is behind it is emptied between levels, and counted, where the campaign knows of it.
    refused: ClassVar[Mapping[str, str]] = {
        "--l2-adapter": "the scenario's `store: redis` or `store: valkey`"
    }

    @classmethod
    def memory_bytes(cls, argv: Sequence[str], sizes: CacheSizes) -> int:
        """Return the tier, which it holds, and 2 GiB for itself."""
        return 2 * GIB + sizes.lmcache_bytes

    @classmethod
    def beside(
        cls, scenario: Scenario, platform: Platform, budget: Budget
    ) -> tuple[SidecarSpec, ...]:
        """Return it as a scenario needs it, sized over all ranks, and the store behind it, which starts first."""
        # On a cluster it runs in the server's pod, and its metrics are read from outside.
        http_host = "0.0.0.0" if platform.on_cluster else "{lmcache_host}"
        argv = [
            *(cls.executable, "server"),
            *("--host", "{lmcache_host}", "--port", "{lmcache_port}"),
            *("--http-host", http_host, "--http-port", "{lmcache_http_port}"),
            *("--l1-size-gb", repr(budget.tier_gib), "--eviction-policy", "LRU"),
            *("--chunk-size", str(CHUNK_TOKENS)),
        ]
        if scenario.store is not None:
            # RESP is the protocol that Redis and Valkey share; one adapter serves both.
            adapter = {
                "type": "resp",
                "host": f"{{{scenario.store}_host}}",
                "port": f"{{{scenario.store}_port}}",
            }
            argv += ["--l2-adapter", canonical_json(adapter)]
        env = {"PYTHONHASHSEED": HASH_SEED, **PRIVATE}
        store = store_sidecars(scenario, platform, 2 * budget.tier_bytes)
        return (*store, SidecarSpec(cls.name, tuple(argv), env))

    def identify(self, versions: Mapping[str, str]) -> None:
        """Read the version. Raises SidecarError if it is not the declared one."""
        answer = self._ask("/version")
        self.version = (
            str(answer.get("version", answer))
            if isinstance(answer, dict)
            else str(answer)
        )
        declared = versions.get("lmcache", "")
        if not same_release(self.version, declared):
            raise SidecarError(
                f"the server beside vLLM is LMCache {self.version or 'of unknown version'},"
                f" the campaign declares {declared}",
                code="other_version",
                found=self.version,
                declared=declared,
            )

    def reported_bytes(self) -> int | None:
        """Return the configured bytes of its tier in host memory; None if it does not report them."""
        sizes = [
            tier.get("memory_configured_bytes")
            for tier in self._storage()["l1_managers"].values()
        ]
        return (
            sum(sizes)
            if sizes and all(isinstance(size, int) for size in sizes)
            else None
        )

    def counters(self) -> dict[str, float]:
        """Return its counters, and the bytes that its tier holds now. Raises SidecarError."""
        try:
            counters = parse_counters(
                self._fetch("/metrics", timeout_s=_ANSWER_S).decode(), prefix="lmcache"
            )
        except (CounterError, HttpError) as error:
            raise SidecarError(str(error)) from error
        held = sum(
            tier["memory_used_bytes"]
            for tier in self._storage()["l1_managers"].values()
        )
        return {**counters, "lmcache_l1_memory_bytes": float(held)}

    def reset(self, timeout_s: float) -> None:
        """Empty the tier, once no transfer to the store is in progress. Raises SidecarError.

        LMCache keeps objects that a transfer has locked, so the request is repeated until the tier is empty; locks that
        aborted requests left behind are overridden.
        """
        quiet_since = begin = time.monotonic()
        while True:
            storage, now = self._storage(), time.monotonic()
            if _moving(storage):
                quiet_since = now
            elif now - quiet_since >= ABANDONED_S:
                self._ask("/cache/clear", "POST", {"tier": "l1", "force": True})
            elif not _read_locked(storage):
                self._ask("/cache/clear", "POST")
            storage = self._storage()
            if not _moving(storage) and _objects(storage) == 0:
                return
            if now - begin > timeout_s:
                objects = _objects(storage)
                raise SidecarError(
                    f"LMCache still holds {objects} objects after {timeout_s:.0f} s of clearing it; see {self.log}",
                    code="not_emptied",
                    objects=objects,
                    limit_s=timeout_s,
                )
            time.sleep(POLL_S)

    def _storage(self) -> dict[str, Any]:
        """Return the tiers' part of /status, tiers by name. Raises SidecarError if it lacks what is read here."""
        answer = self._ask("/status")
        storage = answer.get("storage_manager") if isinstance(answer, dict) else None
        if isinstance(storage, dict):
            # LMCache 0.5.3 has one tier, which it does not name; 0.5.6 has several by name.
            for one, by_name in _BY_NAME.items():
                if one in storage:
                    storage.setdefault(by_name, {"": storage[one]})
            if set(_BY_NAME.values()) <= storage.keys():
                return storage
        raise SidecarError(
            f"LMCache's /status has no {' and '.join(_BY_NAME.values())}, nor {' and '.join(_BY_NAME)};"
            f" see {self.log}"
        )

    def _ask(self, path: str, method: str = "GET", body: object = None) -> Any:
        try:
            return decoded(self._fetch(path, method, body, _ANSWER_S))
        except HttpError as error:
            raise SidecarError(f"LMCache: {error}; see {self.log}") from error


def _objects(storage: Mapping[str, Any]) -> int:
    return sum(tier["total_object_count"] for tier in storage["l1_managers"].values())


def _read_locked(storage: Mapping[str, Any]) -> int:
    """Return the number of objects that requests have looked up but not yet retrieved."""
    return sum(tier["read_locked_count"] for tier in storage["l1_managers"].values())


def _moving(storage: Mapping[str, Any]) -> bool:
    """Tell whether a transfer is in progress: from vLLM, to the store, or from it."""
    tiers, stores = (
        storage["l1_managers"].values(),
        storage["store_controllers"].values(),
    )
    return any(
        [
            *(tier["write_locked_count"] for tier in tiers),
            *(
                store["in_flight_task_count"] + store["pending_keys_count"]
                for store in stores
            ),
            storage.get("prefetch_controller", {}).get("in_flight_request_count", 0),
        ]
    )
