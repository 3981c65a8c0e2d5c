"""A digest of the code that a script uses: each rule has it as a parameter, because Snakemake does not see imports."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

_SCRIPTS = Path(__file__).resolve().parents[2]
_PACKAGES = ("kveval", "pcp_parquet")
# `from kveval.X import A, B` with or without parentheses, the one form in which these packages are imported.
_IMPORT = re.compile(
    rf"^[ \t]*from[ \t]+((?:{'|'.join(_PACKAGES)})(?:\.\w+)*)[ \t]+import[ \t]+(\([^)]*\)|[^\n]+)",
    flags=re.MULTILINE,
)
_COMMENT = re.compile(r"#[^\n]*")


def files_behind(script: Path, *modules: str) -> list[Path]:
    """Return a script, all modules of ours that it imports, directly or not, and the data files beside them.

    Those are the modules of kveval and of pcp_parquet, which lie beside the scripts.

    `modules`: dotted names of further modules, which are imported by a name made at run time. Data files are all files
    of a module's own package that are neither Python nor rules, whose changes Snakemake sees: templates, schemas, styles;
    not those of the packages above it.
    Imports inside functions and for type checking count too. Raises FileNotFoundError for a module that does not exist.
    """
    files: set[Path] = set()
    waiting = [script]
    for module in modules:
        if (file := _file(module)) is None:
            raise FileNotFoundError(f"there is no module {module}")
        waiting.append(file)
    while waiting:
        path = waiting.pop()
        if path not in files:
            files.add(path)
            waiting += _imported(path)
    folders = {path.parent for path in files if path.name != "__init__.py"} - {_SCRIPTS}
    beside = {file for folder in folders for file in _data(folder)}
    return sorted(files | beside)


def code_behind(script: str, *modules: str, beside: Iterable[str | Path] = ()) -> str:
    """Return the digest of a script, by its name in scripts/, of all of ours that it imports, and of `modules`.

    `beside`: further files that the script reads, such as templates of plug-ins. As inputs, which are local, they would
    keep jobs on this machine where a storage provider sends them elsewhere.

    As a rule's parameter the digest reruns jobs after an edit of the library code they use. The modules as inputs, 25
    files per job, would take most of the planning time. Raises FileNotFoundError as `files_behind`.
    """
    files = files_behind(_SCRIPTS / f"{script}.py", *modules)
    return digest([*files, *(Path(name).resolve() for name in beside)])


def digest(files: Iterable[Path]) -> str:
    """Return the first 16 hex digits of the SHA-256 of the paths, relative to the repository, and contents of files."""
    total = hashlib.sha256()
    for path in sorted(files):
        # A plug-in of another distribution lies elsewhere.
        place = os.path.relpath(path, _SCRIPTS.parent)
        total.update(f"{place} {_text_digest(path)}\n".encode())
    return total.hexdigest()[:16]


@cache
def _text_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@cache
def _imported(path: Path) -> tuple[Path, ...]:
    """The files that a module imports, found by a pattern: parsing all modules takes longer than planning 500 jobs.

    A line of a string that looks like an import counts as one: at worst there is a file too many, never one too few.
    """
    files: dict[Path, None] = {}
    for module, imported in _IMPORT.findall(path.read_text(encoding="utf-8")):
        items = [
            item.split()[0]
            for item in _COMMENT.sub("", imported).strip("()\n ").split(",")
            if item.strip()
        ]
        # `from a import b` may mean the module a or its submodule b.
        names = [module, *(f"{module}.{item}" for item in items)]
        files |= dict.fromkeys(file for file in map(_file, names) if file is not None)
    for folder in {file.parent for file in files}:
        files |= dict.fromkeys(_begun(folder))
    return tuple(files)


@cache
def _begun(package: Path) -> tuple[Path, ...]:
    """Return the __init__.py of a package and of those that contain it, which importing a module of it runs first."""
    outer = package.parent
    return (*(() if outer == _SCRIPTS else _begun(outer)), package / "__init__.py")


@cache
def _data(folder: Path) -> tuple[Path, ...]:
    """The files of a package that are not Python, those in its folders without modules included."""
    files = [
        path
        for path in folder.iterdir()
        if path.is_file() and path.suffix not in (".py", ".pyc", ".smk")
    ]
    inner = [
        path
        for path in folder.iterdir()
        if path.is_dir() and not any(path.glob("*.py"))
    ]
    return (
        *files,
        *(
            path
            for inner_folder in inner
            if inner_folder.name != "__pycache__"
            for path in _data(inner_folder)
        ),
    )


@cache
def _file(name: str) -> Path | None:
    """Return the file of a module, by its dotted name; None if there is none."""
    place = _SCRIPTS.joinpath(*name.split("."))
    return next(
        (
            path
            for path in (place.with_suffix(".py"), place / "__init__.py")
            if path.is_file()
        ),
        None,
    )
