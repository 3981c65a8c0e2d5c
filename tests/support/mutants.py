"""Whether tests notice a change: small mistakes, made on purpose, in what decides most.

    python -m tests.support.mutants --seed 1 --count 100 --state FOLDER

makes them one after the other in a copy of the tree below FOLDER, each against the unit tests that say most
of what it changes, and prints those that no test noticed; tests/support/accepted_mutants.py has the reasons why some need
not be. FOLDER/results.jsonl has every result: the same command goes on where it was stopped, and once a module is changed
its mutants are made anew. Those that were not noticed are judged again with --retry, after tests were added, or by more of
them: --modules 12.
"""

from __future__ import annotations

import argparse
import ast
import copy
import functools
import importlib
import json
import math
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from operator import itemgetter
from pathlib import Path
from typing import TypeGuard

import grimp
import pytest
from tests.gates.forks import in_fork
from tests.support.accepted_mutants import REASONS
from tests.support.paths import REPOSITORY, SCRIPTS

from kveval.host.hashing import content_hash

GROUPS = {
    "configuration": ("configuration",),
    "store": ("store",),
    "verdict": ("verdict",),
    "report": ("report/build.py", "report/data", "report/facts", "report/result"),
    "curve": ("plugins/curve/simulation",),
}
"""Group -> its files and folders in scripts/kveval; mutants are drawn from the groups in turn."""
_LIBRARY = SCRIPTS / "kveval"
_CPU_LIMIT_S = 180
"""Processor time of the tests of one mutant: one that never ends is noticed by that."""
# What most tests import, besides the library: loaded once.
_LOADED = (
    "hypothesis",
    "numpy",
    "pandas",
    "scipy.stats",
    "msgspec",
    "pydantic",
    "yaml",
)
_MARK = "_mutant_ran"
_OPPOSITE: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
}


@dataclass(frozen=True)
class Mutant:
    """A change of one expression: `before` becomes `after` between two offsets, in bytes, of a file of the library."""

    file: str
    line: int
    start: int
    end: int
    before: str
    after: str
    of: str
    """A digest of the file that it is made in."""

    @property
    def name(self) -> str:
        """What tells it from all others."""
        return f"{self.file}:{self.of}:{self.start}:{self.after}"

    @property
    def module(self) -> str:
        """The name of the module that it is in."""
        return ".".join(Path(self.file).with_suffix("").parts[1:])

    @property
    def change(self) -> str:
        """What becomes of the expression, on one line."""
        before, after = (" ".join(text.split()) for text in (self.before, self.after))
        return f"{before} -> {after}"

    @property
    def reason(self) -> str | None:
        """Why no test has to notice it, None where one has to."""
        path = REPOSITORY / self.file
        line = path.read_text().splitlines()[self.line - 1].strip()
        file = path.relative_to(_LIBRARY).as_posix()
        return REASONS.get((file, line, self.change))

    def apply(self, source: bytes) -> bytes:
        """Return the module's source with it; the module notes when the expression is evaluated."""
        noting = f"(globals().__setitem__({_MARK!r}, True), {self.after})[1]"
        return source[: self.start] + noting.encode() + source[self.end :]


@dataclass(frozen=True)
class Result:
    """What became of a mutant: `noticed` by the test `by`, `survived`, or `not run` by any of the tests."""

    name: str
    outcome: str
    by: str
    seconds: float


# --- which changes there are


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Yield every change that is made in a file of the library."""
    source = path.read_bytes()
    lines = [0]
    for line in source.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    file = path.relative_to(REPOSITORY).as_posix()
    digest = content_hash(source.decode(), 8)
    # There `/` joins the parts of a path.
    kept = (ast.Div,) if b"from pathlib import" in source else ()
    for node, changed in _changes(ast.parse(source)):
        if isinstance(node, ast.BinOp) and isinstance(node.op, kept):
            continue
        start = lines[node.lineno - 1] + node.col_offset
        end = lines[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        before, after = source[start:end].decode(), ast.unparse(changed)
        yield Mutant(file, node.lineno, start, end, before, after, digest)


def _changes(tree: ast.Module) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield expressions that are evaluated, each with what it becomes.

    Left out are annotations, patterns, texts, decorators, and what only type checkers read.
    """
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.expr):
            yield from ((node, changed) for changed in _changed(node))
        elif isinstance(node, ast.Return) and _is_something(node.value):
            yield node.value, ast.Constant(None)
        elif isinstance(node, ast.If | ast.While) and not isinstance(
            node.test, ast.Compare | ast.BoolOp | ast.UnaryOp
        ):
            yield node.test, ast.UnaryOp(ast.Not(), node.test)
        waiting += _children(node)


