"""Expressions that take more than one thought: a conditional expression in another, a comprehension in another.

nested.txt has how many are left in each package; it only ever shrinks.
"""

import ast
import functools
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support.paths import SCRIPTS, library_files

LEFT = Path(__file__).with_name("nested.txt")
_COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


def nested(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield every conditional expression and every comprehension that lies within another of its kind.

    However deep it lies, in a lambda or in the arguments of a call too; a generator expression is a comprehension.
    """
    yield from _inside(tree, conditional=False, comprehension=False)


def _inside(
    node: ast.AST, *, conditional: bool, comprehension: bool
) -> Iterator[ast.expr]:
    if isinstance(node, ast.IfExp):
        if conditional:
            yield node
        conditional = True
    elif isinstance(node, _COMPREHENSIONS):
        if comprehension:
            yield node
        comprehension = True
    for child in ast.iter_child_nodes(node):
        yield from _inside(child, conditional=conditional, comprehension=comprehension)


@functools.cache
def _nested_in(text: str) -> Sequence[ast.expr]:
    """The nested expressions of a module."""
    return tuple(nested(ast.parse(text)))


def places(package: str = "", root: Path = SCRIPTS) -> list[str]:
    """Return `path:line: kind` of each in a package and what is below it, or in all scripts.

    `package`: tables, kveval.tables, kveval/tables/levels, ...; "scripts": those beside the library.
    """
    name = package.replace("/", ".").removeprefix("scripts.")
    return [
        f"scripts/{path.relative_to(root).as_posix()}:{node.lineno}: nested {_kind(node)}"
        for path in sorted(_files(root))
        if _belongs(_package(path, root), name)
        for node in _nested_in(path.read_text(encoding="utf-8"))
    ]


def counted(root: Path = SCRIPTS) -> dict[str, int]:
    """Return how many each package has, its subpackages apart; packages without any are left out."""
    packages = Counter[str]()
    for path in _files(root):
        found = _nested_in(path.read_text(encoding="utf-8"))
        packages[_package(path, root)] += len(found)
    return {package: count for package, count in sorted(packages.items()) if count}


def left() -> dict[str, int]:
    """Return what nested.txt says."""
    lines = LEFT.read_text(encoding="utf-8").splitlines()
    entries = [line.split() for line in lines if line and not line.startswith("#")]
    return {package: int(count) for package, count in entries}


def update() -> str:
    """Write nested.txt again and return what was done; refuse where there are more of them than before."""
    before, now = left(), counted()
    if sum(now.values()) > sum(before.values()):
        more = [name for name, count in now.items() if count > before.get(name, 0)]
        return f"not written: more than before in {', '.join(more)}"
    # Blank lines, so that git merges what two branches change.
    head = LEFT.read_text(encoding="utf-8").partition("\n\n")[0]
    entries = [f"{package} {count}" for package, count in now.items()]
    LEFT.write_text("\n\n".join([head, *entries]) + "\n", encoding="utf-8")
    return f"{sum(before.values())} before, {sum(now.values())} now"


def _files(root: Path) -> list[Path]:
    return [*root.glob("*.py"), *library_files(root)]


def _package(path: Path, root: Path) -> str:
    return ".".join(path.parent.relative_to(root).parts) or "scripts"


def _belongs(package: str, name: str) -> bool:
    """Whether a package is the one named, with or without kveval, or below it; "" names all."""
    return not name or any(
        f"{package}.".startswith(f"{full}.") for full in (name, f"kveval.{name}")
    )


def _kind(node: ast.expr) -> str:
    return "conditional" if isinstance(node, ast.IfExp) else "comprehension"
