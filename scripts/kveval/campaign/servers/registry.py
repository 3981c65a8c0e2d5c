"""The servers that a campaign can name: one entry each."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from packaging.version import Version

from kveval.campaign.servers.software import ServerSoftware
from kveval.campaign.servers.vllm import VLLM
from kveval.campaign.specification import Specification
from kveval.campaign.types import on_cpu
from kveval.host.errors import Failure

_OF_SERVER = "server."

SERVERS: dict[str, ServerSoftware] = {VLLM.name: VLLM}
IMPORTED = VLLM
"""The server of results that were measured elsewhere: there are importers for no other."""


class UnknownServer(Failure):
    """A measurement is of a server that is not in SERVERS."""


def software_of(versions: Mapping[str, Any]) -> ServerSoftware:
    """Return the server's software, given declared or reported versions by program. Raises UnknownServer."""
    found = served_by(versions)
    if found is None:
        message = (
            f"none of {', '.join(versions)} is a server; known are {', '.join(SERVERS)}"
        )
        raise UnknownServer(message, versions=[*versions], known=[*SERVERS])
    return found


def held_bytes(specification: Specification) -> int:
    """Return the host memory that one server's tier takes, bytes: its size, as rounded up by its allocator."""
    software = software_of(specification.versions)
    return software.held_bytes(
        specification.argv,
        specification.versions[software.name],
        specification.model,
        specification.budget,
        on_cpu=specification.on_cpu,
    )


def wrong_answers(specification: Mapping[str, Any]) -> str:
    """Return why a measurement's server is known to give wrong answers from its tier, "" if it is not.

    `specification`: its JSON; that of imported runs may be empty.
    """
    software = served_by(specification.get("versions", {}))
    argv = specification.get("argv") or ()
    return (
        software.wrong_answers(argv, on_cpu=on_cpu(specification.get("build")))
        if software
        else ""
    )


def served_by(versions: Mapping[str, Any]) -> ServerSoftware | None:
    """Return the server's software, given versions by program; None if they have no server, as in old results."""
    return next(
        (software for name, software in SERVERS.items() if name in versions), None
    )


def server_version(versions: Mapping[str, Any], unknown: str = "") -> str:
    """Return the server's release, given versions by program; `unknown` if they have no server."""
    found = served_by(versions)
    return unknown if found is None else str(versions[found.name])


def names_on_wire(metric: str) -> Iterator[str]:
    """Yield every name that a metric has, in any release of any server, the newest first."""
    for software in SERVERS.values():
        names = software.metrics.get(metric, {})
        ages = {key: Version("0" if key == "*" else key) for key in names}
        yield from (
            names[key] for key in sorted(names, key=ages.__getitem__, reverse=True)
        )


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
    for software in SERVERS.values():
        known = {
            term: software.recorded(term.removeprefix(_OF_SERVER), version)
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
