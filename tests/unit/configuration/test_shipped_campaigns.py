"""The campaigns that ship: all load, and those of published evaluations have the published cells."""

import json
from collections import Counter

import jsonschema
import pytest
import yaml
from tests.support.config_files import CONFIG

from kveval.configuration.loading import load_config
from kveval.configuration.reuse import reuse_of
from kveval.host.hashing import content_hash
from kveval.load import levels as workloads
from kveval.load.levels import working_set_tokens
from kveval.workflow.compared import combination

FILES = sorted((CONFIG / "campaigns").glob("*.yaml"))
SCHEMA = jsonschema.Draft202012Validator(
    json.loads((CONFIG / "schema.json").read_text())
)
PUBLISHED = {
    # Seven arms x four models, and the follow-up's six larger tiers.
    "feb-2026": 28,
    "feb-2026-20k": 34,
    "mempress-2026": 28,
    # Two models x three arms.
    "oct-2025": 6,
    "feb-2026-llm-d-0.8": 28,
    # A baseline and two tiers, per half of the guide.
    "llm-d-guide-high-cache": 3,
    "llm-d-guide-low-cache": 3,
}

IDS = {
    "feb-2026": "0cedeea956696a85",
    "feb-2026-20k": "175a954b40b8a152",
    "mempress-2026": "16422703982f962b",
    "cpu-blocks-ladder": "99f9cb88777138c7",
    "oct-2025": "d7994b55dea06eff",
    "feb-2026-llm-d-0.8": "ac0f9e2121f00182",
    "llm-d-guide-high-cache": "30d19180b4a8b1b4",
    "llm-d-guide-low-cache": "ba59cc3965ce975a",
    "production-poisson": "988e83d7d1fe8d49",
    "production-bursts": "142b3020b2866b9f",
}
"""Hash of the ids of a campaign's cells: another one disowns measurements that exist."""


def campaign(name):
    return load_config(CONFIG / "campaigns" / f"{name}.yaml", CONFIG)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_its_commands_say_how_many_cores_there_are(path):
    lines = [line for line in path.read_text().splitlines() if "#   snake" in line]
    assert all("--cores" in line or "profile" in line for line in lines)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_campaign_loads_by_its_own_name_into_a_folder_of_its_own(path):
    config = load_config(path, CONFIG)
    assert config.campaign.name == path.stem
    assert config.campaign.results.startswith("results/campaigns/")
    assert config.campaign.title
    assert all(len(config.measurement_id(cell)) == 16 for cell in config.cells)
    assert all(
        (base := config.baseline(cell)) is None or base in config.cells
        for cell in config.cells
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_campaign_is_what_editors_are_told_is_valid(path):
    SCHEMA.validate(yaml.load(path.read_text(), Loader=yaml.CSafeLoader))


def test_the_schema_for_editors_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA.schema)


@pytest.mark.parametrize(("name", "cells"), PUBLISHED.items())
def test_a_published_evaluation_has_its_published_cells(name, cells):
    assert len(campaign(name).cells) == cells


@pytest.mark.parametrize(("name", "pinned"), IDS.items())
def test_a_campaign_on_two_gpus_says_so_and_keeps_the_ids_of_its_measurements(
    name, pinned
):
    declared = campaign(name)
    assert {
        declared.specification(cell).model.tensor_parallel_size
        for cell in declared.cells
    } == {2}
    assert (
        content_hash(
            {cell.path: declared.measurement_id(cell) for cell in declared.cells}
        )
        == pinned
    )


def test_a_model_takes_one_gpu_unless_its_weights_need_more():
    models = campaign("smoke").catalogue.models
    assert {
        name for name, model in models.items() if model.tensor_parallel_size != 1
    } == {"Qwen3-32B", "Qwen3-Next-80B-A3B", "Llama-3.1-70B", "Qwen2.5-32B"}


def test_the_levels_of_february_are_the_published_ones():
    february = campaign("feb-2026")
    assert february.workload.levels == (1, 50, 100, 200, 300, 400, 500, 650)
    assert len(february.cells) * len(february.workload.levels) == 224


def test_the_follow_up_is_six_cells_more_and_changes_no_other():
    february, follow_up = campaign("feb-2026"), campaign("feb-2026-20k")
    new = [cell for cell in follow_up.cells if cell not in february.cells]
    assert len(new) == 6
    assert {cell.cpu_blocks for cell in new} == {20000}
    assert Counter(cell.model for cell in new) == {"Qwen3-14B": 3, "Qwen3-32B-AWQ": 3}
    assert follow_up.campaign.results == february.campaign.results
    for cell in february.cells:
        assert follow_up.measurement_id(cell) == february.measurement_id(cell)


def test_the_index_is_compared_with_a_baseline_of_its_block_size():
    february = campaign("feb-2026")
    sizes = {february.specification(cell).block_size for cell in february.cells}
    assert sizes == {64}


def test_memory_pressure_holds_for_the_baseline_too():
    pressed = campaign("mempress-2026")
    used = {
        cell: pressed.specification(cell).model.gpu_memory_utilization
        for cell in pressed.cells
    }
    for cell, share in used.items():
        base = pressed.baseline(cell)
        assert share < 0.9
        assert base is None or used[base] == share


def test_october_offers_every_arm_the_same_load():
    october = campaign("oct-2025")
    assert october.workload.profile == "concurrent"
    assert len(october.workload.levels) == 10
    bytes_of = {
        cell: october.specification(cell).budget.tier_bytes
        for cell in october.cells
        if cell.cpu_blocks
    }
    assert {round(size / 1e9, 1) for size in bytes_of.values()} == {71.7, 151.0}


