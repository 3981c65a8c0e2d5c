"""The requests of a cell's levels, and what the caches that it has serve of them: its curves, and its `demands`."""

import heapq
import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from typing import NamedTuple

import numpy as np

from kveval.campaign.specification import Specification
from kveval.configuration.reuse import caches_of, serves_from_device
from kveval.load import levels as workloads
from kveval.load import traces
from kveval.load.guidellm import pauses_of
from kveval.load.loadside import sitecustomize
from kveval.load.trace_file import TraceRow, requests_of
from kveval.load.workload import Workload
from kveval.plugins.curve.simulation.curve import (
    ReuseCurve,
    ReuseCurves,
    assign_to_servers,
    served_by_request,
    split_by_server,
)
from kveval.plugins.curve.simulation.prompts import Prompts
from kveval.plugins.curve.simulation.service import Demanded, Floats
from kveval.stacks import lmcache
from kveval.stacks.tier_layout import match_steps

NOTHING_POINTS = 0.5
"""Percentage points: a tier that adds less is of no use, and sizes that differ by less count as equal."""
# Conversations that are drawn for each prefix: first, uncounted, until nearly every prefix has been visited; then those
# that count.
_DRAWN_BEFORE, _DRAWN = 6, 10
_DRAWN_AT_LEAST = 400
# Of so many blocks the curves take about a second.
_FEW_BLOCKS = 3_000_000
# Of a prompt, in whose mean half of it is lost at the end of what is shared.
_STEP_PART = 1 / 150
# What an answer of users with pauses takes until it was measured: for each of its tokens, seconds.
_ANSWER_TOKEN_S = 0.02


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
    def device_hit_share(self) -> float | None:
        """Share that the device alone serves."""
        return (
            None
            if self.device_tokens is None
            else self.device.share(self.device_tokens)
        )

    @property
    def hit_share_range(self) -> tuple[float, float] | None:
        """Smallest and largest share that device and tier serve; None if the device's size is not known."""
        if self.tier is None:
            return None
        low, high = (self.tier.share(self.tier_tokens * part) for part in self.usable)
        return low, high

    @property
    def adds_points(self) -> float | None:
        """Percentage points that the tier adds at most; None if the device's size is not known."""
        return (
            None
            if self.hit_share_range is None or self.device_hit_share is None
            else 100 * (self.hit_share_range[1] - self.device_hit_share)
        )


def curves_of(
    specification: Specification,
    level: int,
    run: int = 1,
    reported_tokens: int | None = None,
    requests: int | None = None,
    answer_s: float | None = None,
) -> CellCurves:
    """Return the curves of a level of a run, for its first `requests`, or, if None, for a load without end.

    `reported_tokens`: size of the device as a server reported it, if the configuration does not give it. `answer_s`:
    as in `prompts_of`.
    """
    serving = serving_of(specification, reported_tokens)
    if requests is None:
        step = step_tokens(specification.workload, level, serving.block)
        serving = replace(serving, block=step, chunk=max(step, serving.chunk))
    load = _Load(
        specification.workload,
        level,
        run,
        requests,
        serving.block,
        serving.servers,
        serving.by_prefix,
        answer_s,
    )
    return _of_cell(specification, serving, partial(_curve, load))


@cache
def step_tokens(workload: Workload, level: int, block: int) -> int:
    """Return the tokens in steps of which a load without end is followed: a block's, or of very many blocks several.

    Prompts that share a beginning then share up to a step less of it, which of prompts as long is next to nothing.
    """
    most = _STEP_PART * mean_prompt_tokens(workload, level)
    step = block
    while (
        2 * step <= most
        and block_count(workload, level, block) * block > step * _FEW_BLOCKS
    ):
        step *= 2
    return step


def mean_prompt_tokens(workload: Workload, level: int) -> int:
    """Return the mean tokens of a prompt over the turns of a conversation, each of which repeats those before."""
    turn = workload.prompt_tokens + workload.output_tokens
    earlier = turn * (workload.turns - 1) // 2
    begin = workloads.prefix_tokens_at(workload, level) + workload.document_tokens
    return begin + earlier + workload.prompt_tokens


