"""The targets that are commands now: which command does what each did, with the options that were given."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_group

from kveval.workflow.command.main import app
from kveval.workflow.former_targets import (
    FORMER_TARGETS,
    SnakemakeCall,
    command_instead,
    end_with_command,
)

CALLS: Sequence[tuple[str, Mapping[str, Any], str]] = [
    ("plan", {}, "kveval plan"),
    ("plan", {"configfiles": [Path("mine.yaml").absolute()]}, "kveval plan mine.yaml"),
    (
        "plan",
        {"settings": {"site": "site.yaml", "runs": 3, "title": "two words"}},
        "kveval plan --site site.yaml --set runs=3 --set 'title=two words'",
    ),
    (
        "curve",
        {"configfiles": [Path("/a.yaml")], "directory": Path("/there")},
        "kveval curve /a.yaml --directory /there",
    ),
    ("verify", {"cores": 8}, "kveval verify --cores 8"),
    ("doctor", {"slots": 2}, "kveval doctor --slots 2"),
    (
        "deploy_one",
        {"settings": {"cell": "M/no-offload/0"}},
        "kveval deploy-one --cell M/no-offload/0",
    ),
    ("prune", {"settings": {"prune": "delete"}}, "kveval prune --delete"),
    (
        "prune",
        {"settings": {"prune": "failed,damaged", "prune_days": 30}},
        "kveval prune --delete --kind failed --kind damaged --older-than 30",
    ),
    (
        "prune",
        {"settings": {"prune_also": ["mine.yaml", "/b"]}},
        "kveval prune --also mine.yaml --also /b",
    ),
    (
        "check",
        {"settings": {"candidate": "../vllm", "check_arms": ["a/1", "b/2"]}},
        "kveval check --candidate ../vllm --arm a/1 --arm b/2",
    ),
    (
        "bisect_builds",
        {"settings": {"good": "v@1", "bad": "v", "check_blocks": 8}},
        "kveval bisect --good v@1 --bad v --blocks 8",
    ),
    (
        "history",
        {"settings": {"history": ["mine", "theirs"], "history_of": "lmcache"}},
        "kveval history --folder mine --folder theirs --program lmcache",
    ),
]


@pytest.mark.parametrize(("target", "given", "command"), CALLS)
def test_a_target_names_its_command(
    target: str, given: Mapping[str, Any], command: str
) -> None:
    assert command_instead(target, SnakemakeCall(**given)) == command


@pytest.mark.parametrize(("target", "given", "command"), CALLS)
def test_what_is_named_is_a_command_with_such_options(
    target: str, given: Mapping[str, Any], command: str
) -> None:
    _, name, *words = shlex.split(command)
    assert get_group(app).commands[name].make_context(name, words).params


def test_every_former_target_is_a_command() -> None:
    assert FORMER_TARGETS.keys() == {target for target, _, _ in CALLS} | {"teardown"}
    assert set(FORMER_TARGETS.values()) <= get_group(app).commands.keys()


def test_it_ends_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        end_with_command("plan", SnakemakeCall())
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith("\n  kveval plan\n")
