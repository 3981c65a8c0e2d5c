"""Sizes in GiB in a campaign's matrix become cells with whole server blocks, the same for the same bytes."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.config_files import RAW
from tests.support.paths import CONFIG

from kveval.campaign.problems import ConfigError
from kveval.campaign.sizing import blocks_within
from kveval.campaign.types import BLOCK_TOKENS, memory_bytes
from kveval.configuration.config import Config
from kveval.configuration.loading import load_config

GIB = 2**30
MODEL, BASE, TIER = "Qwen3-0.6B", "no-offload", "native-offload"
BASELINE = {"models": [MODEL], "scenarios": [BASE], "cpu_blocks": [0]}
# Of a server block: 16 tokens of 28 layers of Qwen3-0.6B in bfloat16, see test_sizing.
BLOCK_BYTES = 1_835_008


def load(*entries: dict[str, Any], **values: Any) -> Config:
    campaign = copy.deepcopy(RAW["config"]) | {"matrix": [BASELINE, *entries], **values}
    campaign["server"] |= {"weights": "random", "block_size": 128}
    return load_config(campaign, CONFIG)


def tiers(**sizes: list[Any]) -> dict[str, Any]:
    return {"models": [MODEL], "scenarios": [TIER], **sizes}


def sizes_of(config: Config) -> list[int]:
    return [cell.cpu_blocks for cell in config.cells if cell.scenario == TIER]


def problems(*entries: dict[str, Any], **values: Any) -> list[tuple[str, str]]:
    with pytest.raises(ConfigError) as error:
        load(*entries, **values)
    return [(problem.key, problem.code) for problem in error.value.problems]


@given(
    size_bytes=st.integers(1, 2**44),
    token_bytes=st.integers(1, 2**20),
    block_size=st.sampled_from([16, 32, 64, 128, 784]),
)
def test_the_most_whole_server_blocks_that_fit(
    size_bytes: int, token_bytes: int, block_size: int
) -> None:
    blocks = blocks_within(size_bytes, token_bytes, block_size)
    held, server_block = blocks * BLOCK_TOKENS * token_bytes, block_size * token_bytes
    assert held % server_block == 0
    assert held <= size_bytes < held + server_block


@pytest.mark.parametrize(
    ("size", "size_bytes"),
    [
        (50, 50 * GIB),
        (0.5, GIB // 2),
        ("50 GiB", 50 * GIB),
        ("50 GB", 50_000_000_000),
        ("50GB", 50_000_000_000),
        ("1.5 TiB", 1536 * GIB),
        ("512 MiB", GIB // 2),
    ],
)
def test_a_number_is_in_gib_and_text_has_its_unit(size: Any, size_bytes: int) -> None:
    assert memory_bytes(size) == size_bytes


def test_a_size_in_gib_is_the_cell_and_the_measurement_of_its_blocks() -> None:
    in_gib, in_blocks = load(tiers(cpu_gib=[1])), load(tiers(cpu_blocks=[584]))
    assert in_gib.cells == in_blocks.cells
    (cell,) = (cell for cell in in_gib.cells if cell.scenario == TIER)
    assert in_gib.measurement_id(cell) == in_blocks.measurement_id(cell)
    assert in_gib.specification(cell).budget.tier_bytes == 584 * BLOCK_BYTES <= GIB


def test_both_keys_give_sizes_and_equal_ones_are_one_cell() -> None:
    config = load(tiers(cpu_blocks=[584, 8], cpu_gib=[1, "2 GiB"]))
    assert sizes_of(config) == [584, 8, 1168]


def test_a_size_holds_more_blocks_of_a_smaller_cache() -> None:
    models = {"half": {"extends": MODEL, "kv_cache_dtype": "fp8"}}
    scenarios = {"smaller": {"extends": TIER, "serves": {MODEL: "half"}}}
    entry = {"models": [MODEL], "scenarios": [TIER, "smaller"], "cpu_gib": [1]}
    campaign = copy.deepcopy(RAW["config"]) | {
        "matrix": [BASELINE, entry],
        "models": models,
        "scenarios": scenarios,
    }
    campaign["server"] |= {"weights": "random", "build": "vllm"}
    del campaign["server"]["device_blocks"]
    cells = load_config(campaign, CONFIG).cells
    assert [cell.cpu_blocks for cell in cells] == [0, 584, 1170]


def test_bridges_name_sizes_in_gib_too() -> None:
    config = load(tiers(cpu_blocks=[584]), bridges=[tiers(cpu_gib=[1])])
    assert [len(config.runs_of(cell)) for cell in config.cells] == [3, 6]
    assert problems(tiers(cpu_blocks=[584]), bridges=[tiers(cpu_gib=[2])]) == [
        ("", "bridge_unlisted")
    ]


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (tiers(cpu_gib=["50 XB"]), ("matrix[1].cpu_gib[0]", "no_size")),
        (tiers(cpu_gib=[1, True]), ("matrix[1].cpu_gib[1]", "no_size")),
        (tiers(cpu_gib=[-1]), ("matrix[1].cpu_gib[0]", "no_size")),
        (tiers(cpu_gib=[0]), ("matrix[1].cpu_gib[0]", "no_size")),
        (tiers(cpu_gib=[1, "1 GiB"]), ("matrix[1]", "repeated")),
        (tiers(), ("matrix[1]", "no_sizes")),
        (tiers(cpu_gib=[1, 0.001]), ("matrix[1].cpu_gib[1]", "tier_without_size")),
        (
            {"models": [MODEL], "scenarios": [BASE], "cpu_gib": [1]},
            ("matrix[1].cpu_gib[0]", "size_without_tier"),
        ),
    ],
)
def test_a_mistake_names_the_key(
    entry: dict[str, Any], expected: tuple[str, str]
) -> None:
    assert problems(entry) == [expected]
