"""The key `import`: mistakes are refused, all at once, with file and key."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.config_files import CONFIG

from kveval.campaign.imports import ImportCampaign
from kveval.campaign.problems import ConfigError, ConfigProblem
from kveval.configuration.config import Config
from kveval.configuration.loading import load_config


@pytest.fixture
def campaign(tmp_path: Path) -> Any:
    (tmp_path / "tree").mkdir()
    (tmp_path / "file").touch()

    def load(*imports: Any, **values: Any) -> Config:
        path = tmp_path / "campaign.yaml"
        path.write_text(
            yaml.safe_dump({"name": "old", "import": list(imports), **values})
        )
        return load_config(path, CONFIG)

    return load


def mistakes(load: Any, *imports: Any, **values: Any) -> dict[str, ConfigProblem]:
    """All mistakes by their keys."""
    with pytest.raises(ConfigError) as caught:
        load(*imports, **values)
    assert {Path(problem.file).name for problem in caught.value.problems} == {
        "campaign.yaml"
    }
    return {problem.key: problem for problem in caught.value.problems}


def test_a_path_is_all_that_an_import_needs(campaign: Any, tmp_path: Path) -> None:
    config = campaign({"path": str(tmp_path / "tree")})
    assert isinstance(config.campaign, ImportCampaign)
    (asked,) = config.imports
    assert (asked.path, asked.copy_files, asked.pattern) == (
        str(tmp_path / "tree"),
        False,
        None,
    )
    assert config.cells == ()
    assert config.warnings == ()
    assert config.campaign.vllm(asked) == "0"


def test_a_campaign_that_measures_imports_nothing() -> None:
    assert load_config(CONFIG / "config.yaml", CONFIG).imports == ()


def test_the_release_is_the_imports_else_the_campaigns(
    campaign: Any, tmp_path: Path
) -> None:
    tree = {"path": str(tmp_path / "tree")}
    config = campaign(
        tree, {**tree, "vllm": "0.11.2"}, server={"vllm": "0.10.0", "guidellm": "0.5.3"}
    )
    assert [config.campaign.vllm(asked) for asked in config.imports] == [
        "0.10.0",
        "0.11.2",
    ]


def test_all_mistakes_are_reported_at_once(campaign: Any, tmp_path: Path) -> None:
    tree = str(tmp_path / "tree")
    found = mistakes(
        campaign,
        {
            "path": tree,
            "hardwear": "1x2xL40S",
            "replicas": 0,
            "copy": "yes",
            "vllm": "newest",
        },
        {
            "models": {"small": "Qwen3-06B"},
            "scenarios": {"nothing": "no-ofload"},
            "cpu_blocks": {"native": 1},
        },
        workload="publshed",
    )
    assert {key: problem.code for key, problem in found.items()} == {
        "import[0].hardwear": "unknown_key",
        "import[0].replicas": "greater_than",
        "import[0].copy": "bool_type",
        "import[0].vllm": "no_version",
        "import[1].path": "missing",
        "import[1].models.small": "unknown_name",
        "import[1].scenarios.nothing": "unknown_name",
        "import[1].cpu_blocks.native": "unknown_name",
        "workload": "unknown_name",
    }
    assert found["import[0].hardwear"].near == ("hardware",)
    assert found["import[1].models.small"].near[0] == "Qwen3-0.6B"
    assert found["import[1].scenarios.nothing"].near[0] == "no-offload"
    assert found["workload"].near[0] == "published"


@pytest.mark.parametrize(
    ("changes", "key", "code"),
    [
        ({"path": "{tmp}/nowhere"}, "import[0].path", "absent"),
        ({"path": "{tmp}/file"}, "import[0].path", "no_folder"),
        ({"archives": ["pcp"]}, "import[0].archives[0]", "absent"),
        ({"pattern": "{model}.json"}, "import[0].pattern", "placeholder_missing"),
        (
            {"cpu_blocks": {"native-offload": -1}},
            "import[0].cpu_blocks.native-offload",
            "greater_than_equal",
        ),
    ],
)
def test_a_mistake_is_named(
    campaign: Any, tmp_path: Path, changes: dict[str, Any], key: str, code: str
) -> None:
    asked = {"path": str(tmp_path / "tree"), **changes}
    asked["path"] = asked["path"].replace("{tmp}", str(tmp_path))
    assert mistakes(campaign, asked)[key].code == code


def test_an_import_given_twice_is_refused(campaign: Any, tmp_path: Path) -> None:
    tree = {"path": str(tmp_path / "tree")}
    repeated = mistakes(campaign, tree, {**tree, "vllm": "0.11.2"}, tree)["import[2]"]
    assert (repeated.code, "import[0]" in repeated.message) == ("repeated", True)


def test_a_campaign_imports_or_measures(campaign: Any, tmp_path: Path) -> None:
    matrix = [
        {"models": ["Qwen3-0.6B"], "scenarios": ["no-offload"], "cpu_blocks": [0]}
    ]
    found = mistakes(campaign, {"path": str(tmp_path / "tree")}, matrix=matrix)
    assert found["matrix"].code == "mixed"


@pytest.mark.parametrize("value", [[], {}, "tree", None])
def test_an_import_of_nothing_is_a_mistake(tmp_path: Path, value: Any) -> None:
    path = tmp_path / "campaign.yaml"
    path.write_text(yaml.safe_dump({"name": "old", "import": value}))
    with pytest.raises(ConfigError) as caught:
        load_config(path, CONFIG)
    assert [problem.key for problem in caught.value.problems] == ["import"]
