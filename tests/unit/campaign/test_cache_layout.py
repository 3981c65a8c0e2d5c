"""Rows of a tier for models with several kinds of layers, against what servers were seen to hold, and laws."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.support.paths import CONFIG

from kveval.campaign.cache_layout import CacheLayout, Retention
from kveval.campaign.catalogue import ModelSettings
from kveval.campaign.geometry import Geometry
from kveval.campaign.sizing import kv_bytes_per_token
from kveval.configuration.loading import load_config

MIB = 2**20
DEFAULT = Retention(interval_tokens=0)


def model(architecture="Gemma3ForCausalLM", *, ranks=1, **shape):
    """A model of 64 values per head and two KV heads, unless told otherwise."""
    defaults = {
        "architecture": architecture,
        "layers": 8,
        "kv_heads": 2,
        "head_dim": 64,
        "hidden_size": 256,
        "attention_heads": 4,
        "intermediate_size": 1024,
        "vocab_size": 4096,
        "max_position_embeddings": 131072,
    }
    return ModelSettings(
        hf_id="a/b",
        geometry=Geometry(**{**defaults, **shape}),
        tensor_parallel_size=ranks,
        max_model_len=40960,
    )


def layout(shape, *, block_size=32, on_cpu=True, **retention):
    return CacheLayout.from_model(
        shape,
        block_size,
        on_cpu=on_cpu,
        retention=Retention(**{"interval_tokens": 0, **retention}),
    )


GEMMA3 = model(sliding={"layers": 6, "tokens": 256})
GPT_OSS = model("GptOssForCausalLM", sliding={"layers": 4, "tokens": 128})
# Half the values per head in layers with a window: blocks of twice as many tokens.
GEMMA4 = model(head_dim=128, sliding={"layers": 6, "tokens": 256, "head_dim": 64})
GDN = model(
    "Qwen3NextForCausalLM",
    layers=4,
    recurrent={
        "layers": 3,
        "key_heads": 4,
        "value_heads": 8,
        "key_head_dim": 64,
        "value_head_dim": 64,
        "conv_kernel": 4,
    },
)


@pytest.mark.parametrize(
    ("shape", "rows"), [(GEMMA3, 119), (GPT_OSS, 99), (GEMMA4, 236)]
)
def test_a_conversation_takes_as_many_rows_as_servers_stored(shape, rows):
    # vLLM 0.32 on a CPU, blocks of 32 tokens, prompts of 3,040 tokens.
    assert layout(shape).rows_of_conversation(3040) == rows


def test_a_recurrent_state_takes_one_row_a_group():
    # As stored by vLLM 0.32, which chose blocks of 160 tokens for a state that needs them.
    groups = layout(GDN).groups
    assert [group.kind for group in groups] == ["full", *3 * ["recurrent"]]
    block = groups[0].block_tokens
    assert layout(GDN).rows_of_conversation(19 * block + 1) == 19 + 3


def test_a_tier_holds_as_many_conversations_as_were_found_again():
    tier = layout(GEMMA3)
    # 8 layers of 512 bytes a token: a tier without groups would hold 16,384 tokens.
    assert 64 * MIB // kv_bytes_per_token(GEMMA3.geometry) == 16_384
    assert tier.rows_within(64 * MIB) == 2048
    assert round(tier.conversations_within(64 * MIB, 3040), 1) == 17.2
    assert round(tier.tokens_within(64 * MIB, 3040), -3) == 52_000


def test_a_running_conversation_needs_its_windows_and_a_batch():
    five_to_one = model(layers=6, sliding={"layers": 5, "tokens": 256})
    assert layout(five_to_one).blocks_in_use(5120, 2048) == 160 + 5 * 73


@pytest.mark.parametrize(("dtype", "tokens"), [("auto", 544), ("float32", 1056)])
def test_blocks_have_room_for_a_state(dtype, tokens):
    # 544: logged for Qwen3-Next-80B-A3B; 1,056: for Qwen3.5, whose state has 32 bits (vllm#53749).
    state = {
        "layers": 36,
        "key_heads": 16,
        "value_heads": 32,
        "key_head_dim": 128,
        "value_head_dim": 128,
        "conv_kernel": 4,
        "dtype": dtype,
    }
    shape = model("Qwen3NextForCausalLM", layers=48, head_dim=256, recurrent=state)
    on_gpu = layout(shape, block_size=16, on_cpu=False)
    assert {group.block_tokens for group in on_gpu.groups} == {tokens}
    assert [group.layers for group in on_gpu.groups] == [12, 12, 12, 12]


def test_groups_are_as_the_server_makes_them():
    gemma3_27b = model(
        layers=62,
        kv_heads=16,
        head_dim=128,
        attention_heads=32,
        sliding={"layers": 52, "tokens": 1024},
    )
    groups = layout(gemma3_27b, block_size=16, on_cpu=False).groups
    assert [group.layers for group in groups] == [10, 9, 9, 9, 9, 8, 8]
    # Less than half as many more of one kind: padded to two groups of the larger size.
    padded = model(layers=25, sliding={"layers": 12, "tokens": 128})
    assert [group.layers for group in layout(padded).groups] == [13, 12]


def test_a_model_with_one_kind_of_layers_takes_a_row_a_block():
    plain = model("Qwen3ForCausalLM", layers=28)
    whole = layout(plain)
    assert whole.rows_of_conversation(3040) == 95
    assert whole.row_bytes == 32 * kv_bytes_per_token(plain.geometry)
    assert whole.shared_tokens(3039) == 94 * 32


def test_latent_vectors_are_in_the_tier_once():
    latent = {"rank": 512, "rope_dim": 64}
    shape = model("DeepseekV2ForCausalLM", layers=27, latent=latent, ranks=2)
    assert kv_bytes_per_token(shape.geometry) == 27 * 576 * 2
    row = layout(shape, block_size=64, on_cpu=False).row_bytes
    assert 0 <= row - 64 * 27 * 576 * 2 < 4096


def test_a_shared_prefix_is_found_at_the_retention_interval_only():
    assert layout(GEMMA3).shared_tokens(3000) == 0
    assert layout(GEMMA3, interval_tokens=1024).shared_tokens(3000) == 2048
    assert layout(GEMMA3, interval_tokens=None).shared_tokens(3000) == 2976
    assert layout(GEMMA3, grouped=False).shared_tokens(3000) == 2976


def test_one_group_for_all_layers_takes_whole_conversations():
    whole = layout(GEMMA3, grouped=False)
    rows = whole.rows_of_conversation(3040)
    grouped = layout(GEMMA3).row_bytes * layout(GEMMA3).rows_of_conversation(3040)
    assert rows * whole.row_bytes / grouped == pytest.approx(3.2, abs=0.05)


def test_impossible_shapes_are_refused():
    with pytest.raises(ValidationError, match="none is left that attends"):
        model(layers=6, sliding={"layers": 6, "tokens": 256})
    with pytest.raises(ValidationError, match="kind of model that is not known"):
        model(latent={"rank": 1, "rope_dim": 1}, sliding={"layers": 1, "tokens": 9})


def test_sizes_of_the_catalogue_follow_from_its_groups():
    models = load_config(CONFIG / "config.yaml", CONFIG).catalogue.models
    for entry in models.values():
        tier = CacheLayout.from_model(entry, 16, on_cpu=False, retention=DEFAULT)
        assert sum(group.layers for group in tier.groups) == entry.geometry.layers


windows = st.integers(2, 4096)
tokens = st.integers(1, 100_000)
intervals = st.sampled_from([None, 0, 256, 1024, 8192])


def sliding(window, interval=0):
    return layout(
        model(sliding={"layers": 6, "tokens": window}), interval_tokens=interval
    )


@given(tokens, st.integers(1, 3000), windows, intervals)
def test_prompts_that_are_blocks_longer_take_more_rows(some, blocks, window, interval):
    tier = sliding(window, interval)
    longer = some + 32 * blocks
    assert tier.rows_of_conversation(some) <= tier.rows_of_conversation(longer)


@given(tokens, windows, windows, intervals)
def test_longer_windows_take_more_rows(prompt, window, more, interval):
    narrow, wide = sliding(window, interval), sliding(window + more, interval)
    assert narrow.rows_of_conversation(prompt) <= wide.rows_of_conversation(prompt)


@given(tokens, windows, intervals)
def test_no_conversation_takes_more_than_if_everything_is_kept(
    prompt, window, interval
):
    kept = sliding(window, interval).rows_of_conversation(prompt)
    at_the_end = sliding(window, 0).rows_of_conversation(prompt)
    everything = sliding(window, None).rows_of_conversation(prompt)
    assert at_the_end <= kept <= everything


@given(tokens, tokens, windows)
def test_a_further_turn_takes_at_most_its_blocks_and_a_window_a_group(
    prompt, more, window
):
    tier = sliding(window)
    both = tier.rows_of_conversation(prompt, prompt + more)
    assert both >= tier.rows_of_conversation(prompt + more)
    assert both <= (
        tier.rows_of_conversation(prompt) + tier.rows_of_conversation(prompt + more)
    )


@given(tokens, windows, st.integers(0, 2**32), st.integers(0, 2**32))
def test_larger_tiers_hold_more(prompt, window, size, more):
    tier = sliding(window)
    assert tier.tokens_within(size, prompt) <= tier.tokens_within(size + more, prompt)


@given(tokens, windows, st.sampled_from([256, 1024, 8192]))
def test_rows_are_those_of_the_masks_that_the_server_keeps(prompt, window, interval):
    """Block by block, as SlidingWindowManager.reachable_block_mask marks them."""
    tier = sliding(window, interval)
    per, need = interval // 32, -(-(window - 1) // 32)
    end = (prompt - 1) // 32
    kept = sum(
        need >= per or block % per >= per - need or end - need <= block < end
        for block in range(prompt // 32)
    )
    assert tier.rows_of_conversation(prompt) == prompt // 32 + 3 * kept