def curves_of_prompts(
    specification: Specification, prompts: Prompts, reported_tokens: int | None = None
) -> CellCurves:
    """Return the curves of requests as they were sent; `reported_tokens` as in `curves_of`."""
    serving = serving_of(specification, reported_tokens)
    each = split_by_server(prompts, serving.servers, serving.by_prefix)
    return _of_cell(specification, serving, ReuseCurves(each, serving.block).curve)


def pooled_shares(
    specification: Specification, prompts: Prompts, curves: CellCurves
) -> tuple[float, float | None]:
    """Return the share of the prompt tokens that came before, and the share that all servers' caches together can hold.

    `curves`: of the same requests as their servers get them. The caches of several servers are taken as one of their
    summed sizes, which every request is looked up in; None where the device's size is not known.
    """
    serving = serving_of(specification, curves.device_tokens)
    if serving.servers == 1:
        held = curves.hit_share_range
        return curves.device.ceiling, None if held is None else held[1]
    pooled = ReuseCurves([prompts], serving.block)
    offered = pooled.curve().ceiling
    if serving.device_tokens is None:
        return offered, None
    behind = serving.servers * serving.device_tokens, serving.chunk
    tier_tokens = serving.servers * curves.tier_tokens * curves.usable[1]
    return offered, pooled.curve(behind).share(tier_tokens)


@dataclass(frozen=True)
class Serving:
    """How a cell's servers divide and look up prompts, in tokens of a block and a tier's chunk; each device's size."""

    block: int
    servers: int
    by_prefix: bool
    chunk: int
    device_tokens: int | None


def serving_of(
    specification: Specification, reported_tokens: int | None = None
) -> Serving:
    """Return how a cell's servers work; `reported_tokens` as in `curves_of`."""
    deployment = specification.deployment
    block, chunk = match_steps(specification)
    return Serving(
        block=block,
        servers=1 if deployment is None else deployment.replicas,
        # Behind llm-d's router, with or without a gateway; a service deals requests out in turn.
        by_prefix=deployment is not None and deployment.route != "service",
        chunk=lmcache.CHUNK_TOKENS if "lmcache" in specification.versions else chunk,
        device_tokens=caches_of(specification, reported_tokens).device,
    )


def _of_cell(
    specification: Specification, serving: Serving, curve: Callable[..., ReuseCurve]
) -> CellCurves:
    device = serving.device_tokens
    tier = None if device is None else curve((device, serving.chunk))
    holds = lmcache.HOLDS if "lmcache" in specification.versions else (1.0, 1.0)
    return CellCurves(curve(), tier, device, caches_of(specification).tier, holds)


class _Load(NamedTuple):
    """The requests of a level, and how they are divided among servers: the same for cells of different arms."""

    workload: Workload
    level: int
    run: int
    requests: int | None
    block: int
    servers: int
    by_prefix: bool
    answer_s: float | None


@cache
def _curve(load: _Load, behind: tuple[int, int] | None = None) -> ReuseCurve:
    return _curves(load).curve(behind)


@lru_cache(maxsize=1)
def _curves(load: _Load) -> ReuseCurves:
    prompts = prompts_of(
        load.workload,
        load.level,
        load.run,
        load.block,
        load.requests,
        answer_s=load.answer_s,
    )
    each = split_by_server(prompts, load.servers, load.by_prefix)
    return ReuseCurves(each, load.block)


def order_is_assumed(workload: Workload) -> bool:
    """Return whether answers decide the order of requests: conversations of several turns that arrive by a schedule.

    At each arrival GuideLLM 0.8 sends the next turn of the first conversation whose last answer is back, and begins
    another if there is none: if answers take longer than the time between arrivals, several conversations alternate.
    Here each conversation ends before the next begins.
    """
    return workload.turns > 1 and workload.profile in ("poisson", "constant", "sweep")


def worst_order_is_assumed(workload: Workload) -> bool:
    """Return whether several streams of a closed loop have conversations of several turns.

    Here they take their turns strictly one after the other, so that every other conversation comes between two turns of
    one: the worst order for a cache that drops what was used least recently. Real streams overtake each other. With
    pauses, it is the pauses that decide, see `assumed_answer_s`.
    """
    streams = (
        workloads.streams_at(workload, level) or 0 for level in workload.given_levels
    )
    return (
        workload.turns > 1
        and workload.profile not in workloads.REPLAYS
        and not workloads.has_pauses(workload)
        and max(streams, default=0) > 1
    )


