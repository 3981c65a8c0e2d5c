"""The structure of the library, measured.

`python -m tests.support.structure` prints it with its trend, and fails where a rule is broken;
`python -m tests.support.structure nested PACKAGE` lists nested expressions, `nested --update` notes that there are fewer.
"""

import ast
import functools
import graphlib
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

import grimp
from tests.support import nesting, trend
from tests.support.paths import PACKAGES, SCRIPTS, library_files

LIBRARY = SCRIPTS / "kveval"
_BELOW_ENGINES = (
    "host",
    "load",
    "pcp",
    "campaign",
    "stacks",
    "configuration",
    "store",
)
# What reads files and knows neither servers nor configuration.
_FILES = ("host", "load", "campaign", "store")
_ANALYSIS = ("conditions", "estimators", "tables", "verdict")
ALLOWED: Mapping[str, Sequence[str]] = {
    "host": (),
    "load": ("host",),
    "pcp": ("host",),
    "campaign": ("host", "load"),
    "stacks": ("host", "load", "campaign"),
    "configuration": ("host", "load", "campaign", "stacks"),
    # A stored run names its cell.
    "store": ("host", "campaign"),
    "engines": _BELOW_ENGINES,
    "conditions": _BELOW_ENGINES,
    "estimators": (),
    "tables": (*_FILES, "pcp", "estimators"),
    "verdict": (*_FILES, "estimators", "tables"),
    "report": (*_FILES, "estimators", "tables", "verdict"),
    # A search for levels judges each level at once, with the checks of the report.
    "measure": (*_BELOW_ENGINES, "engines", *_ANALYSIS),
    "workflow": (
        *_BELOW_ENGINES,
        "engines",
        *_ANALYSIS,
        "report",
        "measure",
    ),
    # The command's beginning.
    "__main__": ("workflow",),
    # What stands beside the core; none imports another.
    "plugins": (
        *_BELOW_ENGINES,
        "engines",
        *_ANALYSIS,
        "report",
        "measure",
        "workflow",
    ),
}
"""What each package may import of the others; docs/architecture.md draws it."""


_CONFIGURED = "speaks of keys of the configuration"
_FOREIGN = "reads results of others, which are vLLM's"
VLLM_NAMED: Mapping[str, str] = {
    "stacks/vllm.py": "vLLM",
    "stacks/vllm_arms.py": "vLLM: what arms add",
    "stacks/vllm_memory.py": "vLLM: what it leaves of a GPU to its cache",
    "stacks/vllm_settings.py": "vLLM: what its arguments and variables set",
    "stacks/vllm_wire.py": "vLLM: names on the wire and in the log",
    "plugins/attach/plugin.py": "the table of vLLM's recipes",
    "engines/local/plugin/kveval_host_offload.py": "runs inside vLLM",
    "engines/local/plugin/kveval_start.py": "runs inside vLLM",
    "engines/local/plugin/kveval_weights.py": "runs inside vLLM",
    "engines/local/plugin/sitecustomize.py": "runs inside vLLM",
    "stacks/lmcache.py": "the server that LMCache stands beside",
    "stacks/picker.py": "a key of llm-d's endpoint picker",
    "configuration/deployment.py": _CONFIGURED,
    "engines/kubernetes/replicas.py": "the name of a container of llm-d's router",
    "campaign/campaign_file.py": _CONFIGURED,
    "campaign/catalogue.py": _CONFIGURED,
    "campaign/imports.py": _CONFIGURED,
    "campaign/release.py": _CONFIGURED,
    "workflow/compared.py": _CONFIGURED,
    "plugins/imports/describe.py": _FOREIGN,
    "plugins/imports/settings.py": _FOREIGN,
    "plugins/imports/forms.py": _FOREIGN,
    "plugins/imports/sheet.py": _FOREIGN,
    "load/reports/vllm_bench.py": _FOREIGN,
    "host/setup/ready.py": "the modules that an environment of the server must have",
    "plugins/imports/command.py": "speaks of a column of a sheet of results",
}
"""Modules that name vLLM in a string, and why; whatever else depends on it belongs into the adapter."""


@functools.cache
def imports() -> list[tuple[str, str]]:
    """Return every import of one module of our packages by another, those for type checking alone included."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    return [
        (importer, other)
        for importer in graph.modules
        for other in graph.find_modules_directly_imported_by(importer)
    ]


def forbidden(edges: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the imports that ALLOWED does not have, those of a package that it does not know, and those of kveval
    by pcp_parquet, which is a distribution of its own.
    """
    return [edge for edge in edges if not _is_allowed(*edge)]


