"""The output of a command: lines as they come, which its log keeps, or with --json one document."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any


@dataclass(frozen=True)
class Output:
    """The output of one command.

    `as_json`: whether standard output is one JSON document, and no lines; `log`: gets every line.
    """

    as_json: bool
    log: IO[str]

    @classmethod
    @contextmanager
    def to(cls, log: Path, *, as_json: bool = False) -> Iterator[Output]:
        """Open the output of a command whose log is `log`, made anew with its folder."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("w", encoding="utf-8") as file:
            yield cls(as_json, file)

    def line(self, text: str = "") -> None:
        """Print a line, or several, at once."""
        print(text, file=self.log, flush=True)
        if not self.as_json:
            print(text, flush=True)

    def progress(self, text: str) -> None:
        """Say what is being done, on standard error, where it does not mix with the answer."""
        print(text, file=sys.stderr, flush=True)

    def document(self, values: dict[str, Any]) -> None:
        """Print the answer as JSON, if that was asked for; NaN is not valid there, and must be None."""
        if self.as_json:
            print(json.dumps({"schema": 1, **values}, indent=2, allow_nan=False))
