"""Environments from ready trees of site-packages: what `setup.sh --from` installs of a bundle that has them.

Runs on the host without a network, by the Python that has torch; needs only the standard library. Packages of the host are
found by a .pth file, after the environment's own.
"""

import argparse
import configparser
import importlib
import importlib.metadata
import json
import lzma
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

FACTS = "kveval-ready.json"
"""Name of the file in an environment that tells what was left out of it; other environments have none."""
_IMPORTS = {
    "workflow": (
        *("kubernetes", "matplotlib", "pandas", "pyarrow", "scipy", "seaborn"),
        *("snakemake", "zstandard"),
    ),
    "server": ("guidellm.__main__", "lmcache", "torch", "vllm"),
}
# What a server loads on a GPU; some of it can be imported only where there is one.
_IMPORTS_WITH_GPU = (
    "vllm._custom_ops",
    "vllm.entrypoints.openai.api_server",
    "vllm.v1.attention.backends.flash_attn",
    "vllm.v1.engine.async_llm",
    "vllm.v1.kv_offload.cpu.gpu_worker",
    "vllm.v1.worker.gpu_worker",
)
_LONGEST_INTERPRETER_LINE = 127
_COMMAND = """\
{interpreter}
import sys
from {module} import {first}
if __name__ == "__main__":
    sys.exit({call}())
"""


def facts_of(environment: Path) -> Mapping[str, Any] | None:
    """Return what was left out of an environment and which packages of it are the host's; None if it is complete."""
    path = environment / FACTS
    if not path.exists():
        return None
    facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return facts


def reduction_of(environment: Path) -> dict[str, Any]:
    """Return what run.json says of an environment that is not complete (docs/store.md); nothing of a complete one."""
    facts = facts_of(environment)
    if facts is None:
        return {}
    return {
        "gpu_code": facts["gpu_code"],
        "left_out": sorted(facts["left_out"]),
        "of_host": facts["of_host"],
    }


def install(environment: Path, python: Path, archive: Path, facts: Path) -> None:
    """Make a virtual environment of a packed tree; `python`: the interpreter, `facts`: what the bundle says of the tree.

    Raises OSError, tarfile.TarError, lzma.LZMAError or subprocess.CalledProcessError if that fails.
    """
    command: list[Path | str] = [python, "-m", "venv", "--without-pip", environment]
    subprocess.run(command, check=True)
    site = site_packages(environment)
    unpack(archive, site)
    (site / "host_packages.pth").write_text(
        "".join(f"{folder}\n" for folder in host_folders())
    )
    write_commands(environment)
    shutil.copyfile(facts, environment / FACTS)


def site_packages(environment: Path) -> Path:
    """Return the folder of an environment's own packages; its Python is of this one's version."""
    values = {"base": str(environment), "platbase": str(environment)}
    return Path(sysconfig.get_path("purelib", "venv", values))


def host_folders() -> list[str]:
    """Return the folders of packages of this interpreter, first those that go first."""
    names = ("site-packages", "dist-packages")
    return [folder for folder in sys.path if Path(folder).name in names]


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a .tar.xz; by the program xz, which uses all processors, or without it by Python."""
    if shutil.which("xz") is None:
        with tarfile.open(archive, "r:xz") as tree:
            _extract(tree, folder)
        return
    command = ["xz", "--decompress", "--stdout", "--threads=0", str(archive)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE) as unpacking,
        tarfile.open(fileobj=unpacking.stdout, mode="r|", bufsize=2**20) as tree,
    ):
        _extract(tree, folder)
    if unpacking.returncode:
        raise lzma.LZMAError(f"{archive}: xz ended with status {unpacking.returncode}")


def _extract(tree: tarfile.TarFile, folder: Path) -> None:
    """Unpack by the filter `tar`, which Python has from 3.11.4 on; Debian 12's is older."""
    tree.extraction_filter = getattr(tarfile, "tar_filter", None)
    tree.extractall(folder)


