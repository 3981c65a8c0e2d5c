"""The package that `pip install .` makes: what is in its wheel, and what an installation without a checkout can do.

It is built and installed with what the package index has; skipped where none can be reached.
"""

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Sequence
from email import message_from_bytes
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from tests.gates.campaigns import FIXTURE
from tests.gates.cases import REQUESTS
from tests.support.fake_model_server import FakeServer, serving
from tests.support.paths import CONFIG, REPOSITORY, SCRIPTS, library_files, unpack
from tests.support.result_trees import write_campaign_tree
from tests.workflow.test_setup import ENVS, requirements

pytestmark = pytest.mark.workflow

BUILT_FROM = (
    *("pyproject.toml", "setup.py", "README.md", "LICENSE"),
    *("config", "manifests", "envs", "scripts"),
)
FOLDERS = ("config", "manifests")
WITHOUT_PATH = {
    name: value for name, value in os.environ.items() if name != "PYTHONPATH"
}


def run(
    *words: str | Path, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*map(str, words)],
        cwd=cwd,
        env=WITHOUT_PATH,
        capture_output=True,
        text=True,
        timeout=600,
    )


def pip(python: Path | str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    return run(python, "-m", "pip", "--disable-pip-version-check", *words)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy without anything that an earlier build may have left."""
    source = tmp_path_factory.mktemp("source")
    tools = tmp_path_factory.mktemp("tools")
    built = tmp_path_factory.mktemp("built")
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    fetched = pip(
        sys.executable, "download", "-d", tools, *project["build-system"]["requires"]
    )
    if fetched.returncode:
        pytest.skip("no package index: pip must reach one")
    left_out = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in BUILT_FROM:
        if (REPOSITORY / name).is_dir():
            shutil.copytree(REPOSITORY / name, source / name, ignore=left_out)
        else:
            shutil.copy(REPOSITORY / name, source)
    # What users put beside the shipped files is theirs.
    (source / "config" / "campaigns" / "mine.yaml").write_text("name: mine\n")
    (source / "config" / "traces" / "mine.jsonl").write_text("{}\n")
    offline = ("--no-index", "--find-links", tools)
    done = pip(sys.executable, "wheel", "--no-deps", "-w", built, *offline, source)
    assert done.returncode == 0, done.stderr
    (found,) = built.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the package and its dependencies; its folder of programs."""
    folder = tmp_path_factory.mktemp("environment")
    made = run(sys.executable, "-m", "venv", "--without-pip", folder)
    assert made.returncode == 0, made.stderr
    # Each program compiles what it imports, a small part of what is installed.
    words = ("--python", folder / "bin" / "python", "install", "--no-compile")
    installed = pip(sys.executable, *words, wheel)
    assert installed.returncode == 0, installed.stderr
    return folder / "bin"


def files_below(folder: Path) -> set[str]:
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_has_the_library_the_configuration_and_the_manifests(
    wheel: Path,
) -> None:
    names = [
        name for name in zipfile.ZipFile(wheel).namelist() if not name.endswith("/")
    ]
    packaged = {name for name in names if not name.split("/")[0].endswith("dist-info")}
    expected = {f"kveval/{name}" for name in files_below(SCRIPTS / "kveval")}
    expected |= {path.relative_to(SCRIPTS).as_posix() for path in library_files()}
    tracked = run("git", "-C", REPOSITORY, "ls-files", *FOLDERS).stdout.split()
    assert tracked
    expected |= {f"kveval/data/{name}" for name in tracked}
    assert packaged == expected


@pytest.mark.parametrize("name", ["workflow", "mlflow"])
def test_its_extras_are_the_lists_of_envs(wheel: Path, name: str) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (file,) = (
            file
            for file in archive.namelist()
            if file.startswith("kveval-") and file.endswith(".dist-info/METADATA")
        )
        metadata = message_from_bytes(archive.read(file))
    needed = [Requirement(line) for line in metadata.get_all("Requires-Dist", [])]
    extra = {
        f"{requirement.name}{requirement.specifier}"
        for requirement in needed
        if f'extra == "{name}"' in str(requirement.marker)
    }
    listed = requirements(ENVS / f"{name}.in")
    assert extra == {f"{one.name}{one.specifier}" for one in listed}


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["--help"], "show"),
        (["models"], "Qwen3"),
        (["plan", "mine.yaml"], "no-offload"),
        (["curve", "mine.yaml"], "of any size"),
        (["trace", "requests.csv"], "conversations"),
        (["import", "tree", "--sheet", "imports.csv"], "imports.csv"),
    ],
)
def test_a_bare_installation_answers_what_needs_no_checkout(
    environment: Path, tmp_path: Path, words: Sequence[str], answer: str
) -> None:
    shutil.copy(CONFIG / "config.yaml", tmp_path / "mine.yaml")
    (tmp_path / "requests.csv").write_text(REQUESTS)
    write_campaign_tree(tmp_path / "tree", rates=(4,))
    done = run(environment / "kveval", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert answer in done.stdout


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["show", "Qwen3-0.6B/native-offload/500"], "2bd31f7c62227a60"),
        (["plan", "mine.yaml"], "no-offload"),
        (
            ["curve", "mine.yaml"],
            "No gain is predicted without pandas and scipy: pip install",
        ),
    ],
)
def test_a_bare_installation_answers_beside_a_store(
    environment: Path, tmp_path: Path, words: Sequence[str], answer: str
) -> None:
    shutil.copy(CONFIG / "config.yaml", tmp_path / "mine.yaml")
    unpack(FIXTURE, tmp_path)
    # Its runs are read for good, its tables are not.
    for folder in tmp_path.glob("results/campaigns/*/analysis"):
        shutil.rmtree(folder)
    done = run(environment / "kveval", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert answer in done.stdout


def test_a_bare_installation_asks_a_server_that_runs(
    environment: Path, tmp_path: Path
) -> None:
    with serving(FakeServer()) as server:
        done = run(environment / "kveval", "attach", server.url, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert '"tiny"' in done.stdout


@pytest.mark.parametrize("words", [["doctor"], ["verify"], ["history"]])
def test_a_bare_installation_names_what_the_others_need(
    environment: Path, tmp_path: Path, words: Sequence[str]
) -> None:
    done = run(environment / "kveval", *words, cwd=tmp_path)
    assert done.returncode == 1
    assert "pip install '.[workflow]'" in done.stderr
    assert "checkout" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_bare_installation_shows_a_cell(environment: Path, tmp_path: Path) -> None:
    done = run(environment / "kveval", "show", "a/b/0", cwd=tmp_path)
    assert done.returncode == 2
    assert "a/b/0: no such cell" in done.stderr


def test_the_library_runs_from_the_folder_of_scripts() -> None:
    """There modules of other names lie beside it, which are no part of the package."""
    done = run(sys.executable, "-m", "kveval", "--help", cwd=SCRIPTS)
    assert done.returncode == 0, done.stderr
    assert "show" in done.stdout
