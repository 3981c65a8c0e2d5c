"""An arm of another build and a replicate, measured beside the installed build and reported as such."""

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.fault_chain import (
    CAMPAIGN,
    PATIENCE_S,
    merged,
    needs_pcp,
    stand_in_environment,
    without_figures,
)
from tests.support.paths import REPOSITORY
from tests.support.report_text import whole_report
from tests.support.tree import Tree

from kveval.plugins.builds.check_command import _STATUS

pytestmark = [
    pytest.mark.workflow,
    needs_pcp,
    pytest.mark.skipif(
        not (REPOSITORY / ".server-venv" / "bin" / "python").exists(),
        reason="no server environment: bash scripts/setup.sh server",
    ),
]
ARMS = ("native-offload", "candidate", "again")


_REMEMBERING = """\
#!/bin/sh
[ "$1 $2" = "-I -c" ] || exec {python} "$@"
answer={answers}/$(printf '%s ' "$@" | cksum | cut -d ' ' -f 1)
if [ ! -e $answer ]; then
    {python} "$@" > $answer.$$ || exit
    mv $answer.$$ $answer
fi
exec cat $answer
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for what the Python of a server environment has answered: it reads all of vLLM for its content."""
    return tmp_path_factory.mktemp("answers")


def remembering(environment: Path, answers: Path) -> Path:
    """Have an environment of stand-ins answer at once what one has answered before."""
    python = environment / "bin" / "python"
    real = python.rename(python.with_name("answering"))
    python.write_text(_REMEMBERING.format(python=real, answers=answers))
    python.chmod(0o755)
    return environment


@pytest.fixture
def own(tmp_path: Path, answers: Path) -> Path:
    return remembering(stand_in_environment(tmp_path / "build-of-my-own"), answers)


@pytest.fixture
def tree(tmp_path: Path, own: Path, answers: Path) -> Iterator[Tree]:
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
    without_figures(made.folder)
    remembering(made.folder / ".server-venv", answers)
    yield made
    assert made.left() == []


def checking(candidate: Path) -> tuple[str, ...]:
    """The command that checks a build in two blocks of one arm."""
    arm = ("--arm", "native-offload/2000", "--blocks", "2")
    return ("check", "campaign.yaml", "--candidate", str(candidate), *arm)


def test_a_build_of_its_own_is_measured_recorded_and_named_in_the_report(
    tree: Tree, tmp_path: Path
) -> None:
    code, output = tree.run(
        f"{tree.campaign['results']}/REPORT.md", limit_s=10 * PATIENCE_S
    )
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
    code, output = tree.run("-n", "report", limit_s=PATIENCE_S)
    assert code != 0
    assert "there is no bin/python" in output


def test_two_builds_are_checked_block_by_block_and_a_comment_says_it(
    tree: Tree, own: Path
) -> None:
    code, output = tree.kveval(*checking(own), limit_s=10 * PATIENCE_S)
    (folder,) = (tree.folder / "results" / "check").iterdir()
    told = json.loads((folder / "verdict.json").read_text())
    assert code == _STATUS[told["verdict"]], output
    assert told["blocks"] == 2
    comment = (folder / "COMMENT.md").read_text()
    # Levels of stand-ins are too short to enter a verdict, which is said of every run.
    said = [
        line
        for line in comment.splitlines()
        if "native-offload.base." in line or ".candidate." in line
    ]
    assert [claim["blocks"] for claim in told["claims"] if claim["decides"]] == [
        2
    ] or len(said) >= 4
    assert comment.splitlines()[0] in output
    assert (folder / "effects.png").exists()


def test_a_check_without_a_candidate_says_how_to_give_one(tree: Tree) -> None:
    code, output = tree.kveval("check", "campaign.yaml")
    assert code == 128
    assert "--candidate" in output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_check_that_is_stopped_leaves_nothing_and_is_no_verdict(
    tree: Tree, own: Path, number: signal.Signals
) -> None:
    running = tree.start_kveval(*checking(own))
    log = wait_for_level(tree)
    running.send_signal(number)
    output, _ = running.communicate(timeout=PATIENCE_S)
    stopped = number != signal.SIGKILL
    assert running.returncode == (128 + number if stopped else -number), output
    assert "Traceback" not in output
    # Of a killed one its job ends itself.
    assert tree.left() == []
    assert "stopped by SIGTERM; everything it had started is gone" in log.read_text()


def wait_for_level(tree: Tree) -> Path:
    """Wait until the first measurement of a check is in its level; return its log."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        for log in (tree.folder / "logs/check/benchmark").rglob("run-1.log"):
            if "2 streams" in log.read_text():
                return log
        time.sleep(0.05)
    raise AssertionError("no level began")
