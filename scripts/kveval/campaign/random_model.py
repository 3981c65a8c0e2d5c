"""Models with random weights: of the catalogue's full geometry, or a miniature for hosts that are too small for it.

vLLM serves them with `--load-format dummy`: config.json and a tokenizer are all it needs, and both are made here, so
that nothing is downloaded from any hub. The tokenizer also serves the load generator.
"""

import itertools
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kveval.campaign.catalogue import Model
from kveval.campaign.geometry import Geometry, RecurrentState, SlidingWindow

_VOCABULARY = 4096
_SPECIALS = ("<s>", "</s>")
_CHAT_TEMPLATE = "{% for message in messages %}{{ message['role'] }}\n{{ message['content'] }}\n{% endfor %}"
_MODEL_TYPES = {
    "Qwen3ForCausalLM": "qwen3",
    "LlamaForCausalLM": "llama",
    "Gemma3ForCausalLM": "gemma3_text",
    "GptOssForCausalLM": "gpt_oss",
    "Qwen3NextForCausalLM": "qwen3_next",
    "DeepseekV2ForCausalLM": "deepseek_v2",
}
# A miniature's conversations are shorter than those of its model, and so is its window, in tokens.
_WINDOW_TOKENS = 256
# Keys of config.json that follow from no size: of checkpoints of these architectures, with few experts.
_ARCHITECTURE: dict[str, dict[str, Any]] = {
    "Gemma3ForCausalLM": {
        "hidden_activation": "gelu_pytorch_tanh",
        "rope_local_base_freq": 10000.0,
    },
    "GptOssForCausalLM": {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "swiglu_limit": 7.0,
        "attention_bias": True,
        "rope_theta": 150000.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 10.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "original_max_position_embeddings": 4096,
            "truncate": False,
        },
    },
    "Qwen3NextForCausalLM": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "partial_rotary_factor": 0.25,
    },
}
RANDOM_ARCHITECTURES = frozenset(_MODEL_TYPES) - {"DeepseekV2ForCausalLM"}
"""Architectures whose models can have random weights."""
_CONFIG_NAMES = {
    "layers": "num_hidden_layers",
    "attention_heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
}
# Common English words, in no order that matters; the statistics of letters come from them, too.
_WORDS = Path(__file__).with_name("tokenizer_words.txt")
_FREQUENT_PAIRS = 200
# As in the config.json of such checkpoints; 4 bits in groups of 128, 8 bits with one scale per tensor.
_QUANTIZATION: dict[str, dict[str, Any]] = {
    "awq": {
        "quant_method": "awq",
        "bits": 4,
        "group_size": 128,
        "zero_point": True,
        "version": "gemm",
    },
    "gptq": {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": 128,
        "desc_act": False,
        "sym": True,
    },
    "fp8": {"quant_method": "fp8", "activation_scheme": "dynamic"},
    "mxfp4": {"quant_method": "mxfp4"},
}


def miniature_geometry(model: Model) -> Geometry:
    """Shrink a model's shape: the same architecture, at least two layers, 512 bytes of KV cache per token and layer.

    Layers of several kinds keep their proportion, so that the cache has groups as the model's has.
    """
    shape = model.geometry
    layers = max(2, math.ceil(shape.layers / 16))
    sliding, recurrent = None, None
    if shape.grouped:
        period = round(shape.layers / shape.full_layers)
        full = max(1, round(layers / period))
        layers = full * period
        if shape.sliding is not None:
            window = min(shape.sliding.tokens, _WINDOW_TOKENS)
            sliding = SlidingWindow(layers=layers - full, tokens=window)
        if shape.recurrent is not None:
            recurrent = RecurrentState(
                layers=layers - full,
                key_heads=2,
                value_heads=8,
                key_head_dim=64,
                value_head_dim=64,
                conv_kernel=shape.recurrent.conv_kernel,
            )
    return Geometry(
        architecture=shape.architecture,
        layers=layers,
        kv_heads=2,
        head_dim=64,
        hidden_size=256,
        attention_heads=4,
        intermediate_size=1024,
        vocab_size=_VOCABULARY,
        max_position_embeddings=40960,
        tie_word_embeddings=True,
        sliding=sliding,
        recurrent=recurrent,
    )


def write_served(
    geometry: Geometry,
    directory: Path,
    *,
    dtype: str = "bfloat16",
    quantization: str | None = None,
) -> Path:
    """Write a random-weight model of the given shape, with a tokenizer of as many tokens as its vocabulary."""
    directory.mkdir(parents=True, exist_ok=True)
    files = {
        "config.json": model_config(geometry, dtype, quantization),
        "tokenizer.json": tokenizer(geometry.vocab_size),
        "tokenizer_config.json": {
            # The one class that transformers 4 and 5 both read.
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": _SPECIALS[0],
            "eos_token": _SPECIALS[1],
            "model_max_length": geometry.max_position_embeddings,
            "clean_up_tokenization_spaces": False,
            # Conversations of several turns go to the chat endpoint, which refuses a model without a template.
            "chat_template": _CHAT_TEMPLATE,
        },
    }
    for name, content in files.items():
        (directory / name).write_text(
            json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8"
        )
    return directory


