"""The base class of every failure that is reported as a cause in one line instead of a traceback."""

import re
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


def code_of(error: BaseException) -> str:
    """Return the stable name for the kind of an error: its code, or its class's name (`OSError`: os_error)."""
    return error.code if isinstance(error, Failure) else _named(type(error))


def _named(kind: type) -> str:
    return re.sub(
        r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", kind.__name__
    ).lower()
