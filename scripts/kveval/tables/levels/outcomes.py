"""Checks, their outcomes, and their form in tables.

Nothing of pandas or numpy is imported: what only reads outcomes of a table is quick.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from kveval.campaign.cell import Cell
from kveval.host.findings import Finding, fill

if TYPE_CHECKING:
    import pandas as pd

Severity = Literal["note", "warn", "fail"]
COLUMNS: Mapping[Severity, str] = {
    "fail": "checks_failed",
    "warn": "checks_warned",
    "note": "checks_noted",
}
"""The columns with the codes of a level's outcomes, `;`-joined."""
FINDINGS = "checks_findings"
"""The column with the outcomes themselves, as JSON."""
LEVEL_FAILED = "level_failed"
"""The check that a level fails which could not be measured."""
_OF_THROUGHPUT = ("steadiness",)


@dataclass(frozen=True)
class Outcome(Finding):
    """A check's result other than a plain pass.

    Attributes:
        code: the check's name.
        severity: `fail` disqualifies what was checked, `warn` needs a look at it, `note` is a limit of what it can show.
        facts: texts, numbers, truth values, and lists of them; NaN is not known.
        words: a constant template for `fill`. What comes from outside is a fact, and not in it.
        where: the cell, or the place in words, of an outcome of whole tables and documents; that of a level is in the
            level's row.
    """

    severity: Severity
    words: str = ""
    where: Cell | str = ""

    @property
    def message(self) -> str:
        """The words with the facts in them."""
        return fill(self.words, self.facts)


def _outcome(
    severity: Severity, words: str, where: Cell | str = "", /, **facts: Any
) -> Outcome:
    """Return an outcome for `Check` to add the code. Raises TypeError for a fact that is none, see `Outcome`."""
    plain = {name: _plain(value) for name, value in facts.items()}
    return Outcome("", severity, plain, words, where)


fail, warn, note = (
    partial(_outcome, "fail"),
    partial(_outcome, "warn"),
    partial(_outcome, "note"),
)


def _plain(value: Any) -> Any:
    """Return a fact in types of Python, not of numpy; None is not known."""
    if value is None:
        return math.nan
    plain = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(plain, list | tuple):
        return [_plain(part) for part in plain]
    if not isinstance(plain, str | int | float):
        raise TypeError(f"{plain!r} is neither text nor number nor a list of them")
    return plain


@dataclass(frozen=True)
class Check:
    """A check, named after its function; `rules`: those of `verdict_tables.RULES` that it enforces."""

    function: Callable[[Any], Outcome | Iterable[Outcome] | None]
    rules: tuple[str, ...]

    @property
    def name(self) -> str:
        """The check's name in every table."""
        return self.function.__name__

    def __call__(self, subject: Any) -> list[Outcome]:
        """Return what the check finds in its subject, nothing if all is well."""
        result = self.function(subject) or ()
        outcomes = [result] if isinstance(result, Outcome) else result
        return [replace(outcome, code=self.name) for outcome in outcomes]


def check(
    *rules: str,
) -> Callable[[Callable[[Any], Outcome | Iterable[Outcome] | None]], Check]:
    """Mark a function as a check that enforces these rules."""
    return lambda function: Check(function, rules)


def warned(levels: pd.DataFrame, named: Check) -> pd.Series[bool]:
    """Return for each level of a table whether a check warns of it."""
    names = levels[COLUMNS["warn"]].fillna("").str.split(";")
    return names.map(lambda given: named.name in given).astype(bool)


def checks_in(*modules: ModuleType) -> tuple[Check, ...]:
    """Return the checks that modules define, in their order."""
    return tuple(
        member
        for module in modules
        for member in vars(module).values()
        if isinstance(member, Check)
    )


def run_checks(checks: Iterable[Check], subject: Any) -> list[Outcome]:
    """Run checks on a subject and return their outcomes; checks that passed have none."""
    return [outcome for function in checks for outcome in function(subject)]


def outcome_columns(outcomes: Sequence[Outcome]) -> dict[str, str]:
    """Return the outcomes as columns: the codes by severity, and all of them as JSON; "" for none."""
    row = {}
    for severity, column in COLUMNS.items():
        codes = [outcome.code for outcome in outcomes if outcome.severity == severity]
        row[column] = ";".join(codes)
    row[FINDINGS] = _outcomes_text(outcomes) if outcomes else ""
    return row


def _outcomes_text(outcomes: Sequence[Outcome]) -> str:
    text = msgspec.json.encode(outcomes).decode()
    # Few outcomes have a fact that is not finite.
    if _NULL not in text:
        return text
    stored = [replace(outcome, facts=_for_json(outcome.facts)) for outcome in outcomes]
    return msgspec.json.encode(stored).decode()


def outcomes_of(row: Mapping[Any, Any]) -> list[Outcome]:
    """Return the outcomes in a level's row.

    Raises msgspec.DecodeError for a row that `outcome_columns` did not make.
    """
    text = row.get(FINDINGS)
    if not isinstance(text, str) or not text:
        return []
    outcomes = _OUTCOMES.decode(text)
    if _NULL not in text:
        return outcomes
    return [replace(outcome, facts=_with_nan(outcome.facts)) for outcome in outcomes]


def facts_text(facts: Mapping[str, Any]) -> str:
    """Return facts as a cell of a table, as JSON: NaN is null, and infinity a number beyond the range of floats."""
    return msgspec.json.encode(_for_json(facts)).decode()


def read_facts(text: str) -> dict[str, Any]:
    """Return the facts in a cell that `facts_text` made."""
    return _with_nan(_FACTS.decode(text))


_NULL = "null"
_INFINITY, _MINUS_INFINITY = msgspec.Raw(b"1e999"), msgspec.Raw(b"-1e999")
# `float` reads a number beyond its range as infinity; msgspec refuses it.
_OUTCOMES = msgspec.json.Decoder(list[Outcome], float_hook=float)
_FACTS = msgspec.json.Decoder(dict[str, Any], float_hook=float)


def _for_json(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _json_value(value) for name, value in facts.items()}


def _json_value(value: Any) -> Any:
    """Return a fact as msgspec is to write it: it writes NaN as null, and would write infinity so."""
    if isinstance(value, list):
        return [_json_value(part) for part in value]
    if isinstance(value, float) and math.isinf(value):
        return _INFINITY if value > 0 else _MINUS_INFINITY
    return value


def _with_nan(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _nan_if_null(value) for name, value in facts.items()}


def _nan_if_null(value: Any) -> Any:
    if isinstance(value, list):
        return [_nan_if_null(part) for part in value]
    return math.nan if value is None else value


def failed_checks(row: Mapping[Any, Any], of_throughput: bool) -> list[str]:
    """Return the names of the failed checks that disqualify a level's throughput and goodput, or else its latencies.

    An unsteady rate does not disqualify latencies: they describe all states within the window.
    """
    names = [name for name in str(row[COLUMNS["fail"]] or "").split(";") if name]
    return [name for name in names if of_throughput or name not in _OF_THROUGHPUT]


def add_outcomes(
    table: pd.DataFrame, outcomes: Sequence[Sequence[Outcome]]
) -> pd.DataFrame:
    """Return a table of levels with each row's further outcomes added to its columns of checks."""
    columns: dict[str, list[str]] = {name: [] for name in (*COLUMNS.values(), FINDINGS)}
    for row, added in zip(table.to_dict("records"), outcomes, strict=True):
        for name, text in outcome_columns([*outcomes_of(row), *added]).items():
            columns[name].append(text)
    return table.assign(**columns)
