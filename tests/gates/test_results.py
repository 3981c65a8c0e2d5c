"""The results of five made-up campaigns stay the same, byte for byte: tables, report.json, REPORT.md, recordings.

KVEVAL_UPDATE_GOLDEN=1 holds what is made now. Times of this day, the host's fingerprint, versions of libraries and
absolute paths are masked.
"""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.gates import golden
from tests.gates.campaigns import NAMES
from tests.gates.forks import SAME_NUMBERS
from tests.gates.library import host_fingerprint
from tests.support.paths import REPOSITORY, SCRIPTS

pytestmark = pytest.mark.workflow
HELD = Path(__file__).resolve().parent / "golden"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the results of every campaign, in a workflow of its own; processes of pytest-xdist share it."""
    root = tmp_path_factory.getbasetemp()
    folder = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "results"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "made").exists():
            make_results(folder)
            (folder / "made").touch()
    return folder


def make_results(folder: Path) -> None:
    paths = os.pathsep.join([str(REPOSITORY), str(SCRIPTS)])
    done = subprocess.run(
        [sys.executable, "-m", "tests.gates.results", str(folder)],
        env={**os.environ, **SAME_NUMBERS, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stdout


def masks(folder: Path) -> dict[str, str]:
    """What is masked in a workflow's results: pattern -> name."""
    return {
        str(folder): "FOLDER",
        str(REPOSITORY): "REPOSITORY",
        host_fingerprint(): "FINGERPRINT",
        r'"pandas_version": "[^"]+"': '"pandas_version": "VERSION"',
        r'("library": "pyarrow", "version": )"[^"]+"': r'\1"VERSION"',
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_campaign_has_the_results_that_it_had(name: str, made: Path) -> None:
    folder = made / name
    texts = golden.texts_of(folder / "results" / "campaigns" / name, masks(folder))
    archive = HELD / f"{name}.tar.xz"
    if os.environ.get("KVEVAL_UPDATE_GOLDEN"):
        golden.write_archive(archive, texts)
    held = golden.read_archive(archive)
    assert len(held) > 10, f"no {archive}: write it with KVEVAL_UPDATE_GOLDEN=1"
    if said := golden.difference(held, texts):
        pytest.fail(said, pytrace=False)
