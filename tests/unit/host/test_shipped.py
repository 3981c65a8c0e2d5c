"""What comes with the library: folders beside it in a checkout, within it in an installed package; its commit."""

import subprocess
from pathlib import Path

import pytest
from tests.support.paths import CONFIG, REPOSITORY

from kveval.host.shipped import COMMIT_VARIABLE, library_commit, shipped_folder


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A library with an installed package's copy of the configuration."""
    library = tmp_path / "scripts" / "kveval"
    (library / "data" / "config").mkdir(parents=True)
    return library


def test_in_this_repository_it_is_the_checkouts() -> None:
    assert shipped_folder("config") == CONFIG
    assert shipped_folder("manifests") == REPOSITORY / "manifests"


def test_an_installed_package_has_its_own(library: Path) -> None:
    assert shipped_folder("config", library) == library / "data" / "config"


def test_the_checkouts_come_first(library: Path, tmp_path: Path) -> None:
    (tmp_path / "Snakefile").touch()
    assert shipped_folder("config", library) == tmp_path / "config"


def test_the_commit_is_that_of_the_checkout(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(COMMIT_VARIABLE, raising=False)
    assert library_commit(library) == ""

    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path)]
        command = ["git", *identity, *arguments]
        return subprocess.run(
            command, check=True, capture_output=True, text=True
        ).stdout.strip()

    (tmp_path / "Snakefile").write_text("")
    git("init", "--quiet")
    git("add", "Snakefile")
    git("commit", "--quiet", "-m", "first")
    git("tag", "-a", "v1", "-m", "a tag")
    commit = git("rev-parse", "HEAD")
    (tmp_path / "results").mkdir()
    assert library_commit(library) == commit
    (tmp_path / "Snakefile").write_text("changed")
    assert library_commit(library) == f"{commit}-dirty"
    monkeypatch.setenv(COMMIT_VARIABLE, "abc")
    assert library_commit(library) == "abc"
