"""The shape of a model from its config.json, whatever its architecture is called: what decides the bytes of its KV cache.

Names are those of transformers and of older checkpoints. Layers of a kind whose cache is not known here are refused.
"""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_KV_HEADS = (
    "num_key_value_heads",
    "num_kv_heads",
    "n_head_kv",
    "multi_query_group_num",
)
_HIDDEN = ("hidden_size", "n_embd", "d_model")
_INNER = ("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim")
_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
_KINDS = {"full_attention", "sliding_attention", "linear_attention"}
# Keys of models whose layers keep states of other kinds.
_OTHER_STATES = (
    *("ssm_cfg", "mamba_d_state", "ssm_state_size", "mamba_num_heads", "state_size"),
    *("attn_layer_period", "rwkv", "attention_chunk_size", "hybrid_override_pattern"),
)


def model_settings(file: Path) -> dict[str, Any]:
    """Return the keys of a model's entry that a config.json gives. Raises ValueError, with what it lacks."""
    try:
        whole = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{file}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise ValueError(f"{file}: no JSON ({error})") from error
    if not isinstance(whole, dict):
        raise ValueError(f"{file}: no config.json of a model, which is an object")
    text = whole.get("text_config")
    config = {**whole, **text} if isinstance(text, dict) else whole
    try:
        geometry = _geometry(config, (whole.get("architectures") or ["unnamed"])[0])
    except (TypeError, ArithmeticError, ValueError) as error:
        raise ValueError(f"{file}: {error}") from error
    name = str(config.get("_name_or_path") or "")
    settings: dict[str, Any] = {
        "hf_id": name
        if name.count("/") == 1 and name[0] not in "./"
        else f"local/{file.resolve().parent.name}",
        "geometry": geometry,
        "max_model_len": geometry["max_position_embeddings"],
    }
    dtype = config.get("dtype") or config.get("torch_dtype")
    if dtype in ("bfloat16", "float16", "float32"):
        settings["dtype"] = dtype
    method = (config.get("quantization_config") or {}).get("quant_method")
    if method in ("awq", "gptq", "fp8", "mxfp4"):
        settings["quantization"] = method
    return settings


def _geometry(config: Mapping[str, Any], architecture: str) -> dict[str, Any]:
    odd = [name for name in _OTHER_STATES if config.get(name)]
    if odd:
        message = f"{', '.join(odd)}: layers of this kind keep states whose bytes are not known here"
        raise ValueError(message)
    layers, heads, hidden = (
        _number(config, names) for names in (_LAYERS, _HEADS, _HIDDEN)
    )
    only = 1 if config.get("multi_query") else heads
    geometry = {
        "architecture": architecture,
        "layers": layers,
        "attention_heads": heads,
        "kv_heads": _number(config, _KV_HEADS, only),
        "head_dim": _number(config, ("head_dim", "kv_channels"), hidden // heads),
        "hidden_size": hidden,
        "intermediate_size": _number(config, _INNER, 4 * hidden),
        "vocab_size": _number(config, ("vocab_size", "padded_vocab_size")),
        "max_position_embeddings": _number(config, _POSITIONS),
        "tie_word_embeddings": bool(config.get("tie_word_embeddings", False)),
        **_kinds(config, layers),
    }
    if config.get("kv_lora_rank"):
        rope = _number(config, ("qk_rope_head_dim",))
        geometry["latent"] = {"rank": config["kv_lora_rank"], "rope_dim": rope}
    if _number(config, _EXPERTS, 1) > 1:
        geometry["parameters"] = _expert_parameters(config, geometry)
    return geometry


def _kinds(config: Mapping[str, Any], layers: int) -> dict[str, Any]:
    """Return the entries of layers that do not attend to the whole conversation."""
    window = config.get("sliding_window")
    types = config.get("layer_types")
    if not isinstance(types, list):
        pattern = config.get("sliding_window_pattern")
        windowed = window and config.get("use_sliding_window", True)
        sliding = layers - layers // pattern if pattern else layers
        types = ["sliding_attention"] * sliding if windowed else []
    counts = Counter(types)
    unknown = sorted(counts.keys() - _KINDS)
    if unknown:
        raise ValueError(
            f"layer_types {', '.join(unknown)}: their KV bytes are not known here"
        )
    found: dict[str, Any] = {}
    if counts["sliding_attention"] and window:
        found["sliding"] = {"layers": counts["sliding_attention"], "tokens": window}
    if counts["linear_attention"]:
        names = {
            "key_heads": "linear_num_key_heads",
            "value_heads": "linear_num_value_heads",
            "key_head_dim": "linear_key_head_dim",
            "value_head_dim": "linear_value_head_dim",
            "conv_kernel": "linear_conv_kernel_dim",
        }
        sizes = {key: _number(config, (name,)) for key, name in names.items()}
        found["recurrent"] = {"layers": counts["linear_attention"], **sizes}
    return found


def _expert_parameters(config: Mapping[str, Any], geometry: Mapping[str, Any]) -> int:
    """Return the weights of a model with experts: dense layers first, then those with all experts and the shared ones."""
    hidden, layers = geometry["hidden_size"], geometry["layers"]
    inner = _number(config, ("moe_intermediate_size",), geometry["intermediate_size"])
    shared = _number(
        config,
        ("shared_expert_intermediate_size",),
        inner * (config.get("n_shared_experts") or 0),
    )
    dense = config.get("first_k_dense_replace") or 0
    experts = _number(config, _EXPERTS) * inner + shared
    network = (
        3
        * hidden
        * (dense * geometry["intermediate_size"] + (layers - dense) * experts)
    )
    heads = geometry["attention_heads"] + geometry["kv_heads"]
    attention = 2 * hidden * geometry["head_dim"] * heads * layers
    matrices = 1 if geometry["tie_word_embeddings"] else 2
    return int(network + attention + matrices * geometry["vocab_size"] * hidden)


def _number(
    config: Mapping[str, Any], names: tuple[str, ...], usual: int | None = None
) -> int:
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    if usual is None:
        raise ValueError(
            f"it has no {' or '.join(names[:2])}, without which the KV bytes of a token are not known"
        )
    return usual