def _is_allowed(importer: str, other: str) -> bool:
    if _part(importer, 0) != _part(other, 0):
        return _part(importer, 0) == "kveval"
    if _part(importer, 0) != "kveval":
        return True
    source, target = _part(importer, 1), _part(other, 1)
    if source == target == "plugins":
        return _part(importer, 2) == _part(other, 2) or not _part(other, 2)
    return source == target or not target or target in ALLOWED.get(source, ())


def circles(edges: Sequence[tuple[str, str]]) -> list[Sequence[str]]:
    """Return a circle of modules or packages for every package whose members import each other in one."""
    inside: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for importer, other in edges:
        common = 0
        while _part(importer, common) == _part(other, common) != "":
            common += 1
        if _part(importer, common) and _part(other, common):
            inside[".".join(importer.split(".")[:common])][_part(importer, common)].add(
                _part(other, common)
            )
    result = []
    for package, members in sorted(inside.items()):
        try:
            graphlib.TopologicalSorter(members).prepare()
        except graphlib.CycleError as error:
            result.append([f"{package}.{name}" for name in error.args[1]])
    return result


@functools.cache
def _trees() -> dict[str, ast.Module]:
    """The syntax of each module, by its path below kveval, or below scripts for another package."""
    trees = {}
    for path in library_files():
        root = LIBRARY if path.is_relative_to(LIBRARY) else SCRIPTS
        name = path.relative_to(root).as_posix()
        trees[name] = ast.parse(path.read_text(encoding="utf-8"))
    return trees


def packages() -> list[str]:
    """Return the names of the packages at the top of kveval."""
    return sorted(path.parent.name for path in LIBRARY.glob("*/__init__.py"))


@functools.cache
def naming_vllm() -> list[str]:
    """Return the modules that have the word vLLM in a string that is no docstring."""
    return sorted(
        path
        for path, tree in _trees().items()
        if any("vllm" in text.lower() for text in _strings(tree))
    )


@functools.cache
def repeated_classes() -> list[str]:
    """Return the names that more than one class has."""
    nodes = (node for tree in _trees().values() for node in ast.walk(tree))
    names = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    return sorted(name for name, count in names.items() if count > 1)


def indirect_docstrings() -> list[str]:
    """Return where a docstring opens with a question's word instead of with what the thing is or does."""
    return sorted(
        f"{path}: {text.splitlines()[0]}"
        for path, tree in _trees().items()
        for node in ast.walk(tree)
        if isinstance(
            node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        )
        and (text := ast.get_docstring(node))
        and text.split()[0] in ("What", "Which", "From")
    )


def _strings(tree: ast.AST) -> Iterator[str]:
    spoken = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node not in spoken:
            if isinstance(node.value, bytes):
                yield node.value.decode(errors="replace")
            elif isinstance(node.value, str):
                yield node.value


def _part(module: str, depth: int) -> str:
    parts = module.split(".")
    return parts[depth] if depth < len(parts) else ""


def main(arguments: Sequence[str] = ()) -> int:
    """Print the structure; return 1 if a rule is broken."""
    if arguments:
        return _nested(arguments)
    # grimp looks for the library where Python does.
    sys.path.insert(0, str(SCRIPTS))
    edges = imports()
    wrong, round_, twice = forbidden(edges), circles(edges), repeated_classes()
    print(
        f"imports: {len(edges)}, against the direction: {len(wrong)}, circles: {len(round_)}"
    )
    for importer, other in wrong:
        print(f"  {importer} imports {other}")
    for circle in round_:
        print(f"  {' -> '.join(circle)}")
    print(f"modules that say vLLM: {len(naming_vllm())} ({', '.join(naming_vllm())})")
    print(f"class names of more than one class: {len(twice)}")
    nested = nesting.counted()
    print(f"nested expressions: {sum(nested.values())}, left: {nesting.LEFT.name}")
    print("trend, without a target:")
    for line in trend.described(edges):
        print(f"  {line}")
    unnamed = set(naming_vllm()) ^ VLLM_NAMED.keys()
    return int(bool(wrong or round_ or twice or unnamed or nested != nesting.left()))


def _nested(arguments: Sequence[str]) -> int:
    command, *named = arguments
    if command != "nested" or len(named) > 1:
        print("usage: python -m tests.support.structure [nested [PACKAGE | --update]]")
        return 2
    if named == ["--update"]:
        print(nesting.update())
        return int(nesting.counted() != nesting.left())
    print(*nesting.places(*named), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
