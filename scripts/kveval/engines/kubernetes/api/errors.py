"""Errors between this program and a cluster."""

from typing import Any

from kveval.host.errors import Failure

AWAY = (500, 502, 503, 504)
"""Statuses that mean that the API server is away, or a node or a pod that it asks for us."""


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


class NodeNotReady(ClusterError):
    """The node of a pod does not answer, and the cluster knows it: fact `node`."""


class Interrupted(ClusterError):
    """A command in a pod lost its connection: what it printed so far is good, how it ended is not known."""
