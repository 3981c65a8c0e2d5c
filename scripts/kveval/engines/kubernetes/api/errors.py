"""Errors between this program and a cluster."""

import re
from typing import Any

from kveval.host.errors import Failure

AWAY = (500, 502, 503, 504)
"""Statuses that mean that the API server is away, or a node or a pod that it asks for us."""
_FORBIDDEN = re.compile(r'cannot (?P<verb>\w+) resource "(?P<resource>[^"]+)"(?:.*namespace "(?P<namespace>[^"]+)")?')


class ClusterError(Failure):
    """The cluster, or the way to it, failed; `status` and `reason` are the API server's, where it answered."""

    def __init__(
        self, message: str, status: int | None = None, reason: str = "", *, code: str = "", **facts: Any
    ) -> None:
        super().__init__(message, code=code, **facts)
        self.status = status
        self.reason = reason


class Unreachable(ClusterError):
    """A request or its answer did not get through; whether it was carried out is not known."""


class Refused(ClusterError):
    """The API server answered, and its answer will not change by asking again.

    Code `credential_refused`: it does not take the credential; `right_missing`: the account may not do this, facts
    `verb`, `resource` and `namespace` where it said which.
    """


def refused(server: str, asked: str, status: int, reason: str, said: str) -> Refused:
    """Make the error of an answer that says no; `asked`: the request's method and path."""
    answer = ": ".join(part for part in (reason, said) if part)
    message, code, facts = f"cluster {server} refused {asked}: {status} {answer}", "", {}
    if status == 401:
        code = "credential_refused"
        message = (
            f"cluster {server} does not take the credential any more ({asked}: 401 {answer}): has the token expired? "
            "Log in again, or make a new one (docs/cluster.md)"
        )
    elif status == 403:
        code = "right_missing"
        found = _FORBIDDEN.search(said)
        facts = {name: value for name, value in (found.groupdict() if found else {}).items() if value}
        message += "; `snakemake doctor` lists the rights that are missing, and the command that gives them"
    return Refused(message, status, reason, code=code, server=server, request=asked, said=said, **facts)


class NodeNotReady(ClusterError):
    """The node of a pod does not answer, and the cluster knows it: fact `node`."""


class Interrupted(ClusterError):
    """A command in a pod lost its connection: what it printed so far is good, how it ended is not known."""