def write_commands(environment: Path) -> list[Path]:
    """Write the commands of all packages into an environment's bin; packages of the host have theirs there.

    What runs the command is guarded: a process that Python spawns imports the main program again, and would otherwise run
    the command once more.
    """
    folder = environment / "bin"
    interpreter = _interpreter_line((folder / "python").absolute())
    commands = []
    for file in sorted(site_packages(environment).glob("*.dist-info/entry_points.txt")):
        for name, module, attribute in _console_scripts(file):
            command = folder / name
            first, call = attribute.partition(".")[0], attribute
            command.write_text(
                _COMMAND.format(
                    interpreter=interpreter, module=module, first=first, call=call
                )
            )
            command.chmod(0o755)
            commands.append(command)
    return commands


def _console_scripts(entry_points: Path) -> Iterator[tuple[str, str, str]]:
    """Yield name, module and attribute of the commands that a package declares."""
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(entry_points.read_text(encoding="utf-8"))
    if not parser.has_section("console_scripts"):
        return
    for name, value in parser.items("console_scripts"):
        reference = re.sub(r"\s*\[.*\]\s*$", "", value)
        module, _, attribute = reference.partition(":")
        yield name, module.strip(), attribute.strip()


def _interpreter_line(python: Path) -> str:
    """Return the line that starts a script with an interpreter; by the shell where the kernel could not read its path."""
    line = f"#!{python}"
    if len(line) <= _LONGEST_INTERPRETER_LINE and " " not in line:
        return line
    # For Python the second and third line are a string.
    return f"#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''"


def problems(name: str, facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield what this interpreter's environment, of a name, lacks: packages of other versions, modules that do not load."""
    for package, version in sorted(facts["included"].items()):
        there = _version(package)
        if there != version:
            yield f"{package} {version} (there is {there or 'none'})"
    for package in sorted(facts["of_host"]):
        if _version(package) is None:
            yield f"{package} (of this host)"
    for module in _IMPORTS[name]:
        yield from _import_problem(module)
    if name == "server" and _gpu_answers():
        for module in _IMPORTS_WITH_GPU:
            yield from _import_problem(module)


def _import_problem(module: str) -> Iterator[str]:
    try:
        importlib.import_module(module)
    # Whatever a module raises, it cannot be used; it may end the program, too.
    except (Exception, SystemExit) as error:  # noqa: BLE001
        yield f"{module} does not load ({type(error).__name__}: {error})"


def _gpu_answers() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_available()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _check(environment: Path, name: str) -> int:
    """Print what is missing (status 1), or note the host's versions and print those that the locks do not have."""
    facts = dict(facts_of(environment) or {})
    missing = list(problems(name, facts))
    if missing:
        print("\n".join(missing))
        return 1
    locked = facts["of_host"]
    facts["of_host"] = {
        package: {"locked": version, "there": _version(package)}
        for package, version in locked.items()
    }
    (environment / FACTS).write_text(json.dumps(facts, indent=1))
    differing = [
        f"{package} {_version(package)} ({version})"
        for package, version in locked.items()
        if _version(package) != version
    ]
    if differing:
        print(f"in the host's version, not the locks': {', '.join(differing)}")
    return 0


def main(arguments: Sequence[str]) -> int:
    """Make an environment (`install`), or check one with its own Python (`check`; status 1 if anything is missing)."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    installing = commands.add_parser("install")
    installing.add_argument("--python", type=Path, required=True)
    installing.add_argument("archive", type=Path)
    installing.add_argument("facts", type=Path)
    checking = commands.add_parser("check")
    checking.add_argument("name", choices=_IMPORTS)
    for command in (installing, checking):
        command.add_argument("--environment", type=Path, required=True)
    options = parser.parse_args(arguments)
    if options.command == "check":
        return _check(options.environment, options.name)
    began = time.monotonic()
    try:
        install(options.environment, options.python, options.archive, options.facts)
    except (OSError, tarfile.TarError, lzma.LZMAError) as error:
        print(error, file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"{options.python} cannot make an environment: {error}", file=sys.stderr)
        return 1
    print(f"{options.archive.name}: unpacked in {time.monotonic() - began:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
