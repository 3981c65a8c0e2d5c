"""Whatever differs between two sides and is not the arm's own is named, or a printed rule says why it does not matter."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.gates.library import CATALOGUES
from tests.support.synthetic import BASELINES, levels_table

from kveval.campaign.campaign_file import Comparison
from kveval.conditions.record import planned_record
from kveval.configuration.loading import load_config
from kveval.stacks.vllm import VLLM
from kveval.stacks.vllm_settings import SETTINGS
from kveval.store.conditions import (
    NO_ARGUMENTS,
    NO_CONNECTOR_OF_ARM,
    conditions_text,
)
from kveval.verdict import verdict_words as words
from kveval.verdict.comparability import EXEMPT, RULES, differences_between
from kveval.verdict.comparison import contrast_pairs
from kveval.verdict.findings import (
    ground_codes,
    read_exclusions,
    read_findings,
)
from kveval.verdict.verdict_tables import with_offered
from kveval.verdict.verdicts import compare_all

ARM, BASELINE = "native-offload", "no-offload"
CAMPAIGNS = sorted([CATALOGUES / "config.yaml", *CATALOGUES.glob("campaigns/*.yaml")])
CODES = {"refuses": "other_server", "qualifies": "other_settings"}


def recorded() -> dict[str, str]:
    """The conditions of a planned cell on a cluster, and what a run adds."""
    config = load_config(CATALOGUES / "campaigns" / "feb-2026.yaml", CATALOGUES)
    cell = config.cell("Qwen3-8B/native-offload/10000")
    return {
        **planned_record(config.specification(cell).to_json()),
        "versions/guidellm": "0.8.1",
        "versions/kveval": "0.1.0",
        "versions/pcp": "6.0.3",
        "machine/kernel": "6.1.0",
        "machine/nodes": '["node-1"]',
        "machine/cluster": "8d5c2f3e-0000-4000-8000-000000000001",
        "ranks/replicas": "1",
        "variable/OMP_NUM_THREADS": "8",
    }


RECORD = recorded()


def campaign(
    arm: Mapping[str, str], reference: Mapping[str, str], **columns: Any
) -> pd.DataFrame:
    """A campaign in which the arm is 10 % faster, with the conditions of both sides; `columns`: of the arm's levels."""
    levels = levels_table(effects={BASELINE: 0.0, ARM: 0.1})
    of_arm = levels["scenario"] == ARM
    levels["conditions"] = conditions_text(reference)
    levels.loc[of_arm, "conditions"] = conditions_text(arm)
    for column, values in columns.items():
        levels[column] = values[1]
        levels.loc[of_arm, column] = values[0]
    return levels


def judged(levels: pd.DataFrame, **settings: Any) -> pd.Series:
    rows = compare_all(levels, BASELINES, Comparison(**settings)).baseline
    return rows[rows["metric"] == "throughput_tok_s"].iloc[0]


def codes(row: Mapping[Any, Any]) -> set[str]:
    return {*ground_codes(row), *(finding.code for finding in read_findings(row))}


def test_equal_conditions_are_not_mentioned() -> None:
    row = judged(campaign(RECORD, RECORD))
    assert (row["verdict"], row["qualifier"], row["basis_settings"]) == (
        words.BETTER,
        "",
        "alike",
    )


@pytest.mark.parametrize("key", RECORD)
def test_every_condition_that_differs_is_named_or_exempt(key: str) -> None:
    row = judged(campaign({**RECORD, key: "another"}, RECORD))
    kind = key.split("/", maxsplit=1)[0]
    exempt = key in EXEMPT or key.partition(".")[0] in EXEMPT
    if exempt or RULES[kind].severity == "sound":
        assert row["basis_settings"] == "alike"
        return
    code = CODES[RULES[kind].severity]
    assert code in codes(row)
    name = key.split("/", 1)[1]
    assert ("model:" if name == "name" else name) in row["basis_settings"]
    refused = code == "other_server"
    assert row["verdict"] == (words.NOT_ASSESSED if refused else words.BETTER)