def assumed_answer_s(workload: Workload) -> float:
    """Return the seconds from a question to the end of its answer, until they were measured: 20 ms a token.

    Where answers last longer, more of other users' questions come between two of one user.
    """
    return _ANSWER_TOKEN_S * workload.output_tokens


def prompts_of(
    workload: Workload,
    level: int,
    run: int,
    block_tokens: int,
    requests: int | None = None,
    order: Sequence[tuple[int, int]] | None = None,
    answer_s: float | None = None,
) -> Prompts:
    """Return the requests of a level of a run in order of arrival, the first `requests` if given.

    `order`: conversations, numbered as they began, and their turns, in the order in which they were sent; drawn if None.
    `answer_s`: seconds from a question to the end of its answer, where users pause after it; None for an assumed time.

    Without that number: of a trace those of the level's time, or all in a closed loop; of other loads enough to
    visit nearly every prefix, and then those that count.
    """
    if workload.profile not in workloads.REPLAYS:
        seed = _seed(workload, level, run)
        return _conversations(
            workload, level, seed, block_tokens, requests, order, answer_s
        )
    return Prompts.of_rows(
        _rows(workload, level, run)[:requests], traces.block_tokens(workload, level)
    )


def _seed(workload: Workload, level: int, run: int) -> int:
    """The seed of a level, as kveval.load.guidellm draws with it."""
    return workload.seed + 100_000 * run + workload.given_levels.index(level)


def _rows(workload: Workload, level: int, run: int) -> list[TraceRow]:
    """The requests of a level that are read from a file: those of its time, or all in a closed loop."""
    rows = traces.rows(workload, level, _seed(workload, level, run))
    return [
        row
        for row in rows
        if workload.profile == "trace-streams" or row.timestamp < workload.seconds
    ]


def demands(
    specification: Specification,
    level: int,
    run: int,
    requests: int,
    device_tokens: float,
    tier_tokens: Sequence[float],
) -> list[list[Demanded]]:
    """Return a level's first requests for `service`, by size of the tier and by server.

    `requests`: the most that a closed loop may send; an open loop sends those of the level's time. `device_tokens`: what
    the device has room for, whether or not it serves later requests from it.
    `tier_tokens`: sizes of one server's tier, of which only what is used before eviction.
    """
    workload, serving = specification.workload, serving_of(specification)
    times = _arrivals_s(workload, level, run)
    prompts = prompts_of(
        workload, level, run, serving.block, requests if times is None else len(times)
    )
    server = assign_to_servers(prompts, serving.servers, serving.by_prefix)
    kept_tokens = device_tokens if serves_from_device(specification) else 0
    pauses_s = _pauses_s(workload, level, run, prompts)
    by_size: list[list[Demanded]] = [[] for _ in tier_tokens]
    for number in range(serving.servers):
        own = prompts.subset(server == number)
        on_device, in_tier = served_by_request(
            own, serving.block, kept_tokens, tier_tokens, serving.chunk
        )
        kept = own.counted
        for of_size, added in zip(by_size, in_tier, strict=True):
            of_size.append(
                Demanded(
                    arrivals_s=None
                    if times is None
                    else times[server[prompts.counted] == number],
                    input_tokens=own.input_tokens[kept],
                    output_tokens=np.maximum(1, own.output_tokens[kept]),
                    on_device=on_device[kept],
                    in_tier=added[kept],
                    groups=own.first_ids[kept],
                    pauses_s=None
                    if pauses_s is None
                    else pauses_s[server[prompts.counted] == number],
                    arrival_s=workload.arrival_s,
                )
            )
    return by_size


def _arrivals_s(workload: Workload, level: int, run: int) -> Floats | None:
    """Arrival times within a level, s, drawn as the load generator draws them; None in a closed loop."""
    if workload.profile not in workloads.OPEN_LOOP:
        return None
    if workload.profile in workloads.REPLAYS:
        return np.array([row.timestamp for row in _rows(workload, level, run)])
    rate = workloads.rate_req_s_at(workload, level)
    assert rate is not None, "only a closed loop has no rate"
    count = int(rate * workload.seconds)
    if workload.profile == "constant":
        return np.arange(count) / rate
    generator = random.Random(run)
    return np.array(
        [*itertools.accumulate(generator.expovariate(rate) for _ in range(count))]
    )


