"""Share of the prompt tokens served against the size of a cache: of the device alone, and of a tier behind it."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt

from kveval.plugins.curve.simulation.distances import (
    FIRST,
    GROUPS,
    Ints,
    Sample,
    reuse_distances,
)
from kveval.plugins.curve.simulation.prompts import Blocks, Prompts

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


@dataclass(frozen=True)
class _Needs:
    """The blocks of a server's requests, and for each the tokens that a cache must hold to have it."""

    blocks: Blocks
    tokens: Ints

    @classmethod
    def from_blocks(cls, blocks: Blocks, sample: Sample | None, rate: float) -> Self:
        """Find what each block needs; `rate`: the share of all blocks that these are."""
        return cls(blocks, _sizes_needed(blocks, rate, sample))

    def of_group(self, group: int, sample: Sample) -> Self:
        """Return the needs of one part of a sample, as that part alone shows them."""
        rate = sample.rate / GROUPS
        return self.from_blocks(self.blocks.of_group(group), sample, rate)


def reuse_curve(
    prompts: Sequence[Prompts],
    block_tokens: int,
    behind: tuple[float, int] | None = None,
) -> ReuseCurve:
    """Return one curve of the requests of each server, see `ReuseCurves.curve`."""
    return ReuseCurves(prompts, block_tokens).curve(behind)


class ReuseCurves:
    """The curves of the requests of each server; what devices need is found once, and takes most of a curve's time."""

    def __init__(self, prompts: Sequence[Prompts], block_tokens: int) -> None:
        self._prompts = prompts
        self._block_tokens = block_tokens
        self._device_needs: dict[Sample | None, list[_Needs]] = {}

    def curve(self, behind: tuple[float, int] | None = None) -> ReuseCurve:
        """Return the curve of devices alone, which keep answers as well.

        `behind`: tokens of each device, and of the chunks that tiers behind them look up and store; then it is the
        curve of such tiers, which store what devices compute. A tier looks up the chunks of a prompt from its beginning
        on, so that it serves a block of the device exactly if it holds the chunk that contains the whole block.
        """
        chunk_tokens = self._block_tokens if behind is None else behind[1]
        sample = _sample(self._prompts, self._block_tokens, chunk_tokens)
        total = sum(own.counted_tokens for own in self._prompts)
        devices = self._devices(sample)
        chunks = [] if behind is None else self._chunks(devices, chunk_tokens, sample)
        if sample is None:
            return _curve(_parts(devices, chunks, behind, sample), total)
        expected = sum(own.found_tokens(self._block_tokens) for own in self._prompts)

        def scaled(
            devices: Sequence[_Needs], chunks: Sequence[_Needs], rate: float
        ) -> ReuseCurve:
            parts = _parts(devices, chunks, behind, sample)
            found = sum(int(tokens.sum()) for _, tokens in parts)
            return _scaled(_curve(parts, total), rate, expected - found / rate)

        whole = scaled(devices, chunks, sample.rate)
        sizes = (
            whole.sizes[np.linspace(0, len(whole.sizes) - 1, _COMPARED).astype(int)]
            if len(whole.sizes)
            else ()
        )
        shares = []
        for group in range(GROUPS):
            of_devices = [one.of_group(group, sample) for one in devices]
            of_chunks = [one.of_group(group, sample) for one in chunks]
            part = scaled(of_devices, of_chunks, sample.rate / GROUPS)
            shares.append(part.shares(sizes))
        spread = np.array(shares).std(axis=0, ddof=1).max(initial=0.0)
        return replace(
            whole, sampled=sample.rate, error=float(spread) / math.sqrt(GROUPS)
        )

    def _devices(self, sample: Sample | None) -> list[_Needs]:
        """Return what each server's device needs for the blocks of prompts and answers."""
        if sample not in self._device_needs:
            tokens, rate = self._block_tokens, 1.0 if sample is None else sample.rate
            self._device_needs[sample] = [
                _Needs.from_blocks(own.blocks(tokens, True, sample), sample, rate)
                for own in self._prompts
            ]
        return self._device_needs[sample]

    def _chunks(
        self, devices: Sequence[_Needs], chunk_tokens: int, sample: Sample | None
    ) -> list[_Needs]:
        """Return what each server's tier needs for the chunks of prompts."""
        rate = 1.0 if sample is None else sample.rate
        if chunk_tokens == self._block_tokens:
            each = [
                one.blocks.of_prompts(own.input_tokens)
                for own, one in zip(self._prompts, devices, strict=True)
            ]
        else:
            each = [own.blocks(chunk_tokens, sample=sample) for own in self._prompts]
        return [_Needs.from_blocks(chunks, sample, rate) for chunks in each]


def _parts(
    devices: Sequence[_Needs],
    chunks: Sequence[_Needs],
    behind: tuple[float, int] | None,
    sample: Sample | None,
) -> list[_Part]:
    """Return what each server needs of its device, or of its tier if it is `behind` one, and what that saves."""
    if behind is None:
        return [(device.tokens, device.blocks.found_tokens) for device in devices]
    return [
        (_tier_sizes_needed(device, own, behind[0], sample), device.blocks.found_tokens)
        for device, own in zip(devices, chunks, strict=True)
    ]


def served_by_request(
    own: Prompts,
    block_tokens: int,
    device_tokens: float,
    tier_tokens: Sequence[float],
    chunk_tokens: int,
) -> tuple[Ints, list[Ints]]:
    """Return the prompt tokens of each request that the device serves, and for each size of a tier those it adds."""
    device = _Needs.from_blocks(own.blocks(block_tokens, answers=True), None, 1.0)
    chunks = _Needs.from_blocks(own.blocks(chunk_tokens), None, 1.0)
    needed = _tier_sizes_needed(device, chunks, device_tokens, None)
    blocks = device.blocks
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
    device: _Needs, tier: _Needs, device_tokens: float, sample: Sample | None
) -> Ints:
    """Tokens that a tier must hold to have each block of prompts and answers; 0 where the device has it.

    A block needs what its chunk does; one that lies in no full chunk is never held.
    """
    blocks, chunks, held = device.blocks, tier.blocks, device.tokens <= device_tokens
    if not len(chunks.ids):
        return np.where(held, 0, _NEVER)
    request = _requests(blocks)
    chunk = ((blocks.numbers.astype(np.int64) + 1) * blocks.tokens - 1) // chunks.tokens
    if sample is None:
        # All chunks are there, so that a number tells the place.
        there = chunk < np.diff(chunks.offsets)[request]
        place = np.where(there, chunks.offsets[:-1][request] + chunk, 0)
    else:
        span = 1 + int(chunk.max(initial=int(chunks.numbers.max())))
        wanted = request * span + chunk
        present = _requests(chunks) * span + chunks.numbers
        place = np.minimum(np.searchsorted(present, wanted), len(present) - 1)
        there = present[place] == wanted
    return np.where(held, 0, np.where(there, tier.tokens[place], _NEVER))


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
