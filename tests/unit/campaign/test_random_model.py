"""Files of models with random weights: shape, tokenizer, bytes."""

import functools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.paths import CONFIG

from kveval.campaign.geometry import Geometry
from kveval.campaign.random_model import (
    _encode,
    byte_symbols,
    miniature_geometry,
    model_config,
    tokenizer,
    write_served,
)
from kveval.campaign.sizing import kv_bytes_per_token
from kveval.configuration.loading import load_config

MODELS = load_config(CONFIG / "config.yaml", CONFIG).catalogue.models
TOKENIZER = tokenizer()
RANKS = {
    tuple(merge.split(" ")): rank
    for rank, merge in enumerate(TOKENIZER["model"]["merges"])
}
SYMBOLS = byte_symbols()


@functools.cache
def _whole_ranks():
    merges = tokenizer(MODELS["Qwen3-0.6B"].geometry.vocab_size)["model"]["merges"]
    return {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}


def tokens_of(text):
    """Encode one word as an encoder does; returns tokens as byte-level symbols."""
    return _encode("".join(SYMBOLS[byte] for byte in text.encode()), RANKS)


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("Qwen3-0.6B", 2),
        ("Qwen3-8B", 3),
        ("Qwen3-14B", 3),
        ("Qwen3-32B", 4),
        ("Qwen3-32B-AWQ", 4),
        ("Llama-3.1-8B", 2),
    ],
)
def test_a_miniature_keeps_the_architecture_and_its_order_of_depth(name, layers):
    geometry = miniature_geometry(MODELS[name])
    assert geometry.layers == layers
    assert geometry.architecture == MODELS[name].geometry.architecture
    assert kv_bytes_per_token(geometry) == 512 * layers
    assert geometry.tie_word_embeddings


