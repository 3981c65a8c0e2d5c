"""A sidecar, a server beside vLLM on this host: its process, and the interface that the engine uses."""

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kveval.host.errors import Failure
from kveval.host.logs import exit_words, last_words

HOST = "127.0.0.1"
POLL_S = 0.1


class SidecarError(Failure):
    """A server beside vLLM cannot be started, is not the declared one, or stopped serving."""


class SidecarPortTaken(SidecarError):
    """Another process uses the sidecar's port."""


@dataclass
class Program:
    """A running sidecar: its process, its ports by placeholder, its log."""

    name: str
    process: "subprocess.Popen[bytes]"
    ports: Mapping[str, int]
    log: Path
    argv: list[str]

    def require_alive(self) -> None:
        """Raise SidecarError, with the decisive line of its log, if the process has ended."""
        if self.process.poll() is not None:
            words = last_words(self.log)
            error = SidecarPortTaken if "ddress already in use" in words else SidecarError
            code = self.process.returncode
            message = f"{self.name} died ({exit_words(code)}){words}; see {self.log}"
            raise error(message, code="died", program=self.name, exit_code=code, log=self.log)


class Sidecar(Protocol):
    """A server beside vLLM, as the engine uses it. The methods raise SidecarError."""

    program: Program
    version: str

    @property
    def metrics_url(self) -> str | None:
        """Prometheus endpoint to record, if it has one."""

    def ready(self) -> bool:
        """Tell whether it answers yet."""

    def identify(self, versions: Mapping[str, str]) -> None:
        """Read the version; raise SidecarError if it is not the declared program or version."""

    def reported_bytes(self) -> int | None:
        """Return the bytes of its tier in host memory, as it reports them; None if it has no such tier."""

    def counters(self) -> dict[str, float]:
        """Return its counters by name; the names contain the units."""

    def reset(self, timeout_s: float) -> None:
        """Empty it, and wait up to `timeout_s` seconds until it is empty."""
