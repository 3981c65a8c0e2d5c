"""A plug-in of another distribution appears in the command, among the jobs and in the report; the core is unchanged."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.fault_chain import without_figures, workflow_copy
from tests.support.paths import REPOSITORY, SCRIPTS
from tests.support.report_text import whole_report
from tests.support.stored_campaign import (
    CAMPAIGN,
    fill_store,
    point_to_store,
    write_campaign,
)

pytestmark = pytest.mark.workflow
TOY = REPOSITORY / "tests" / "support" / "toy"


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every Python of a test find the plug-in, as if it were installed."""
    paths = [str(TOY), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))


def snakemake(folder: Path, *words: str) -> str:
    """Run snakemake in a process that has loaded nothing before, and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", "--cores", "2", *words],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "said"), [(["--help"], "Greet a name."), (["toy", "you"], "hello you")]
)
def test_its_command_is_one_of_kveval(
    monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (SCRIPTS, TOY))))
    done = subprocess.run(
        [sys.executable, "-m", "kveval", *words],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    assert said in done.stdout


def test_its_table_and_figure_are_made_for_the_report(tmp_path: Path) -> None:
    folder = workflow_copy(tmp_path / "repository")
    results = write_campaign(folder, (1, 50), runs=1)
    fill_store(folder, (1, 50), tmp_path / "scratch")
    point_to_store(folder)
    without_figures(folder)
    words = ("report", "--configfile", CAMPAIGN)
    assert "rule toy:" in snakemake(folder, "-n", *words)
    snakemake(folder, *words)
    assert (results / "analysis" / "toy.csv").read_text().startswith("arm,levels")
    text = whole_report(results)
    assert "## Toys\n\nLevels of 2 arms." in text
    assert "(figures/toy/levels.png)" in text
    assert "Levels of 2 arms." in (results / "report.html").read_text()
