"""The build that an arm names, identified by its content; nothing is made or started here.

What identifies a build, and so is hashed into the ids of its measurements:

- release: program and version, which are among the `versions` of a specification.
- checkout: the files of its packages (vllm/, lmcache/), each name with git's hash of its content; compiled files are left
  out, and what git ignores. A commit and a working tree with the same files are the same build, in any folder.
- wheel: the SHA-256 of the file.
- packages: each package's name and version, or the SHA-256 of its wheel.
- environment: version and record of every distribution in it, the packages' files, and Python's version.

The hash of this is the `key` of an ArmBuild; a specification has it as `source`, for instance checkout-0123456789abcdef.
kveval.engines.local.builds makes an environment of a build.
"""

import hashlib
import json
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import (
    InvalidWheelFilename,
    canonicalize_name,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

from kveval.campaign.campaign_file import ServerConfig
from kveval.campaign.catalogue import BuildSource
from kveval.host.errors import Failure
from kveval.host.files import sha256_file
from kveval.host.hashing import content_hash

BESIDE = "lmcache"
"""The program that a build may contain besides the server itself."""
Kind = Literal["release", "wheel", "checkout", "environment", "packages"]
Files = Mapping[str, str]
"""Path below a source tree -> git's hash of the file's content."""
_ANSWER_S = 120.0
# Compiled files are made from the sources, for one machine.
_COMPILED = (".so", ".pyc", ".pyd")
_ENVIRONMENT = """
import hashlib, importlib.metadata as m, importlib.util, json, pathlib, sys
found = {"distributions": {}, "files": {}}
for one in m.distributions():
    record = one.read_text("RECORD") or ""
    # Its place, and from where it was installed, do not identify it.
    omitted = ("/bin/", "direct_url.json", "__editable__", ".pyc", "/RECORD", "/INSTALLER", "/REQUESTED")
    lines = sorted(line for line in record.splitlines() if not any(part in line for part in omitted))
    name = (one.metadata["Name"] or "").lower().replace("_", "-")
    found["distributions"].setdefault(name, [one.version, hashlib.sha256("\\n".join(lines).encode()).hexdigest()])
for name in sys.argv[1:]:
    spec = importlib.util.find_spec(name)
    for folder in map(pathlib.Path, (spec.submodule_search_locations or []) if spec else []):
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".py", ".so") and path.is_file():
                key = f"{name}/{path.relative_to(folder).as_posix()}"
                with path.open("rb") as file:
                    found["files"][key] = hashlib.file_digest(file, "sha256").hexdigest()
found["python"] = sys.version.split()[0]
print(json.dumps(found))
"""


class BuildError(Failure):
    """A scenario's build is missing, or is not a build; the message says what is there."""


NOT_THERE = ("no_environment_there", "no_checkout_there", "no_wheel_there")
"""Codes of a BuildError for a path at which nothing is."""


@dataclass(frozen=True)
class ArmBuild:
    """A build that was found.

    Attributes:
        key: equal for equal content; of a release its program and version.
        title: the build in words.
        versions: release by program, as far as the build sets it.
        place: the file or folder on this host; None for a release.
        commit: of a checkout under git; `dirty`: whether its packages differ from that commit.
        files: of a checkout.
        packages: Python packages that a checkout has.
        requirements: what pip installs beside the installed server, of a build of packages.
    """

    kind: Kind
    key: str
    title: str
    versions: Mapping[str, str] = field(default_factory=dict)
    place: Path | None = None
    commit: str | None = None
    dirty: bool | None = None
    pinned: bool = False
    files: Files = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the environment made for it."""
        return f"{self.kind}-{self.key}"

    @property
    def source(self) -> str:
        """Its name in a specification; empty for a release, which is identified by its version."""
        return "" if self.kind == "release" else self.name

    @property
    def facts(self) -> dict[str, Any]:
        """Its part of a run's description, without this host's paths."""
        facts: dict[str, Any] = {
            "kind": self.kind,
            "key": self.key,
            "title": self.title,
        }
        if self.kind == "checkout":
            facts |= {"commit": self.commit, "dirty": self.dirty}
        return facts


def find_build(source: BuildSource, server: ServerConfig) -> ArmBuild:
    """Find the build that a scenario names, on a server declared as `server`. Raises BuildError."""
    programs = (server.program, BESIDE)
    if source.checkout is not None:
        return _checkout(source.checkout, source.commit, programs)
    if source.wheel is not None:
        return _wheel(source.wheel, server)
    if source.environment is not None:
        return _environment(source.environment, server)
    if source.packages is not None:
        return _packages(source.packages, {server.build, *programs})
    program, version = (
        (BESIDE, source.lmcache)
        if source.lmcache is not None
        else (server.program, source.vllm)
    )
    assert version is not None
    if source.lmcache is None and server.version:
        message = f"the release {version} is of another program than {server.program}"
        raise BuildError(message, code="other_program")
    return ArmBuild(
        "release",
        f"{program}-{version}",
        f"release {version} of {program}",
        {program: version},
    )


def files_in(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Return the existing source files among `names`, relative to `folder`, with git's hash of their content."""
    hashes = {}
    for name in names:
        path = folder / name
        if path.is_symlink():
            content = path.readlink().as_posix().encode()
        elif path.is_file() and path.suffix not in _COMPILED:
            content = path.read_bytes()
        else:
            continue
        hashes[name] = hashlib.sha1(
            b"blob %d\0" % len(content) + content, usedforsecurity=False
        ).hexdigest()
    return hashes


def git(
    place: Path,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    given: bytes = b"",
) -> bytes:
    """Return git's output in a source tree; `given` is its input. Raises BuildError with its last line on failure."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("GIT_")
    }
    environment |= {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C", **(env or {})}
    command = ["git", "-C", str(place), *arguments]
    return _output(
        command,
        f"checkout {place}: git {arguments[0]}",
        "git_failed",
        environment,
        given,
    )


def asked_of(environment: Path, program: str, *arguments: str) -> Any:
    """Return the JSON that a program prints, run by the environment's own Python. Raises BuildError."""
    python = environment / "bin" / "python"
    if not python.exists():
        message = f"environment {environment}: there is no bin/python"
        raise BuildError(message, code="no_environment_there")
    # Isolated (-I), so that only what is installed in the environment counts.
    who = f"environment {environment}: its Python does not answer"
    printed = _output([str(python), "-I", "-c", program, *arguments], who, "no_answer")
    try:
        return json.loads(printed)
    except ValueError as error:
        raise BuildError(f"{who} ({error})", code="no_answer") from None


def _output(
    command: list[str],
    who: str,
    code: str,
    environment: Mapping[str, str] | None = None,
    given: bytes = b"",
) -> bytes:
    """Return what a command prints. Raises BuildError, with the last line that it says on standard error."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            timeout=_ANSWER_S,
            env=environment,
            input=given,
        )
        if not done.returncode:
            return done.stdout
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        why = lines[-1] if lines else f"exit status {done.returncode}"
    except subprocess.TimeoutExpired:
        why = f"not within {_ANSWER_S:.0f} s"
    except OSError as error:
        why = str(error)
    raise BuildError(f"{who} ({why})", code=code)


def _checkout(given: str, commit: str | None, programs: Sequence[str]) -> ArmBuild:
    place = Path(given).expanduser().absolute()
    if not place.is_dir():
        raise BuildError(
            f"checkout {given}: there is no such folder", code="no_checkout_there"
        )
    under_git = (place / ".git").exists()
    if commit is not None and not under_git:
        raise BuildError(
            f"checkout {given} is not under git, and has no commit {commit}",
            code="not_under_git",
        )
    head = _commit(place, commit or "HEAD", given) if under_git else None
    dirty: bool | None = None
    if not under_git:
        files = _files_below(place, programs)
    elif commit is not None and head is not None:
        files, dirty = _committed(place, head, programs), False
    else:
        files = _files_of_working_tree(place, programs)
        dirty = head is None or files != _committed(place, head, programs)
    packages = tuple(name for name in programs if _has_modules(files, name))
    if not packages:
        message = f"checkout {given} has no Python files in {' or '.join(f'{name}/' for name in programs)}"
        raise BuildError(message, code="no_package")
    title = f"{' and '.join(packages)} of {place.name}"
    if head is not None:
        title += f" at {head[:10]}{' with changes' if dirty else ''}"
    return ArmBuild(
        kind="checkout",
        key=content_hash(dict(files)),
        title=title,
        place=place,
        commit=head,
        dirty=dirty,
        pinned=commit is not None,
        files=files,
        packages=packages,
    )


def _has_modules(files: Files, package: str) -> bool:
    begin = f"{package}/"
    return any(name.startswith(begin) and name.endswith(".py") for name in files)


def _files_below(place: Path, programs: Sequence[str]) -> dict[str, str]:
    """The files of a source tree that is not under git."""
    names: list[str] = []
    for program in programs:
        paths = sorted((place / program).rglob("*"))
        names += [path.relative_to(place).as_posix() for path in paths]
    return files_in(place, names)


def _files_of_working_tree(place: Path, programs: Sequence[str]) -> dict[str, str]:
    """The files of a working tree, changed and new ones too, but not those that git ignores."""
    kinds = ("--cached", "--others", "--exclude-standard")
    listed = git(place, "ls-files", "-z", *kinds, "--", *programs)
    names = set(filter(None, listed.decode(errors="surrogateescape").split("\0")))
    return files_in(place, sorted(names))


def _commit(place: Path, name: str, given: str) -> str | None:
    """Return the commit that a name means; None for a repository that has none yet."""
    try:
        return (
            git(
                place,
                "rev-parse",
                "--verify",
                "--quiet",
                "--end-of-options",
                f"{name}^{{commit}}",
            )
            .decode()
            .strip()
        )
    except BuildError:
        if name == "HEAD" and git(place, "rev-parse", "--is-inside-work-tree"):
            return None
        raise BuildError(
            f"checkout {given} has no commit {name}", code="no_commit"
        ) from None


def _committed(place: Path, commit: str, programs: Sequence[str]) -> dict[str, str]:
    entries = git(place, "ls-tree", "-r", "-z", "--full-tree", commit, "--", *programs)
    files = {}
    for entry in filter(None, entries.decode(errors="surrogateescape").split("\0")):
        (_, kind, content), name = entry.split("\t")[0].split(), entry.split("\t", 1)[1]
        if kind == "blob" and not name.endswith(_COMPILED):
            files[name] = content
    return files


def _wheel(given: str, server: ServerConfig) -> ArmBuild:
    place, name, version = _wheel_file(given)
    programs = {
        canonicalize_name(one): server.program for one in (server.build, server.program)
    } | {BESIDE: BESIDE}
    if name not in programs:
        message = f"wheel {given} is of {name}; valid is one of {', '.join(programs)}"
        raise BuildError(message, code="other_program")
    key = sha256_file(place)
    return ArmBuild(
        "wheel", key[:16], f"wheel {place.name}", {programs[name]: version}, place
    )


def _packages(given: Sequence[str], servers: Set[str]) -> ArmBuild:
    """Return the installed server with packages added; `servers`: names that are builds of their own."""
    contents: dict[str, str] = {}
    requirements = []
    for text in given:
        is_wheel = text.endswith(".whl")
        name, content, requirement = _added_wheel(text) if is_wheel else _pinned(text)
        if name in servers:
            message = f"packages has {text}, a build of the server itself, which has keys of its own beside packages"
            raise BuildError(message, code="server_among_packages")
        if name in contents:
            raise BuildError(f"packages names {name} twice", code="package_twice")
        contents[name] = content
        requirements.append(requirement)
    title = f"the installed server with {', '.join(Path(text).name for text in given)}"
    key = content_hash(contents)
    return ArmBuild("packages", key, title, requirements=tuple(requirements))


def _added_wheel(given: str) -> tuple[str, str, str]:
    """Return a wheel's name, what tells its content apart, and its path for pip. Raises BuildError."""
    place, name, _ = _wheel_file(given)
    return name, sha256_file(place), str(place)


def _pinned(text: str) -> tuple[str, str, str]:
    """Return a requirement's name, its version, and the requirement for pip. Raises BuildError."""
    valid = "valid is NAME==VERSION, one release from the package index, or the file of a wheel (pip wheel makes one)"
    try:
        requirement = Requirement(text)
        clauses = [*requirement.specifier]
        pinned = len(clauses) == 1 and clauses[0].operator == "=="
        version = str(Version(clauses[0].version)) if pinned else ""
    except (InvalidRequirement, InvalidVersion):
        version = ""
    if not version or requirement.extras or requirement.marker:
        raise BuildError(f"packages has {text!r}; {valid}", code="not_pinned")
    name = canonicalize_name(requirement.name)
    return name, version, f"{name}=={version}"


def _wheel_file(given: str) -> tuple[Path, str, str]:
    """Return a wheel's path, the name of its package, and its version. Raises BuildError."""
    place = Path(given).expanduser().absolute()
    if not place.is_file():
        raise BuildError(f"wheel {given}: there is no such file", code="no_wheel_there")
    try:
        name, version, _, _ = parse_wheel_filename(place.name)
    except InvalidWheelFilename:
        raise BuildError(
            f"{given} is not named like a wheel: NAME-VERSION-...-.whl", code="no_wheel"
        ) from None
    return place, name, str(version)


def _environment(given: str, server: ServerConfig) -> ArmBuild:
    place = Path(given).expanduser().absolute()
    content = asked_of(place, _ENVIRONMENT, server.program, BESIDE)
    versions: dict[str, str] = {}
    for program, names in (
        (server.program, (server.build, server.program)),
        (BESIDE, (BESIDE,)),
    ):
        known = [
            content["distributions"][name][0]
            for name in names
            if name in content["distributions"]
        ]
        versions |= {program: known[0]} if known else {}
    if server.program not in versions:
        raise BuildError(
            f"environment {given} has no {server.program}", code="no_server"
        )
    title = f"environment {place.name} with {server.program} {versions[server.program]}"
    return ArmBuild("environment", content_hash(content), title, versions, place)


def with_build(server: ServerConfig, build: ArmBuild | None) -> ServerConfig:
    """Return the server as declared with the releases that a build sets."""
    if build is None or not build.versions:
        return server
    changed = {BESIDE: build.versions[BESIDE]} if BESIDE in build.versions else {}
    key = "version" if server.version else server.program
    changed |= (
        {key: build.versions[server.program]}
        if server.program in build.versions
        else {}
    )
    return server.model_copy(update=changed)