def _is_something(value: ast.expr | None) -> TypeGuard[ast.expr]:
    return value is not None and not isinstance(value, ast.Constant)


def _children(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.JoinedStr | ast.pattern):
        return
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns", "decorator_list", "bases"):
            children = value if isinstance(value, list) else [value]
            yield from (child for child in children if isinstance(child, ast.AST))


def _changed(node: ast.expr) -> Iterator[ast.expr]:
    """Yield what an expression becomes: with the opposite operator, not negated, a constant beside its own."""
    match node:
        case ast.Compare(ops=[operator, *_]) | ast.BoolOp(op=operator):
            yield from _with_opposite(node, operator)
        case ast.BinOp(op=operator) if not _has_text(node):
            yield from _with_opposite(node, operator)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.IfExp():
            yield ast.IfExp(node.test, node.orelse, node.body)
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield ast.Constant(value + 1)
            yield ast.Constant(value - 1)


def _with_opposite(node: ast.expr, operator: ast.AST) -> Iterator[ast.expr]:
    opposite = _OPPOSITE.get(type(operator))
    if opposite is None:
        return
    changed = copy.deepcopy(node)
    if isinstance(changed, ast.Compare):
        changed.ops[0] = opposite()  # type: ignore[call-overload]
    else:
        changed.op = opposite()  # type: ignore[attr-defined]
    yield changed


def _has_text(node: ast.BinOp) -> bool:
    """Whether texts are joined, which nothing but an error comes of."""
    parts = ast.walk(node)
    return any(isinstance(part, ast.JoinedStr) or _is_text(part) for part in parts)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def drawn(seed: int, count: int) -> list[Mutant]:
    """Return mutants, drawn from the groups in turn; the first ones of a larger `count` are those of a smaller one.

    A change of a file changes nothing of the order of those of other files.
    """
    orders = []
    for places in GROUPS.values():
        files = [path for place in places for path in _files(_LIBRARY / place)]
        keyed = [pair for path in files for pair in _keyed(path, seed)]
        orders.append([mutant for _, mutant in sorted(keyed, key=itemgetter(0))])
    in_turn = [mutant for several in zip(*orders, strict=False) for mutant in several]
    return in_turn[:count]


def _keyed(path: Path, seed: int) -> Iterator[tuple[str, Mutant]]:
    """Yield the mutants of a file, each with a key by which it is drawn."""
    seen = Counter[str]()
    for mutant in mutants_of(path):
        text = f"{mutant.file}: {mutant.before} -> {mutant.after}"
        yield content_hash(f"{seed}, {seen[text]}, {text}"), mutant
        seen[text] += 1


def _files(place: Path) -> list[Path]:
    return [place] if place.is_file() else sorted(place.rglob("*.py"))


# --- which tests they are shown to


