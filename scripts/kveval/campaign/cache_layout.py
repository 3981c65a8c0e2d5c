"""Groups of layers, blocks and rows: how much a cache holds of models whose layers do not all keep everything.

vLLM divides such layers into groups of equal size and gives each a block table of its own over one pool
(v1/core/kv_cache_utils.py, get_kv_cache_groups). A block of the pool, and a row of the native tier behind it, is as
large as a block of the largest group, and holds a block of one group (kv_offload/cpu/spec.py, vllm#56871). So a
conversation takes rows: of every group that attends to all of it one for each block, of a group with a sliding window
those of the last window, of a group with a recurrent state one. What was in the tier is found again where all groups
have what they need: at the end of a prompt, and at every multiple of the retention interval.

A model with one group takes one row for each block, which is what bytes per token say.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Self

from kveval.campaign.catalogue import ModelSettings
from kveval.campaign.geometry import Geometry, RecurrentState
from kveval.campaign.sizing import element_bytes

# Of a row of the tier, a page of memory (kv_offload/cpu/shared_offload_region.py).
_ROW_ALIGNMENT_BYTES = 4096
# A server aligns the blocks that it chooses itself to those of its attention kernels, tokens.
_KERNEL_TOKENS, _CPU_KERNEL_TOKENS = 16, 32
# Of layers of two kinds, groups are as large as the larger kind if that is less than so many times the smaller one.
_PADDED_UP_TO = 1.5
# States that a running request holds: the one it reads and the one it writes.
_STATES_IN_USE = 2

Kind = Literal["full", "sliding", "recurrent"]


class Retention(NamedTuple):
    """The windows and states of a prompt that a server keeps for later prompts.

    `interval_tokens`: those at its multiples, besides those at the end of the prompt; 0: no others; None: all.
    `match_tokens`: the step in which prompts are compared, where the server is told one. `grouped`: False if layers of
    all kinds keep whole conversations, in one group.
    """

    interval_tokens: int | None = None
    match_tokens: int | None = None
    grouped: bool = True


@dataclass(frozen=True)
class LayerGroup:
    """Layers with one block table. `window_tokens`: what they attend to; 0 unless kind is sliding."""

    kind: Kind
    layers: int
    block_tokens: int
    window_tokens: int = 0

    @property
    def window_blocks(self) -> int:
        """Blocks that are needed to continue a prompt: of the tokens before the next one (SlidingWindowManager)."""
        return -(-(self.window_tokens - 1) // self.block_tokens)

    def rows(
        self, prompts: Sequence[int], step_tokens: int, interval_tokens: int | None
    ) -> int:
        """Return the rows of a conversation whose turns have these prompts, in tokens, the longest last.

        `step_tokens`: blocks of the groups that attend to everything; windows end at multiples of it.
        """
        blocks = prompts[-1] // self.block_tokens
        if self.kind == "full" or interval_tokens is None:
            return blocks
        if self.kind == "sliding" and step_tokens % self.block_tokens:
            # Such a boundary is within a block, so that the server keeps every block.
            return blocks
        needed = 1 if self.kind == "recurrent" else self.window_blocks
        # A prompt's last token is always computed again.
        ends = {
            (tokens - 1) // step_tokens * step_tokens // self.block_tokens
            for tokens in prompts
        }
        return sum(
            end - begin
            for begin, end in _merged(
                self._kept(blocks, needed, ends, interval_tokens // self.block_tokens)
            )
        )

    def _kept(
        self, blocks: int, needed: int, ends: set[int], per_interval: int
    ) -> Iterator[tuple[int, int]]:
        """Yield ranges of blocks that are kept: `needed` before each end, and in each interval its last ones."""
        for end in ends:
            yield max(0, end - needed), min(end, blocks)
        if not per_interval:
            return
        if needed >= per_interval:
            yield 0, blocks
            return
        for end in range(per_interval, blocks + per_interval, per_interval):
            yield min(end - needed, blocks), min(end, blocks)

    def blocks_in_use(self, tokens: int, batch_tokens: int) -> int:
        """Return the blocks that a running request holds at most, from empty caches on (max_memory_usage_bytes)."""
        if self.kind == "full":
            return -(-tokens // self.block_tokens)
        if self.kind == "recurrent":
            return _STATES_IN_USE
        held = min(self.window_tokens - 1 + batch_tokens, tokens)
        return -(-held // self.block_tokens) + 1


def _merged(ranges: Iterator[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the ranges [begin, end) that cover what these cover, none twice."""
    covered = 0
    for begin, end in sorted(ranges):
        if end > covered:
            yield max(begin, covered), end
            covered = end


