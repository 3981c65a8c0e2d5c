"""Sizes against published ones, and the laws that arms with one budget rely on."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.paths import CONFIG

from kveval.campaign.sizing import (
    Budget,
    CacheSizes,
    blocks_for_tokens,
    blocks_of_server,
    element_bytes,
    gib,
    kv_bytes_per_token,
    pinned_bytes,
    server_blocks,
)
from kveval.campaign.types import BLOCK_TOKENS
from kveval.configuration.loading import load_config
from kveval.stacks.vllm import VLLM


@dataclass(frozen=True)
class Shape:
    layers: int
    kv_heads: int
    head_dim: int
    sliding: None = None
    recurrent: None = None
    latent: None = None


def budget(
    shape, cpu_blocks, block_size=16, kv_cache_dtype="auto", tensor_parallel_size=1
):
    per_token = kv_bytes_per_token(shape, kv_cache_dtype, tensor_parallel_size)
    return Budget.from_blocks(per_token, cpu_blocks, block_size, tensor_parallel_size)


shapes = st.builds(
    Shape,
    st.integers(1, 128),
    st.sampled_from([1, 2, 4, 8, 16, 32]),
    st.sampled_from([32, 64, 96, 128]),
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
def test_catalogue_models_have_the_published_sizes(
    name, kib_per_token, mib_per_block, gib_of_10000
):
    model = load_config(CONFIG / "config.yaml", CONFIG).catalogue.models[name]
    geometry = model.geometry
    for count in (1, 2):
        assert (
            kv_bytes_per_token(geometry, model.kv_cache_dtype, count)
            == kib_per_token * 2**10
        )
    assert BLOCK_TOKENS * kv_bytes_per_token(geometry) == mib_per_block * 2**20
    size = budget(geometry, 10_000, tensor_parallel_size=2)
    assert round(size.tier_gib, 2) == gib_of_10000
    assert size.rank_gib == pytest.approx(size.tier_gib / 2)


def test_a_cache_in_fp8_is_half_as_large_and_weights_do_not_matter():
    shape = Shape(layers=64, kv_heads=8, head_dim=128)
    assert (
        kv_bytes_per_token(shape, "fp8") * 2
        == kv_bytes_per_token(shape, "auto")
        == 262_144
    )
    assert element_bytes("auto", "float16") == element_bytes("bfloat16") == 2


def test_an_unknown_dtype_is_refused_with_what_is_known():
    with pytest.raises(ValueError, match=r"'int3'.*known: auto, bfloat16"):
        element_bytes("int3")


def test_more_ranks_than_heads_replicate_heads():
    shape = Shape(layers=1, kv_heads=2, head_dim=64)
    assert kv_bytes_per_token(shape, "auto", 8) == 8 * (2 * 64 * 2)
    assert kv_bytes_per_token(shape, "auto", 8) == 4 * kv_bytes_per_token(
        shape, "auto", 2
    )


@given(shapes, dtypes, st.integers(1, 8))
def test_size_is_proportional_to_layers(shape, dtype, factor):
    deeper = Shape(shape.layers * factor, shape.kv_heads, shape.head_dim)
    assert kv_bytes_per_token(deeper, dtype) == factor * kv_bytes_per_token(
        shape, dtype
    )


@given(shapes, dtypes, ranks)
def test_ranks_share_the_heads_and_hold_everything_together(shape, dtype, count):
    assert (
        kv_bytes_per_token(shape, dtype, count) == kv_bytes_per_token(shape, dtype)
        or count > shape.kv_heads
    )


@given(shapes, dtypes, ranks, block_sizes, counts)
def test_a_tier_is_whole_server_blocks_and_less_than_one_short(
    shape, dtype, count, block_size, cpu_blocks
):
    size = budget(
        shape,
        cpu_blocks,
        block_size=block_size,
        kv_cache_dtype=dtype,
        tensor_parallel_size=count,
    )
    server_block_bytes = block_size * kv_bytes_per_token(shape, dtype, count)
    assert size.tokens == cpu_blocks * BLOCK_TOKENS
    assert size.tier_bytes == size.tier_blocks * server_block_bytes
    assert 0 <= size.requested_bytes - size.tier_bytes < server_block_bytes
    assert size.rank_bytes * count == size.tier_bytes


@given(shapes, dtypes, block_sizes, counts)
def test_the_block_size_of_the_server_does_not_change_an_even_budget(
    shape, dtype, block_size, server_count
):
    cpu_blocks = blocks_of_server(server_count, block_size)
    size = budget(shape, cpu_blocks, block_size=block_size, kv_cache_dtype=dtype)
    assert size.tier_blocks == server_count
    assert (
        size.tier_bytes
        == size.requested_bytes
        == cpu_blocks * BLOCK_TOKENS * kv_bytes_per_token(shape, dtype)
    )


@given(counts, block_sizes)
def test_blocks_survive_the_way_to_the_server_and_back(blocks, block_size):
    back = blocks_of_server(server_blocks(blocks, block_size), block_size)
    assert back <= blocks < back + block_size // BLOCK_TOKENS
    assert server_blocks(back, block_size) == server_blocks(blocks, block_size)


@given(st.integers(0, 10**7))
def test_blocks_for_tokens_hold_them_without_a_block_too_many(tokens):
    blocks = blocks_for_tokens(tokens)
    assert (
        blocks - 1
    ) * BLOCK_TOKENS < tokens <= blocks * BLOCK_TOKENS or tokens == blocks == 0


@given(shapes, dtypes, block_sizes, counts)
def test_gib_as_arguments_are_written_give_back_the_bytes(
    shape, dtype, block_size, cpu_blocks
):
    size = budget(shape, cpu_blocks, block_size=block_size, kv_cache_dtype=dtype)
    assert int(float(repr(gib(size.tier_bytes))) * 2**30) == size.tier_bytes


# Pinned memory

CONNECTOR = ["--kv-transfer-config", '{"kv_connector":"OffloadingConnector"}']


def held_gib(
    name,
    cpu_blocks,
    tensor_parallel_size,
    version,
    argv=CONNECTOR,
    *,
    on_cpu=False,
    **sizes,
):
    """Return what a catalogue model's tier takes of host memory in a release, GiB."""
    model = load_config(CONFIG / "config.yaml", CONFIG).catalogue.models[name]
    per_token = kv_bytes_per_token(
        model.geometry, tensor_parallel_size=tensor_parallel_size
    )
    served = SimpleNamespace(
        geometry=model.geometry, tensor_parallel_size=tensor_parallel_size
    )
    given = CacheSizes.from_blocks(
        per_token,
        cpu_blocks,
        ranks=tensor_parallel_size,
        device_blocks=None,
        device_tokens=None,
        **sizes,
    )
    return gib(VLLM.held_bytes(argv, version, served, given, on_cpu=on_cpu))


