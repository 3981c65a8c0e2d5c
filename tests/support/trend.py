"""Figures of the code, printed to be looked at: thermometers, and never targets."""

import ast
import io
import re
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support.paths import REPOSITORY, SCRIPTS, library_files

LIBRARY = SCRIPTS / "kveval"
_PCP_PARQUET = SCRIPTS / "pcp_parquet"
_COUNTED = (tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING)
_DEFINITIONS = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def lines() -> int:
    """Return the lines of Python in scripts/, without the tests that lie there."""
    files = [*SCRIPTS.glob("*.py"), *library_files()]
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)


def described(edges: Sequence[tuple[str, str]]) -> list[str]:
    """Return the figures in words; `edges`: every import of one module of kveval by another."""
    texts = _texts(LIBRARY)
    trees = {path: ast.parse(text) for path, text in texts.items()}
    tokens = sum(map(token_count, texts.values()))
    statements = sum(
        isinstance(node, ast.stmt) and not _is_docstring(node)
        for tree in trees.values()
        for node in ast.walk(tree)
    )
    public, rarely_used = public_names(trees)
    importers = defaultdict(set)
    for importer, other in edges:
        importers[other].add(importer)
    loose = sum(text.count("dict[str, Any]") for text in texts.values())
    sized = sum("cpu_blocks" in text for text in texts.values())
    tested = tested_modules()
    return [
        f"lines of Python in scripts/: {lines()}",
        f"kveval: {len(texts)} modules, {sum(len(modules) == 1 for modules in importers.values())} with one importer",
        f"kveval: {tokens} tokens, {tokens / statements:.1f} a statement",
        f"  of these plug-ins: {tokens_below(LIBRARY / 'plugins')}",
        f"pcp_parquet: {tokens_below(_PCP_PARQUET) - tokens_below(_PCP_PARQUET / 'tests')} tokens,"
        f" its tests: {tokens_below(_PCP_PARQUET / 'tests')}",
        f"tests: {tokens_below(REPOSITORY / 'tests')} tokens, benchmarks: {tokens_below(REPOSITORY / 'benchmarks')}",
        "docs: {} pages, {} words".format(*pages_and_words(REPOSITORY / "docs")),
        f"public classes and functions: {public}, used by at most one other module: {rarely_used}",
        f"dict[str, Any]: {loose}",
        f"modules that name cpu_blocks: {sized}",
        f"modules of kveval that tests import: {len(tested)}",
    ]


def tokens_below(folder: Path) -> int:
    """Return the tokens of all Python in a folder; 0 if there is no such folder."""
    return sum(map(token_count, _texts(folder).values()))


def pages_and_words(folder: Path) -> tuple[int, int]:
    """Return the number of Markdown pages directly in a folder, and of their words."""
    pages = [path.read_text(encoding="utf-8") for path in folder.glob("*.md")]
    return len(pages), sum(len(page.split()) for page in pages)


def token_count(text: str) -> int:
    """Return the tokens of Python code: names, operators, numbers, and strings that are no docstrings."""
    docstrings = {
        (node.lineno, node.col_offset)
        for node in ast.walk(ast.parse(text))
        if _is_docstring(node)
    }
    return sum(
        token.type in _COUNTED and token.start not in docstrings
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
    )


def public_names(trees: dict[Path, ast.Module]) -> tuple[int, int]:
    """Return the number of public classes and functions of modules, and of those used by at most one other module.

    By name: one that several modules define counts as used by all that use any of them.
    """
    defining: dict[str, set[Path]] = defaultdict(set)
    using: dict[str, set[Path]] = defaultdict(set)
    for path, tree in trees.items():
        for node in tree.body:
            if isinstance(node, _DEFINITIONS) and not node.name.startswith("_"):
                defining[node.name].add(path)
        for name in _names(tree):
            using[name].add(path)
    count = Counter[bool]()
    for name, modules in defining.items():
        count[len(using[name] - modules) <= 1] += len(modules)
    return count.total(), count[True]


def tested_modules() -> set[str]:
    """Return the modules of kveval that tests import by name."""
    pattern = re.compile(r"^\s*(?:from|import) (kveval[\w.]*)", re.MULTILINE)
    return {
        name
        for text in _texts(REPOSITORY / "tests").values()
        for name in pattern.findall(text)
    }


def _texts(root: Path) -> dict[Path, str]:
    return {path: path.read_text(encoding="utf-8") for path in root.rglob("*.py")}


def _names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names)


def _is_docstring(node: ast.AST) -> bool:
    """Whether a statement is a string alone: a docstring, or the description of an attribute."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
