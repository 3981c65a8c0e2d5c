"""Errors between this program and a cluster."""

from typing import Any

from kveval.host.errors import Failure

AWAY = (500, 502, 503, 504)
"""HTTP statuses if the API server is unavailable, or a node or pod that it forwards a request to."""

NO_ANSWER = "no_usable_answer"
"""Code of a ClusterError if the API server was away for too long."""
CREDENTIAL_REFUSED = "credential_refused"
"""Code of a ClusterError if the API server rejects the credential."""
_ASIDE = {
    NO_ANSWER: "the API server does not answer",
    CREDENTIAL_REFUSED: "the cluster rejects the credential",
}


class ClusterError(Failure):
    """The cluster, or the connection to it, failed; `status` and `reason` are the API server's, if it answered."""

    def __init__(
        self,
        message: str,
        status: int | None = None,
        reason: str = "",
        *,
        code: str = "",
        **facts: Any,
    ) -> None:
        super().__init__(message, code=code, **facts)
        self.status = status
        self.reason = reason

    @property
    def aside(self) -> str:
        """The error in words for a message beside that of the run, which has it in full if it ends a run."""
        return _ASIDE.get(self.code, str(self))


class Unreachable(ClusterError):
    """A request or its answer did not get through; whether it was carried out is not known."""


class Refused(ClusterError):
    """The API server refused a request, and will do so again.

    Code CREDENTIAL_REFUSED: it rejects the credential; `right_missing`: the account lacks a right, with the facts
    `verb`, `resource` and `namespace` if the answer has them.
    """


class NodeNotReady(ClusterError):
    """The cluster reports the node of a pod as not ready; fact `node`."""


class Interrupted(ClusterError):
    """The connection to a command in a pod was lost: its output so far is valid, its exit code unknown."""
