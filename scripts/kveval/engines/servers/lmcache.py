"""`lmcache server` as a sidecar: LMCache's CPU tier in its own process."""

import time
from collections.abc import Mapping
from typing import Any

from kveval.engines.counters import CounterError, parse_counters
from kveval.engines.servers.declared import same_release
from kveval.engines.servers.program import POLL_S, Sidecar, SidecarError
from kveval.engines.servers.protocol import Fetch
from kveval.host.http import HttpError, decoded

# A request that is aborted between lookup and retrieval leaves its read locks behind for 300 s (LMCache 0.5.6). Locks
# that exist for this many seconds, without a transfer and without a request in vLLM, are taken to be such locks.
ABANDONED_S = 3.0
_ANSWER_S = 10.0


class LMCacheServer(Sidecar):
    """LMCache's server, wherever it runs; `fetch` sends requests to its HTTP interface."""

    def __init__(self, argv: list[str], log: object, fetch: Fetch) -> None:
        super().__init__("lmcache", argv, log)
        self._fetch = fetch

    def ready(self) -> bool:
        """Tell whether its health check succeeds."""
        try:
            self._fetch("/healthcheck", timeout_s=2.0)
        except HttpError:
            return False
        return True

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
        """Return the tiers' part of /status. Raises SidecarError if it lacks what is read here."""
        answer = self._ask("/status")
        storage = answer.get("storage_manager") if isinstance(answer, dict) else None
        if (
            not isinstance(storage, dict)
            or not {"l1_managers", "store_controllers"} <= storage.keys()
        ):
            raise SidecarError(
                f"LMCache's /status has no l1_managers and store_controllers; see {self.log}"
            )
        return storage

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
