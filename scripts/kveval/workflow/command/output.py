"""The output of a command: lines as they come, which its log keeps, or with --json one document."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from kveval.campaign.problems import ConfigError
from kveval.host.errors import Failure
from kveval.host.processes import Terminated, stop_signals_raise
from kveval.workflow.command.exits import Ended


@dataclass(frozen=True)
class Output:
    """The output of one command.

    `as_json`: whether standard output is one JSON document, and no lines; `log`: gets every line.
    """

    as_json: bool
    log: IO[str]

    @classmethod
    @contextlib.contextmanager
    def to(cls, log: Path, *, as_json: bool = False) -> Iterator[Output]:
        """Open the output of a command whose log is `log`, made anew with its folder; it also gets a Failure."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("w", encoding="utf-8") as file:
            try:
                yield cls(as_json, file)
            except ConfigError:
                raise
            except Failure as failure:
                print(f"FAILED: {failure}", file=file)
                raise

    def line(self, text: str = "") -> None:
        """Print a line, or several, at once."""
        print(text, file=self.log, flush=True)
        if not self.as_json:
            print(text, flush=True)

    def progress(self, text: str) -> None:
        """Say what is being done, on standard error, where it does not mix with the answer."""
        print(text, file=sys.stderr, flush=True)

    def document(self, values: Mapping[str, Any]) -> None:
        """Print the answer as JSON, if that was asked for."""
        if self.as_json:
            print_document(values)

    @contextlib.contextmanager
    def ended_by_signals(self) -> Iterator[None]:
        """Have SIGINT, SIGTERM and SIGHUP end the body, with all of its teardown, and then the command: 128 + number."""
        try:
            with stop_signals_raise():
                yield
        except Terminated as stopped:
            # A codec that the signal interrupts raises a new one, with the original as its cause.
            cause = stopped.__cause__
            name = str(cause if isinstance(cause, Terminated) else stopped)
            self.progress(f"stopped by {name}")
            print(f"stopped by {name}", file=self.log)
            raise Ended(128 + signal.Signals[name]) from None


def print_document(values: Mapping[str, Any]) -> None:
    """Print values as JSON; NaN is not valid there, and must be None."""
    document = {"schema": 1, **values}
    print(json.dumps(document, indent=2, allow_nan=False, default=str), flush=True)
