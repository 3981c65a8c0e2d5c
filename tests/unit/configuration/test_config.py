"""What ships, what can be asked of it, and what is worth a note."""

import json
import runpy
import subprocess
import sys
import time
from dataclasses import FrozenInstanceError

import jsonschema
import pytest
import yaml
from pydantic import ValidationError
from tests.support.config_files import (
    BASE,
    CONFIG,
    NATIVE,
    RAW,
    RELEASES,
    ROOT,
    changed,
    load,
    load_raw,
    on_cluster,
    on_gpus,
)

from kveval.campaign.cell import Cell
from kveval.campaign.json_schema import json_schema
from kveval.campaign.metric import name_for
from kveval.campaign.problems import ConfigError, closest
from kveval.campaign.random_model import RANDOM_ARCHITECTURES
from kveval.configuration.loading import load_config
from kveval.load.levels import working_set_tokens


@pytest.fixture(scope="module")
def default():
    return load_config(CONFIG / "config.yaml", CONFIG)


@pytest.fixture(scope="module")
def schema():
    return json_schema()


def test_the_default_campaign_shows_a_tier_too_small_and_one_large_enough(default):
    assert [cell.path for cell in default.cells] == [
        "Qwen3-0.6B/no-offload/0",
        "Qwen3-0.6B/native-offload/500",
        "Qwen3-0.6B/native-offload/10000",
    ]
    small, large = (
        default.specification(cell).budget.tokens for cell in default.cells[1:]
    )
    assert (
        small
        < default.campaign.server.device_tokens
        < working_set_tokens(default.workload)
        < large
    )
    assert default.warnings == ()


def test_the_server_is_started_with_the_command_known_to_work(default):
    argv = default.specification(NATIVE).argv
    expected = [
        "--model",
        "{model_dir}",
        "--served-model-name",
        "Qwen3-0.6B-miniature",
        "--load-format",
        "dummy",
        "--enforce-eager",
        "--dtype",
        "bfloat16",
        "--block-size",
        "32",
        "--num-gpu-blocks-override",
        "560",
        "--max-model-len",
        "8192",
        "--host",
        "127.0.0.1",
        "--port",
        "{port}",
        "--no-enable-log-requests",
    ]
    assert list(argv[: len(expected)]) == expected
    assert argv[len(expected)] == "--kv-transfer-config"
    assert (
        json.loads(argv[-1])["kv_connector_extra_config"]["cpu_bytes_to_use"]
        == 163_840_000
    )
    assert dict(default.specification(NATIVE).env) == {
        "PYTHONHASHSEED": "0",
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "1",
        "VLLM_WORKER_MULTIPROC_METHOD": "fork",
    }


def test_a_full_size_model_gets_its_memory_share_and_ranks(tmp_path):
    config = load_raw(
        on_gpus("Qwen3-32B-AWQ", "lmcache-redis", 20_000, tensor_parallel_size=2),
        tmp_path,
    )
    resolved = config.specification(config.cells[0])
    line = " ".join(resolved.argv)
    assert line.startswith(
        "--model Qwen/Qwen3-32B-AWQ --served-model-name Qwen/Qwen3-32B-AWQ --dtype float16"
    )
    assert (
        "--gpu-memory-utilization 0.9 --tensor-parallel-size 2 --max-model-len 40960"
        in line
    )
    assert "--quantization" not in line
    assert "--num-gpu-blocks-override" not in line
    assert resolved.budget.tier_gib == pytest.approx(78.125)
    assert float(resolved.env["LMCACHE_MAX_LOCAL_CPU_SIZE"]) == pytest.approx(
        78.125 / 2
    )
    assert config.specification(config.cells[0]).versions["lmcache"] == "0.5.6"


def test_any_cell_of_the_catalogue_can_be_asked_for(default):
    cell = default.cell("Qwen3-32B-AWQ/lmcache-local/20000")
    assert cell not in default.cells
    assert default.specification(cell).sidecars[0].name == "lmcache"
    assert default.baseline(cell) == Cell("Qwen3-32B-AWQ", "no-offload", 0)
    assert default.baseline(BASE) is None


def test_memory_pressure_is_a_derived_scenario_with_a_baseline_of_its_own(tmp_path):
    config = load_raw(on_gpus("Qwen3-14B", "native-offload-mempress", 10_000), tmp_path)
    (cell,) = config.cells
    plain = config.cell("Qwen3-14B/native-offload/10000")
    assert config.specification(cell).model.gpu_memory_utilization == 0.7
    assert config.specification(plain).model.gpu_memory_utilization == 0.9
    assert config.baseline(cell) == Cell("Qwen3-14B", "no-offload-mempress", 0)
    assert config.required_counters(cell) == config.required_counters(plain)
    with pytest.raises(ConfigError) as error:
        config.cell("Llama-3.1-8B/native-offload-mempress/10000")
    (problem,) = error.value.problems
    assert (problem.code, "Qwen3-14B" in problem.valid.split(", ")) == (
        "no_utilization",
        True,
    )


