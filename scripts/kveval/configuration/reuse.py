"""The part of a workload's prompts that caches can serve: what comes again, what the device holds, what a tier holds.

Computed before anything is measured, for caches with LRU eviction and for conversations that draw
their prefixes at random, once every prefix has been visited. A tier has a copy of what the device has, so the
larger of the two counts and not their sum: both of vLLM's own tiers and LMCache store what the device computes.
"""

import math
from dataclasses import dataclass
from functools import cache

from kveval.campaign.specification import Specification
from kveval.load import levels as workloads
from kveval.load.visits import visited, visited_groups
from kveval.stacks.keyvalue import STORES
from kveval.stacks.registry import server_of
from kveval.stacks.tier_layout import (
    device_tokens_in_rows,
    in_rows,
    match_steps,
    tokens_in_rows,
)

_HALVINGS = 60


@dataclass(frozen=True)
class Demand:
    """The prompts that one server gets at a level, by conversation, in tokens.

    Attributes:
        prefixes: distinct prefixes; over several servers a server's part of them.
        prefix_tokens: of one prefix; 0 where it is shorter than a block of the server, which is never found again.
        own_tokens: of one conversation beside its prefix, its document, prompts and answers of all its turns.
        turns: of one conversation.
        prompt_tokens: of all its prompts; each repeats the prefix and the turns before.
        earlier_tokens: of these, what an earlier turn of the same conversation had.
        output_tokens: of all its answers.
        streams: conversations in progress at once; None in an open loop.
        zipf: how unequally often the prefixes are drawn, 0 for all equally, see `popularity`.
    """

    prefixes: int
    prefix_tokens: int
    own_tokens: int
    turns: int
    prompt_tokens: int
    earlier_tokens: int
    output_tokens: int
    streams: int | None
    zipf: float = 0.0

    @property
    def working_set_tokens(self) -> int:
        """Tokens of all distinct prefixes."""
        return self.prefixes * self.prefix_tokens

    @property
    def reused(self) -> float:
        """Share of the prompt tokens that came before, in a prefix or in an earlier turn."""
        return (self.prefix_tokens + self.earlier_tokens) / self.prompt_tokens

    @property
    def in_use_tokens(self) -> float | None:
        """Tokens of the conversations in progress, a shared prefix once; None where their number is not known."""
        if self.streams is None:
            return None
        return (
            visited(self.prefixes, self.streams, self.zipf) * self.prefix_tokens
            + self.streams * self.own_tokens
        )

    def found(self, capacity_tokens: float) -> float:
        """Return the share of prompt tokens that a cache of a size serves.

        Earlier turns are found if the conversations in progress fit; otherwise only their prefix is: between two turns
        of a conversation all others have one, and in such a cycle LRU evicts just what is needed next.
        """
        held = prefixes_found(
            self.prefixes,
            self.prefix_tokens,
            self.own_tokens,
            capacity_tokens,
            self.zipf,
        )
        fit = self.in_use_tokens is None or capacity_tokens >= self.in_use_tokens
        earlier = (
            self.earlier_tokens if fit else (self.turns - 1) * self.prefix_tokens * held
        )
        return (self.prefix_tokens * held + earlier) / self.prompt_tokens

    def first_visits(self, before: float, within: float) -> float:
        """Return the share of a window's prompt tokens that are prefixes visited for the first time.

        `before`, `within`: conversations that began before the window and in it, from empty caches on.
        """
        if not self.prefixes or not within:
            return 0.0
        new = visited(self.prefixes, before + within, self.zipf)
        new -= visited(self.prefixes, before, self.zipf)
        return new * self.prefix_tokens / (within * self.prompt_tokens)


@dataclass(frozen=True)
class Caches:
    """The tokens that the caches of one server hold.

    `device`: None until a server of this kind has reported it, 0 where it serves no later request; `device_at_least`:
    a lower bound; `tier`: 0 without one, infinite if nothing bounds it; `room`: for requests in progress, at least that,
    since a server refuses to start if one conversation of full length does not fit.
    """

    device: int | None
    device_at_least: int
    tier: float
    room: int


@dataclass(frozen=True)
class LevelReuse:
    """The share of a level's prompt tokens that the device alone can serve, and that it can with a tier."""

    level: int
    demand: Demand
    caches: Caches

    @property
    def device(self) -> float | None:
        """Share of the prompt tokens that the device alone serves; None where its size is not known."""
        return (
            None
            if self.caches.device is None
            else self.demand.found(self.caches.device)
        )

    @property
    def served(self) -> float:
        """Share that device and tier serve; at least that, where the device's size is not known."""
        return self.demand.found(max(self.caches.device_at_least, self.caches.tier))

    @property
    def saved(self) -> float:
        """The most that the tier saves, as a share of the tokens (prompts and answers) computed without it.

        A token of an answer takes at least as long as one of a prompt, and an unknown device may hold more.
        """
        alone, prompts = (
            self.demand.found(self.caches.device_at_least),
            self.demand.prompt_tokens,
        )
        return (
            (self.served - alone)
            * prompts
            / ((1 - alone) * prompts + self.demand.output_tokens)
        )

    @property
    def overflows(self) -> bool:
        """Whether requests in progress may outgrow the device, so that a tier can save what preemption drops."""
        in_use = self.demand.in_use_tokens
        return in_use is None or in_use > self.caches.room


