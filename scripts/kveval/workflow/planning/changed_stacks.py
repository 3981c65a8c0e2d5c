"""Compares servers that run already with what stored runs of their arms found there."""

from __future__ import annotations

import os
from collections.abc import Iterator

from kveval.campaign.campaign_file import ExistingServer
from kveval.campaign.specification import Specification
from kveval.configuration.config import Config
from kveval.engines.attached import Stack, stack_changes, stack_now, stored_stack
from kveval.host.http import HttpError
from kveval.stacks.counters import CounterError
from kveval.workflow.planning.stored import StoreIndex


def changed_stacks(config: Config, index: StoreIndex) -> Iterator[str]:
    """Yield a line for each arm whose server is not asked, and for each stored run that was measured on another one."""
    stacks: dict[str, Stack | None] = {}
    for cell in config.cells:
        server = config.campaign.existing.get(cell.scenario)
        if server is None:
            continue
        specification = config.specification(cell)
        if cell.scenario not in stacks:
            stacks[cell.scenario], line = _stack_now(server, specification)
            yield f"{cell.scenario}: {line}"
        now = stacks[cell.scenario]
        stored = index.index.get(specification.measurement_id)
        if now is None or stored is None:
            continue
        for number, places in sorted(stored.places.items()):
            for place in places:
                then = stored_stack(place)
                changes = stack_changes(then, now) if then is not None else ""
                if changes:
                    yield f"  {cell.path} run {number}, stored: the stack has changed since: {changes}"


def _stack_now(
    server: ExistingServer, specification: Specification
) -> tuple[Stack | None, str]:
    """Return what the servers of an arm tell of themselves, None if they are not asked; and what that is in words."""
    if server.switch is not None:
        return None, "not asked, as its switch brings it into service"
    if server.key and not os.environ.get(server.key):
        return None, f"not asked, as {server.key} is not set"
    try:
        stack = stack_now(specification, server)
    except (HttpError, CounterError) as error:
        return None, f"does not answer: {error}"
    told = {name: value for name, value in stack[0].items() if value is not None}
    words = ", ".join(f"{name} {value}" for name, value in told.items())
    return stack, f"{server.url} has {words}"
