"""The base class of every failure that is reported as a cause in one line instead of a traceback."""

import copyreg
import re
from pathlib import Path
from typing import Any


class Failure(RuntimeError):
    """Something outside this program went wrong; the message says what, where, and what would be right.

    `code`: a stable name for the kind of failure, for programs and tests; by default the class's name (`ServerDied`:
    server_died). `facts`: the values in the message.
    """

    def __init__(self, message: str = "", *, code: str = "", **facts: Any) -> None:
        super().__init__(message)
        self.code = code or _named(type(self))
        self.facts = facts

    def __reduce__(self) -> tuple[Any, ...]:
        """Make it again in another process from what it holds: a subclass may take other arguments."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class FileFailure(Failure):
    """Something is wrong with a file or a folder: `place`; `problem`: what, in words without its path."""

    def __init__(
        self, place: Path, problem: str, *, code: str = "", **facts: Any
    ) -> None:
        facts = {"path": place, **facts}
        super().__init__(f"{place}: {problem}", code=code, **facts)
        self.place = place
        self.problem = problem

    def within(self, folder: Path) -> str:
        """Return the message with the path relative to a folder that holds the place, or is it."""
        if self.place == folder:
            return self.problem
        return f"{self.place.relative_to(folder)}: {self.problem}"


def code_of(error: BaseException) -> str:
    """Return the stable name for the kind of an error: its code, or its class's name (`OSError`: os_error)."""
    return error.code if isinstance(error, Failure) else _named(type(error))


def _named(kind: type) -> str:
    return re.sub(
        r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", kind.__name__
    ).lower()
