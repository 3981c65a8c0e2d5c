"""Which weights are served: a checkpoint's from a hub or a folder, random ones of the whole geometry, a miniature's."""

import pytest
from tests.support.config_files import (
    CONFIG,
    NATIVE,
    ROOT,
    changed,
    load,
    on_cluster,
    on_gpus,
)

from kveval.campaign.cell import Cell
from kveval.campaign.problems import ConfigError
from kveval.campaign.specification import Specification
from kveval.configuration.loading import load_config

CELL = Cell("Qwen3-8B", "native-offload", 10_000)
WHOLE = Cell("Qwen3-0.6B-float32", "native-offload", 200)


def codes(error):
    return [problem.code for problem in error.value.problems]


def after(argv, flag):
    return argv[argv.index(flag) + 1]


def on_disk(folder, **server):
    files = on_gpus(*CELL.__dict__.values(), **server)
    return changed(("models", "Qwen3-8B", "path"), folder, files)


def test_random_weights_have_the_whole_geometry_on_gpus(tmp_path):
    two = {"tensor_parallel_size": 2}
    found = load(
        tmp_path, on_gpus(*CELL.__dict__.values(), weights="random", **two)
    ).specification(CELL)
    full = load(
        tmp_path / "full", on_gpus(*CELL.__dict__.values(), **two)
    ).specification(CELL)
    assert found.model.geometry == full.model.geometry
    assert found.model.kv_bytes_per_token == full.model.kv_bytes_per_token
    assert found.budget == full.budget
    assert found.model.served_name == "Qwen3-8B-random"
    assert (after(found.argv, "--model"), after(found.argv, "--load-format")) == (
        "{model_dir}",
        "dummy",
    )
    assert after(found.argv, "--tensor-parallel-size") == "2"
    assert "--gpu-memory-utilization" in found.argv
    assert "--enforce-eager" not in found.argv
    assert found.env["HF_HUB_OFFLINE"] == "1"
    assert (found.random_weights, found.miniature) == (True, False)


def test_on_a_cpu_the_whole_model_has_one_rank_and_a_cache_of_declared_size():
    config = load_config(ROOT / "config/campaigns/full-geometry-cpu.yaml", CONFIG)
    found = config.specification(WHOLE)
    assert found.model.geometry.layers == 28
    assert found.model.kv_bytes_per_token == 224 * 1024
    assert found.model.tensor_parallel_size == 1
    assert found.budget.device_tokens is not None
    # Every prefix fits the tier, and the device holds only a part of them.
    assert found.budget.device_tokens < 2048 < found.budget.tokens
    assert config.warnings == ()


def test_a_checkpoint_in_a_folder_asks_no_hub_and_is_the_same_measurement_in_any_folder(
    tmp_path,
):
    one = load(tmp_path / "one", on_disk("/models/qwen")).specification(CELL)
    two = load(tmp_path / "two", on_disk("/mnt/qwen")).specification(CELL)
    hub = load(tmp_path / "hub", on_gpus(*CELL.__dict__.values())).specification(CELL)
    assert (one.model.folder, two.model.folder) == ("/models/qwen", "/mnt/qwen")
    assert one.measurement_id == two.measurement_id
    assert "/models" not in str(one.to_json())
    assert Specification.from_json(one.to_json()).measurement_id == one.measurement_id
    assert after(one.argv, "--model") == "{model_dir}"
    assert "--load-format" not in one.argv
    assert one.env["HF_HUB_OFFLINE"] == "1"
    assert (after(hub.argv, "--model"), hub.env.get("HF_HUB_OFFLINE")) == (
        "Qwen/Qwen3-8B",
        None,
    )


def test_random_weights_and_miniatures_need_no_checkpoint(tmp_path):
    found = load(
        tmp_path / "one", on_disk("/models/qwen", weights="random")
    ).specification(CELL)
    without = load(
        tmp_path / "two", on_gpus(*CELL.__dict__.values(), weights="random")
    ).specification(CELL)
    assert found == without


@pytest.mark.parametrize("path", ["models/qwen", "~/qwen", "/models/my qwen"])
def test_the_folder_of_a_checkpoint_is_absolute(tmp_path, path):
    with pytest.raises(ConfigError):
        load(tmp_path, on_disk(path))


def test_on_a_cluster_a_folder_of_this_host_and_random_weights_are_refused(tmp_path):
    files = on_cluster("llm-d-0.8.0", [(["Qwen3-8B"], ["native-offload"], [10_000])])
    with pytest.raises(ConfigError) as error:
        load(
            tmp_path / "path",
            changed(("models", "Qwen3-8B", "path"), "/models/qwen", files),
        )
    # Larger models extend this one, and take its path over.
    assert set(codes(error)) == {"path_of_this_host"}
    with pytest.raises(ConfigError) as error:
        load(
            tmp_path / "random",
            changed(("config", "server", "weights"), "random", files),
        )
    assert codes(error) == ["random_on_cluster"]


def test_a_cpu_has_one_rank_whatever_the_arm_asks(tmp_path):
    wide = {
        "wide": {
            "title": "wide",
            "arm": "none",
            "cpu_tier": False,
            "tensor_parallel_size": 2,
        }
    }
    files = changed(("config", "scenarios"), wide)
    files["config"]["matrix"] = [
        {"models": [NATIVE.model], "scenarios": ["wide"], "cpu_blocks": [0]}
    ]
    with pytest.raises(ConfigError) as error:
        load(tmp_path, changed(("config", "server", "weights"), "random", files))
    assert codes(error) == ["ranks_of_miniature"]
