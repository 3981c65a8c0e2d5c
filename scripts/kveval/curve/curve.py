"""Share of the prompt tokens served against the size of a cache: of the device alone, and of a tier behind it."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from kveval.curve.distances import FIRST, GROUPS, Ints, Sample, reuse_distances
from kveval.curve.prompts import Blocks, Prompts

# For each block, the cache size in tokens that it needs, and the prompt tokens that it saves.
_Part = tuple[Ints, npt.NDArray[np.int32]]
_NEVER = np.iinfo(np.int64).max
_KNEE = 0.9
# Up to so many blocks, all are followed; of more, only a sample, which bounds time and memory.
EXACT_UP_TO = 50_000_000
_SAMPLED_PART = 0.2
# Sizes at which the parts of a sample are compared.
_COMPARED = 50


@dataclass(frozen=True)
class ReuseCurve:
    """The prompt tokens, of the counted requests, that a cache of each size serves.

    From `sizes[n]` tokens on (rising), a cache serves `served[n + 1]` of `prompt_tokens`, below `sizes[0]` it serves
    `served[0]`. Of several servers, all of one size, the size of one counts.

    Of very many blocks only the share `sampled` is counted; `error` is then the largest standard error of the share at
    any size, estimated from parts of the sample.
    """

    sizes: Ints
    served: Ints
    prompt_tokens: int
    sampled: float = 1.0
    error: float = 0.0

    def share(self, tokens: float) -> float:
        """Return the share of the prompt tokens that a cache of this size serves."""
        at = int(np.searchsorted(self.sizes, tokens, side="right"))
        return (
            float(self.served[at]) / self.prompt_tokens if self.prompt_tokens else 0.0
        )

    def shares(self, sizes: Iterable[float]) -> list[float]:
        """Return the share of the prompt tokens that a cache of each of these sizes serves."""
        return [self.share(size) for size in sizes]

    @property
    def base(self) -> float:
        """Share that is served without this cache."""
        return self.share(0)

    @property
    def ceiling(self) -> float:
        """Share that a cache of any size serves: all but first visits."""
        return self.share(np.inf)

    def size_for(self, part: float = _KNEE) -> int | None:
        """Return the smallest size, in tokens, that adds this part of the most that any adds; None if none adds any."""
        gain = self.served[-1] - self.served[0]
        if gain <= 0:
            return None
        return int(
            self.sizes[np.searchsorted(self.served[1:], self.served[0] + part * gain)]
        )


def reuse_curve(
    prompts: Sequence[Prompts],
    block_tokens: int,
    behind: tuple[float, int] | None = None,
) -> ReuseCurve:
    """Return the curve of devices alone, which keep answers as well; `prompts`: those of each server.

    `behind`: tokens of each device, and of the chunks that tiers behind them look up and store; then it is the curve of
    such tiers, which store what devices compute. A tier looks up the chunks of a prompt from its beginning on, so that
    it serves a block of the device exactly if it holds the chunk that contains the whole block.
    """
    sample = _sample(
        prompts, block_tokens, block_tokens if behind is None else behind[1]
    )
    blocks = [own.blocks(block_tokens, answers=True, sample=sample) for own in prompts]
    chunks = (
        []
        if behind is None
        else [own.blocks(behind[1], sample=sample) for own in prompts]
    )
    total = sum(own.counted_tokens for own in prompts)
    expected = sum(own.found_tokens(block_tokens) for own in prompts)

    def part(server: int, group: int | None, rate: float) -> _Part:
        alone, *tier = (
            each[server] if group is None else each[server].of_group(group)
            for each in (blocks, chunks)
            if each
        )
        if behind is None:
            return _sizes_needed(alone, rate, sample), alone.found_tokens
        return _tier_sizes_needed(
            alone, tier[0], behind[0], rate, sample
        ), alone.found_tokens

    def curve(group: int | None, rate: float) -> ReuseCurve:
        parts = [part(server, group, rate) for server in range(len(prompts))]
        return _scaled(
            _curve(parts, total),
            rate,
            expected - sum(int(found.sum()) for _, found in parts) / rate,
        )

    if sample is None:
        return _curve(
            [part(server, None, 1.0) for server in range(len(prompts))], total
        )
    whole = curve(None, sample.rate)
    sizes = (
        whole.sizes[np.linspace(0, len(whole.sizes) - 1, _COMPARED).astype(int)]
        if len(whole.sizes)
        else ()
    )
    parts = [curve(group, sample.rate / GROUPS) for group in range(GROUPS)]
    shares = np.array([part.shares(sizes) for part in parts])
    error = float(shares.std(axis=0, ddof=1).max(initial=0.0)) / math.sqrt(GROUPS)
    return replace(whole, sampled=sample.rate, error=error)


def served_by_request(
    own: Prompts,
    block_tokens: int,
    device_tokens: float,
    tier_tokens: Sequence[float],
    chunk_tokens: int,
) -> tuple[Ints, list[Ints]]:
    """Return the prompt tokens of each request that the device serves, and for each size of a tier those it adds."""
    blocks, chunks = own.blocks(block_tokens, answers=True), own.blocks(chunk_tokens)
    needed = _tier_sizes_needed(blocks, chunks, device_tokens)
    request = _requests(blocks)

    def tokens(served: npt.NDArray[np.bool_]) -> Ints:
        found = np.bincount(
            request[served], blocks.found_tokens[served], len(own.input_tokens)
        )
        return found.astype(np.int64)

    return tokens(needed == 0), [
        tokens((needed > 0) & (needed <= size) & (needed < _NEVER))
        for size in tier_tokens
    ]


def _tier_sizes_needed(
    blocks: Blocks,
    chunks: Blocks,
    device_tokens: float,
    rate: float = 1.0,
    sample: Sample | None = None,
) -> Ints:
    """Tokens that a tier must hold to have each block of prompts and answers; 0 where the device has it.

    A block needs what its chunk does; one that lies in no full chunk is never held.
    """
    held = _sizes_needed(blocks, rate, sample) <= device_tokens
    needed = _sizes_needed(chunks, rate, sample)
    if not len(needed):
        return np.where(held, 0, _NEVER)
    span = 1 + int(max(blocks.numbers.max(initial=0), chunks.numbers.max(initial=0)))
    chunk = ((blocks.numbers.astype(np.int64) + 1) * blocks.tokens - 1) // chunks.tokens
    wanted = _requests(blocks) * span + chunk
    there = _requests(chunks) * span + chunks.numbers
    place = np.minimum(np.searchsorted(there, wanted), len(there) - 1)
    return np.where(held, 0, np.where(there[place] == wanted, needed[place], _NEVER))


def _sample(
    prompts: Sequence[Prompts], block_tokens: int, chunk_tokens: int
) -> Sample | None:
    """Return how to sample very many blocks, None to count all. Whole chunks are chosen, so that blocks find theirs."""
    count = sum(own.block_count(block_tokens, answers=True) for own in prompts)
    if count <= EXACT_UP_TO:
        return None
    rate = _SAMPLED_PART * EXACT_UP_TO / count
    return Sample(
        rate, math.lcm(block_tokens, chunk_tokens), math.gcd(block_tokens, chunk_tokens)
    )


def _sizes_needed(blocks: Blocks, rate: float, sample: Sample | None) -> Ints:
    """Tokens that a cache must hold to have each block."""
    distances = reuse_distances(blocks.ids, blocks.offsets)
    if sample is None:
        return np.where(distances == FIRST, _NEVER, (distances + 1) * blocks.tokens)
    # The blocks before this one in its own unit were chosen with it and are not scaled.
    own = blocks.numbers % (sample.unit_tokens // blocks.tokens)
    others = np.rint((distances - own) / rate).astype(np.int64)
    return np.where(distances == FIRST, _NEVER, (others + own + 1) * blocks.tokens)


def _requests(blocks: Blocks) -> Ints:
    return np.repeat(np.arange(len(blocks.offsets) - 1), np.diff(blocks.offsets))


def _scaled(curve: ReuseCurve, rate: float, lacking: float) -> ReuseCurve:
    """Scale the curve of a sample to all blocks: uses that the sample lacks count as served by every cache.

    Blocks that are looked up often are few, so that a sample has more or fewer uses than its share; they need little
    room (SHARDS-adj of Waldspurger et al., section 3.4).
    """
    served = np.rint(
        curve.served / rate + np.where(curve.served > 0, lacking, 0.0)
    ).astype(np.int64)
    return replace(curve, served=np.maximum.accumulate(np.clip(served, 0, None)))


def _curve(parts: Sequence[_Part], total: int) -> ReuseCurve:
    needed = (
        np.concatenate([part for part, _ in parts]) if parts else np.empty(0, np.int64)
    )
    saved = (
        np.concatenate([part for _, part in parts]) if parts else np.empty(0, np.int32)
    )
    useful = (saved > 0) & (needed < _NEVER)
    needed, saved = needed[useful], saved[useful]
    order = np.argsort(needed, kind="stable")
    needed, served = needed[order], np.cumsum(saved[order], dtype=np.int64)
    ends = np.flatnonzero(np.diff(needed, append=_NEVER))
    sizes, served = needed[ends], served[ends]
    if len(sizes) and sizes[0] == 0:
        return ReuseCurve(sizes[1:], served, total)
    return ReuseCurve(sizes, np.concatenate(([0], served)), total)


def split_by_server(prompts: Prompts, servers: int, by_prefix: bool) -> list[Prompts]:
    """Distribute requests over servers: in turn, or by prefix, all with the same beginning to the same server."""
    if servers == 1:
        return [prompts]
    chosen = assign_to_servers(prompts, servers, by_prefix)
    return [prompts.subset(chosen == server) for server in range(servers)]


def assign_to_servers(prompts: Prompts, servers: int, by_prefix: bool) -> Ints:
    """Return the number of the server that gets each request, see `split_by_server`."""
    if not by_prefix:
        return np.arange(len(prompts.input_tokens)) % servers
    return np.unique(prompts.first_ids, return_inverse=True)[1] % servers
