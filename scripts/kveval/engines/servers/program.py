"""A server beside vLLM, on this host: its process, and what the engine asks of it."""

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
    """A server beside vLLM cannot be started, is not what was asked for, or stopped serving."""


class SidecarPortTaken(SidecarError):
    """Another process has the sidecar's port."""


@dataclass
class Program:
    """A sidecar that runs: its process, its ports by placeholder, and where it writes."""

    name: str
    process: "subprocess.Popen[bytes]"
    ports: Mapping[str, int]
    log: Path
    argv: list[str]

    def require_alive(self) -> None:
        """Raise SidecarError, with the last words of its log, when the process is gone."""
        if self.process.poll() is not None:
            words = last_words(self.log)
            error = SidecarPortTaken if "ddress already in use" in words else SidecarError
            code = self.process.returncode
            message = f"{self.name} died ({exit_words(code)}){words}; see {self.log}"
            raise error(message, code="died", program=self.name, exit_code=code, log=self.log)


class Sidecar(Protocol):
    """A server beside vLLM, as the engine asks it."""

    program: Program
    version: str

    @property
    def metrics_url(self) -> str | None:
        """Prometheus endpoint to record, if it has one."""

    def ready(self) -> bool:
        """Tell whether it answers yet."""

    def identify(self, versions: Mapping[str, str]) -> None:
        """Learn the version; raise SidecarError when it is not the declared program or version."""

    def reported_bytes(self) -> int | None:
        """Bytes it says its tier in host memory has; None when it has no such tier."""

    def counters(self) -> dict[str, float]:
        """Read its counters, by name; units are in the names."""

    def reset(self, timeout_s: float) -> None:
        """Empty it, and wait until it is empty."""