def model_config(
    geometry: Geometry, dtype: str = "bfloat16", quantization: str | None = None
) -> dict[str, Any]:
    """Return the config.json of a model of this shape, as transformers reads it."""
    kinds = {"sliding", "recurrent", "latent", "parameters"}
    shape = geometry.model_dump(exclude={"architecture", *kinds})
    quantized = (
        {}
        if quantization is None
        else {"quantization_config": _QUANTIZATION[quantization]}
    )
    return {
        "architectures": [geometry.architecture],
        "model_type": _MODEL_TYPES[geometry.architecture],
        **{_CONFIG_NAMES.get(name, name): value for name, value in shape.items()},
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "attention_bias": False,
        "torch_dtype": dtype,
        # Without a version, transformers 5 warns of large vocabularies at every load.
        "transformers_version": "4.51.0",
        "bos_token_id": 0,
        "eos_token_id": 1,
        **_ARCHITECTURE.get(geometry.architecture, {}),
        **_kinds_of_layers(geometry),
        **quantized,
    }


def _kinds_of_layers(geometry: Geometry) -> dict[str, Any]:
    """Return the keys of config.json that say which layers do not attend to the whole conversation, and how."""
    keys: dict[str, Any] = {}
    if geometry.latent is not None:
        keys["kv_lora_rank"] = geometry.latent.rank
        keys["qk_rope_head_dim"] = geometry.latent.rope_dim
    if not geometry.grouped:
        return keys
    period = round(geometry.layers / geometry.full_layers)
    other = "linear_attention"
    if (window := geometry.sliding) is not None:
        other = "sliding_attention"
        keys["sliding_window"] = window.tokens
        if geometry.architecture == "Gemma3ForCausalLM":
            keys["query_pre_attn_scalar"] = geometry.head_dim
    if (state := geometry.recurrent) is not None:
        keys |= {
            "linear_num_key_heads": state.key_heads,
            "linear_num_value_heads": state.value_heads,
            "linear_key_head_dim": state.key_head_dim,
            "linear_value_head_dim": state.value_head_dim,
            "linear_conv_kernel_dim": state.conv_kernel,
            "moe_intermediate_size": geometry.intermediate_size // 4,
            "shared_expert_intermediate_size": geometry.intermediate_size // 4,
        }
    keys["layer_types"] = [
        other if (layer + 1) % period else "full_attention"
        for layer in range(geometry.layers)
    ]
    return keys


def tokenizer(size: int = _VOCABULARY) -> dict[str, Any]:
    """Return a tokenizer.json of `size` tokens: byte-level BPE whose merges follow from lists, not from training."""
    vocabulary, merges = _vocabulary(size)
    special = {
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": number, "content": text, **special}
            for number, text in enumerate(_SPECIALS)
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: number for number, token in enumerate(vocabulary)},
            "merges": [f"{left} {right}" for left, right in merges],
        },
    }


def byte_symbols() -> list[str]:
    """Return the printable character that stands for each byte in byte-level BPE, in the bytes' order.

    Printable Latin-1 bytes stand for themselves, the others move to U+0100 and up (the mapping of GPT-2's tokenizer).
    """
    printable = {
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    }
    moved = itertools.count(256)
    return [chr(byte) if byte in printable else chr(next(moved)) for byte in range(256)]


def _vocabulary(size: int) -> tuple[list[str], list[tuple[str, str]]]:
    """Return `size` tokens by id, and the merges by priority: frequent pairs, whole words, then fillers.

    A word's merges join, left to right, the tokens that the merges before it make of it - so that an encoder, which
    always applies the earliest merge it can, arrives at the whole word.
    """
    space = byte_symbols()[ord(" ")]
    tokens = dict.fromkeys([*_SPECIALS, *byte_symbols()])
    first_merged = len(tokens)
    ranks: dict[tuple[str, str], int] = {}

    def add(left: str, right: str) -> None:
        room = len(tokens) < size or left + right in tokens
        if room and left in tokens and right in tokens and (left, right) not in ranks:
            tokens[left + right] = None
            ranks[left, right] = len(ranks)

    words = _WORDS.read_text(encoding="ascii").split()
    letters = _by_frequency(itertools.chain.from_iterable(words))
    pairs = _by_frequency(
        first + second for word in words for first, second in itertools.pairwise(word)
    )
    pairs = pairs[:_FREQUENT_PAIRS]
    for pair in pairs:
        add(pair[0], pair[1])
    for word in words:
        first, *rest = _encode(space + word, ranks)
        for token in rest:
            add(first, token)
            first += token
    capitals = [letter.upper() for letter in letters]
    for letter in [*letters, *capitals]:
        add(space, letter)
    for start, pair in itertools.product(
        [space, *(space + letter for letter in capitals), *letters], pairs
    ):
        add(start, pair)
    # To fill a vocabulary of a real size: words and their beginnings, continued.
    for start, pair in itertools.product(list(tokens)[first_merged:], pairs):
        if len(tokens) >= size:
            break
        add(start, pair)
    return list(tokens), list(ranks)


def _by_frequency(items: Iterable[str]) -> list[str]:
    counts = Counter(items)
    return sorted(counts, key=lambda item: (-counts[item], item))


def _encode(text: str, ranks: Mapping[tuple[str, str], int]) -> list[str]:
    """Split text into tokens as byte-level BPE does: the earliest merge that applies, until none does."""
    tokens = list(text)
    while pairs := [pair for pair in itertools.pairwise(tokens) if pair in ranks]:
        left, right = min(pairs, key=ranks.__getitem__)
        merged: list[str] = []
        for token in tokens:
            if merged and merged[-1] == left and token == right:
                merged[-1] = left + right
            else:
                merged.append(token)
        tokens = merged
    return tokens
