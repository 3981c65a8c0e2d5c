"""Redis and Valkey, stores beside the servers; both have the same commands."""

import functools
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Self

from kveval.campaign.catalogue import Scenario
from kveval.campaign.sizing import CacheSizes
from kveval.campaign.specification import SidecarSpec
from kveval.stacks.arms import Platform
from kveval.stacks.sidecar import (
    HOST,
    POLL_S,
    Container,
    Port,
    Sidecar,
    SidecarError,
)

_ANSWER_S = 5.0
_RESP_PORT = Port(6379, "resp")


class KeyValueStore(Sidecar):
    """A store that holds everything in memory: a disk behind it would be another arm.

    `send`: sends one command and returns a simple, integer or bulk answer as text. It raises ValueError or OSError if
    there is none.
    """

    def __init__(
        self, argv: list[str], log: object, send: Callable[[str], str]
    ) -> None:
        super().__init__(argv, log)
        self._send = send

    @classmethod
    def on_host(cls, argv: list[str], log: Path, ports: Mapping[str, int]) -> Self:
        """Return the one that this host runs."""
        return cls(argv, log, functools.partial(sent, ports[f"{cls.name}_port"]))

    @classmethod
    def in_pod(cls, container: Container) -> Self:
        """Return the one in a container, asked with its own client there: its port need not be reachable."""
        client = [f"{cls.name}-cli", "-p", str(container.ports[f"{cls.name}_port"])]

        def send(command: str) -> str:
            answer = container.run([*client, *command.split()])
            return answer.removeprefix("(integer) ")

        return cls(container.argv, container.log, send)

    @classmethod
    def memory_bytes(cls, argv: Sequence[str], sizes: CacheSizes) -> int:
        """Return what it may hold, and beyond that its own structures and buffers of connections."""
        return int(1.25 * int(argv[argv.index("--maxmemory") + 1])) + 2**28

    @classmethod
    def specification(cls, platform: Platform, limit_bytes: int) -> SidecarSpec:
        """Return its command line.

        On a cluster its memory is bounded, because a pod that outgrows its limit is killed.
        """
        bind = "0.0.0.0" if platform.on_cluster else f"{{{cls.name}_host}}"
        argv = [
            *(cls.executable, "--bind", bind, "--port", f"{{{cls.name}_port}}"),
            *("--save", "", "--appendonly", "no"),
        ]
        if platform.on_cluster:
            # In protected mode without a password it would refuse all clients outside its pod.
            argv += [
                *("--protected-mode", "no"),
                *("--maxmemory", str(limit_bytes)),
                *("--maxmemory-policy", "allkeys-lru"),
            ]
        return SidecarSpec(cls.name, tuple(argv))

    def ask(self, command: str) -> str:
        """Send one command and return the answer. Raises SidecarError."""
        try:
            return self._send(command)
        except (OSError, ValueError) as error:
            word, reason = command.split(maxsplit=1)[0], str(error)
            message = f"{self.name} does not answer {word}: {reason}; see {self.log}"
            facts = {
                "program": self.name,
                "command": word,
                "said": reason,
                "log": self.log,
            }
            raise SidecarError(message, code="no_answer", **facts) from error

    def ready(self) -> bool:
        """Tell whether it answers a PING."""
        try:
            return self.ask("PING") == "PONG"
        except SidecarError:
            return False

    def identify(self, versions: Mapping[str, str]) -> None:
        """Read the version. Raises SidecarError if it is Redis instead of Valkey or the reverse."""
        info = self._info("server")
        program = "valkey" if "valkey_version" in info else "redis"
        if program != self.name:
            message = (
                f"the server on the port of {self.name} is {program}; see {self.log}"
            )
            raise SidecarError(
                message, code="other_program", found=program, declared=self.name
            )
        self.version = info[f"{program}_version"]

    def counters(self) -> dict[str, float]:
        """Return keys, bytes in use, bytes sent and received, and the keyspace's hits and misses."""
        name, info = self.name, self._info("everything")
        return {
            f"{name}_keys": float(self.ask("DBSIZE")),
            f"{name}_memory_bytes": float(info["used_memory"]),
            f"{name}_received_bytes_total": float(info["total_net_input_bytes"]),
            f"{name}_sent_bytes_total": float(info["total_net_output_bytes"]),
            f"{name}_keyspace_hits_total": float(info["keyspace_hits"]),
            f"{name}_keyspace_misses_total": float(info["keyspace_misses"]),
        }

    def reset(self, timeout_s: float) -> None:
        """Delete every key, repeatedly, because a write in progress may add one. Raises SidecarError."""
        deadline = time.monotonic() + timeout_s
        while True:
            self.ask("FLUSHALL")
            time.sleep(POLL_S)
            if self.ask("DBSIZE") == "0":
                return
            if time.monotonic() > deadline:
                raise SidecarError(
                    f"{self.name} still holds keys after {timeout_s:.0f} s of deleting them"
                )

    def _info(self, section: str) -> dict[str, str]:
        lines = (
            line.partition(":") for line in self.ask(f"INFO {section}").splitlines()
        )
        return {name: value for name, colon, value in lines if colon}


class Redis(KeyValueStore):
    """Redis."""

    name = "redis"
    title = "Redis"
    executable = "redis-server"
    install = "run scripts/setup.sh, or apt-get install redis-server"
    ports: ClassVar[Mapping[str, Port]] = {"redis_port": _RESP_PORT}


class Valkey(KeyValueStore):
    """Valkey."""

    name = "valkey"
    title = "Valkey"
    executable = "valkey-server"
    install = (
        "run scripts/setup.sh, or install the distribution's valkey-server"
        " (Debian 13, Ubuntu 24.04)"
    )
    ports: ClassVar[Mapping[str, Port]] = {"valkey_port": _RESP_PORT}


STORES: dict[str, type[KeyValueStore]] = {
    store.name: store for store in (Redis, Valkey)
}
"""The stores, by the name that a scenario gives as `store`."""


def store_sidecars(
    scenario: Scenario, platform: Platform, limit_bytes: int
) -> tuple[SidecarSpec, ...]:
    """Return the scenario's store, if it has one; `limit_bytes`: what it holds at most on a cluster."""
    if scenario.store is None:
        return ()
    return (STORES[scenario.store].specification(platform, limit_bytes),)


def sent(port: int, command: str) -> str:
    """Send a command to a store of this host by RESP, in a connection of its own, and return the answer.

    https://redis.io/docs/latest/develop/reference/protocol-spec/
    """
    with socket.create_connection((HOST, port), timeout=_ANSWER_S) as connection:
        connection.sendall(command.encode() + b"\r\n")
        with connection.makefile("rb") as answer:
            first = answer.readline()
            kind, rest = first[:1], first[1:].strip().decode()
            if kind == b"$":
                return answer.read(int(rest)).decode()
    if kind not in b"+:" or not kind:
        raise ValueError(repr(first))
    return rest
