"""The processes that listen on TCP ports of this host's loopback interface."""

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

from kveval.host.errors import Failure

_LOOPBACK = ("127.0.0.1", "0.0.0.0", "::", "::ffff:127.0.0.1")


def foreign_listeners(port: int, own: Iterable[int]) -> list[str]:
    """Return the names of processes other than `own` that listen on `port`; the PID of another user's is unknown."""
    mine = set(own)
    return [_name(pid) for pid in _listeners(port) if pid not in mine]


def listening_processes(port: int) -> list[int]:
    """Return the processes that listen on `port` and their descendants; not those of other users."""
    pids = [pid for pid in _listeners(port) if pid is not None]
    for pid in list(pids):
        with contextlib.suppress(psutil.Error):
            children = psutil.Process(pid).children(recursive=True)
            pids += [child.pid for child in children]
    return sorted(set(pids))


def require_own_port(
    port: int, own: Iterable[int], error: type[Failure], user: str, log: Path
) -> None:
    """Raise `error` if a process other than `own` listens on a port of `user`, a program whose log is `log`."""
    if others := foreign_listeners(port, own):
        message = f"port {port} of {user} was taken in the meantime by {', '.join(others)}; see {log}"
        raise error(message, port=port, by=others)


def _listeners(port: int) -> Iterator[int | None]:
    for connection in psutil.net_connections(kind="tcp"):
        if connection.status != psutil.CONN_LISTEN or not connection.laddr:
            continue
        address = connection.laddr
        if address.port == port and address.ip in _LOOPBACK:
            yield connection.pid


def _name(pid: int | None) -> str:
    if pid is None:
        return "another user's process"
    try:
        return f"process {pid} ({psutil.Process(pid).name()})"
    except psutil.Error:
        return f"process {pid}"
