"""How programs are talked to: callables that send a request, so that no program's class knows where it runs."""

from typing import Any, Protocol


class Fetch(Protocol):
    """Sends a request to one program and returns the body of a 2xx answer. Raises HttpError."""

    def __call__(
        self,
        path: str,
        method: str = "GET",
        body: object = None,
        timeout_s: float = 30.0,
    ) -> bytes:
        """Send the request."""


class Ask(Protocol):
    """Sends a request to one program and returns the decoded JSON, None for other answers. Raises HttpError."""

    def __call__(
        self,
        path: str,
        method: str = "GET",
        body: object = None,
        timeout_s: float = 30.0,
    ) -> Any:
        """Send the request."""
