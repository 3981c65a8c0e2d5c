"""Redis and Valkey as sidecars; both have the same commands."""

import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping

from kveval.engines.servers.program import HOST, POLL_S, Program, SidecarError

_ANSWER_S = 5.0


class KeyValueQuestions(ABC):
    """The requests to a store, wherever it runs; `name`: redis or valkey; `log`: where its log is, for messages."""

    def __init__(self, name: str, log: object) -> None:
        self.name = name
        self.log = log
        self.version = ""

    @abstractmethod
    def _ask(self, command: str) -> str:
        """Send one command; return a simple, integer or bulk answer as text. Raises SidecarError."""

    def ready(self) -> bool:
        """Tell whether it answers a PING."""
        try:
            return self._ask("PING") == "PONG"
        except SidecarError:
            return False

    def identify(self, versions: Mapping[str, str]) -> None:
        """Read the version. Raises SidecarError if it is Redis instead of Valkey or the reverse."""
        info = self._info("server")
        found = "valkey" if "valkey_version" in info else "redis"
        if found != self.name:
            message = f"the server on the port of {self.name} is {found}; see {self.log}"
            raise SidecarError(message, code="other_program", found=found, declared=self.name)
        self.version = info[f"{found}_version"]

    def reported_bytes(self) -> int | None:
        """Return None: a store is unbounded; the budget is that of the tier before it."""
        return None

    def counters(self) -> dict[str, float]:
        """Return keys, bytes in use, bytes sent and received, and the keyspace's hits and misses."""
        name, info = self.name, self._info("everything")
        return {
            f"{name}_keys": float(self._ask("DBSIZE")),
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
            self._ask("FLUSHALL")
            time.sleep(POLL_S)
            if self._ask("DBSIZE") == "0":
                return
            if time.monotonic() > deadline:
                raise SidecarError(f"{self.name} still holds keys after {timeout_s:.0f} s of deleting them")

    def _info(self, section: str) -> dict[str, str]:
        lines = (line.partition(":") for line in self._ask(f"INFO {section}").splitlines())
        return {name: value for name, colon, value in lines if colon}


class KeyValueStore(KeyValueQuestions):
    """Uses RESP (https://redis.io/docs/latest/develop/reference/protocol-spec/), one connection per command."""

    metrics_url = None

    def __init__(self, program: Program) -> None:
        super().__init__(program.name, program.log)
        self.program = program
        self._port = program.ports[f"{program.name}_port"]

    def _ask(self, command: str) -> str:
        try:
            with socket.create_connection((HOST, self._port), timeout=_ANSWER_S) as connection:
                connection.sendall(command.encode() + b"\r\n")
                with connection.makefile("rb") as answer:
                    first = answer.readline()
                    kind, rest = first[:1], first[1:].strip().decode()
                    if kind == b"$":
                        return answer.read(int(rest)).decode()
        except (OSError, ValueError) as error:
            word = command.split(maxsplit=1)[0]
            raise SidecarError(
                f"{self.name} does not answer {word}: {error}; see {self.log}",
                code="no_answer",
                program=self.name,
                command=word,
                said=str(error),
                log=self.log,
            ) from error
        if kind not in b"+:" or not kind:
            raise SidecarError(f"{self.name} answered {command.split(maxsplit=1)[0]} with {first!r}")
        return rest