@dataclass(frozen=True)
class CacheLayout:
    """How a server lays out the cache of a model. `row_bytes`: of a block of the pool and a row of the tier."""

    groups: tuple[LayerGroup, ...]
    row_bytes: int
    retention: Retention

    @classmethod
    def from_model(
        cls,
        model: ModelSettings,
        block_size: int,
        *,
        on_cpu: bool,
        retention: Retention,
    ) -> Self:
        """Lay a model out on a server with blocks of `block_size` tokens; `row_bytes` are over all ranks."""
        shape, ranks = model.geometry, model.tensor_parallel_size
        element = element_bytes(model.kv_cache_dtype, model.dtype)
        kinds = _kinds(shape, retention.grouped)
        if shape.latent is not None:
            # All ranks have the same vectors; the tier has them once.
            page = block_size * (shape.latent.rank + shape.latent.rope_dim) * element
            return cls(
                (LayerGroup("full", shape.layers, block_size),),
                _aligned(shape.layers * page),
                retention,
            )
        token_bytes = _token_bytes(shape.kv_heads, shape.head_dim, ranks, element)
        block = block_size
        if shape.recurrent is not None:
            own = element_bytes("auto", model.dtype)
            state = _state_bytes(shape.recurrent, ranks, own)
            step = max(_CPU_KERNEL_TOKENS if on_cpu else _KERNEL_TOKENS, block_size)
            # A block has room for a state (platforms/interface.py, _align_hybrid_block_size).
            block = max(block_size, step * -(-state // (step * token_bytes)))
        sliding_block = block
        page = block * token_bytes
        if shape.sliding is not None:
            sliding_bytes = _token_bytes(
                shape.sliding.kv_heads or shape.kv_heads,
                shape.sliding.head_dim or shape.head_dim,
                ranks,
                element,
            )
            page = max(page, block * sliding_bytes)
            # Pages of all layers are made equal by longer blocks (unify_kv_cache_spec_page_size).
            block = _longer_block(block, token_bytes, page)
            sliding_block = _longer_block(sliding_block, sliding_bytes, page)
        size = _group_size([layers for _, layers in kinds])
        groups = tuple(
            LayerGroup(
                kind,
                layers,
                sliding_block if kind == "sliding" else block,
                shape.sliding.tokens
                if kind == "sliding" and shape.sliding is not None
                else 0,
            )
            for kind, layers in _groups(kinds, size)
        )
        largest = max(group.layers for group in groups)
        return cls(groups, ranks * _aligned(largest * page), retention)

    @property
    def full_block_tokens(self) -> int:
        """Tokens of a block of the groups that attend to everything."""
        return next(group.block_tokens for group in self.groups if group.kind == "full")

    @property
    def match_tokens(self) -> int:
        """The step, in tokens, in which a prompt can be found again."""
        if self.retention.match_tokens is not None and len(self.groups) > 1:
            return self.retention.match_tokens
        return math.lcm(*(group.block_tokens for group in self.groups))

    def rows_of_conversation(self, *prompts: int) -> int:
        """Return the rows that a conversation takes in the tier; `prompts`: of its turns, tokens, the longest last."""
        interval = self.retention.interval_tokens
        return sum(
            group.rows(prompts, self.full_block_tokens, interval)
            for group in self.groups
        )

    def rows_within(self, size_bytes: int) -> int:
        """Return the rows of a tier of `size_bytes` over all ranks."""
        return size_bytes // self.row_bytes

    def conversations_within(self, size_bytes: int, *prompts: int) -> float:
        """Return how many conversations a tier holds, see `rows_of_conversation`; infinite if they store nothing."""
        rows = self.rows_of_conversation(*prompts)
        return self.rows_within(size_bytes) / rows if rows else math.inf

    def tokens_within(self, size_bytes: int, *prompts: int) -> int:
        """Return the prompt tokens of all conversations that a tier holds; 0 if they store nothing."""
        if not self.rows_of_conversation(*prompts):
            return 0
        return int(self.conversations_within(size_bytes, *prompts) * prompts[-1])

    def shared_tokens(self, prefix_tokens: int) -> int:
        """Return the tokens that a tier serves of a prefix that other conversations go on from with tails of their own.

        At interval 0 none: each prompt leaves windows and states at its own end, beyond the prefix. (A device that
        still has the prefix of the first prompt makes the second leave them at its end, and later prompts find it.)
        """
        interval = self.retention.interval_tokens
        step = self.match_tokens
        if len(self.groups) > 1 and interval is not None:
            step = interval
        return prefix_tokens // step * step if step else 0

    def blocks_in_use(self, tokens: int, batch_tokens: int) -> int:
        """Return the blocks of the device's pool that a running conversation of `tokens` needs."""
        return sum(group.blocks_in_use(tokens, batch_tokens) for group in self.groups)


def _kinds(shape: Geometry, grouped: bool) -> list[tuple[Kind, int]]:
    """Return the kinds of layers with their numbers."""
    sliding = shape.sliding.layers if shape.sliding is not None else 0
    recurrent = shape.recurrent.layers if shape.recurrent is not None else 0
    full = shape.full_layers
    if not grouped:
        full, sliding = full + sliding, 0
    kinds: tuple[tuple[Kind, int], ...] = (
        ("full", full),
        ("sliding", sliding),
        ("recurrent", recurrent),
    )
    return [(kind, layers) for kind, layers in kinds if layers]


def _group_size(layers: Sequence[int]) -> int:
    """Return how many layers a group has (_get_kv_cache_groups_uniform_page_size)."""
    least, most = min(layers), max(layers)
    return most if most < _PADDED_UP_TO * least else least


def _groups(kinds: Sequence[tuple[Kind, int]], size: int) -> Iterator[tuple[Kind, int]]:
    """Yield each group's kind and layers: as few groups as hold them all, as equal as possible."""
    for kind, layers in kinds:
        count = -(-layers // size)
        for number in range(count):
            yield kind, layers // count + (number < layers % count)


def _token_bytes(kv_heads: int, head_dim: int, ranks: int, element: int) -> int:
    """Return the bytes of keys and values of a token in one layer on one rank."""
    return 2 * max(1, kv_heads // ranks) * head_dim * element


def _state_bytes(state: RecurrentState, ranks: int, element: int) -> int:
    """Return the bytes of a layer's state on one rank (mamba_utils.py, gated_delta_net_state_shape)."""
    keys = state.key_heads * state.key_head_dim
    values = state.value_heads * state.value_head_dim
    convolution = (2 * keys + values) // ranks * (state.conv_kernel - 1) * element
    own = element if state.dtype == "auto" else element_bytes(state.dtype)
    heads = state.value_heads // ranks
    return convolution + heads * state.value_head_dim * state.key_head_dim * own


def _longer_block(block: int, token_bytes: int, page_bytes: int) -> int:
    """Return the tokens of a block that fills a page, or `block`, with the rest of the page unused."""
    return (
        page_bytes // token_bytes if page_bytes % (block * token_bytes) == 0 else block
    )


def _aligned(row_bytes: int) -> int:
    return -(-row_bytes // _ROW_ALIGNMENT_BYTES) * _ROW_ALIGNMENT_BYTES
