"""The smallest environments for a GPU host: which packages, and which of their files, `bundle.sh --smallest` includes.

Runs on the machine that collects; needs only the standard library and packaging. envs/smallest.toml says what is left
out, with reasons.
"""

import argparse
import json
import mmap
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from kveval.host.setup.gpu_code import (
    MAGIC,
    compute_capability,
    has_gpu_code,
    zero_other_gpu_code,
)
from kveval.host.setup.wheels import (
    applicable_entries,
    environment_of,
    pinned,
    unconditional,
)


@dataclass(frozen=True)
class Rules:
    """The rules by which environments are made small; each table maps a name to the reason.

    Attributes:
        left_out: packages.
        of_host: packages that are taken from the host, if it has them.
        files: patterns of paths below site-packages.
        files_by_gpu: the same for one compute capability, such as "9.0".
        environment: variables, with values, that the server then needs.
    """

    left_out: Mapping[str, str]
    of_host: Mapping[str, str]
    files: Mapping[str, str]
    files_by_gpu: Mapping[str, Mapping[str, str]]
    environment: Mapping[str, str]


@dataclass(frozen=True)
class Choice:
    """The entries of one environment's locks, divided by what becomes of them.

    Attributes:
        included: entries of the locks with their hashes, by package.
        left_out: packages that nothing takes the place of.
        of_host: package -> (the locks' version, the host's).
    """

    included: Mapping[str, str]
    left_out: Sequence[str]
    of_host: Mapping[str, tuple[str, str]]


