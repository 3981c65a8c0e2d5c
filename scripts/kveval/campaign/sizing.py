"""How large a KV cache is: bytes per token and block, and one budget translated for every arm.

A size begins as `cpu_blocks` in the matrix of a campaign's file: 10000, which tables call 10K. It counts blocks of 16
tokens of the model as served, over all of its ranks, whatever block size the server itself runs with, and is a part of
a cell's name (kveval.campaign.cell). A size given in GiB becomes one by `blocks_within`. `Budget.from_blocks`
translates it into the tokens, bytes and server blocks that the arguments of an arm have (kveval.stacks).

bytes per token = 2 (keys and values) x layers x KV heads x head dimension x bytes per element. Weight quantisation does
not enter: the cache holds activations. Of models with several kinds of layers these are the bytes of a cache that keeps
every token in every layer that has keys and values; what a tier of these bytes holds is in kveval.campaign.cache_layout.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import msgspec

from kveval.campaign.geometry import Geometry
from kveval.campaign.size import Size
from kveval.campaign.types import BLOCK_TOKENS

GIB = 2**30
_DTYPE_BYTES = {
    "bfloat16": 2,
    "float16": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "float32": 4,
}
_GROUP = 128
_FOUR_BITS = 0.5 + (2 + 0.5) / _GROUP
_QUANTIZED_BYTES = {
    "awq": _FOUR_BITS,
    "gptq": _FOUR_BITS,
    "fp8": 1.0,
    "mxfp4": 0.5 + 1 / 32,
}


def element_bytes(kv_cache_dtype: str, dtype: str = "bfloat16") -> int:
    """Return the bytes of one cached element; "auto" is the model's own `dtype`. Raises ValueError if unknown."""
    name = dtype if kv_cache_dtype == "auto" else kv_cache_dtype
    if name not in _DTYPE_BYTES:
        raise ValueError(
            f"KV cache dtype {name!r} has no known size; known: auto, {', '.join(_DTYPE_BYTES)}"
        )
    return _DTYPE_BYTES[name]


def staging_bytes(kv_bytes_per_token: int, max_model_len: int, block_size: int) -> int:
    """Return the size of the buffer in host memory that a tier of files without a CPU tier passes through.

    Two of the longest conversations: enough for a buffer, too little to serve as a tier.
    """
    blocks = server_blocks(2 * blocks_for_tokens(max_model_len), block_size)
    return blocks * block_size * kv_bytes_per_token


def parameter_count(geometry: Geometry) -> int:
    """Return the parameters: as declared, else of a dense decoder with grouped-query attention and a gated network.

    Embeddings, then per layer the projections of queries and outputs, of keys and values, and the three matrices of the
    feed-forward network; norms and biases, less than a thousandth, are left out.
    """
    if geometry.parameters is not None:
        return geometry.parameters
    hidden, heads = geometry.hidden_size, geometry.head_dim
    attention = 2 * hidden * heads * (geometry.attention_heads + geometry.kv_heads)
    layer = attention + 3 * hidden * geometry.intermediate_size
    return _embedding_count(geometry) + geometry.layers * layer


def _embedding_count(geometry: Geometry) -> int:
    matrices = 1 if geometry.tie_word_embeddings else 2
    return matrices * geometry.vocab_size * geometry.hidden_size


def weight_bytes(
    geometry: Geometry, quantization: str | None = None, dtype: str = "bfloat16"
) -> int:
    """Return the bytes of a checkpoint's weights, over all ranks.

    Quantisation leaves the embeddings of inputs and outputs at `dtype`. With AWQ and GPTQ every 128 weights of 4 bits
    share a scale of 16 bits and a zero of 4 bits (group_size 128, as in the quantization_config of these checkpoints);
    with MXFP4 every 32 share a scale of 8 bits (OCP Microscaling Formats 1.0).
    """
    embeddings = _embedding_count(geometry)
    others = parameter_count(geometry) - embeddings
    full = element_bytes("auto", dtype)
    other_bytes = _QUANTIZED_BYTES.get(quantization or "", full)
    return embeddings * full + round(others * other_bytes)


