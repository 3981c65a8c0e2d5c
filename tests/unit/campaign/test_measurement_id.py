"""The laws of the measurement id: what changes it, and what must not."""

import json
import random
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.config_files import (
    BASE,
    CELLS,
    CONFIG,
    GPU_SERVER,
    LMCACHE,
    NATIVE,
    OTHER,
    RAW,
    ROOT,
    changed,
    ids,
    load,
)

from kveval.configuration import config as module
from kveval.configuration.config import measurement_id
from kveval.configuration.loading import load_config


@pytest.fixture(scope="module")
def default():
    return load_config(CONFIG / "config.yaml", CONFIG)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("config")


def shuffled(value, order):
    """Return the same content with every mapping's keys in another order."""
    if isinstance(value, dict):
        keys = list(value)
        order.shuffle(keys)
        return {key: shuffled(value[key], order) for key in keys}
    return (
        [shuffled(item, order) for item in value] if isinstance(value, list) else value
    )


@pytest.fixture(scope="module")
def original(default):
    return ids(default)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(), flow=st.booleans(), width=st.integers(20, 200))
def test_layout_of_the_files_does_not_change_the_id(
    folder, original, seed, flow, width
):
    order = random.Random(seed)
    for name, content in RAW.items():
        text = yaml.dump(
            shuffled(content, order),
            Dumper=yaml.CSafeDumper,
            sort_keys=False,
            default_flow_style=flow,
            width=width,
        )
        (folder / f"{name}.yaml").write_text(f"# seed {seed}\n{text}\n# end\n")
    assert ids(load_config(folder / "config.yaml", folder)) == original


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(
        [
            (("config", "name"), "other"),
            (("config", "title"), "other"),
            (("config", "description"), "other"),
            (("config", "results"), "results/campaigns/other"),
            (("config", "hardware"), "another host"),
            (("config", "runs"), 77),
            (("config", "seed"), 99),
            (("config", "stall_limit_s"), 300.0),
            (("config", "secrets"), ["HF_TOKEN", "REGISTRY_PASSWORD"]),
            (("config", "comparison"), {"margin": 0.2, "alpha": 0.01, "level": 8}),
            (
                ("config", "matrix"),
                [
                    {
                        "models": ["Qwen3-8B"],
                        "scenarios": ["lmcache-local"],
                        "cpu_blocks": [320],
                    }
                ],
            ),
            (("scenarios", "native-offload", "title"), "other"),
            (("scenarios", "native-offload", "baseline"), "no-offload-mempress"),
            (("workloads", "laptop", "title"), "other"),
            (
                ("workloads", "laptop", "seconds"),
                float(RAW["workloads"]["laptop"]["seconds"]),
            ),
            (("workloads", "published", "turns"), 6),
            (("models", "Qwen3-14B", "max_model_len"), 30_000),
            (("models", "Qwen3-0.6B", "gpu_memory_utilization"), 0.5),
            (("metrics", "requests_running", "title"), "other"),
        ]
    )
)
def test_what_does_not_define_a_measurement_does_not_change_the_id(
    folder, original, change
):
    assert ids(load(folder, changed(*change))) == original


