"""Environments from packed trees, on trees of a few modules."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kveval.host.setup import ready

MAIN = """
import multiprocessing, sys

def work(number):
    return number + 1

def run():
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print(sum(pool.map(work, [1, 2])), sys.argv[1:])

class Group:
    class inner:
        pass
    run = staticmethod(run)
"""
ENTRY_POINTS = """[console_scripts]
spawner = spawner:run
nested = spawner:Group.run
extra = spawner:run [extra]

[other]
spawner.name = spawner:nothing
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree of one package with commands, as a bundle has it."""
    folder = tmp_path / "tree"
    info = folder / "spawner-1.dist-info"
    info.mkdir(parents=True)
    (folder / "spawner.py").write_text(MAIN)
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: spawner\nVersion: 1\n")
    return folder


def installed(tree: Path, name: str = "environment", **facts: object) -> Path:
    archive, told = tree.parent / "tree.tar.xz", tree.parent / "tree.json"
    subprocess.run(["tar", "-C", tree, "-cJf", archive, "."], check=True)
    told.write_text(
        json.dumps({"included": {}, "of_host": {}, "left_out": {}, **facts})
    )
    environment = tree.parent / name
    ready.install(environment, Path(sys.executable).resolve(), archive, told)
    return environment


def run(command: Path | str, *arguments: str) -> str:
    done = subprocess.run(
        [command, *arguments], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["environment", "a folder", "long-" + "x" * 140])
def test_commands_may_spawn_processes(tree: Path, name: str) -> None:
    """Without the guard every spawned process would start the command anew, as happened to GuideLLM's workers."""
    environment = installed(tree, name)
    for command in ("spawner", "nested", "extra"):
        told = run(environment / "bin" / command, "--option", "with space")
        assert told == "5 ['--option', 'with space']\n"


def test_the_host_has_what_the_tree_lacks_and_the_tree_goes_first(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = tmp_path / "host" / "site-packages"
    host.mkdir(parents=True)
    (host / "spawner.py").write_text("raise SystemExit('the host is not asked')")
    (host / "of_host.py").write_text("WHERE = 'host'")
    monkeypatch.syspath_prepend(host)
    python = installed(tree) / "bin" / "python"
    told = run(python, "-c", "import spawner, of_host; print(of_host.WHERE)")
    assert told == "host\n"


def test_without_the_program_xz_python_unpacks(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ready.shutil, "which", lambda name: None)
    assert (ready.site_packages(installed(tree)) / "spawner.py").exists()


@pytest.mark.parametrize("has_xz", [True, False])
def test_a_damaged_archive_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_xz: bool
) -> None:
    if not has_xz:
        monkeypatch.setattr(ready.shutil, "which", lambda name: None)
    archive, facts = tmp_path / "tree.tar.xz", tmp_path / "tree.json"
    archive.write_bytes(b"no archive")
    facts.write_text("{}")
    arguments = [
        *("install", "--python", sys.executable, "--environment"),
        *(str(tmp_path / "environment"), str(archive), str(facts)),
    ]
    assert ready.main(arguments) == 1


def test_all_that_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(ready._IMPORTS, "workflow", ("json", "no_such_module"))
    facts = {
        "included": {"pytest": "0.1", "nowhere": "1"},
        "of_host": {"pytest": "9", "elsewhere": "3"},
    }
    told = list(ready.problems("workflow", facts))
    assert told == [
        "nowhere 1 (there is none)",
        f"pytest 0.1 (there is {pytest.__version__})",
        "elsewhere (of this host)",
        "no_such_module does not load (ModuleNotFoundError: No module named 'no_such_module')",
    ]


def test_the_hosts_versions_are_noted_and_told_where_they_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(ready._IMPORTS, "workflow", ("json",))
    facts = {
        "gpu_code": "9.0",
        "included": {},
        "of_host": {"pytest": "0.1"},
        "left_out": {"z": "no use", "a": "no use"},
    }
    (tmp_path / ready.FACTS).write_text(json.dumps(facts))
    assert ready.main(["check", "--environment", str(tmp_path), "workflow"]) == 0
    assert f"pytest {pytest.__version__} (0.1)" in capsys.readouterr().out
    noted = ready.reduction_of(tmp_path)
    assert (noted["gpu_code"], noted["left_out"]) == ("9.0", ["a", "z"])
    assert noted["of_host"] == {
        "pytest": {"locked": "0.1", "there": pytest.__version__}
    }


def test_a_complete_environment_has_no_facts(tmp_path: Path) -> None:
    assert ready.facts_of(tmp_path) is None
    assert ready.reduction_of(tmp_path) == {}