class Nearest:
    """The modules of unit tests that can reach a line of the library, by how much they say of what it says.

    A test of a function has its words: what it calls, the codes and keys that it expects. A word counts the more, the
    fewer tests have it.
    """

    def __init__(self) -> None:
        self._graph = grimp.build_graph("kveval", cache_dir=None)
        files = sorted((REPOSITORY / "tests" / "unit").rglob("test_*.py"))
        names = {path: path.relative_to(REPOSITORY).as_posix() for path in files}
        self._imports = {names[path]: _imports_of(path) for path in files}
        self._words = {names[path]: _words(path.read_text()) for path in files}
        self._counts = Counter(word for words in self._words.values() for word in words)

    def tests(self, mutant: Mutant, most: int) -> list[str]:
        """Return at most so many test modules, the one that says most of the mutant's surroundings first."""
        module = mutant.module
        # In importlib's terms the package's beginning is a module of its own.
        name = module.removesuffix(".__init__")
        reaching = {name, *self._graph.find_downstream_modules(name)}
        surroundings = _words(_surroundings(REPOSITORY / mutant.file, mutant.line))
        scores = {
            file: self._score(surroundings, self._words[file])
            for file, imports in self._imports.items()
            if imports & reaching
        }
        return sorted(scores, key=lambda file: (-scores[file], file))[:most]

    def _score(self, surroundings: frozenset[str], words: frozenset[str]) -> float:
        total = len(self._words)
        shared = (math.log(total / self._counts[word]) for word in surroundings & words)
        # Not the module that has everything.
        return sum(shared) / math.sqrt(len(words) + 1)


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"[A-Za-z_]\w{4,}", text))


def _surroundings(path: Path, line: int) -> str:
    """Return the innermost function or class that a line is in, else its statement, below the module's name."""
    source = path.read_text()
    tree = ast.parse(source)
    definitions = ast.FunctionDef | ast.ClassDef
    nodes = [node for node in ast.walk(tree) if isinstance(node, definitions)]
    around = [
        node
        for node in (*tree.body, *nodes)
        if node.lineno <= line <= (node.end_lineno or line)
    ]
    innermost = max(around, key=lambda node: node.lineno)
    return f"{path.stem} {ast.get_source_segment(source, innermost)}"


@functools.cache
def _imports_of(path: Path) -> frozenset[str]:
    """Return what a module of the tests imports, by itself and by what it imports of the tests."""
    names = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
    files = (REPOSITORY / f"{name.replace('.', '/')}.py" for name in names)
    shared = [file for file in files if "tests" in file.parts and file.is_file()]
    return frozenset(names).union(*map(_imports_of, shared))


# --- running tests in the copy


class FirstFailure:
    """A plugin of pytest that notes which test failed first."""

    name = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a test that failed."""
        if report.failed and not self.name:
            self.name = report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a module that could not be imported."""
        if report.failed and not self.name:
            self.name = report.nodeid


