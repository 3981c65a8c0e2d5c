"""Environments for the builds that arms name: each is made once, and takes other packages from the installed one.

Nothing installed is copied: the build's own environment comes first on the path, the installed one after it. A
checkout replaces files among links to the installed package, so that compiled modules are beside the patched files.
"""

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from kveval.campaign.builds import BESIDE, ArmBuild, asked_of, files_in, git
from kveval.engines.protocol import Log
from kveval.host.errors import Failure
from kveval.host.files import write_json
from kveval.host.hashing import content_hash
from kveval.stacks.versions import same_release

FOLDER = ".server-builds"
READY = "build.json"
"""A file in every complete environment; an environment without it is made again."""
_INSTALL_S = 1800.0
_ROUNDS = 4
# Packages that scripts/setup.sh leaves out, too; the reasons are in envs/server.excludes.
_LEFT_OUT = {"torchaudio", "torchcodec", "torchvision", "triton"}
_PLACES = """
import importlib.util, json, site, sys, sysconfig
found = {"python": sys.version.split()[0]}
found |= {"site": [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")], "path": [p for p in sys.path if p]}
specs = {name: importlib.util.find_spec(name) for name in sys.argv[1:]}
found["packages"] = {n: list(s.submodule_search_locations or [])[:1] for n, s in specs.items() if s is not None}
print(json.dumps(found))
"""


# Found without running the modules themselves; the packages that they lie in are imported.
_MODULES = """
import importlib.util, json, sys
sys.path.insert(0, sys.argv[1])
missing = {}
for name in sys.argv[2:]:
    try:
        missing |= {} if importlib.util.find_spec(name) else {name: f"No module named {name!r}"}
    except Exception as error:
        missing[name] = f"{type(error).__name__}: {error}"
print(json.dumps(missing))
"""


class BuildFailed(Failure):
    """An environment could not be made; the message quotes the decisive line of the log and names the log."""


def environment_of(
    build: ArmBuild, installed: Path, distribution: str, say: Log
) -> Path:
    """Return the environment of a build; make it if it does not exist.

    `installed`: the environment with all other packages; `distribution`: the name under which the server is published.
    Of concurrent callers, one makes it and the others wait. Raises BuildFailed, BuildError.
    """
    if build.kind == "environment":
        assert build.place is not None
        return build.place
    if build.kind == "release" and _is_installed(build, installed, distribution):
        return installed
    folder = place_of(build, installed)
    with _alone(folder) as lock:
        if not (folder / READY).exists():
            say(f"making the environment of {build.title}: {folder}")
            shutil.rmtree(folder, ignore_errors=True)
            _make(build, folder, installed, distribution, lock)
    return folder


def place_of(build: ArmBuild, installed: Path) -> Path:
    """Return the folder for the environment of a build; it differs between installed environments."""
    folders = _site(installed)
    names = sorted(path.name for place in folders for path in place.glob("*.dist-info"))
    mark = content_hash(
        [str(installed.resolve()), asked_of(installed, _PLACES)["python"], names], 8
    )
    return installed.parent / FOLDER / f"{build.name}-{mark}"


def is_made(build: ArmBuild, installed: Path, distribution: str) -> bool:
    """Whether the environment of a build exists."""
    if build.kind == "environment" or (
        build.kind == "release" and _is_installed(build, installed, distribution)
    ):
        return True
    return (place_of(build, installed) / READY).exists()


def build_facts(build: ArmBuild, environment: Path) -> dict[str, Any]:
    """Return the build's entry in run.json: what it is, and the packages that were installed for it."""
    with contextlib.suppress(OSError, ValueError):
        facts: dict[str, Any] = json.loads((environment / READY).read_text())
        return facts
    return build.facts


def missing_modules(
    environment: Path, names: Sequence[str], plugins: Path | None
) -> dict[str, str]:
    """Return those of the modules that a server of this environment would not find, each with the reason.

    `plugins`: folder of modules that are always on the server's path. Raises BuildError if its Python does not answer.
    """
    if plugins is not None:
        names = [name for name in names if not (plugins / f"{name}.py").is_file()]
    if not names:
        return {}
    missing: dict[str, str] = asked_of(
        environment, _MODULES, str(plugins or environment), *names
    )
    return missing