def kv_bytes_per_token(
    geometry: Geometry,
    kv_cache_dtype: str = "auto",
    tensor_parallel_size: int = 1,
    dtype: str = "bfloat16",
) -> int:
    """Return the bytes of cache per token over all ranks; with more ranks than KV heads, heads are replicated.

    Recurrent states take none: their size does not depend on the tokens. A latent vector is the same on all ranks.
    """
    element, ranks = element_bytes(kv_cache_dtype, dtype), tensor_parallel_size
    if geometry.latent is not None:
        values = geometry.latent.rank + geometry.latent.rope_dim
        return ranks * geometry.layers * values * element
    layers = geometry.layers
    if geometry.recurrent is not None:
        layers -= geometry.recurrent.layers
    sliding_values = 0
    if (window := geometry.sliding) is not None:
        layers -= window.layers
        heads = max(1, (window.kv_heads or geometry.kv_heads) // ranks)
        sliding_values = window.layers * heads * (window.head_dim or geometry.head_dim)
    values = layers * max(1, geometry.kv_heads // ranks) * geometry.head_dim
    return 2 * ranks * (values + sliding_values) * element


def gib(size_bytes: int) -> float:
    """Convert bytes to GiB; exact for anything that is a multiple of a KiB."""
    return size_bytes / GIB


def memory_text(size_bytes: int) -> str:
    """Return a size with its unit, GiB or TiB, to one decimal."""
    if size_bytes < 1024 * GIB:
        return f"{size_bytes / GIB:,.1f} GiB"
    return f"{size_bytes / GIB / 1024:,.1f} TiB"


def server_blocks(blocks: int, block_size: int) -> int:
    """Return how many whole server blocks of `block_size` tokens fit into `blocks` 16-token blocks."""
    return blocks * BLOCK_TOKENS // block_size


def blocks_of_server(count: int, block_size: int) -> int:
    """Return how many whole 16-token blocks `count` server blocks of `block_size` tokens hold."""
    return count * block_size // BLOCK_TOKENS


def blocks_within(size_bytes: int, kv_bytes_per_token: int, block_size: int) -> int:
    """Return the 16-token blocks of as many whole server blocks of `block_size` tokens as fit into `size_bytes`."""
    count = size_bytes // (kv_bytes_per_token * block_size)
    return blocks_of_server(count, block_size)


def blocks_for_tokens(tokens: int) -> int:
    """Return the 16-token blocks needed to hold `tokens`."""
    return -(-tokens // BLOCK_TOKENS)


def size_for_tokens(tokens: int, kv_bytes_per_token: int) -> Size:
    """Return the least size that holds `tokens` of a model."""
    blocks = blocks_for_tokens(tokens)
    return Size(blocks, blocks * BLOCK_TOKENS * kv_bytes_per_token)


def pinned_bytes(size_bytes: int, ranks: int, layouts: Sequence[int]) -> int:
    """Return the host memory that a tier of `size_bytes` over all ranks takes at most, bytes.

    `layouts`: the numbers of tensors that a rank may allocate it as, none where nothing is rounded. PyTorch's pinned
    allocator rounds every tensor up to a power of two (aten/src/ATen/core/CachingHostAllocator.h; vllm#53042 measured
    1.92 times the size).
    """
    rounded = (
        ranks * tensors * _power_of_two(-(-size_bytes // (ranks * tensors)))
        for tensors in layouts
    )
    return max(size_bytes, *rounded, 0)


def _power_of_two(size_bytes: int) -> int:
    return 1 << (size_bytes - 1).bit_length() if size_bytes else 0


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """A CPU tier's size. `tier_bytes` is what every arm is given: `requested_bytes` down to whole server blocks."""

    cpu_blocks: int
    tokens: int
    requested_bytes: int
    tier_blocks: int
    tier_bytes: int
    rank_bytes: int

    @classmethod
    def from_blocks(
        cls,
        kv_bytes_per_token: int,
        cpu_blocks: int,
        block_size: int = BLOCK_TOKENS,
        ranks: int = 1,
        **more: Any,
    ) -> Self:
        """Translate `cpu_blocks` (16-token blocks) for a server with blocks of `block_size` tokens, over all its ranks.

        The bytes given to an arm are a multiple of the server's block, so that arms which count blocks and arms which
        count bytes get the same tier. `more`: fields that a class of its own adds.
        """
        blocks = server_blocks(cpu_blocks, block_size)
        tier_bytes = blocks * block_size * kv_bytes_per_token
        return cls(
            cpu_blocks=cpu_blocks,
            tokens=cpu_blocks * BLOCK_TOKENS,
            requested_bytes=cpu_blocks * BLOCK_TOKENS * kv_bytes_per_token,
            tier_blocks=blocks,
            tier_bytes=tier_bytes,
            rank_bytes=tier_bytes // ranks,
            **more,
        )

    @property
    def size(self) -> Size:
        """The size that the campaign asks for."""
        return Size(self.cpu_blocks, self.requested_bytes)

    @property
    def tier_gib(self) -> float:
        """The tier over all ranks, GiB."""
        return gib(self.tier_bytes)

    @property
    def rank_gib(self) -> float:
        """One rank's share of the tier, GiB."""
        return gib(self.rank_bytes)


class CacheSizes(Budget, frozen=True, kw_only=True, omit_defaults=True):
    """The arm's tier in host memory, and the device's own cache: None where the GPU's memory sets it.

    `staging_bytes`: the buffer that a tier of files without a CPU tier passes through; `split`: native_bytes and
    lmcache_bytes, where two tiers share the budget.
    """

    staging_bytes: int = 0
    device_blocks: int | None
    device_tokens: int | None
    split: Mapping[str, int] = {}

    @property
    def host_bytes(self) -> int:
        """Bytes of KV cache that the server holds in host memory: the tier, or the buffer before a tier of files."""
        return self.tier_bytes or self.staging_bytes

    @property
    def lmcache_bytes(self) -> int:
        """LMCache's part of the budget, in an arm that has LMCache."""
        return self.split.get("lmcache_bytes", self.tier_bytes)