@pytest.mark.parametrize(
    ("name", "kind"), [("Qwen3-0.6B", "qwen3"), ("Llama-3.1-8B", "llama")]
)
def test_config_json_is_what_transformers_reads(tmp_path, name, kind):
    write_served(miniature_geometry(MODELS[name]), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["model_type"] == kind
    assert config["architectures"] == [MODELS[name].geometry.architecture]
    assert config["num_attention_heads"] * config["head_dim"] == config["hidden_size"]
    assert config["vocab_size"] == len(TOKENIZER["model"]["vocab"]) == 4096
    assert (config["bos_token_id"], config["eos_token_id"]) == (0, 1)


@pytest.mark.parametrize(
    ("name", "kind", "full", "others"),
    [
        ("Gemma-3-27B", "sliding_attention", 1, 5),
        ("gpt-oss-20b", "sliding_attention", 1, 1),
        ("gpt-oss-120b", "sliding_attention", 2, 2),
        ("Qwen3-Next-80B-A3B", "linear_attention", 1, 3),
    ],
)
def test_a_miniature_keeps_the_proportion_of_kinds_of_layers(name, kind, full, others):
    geometry = miniature_geometry(MODELS[name])
    kinds = model_config(geometry)["layer_types"]
    assert (kinds.count("full_attention"), kinds.count(kind)) == (full, others)
    assert len(kinds) == geometry.layers == full + others
    assert kinds[-1] == "full_attention"


def test_the_chat_endpoint_finds_a_template(tmp_path):
    write_served(miniature_geometry(MODELS["Qwen3-0.6B"]), tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert "message['content']" in settings["chat_template"]
    assert settings["tokenizer_class"] == "PreTrainedTokenizerFast"


def test_the_same_bytes_every_time_and_from_a_specification(tmp_path):
    model = MODELS["Qwen3-14B"]
    write_served(miniature_geometry(model), tmp_path / "one")
    write_served(
        Geometry.model_validate_json(miniature_geometry(model).model_dump_json()),
        tmp_path / "two",
    )
    names = {"config.json", "tokenizer.json", "tokenizer_config.json"}
    assert {path.name for path in (tmp_path / "one").iterdir()} == names
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (
            tmp_path / "two" / name
        ).read_bytes()


def test_the_tokenizer_is_whole():
    vocabulary = TOKENIZER["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(4096))
    assert [entry["content"] for entry in TOKENIZER["added_tokens"]] == ["<s>", "</s>"]
    assert all(
        vocabulary[entry["content"]] == entry["id"]
        for entry in TOKENIZER["added_tokens"]
    )
    assert set(SYMBOLS) <= vocabulary.keys()
    assert len(RANKS) == len(TOKENIZER["model"]["merges"])
    for left, right in RANKS:
        assert {left, right, left + right} <= vocabulary.keys()


def test_every_byte_has_its_own_printable_symbol():
    assert len(set(SYMBOLS)) == 256
    assert all(symbol.isprintable() and not symbol.isspace() for symbol in SYMBOLS)
    assert SYMBOLS[ord("A")] == "A"
    assert SYMBOLS[ord(" ")] == "Ġ"


@pytest.mark.parametrize(
    "word", [" the", " people", " government", " international", " yourself"]
)
def test_common_words_are_one_token(word):
    assert tokens_of(word) == [word.replace(" ", "Ġ")]


def test_ordinary_text_takes_three_to_four_and_a_half_characters_a_token():
    text = (
        "Each server keeps the keys and values of earlier requests in memory so that a later request with an equal"
        " start does not compute them again. When that memory is full the oldest entries go, and a second place in the"
        " host can take them over. Whether this helps depends on how often people come back with the same question"
    )
    words = [f" {word}" for word in text.split()]
    assert 3.0 < len(text) / sum(len(tokens_of(word)) for word in words) < 4.5


@given(st.text(max_size=40))
def test_encoding_loses_nothing(text):
    back = {symbol: byte for byte, symbol in enumerate(SYMBOLS)}
    joined = "".join(tokens_of(text))
    assert bytes(back[symbol] for symbol in joined).decode() == text


@given(st.text(alphabet="etaoinsrhldTHEcu", min_size=1, max_size=30), st.data())
def test_a_prefix_cut_between_tokens_keeps_its_count(text, data):
    """A load generator cuts text at a number of tokens; the server must count the same in the cut."""
    tokens = tokens_of(text)
    cut = data.draw(st.integers(1, len(tokens)))
    assert _encode("".join(tokens[:cut]), RANKS) == tokens[:cut]


@pytest.fixture(scope="module")
def whole_tokenizer():
    return tokenizer(MODELS["Qwen3-0.6B"].geometry.vocab_size)["model"]


def test_a_whole_vocabulary_has_every_number_once_and_begins_like_the_small_one(
    whole_tokenizer,
):
    vocabulary = whole_tokenizer["vocab"]
    assert sorted(vocabulary.values()) == list(range(151_936))
    merged = [
        (left + right, left, right)
        for left, right in (merge.split(" ") for merge in whole_tokenizer["merges"])
    ]
    assert all(
        {token, left, right} <= vocabulary.keys() for token, left, right in merged
    )
    # A token without a merge of its own could never come out of a text.
    assert {token for token, *_ in merged} == set(list(vocabulary)[2 + 256 :])


@given(text=st.text(max_size=40))
def test_a_whole_vocabulary_loses_nothing(text):
    ranks = _whole_ranks()
    back = {symbol: byte for byte, symbol in enumerate(SYMBOLS)}
    joined = "".join(_encode("".join(SYMBOLS[byte] for byte in text.encode()), ranks))
    assert bytes(back[symbol] for symbol in joined).decode() == text


@pytest.mark.parametrize(
    ("name", "dtype"), [("Qwen3-0.6B", "bfloat16"), ("Qwen3-32B-AWQ", "float16")]
)
def test_the_whole_geometry_is_that_of_the_catalogue(name, dtype):
    model = MODELS[name]
    config = model_config(model.geometry, model.dtype, model.quantization)
    assert config["num_hidden_layers"] == model.geometry.layers
    assert config["vocab_size"] == model.geometry.vocab_size
    assert config["torch_dtype"] == dtype
    assert (
        config.get("quantization_config", {}).get("quant_method") == model.quantization
    )
