"""The questions that an engine has for the program that serves, on this host or in a pod."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from kveval.host.logs import LogForm
from kveval.spec.servers.software import ServerSoftware
from kveval.spec.specification import Specification


class Ask(Protocol):
    """Sends a request to one server and returns the decoded JSON, None for other answers. Raises HttpError."""

    def __call__(self, path: str, method: str = "GET", body: object = None, timeout_s: float = 30.0) -> Any:
        """Ask."""


@dataclass(frozen=True)
class Completion:
    """A greedy answer: its tokens and, if asked for, at each place the likeliest with their log-probabilities, nats."""

    prompt_tokens: int
    tokens: Sequence[str]
    likeliest: Sequence[Mapping[str, float]] = ()


class ServerProgram(Protocol):
    """How a server behaves: how it is started, asked, emptied, and what it says of itself.

    Attributes:
        software: its names and arguments.
        health_path: answers 200 once the server takes requests.
        model_path: answers 200 once the model is served.
        metrics_path: its Prometheus endpoint.
        log_form: how its log tells of its death.
        plugins: folder of modules that its process imports, None for none.
    """

    software: ServerSoftware
    health_path: str
    model_path: str
    metrics_path: str
    log_form: LogForm
    plugins: Path | None

    def command(self, environment: Path) -> list[str]:
        """Return what starts it from a virtual environment; the specification's arguments follow."""

    def container_command(self, argv: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return command and arguments of its container, from the specification's arguments."""

    def distributions(self, build: str) -> Sequence[str]:
        """Return the names of the Python distributions that may hold it, the build's own first."""

    def is_part(self, title: str) -> bool:
        """Tell whether a process that calls itself so is one without which the server serves nothing."""

    def publishes_events(self, argv: Sequence[str]) -> bool:
        """Tell whether it publishes what its caches take in and lose."""

    def shared_memory_bytes(self, specification: Specification) -> int:
        """Return the bytes of /dev/shm that it allocates: its queues, and the tier where it is kept there."""

    def version(self, ask: Ask) -> str:
        """Return the release that answers, "" where it does not say."""

    def models(self, ask: Ask) -> list[str]:
        """Return the names of the models it serves."""

    def generated(self, ask: Ask, served_model: str, prompt_tokens: int, timeout_s: float) -> int:
        """Have it generate a few tokens from a prompt of `prompt_tokens`; return how many it did."""

    def completed(self, ask: Ask, served_model: str, prompt: str, tokens: int, likeliest: int) -> Completion | None:
        """Have it continue a text by `tokens` tokens, the likeliest each time, and tell so many of the `likeliest`.

        None where it does not tell its tokens.
        """

    def emptied(self, ask: Ask, *, tiers: bool = True) -> bool:
        """Have it empty the device's cache and, with `tiers`, those of its own; False when it refuses for now."""
