"""A new kind of arm: an entry of ARM_KINDS, a scenario, a function of the server; each is missed if it is forgotten."""

import copy
from pathlib import Path

import pytest
from tests.support.config_files import CONFIG, NATIVE, RAW, load
from tests.support.report_text import result_of, table_of
from tests.unit.report.test_report import measured, plan

from kveval.campaign.arm_kinds import ARM_KINDS, ArmKind
from kveval.campaign.catalogue import Scenario
from kveval.campaign.problems import ConfigError
from kveval.campaign.sizing import Budget
from kveval.configuration.loading import load_config
from kveval.stacks.arms import ArmArguments, Platform
from kveval.stacks.vllm import VLLM
from kveval.tables.cells import KNOWN_ARMS

KIND = ArmKind(frozenset({"native"}), "offload", True, "none", ("native-offload",))
FLAG = "--pooled-memory-bytes"


def pooled(scenario: Scenario, platform: Platform, budget: Budget) -> ArmArguments:
    return ArmArguments((FLAG, str(budget.tier_bytes)))


@pytest.fixture
def files() -> dict[str, object]:
    """The shipped configuration, with the native arm made one of a new kind."""
    files = copy.deepcopy(RAW)
    files["scenarios"]["native-offload"]["arm"] = "pooled"
    return files


def test_a_new_kind_is_planned_measured_and_shown(
    files: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ARM_KINDS, "pooled", KIND)
    monkeypatch.setitem(VLLM.arms, "pooled", pooled)
    config = load(tmp_path, files)
    specification = config.specification(NATIVE)
    assert specification.argv[-2:] == (FLAG, str(specification.budget.tier_bytes))
    scenarios = plan().scenarios
    shown = plan(
        scenarios={
            **scenarios,
            "native-offload": {**scenarios["native-offload"], "arm": "pooled"},
        }
    )
    result = result_of(shown, measured())
    assert "native-offload 10K" in table_of(result, NATIVE.model).column("arm")


def test_a_scenario_of_a_kind_without_an_entry_is_refused(
    files: dict[str, object], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as error:
        load(tmp_path, files)
    found = {problem.key: problem.message for problem in error.value.problems}
    assert "'pooled'" in found["native-offload.arm"]


def test_a_kind_without_arguments_is_refused_when_it_is_planned(
    files: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ARM_KINDS, "pooled", KIND)
    with pytest.raises(ConfigError) as error:
        load(tmp_path, files)
    (problem,) = error.value.problems
    assert (problem.key, problem.code) == (
        "matrix[1].scenarios[0]",
        "not_of_this_server",
    )


def test_a_kind_has_to_say_where_the_report_shows_it() -> None:
    with pytest.raises(TypeError, match="section"):
        ArmKind(parts=frozenset(), cpu_tier=None, store="none", arms=())  # type: ignore[call-arg]


def test_every_kind_has_arguments_and_every_shipped_arm_its_place() -> None:
    assert VLLM.arms.keys() == ARM_KINDS.keys()
    scenarios = load_config(CONFIG / "config.yaml", CONFIG).catalogue.scenarios
    for name, kind in ARM_KINDS.items():
        # Arms that are given as they are belong to whoever gives them.
        assert kind.arms or name == "verbatim"
        assert {scenarios[arm].arm for arm in kind.arms} <= {name}
    assert {arm for arm in scenarios if not arm.endswith("-mempress")} == set(
        KNOWN_ARMS
    )
