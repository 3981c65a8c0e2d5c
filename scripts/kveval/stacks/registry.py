"""The programs that a campaign can name: one entry each."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from packaging.version import Version

from kveval.campaign.specification import Specification
from kveval.campaign.types import on_cpu
from kveval.host.errors import Failure
from kveval.stacks.keyvalue import STORES
from kveval.stacks.lmcache import LMCacheServer
from kveval.stacks.model_server import ModelServer
from kveval.stacks.picker import Picker
from kveval.stacks.running_server import RunningServer
from kveval.stacks.sglang import Sglang
from kveval.stacks.sidecar import Sidecar
from kveval.stacks.vllm import VLLM

_OF_SERVER = "server."

SERVERS: dict[str, ModelServer] = {server.name: server for server in (VLLM,)}
"""What serves models, by its name in `server.program` and among the versions of a measurement."""
RUNNING_SERVERS: tuple[RunningServer, ...] = (*SERVERS.values(), Sglang())
"""What is recognised where it runs already."""
SIDECARS: dict[str, type[Sidecar]] = {
    **STORES,
    LMCacheServer.name: LMCacheServer,
    Picker.name: Picker,
}
"""What may stand beside a server, by its name in a specification and of its containers."""
IMPORTED_SERVER: ModelServer = VLLM
"""The server of results that were measured elsewhere: there are importers for no other."""


class UnknownServer(Failure):
    """A measurement is of a server that is not in SERVERS."""


def server_of(versions: Mapping[str, Any]) -> ModelServer:
    """Return the server, given declared or reported versions by program. Raises UnknownServer."""
    server = find_server(versions)
    if server is None:
        message = (
            f"none of {', '.join(versions)} is a server; known are {', '.join(SERVERS)}"
        )
        raise UnknownServer(message, versions=[*versions], known=[*SERVERS])
    return server


def find_server(versions: Mapping[str, Any]) -> ModelServer | None:
    """Return the server, given versions by program; None if they have no server, as in results of others."""
    return next((server for name, server in SERVERS.items() if name in versions), None)


def server_version(versions: Mapping[str, Any], unknown: str = "") -> str:
    """Return the server's release, given versions by program; `unknown` if they have no server."""
    server = find_server(versions)
    return unknown if server is None else str(versions[server.name])


def held_bytes(specification: Specification) -> int:
    """Return the host memory that one server's tier takes, bytes: its size, as rounded up by its allocator."""
    server = server_of(specification.versions)
    return server.held_bytes(
        specification.argv,
        specification.versions[server.name],
        specification.model,
        specification.budget,
        on_cpu=specification.on_cpu,
    )


def wrong_answers(specification: Mapping[str, Any]) -> str:
    """Return why a measurement's server is known to give wrong answers from its tier, "" if it is not.

    `specification`: its JSON; that of imported runs may be empty.
    """
    server = find_server(specification.get("versions", {}))
    if server is None:
        return ""
    argv = specification.get("argv") or ()
    return server.wrong_answers(argv, on_cpu=on_cpu(specification.get("build")))


def names_on_wire(term: str) -> Iterator[str]:
    """Yield every name that a term has, in any release of any server, the newest first."""
    for server in SERVERS.values():
        names = server.metrics.get(term, {})
        ages = {key: _age(key) for key in names}
        yield from (
            names[key] for key in sorted(names, key=ages.__getitem__, reverse=True)
        )


@cache
def _age(release: str) -> Version:
    return Version("0" if release == "*" else release)


def recorded_as(
    expressions: Sequence[str], version: str
) -> Iterator[list[tuple[str, ...]]]:
    """Yield the PCP metrics that each expression adds up, for every server that may have been recorded.

    `server.TERM` stands for a metric of whichever server it was, by its name in release `version`. Expressions without
    such terms are yielded once.
    """
    parts = [_added_up(expression) for expression in expressions]
    terms = {part for names in parts for part in names if part.startswith(_OF_SERVER)}
    if not terms:
        yield parts
        return
    for server in SERVERS.values():
        known = {
            term: server.recorded(term.removeprefix(_OF_SERVER), version)
            for term in terms
        }
        if None not in known.values():
            yield [_renamed(names, known) for names in parts]


def _added_up(expression: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in expression.split(" + "))


def _renamed(
    names: tuple[str, ...], known: Mapping[str, str | None]
) -> tuple[str, ...]:
    return tuple(known.get(name) or name for name in names)
