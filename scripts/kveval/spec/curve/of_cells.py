"""The curves of a cell: of the requests of its levels, on the caches that it has."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np

from kveval.load import levels as workloads
from kveval.load import traces
from kveval.load.workload import WorkloadSpec
from kveval.spec.arms import LMCACHE_CHUNK_TOKENS
from kveval.spec.curve.curve import ReuseCurve, TierRules, device_curve, replicas, tier_curve
from kveval.spec.curve.prompts import Prompts
from kveval.spec.reuse import caches_of
from kveval.spec.specification import Specification

# LMCache 0.5 evicts a fifth of its chunks as soon as it is four fifths full, so it holds 64 to 80 %.
LMCACHE_HOLDS = (0.64, 0.8)
NOTHING_POINTS = 0.5
"""Percentage points: a tier that adds less is of no use, and sizes that differ by less count as equal."""
# Conversations that are drawn for each prefix: first, uncounted, until nearly every prefix has been visited; then those
# that count.
_DRAWN_BEFORE, _DRAWN = 6, 10
_DRAWN_AT_LEAST = 400


@dataclass(frozen=True)
class CellCurves:
    """The shares of a level's prompt tokens that a cell's caches serve.

    Attributes:
        device: the curve of devices without a tier.
        tier: the curve of tiers behind the cell's device; None if the device's size is not known.
        device_tokens: size of one server's device; None until a server has reported it.
        tier_tokens: size of one server's tier; 0 without one.
        usable: the smallest and the largest share of a tier that is used before it evicts.
    """

    device: ReuseCurve
    tier: ReuseCurve | None
    device_tokens: int | None
    tier_tokens: float
    usable: tuple[float, float]

    @property
    def alone(self) -> float | None:
        """Share that the device alone serves."""
        return None if self.device_tokens is None else self.device.share(self.device_tokens)

    @property
    def served(self) -> tuple[float, float] | None:
        """Smallest and largest share that device and tier serve; None if the device's size is not known."""
        if self.tier is None:
            return None
        low, high = (self.tier.share(self.tier_tokens * part) for part in self.usable)
        return low, high

    @property
    def adds_points(self) -> float | None:
        """Percentage points that the tier adds at most; None if the device's size is not known."""
        return None if self.served is None or self.alone is None else 100 * (self.served[1] - self.alone)


def curves_of(
    specification: Specification,
    level: int,
    run: int = 1,
    reported_tokens: int | None = None,
    requests: int | None = None,
) -> CellCurves:
    """Return the curves of a level of a run, for its first `requests`, or, if None, for a load without end.

    `reported_tokens`: size of the device as a server reported it, if the configuration does not give it.
    """
    serving = serving_of(specification, reported_tokens)
    load = _Load(specification.workload, level, run, requests, serving.block, serving.servers, serving.by_prefix)
    tier = None if serving.device_tokens is None else _tier(load, serving.rules, serving.device_tokens)
    return _of_cell(specification, serving, _device(load), tier)


def curves_of_prompts(specification: Specification, prompts: Prompts, reported_tokens: int | None = None) -> CellCurves:
    """Return the curves of requests as they were sent; `reported_tokens` as in `curves_of`."""
    serving = serving_of(specification, reported_tokens)
    each, known = replicas(prompts, serving.servers, serving.by_prefix), serving.device_tokens
    tier = None if known is None else tier_curve(each, serving.block, known, serving.rules)
    return _of_cell(specification, serving, device_curve(each, serving.block), tier)


@dataclass(frozen=True)
class Serving:
    """How a cell's servers look up and divide prompts, and the size of each one's device."""

    block: int
    servers: int
    by_prefix: bool
    rules: TierRules
    device_tokens: int | None


def serving_of(specification: Specification, reported_tokens: int | None = None) -> Serving:
    """Return how a cell's servers work; `reported_tokens` as in `curves_of`."""
    deployment, block = specification.deployment, specification.block_size
    return Serving(
        block=block,
        servers=1 if deployment is None else deployment.replicas,
        by_prefix=deployment is not None and deployment.route == "gateway",
        rules=TierRules(LMCACHE_CHUNK_TOKENS if _chunked(specification) else block),
        device_tokens=caches_of(specification, reported_tokens).device,
    )


def _chunked(specification: Specification) -> bool:
    return "lmcache" in specification.versions


def _of_cell(specification: Specification, serving: Serving, device: ReuseCurve, tier: ReuseCurve | None) -> CellCurves:
    holds = LMCACHE_HOLDS if _chunked(specification) else (1.0, 1.0)
    return CellCurves(device, tier, serving.device_tokens, caches_of(specification).tier, holds)


class _Load(NamedTuple):
    """The requests of a level, and how they are divided among servers: the same for cells of different arms."""

    workload: WorkloadSpec
    level: int
    run: int
    requests: int | None
    block: int
    servers: int
    by_prefix: bool


@cache
def _device(load: _Load) -> ReuseCurve:
    return device_curve(_each(load), load.block)


@cache
def _tier(load: _Load, rules: TierRules, device_tokens: int) -> ReuseCurve:
    return tier_curve(_each(load), load.block, device_tokens, rules)


@lru_cache(maxsize=1)
def _each(load: _Load) -> list[Prompts]:
    prompts = prompts_of(load.workload, load.level, load.run, load.block, load.requests)
    return replicas(prompts, load.servers, load.by_prefix)