class Copy:
    """A copy of the tree, in which tests are run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        shutil.rmtree(self.folder, ignore_errors=True)
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        done = subprocess.run(
            listed, cwd=REPOSITORY, check=True, stdout=subprocess.PIPE
        )
        for name in filter(None, done.stdout.decode().split("\0")):
            source, target = REPOSITORY / name, self.folder / name
            if source.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)
        self._changed_s = int(time.time())

    def run(self, mutant: Mutant | None, tests: Sequence[str]) -> tuple[str, bool]:
        """Run tests until one fails; return its name, "" if none did, and whether the changed expression was evaluated."""
        if mutant is None:
            return self._tested(tests, "")
        path = self.folder / mutant.file
        source = path.read_bytes()
        try:
            self._write(path, mutant.apply(source))
            return self._tested(tests, mutant.module)
        finally:
            self._write(path, source)

    def _write(self, path: Path, source: bytes) -> None:
        """Write a module with a time of its own, by which Python knows that what it has compiled is outdated."""
        path.write_bytes(source)
        self._changed_s += 1
        os.utime(path, (self._changed_s, self._changed_s))

    def _tested(self, tests: Sequence[str], module: str) -> tuple[str, bool]:
        answer = self.folder / "answer.json"
        answer.unlink(missing_ok=True)
        child = in_fork(lambda: self._test(tests, module, answer))
        os.waitpid(child, 0)
        if not answer.exists():
            return "no end within the processor time that tests have", True
        name, ran = json.loads(answer.read_text())
        return str(name), bool(ran)

    def _test(self, tests: Sequence[str], module: str, answer: Path) -> None:
        os.setpgrp()
        limit_s = resource.getrlimit(resource.RLIMIT_CPU)[1]
        resource.setrlimit(resource.RLIMIT_CPU, (_CPU_LIMIT_S, limit_s))
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
        os.chdir(self.folder)
        with Path(self.folder, "output.txt").open("wb") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        for name in [
            name for name in sys.modules if name.startswith(("kveval", "tests"))
        ]:
            del sys.modules[name]
        sys.path[:0] = [str(self.folder), str(self.folder / "scripts")]
        failure = FirstFailure()
        options = [
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            f"--basetemp={self.folder}/tmp",
        ]
        status = pytest.main([*options, *tests], plugins=[failure])
        tested = sys.modules.get(module)
        name = failure.name or ("" if status == 0 else f"pytest: {status!r}")
        ran = tested is not None and hasattr(tested, _MARK)
        answer.write_text(json.dumps([name, ran]))


class Trial:
    """The mutants of a state folder: what became of them, and the copy in which the others are made."""

    def __init__(self, state: Path) -> None:
        self._results = state / "results.jsonl"
        state.mkdir(parents=True, exist_ok=True)
        self._copy = Copy(state / "tree")
        self._sound: dict[str, bool] = {}
        self.done = {result.name: result for result in self._read()}

    def _read(self) -> Iterator[Result]:
        if self._results.exists():
            for line in self._results.read_text().splitlines():
                yield Result(**json.loads(line))

    def judge(self, mutant: Mutant, tests: Sequence[str]) -> Result:
        """Return what became of a mutant. Raises RuntimeError where a test fails without any."""
        begin = time.monotonic()
        failed, ran = self._copy.run(mutant, tests)
        outcome = ("survived" if ran else "not run") if not failed else "noticed"
        if failed and not self._is_sound(failed):
            raise RuntimeError(f"{failed} fails without any mutant, too")
        result = Result(
            mutant.name, outcome, failed, round(time.monotonic() - begin, 1)
        )
        with self._results.open("a") as file:
            file.write(json.dumps(asdict(result)) + "\n")
        self.done[mutant.name] = result
        return result

    def _is_sound(self, test: str) -> bool:
        """Whether a test passes without a mutant."""
        if "::" not in test:
            return True
        if test not in self._sound:
            self._sound[test] = not self._copy.run(None, [test])[0]
        return self._sound[test]


def main() -> int:
    """Run from the command line; 0 if every mutant was noticed or has a reason."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument(
        "--modules", type=int, default=5, help="of tests, for each mutant"
    )
    parser.add_argument(
        "--retry", action="store_true", help="judge those that were not noticed again"
    )
    parser.add_argument(
        "--state", type=Path, required=True, help="folder of copy and results"
    )
    args = parser.parse_args()
    for name in _LOADED:
        importlib.import_module(name)
    mutants, nearest, trial = drawn(args.seed, args.count), Nearest(), Trial(args.state)
    # Now, as the copy is made: what is edited while they are judged has other lines.
    tests = {mutant: nearest.tests(mutant, args.modules) for mutant in mutants}
    reasons = {mutant: mutant.reason for mutant in mutants}
    for number, mutant in enumerate(mutants, start=1):
        result = trial.done.get(mutant.name)
        if result is None or (args.retry and result.outcome != "noticed"):
            result = trial.judge(mutant, tests[mutant])
        print(f"{number}/{len(mutants)} {result.outcome}: {_shown(mutant)}", flush=True)
    outcomes = {mutant: trial.done[mutant.name].outcome for mutant in mutants}
    print(*(f"{count} {what}" for what, count in Counter(outcomes.values()).items()))
    unnoticed = [mutant for mutant, outcome in outcomes.items() if outcome != "noticed"]
    for mutant in unnoticed:
        reason = reasons[mutant] or "needs a test, or a reason"
        print(f"{outcomes[mutant]}: {_shown(mutant)}: {reason}")
    return int(any(reasons[mutant] is None for mutant in unnoticed))


def _shown(mutant: Mutant) -> str:
    return f"{mutant.file}:{mutant.line}: {mutant.change}"


if __name__ == "__main__":
    sys.exit(main())
