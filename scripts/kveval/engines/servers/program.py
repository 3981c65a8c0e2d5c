"""A sidecar, a server beside vLLM: the interface that the engines use, and its process on this host."""

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

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
    """The process of a sidecar on this host; `metrics_url`: Prometheus endpoint to record, if it has one."""

    name: str
    process: "subprocess.Popen[bytes]"
    log: Path
    metrics_url: str | None = None

    def require_alive(self) -> None:
        """Raise SidecarError, with the decisive line of its log, if the process has ended."""
        if self.process.poll() is not None:
            words = last_words(self.log)
            error = (
                SidecarPortTaken if "ddress already in use" in words else SidecarError
            )
            code = self.process.returncode
            message = f"{self.name} died ({exit_words(code)}){words}; see {self.log}"
            raise error(
                message, code="died", program=self.name, exit_code=code, log=self.log
            )


class Sidecar:
    """A server beside vLLM, on this host or in a pod. The methods raise SidecarError."""

    def __init__(self, name: str, argv: list[str], log: object) -> None:
        self.name, self.argv, self.log = name, argv, log
        self.version = ""

    def ready(self) -> bool:
        """Tell whether it answers yet."""
        return True

    def identify(self, versions: Mapping[str, str]) -> None:
        """Read the version; raise SidecarError if it is not the declared program or version."""

    def reported_bytes(self) -> int | None:
        """Return the bytes of its tier in host memory, as it reports them; None if it has no such tier."""
        return None

    def counters(self) -> dict[str, float]:
        """Return its counters by name; the names contain the units."""
        return {}

    def reset(self, timeout_s: float) -> None:
        """Empty it, and wait up to `timeout_s` seconds until it is empty."""
