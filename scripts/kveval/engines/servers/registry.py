"""The server programs that an engine can start: one entry each, under its name in `kveval.campaign.servers`."""

from collections.abc import Mapping
from typing import Any

from kveval.campaign.servers.registry import UnknownServer, software_of
from kveval.engines.servers.protocol import ServerProgram
from kveval.engines.servers.vllm import VllmProgram

PROGRAMS: dict[str, ServerProgram] = {
    program.software.name: program for program in (VllmProgram(),)
}


def program_of(versions: Mapping[str, Any]) -> ServerProgram:
    """Return the server program for the declared versions by program. Raises UnknownServer."""
    software = software_of(versions)
    if software.name not in PROGRAMS:
        message = f"{software.title} cannot be started: it has no entry in kveval.engines.servers.registry"
        raise UnknownServer(message, code="no_program")
    return PROGRAMS[software.name]
