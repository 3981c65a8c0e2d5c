"""The results of five made-up campaigns stay the same, byte for byte: tables, report.json, REPORT.md, recordings.

KVEVAL_UPDATE_GOLDEN=1 holds what is made now. Times of this day, versions of libraries and
absolute paths are masked; the host is a made-up one.
"""

import os
from pathlib import Path

import pytest
from tests.gates import golden
from tests.gates.campaigns import NAMES
from tests.support.paths import REPOSITORY

pytestmark = pytest.mark.workflow
HELD = Path(__file__).resolve().parent / "golden"


def masks(folder: Path) -> dict[str, str]:
    """What is masked in a workflow's results: pattern -> name."""
    return {
        str(folder): "FOLDER",
        str(REPOSITORY): "REPOSITORY",
        r'"pandas_version": "[^"]+"': '"pandas_version": "VERSION"',
        r'("library": "pyarrow", "version": )"[^"]+"': r'\1"VERSION"',
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_campaign_has_the_results_that_it_had(name: str, results: Path) -> None:
    folder = results / name
    texts = golden.texts_of(folder / "results" / "campaigns" / name, masks(folder))
    archive = HELD / f"{name}.tar.xz"
    if os.environ.get("KVEVAL_UPDATE_GOLDEN"):
        golden.write_archive(archive, texts)
    held = golden.read_archive(archive)
    assert len(held) > 10, f"no {archive}: write it with KVEVAL_UPDATE_GOLDEN=1"
    if said := golden.difference(held, texts):
        pytest.fail(said, pytrace=False)
