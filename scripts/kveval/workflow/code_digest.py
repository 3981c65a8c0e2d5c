"""The code behind a script, as one digest: Snakemake does not see imports, so each rule has it as a parameter."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

_LIBRARY = Path(__file__).resolve().parent.parent
_PACKAGE = _LIBRARY.name
# `from X import A, B` with or without parentheses, and `import A, B`.
_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+([.\w]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n]+)|import[ \t]+([^\n]+))", flags=re.MULTILINE
)
_COMMENT = re.compile(r"#[^\n]*")


def files_behind(script: Path, *modules: str) -> list[Path]:
    """Return a script, the files of all modules of kveval that it imports, directly or not, and what lies beside them.

    `modules`: further ones, by their dotted names, that are imported by a name made at run time. What lies beside a
    module is every file of its package that is not Python: templates, schemas, styles; not those of packages that are
    only begun on the way to it. Imports inside functions count;
    those only for type checking do too. Raises FileNotFoundError for a module that does not exist.
    """
    found: dict[Path, None] = {}
    waiting = [script, *(_file(module.removeprefix(f"{_PACKAGE}.")) for module in modules)]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found[path] = None
            waiting += _imported(path)
    folders = {path.parent for path in found if path.name != "__init__.py"} - {script.parent}
    beside = {file for folder in folders for file in _data(folder)}
    return sorted({*found, *beside})


def code_behind(script: str, *modules: str, beside: Iterable[str] = ()) -> str:
    """Return the digest of a script, by its name in scripts/, and of all of kveval that it imports, and of `modules`.

    `beside`: further files of the repository that the script reads. As inputs, being local, they would keep a rule's
    jobs on this machine where a storage provider sends them elsewhere.

    As a parameter of a rule the digest makes an edited library rerun what rests on it. As inputs, 25 files a job, they
    would take most of the time that a plan needs. Raises as `files_behind`.
    """
    files = files_behind(_LIBRARY.parent / f"{script}.py", *modules)
    return digest([*files, *(Path(name).resolve() for name in beside)])


def digest(files: Iterable[Path]) -> str:
    """Return 16 hex digits of the SHA-256 of these files of the repository, their names in it and their texts."""
    total = hashlib.sha256()
    for path in sorted(files):
        total.update(f"{path.relative_to(_LIBRARY.parent.parent).as_posix()} {_text_digest(path)}\n".encode())
    return total.hexdigest()[:16]


@cache
def _text_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@cache
def _imported(path: Path) -> tuple[Path, ...]:
    """The files that a module imports; by its text, because parsing all modules takes a plan longer than 500 jobs do.

    A line of a text that reads like an import counts as one: a file too many behind a rule, never one too few.
    """
    names: dict[str, None] = {}
    for source, imported, modules in _IMPORT.findall(path.read_text(encoding="utf-8")):
        items = [
            item.split()[0] for item in _COMMENT.sub("", imported or modules).strip("()\n ").split(",") if item.strip()
        ]
        names |= dict.fromkeys(_from(source, items, path) if source else items)
    own = (name.removeprefix(f"{_PACKAGE}.") for name in names if name.startswith(f"{_PACKAGE}."))
    files = [file for name in own if (file := _existing(name))]
    # Importing a module runs the beginning of every package that it lies in.
    begun = [folder / "__init__.py" for file in files for folder in file.parents if folder.is_relative_to(_LIBRARY)]
    return tuple(dict.fromkeys([*files, *begun]))


def _from(source: str, items: Iterable[str], path: Path) -> Iterable[str]:
    """The modules an import names: `from a import b` may mean the module a or its submodule b."""
    name = source.lstrip(".")
    level = len(source) - len(name)
    home = path.parent.relative_to(_LIBRARY.parent).parts
    base = ".".join(home[: len(home) + 1 - level]) if level else ""
    module = ".".join(part for part in (base, name) if part)
    return [module, *(f"{module}.{item}" for item in items)]


@cache
def _data(folder: Path) -> tuple[Path, ...]:
    """The files of a package that are not Python, those in its folders without modules included."""
    files = [path for path in folder.iterdir() if path.is_file() and path.suffix not in (".py", ".pyc")]
    inner = [path for path in folder.iterdir() if path.is_dir() and not any(path.glob("*.py"))]
    return (*files, *(path for each in inner if each.name != "__pycache__" for path in _data(each)))


def _existing(name: str) -> Path | None:
    try:
        return _file(name)
    except FileNotFoundError:
        return None


def _file(name: str) -> Path:
    place = _LIBRARY.joinpath(*name.split("."))
    for path in (place.with_name(f"{place.name}.py"), place / "__init__.py"):
        if path.is_file():
            return path
    raise FileNotFoundError(f"{_PACKAGE} has no module {name}")
