"""A cell's servers, on this host or on a cluster: the same is asked of every replica and sidecar."""

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from kveval.campaign.specification import Specification
from kveval.engines.servers import answers, one_request
from kveval.engines.servers.declared import check_tiers, require_device_cache
from kveval.engines.servers.endpoint import Endpoint
from kveval.engines.watchdog import Check, StallWatch, Work
from kveval.stacks.model_server import ModelServer
from kveval.stacks.sidecar import Sidecar
from kveval.store.run_file import Answers, OneRequest, SidecarRecord

T = TypeVar("T")


class Server(ABC):
    """The server of a cell, or its replicas, and the sidecars: all answer and were checked to be what was declared.

    `argv`, `env`: command line of every server, and its environment without secrets; `facts`: what the first reported
    at its start.
    """

    startup_s = 0.0

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        sidecars: Sequence[Sidecar],
        argv: list[str],
        env: dict[str, str],
    ) -> None:
        self.endpoints, self.sidecars = endpoints, sidecars
        self.argv, self.env = argv, env
        self.facts: dict[str, Any] = {}

    @property
    def program(self) -> ModelServer:
        """The server program; the same in every replica."""
        return self.endpoints[0].program

    @property
    def version(self) -> str:
        """The version that the servers report."""
        return self.endpoints[0].version

    @property
    def sidecar_facts(self) -> list[SidecarRecord]:
        """The sidecars, as run.json describes them."""
        return [
            SidecarRecord(sidecar.name, sidecar.version, sidecar.argv)
            for sidecar in self.sidecars
        ]

    @abstractmethod
    def require_alive(self) -> None:
        """Raise a Failure if a process of the server (ServerDied) or of a sidecar has ended."""

    @abstractmethod
    def file_counters(self) -> dict[str, float]:
        """Return the number and the bytes of the files in the arm's file tier; empty without one."""

    @abstractmethod
    def empty_files(self) -> None:
        """Empty the arm's file tier, if it has one."""

    @abstractmethod
    def startup_log(self, endpoint: Endpoint) -> str:
        """Return a server's log from its start on."""

    def map_endpoints(self, do: Callable[[Endpoint], T]) -> list[T]:
        """Call `do` with every server and return the results in order."""
        return [do(endpoint) for endpoint in self.endpoints]

    def counters(self) -> dict[str, float]:
        """Return the counters of all servers, summed, of the sidecars, and of the file tier. Raises a Failure."""
        totals: dict[str, float] = defaultdict(float)
        for counters in self.map_endpoints(Endpoint.counters):
            for name, value in counters.items():
                totals[name] += value
        for sidecar in self.sidecars:
            totals |= sidecar.counters()
        return {**totals, **self.file_counters()}

    def reset_caches(self, timeout_s: float = 20.0) -> None:
        """Empty every server's own caches and every tier behind them.

        The servers first, so that they do not write to a sidecar that has been emptied; for the same reason, LMCache
        before its store.
        """
        self.map_endpoints(lambda endpoint: endpoint.reset_caches(timeout_s))
        for sidecar in reversed(self.sidecars):
            sidecar.reset(timeout_s)
        self.empty_files()

    def warm_up(self, prompt_tokens: int) -> None:
        """Have every server generate a few tokens, before anything is measured."""
        for endpoint in self.endpoints:
            endpoint.warm_up(prompt_tokens)

    def check_answers(self, *, tier: bool, longest: int) -> Answers:
        """Compare every server's answers with and without its cache, see `answers`; leaves caches filled.

        On a cluster the requests go to the pods directly: a router might send a prompt and its repetition to two
        replicas. Each has its own prompts, because a shared tier must not have them from another replica.
        """
        tolerance_nats = answers.TOLERANCE_NATS
        if self.facts.get("random_weights"):
            tolerance_nats = answers.RANDOM_WEIGHTS_TOLERANCE_NATS
        comparisons = self.map_endpoints(
            lambda endpoint: answers.check(
                endpoint, tier=tier, longest=longest, tolerance_nats=tolerance_nats
            )
        )
        return comparisons[0] if len(comparisons) == 1 else answers.combine(comparisons)

    def time_one_request(self, *, tier: bool, prompt_tokens: int) -> OneRequest:
        """Time a request of some `prompt_tokens` tokens to the first server, see `one_request`; leaves caches filled."""
        return one_request.measure(
            self.endpoints[0], tier=tier, prompt_tokens=prompt_tokens
        )

    def require_declared(self, specification: Specification) -> None:
        """Raise a Failure unless version, model and sizes of all servers and sidecars are those of the campaign.

        Without sidecars, which have counters of their own, the servers must have those that the arm requires.
        """
        budget, versions = specification.budget, specification.versions
        for endpoint in self.endpoints:
            endpoint.require_declared(versions)
            if not self.sidecars:
                endpoint.require_counters()
            facts = self.program.startup_facts(self.startup_log(endpoint))
            require_device_cache(
                facts.get("kv_cache_tokens"), budget.device_tokens, endpoint.log
            )
            self.facts = self.facts or facts
        sizes = [
            reported
            for sidecar in self.sidecars
            if (reported := sidecar.reported_bytes()) is not None
        ]
        check_tiers(
            self.facts, sizes, budget.host_bytes, budget.split, self.endpoints[0].log
        )

    def stall_checks(
        self, limit_s: float, idle_s: float, loaded_s: float
    ) -> list[Check]:
        """Return the checks that detect a hanging server, or that no server gets requests; see StallWatch.

        One of several replicas may rightly get no requests; if none gets any, the load generator has failed.
        """
        alone = len(self.endpoints) == 1
        own = (idle_s, loaded_s) if alone else (math.inf, 0.0)
        watches = [
            StallWatch(endpoint.work, limit_s, own[0], endpoint.log, own[1])
            for endpoint in self.endpoints
        ]

        def all_work(timeout_s: float) -> Work:
            return Work(
                sum(
                    work.tokens
                    for work in self.map_endpoints(
                        lambda endpoint: endpoint.work(timeout_s)
                    )
                ),
                requests=0,
            )

        if not alone:
            watches.append(
                StallWatch(all_work, limit_s, idle_s, self.endpoints[0].log, loaded_s)
            )
        return [(watch.check, watch.interval_s) for watch in watches]