def _site(environment: Path) -> list[Path]:
    return sorted(
        {path.resolve() for path in environment.glob("lib*/python3*/site-packages")}
    )


def _is_installed(build: ArmBuild, installed: Path, distribution: str) -> bool:
    (program, version), *_ = build.versions.items()
    names = {
        canonicalize_name(name)
        for name in ((BESIDE,) if program == BESIDE else (distribution, program))
    }
    installed_distributions = distributions(
        path=[str(path) for path in _site(installed)]
    )
    return any(
        canonicalize_name(package.metadata["Name"]) in names
        and same_release(package.version, version)
        for package in installed_distributions
    )


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[int]:
    """Hold the lock of one environment; yields its file descriptor, for processes that must keep the lock as well."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock.fileno()


def _make(
    build: ArmBuild, folder: Path, installed: Path, distribution: str, lock: int
) -> None:
    """Make an environment; the file READY is written last, so that an interrupted one lacks it."""
    log = folder.parent / f"{folder.name}.log"
    log.unlink(missing_ok=True)
    _run(
        [installed / "bin" / "python", "-m", "venv", "--without-pip", folder], log, lock
    )
    packages = asked_of(installed, _PLACES, *build.packages)["packages"]
    own = Path(asked_of(folder, _PLACES)["site"][0])
    seen = "".join(
        f"import site; site.addsitedir({str(path)!r})\n" for path in _site(installed)
    )
    (own / "kveval_installed.pth").write_text(seen)
    if build.kind == "checkout":
        _lay_over(build, own, {name: Path(*parts) for name, parts in packages.items()})
    else:
        _install(build, folder, installed, distribution, log, lock)
    for script in sorted((installed / "bin").iterdir()):
        if not (folder / "bin" / script.name).exists() and script.is_file():
            (folder / "bin" / script.name).symlink_to(script.resolve())
    added = sorted(
        f"{package.metadata['Name']}=={package.version}"
        for package in distributions(path=[str(own)])
    )
    write_json(folder / READY, {**build.facts, "installed": added})


def _lay_over(build: ArmBuild, own: Path, packages: dict[str, Path]) -> None:
    """Link the installed packages file by file, and replace files by those of the checkout."""
    for name in build.packages:
        if name not in packages:
            message = f"{build.title}: {name} is not installed, whose files the checkout would replace"
            raise BuildFailed(message, code="nothing_to_lay_over")
        for folder, _, names in os.walk(packages[name]):
            beside = own / name / Path(folder).relative_to(packages[name])
            beside.mkdir(parents=True, exist_ok=True)
            for file_name in names:
                (beside / file_name).symlink_to(Path(folder, file_name))
    with tempfile.TemporaryDirectory(dir=own) as scratch:
        source = _sources(build, Path(scratch))
        for name in build.files:
            path = own / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            shutil.copy2(source / name, path, follow_symlinks=False)
            for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
                compiled.unlink()
    changed = sorted(build.files.items() - files_in(own, build.files).items())
    if changed:
        message = f"{build.title}: {changed[0][0]} was changed while it was copied: start again"
        raise BuildFailed(message, code="changed_meanwhile")


def _sources(build: ArmBuild, scratch: Path) -> Path:
    """Return the folder with the checkout's files: the checkout itself, or a copy at its pinned commit."""
    assert build.place is not None
    if not build.pinned:
        return build.place
    index = {"GIT_INDEX_FILE": str(scratch / "index")}
    git(build.place, "read-tree", str(build.commit), env=index)
    names = "\0".join(build.files).encode(errors="surrogateescape")
    out = scratch / "files"
    git(
        build.place,
        "checkout-index",
        "-z",
        "--stdin",
        f"--prefix={out}/",
        env=index,
        given=names,
    )
    return out


