"""Sizes against published ones, and the laws that arms with one budget rely on."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.paths import CONFIG

from kveval.config.types import BLOCK_TOKENS
from kveval.spec.loading import load_config
from kveval.spec.sizing import (
    blocks_for_tokens,
    blocks_of_server,
    budget,
    bytes_per_block,
    element_bytes,
    gib,
    kv_bytes_per_token,
    rank_kv_bytes_per_token,
    server_blocks,
)


@dataclass(frozen=True)
class Shape:
    layers: int
    kv_heads: int
    head_dim: int


shapes = st.builds(
    Shape, st.integers(1, 128), st.sampled_from([1, 2, 4, 8, 16, 32]), st.sampled_from([32, 64, 96, 128])
)
dtypes = st.sampled_from(["auto", "bfloat16", "fp8", "fp8_e5m2"])
ranks = st.sampled_from([1, 2, 4, 8])
block_sizes = st.sampled_from([16, 32, 64, 128, 256])
counts = st.integers(0, 200_000)


@pytest.mark.parametrize(
    ("name", "kib_per_token", "mib_per_block", "gib_of_10000"),
    [
        ("Qwen3-0.6B", 112, 1.75, 17.09),
        ("Qwen3-8B", 144, 2.25, 21.97),
        ("Qwen3-14B", 160, 2.50, 24.41),
        ("Qwen3-32B", 256, 4.00, 39.06),
        ("Qwen3-32B-AWQ", 256, 4.00, 39.06),
        ("Llama-3.1-8B", 128, 2.00, 19.53),
    ],
)
def test_catalogue_models_have_the_published_sizes(name, kib_per_token, mib_per_block, gib_of_10000):
    model = load_config(CONFIG / "config.yaml", CONFIG).catalogue.models[name]
    geometry = model.geometry
    assert kv_bytes_per_token(geometry, model.kv_cache_dtype, model.tensor_parallel_size) == kib_per_token * 2**10
    assert bytes_per_block(geometry) == mib_per_block * 2**20
    size = budget(geometry, 10_000, tensor_parallel_size=model.tensor_parallel_size)
    assert round(size.tier_gib, 2) == gib_of_10000
    assert size.rank_gib == pytest.approx(size.tier_gib / 2)


def test_a_cache_in_fp8_is_half_as_large_and_weights_do_not_matter():
    shape = Shape(layers=64, kv_heads=8, head_dim=128)
    assert kv_bytes_per_token(shape, "fp8") * 2 == kv_bytes_per_token(shape, "auto") == 262_144
    assert element_bytes("auto", "float16") == element_bytes("bfloat16") == 2


def test_an_unknown_dtype_is_refused_with_what_is_known():
    with pytest.raises(ValueError, match=r"'int3'.*known: auto, bfloat16"):
        element_bytes("int3")


def test_more_ranks_than_heads_replicate_heads():
    shape = Shape(layers=1, kv_heads=2, head_dim=64)
    assert rank_kv_bytes_per_token(shape, "auto", 8) == 2 * 64 * 2
    assert kv_bytes_per_token(shape, "auto", 8) == 4 * kv_bytes_per_token(shape, "auto", 2)


@given(shapes, dtypes, st.integers(1, 8))
def test_size_is_proportional_to_layers(shape, dtype, factor):
    deeper = Shape(shape.layers * factor, shape.kv_heads, shape.head_dim)
    assert kv_bytes_per_token(deeper, dtype) == factor * kv_bytes_per_token(shape, dtype)


@given(shapes, dtypes, ranks)
def test_ranks_share_the_heads_and_hold_everything_together(shape, dtype, count):
    whole, one = kv_bytes_per_token(shape, dtype, count), rank_kv_bytes_per_token(shape, dtype, count)
    assert whole == count * one
    assert whole == kv_bytes_per_token(shape, dtype) or count > shape.kv_heads


@given(shapes, dtypes, ranks, block_sizes, counts)
def test_a_tier_is_whole_server_blocks_and_less_than_one_short(shape, dtype, count, block_size, cpu_blocks):
    size = budget(shape, cpu_blocks, block_size=block_size, kv_cache_dtype=dtype, tensor_parallel_size=count)
    server_block_bytes = block_size * kv_bytes_per_token(shape, dtype, count)
    assert size.tokens == cpu_blocks * BLOCK_TOKENS
    assert size.tier_bytes == size.tier_blocks * server_block_bytes
    assert 0 <= size.requested_bytes - size.tier_bytes < server_block_bytes
    assert size.rank_bytes * count == size.tier_bytes


@given(shapes, dtypes, block_sizes, counts)
def test_the_block_size_of_the_server_does_not_change_an_even_budget(shape, dtype, block_size, server_count):
    cpu_blocks = blocks_of_server(server_count, block_size)
    size = budget(shape, cpu_blocks, block_size=block_size, kv_cache_dtype=dtype)
    assert size.tier_blocks == server_count
    assert size.tier_bytes == size.requested_bytes == cpu_blocks * bytes_per_block(shape, dtype)


@given(counts, block_sizes)
def test_blocks_survive_the_way_to_the_server_and_back(blocks, block_size):
    back = blocks_of_server(server_blocks(blocks, block_size), block_size)
    assert back <= blocks < back + block_size // BLOCK_TOKENS
    assert server_blocks(back, block_size) == server_blocks(blocks, block_size)


@given(st.integers(0, 10**7))
def test_blocks_for_tokens_hold_them_without_a_block_too_many(tokens):
    blocks = blocks_for_tokens(tokens)
    assert (blocks - 1) * BLOCK_TOKENS < tokens <= blocks * BLOCK_TOKENS or tokens == blocks == 0


@given(shapes, dtypes, block_sizes, counts)
def test_gib_as_arguments_are_written_give_back_the_bytes(shape, dtype, block_size, cpu_blocks):
    size = budget(shape, cpu_blocks, block_size=block_size, kv_cache_dtype=dtype)
    assert int(float(repr(gib(size.tier_bytes))) * 2**30) == size.tier_bytes