def test_the_guides_pair_differs_in_its_prefixes_alone():
    high, low = campaign("llm-d-guide-high-cache"), campaign("llm-d-guide-low-cache")
    assert high.cells == low.cells
    for cell in high.cells:
        one, other = high.specification(cell), low.specification(cell)
        assert (
            other.with_workload(prefix_tokens=one.workload.prefix_tokens)
            == one
            != other
        )
        assert one.on_cluster.replicas * one.model.tensor_parallel_size == 16
        assert (cell.cpu_blocks == 0) == (one.budget.tier_bytes == 0)
    # 41,000 blocks of a 64-layer model: 172 GB an engine.
    assert {
        round(high.specification(cell).budget.tier_bytes / 1e9) for cell in high.cells
    } == {0, 172}


def test_two_releases_are_compared_arm_by_arm():
    both = campaign("llm-d-0.4-to-0.8")
    found = combination(both)
    assert len(found.cells) == 2 * 28
    baselines = {
        both.catalogue.scenarios[cell.scenario].baseline for cell in found.cells
    }
    assert baselines == {
        None,
        *(
            cell.scenario
            for cell in found.cells
            if cell.scenario.endswith("-on-llm-d-0.4")
        ),
    }


def test_the_sizes_of_the_cache_study_are_gibibytes():
    study = campaign("cache-size")
    assert [study.specification(cell).budget.tier_gib for cell in study.cells] == [
        0,
        16,
        64,
        128,
    ]
    assert study.workload.prefix_count == 10_000


def test_single_requests_come_one_at_a_time_at_every_prompt_length():
    study = campaign("ttft")
    assert (min(study.workload.levels), max(study.workload.levels)) == (512, 8192)
    workload = study.specification(study.cells[0]).workload
    sets = {
        workloads.working_set_tokens_at(workload, level)
        for level in study.workload.levels
    }
    assert all(16_384 * 10 < tokens < 320_000 for tokens in sets)
    assert {
        workloads.streams_at(workload, level) for level in study.workload.levels
    } == {1}
    assert study.warnings == ()


def test_a_scenario_that_serves_another_model_is_compared_under_the_cells_name():
    study = campaign("kv-dtype")
    served = {cell.scenario: study.specification(cell).model for cell in study.cells}
    assert (
        served["no-offload-fp8-kv"].kv_bytes_per_token * 2
        == served["no-offload"].kv_bytes_per_token
    )
    assert (
        served["no-offload-awq"].kv_bytes_per_token
        == served["no-offload"].kv_bytes_per_token
    )
    assert served["native-offload-awq"].hf_id == "Qwen/Qwen3-8B-AWQ"
    assert {cell.model for cell in study.cells} == {"Qwen3-8B-1-gpu"}
    argv = study.specification(
        study.cell("Qwen3-8B-1-gpu/native-offload-fp8-kv/30000")
    ).argv
    assert argv[argv.index("--kv-cache-dtype") + 1] == "fp8"


@pytest.mark.parametrize("name", ["production-poisson", "production-bursts"])
def test_production_traffic_varies_and_comes_at_a_rate(name):
    traffic = campaign(name)
    workload = traffic.specification(traffic.cells[0]).workload
    assert [workloads.rate_req_s_at(workload, level) for level in (15, 60)] == [
        0.25,
        1.0,
    ]
    assert workloads.streams_at(workload, 60) is None
    assert workload.prompt_spread.max > workload.prompt_tokens


FIELD = ("vllm-49152", "vllm-39983", "vllm-44294", "llm-d-sglang-1921")
"""Loads of the field's developers; each has a relative for two cores, named laptop-NAME."""


def proportions(name):
    """Return the turns, the share of the prompts that repeats, and what decides what a cache of a size can serve."""
    study = campaign(name)
    largest = max(study.cells, key=lambda cell: cell.cpu_blocks)
    reuse = reuse_of(study.specification(largest))[-1]
    demand = reuse.demand
    return {
        "turns": demand.turns,
        "reused": demand.reused,
        "prefix": demand.prefix_tokens / demand.own_tokens,
        "tier": reuse.caches.tier / demand.working_set_tokens,
    }


@pytest.mark.parametrize("name", FIELD)
def test_a_relative_on_two_cores_keeps_the_proportions_of_the_published_load(name):
    published, relative = proportions(name), proportions(f"laptop-{name}")
    assert relative["turns"] == published["turns"]
    assert relative["reused"] == pytest.approx(published["reused"], abs=0.02)
    assert relative["prefix"] == pytest.approx(published["prefix"], rel=0.5)
    assert relative["tier"] == pytest.approx(published["tier"], rel=0.5)


@pytest.mark.parametrize(
    ("name", "gib"),
    [("vllm-49152", 24), ("vllm-39983", 12), ("vllm-44294", 53.7)],
)
def test_a_load_of_the_field_has_the_published_tier(name, gib):
    study = campaign(name)
    sizes = [study.specification(cell).budget.tier_gib for cell in study.cells]
    assert gib in [round(size, 1) for size in sizes]


@pytest.mark.parametrize(
    "name",
    [
        "documents-and-questions",
        "chat-with-pauses",
        "agents-with-tools",
        "rag-popular-chunks",
    ],
)
def test_a_question_of_users_has_tiers_that_are_larger_than_the_estimated_device(name):
    study = campaign(name)
    assert study.workload.profile == "users"
    for cell in study.cells:
        estimate = study.device_estimate(cell)
        assert estimate is not None
        assert not cell.cpu_blocks or 16 * cell.cpu_blocks > estimate.high_tokens


def test_the_ladder_passes_the_working_set():
    ladder = campaign("cpu-blocks-ladder")
    tiers = sorted({16 * cell.cpu_blocks for cell in ladder.cells})
    assert tiers[0] == 0
    assert tiers[-2] < working_set_tokens(ladder.workload) < tiers[-1] == 640_000