def read_rules(path: Path) -> Rules:
    """Read envs/smallest.toml. Raises ValueError for what is no such file."""
    try:
        return Rules(**tomllib.loads(path.read_text(encoding="utf-8")))
    except (TypeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{path}: {error}") from error


def packages_of_host(text: str) -> dict[str, str]:
    """Return name -> version of the output of `pip list --format=freeze`. Raises ValueError for another text.

    Packages that were installed from a folder or a repository (`name @ ...`, `-e ...`) have no version there: they are
    skipped.
    """
    packages: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith(("#", "-e ")) or " @ " in line:
            continue
        name, equals, version = line.strip().partition("==")
        if not (name and equals and version):
            raise ValueError(
                f"line {number} is not NAME==VERSION, as `pip list --format=freeze` prints it: {line!r}"
            )
        packages[canonicalize_name(name)] = version
    return packages


def choose(entries: Mapping[str, str], rules: Rules, host: Mapping[str, str]) -> Choice:
    """Divide the entries of an environment's locks; `host`: name -> version of the packages there."""
    included: dict[str, str] = {}
    left_out: list[str] = []
    of_host: dict[str, tuple[str, str]] = {}
    for name, entry in sorted(entries.items()):
        if name in rules.left_out:
            left_out.append(name)
        elif name in rules.of_host and name in host:
            of_host[name] = _version(entry), host[name]
        else:
            included[name] = entry
    return Choice(included, left_out, of_host)


def require_torch(host: Mapping[str, str], torch_entries: Mapping[str, str]) -> None:
    """Raise ValueError if the host's packages lack the torch and triton of a lock."""
    for name in ("torch", "triton"):
        locked, there = _version(torch_entries[name]), host.get(name)
        if there is None or there.partition("+")[0] != locked:
            raise ValueError(
                f"the host has {there or 'no'} {name}, and the server needs {locked} (config/gpu_stacks.yaml)"
            )


def trim(tree: Path, rules: Rules, gpu_code: str, python: str) -> dict[str, int]:
    """Delete from an environment's site-packages what is not needed, and empty GPU code for others than `gpu_code`.

    Symbols for debugging go where the program `strip` is installed. Returns bytes: `deleted` and `overwritten`.
    """
    deleted = sum(_delete(path) for path in _needless(tree, rules, gpu_code, python))
    overwritten = 0
    strippable: list[Path] = []
    capability = compute_capability(gpu_code)
    for library in sorted(tree.rglob("*.so*")):
        # What auditwheel copied beside a package was patched, and strip is known to damage such files.
        patched = library.parent.name.endswith(".libs")
        if not library.is_file() or library.is_symlink() or not library.stat().st_size:
            continue
        if _mentions_gpu_code(library):
            data = bytearray(library.read_bytes())
            overwritten += zero_other_gpu_code(data, capability)
            library.write_bytes(data)
            if has_gpu_code(data):
                continue
        if not patched:
            strippable.append(library)
    if strippable and shutil.which("strip"):
        before = _size(strippable)
        # A file that strip does not know stays as it is.
        subprocess.run(
            ["strip", "--strip-debug", *strippable], check=False, capture_output=True
        )
        deleted += before - _size(strippable)
    return {"deleted": deleted, "overwritten": overwritten}


def _needless(tree: Path, rules: Rules, gpu_code: str, python: str) -> Iterator[Path]:
    patterns = [*rules.files, *rules.files_by_gpu.get(gpu_code, {})]
    for pattern in patterns:
        yield from sorted(tree.glob(pattern))
    own = f".cpython-{python.replace('.', '')}-"
    for path in sorted(tree.rglob("*.cpython-*.so")):
        if own not in path.name:
            yield path
    yield tree / "bin"  # commands are made anew, for the folder of the environment


def _delete(path: Path) -> int:
    """Delete a file or folder, which may be gone by now; return its size."""
    if path.is_dir() and not path.is_symlink():
        size = _size(one for one in path.rglob("*") if one.is_file())
        shutil.rmtree(path)
        return size
    if not path.exists():
        return 0
    size = path.lstat().st_size
    path.unlink()
    return size


def _mentions_gpu_code(library: Path) -> bool:
    with (
        library.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        return content.find(MAGIC) >= 0


def _size(paths: Iterable[Path]) -> int:
    return sum(path.lstat().st_size for path in paths)


def _version(entry: str) -> str:
    (specifier,) = pinned(entry).specifier
    return specifier.version


def _requirements(options: argparse.Namespace) -> None:
    """Write NAME.txt for pip and NAME.json, the facts, of one environment; tell what the host's versions are."""
    rules = read_rules(options.rules)
    environment = environment_of(options.python)
    entries: dict[str, str] = {}
    for lock in options.locks:
        entries |= applicable_entries(lock.read_text(encoding="utf-8"), environment)
    host: Mapping[str, str] = {}
    if options.host_has is not None:
        host = packages_of_host(options.host_has.read_text(encoding="utf-8"))
        torch = options.torch_lock.read_text(encoding="utf-8")
        require_torch(host, applicable_entries(torch, environment))
    choice = choose(entries, rules, host)
    name, folder = options.environment, options.out
    requirements = map(unconditional, choice.included.values())
    (folder / f"{name}.txt").write_text("\n".join(requirements) + "\n")
    facts: dict[str, Any] = {
        "gpu_code": options.gpu_code,
        "included": {one: _version(text) for one, text in choice.included.items()},
        "left_out": {one: rules.left_out[one] for one in choice.left_out},
        "of_host": {one: locked for one, (locked, _) in choice.of_host.items()},
        "environment": rules.environment if choice.left_out else {},
    }
    (folder / f"{name}.json").write_text(json.dumps(facts, indent=1))
    print(
        f"{name}: {len(choice.included)} packages, {len(choice.of_host)} of the host, {len(choice.left_out)} left out"
    )
    differing = [
        f"{one} {there} ({locked})"
        for one, (locked, there) in choice.of_host.items()
        if there != locked
    ]
    if differing:
        print(f"{name}: in the host's version, not the locks': {', '.join(differing)}")


def _trim(options: argparse.Namespace) -> None:
    rules = read_rules(options.rules)
    freed = trim(options.tree, rules, options.gpu_code, options.python)
    kept = _size(path for path in options.tree.rglob("*") if path.is_file())
    print(
        f"{options.tree.name}: {kept >> 20} MiB; left out {freed['deleted'] >> 20} MiB of files,"
        f" emptied {freed['overwritten'] >> 20} MiB of code for other GPUs"
    )


def main(arguments: Sequence[str]) -> int:
    """Choose an environment's packages (`requirements`), or make its site-packages small (`trim`)."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    choosing = commands.add_parser("requirements")
    choosing.set_defaults(act=_requirements)
    choosing.add_argument("--environment", required=True)
    choosing.add_argument("--host-has", type=Path)
    choosing.add_argument("--torch-lock", type=Path, required=True)
    choosing.add_argument("--out", type=Path, required=True)
    choosing.add_argument("locks", nargs="+", type=Path)
    trimming = commands.add_parser("trim")
    trimming.set_defaults(act=_trim)
    trimming.add_argument("tree", type=Path)
    for command in (choosing, trimming):
        command.add_argument("--rules", type=Path, required=True)
        command.add_argument("--gpu-code", required=True)
        command.add_argument("--python", required=True)
    options = parser.parse_args(arguments)
    try:
        compute_capability(options.gpu_code)
        options.act(options)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