@pytest.mark.parametrize(
    ("arm", "reference", "code"),
    [
        ({"batch/--max-num-seqs": "2"}, {}, "other_server"),
        ({}, {"setting/--enforce-eager": "true"}, "other_settings"),
        ({}, {"variable/VLLM_USE_V1": "0"}, "other_settings"),
        ({"arm/LMCACHE_CHUNK_SIZE": "256"}, {}, "same_settings"),
        ({"unrelated/--port": "1"}, {"unrelated/--port": "2"}, "same_settings"),
        ({"machine/driver": "550"}, {}, "same_settings"),
        ({NO_ARGUMENTS: "true"}, {"setting/--async": "true"}, "settings_unknown"),
        ({NO_ARGUMENTS: "true"}, {"batch/--max-num-seqs": "2"}, "settings_unknown"),
        (
            {NO_ARGUMENTS: "true", "variable/VLLM_USE_V1": "1"},
            {"variable/VLLM_USE_V1": "0"},
            "other_settings",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_one_side_alone_has(
    arm: dict[str, str], reference: dict[str, str], code: str
) -> None:
    common = {"model/hf_id": "a/b"}
    row = judged(campaign({**common, **arm}, {**common, **reference}))
    sound = code == "same_settings"
    assert sound == (row["basis_settings"] == "alike")
    assert sound or code in codes(row)


@pytest.mark.parametrize(
    ("columns", "code"),
    [
        ({"device_tokens": (35_840.0, 17_920.0)}, "other_server"),
        ({"device_tokens": (18_500.0, 17_920.0)}, None),
        ({"gpu_power_limit_w": (250.0, 350.0), "gpus": (1.0, 1.0)}, "other_limits"),
        ({"gpu_clock_mhz": (1900.0, 1840.0), "gpus": (1.0, 1.0)}, "other_clocks"),
        ({"gpu_clock_mhz": (1900.0, 1880.0), "gpus": (1.0, 1.0)}, None),
    ],
)
def test_columns_that_differ(
    columns: dict[str, tuple[float, float]], code: str | None
) -> None:
    row = judged(campaign(RECORD, RECORD, **columns))
    said = {"other_server", "other_limits", "other_clocks"}
    assert codes(row) & said == ({code} if code else set())


@pytest.mark.parametrize("runs", [1, 5])
def test_runs_whose_caches_were_not_empty_are_left_out(runs: int) -> None:
    levels = campaign(RECORD, RECORD).assign(
        **{"first_visit_share": 0.4, "unshared_share": 0.1},
        **{"prefix_hit_ratio": 0.4, "external_hit_ratio": 0.0},
    )
    left = (levels["scenario"] == ARM) & (levels["run"] <= runs)
    levels.loc[left, "prefix_hit_ratio"] = 0.93
    row = judged(levels)
    excluded = [
        exclusion.run
        for exclusion in read_exclusions(row)
        if exclusion.code == "leftover_hits"
    ]
    assert excluded == list(range(1, runs + 1))
    assert row["verdict"] == (words.BETTER if runs == 1 else words.NOT_ASSESSED)


def test_what_is_predicted_of_the_requests_counts_and_not_an_expectation() -> None:
    served = {"prefix_hit_ratio": 0.4, "external_hit_ratio": 0.0}
    expected = {"first_visit_share": 0.6, "unshared_share": 0.1}
    levels = campaign(RECORD, RECORD).assign(**served, **expected)
    assert judged(levels)["verdict"] == words.NOT_ASSESSED
    keys = ["model", "scenario", "cpu_blocks", "run", "level"]
    predicted = levels[keys].assign(predicted_offered_ratio=0.45)
    assert judged(with_offered(levels, predicted))["verdict"] == words.BETTER


def test_limits_that_changed_for_both_sides_between_runs_are_no_difference() -> None:
    levels = campaign(RECORD, RECORD, gpus=(1.0, 1.0))
    levels["gpu_power_limit_w"] = 350.0
    levels.loc[levels["run"] > 2, "gpu_power_limit_w"] = 250.0
    assert judged(levels)["verdict"] == words.BETTER


@pytest.mark.parametrize("arms", [(ARM, BASELINE), (BASELINE, ARM)])
def test_a_pair_that_is_declared_to_differ_is_compared(arms: tuple[str, str]) -> None:
    smaller = {**RECORD, "device_cache/--gpu-memory-utilization": "0.4"}
    levels = campaign(smaller, RECORD, device_tokens=(10_000.0, 20_000.0))
    pair = {"arms": arms, "differs": ["gpu_memory_utilization"]}
    assert judged(levels)["verdict"] == words.NOT_ASSESSED
    row = judged(levels, contrasts=[pair])
    assert (row["verdict"], row["basis_settings"]) == (words.BETTER, "alike")
    # Just that: whatever else differs is held against it.
    others = {**smaller, "batch/--max-num-seqs": "2"}
    row = judged(campaign(others, RECORD), contrasts=[pair])
    assert row["verdict"] == words.NOT_ASSESSED
    assert "gpu_memory" not in row["basis_settings"]


def planned_pairs(
    path: Path,
) -> Iterator[tuple[str, Mapping[str, str], Mapping[str, str]]]:
    """Every pair of cells that a campaign compares, by name, with the conditions that are planned for both."""
    config = load_config(path, CATALOGUES)
    for part in (config, *(compared for _, compared in config.compared)):
        records = {
            cell: planned_record(part.specification(cell).to_json())
            for cell in part.cells
        }
        pairs = [
            (cell, part.baseline(cell))
            for cell in part.cells
            if part.baseline(cell) in records
        ]
        for model in {cell.model for cell in part.cells}:
            cells = [cell for cell in part.cells if cell.model == model]
            for *names, _ in part.campaign.comparison.declared_pairs:
                pairs += contrast_pairs(cells, *names)
        for arm, reference in pairs:
            yield f"{arm.path} - {reference.path}", records[arm], records[reference]


@pytest.mark.parametrize("path", CAMPAIGNS, ids=lambda path: path.stem)
def test_no_arm_that_ships_differs_in_more_than_itself(path: Path) -> None:
    differing = {
        name: [difference.name for difference in differences_between(arm, reference)]
        for name, arm, reference in planned_pairs(path)
    }
    allowed = LISTED.get(path.stem, [])
    assert {
        name: names for name, names in differing.items() if names not in ([], allowed)
    } == {}
    named = {
        name: [record[NO_CONNECTOR_OF_ARM] for record in pair]
        for name, *pair in planned_pairs(path)
        if any(NO_CONNECTOR_OF_ARM in record for record in pair)
    }
    assert named == {}


LISTED = {"kv-dtype": ["name"], "cluster-tiers": ["name"]}
"""Campaign -> what its arms differ in on purpose, and say beside their verdicts."""
MANIFESTS = Path(__file__).resolve().parents[2] / "gates" / "manifests"


def deployed_settings(arm: str) -> dict[str, str]:
    """The settings of the server that a cluster runs for an arm."""
    documents = yaml.safe_load_all((MANIFESTS / f"{arm}.yaml").read_text())
    pods = (
        each["spec"]["template"]["spec"]
        for each in documents
        if each and each["kind"] == "Deployment"
    )
    servers = (
        pod["containers"][0]
        for pod in pods
        if "vllm" in str(pod["containers"][0].get("command"))
    )
    server = next(servers)
    variables = {entry["name"]: str(entry.get("value", "")) for entry in server["env"]}
    words = [*server["command"], *server["args"]]
    return SETTINGS.of(words, variables, VLLM.arm_flags)


@pytest.mark.parametrize(
    "arm",
    [path.stem for path in MANIFESTS.glob("*.yaml") if path.stem != "every-arm"],
)
def test_what_a_cluster_adds_for_an_arm_is_the_arms_own(arm: str) -> None:
    differences = differences_between(
        deployed_settings(arm), deployed_settings("no-offload")
    )
    assert [difference.name for difference in differences] == []


KEYS = st.sampled_from(sorted(RECORD))
RECORDS = st.dictionaries(KEYS, st.sampled_from(["1", "2"]), max_size=8)


@given(RECORDS, RECORDS)
def test_differences_are_the_same_whichever_side_is_the_arm(
    arm: dict[str, str], reference: dict[str, str]
) -> None:
    there = {
        (each.name, each.arm, each.reference)
        for each in differences_between(arm, reference)
    }
    back = {
        (each.name, each.reference, each.arm)
        for each in differences_between(reference, arm)
    }
    assert there == back
    assert not [*differences_between(arm, arm)] or NO_ARGUMENTS in arm


def test_arguments_that_nobody_recorded_are_no_defaults() -> None:
    record = planned_record({"argv": [], "env": {"VLLM_USE_V1": "1"}})
    assert record == {"variable/VLLM_USE_V1": "1", NO_ARGUMENTS: "true"}


def test_conditions_are_read_as_they_were_written() -> None:
    assert msgspec.json.decode(conditions_text(RECORD)) == RECORD
