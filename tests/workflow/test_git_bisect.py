"""`git bisect run kveval check`: what Git makes of each commit; the values of runs are made up, all else is real."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.paths import SCRIPTS
from tests.support.source_trees import CONNECTOR, git, source_tree

pytestmark = pytest.mark.workflow
MARGIN = "comparison={margin: 0.07, alpha: 0.01}"
# Change 2 gives no result, and 3 is the first that is slower.
CHECK = f"""
import subprocess
from kveval.plugins.builds import check
from kveval.plugins.builds.measuring import SHOWN
from kveval.workflow.command.main import app

def values_of(config, cell, run):
    build = config.build(cell)
    shown = ["git", "-C", build.place, "show", build.commit + ":{CONNECTOR}"]
    delay = int(subprocess.check_output(shown).split()[-1])
    rate = (85 if delay >= 3 else 100) + (run % 3 if delay else 0) / 2
    return {{(cell, 2, name): rate for name in SHOWN if delay != 2}}, []

check.measure_block = lambda *given: {{}}
check.values_of = values_of
app()
"""


def test_git_calls_a_slower_commit_bad_and_passes_over_one_that_does_not_run(
    tmp_path: Path,
) -> None:
    tree, place = source_tree(tmp_path / "vllm"), tmp_path / "place"
    place.mkdir()
    git(tree, "tag", "good")
    for number in range(1, 5):
        (tree / CONNECTOR).write_text(f"DELAY = {number}\n")
        git(tree, "commit", "-qam", f"change {number}")
    git(tree, "bisect", "start", "main", "good", "--", "vllm")
    ended = subprocess.run(
        [
            *("git", "bisect", "run", sys.executable, "-c", CHECK),
            *("check", "--directory", str(place), "--arm", "native-offload/3000"),
            *("--base", ".@good", "--candidate", ".", "--set", MARGIN),
        ],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(SCRIPTS)},
        capture_output=True,
        text=True,
    )
    log = git(tree, "bisect", "log")
    marked = {
        git(tree, "log", "-1", "--format=%s", commit): word
        for word, commit in re.findall(r"^git bisect (\w+) (\w+)$", log, re.MULTILINE)
    }
    assert marked == {"change 1": "good", "change 2": "skip", "change 3": "bad"}, (
        ended.stdout + ended.stderr
    )
    assert len(list((place / "results" / "check").glob("*/COMMENT.md"))) == 3
    assert "--candidate ../vllm " in ended.stdout
