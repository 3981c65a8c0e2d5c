"""Failures of a server that an engine started."""

from kveval.host.errors import Failure


class DeploymentError(Failure):
    """The server did not start as declared, or stopped serving."""


class ServerDied(DeploymentError):
    """A process of the server has ended; the message quotes the line of its log that says why.

    Facts: `log`, its path on this host, and `offset`, the byte at which this deployment's output begins in it.
    """