def _pauses_s(
    workload: Workload, level: int, run: int, prompts: Prompts
) -> Floats | None:
    """The pause after the answer to each counted request, s, 0 after a conversation's last; None without pauses."""
    if not workloads.has_pauses(workload):
        return None
    seed, count = _seed(workload, level, run), int(prompts.counted.sum())
    order = _of_users(workload, level, seed)
    return np.array([pause for _, _, pause in itertools.islice(order, count)])


def block_count(workload: Workload, level: int, block_tokens: int) -> float:
    """Estimate how many blocks `curves_of` makes of the requests of a level, without making them."""
    if workload.content is not None:
        rows = requests_of(workload.content)
        return sum(row.input_length + row.output_length for row in rows) / block_tokens
    new, prefix = (
        workload.prompt_tokens + workload.output_tokens,
        workloads.prefix_tokens_at(workload, level) + workload.document_tokens,
    )
    if workload.profile in workloads.REPLAYS:
        return (
            (workloads.rate_req_s_at(workload, level) or 0.0)
            * workload.seconds
            * (prefix + new)
            / block_tokens
        )
    before, counted = _drawn_conversations(workload, level)
    turns = workload.turns
    return (before + counted) * turns * (prefix + new * (turns + 1) / 2) / block_tokens


def _drawn_conversations(workload: Workload, level: int) -> tuple[int, int]:
    """How many conversations are drawn, or primed, before any counts, and how many count, for a load without end."""
    count = workloads.prefix_count_at(workload, level)
    before = count if workload.prime else 0
    return before or max(_DRAWN_AT_LEAST, _DRAWN_BEFORE * count), max(
        _DRAWN_AT_LEAST, _DRAWN * count
    )


