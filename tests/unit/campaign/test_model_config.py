"""Models from their config.json, whatever the architecture is called, and those whose KV bytes are not known from it."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.config_files import RAW, load

from kveval.campaign.catalogue import Model
from kveval.campaign.problems import ConfigError
from kveval.campaign.sizing import kv_bytes_per_token, parameter_count

LLAMA = {
    "architectures": ["FancyForCausalLM"], "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "hidden_size": 4096, "intermediate_size": 14336, "vocab_size": 128256,
    "max_position_embeddings": 131072, "torch_dtype": "bfloat16",
}  # fmt: skip


def model(folder: Path, **changes: Any) -> Model:
    values = {**LLAMA, **changes}
    kept = {name: value for name, value in values.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(kept))
    return Model.model_validate({"config": "config.json"}, context={"folder": folder})


def kv_bytes(one: Model) -> int:
    return kv_bytes_per_token(one.geometry, one.kv_cache_dtype, 1, one.dtype)


def test_a_config_is_a_model_whatever_its_architecture_is_called(
    tmp_path: Path,
) -> None:
    found = model(tmp_path)
    assert found.geometry.architecture == "FancyForCausalLM"
    assert (kv_bytes(found), found.max_model_len) == (131_072, 131_072)
    assert parameter_count(found.geometry) == pytest.approx(8.03e9, rel=0.01)
    given = Model.model_validate(
        {"config": "config.json", "max_model_len": 8192, "kv_cache_dtype": "fp8"},
        context={"folder": tmp_path},
    )
    assert (kv_bytes(given), given.max_model_len) == (65_536, 8192)


@pytest.mark.parametrize(
    ("changes", "bytes_"),
    [
        ({"num_key_value_heads": None}, 524_288),
        ({"num_key_value_heads": None, "multi_query": True}, 16_384),
        ({"num_key_value_heads": None, "num_kv_heads": 4}, 65_536),
        ({"head_dim": 64}, 65_536),
        ({"sliding_window": 4096, "use_sliding_window": False}, 131_072),
        ({"kv_lora_rank": 512, "qk_rope_head_dim": 64}, 32 * 576 * 2),
        ({"text_config": {"num_hidden_layers": 16}}, 65_536),
    ],
)
def test_its_kv_bytes_follow_from_what_it_has(
    tmp_path: Path, changes: dict[str, Any], bytes_: int
) -> None:
    assert kv_bytes(model(tmp_path, **changes)) == bytes_


def test_windows_states_and_experts_are_read(tmp_path: Path) -> None:
    types = ["sliding_attention", "full_attention"] * 16
    sliding = model(tmp_path, sliding_window=128, layer_types=types).geometry.sliding
    assert sliding is not None
    assert (sliding.layers, sliding.tokens) == (16, 128)
    experts = model(tmp_path, num_local_experts=8, intermediate_size=14336)
    assert experts.geometry.parameters == pytest.approx(46.9e9, rel=0.02)
    quantized = model(tmp_path, quantization_config={"quant_method": "awq"})
    assert quantized.quantization == "awq"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"mamba_d_state": 16}, "mamba_d_state: layers of this kind keep states"),
        ({"layer_types": ["full_attention", "mamba"]}, "layer_types mamba"),
        ({"num_hidden_layers": None}, "it has no num_hidden_layers or n_layer"),
        ({"max_position_embeddings": None}, "it has no max_position_embeddings"),
        ({"sliding_window": 4096}, "none is left that attends to the whole"),
    ],
)
def test_what_is_not_known_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        model(tmp_path, **changes)


def test_a_campaign_takes_a_model_by_its_config(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(json.dumps(LLAMA))
    raw = copy.deepcopy(RAW)
    raw["config"]["models"] = {"mine": {"config": str(tmp_path / "c.json")}}
    assert load(tmp_path, raw).catalogue.models["mine"].geometry.layers == 32
    raw["config"]["models"] = {"mine": {"config": "nowhere.json"}}
    with pytest.raises(ConfigError, match=r"nowhere\.json: cannot be read"):
        load(tmp_path, raw)
    del raw["config"]["models"]
    raw["config"]["matrix"] = [{"models": ["mine"], "scenarios": ["no-offload"], "cpu_blocks": [0]}]  # fmt: skip
    with pytest.raises(ConfigError, match=r"models: \{mine: \{config: FILE\}\}"):
        load(tmp_path, raw)