def order_is_assumed(workload: WorkloadSpec) -> bool:
    """Return whether answers decide the order of requests: conversations of several turns that arrive by a schedule.

    At each arrival GuideLLM 0.8 sends the next turn of the first conversation whose last answer is back, and begins
    another if there is none: if answers take longer than the time between arrivals, several conversations alternate.
    Here each conversation ends before the next begins.
    """
    return workload.turns > 1 and workload.profile in ("poisson", "constant", "sweep")


def prompts_of(workload: WorkloadSpec, level: int, run: int, block_tokens: int, requests: int | None = None) -> Prompts:
    """Return the requests of a level of a run in order of arrival, the first `requests` if given.

    Without that number: of a trace those of the level's time, or all in a closed loop; of other loads enough to
    visit nearly every prefix, and then those that count.
    """
    seed = workload.seed + 100_000 * run + workload.given_levels.index(level)
    if workload.profile not in workloads.REPLAYS:
        return _conversations(workload, level, seed, block_tokens, requests)
    rows = list(traces.rows(workload, level, seed))
    if workload.profile != "trace-streams":
        rows = [row for row in rows if row.timestamp < workload.seconds]
    return Prompts.of_rows(rows[:requests], traces.block_tokens(workload, level))


def block_count(workload: WorkloadSpec, level: int, block_tokens: int) -> float:
    """Estimate how many blocks `curves_of` makes of the requests of a level, without making them."""
    if workload.trace is not None:
        tokens = sum(row.input_length + row.output_length for row in traces.from_start(workload.trace))
        return tokens / block_tokens
    new, prefix = workload.prompt_tokens + workload.output_tokens, workloads.prefix_tokens_at(workload, level)
    if workload.profile in workloads.REPLAYS:
        return (workloads.rate_req_s_at(workload, level) or 0.0) * workload.seconds * (prefix + new) / block_tokens
    before, counted = _drawn_conversations(workload, level)
    turns = workload.turns
    return (before + counted) * turns * (prefix + new * (turns + 1) / 2) / block_tokens


def _drawn_conversations(workload: WorkloadSpec, level: int) -> tuple[int, int]:
    """How many conversations are drawn, or primed, before any counts, and how many count, for a load without end."""
    count = workloads.prefix_count_at(workload, level)
    before = count if workload.prime else 0
    return before or max(_DRAWN_AT_LEAST, _DRAWN_BEFORE * count), max(_DRAWN_AT_LEAST, _DRAWN * count)


def _conversations(
    workload: WorkloadSpec, level: int, seed: int, block_tokens: int, requests: int | None = None
) -> Prompts:
    """Conversations over shared prefixes, as many at once as there are streams, with alternating turns.

    GuideLLM 0.8 draws the prefixes with a generator of its own that is seeded from the level's seed.
    """
    generator = _drawing(seed)
    prefix, count = workloads.prefix_tokens_at(workload, level), workloads.prefix_count_at(workload, level)
    primed = count if workload.prime else 0
    if requests is None:
        before, counting = _drawn_conversations(workload, level)
        total = before + counting
    else:
        before, total = primed, primed + requests
    streams = workloads.streams_at(workload, level) or 1
    new = workload.prompt_tokens + workload.output_tokens
    # Ids of whole blocks: those within a prefix are shared, all others a conversation's own.
    shared = prefix // block_tokens
    longest = -(-(prefix + workload.turns * new) // block_tokens)
    pieces: list[tuple[int, int]] = []
    inputs: list[int] = []
    outputs: list[int] = []
    lengths: list[int] = []
    counted: list[bool] = []
    numbers = itertools.count()

    def add(number: int, drawn: int, tokens: int, output: int) -> None:
        """Append a request to the sequence."""
        needed = -(-(tokens + output) // block_tokens)
        head, own = min(shared, needed), count * shared + number * longest
        pieces.extend(((drawn * shared, head), (own + head, needed - head)))
        inputs.append(tokens)
        outputs.append(output)
        lengths.append(needed)
        counted.append(number >= before)

    for drawn in _order_drawn(seed, primed):
        add(next(numbers), drawn, prefix, 0)
    running: list[tuple[int, int, int]] = []
    while requests is None or len(inputs) < total:
        while len(running) < streams and (number := next(numbers)) < total:
            running.append((number, generator.choice(range(count)) if count else 0, 0))
        if not running:
            break
        number, drawn, turn = running.pop(0)
        add(number, drawn, prefix + turn * new + workload.prompt_tokens, workload.output_tokens)
        if turn + 1 < workload.turns:
            running.append((number, drawn, turn + 1))
    begins, counts = np.array(pieces, np.int64).reshape(-1, 2).T
    return Prompts(
        hash_ids=np.repeat(begins - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum()),
        offsets=np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))),
        hash_tokens=block_tokens,
        input_tokens=np.array(inputs, np.int64),
        output_tokens=np.array(outputs, np.int64),
        counted=np.array(counted, bool),
        answers_known=True,
    )


def _drawing(seed: int) -> random.Random:
    """The generator with which GuideLLM 0.8 draws the prefixes of a level with this seed."""
    return random.Random(random.Random(seed).getrandbits(32) + 3)


def _order_drawn(seed: int, count: int) -> list[int]:
    """Prefixes in the order in which each is drawn first, which is the order in which they are primed."""
    generator, found = _drawing(seed), dict[int, None]()
    while len(found) < count:
        found[generator.choice(range(count))] = None
    return [*found]


def needed_sizes(curve: ReuseCurve, parts: Sequence[float] = (0.5, 0.9, 0.99)) -> list[tuple[float, int]]:
    """Return the smallest sizes, in tokens, that add these parts of the most that any size adds."""
    return [(part, size) for part in parts if (size := curve.size_for(part)) is not None]
