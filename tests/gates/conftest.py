"""What the gates share: the results of the campaigns, made once, the texts of the commands, and what is planned."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.gates.forks import SAME_NUMBERS
from tests.support.paths import REPOSITORY, SCRIPTS

from kveval.host.shipped import COMMIT_VARIABLE

COLOURED = {"FORCE_COLOR", "GITHUB_ACTIONS", "PY_COLORS", "TERMINAL_WIDTH"}
"""Variables that have help printed in colours, though nobody looks, or in another width than COLUMNS says."""


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the results of every campaign, in a workflow of its own."""
    return _once(tmp_path_factory, "results", lambda folder: _run("results", folder))


@pytest.fixture(scope="session")
def transcripts(results: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the text of every command."""
    finished = results / "default"
    return _once(
        tmp_path_factory, "texts", lambda folder: _run("cases", finished, folder)
    )


@pytest.fixture(scope="session")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the jobs of every campaign that ships."""
    return _once(tmp_path_factory, "planned", lambda folder: _run("jobs", folder))


def _once(
    factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]
) -> Path:
    """Return a folder that `make` fills; processes of pytest-xdist share it."""
    root = factory.getbasetemp()
    folder = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / name
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "made").exists():
            make(folder)
            (folder / "made").touch()
    return folder


def _run(module: str, *arguments: Path) -> None:
    """Run a module of the gates on a made-up host, with a home and a measurement lock of its own, and no cluster."""
    own = arguments[-1].with_name(f"{module}-home")
    own.mkdir()
    paths = [Path(__file__).parent / "host", REPOSITORY, SCRIPTS]
    environment = {
        **{name: os.environ[name] for name in os.environ.keys() - COLOURED},
        **SAME_NUMBERS,
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "HOME": str(own),
        "KVEVAL_HOST_LOCK": str(own / "lock"),
        "KUBECONFIG": "/nonexistent/kubeconfig",
        COMMIT_VARIABLE: "0" * 40,
        # Its list of fonts takes long to make.
        "MPLCONFIGDIR": str(Path.home() / ".cache" / "matplotlib"),
    }
    done = subprocess.run(
        [sys.executable, "-m", f"tests.gates.{module}", *map(str, arguments)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stdout
