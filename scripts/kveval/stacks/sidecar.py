"""A program beside the servers: LMCache's server, a store, a picker; the class that each one fills in."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple, Self

from kveval.campaign.sizing import CacheSizes
from kveval.host.errors import Failure
from kveval.host.http import HttpError, fetch_from
from kveval.stacks.talk import Fetch

HOST = "127.0.0.1"
POLL_S = 0.1
_HEALTH_S = 2.0


class SidecarError(Failure):
    """A program beside the servers cannot be started, is not the declared one, or stopped serving."""


class SidecarPortTaken(SidecarError):
    """Another process uses the sidecar's port."""


class Port(NamedTuple):
    """A port of a sidecar whose pod has an address of its own.

    `name`: what its documents call it, "" for one that they do not declare.
    """

    number: int
    name: str = ""


@dataclass(frozen=True)
class Container:
    """A sidecar's container in a pod that runs.

    Attributes:
        argv: its command line.
        image: the image, as declared.
        log: the copy of its log.
        ports: the run's ports by placeholder.
        fetch: returns what sends requests to one of its ports, by number.
        run: runs a command in it and returns what that prints. Raises ValueError.
    """

    argv: list[str]
    image: str
    log: object
    ports: Mapping[str, int]
    fetch: Callable[[int], Fetch]
    run: Callable[[Sequence[str]], str]


class Sidecar:
    """A program beside the servers. An instance is one that runs, on this host or in a pod.

    On a cluster it runs in a container of its name: in a Deployment with a Service of its own, or in the server's pod.
    The methods of a running one raise SidecarError.

    Attributes:
        name: its name among the programs of a specification, and in its placeholders: {NAME_host}, {NAME_port}.
        title: the name in sentences.
        executable: the program that its command line begins with.
        install: how to get that on a host that lacks it.
        replaceable: its arguments that a scenario may replace, because nothing else is computed from them.
        refused: its arguments that a scenario may not give, and what would be right.
        metrics_port: placeholder of the port at which it has a Prometheus endpoint, /metrics; "" without one.
        ports: its ports by placeholder; the first with a name is the one that it serves at.
        in_server_pod: whether each server on a cluster has one in its own pod, because they share memory.
        health_path: path at `metrics_port` that answers once it is ready; "" if its first named port tells it.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    executable: ClassVar[str]
    install: ClassVar[str] = "install it"
    replaceable: ClassVar[frozenset[str]] = frozenset()
    refused: ClassVar[Mapping[str, str]] = {}
    metrics_port: ClassVar[str] = ""
    ports: ClassVar[Mapping[str, Port]] = {}
    in_server_pod: ClassVar[bool] = False
    health_path: ClassVar[str] = ""

    def __init__(self, argv: list[str], log: object) -> None:
        self.argv, self.log = argv, log
        self.version = ""

    @classmethod
    def on_host(cls, argv: list[str], log: Path, ports: Mapping[str, int]) -> Self:
        """Return the one that this host runs; `ports`: its own, by placeholder."""
        return cls(argv, log)

    @classmethod
    def in_pod(cls, container: Container) -> Self:
        """Return the one that runs in a container."""
        return cls(container.argv, container.log)

    @classmethod
    def memory_bytes(cls, argv: Sequence[str], sizes: CacheSizes) -> int:
        """Return the memory limit of its container, bytes; `argv`: its command line, `sizes`: the arm's."""
        raise NotImplementedError(f"{cls.__name__} has no memory_bytes")

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


class HttpSidecar(Sidecar):
    """A program beside the servers that answers HTTP at its `metrics_port`; `fetch` sends requests to it."""

    def __init__(self, argv: list[str], log: object, fetch: Fetch) -> None:
        super().__init__(argv, log)
        self._fetch = fetch

    @classmethod
    def on_host(cls, argv: list[str], log: Path, ports: Mapping[str, int]) -> Self:
        """Return the one that this host runs."""
        return cls(argv, log, fetch_from(f"http://{HOST}:{ports[cls.metrics_port]}"))

    @classmethod
    def in_pod(cls, container: Container) -> Self:
        """Return the one that runs in a container."""
        fetch = container.fetch(container.ports[cls.metrics_port])
        return cls(container.argv, container.log, fetch)

    def ready(self) -> bool:
        """Tell whether its health check succeeds, or without one, whether it shows its metrics."""
        try:
            self._fetch(self.health_path or "/metrics", timeout_s=_HEALTH_S)
        except HttpError:
            return False
        return True