@pytest.mark.parametrize(
    ("path", "value", "concerned"),
    [
        (("config", "server", "vllm"), "0.33.0", CELLS),
        (("config", "server", "guidellm"), "0.8.2", CELLS),
        (("config", "server", "lmcache"), "0.5.7", (LMCACHE,)),
        (("config", "server", "block_size"), 64, CELLS),
        (("config", "server", "device_blocks"), 4000, CELLS),
        (("config", "server", "max_model_len"), 7000, CELLS),
        (("config", "server", "args"), ["--seed", "3"], CELLS),
        (("config", "server", "env"), {"OMP_NUM_THREADS": 1}, CELLS),
        (("config", "reset_caches"), "restart", CELLS),
        (("workloads", "laptop", "seconds"), 1000, CELLS),
        (("workloads", "laptop", "levels"), [1, 777], CELLS),
        (("workloads", "laptop", "seed"), 12345, CELLS),
        (("workloads", "laptop", "prime"), False, CELLS),
        (("models", "Qwen3-8B", "extra_args"), ["--seed", "3"], (OTHER,)),
        (("models", "Qwen3-8B", "geometry", "layers"), 50, (OTHER,)),
        (("scenarios", "native-offload", "args"), ["--seed", "3"], (NATIVE, OTHER)),
        (("scenarios", "native-offload", "env"), {"A": "b"}, (NATIVE, OTHER)),
        (
            ("scenarios", "native-offload", "connector_config"),
            {"eviction_policy": "arc"},
            (NATIVE, OTHER),
        ),
        (("scenarios", "lmcache-local", "store"), "redis", (LMCACHE,)),
        (("scenarios", "no-offload", "args"), ["--seed", "3"], (BASE,)),
    ],
)
def test_what_defines_a_measurement_changes_exactly_the_cells_concerned(
    tmp_path, original, path, value, concerned
):
    after = ids(load(tmp_path, changed(path, value)))
    assert {cell for cell in CELLS if after[cell] != original[cell]} == set(concerned)


def test_the_protocol_number_changes_every_id(monkeypatch, original):
    monkeypatch.setattr(module, "PROTOCOL", module.PROTOCOL + 1)
    after = ids(load_config(CONFIG / "config.yaml", CONFIG))
    assert not set(after.values()) & set(original.values())


def test_ids_are_16_hex_digits_of_the_specification_and_differ_between_cells(
    default, original
):
    assert len(set(original.values())) == len(CELLS)
    for cell, identity in original.items():
        specification = default.specification(cell)
        plain = json.loads(json.dumps(specification.to_json()))
        assert plain == specification.to_json()
        assert specification.measurement_id == identity
        assert measurement_id(dict(reversed(plain.items()))) == identity
        assert len(identity) == 16
        assert int(identity, 16) >= 0


def test_a_changed_way_of_writing_a_specification_does_not_go_unnoticed(tmp_path):
    """Pinned: another id disowns every stored measurement. If that is meant, raise PROTOCOL and pin anew."""
    entry = {"models": ["Qwen3-14B"], "scenarios": ["offload"], "cpu_blocks": [10_000]}
    files = {
        "config": {
            "name": "pinned",
            "workload": "load",
            "matrix": [entry],
            "server": GPU_SERVER,
        },
        "models": {
            "Qwen3-14B": RAW["models"]["Qwen3-0.6B"]
            | {
                "hf_id": "Qwen/Qwen3-14B",
                "max_model_len": 32_768,
                "tensor_parallel_size": 2,
            }
        },
        "scenarios": {
            "offload": {
                "title": "pinned",
                "arm": "native",
                "cpu_tier": True,
                "exercised": [
                    {"name": "vllm:external_prefix_cache_hits_total", "unit": "tokens"}
                ],
            }
        },
        "workloads": {
            "load": {
                "levels": [8],
                "seconds": 60,
                "prompt_tokens": 64,
                "output_tokens": 32,
                "seed": 1,
            }
        },
        "metrics": {
            "cpu_percent": {
                "title": "CPU",
                "unit": "percent",
                "pcp": "kernel.all.cpu.user",
                "reduction": "rate",
            }
        },
        "releases": {},
        "known_defects": {},
        "gpus": {},
    }
    config = load(tmp_path, files)
    assert config.measurement_id(config.cells[0]) == "2eaf6cd758403288"
    assert measurement_id({"b": [1, 2.5, None], "a": "é"}) == "84afbf1d4853005f"


def test_a_specification_is_the_callers_own(default, original):
    default.specification(NATIVE).to_json()["workload"]["seconds"] = 1
    default.specification(NATIVE).to_json()["argv"].clear()
    assert default.measurement_id(NATIVE) == original[NATIVE]


def test_snakemakes_mapping_gives_the_same_ids_as_the_file(original):
    assert ids(load_config(RAW["config"], CONFIG)) == original


def test_no_path_of_this_host_is_in_a_specification(default):
    text = json.dumps([default.specification(cell).to_json() for cell in CELLS])
    assert str(ROOT) not in text
    assert str(Path.home()) not in text
