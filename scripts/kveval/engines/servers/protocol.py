"""The interface between an engine and the server program, on this host or in a pod."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from kveval.campaign.servers.software import ServerSoftware
from kveval.campaign.specification import Specification
from kveval.host.errors import Failure
from kveval.host.logs import LogForm


class DeploymentError(Failure):
    """The server did not start as declared, or stopped serving."""


class ServerDied(DeploymentError):
    """A process of the server has ended; the message quotes the line of its log that says why.

    Facts: `log`, its path on this host, and `offset`, the byte at which this deployment's output begins in it.
    """


class Fetch(Protocol):
    """Sends a request to one server and returns the body of a 2xx answer. Raises HttpError."""

    def __call__(
        self,
        path: str,
        method: str = "GET",
        body: object = None,
        timeout_s: float = 30.0,
    ) -> bytes:
        """Send the request."""


class Ask(Protocol):
    """Sends a request to one server and returns the decoded JSON, None for other answers. Raises HttpError."""

    def __call__(
        self,
        path: str,
        method: str = "GET",
        body: object = None,
        timeout_s: float = 30.0,
    ) -> Any:
        """Send the request."""


@dataclass(frozen=True)
class Completion:
    """A greedy answer: its tokens and, if requested, the likeliest at each place with their log-probabilities, nats."""

    prompt_tokens: int
    tokens: Sequence[str]
    likeliest: Sequence[Mapping[str, float]] = ()


class ServerProgram(Protocol):
    """How a server behaves: how it is started, queried and emptied, and what it reports about itself.

    Attributes:
        software: its names and arguments.
        health_path: answers 200 once the server accepts requests.
        model_path: answers 200 once the model is served.
        metrics_path: its Prometheus endpoint.
        log_form: how its log reports why it died.
        plugins: folder of modules that its process imports, None for none.
    """

    software: ServerSoftware
    health_path: str
    model_path: str
    metrics_path: str
    log_form: LogForm
    plugins: Path | None

    def command(self, environment: Path) -> list[str]:
        """Return the command that starts it from a virtual environment; the specification's arguments are appended."""

    def container_command(self, argv: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return command and arguments of its container, from the specification's arguments."""

    def distributions(self, build: str) -> Sequence[str]:
        """Return the names of the Python distributions that may contain it, the build's own first."""

    def is_part(self, title: str) -> bool:
        """Tell whether a process with this title is one that the server cannot serve without."""

    def publishes_events(self, argv: Sequence[str]) -> bool:
        """Tell whether it publishes events of blocks that its caches store and evict."""

    def shared_memory_bytes(self, specification: Specification) -> int:
        """Return the bytes of /dev/shm that it allocates: its queues, and the tier if it is kept there."""

    def version(self, ask: Ask) -> str:
        """Return the release that the server reports, "" if it does not."""

    def models(self, ask: Ask) -> list[str]:
        """Return the names of the models that it serves."""

    def generated(
        self, ask: Ask, served_model: str, prompt_tokens: int, timeout_s: float
    ) -> int:
        """Request a few tokens for a prompt of `prompt_tokens` tokens; return how many it generated."""

    def completed(
        self, ask: Ask, served_model: str, prompt: str, tokens: int, likeliest: int
    ) -> Completion | None:
        """Request the greedy continuation of a text by `tokens` tokens, with the `likeliest` most likely at each place.

        Returns None if the answer lacks its tokens.
        """

    def emptied(self, ask: Ask, *, tiers: bool = True) -> bool:
        """Request that it empties the device's cache and, with `tiers`, its own tiers; return False if it refuses."""