def _conversations(
    workload: Workload,
    level: int,
    seed: int,
    block_tokens: int,
    requests: int | None = None,
    order: Sequence[tuple[int, int]] | None = None,
    answer_s: float | None = None,
) -> Prompts:
    """Conversations over shared prefixes, as many at once as there are streams, with alternating turns.

    GuideLLM 0.8 draws the prefixes with a generator of its own that is seeded from the level's seed.
    """
    generator = _drawing(seed)
    prefix, count = (
        workloads.prefix_tokens_at(workload, level),
        workloads.prefix_count_at(workload, level),
    )
    primed = count if workload.prime else 0
    if requests is None:
        before, counting = _drawn_conversations(workload, level)
        total = before + counting
    else:
        before, total = primed, primed + requests
    new = workload.prompt_tokens + workload.output_tokens
    begin = prefix + workload.document_tokens
    # Ids of whole blocks: those within a prefix are shared, all others a conversation's own.
    shared = prefix // block_tokens
    longest = -(-(begin + workload.turns * new) // block_tokens)
    # Of each request its conversation, the prefix drawn, and the tokens of prompt and answer.
    sent: list[tuple[int, int, int, int]] = []
    for number, drawn in enumerate(_order_drawn(seed, primed)):
        sent.append((number, drawn, prefix, 0))
    choices = _choices(count, workload.prefix_zipf)
    prefix_of: dict[int, int] = {}
    drawn_order = _turns(workload, level, seed, total - primed, answer_s)
    for number, turn in order or drawn_order:
        if requests is not None and len(sent) >= total:
            break
        # Drawn in the order in which conversations begin.
        while count and len(prefix_of) <= number:
            prefix_of[len(prefix_of)] = generator.choice(choices)
        sent.append(
            (
                primed + number,
                prefix_of.get(number, 0),
                begin + turn * new + workload.prompt_tokens,
                workload.output_tokens,
            )
        )
    conversation, prefixes, inputs, outputs = np.array(sent, np.int64).reshape(-1, 4).T
    lengths = -(-(inputs + outputs) // block_tokens)
    heads = np.minimum(shared, lengths)
    first_ids = np.column_stack(
        (prefixes * shared, count * shared + conversation * longest + heads)
    ).ravel()
    counts = np.column_stack((heads, lengths - heads)).ravel()
    return Prompts(
        hash_ids=np.repeat(first_ids - (np.cumsum(counts) - counts), counts)
        + np.arange(counts.sum()),
        offsets=np.concatenate(([0], np.cumsum(lengths))),
        hash_tokens=block_tokens,
        input_tokens=inputs,
        output_tokens=outputs,
        counted=conversation >= before,
        answers_known=True,
    )


def _turns(
    workload: Workload,
    level: int,
    seed: int,
    conversations: int,
    answer_s: float | None,
) -> Iterator[tuple[int, int]]:
    """Conversations, numbered from 0 on, and their turns, in the order in which they are sent."""
    if workload.profile != "users":
        streams = workloads.streams_at(workload, level) or 1
        yield from _alternating(streams, workload.turns, conversations)
        return
    for number, turn, _ in _of_users(workload, level, seed, conversations, answer_s):
        yield number, turn


def _alternating(
    streams: int, turns: int, conversations: int
) -> Iterator[tuple[int, int]]:
    """Conversations and their turns in the order of streams that send strictly one after the other."""
    numbers = iter(range(conversations))
    running = [(number, 0) for number in itertools.islice(numbers, streams)]
    while running:
        number, turn = running.pop(0)
        yield number, turn
        if turn + 1 < turns:
            running.append((number, turn + 1))
        else:
            running += [(number, 0) for number in itertools.islice(numbers, 1)]


def _of_users(
    workload: Workload,
    level: int,
    seed: int,
    conversations: int | None = None,
    answer_s: float | None = None,
) -> Iterator[tuple[int, int, float]]:
    """Conversations and turns of users in order of time, each with the seconds of the pause after its answer.

    As kveval.load.loadside has GuideLLM send them; without end, or so many `conversations`. `answer_s` as in `prompts_of`.
    """
    if answer_s is None:
        answer_s = assumed_answer_s(workload)
    numbers = itertools.count() if conversations is None else range(conversations)
    left = iter(numbers)
    # The time of a question, its user, its conversation and its turn.
    coming = [
        (workload.arrival_s * user / level, user, number, 0)
        for user, number in enumerate(itertools.islice(left, level))
    ]
    pauses_s: dict[int, list[float]] = {}
    while coming:
        time, user, number, turn = heapq.heappop(coming)
        if not turn:
            turns = sitecustomize.turns_of(number, level, workload.turns)
            drawn = sitecustomize.pauses(pauses_of(workload), seed, number, turns)
            pauses_s[number] = [*drawn, 0.0]
        pause_s = pauses_s[number][turn]
        yield number, turn, pause_s
        following = (number, turn + 1)
        if turn + 1 == len(pauses_s[number]):
            del pauses_s[number]
            following = (next(left, -1), 0)
        if following[0] >= 0:
            heapq.heappush(coming, (time + answer_s + pause_s, user, *following))


def _drawing(seed: int) -> random.Random:
    """The generator with which GuideLLM 0.8 draws the prefixes of a level with this seed."""
    return random.Random(random.Random(seed).getrandbits(32) + 3)


def _choices(count: int, zipf: float) -> Sequence[int]:
    """The prefixes as GuideLLM 0.8 draws among them: each as often as its weight says, in the same order."""
    groups = workloads.popularity(count, zipf)
    common = math.gcd(*(weight for weight, _ in groups))
    first, choices = 0, list[int]()
    for weight, number in groups:
        choices += [*range(first, first + number)] * (weight // common)
        first += number
    return choices


def _order_drawn(seed: int, count: int) -> list[int]:
    """Prefixes in the order in which each is drawn first, which is the order in which they are primed."""
    generator, prefixes = _drawing(seed), dict[int, None]()
    while len(prefixes) < count:
        prefixes[generator.choice(range(count))] = None
    return [*prefixes]


def needed_sizes(
    curve: ReuseCurve, parts: Sequence[float] = (0.5, 0.9)
) -> list[tuple[float, int]]:
    """Return the smallest sizes, in tokens, that add these parts of the most that any size adds."""
    return [
        (part, size) for part in parts if (size := curve.size_for(part)) is not None
    ]
