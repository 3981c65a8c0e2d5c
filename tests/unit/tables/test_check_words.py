"""The words of a check are constant templates, and everything in their fields is a fact."""

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from string import Formatter
from types import ModuleType

import pytest

from kveval.tables.levels import checks_import, checks_level, checks_run
from kveval.tables.system import checks_system
from kveval.verdict import checks_campaign

MODULES = (checks_level, checks_run, checks_import, checks_system, checks_campaign)
FACTORIES = {"fail", "warn", "note"}


@dataclass(frozen=True)
class Function:
    """A function of a module of checks, with the module's other functions by name."""

    body: ast.FunctionDef
    others: dict[str, ast.FunctionDef]

    def outcomes(self) -> Iterator[ast.Call]:
        """The calls that make outcomes; the severity may be chosen, or have a name."""
        for node in ast.walk(self.body):
            if isinstance(node, ast.Call) and self._makes_outcomes(node.func):
                yield node

    def _makes_outcomes(self, function: ast.expr) -> bool:
        if isinstance(function, ast.IfExp):
            return self._makes_outcomes(function.body)
        if not isinstance(function, ast.Name):
            return False
        return function.id in FACTORIES or any(
            self._makes_outcomes(value)
            for value in self._assigned(function.id)
            if isinstance(value, ast.IfExp)
        )

    def templates(self, words: ast.expr) -> list[str]:
        """Return the literal texts that words are joined of. Raises ValueError if they are made of anything else."""
        if isinstance(words, ast.Constant) and isinstance(words.value, str):
            return [words.value]
        if isinstance(words, ast.BinOp) and isinstance(words.op, ast.Add):
            return self.templates(words.left) + self.templates(words.right)
        if isinstance(words, ast.IfExp):
            return self.templates(words.body) + self.templates(words.orelse)
        if isinstance(words, ast.Call) and (other := self._called(words)):
            returned = [
                node.value.elts[0]
                for node in ast.walk(other.body)
                if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple)
            ]
            return [text for value in returned for text in other.templates(value)]
        assigned = self._assigned(words.id) if isinstance(words, ast.Name) else []
        if not assigned:
            raise ValueError(f"no constant words: {ast.unparse(words)}")
        return [text for value in assigned for text in self.templates(value)]

    def facts(self, outcome: ast.Call) -> set[str]:
        """Return the names of an outcome's facts."""
        names = set()
        for keyword in outcome.keywords:
            if keyword.arg is not None:
                names.add(keyword.arg)
            elif isinstance(keyword.value, ast.Name):
                names |= self._keys(keyword.value.id)
        return names

    def _keys(self, name: str) -> set[str]:
        """Return the keys that a dictionary is given."""
        keys: set[str] = set()
        for node in ast.walk(self.body):
            if (
                isinstance(node, ast.Subscript)
                and isinstance(node.value, ast.Name)
                and isinstance(node.slice, ast.Constant)
                and node.value.id == name
            ):
                keys.add(str(node.slice.value))
        for value in self._assigned(name):
            if isinstance(value, ast.Dict):
                keys |= {
                    key.value for key in value.keys if isinstance(key, ast.Constant)
                }
            elif isinstance(value, ast.Call) and (other := self._called(value)):
                keys |= other._keys(name)
        return keys

    def _called(self, call: ast.Call) -> "Function | None":
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        return Function(self.others[name], self.others) if name in self.others else None

    def _assigned(self, name: str) -> list[ast.expr]:
        """Return everything that is assigned to a name, or added to it."""
        values = []
        for node in ast.walk(self.body):
            if isinstance(node, ast.Assign):
                targets = node.targets
            elif isinstance(node, ast.AugAssign | ast.AnnAssign):
                targets = [node.target]
            else:
                continue
            names = {
                part.id
                for target in targets
                for part in ast.walk(target)
                if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
            }
            if name in names and node.value is not None:
                values.append(node.value)
        return values


def functions_of(source: str) -> list[Function]:
    functions = {
        node.name: node
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef)
    }
    return [Function(body, functions) for body in functions.values()]


def without_fact(source: str) -> list[str]:
    """Return the fields of templates that have no fact. Raises ValueError for words that are no constant template."""
    missing = []
    for function in functions_of(source):
        for outcome in function.outcomes():
            words = "".join(function.templates(outcome.args[0]))
            fields = {field for _, field, _, _ in Formatter().parse(words) if field}
            missing += sorted(fields - function.facts(outcome))
    return missing


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_words_are_constant_and_every_field_has_a_fact(module: ModuleType) -> None:
    source = inspect.getsource(module)
    assert any(list(function.outcomes()) for function in functions_of(source))
    assert without_fact(source) == []


@pytest.mark.parametrize(
    "words",
    [
        'fail(f"{failed} requests failed")',
        'fail("{} requests failed".format(failed))',
        'fail("%d requests failed" % failed)',
        'fail("requests failed: " + error)',
        '(fail if failed > 9 else warn)(f"{failed} requests failed")',
    ],
)
def test_formatted_words_are_noticed(words: str) -> None:
    with pytest.raises(ValueError, match="no constant words"):
        without_fact(f"def errors(failed, error):\n    yield {words}")


def test_a_field_without_its_fact_is_noticed() -> None:
    source = """
def errors(failed):
    words = "{requests_failed} of {requests_total} requests failed"
    facts = {"requests_failed": failed}
    yield fail(words, **facts)
"""
    assert without_fact(source) == ["requests_total"]
