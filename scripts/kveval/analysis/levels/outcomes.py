"""What a check says, and how that is written into tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pandas as pd

Severity = Literal["note", "warn", "fail"]


@dataclass(frozen=True)
class Outcome:
    """A check that did not simply pass.

    A `fail` disqualifies what was checked, a `warn` asks to be looked at, a `note` is a limit of what it can say.
    `where` names the place for checks of whole tables and documents; a level's outcome stands in the level's row.
    """

    name: str
    severity: Severity
    message: str
    where: str = ""


def columns(outcomes: Sequence[Outcome]) -> dict[str, str]:
    """Return the outcomes as columns: names by severity, `;`-joined, and all messages."""

    def names(severity: Severity) -> str:
        return ";".join(outcome.name for outcome in outcomes if outcome.severity == severity)

    return {
        "checks_failed": names("fail"),
        "checks_warned": names("warn"),
        "checks_noted": names("note"),
        "checks_messages": " | ".join(f"{outcome.name}: {outcome.message}" for outcome in outcomes),
    }


def add_outcomes(table: pd.DataFrame, outcomes: Sequence[Sequence[Outcome]]) -> pd.DataFrame:
    """Return a table of levels with each row's further outcomes added to its columns of checks."""
    result = table.copy()
    for name in columns([]):
        separator = " | " if name == "checks_messages" else ";"
        result[name] = [
            separator.join(part for part in (str(present), columns(added)[name]) if part)
            for present, added in zip(table[name], outcomes, strict=True)
        ]
    return result
