"""The packages that lock files name for one Python on Linux, and those missing from a folder of wheels and the host.

Run it with the interpreter in question; it needs only the standard library and packaging.
"""

import argparse
import contextlib
import importlib.metadata
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import InvalidRequirement, Requirement
from packaging.tags import Tag, sys_tags
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version

# torch's other requirements are checked by importing it.
_OF_HOST = ("torch", "triton")
_HASH = re.compile(r"\s--hash=\S+")


def environment_of(python: str) -> dict[str, str]:
    """Return the values of environment markers for CPython of version `python`, such as 3.12, on this Linux machine."""
    own = {name: str(value) for name, value in default_environment().items()}
    known = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "implementation_version": f"{python}.0",
    }
    return own | known


def applicable_entries(text: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the entries of a lock file that apply in an environment, with their hashes, by package name.

    Raises ValueError for an entry that is not pinned to one version.
    """
    entries: dict[str, str] = {}
    joined = text.replace("\\\n", " ")
    for line in (
        re.sub(r"(^|\s)#.*", "", line).strip() for line in joined.splitlines()
    ):
        if not line or line.startswith("-"):
            continue
        requirement = pinned(line)
        if requirement.marker is None or requirement.marker.evaluate(dict(environment)):
            entries[canonicalize_name(requirement.name)] = line
    return entries


def pinned(entry: str) -> Requirement:
    """Return an entry of a lock file without its hashes. Raises ValueError for one that does not pin one version."""
    text = _HASH.sub("", entry).strip()
    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        raise ValueError(
            f"not a valid entry of a lock file: {text!r} ({error})"
        ) from error
    if [specifier.operator for specifier in requirement.specifier] != ["=="]:
        raise ValueError(f"an entry of a lock file must pin one version: {text!r}")
    return requirement


def _unconditional(entry: str) -> str:
    """Return an entry of a lock file, with its hashes, without the marker that says where it applies."""
    requirement = pinned(entry)
    requirement.marker = None
    return " ".join(
        [str(requirement), *(text.strip() for text in _HASH.findall(entry))]
    )


def lacking(
    entries: Mapping[str, str],
    files: Iterable[str],
    installed: Mapping[str, str],
    tags: Iterable[Tag],
) -> list[str]:
    """Return NAME==VERSION of the entries that neither the bundle's files, by name, nor installed distributions have.

    A wheel counts if one of its tags is among `tags`, a source distribution always; a pinned version without a local
    part is met by one with any local part.
    """
    there: dict[str, set[Version]] = {
        canonicalize_name(name): {Version(version)}
        for name, version in installed.items()
    }
    supported = set(tags)
    for file in files:
        for name, version in _offered(file, supported):
            there.setdefault(name, set()).add(version)
    missing = []
    for name, entry in sorted(entries.items()):
        required = pinned(entry).specifier
        if not any(required.filter(there.get(name, ()), prereleases=True)):
            missing.append(f"{name}{required}")
    return missing


def _offered(file: str, supported: Set[Tag]) -> Iterator[tuple[str, Version]]:
    with contextlib.suppress(InvalidWheelFilename):
        name, version, _, built_for = parse_wheel_filename(file)
        if built_for & supported:
            yield name, version
    with contextlib.suppress(InvalidSdistFilename):
        yield parse_sdist_filename(file)


def _installed() -> dict[str, str]:
    return {
        canonicalize_name(distribution.name): distribution.version
        for distribution in importlib.metadata.distributions()
        if distribution.name
    }


def main(arguments: Sequence[str]) -> int:
    """Print the entries for a Python (`list`), or what is missing for this one (`lacking`; status 1 if any is)."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("list")
    listing.add_argument("--python", required=True)
    looking = commands.add_parser("lacking")
    looking.add_argument("--wheels", type=Path, required=True)
    looking.add_argument(
        "--host-torch",
        type=Path,
        help="lock file of the torch that this interpreter must have",
    )
    for command in (listing, looking):
        command.add_argument("locks", nargs="+", type=Path)
    options = parser.parse_args(arguments)
    own = "{}.{}".format(*sys.version_info)
    environment = environment_of(options.python if options.command == "list" else own)
    entries: dict[str, str] = {}
    for lock in options.locks:
        entries |= applicable_entries(lock.read_text(encoding="utf-8"), environment)
    if options.command == "list":
        # pip would judge the markers by the Python that runs it.
        print("\n".join(map(_unconditional, entries.values())))
        return 0
    names = [path.name for path in options.wheels.iterdir()]
    missing = lacking(entries, names, {}, sys_tags())
    if options.host_torch is not None:
        of_torch = applicable_entries(
            options.host_torch.read_text(encoding="utf-8"), environment
        )
        host_entries = {name: of_torch[name] for name in _OF_HOST if name in of_torch}
        missing += [
            f"{name} (of this host)"
            for name in lacking(host_entries, [], _installed(), [])
        ]
    print("\n".join(missing))
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