@cache
def prefixes_found(
    prefixes: int,
    prefix_tokens: int,
    own_tokens: int,
    capacity_tokens: float,
    zipf: float = 0.0,
) -> float:
    """Return the share of visits whose prefix a least-recently-used cache holds.

    It holds what the last n conversations touched: their distinct prefixes, and what each has of its own. The n that
    fills it is found by bisection (Che, Tung and Wang, "Hierarchical web caching systems", IEEE JSAC 20(7), 2002).
    """
    if not prefixes or not prefix_tokens:
        return 0.0
    if math.isinf(capacity_tokens):
        return 1.0
    low, high = 0.0, capacity_tokens / own_tokens
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        fits = (
            visited(prefixes, middle, zipf) * prefix_tokens + middle * own_tokens
            <= capacity_tokens
        )
        low, high = (middle, high) if fits else (low, middle)
    if prefixes == 1:
        return visited(prefixes, low)
    groups = visited_groups(prefixes, low, zipf)
    return sum(chance * number * held for chance, number, held in groups)


def demand_of(specification: Specification, level: int) -> Demand:
    """Return what one server is asked for at a level; a router keeps requests of one prefix on one server."""
    workload, deployment = specification.workload, specification.deployment
    servers = 1 if deployment is None else deployment.replicas
    routed = servers if deployment is not None and deployment.route != "service" else 1
    prefix, streams = (
        workloads.prefix_tokens_at(workload, level),
        workloads.streams_at(workload, level),
    )
    turns, new = workload.turns, workload.prompt_tokens + workload.output_tokens
    document = workload.document_tokens
    found_again = prefix >= match_steps(specification)[0]
    # A turn's prompt has the prefix, the document, and prompt and answer of every turn before it.
    earlier = (turns - 1) * (prefix + document) + new * turns * (turns - 1) // 2
    return Demand(
        prefixes=math.ceil(workloads.prefix_count_at(workload, level) / routed)
        if found_again
        else 0,
        prefix_tokens=prefix if found_again else 0,
        own_tokens=turns * new + document + (0 if found_again else prefix),
        turns=turns,
        prompt_tokens=prefix + document + earlier + turns * workload.prompt_tokens,
        earlier_tokens=earlier,
        output_tokens=turns * workload.output_tokens,
        streams=None if streams is None else math.ceil(streams / servers),
        zipf=workload.prefix_zipf,
    )


def caches_of(
    specification: Specification,
    reported_tokens: int | None = None,
    least_tokens: int = 0,
) -> Caches:
    """Return the sizes of one server's caches; `reported_tokens`: of the device, as an earlier run reported them.

    `least_tokens`: what the device is estimated to hold at least, where its size is not known.
    """
    device = specification.budget.device_tokens or reported_tokens
    if device is not None and specification.model.geometry.grouped:
        device = device_tokens_in_rows(specification, device)
    room = device or max(least_tokens, specification.model.max_model_len)
    tier = _tier_tokens(specification)
    if not serves_from_device(specification):
        return Caches(0, 0, tier, room)
    return Caches(device, room, tier, room)


def serves_from_device(specification: Specification) -> bool:
    """Whether a server's device keeps what later requests ask for again, as arguments may forbid it."""
    server = server_of(specification.versions)
    return server.serves_from_device(specification.argv)


def _tier_tokens(specification: Specification) -> float:
    """The tokens of the largest tier: all tiers store the same tokens, even two that share one budget."""
    budget, limit = specification.budget, "--maxmemory"
    if in_rows(specification) and not budget.split:
        level = (specification.workload.given_levels or (1,))[0]
        size = tokens_in_rows(specification, budget.tier_bytes, level)
        return math.inf if specification.file_tier and size else size
    sizes: list[float] = [*budget.split.values()] or [budget.tier_bytes]
    for argv in (
        sidecar.argv
        for sidecar in specification.sidecars
        if sidecar.name in STORES and budget.tier_bytes
    ):
        sizes.append(float(argv[argv.index(limit) + 1]) if limit in argv else math.inf)
    if specification.file_tier or math.isinf(max(sizes)):
        return math.inf
    return max(sizes) // specification.model.kv_bytes_per_token


def reuse_of(
    specification: Specification,
    reported_tokens: int | None = None,
    least_tokens: int = 0,
) -> list[LevelReuse]:
    """Return the reuse at each level of a cell; for `reported_tokens` and `least_tokens` see `caches_of`."""
    caches = caches_of(specification, reported_tokens, least_tokens)
    levels = specification.workload.given_levels or (1,)
    return [
        LevelReuse(level, demand_of(specification, level), caches) for level in levels
    ]
