"""Checks, their outcomes, and their form in tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import Any, Literal

import msgspec
import pandas as pd

from kveval.campaign.cell import Cell

Severity = Literal["note", "warn", "fail"]
COLUMNS: Mapping[Severity, str] = {
    "fail": "checks_failed",
    "warn": "checks_warned",
    "note": "checks_noted",
}
"""The columns with the names of a level's outcomes, `;`-joined."""
MESSAGES = "checks_messages"
"""The column with the outcomes themselves, as JSON."""
LEVEL_FAILED = "level_failed"
"""The check that a level fails which could not be measured."""
_OF_THROUGHPUT = ("steadiness",)


@dataclass(frozen=True)
class Outcome:
    """A check's result other than a plain pass.

    A `fail` disqualifies what was checked, a `warn` needs a look at it, a `note` is a limit of what it can show.
    `where`: the cell, or the place in words, of an outcome of whole tables and documents; that of a level is in the
    level's row.
    """

    name: str
    severity: Severity
    message: str
    where: Cell | str = ""


# `Check` adds the name.
fail, warn, note = (
    partial(Outcome, "", "fail"),
    partial(Outcome, "", "warn"),
    partial(Outcome, "", "note"),
)


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
        return [replace(outcome, name=self.name) for outcome in outcomes]


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
    """Return the outcomes as columns: the names by severity, and all of them as JSON; "" for none."""
    row = {}
    for severity, column in COLUMNS.items():
        names = [outcome.name for outcome in outcomes if outcome.severity == severity]
        row[column] = ";".join(names)
    row[MESSAGES] = msgspec.json.encode(outcomes).decode() if outcomes else ""
    return row


def outcomes_of(row: Mapping[Any, Any]) -> list[Outcome]:
    """Return the outcomes in a level's row. Raises msgspec.DecodeError for a row that `outcome_columns` did not make."""
    text = row.get(MESSAGES)
    return (
        msgspec.json.decode(text, type=list[Outcome])
        if isinstance(text, str) and text
        else []
    )


def failed_checks(row: Mapping[Any, Any], of_throughput: bool) -> list[str]:
    """Return the names of the failed checks that disqualify a level's throughput, or else its latencies.

    An unsteady rate does not disqualify latencies: they describe all states within the window.
    """
    names = [name for name in str(row[COLUMNS["fail"]] or "").split(";") if name]
    return [name for name in names if of_throughput or name not in _OF_THROUGHPUT]


def add_outcomes(
    table: pd.DataFrame, outcomes: Sequence[Sequence[Outcome]]
) -> pd.DataFrame:
    """Return a table of levels with each row's further outcomes added to its columns of checks."""
    rows = zip(table.to_dict("records"), outcomes, strict=True)
    joined = pd.DataFrame(
        [outcome_columns([*outcomes_of(row), *added]) for row, added in rows],
        index=table.index,
    )
    return table.assign(**{str(name): joined[name] for name in joined})
