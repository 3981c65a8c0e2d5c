"""A plug-in adds itself: ours, and those of other distributions."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.paths import REPOSITORY, SCRIPTS

from kveval.workflow.plugin import OURS, installed

TOY = '''
import typer
from kveval.workflow.plugin import Plugin


def add_commands(app: typer.Typer) -> None:
    @app.command(rich_help_panel="Toys")
    def toy(name: str) -> None:
        """Greet a name."""
        print(f"hello {name}")


PLUGIN = Plugin("toy", add_commands)
'''


def test_every_folder_of_a_plug_in_is_listed() -> None:
    folders = {path.parent.name for path in (SCRIPTS / "kveval").glob("plugins/*/*.py")}
    assert folders == set(OURS)
    assert [plugin.name for plugin in installed()][: len(OURS)] == [*OURS]


@pytest.fixture
def distribution(tmp_path: Path) -> Path:
    """A folder as pip leaves it, with a distribution that brings a plug-in."""
    (tmp_path / "toy.py").write_text(TOY)
    about = tmp_path / "toy-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[kveval.plugins]\ntoy = toy:PLUGIN\n")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "said"), [(["--help"], "Greet a name."), (["toy", "you"], "hello you")]
)
def test_a_plug_in_of_another_distribution_is_a_command(
    distribution: Path, words: list[str], said: str
) -> None:
    paths = os.pathsep.join(map(str, (SCRIPTS, distribution)))
    done = subprocess.run(
        [sys.executable, "-m", "kveval", *words],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said in done.stdout
