"""An arm of another build and a replicate, measured beside the installed build and reported as such."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.fault_chain import (
    CAMPAIGN,
    PATIENCE_S,
    merged,
    needs_pcp,
    stand_in_environment,
)
from tests.support.paths import REPOSITORY
from tests.support.report_text import whole_report
from tests.support.tree import Tree

from kveval.workflow.check.judging import FAILING

pytestmark = [
    pytest.mark.workflow,
    needs_pcp,
    pytest.mark.skipif(
        not (REPOSITORY / ".server-venv" / "bin" / "python").exists(),
        reason="no server environment",
    ),
]
ARMS = ("native-offload", "candidate", "again")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return stand_in_environment(tmp_path / "build-of-my-own")


@pytest.fixture
def tree(tmp_path: Path, own: Path) -> Iterator[Tree]:
    campaign = merged(
        CAMPAIGN,
        {
            "min_samples": 1,
            "scenarios": {
                "candidate": {
                    "extends": "native-offload",
                    "baseline": "native-offload",
                    "server": {"environment": str(own)},
                },
                "again": {"extends": "native-offload", "replicate": True},
            },
            "matrix": [
                {
                    "models": ["Qwen3-0.6B"],
                    "scenarios": ["no-offload"],
                    "cpu_blocks": [0],
                },
                {"models": ["Qwen3-0.6B"], "scenarios": [*ARMS], "cpu_blocks": [2000]},
            ],
        },
    )
    made = Tree(tmp_path / "repository", campaign, lock=tmp_path / "lock")
    yield made
    assert made.left() == []


def test_a_build_of_its_own_is_measured_recorded_and_named_in_the_report(
    tree: Tree, tmp_path: Path
) -> None:
    code, output = tree.run("report", limit_s=10 * PATIENCE_S)
    assert code == 0, output
    runs = {arm: tree.run_json(f"Qwen3-0.6B/{arm}/2000") for arm in ARMS}
    build = runs["candidate"]["build"]
    assert build["kind"] == "environment"
    assert runs["candidate"]["specification"]["source"] == f"environment-{build['key']}"
    assert not any(
        "build" in runs[arm] or "source" in runs[arm]["specification"]
        for arm in ("native-offload", "again")
    )
    assert len({run["measurement"] for run in runs.values()}) == 3
    assert str(tmp_path) not in str(runs["candidate"]["server"])
    report = whole_report(tree.results)
    assert "build of `candidate`" in report
    assert "builds compared" in report
    # What was measured is adopted, and what is no more is named.
    (tmp_path / "build-of-my-own").rename(tmp_path / "moved")
    code, output = tree.run("report", limit_s=PATIENCE_S)
    assert code != 0
    assert "there is no bin/python" in output


def test_two_builds_are_checked_block_by_block_and_a_comment_says_it(
    tree: Tree, own: Path
) -> None:
    options = (
        "--config",
        f"candidate={own}",
        "check_arms=[native-offload/2000]",
        "check_blocks=3",
    )
    code, output = tree.run("check", *options, limit_s=10 * PATIENCE_S)
    (folder,) = (tree.folder / "results" / "check").iterdir()
    told = json.loads((folder / "verdict.json").read_text())
    assert code == (told["verdict"] in FAILING), output
    assert told["blocks"] == 3
    comment = (folder / "COMMENT.md").read_text()
    # Levels of stand-ins are too short to enter a verdict, which is said of every run.
    said = [
        line
        for line in comment.splitlines()
        if "native-offload.base." in line or ".candidate." in line
    ]
    assert [claim["blocks"] for claim in told["claims"] if claim["decides"]] == [
        3
    ] or len(said) >= 6
    assert comment.splitlines()[0] in output
    assert (folder / "effects.png").exists()


def test_a_check_without_a_candidate_says_how_to_give_one(tree: Tree) -> None:
    code, output = tree.run("check")
    assert code == 1
    assert "candidate=" in output