@pytest.mark.parametrize(
    ("name", "cpu_blocks", "ranks_", "version", "pinned_gib"),
    [
        # A tensor a layer: 28 of 1.22 GiB each, 2 GiB pinned.
        ("Qwen3-0.6B", 20_000, 1, "0.11.2", 56),
        ("Qwen3-32B-AWQ", 40_000, 1, "0.11.2", 256),
        ("Qwen3-32B-AWQ", 40_000, 2, "0.11.2", 256),
        # One tensor of 34.2 GiB where the attention backend joins the layers, the worse case here.
        ("Qwen3-0.6B", 20_000, 1, "0.23.0", 64),
        ("Qwen3-32B-AWQ", 40_000, 2, "0.23.0", 256),
        ("Qwen3-32B-AWQ", 40_000, 2, "0.26.0", 256),
    ],
)
def test_a_private_tier_takes_what_its_pinned_tensors_are_rounded_up_to(
    name, cpu_blocks, ranks_, version, pinned_gib
):
    assert held_gib(name, cpu_blocks, ranks_, version) == pinned_gib


def test_what_is_not_in_pinned_tensors_takes_its_size():
    exact = pytest.approx(34.18, abs=0.01)
    assert held_gib("Qwen3-0.6B", 20_000, 1, "0.27.0") == exact
    assert held_gib("Qwen3-0.6B", 20_000, 1, "0.23.0", on_cpu=True) == exact
    assert (
        held_gib(
            "Qwen3-0.6B", 20_000, 1, "0.23.0", ['{"kv_connector":"LMCacheConnectorV1"}']
        )
        == exact
    )
    tiered = [
        '{"kv_connector":"OffloadingConnector","spec_name":"TieringOffloadingSpec"}'
    ]
    assert held_gib("Qwen3-0.6B", 20_000, 1, "0.23.0", tiered) == exact


def test_of_a_shared_budget_the_native_part_alone_is_rounded_up():
    half = 10 * 2**30
    split = {"native_bytes": half, "lmcache_bytes": half}
    found = held_gib("Qwen3-0.6B", 20_000, 1, "0.11.2", split=split)
    assert found == pytest.approx(34.18 - 10 + 28 * 0.5, abs=0.01)


@given(size=st.integers(0, 2**45), ranks_=ranks, layers=st.integers(1, 128))
def test_pinned_memory_is_at_least_the_tier_and_less_than_twice_it(
    size, ranks_, layers
):
    found = pinned_bytes(size, ranks_, (1, layers))
    assert size <= found <= max(2 * size, 2 * ranks_ * layers)
    assert pinned_bytes(size, ranks_, ()) == size
    assert pinned_bytes(found, ranks_, (1,)) <= 2 * found