def test_the_schema_in_the_repository_is_the_models_own(schema):
    assert json.loads((CONFIG / "schema.json").read_text()) == schema


def test_the_schema_refers_only_to_what_it_defines(schema):
    text = json.dumps(schema)
    used = {part.split('"')[0] for part in text.split('"$ref": "#/$defs/')[1:]}
    assert used <= schema["$defs"].keys()
    assert {
        "models.yaml",
        "scenarios.yaml",
        "workloads.yaml",
        "metrics.yaml",
    } <= schema["$defs"].keys()


@pytest.mark.parametrize(("extends", "valid"), [("default", True), (None, False)])
def test_only_a_campaign_that_extends_another_may_give_some_keys_of_a_workload(
    schema, extends, valid
):
    campaign = yaml.safe_load((CONFIG / "campaigns/laptop-users.yaml").read_text())
    campaign["workloads"] = {"readers": {"pause_s": 0}}
    if extends:
        campaign["extends"] = extends
    assert jsonschema.Draft202012Validator(schema).is_valid(campaign) == valid


def test_importing_the_configuration_is_light():
    heavy = {"pandas", "pyarrow", "numpy", "matplotlib"}
    code = f"import sys, kveval.configuration.loading; print(sorted({heavy} & sys.modules.keys()))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT / "scripts",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


def test_the_command_line_prints_the_schema(schema, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["kveval.campaign", "--schema"])
    runpy.run_module("kveval.campaign", run_name="__main__")
    assert json.loads(capsys.readouterr().out) == schema


def test_what_is_measurable_but_pointless_is_noted(tmp_path):
    files = changed(("workloads", "laptop", "prefix_count"), 2)
    files = changed(("config", "runs"), 1, files)
    files = changed(
        ("config", "matrix"),
        [
            {
                "models": ["Qwen3-0.6B"],
                "scenarios": ["native-offload", "copy"],
                "cpu_blocks": [501],
            }
        ],
        files,
    )
    files = changed(
        ("config", "scenarios"),
        {"copy": {"extends": "native-offload", "title": "the same again"}},
        files,
    )
    notes = {warning.code: warning.facts for warning in load(tmp_path, files).warnings}
    assert {
        "prefixes_fit",
        "few_runs",
        "baseline_unlisted",
        "configured_alike",
    } < notes.keys()
    assert notes["blocks_uneven"] == {"cpu_blocks": 501, "block_tokens": 32}
    files = changed(("workloads", "laptop", "prefix_count"), {"per_level": 10})
    growing = load(
        tmp_path, changed(("workloads", "laptop", "levels"), [1, 2, 4], files)
    )
    assert "working_set_grows" in {warning.code for warning in growing.warnings}


@pytest.mark.parametrize(
    ("blocks", "warned"), [(63_578_000, True), (4_000_000, True), (3_000_000, False)]
)
def test_a_tier_larger_than_any_servers_memory_is_named_with_its_size(
    tmp_path, blocks, warned
):
    """Blocks of 2.25 MiB: 136, 8.6 and 6.4 TiB."""
    config = load_raw(on_gpus("Qwen3-8B", "native-offload", blocks), tmp_path)
    said = [
        str(warning) for warning in config.warnings if warning.code == "tier_too_large"
    ]
    assert len(said) == warned
    if blocks == 63_578_000:
        (text,) = said
        assert text.startswith(
            "Qwen3-8B: one server has a tier of 139,698 GiB (63,578,000 blocks) in host memory"
        )


def test_ranks_of_a_miniature_or_that_cannot_share_the_heads_are_refused_in_the_campaigns_server(
    tmp_path,
):
    for files, code in (
        (
            changed(("config", "server", "tensor_parallel_size"), 2),
            "ranks_of_miniature",
        ),
        (
            on_gpus("Qwen3-8B", "no-offload", 0, tensor_parallel_size=3),
            "ranks_do_not_divide",
        ),
    ):
        with pytest.raises(ConfigError) as error:
            load(tmp_path, files)
        assert {(problem.key, problem.code) for problem in error.value.problems} == {
            ("server.tensor_parallel_size", code)
        }


