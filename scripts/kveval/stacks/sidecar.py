"""A program beside the servers: LMCache's server, a store, a picker; the class that each one fills in."""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Self

from kveval.host.errors import Failure

HOST = "127.0.0.1"
POLL_S = 0.1


class SidecarError(Failure):
    """A program beside the servers cannot be started, is not the declared one, or stopped serving."""


class SidecarPortTaken(SidecarError):
    """Another process uses the sidecar's port."""


class Sidecar:
    """A program beside the servers. An instance is one that runs, on this host or in a pod.

    The methods of a running one raise SidecarError.

    Attributes:
        name: its name among the programs of a specification, and in its placeholders: {NAME_host}, {NAME_port}.
        title: the name in sentences.
        executable: the program that its command line begins with.
        install: how to get that on a host that lacks it.
        replaceable: its arguments that a scenario may replace, because nothing else is computed from them.
        metrics_port: placeholder of the port at which it has a Prometheus endpoint, /metrics; "" without one.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    executable: ClassVar[str]
    install: ClassVar[str] = "install it"
    replaceable: ClassVar[frozenset[str]] = frozenset()
    metrics_port: ClassVar[str] = ""

    def __init__(self, argv: list[str], log: object) -> None:
        self.argv, self.log = argv, log
        self.version = ""

    @classmethod
    def on_host(cls, argv: list[str], log: Path, ports: Mapping[str, int]) -> Self:
        """Return the one that this host runs; `ports`: its own, by placeholder."""
        return cls(argv, log)

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
