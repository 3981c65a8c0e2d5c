"""Failures that are a known defect of released software, recognised by where in its code the server died."""

from collections.abc import Mapping
from pathlib import Path

from kveval.campaign.catalogue import KnownDefect
from kveval.campaign.specification import Specification
from kveval.engines.servers.errors import ServerDied
from kveval.host.logs import raised
from kveval.load.guidellm import LoadError
from kveval.stacks.registry import server_of


def recognised(
    failure: BaseException,
    specification: Specification,
    known: Mapping[str, KnownDefect],
) -> str | None:
    """Return the name of the known defect that is the failure's cause, or None.

    Only a server's death can be one, its declared versions and arguments must be the defect's, and the traceback in its
    log must end where the defect raises. A server that died after the load generator had failed is the generator's
    failure: it gave up all its requests.
    """
    if not isinstance(failure, ServerDied) or isinstance(failure.__cause__, LoadError):
        return None
    versions, argv = specification.versions, specification.argv
    possible = {
        name: defect
        for name, defect in known.items()
        if defect.possible(versions, argv)
    }
    if not possible or "log" not in failure.facts:
        return None
    log, offset = Path(failure.facts["log"]), int(failure.facts.get("offset", 0))
    exceptions = raised(log, offset, server_of(versions).log_form)
    for name, defect in possible.items():
        place = defect.raised_in
        for exception in exceptions:
            there = (exception.error, exception.function, exception.line) == (
                place.error,
                place.function,
                place.line,
            )
            if there and f"/{exception.file}".endswith(f"/{place.file}"):
                return name
    return None