def test_names_follow_the_version():
    names = {"0.16": "old", "0.24": "new"}
    assert [
        name_for(names, version)
        for version in ("0.15.9", "0.16", "0.23.1", "0.24.0rc1", "0.24.0+cpu", "1.0")
    ] == [
        None,
        "old",
        "old",
        "old",
        "new",
        "new",
    ]
    assert name_for({"*": "any", "0.24": "new"}, "0.11.2") == "any"


def test_counters_follow_the_version(tmp_path):
    def counters(vllm):
        config = load_raw(
            on_gpus("Qwen3-8B", "native-offload", 10_000, vllm=vllm), tmp_path
        )
        return [entry["counter"] for entry in config.required_counters(config.cells[0])]

    hits = "vllm:external_prefix_cache_hits_total"
    assert counters("0.11.2") == [hits]
    assert counters("0.16.0") == [
        hits,
        'vllm:kv_offload_total_bytes_total{transfer_type="CPU_to_GPU"}',
    ]
    assert counters("0.32.0") == [hits, "vllm:kv_offload_load_bytes_total"]
    with pytest.raises(ConfigError) as error:
        counters("0.11.0")
    assert [problem.code for problem in error.value.problems] == ["no_proof"]


def test_closest_names_are_offered():
    assert closest("redis", []) == ("nothing is declared", ())
    assert closest("zzz", ["redis", "valkey"]) == ("redis, valkey", ())
    assert closest("rediss", ["redis", "valkey"]) == (
        "did you mean redis? all: redis, valkey",
        ("redis",),
    )


def test_configuration_does_not_change(default):
    with pytest.raises(ValidationError):
        default.campaign.runs = 5
    with pytest.raises(FrozenInstanceError):
        default.campaign = None


@pytest.mark.parametrize("release", RELEASES)
def test_the_published_evaluation_can_be_declared(release, tmp_path):
    catalogue = load_config(CONFIG / "config.yaml", CONFIG).catalogue
    arms = [
        "no-offload",
        "native-offload",
        "lmcache-local",
        "lmcache-redis",
        "lmcache-valkey",
        "llm-d-redis",
    ]
    arms += ["llm-d-valkey", "hybrid"]
    tiers = [name for name in arms if catalogue.scenarios[name].cpu_tier]
    models = ["Qwen3-0.6B", "Qwen3-8B", "Qwen3-14B", "Qwen3-32B-AWQ"]
    entries = [
        (models, [name for name in arms if name not in tiers], [0]),
        (models, tiers, [10_000]),
    ]
    config = load(tmp_path, on_cluster(release, entries, server={"replicas": 2}))
    assert len(config.cells) == 32
    assert len({config.measurement_id(cell) for cell in config.cells}) == 32
    assert config.warnings == ()


def test_a_thousand_cells_take_well_under_a_second():
    # Of others there is no miniature.
    every = load_config(RAW["config"], CONFIG).catalogue.models
    models = [
        name
        for name, one in every.items()
        if one.geometry.architecture in RANDOM_ARCHITECTURES
    ]
    entry = {
        "models": models,
        "scenarios": ["native-offload"],
        "cpu_blocks": list(range(20, 240, 2)),
    }
    config = load_config({**RAW["config"], "matrix": [entry]}, CONFIG)
    begin = time.process_time()
    assert (
        len({config.measurement_id(cell) for cell in config.cells})
        == len(config.cells)
        > 1000
    )
    assert time.process_time() - begin < 1.0


def test_contrasts_name_cells_of_the_matrix(tmp_path):
    pairs = [
        ["native-offload/10000", "native-offload/500"],
        ["native-offload", "no-offload"],
    ]
    config = load(tmp_path, changed(("config", "comparison", "contrasts"), pairs))
    assert config.campaign.comparison.model_dump(mode="json")["contrasts"] == pairs


@pytest.mark.parametrize(
    ("pair", "code"),
    [
        (["native-offload/20000", "native-offload/500"], "contrast_unlisted"),
        (["no-offload", "no-offload"], "contrast_with_itself"),
        (["native-offload/many", "no-offload"], "string_pattern_mismatch"),
    ],
)
def test_a_contrast_that_makes_no_sense_is_refused(tmp_path, pair, code):
    with pytest.raises(ConfigError) as error:
        load(tmp_path, changed(("config", "comparison", "contrasts"), [pair]))
    (problem,) = error.value.problems
    assert (problem.code, pair[0] in problem.message) == (code, True)


def test_a_window_with_too_few_samples_is_noted(tmp_path):
    warnings = load(tmp_path, changed(("config", "min_samples"), 30)).warnings
    facts = {"workload": "laptop", "window_s": 19.5, "min_samples": 30}
    assert ("few_samples", facts) in [
        (warning.code, warning.facts) for warning in warnings
    ]