def _install(
    build: ArmBuild,
    folder: Path,
    installed: Path,
    distribution: str,
    log: Path,
    lock: int,
) -> None:
    """Install what a build consists of, and those of its requirements that the installed versions do not meet."""
    requirements = list(build.requirements)
    if build.place is not None:
        requirements = [str(build.place)]
    elif build.kind == "release":
        (program, version), *_ = build.versions.items()
        name = BESIDE if program == BESIDE else distribution
        requirements = [f"{name}=={version}"]
    pip: list[str | Path] = [
        installed / "bin" / "python",
        "-m",
        "pip",
        "--python",
        folder / "bin" / "python",
    ]
    pip += ["--disable-pip-version-check", "--no-input", "install"]
    # Otherwise pip would count packages of the installed environment as installed here.
    pip += ["--no-deps", "--ignore-installed"]
    for _ in range(_ROUNDS):
        _run([*pip, *requirements], log, lock)
        # LMCache's wheel requires CUDA and older packages than vLLM's, but works without them.
        if BESIDE in build.versions:
            return
        unmet = _unmet(folder, distribution)
        if not unmet:
            return
        _refuse_other_server(build, unmet, distribution)
        requirements = [str(requirement) for requirement in unmet]
    message = f"{build.title}: its requirements contradict each other: {', '.join(requirements)}; see {log}"
    raise BuildFailed(message, code="unmet")


def _refuse_other_server(
    build: ArmBuild, unmet: Sequence[Requirement], distribution: str
) -> None:
    """Raise BuildFailed if torch or the server itself would have to be another one."""
    codes = {
        "torch": "other_torch",
        **dict.fromkeys(_names(distribution), "other_server"),
    }
    for requirement in unmet:
        code = codes.get(canonicalize_name(requirement.name))
        if code is not None:
            message = f"{build.title} needs {requirement}, and another one is installed: make an environment that has both"
            raise BuildFailed(f"{message}, and name it by `environment`", code=code)


def _names(distribution: str) -> list[str]:
    """Return the names under which packages require the server: a build for CPUs has another than the program."""
    return [distribution, distribution.removesuffix("-cpu")]


def _unmet(folder: Path, distribution: str) -> list[Requirement]:
    """Return the requirements of an environment's own packages that neither it nor the installed one meets."""
    places: dict[str, Any] = asked_of(folder, _PLACES)
    python = str(places["python"])
    markers = {
        "extra": "",
        "python_version": ".".join(python.split(".")[:2]),
        "python_full_version": python,
    }
    there: dict[str, Distribution] = {}
    for other in distributions(path=places["path"]):
        there.setdefault(canonicalize_name(other.metadata["Name"]), other)
    server, program = _names(distribution)
    if server in there:
        there.setdefault(program, there[server])
    unmet: dict[str, Requirement] = {}
    for own in distributions(path=places["site"][:1]):
        for text in own.requires or ():
            requirement = Requirement(text)
            name = canonicalize_name(requirement.name)
            if name in _LEFT_OUT or (
                requirement.marker and not requirement.marker.evaluate(markers)
            ):
                continue
            met = name in there and requirement.specifier.contains(
                there[name].version, prereleases=True
            )
            if not met:
                requirement.extras, requirement.marker = set(), None
                unmet[name] = requirement
    return list(unmet.values())


def _run(command: Sequence[str | Path], log: Path, lock: int) -> None:
    """Run a command; raise BuildFailed with the line of its output that says why it failed.

    The command keeps the lock, too: if the job is killed, the next one waits until the command has ended.
    """
    with log.open("a") as output:
        output.write(f"$ {' '.join(map(str, command))}\n")
        output.flush()
        environment = {
            name: value for name, value in os.environ.items() if name != "PYTHONPATH"
        }
        try:
            done = subprocess.run(
                [str(part) for part in command],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                timeout=_INSTALL_S,
                env=environment,
                pass_fds=[lock],
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BuildFailed(
                f"the environment of a build could not be made ({error}); see {log}"
            ) from None
    if done.returncode:
        lines = log.read_text(errors="replace").strip().splitlines()
        telling = next(
            (line for line in reversed(lines) if "error" in line.lower()), lines[-1]
        )
        raise BuildFailed(
            f"the environment of a build could not be made: {telling.strip()}; see {log}"
        )
