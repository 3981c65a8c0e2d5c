"""The tools that keep the code in shape find nothing."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.paths import REPOSITORY

pytestmark = pytest.mark.workflow


@pytest.mark.parametrize(
    "command",
    [
        ["ruff", "check", "."],
        ["ruff", "format", "--check", "."],
        ["mypy"],
        ["codespell"],
        ["snakefmt", "--check", "Snakefile", "rules", "scripts/kveval/plugins"],
        ["snakemake", "--lint"],
    ],
    ids=" ".join,
)
def test_the_tool_finds_nothing(command):
    done = subprocess.run(
        [str(Path(sys.executable).parent / command[0]), *command[1:]],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
