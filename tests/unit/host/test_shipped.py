"""The folders that come with the library: beside it in a checkout, within it in an installed package."""

from pathlib import Path

import pytest
from tests.support.paths import CONFIG, REPOSITORY

from kveval.host.shipped import shipped_folder


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
