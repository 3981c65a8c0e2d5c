"""Whether the host of a server holds the KV caches of a campaign's cells; where it does not, the size is refused.

The host is the one that the campaign declares (`host_gib`). Without it, with engine local, it is this one, with its
/dev/shm, where some tiers lie; but not for servers on GPUs where this host has none: they will run on another host, of
which nothing is known. What is held is what the doctor counts: the tier as allocated, and a CPU device's own cache.
"""

import bisect
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kveval.campaign.cell import Cell
from kveval.campaign.problems import ConfigError, ConfigProblem
from kveval.campaign.sizing import memory_text
from kveval.campaign.specification import Specification
from kveval.campaign.types import BLOCK_TOKENS
from kveval.configuration.config import Config
from kveval.engines.preflight import MEMORY_SHARE, memory_bytes, shared_memory_bytes
from kveval.host.registry import SHARED_MEMORY


@dataclass(frozen=True)
class HostRoom:
    """The memory of a host, bytes.

    `subject`: begins a sentence about it; `shared_memory_bytes`: of /dev/shm in all, None if not known.
    """

    subject: str
    memory_bytes: int
    shared_memory_bytes: int | None = None

    def holds(self, specification: Specification, share: float = 1.0) -> bool:
        """Tell whether the host has room for a server's KV caches in this share of its memory."""
        if memory_bytes(specification) > share * self.memory_bytes:
            return False
        if self.shared_memory_bytes is None:
            return True
        return shared_memory_bytes(specification) <= self.shared_memory_bytes


def declared_room(config: Config) -> HostRoom | None:
    """Return the host that the campaign declares, None if it does not."""
    declared = config.campaign.host_gib
    return None if declared is None else HostRoom("host_gib is", declared)


def known_room(config: Config, host: Mapping[str, Any]) -> HostRoom | None:
    """Return the host of the campaign's servers, None if it is not known; `host`: this one, as probed."""
    declared = declared_room(config)
    elsewhere = config.campaign.engine != "local" or not (
        config.campaign.server.on_cpu or host["gpus"]
    )
    if declared is not None or elsewhere:
        return declared
    shared = None
    if SHARED_MEMORY.is_dir():
        shared = shutil.disk_usage(SHARED_MEMORY).total
    return HostRoom("this host has", int(host["memory_bytes"]), shared)


def room_problems(
    config: Config, cells: Iterable[Cell], room: HostRoom, file: str = ""
) -> Iterator[ConfigProblem]:
    """Yield a problem for each cell whose KV caches the host does not hold; `file`: of the campaign."""
    for cell in cells:
        specification = config.specification(cell)
        if room.holds(specification):
            continue
        largest = _largest_that_fits(config, cell, room)
        if largest is None and memory_bytes(specification) <= room.memory_bytes:
            # A /dev/shm too small for any size: the doctor says how to enlarge it.
            continue
        valid = ["a larger host (host_gib)"]
        if largest is not None:
            valid.insert(0, f"at most {largest.budget.size}")
        elif specification.on_cpu:
            valid.insert(0, "a smaller server.device_blocks")
        message, remedies = _message(specification, room), ", or ".join(valid)
        yield ConfigProblem(file, "matrix", message, remedies, "no_room_on_host")


def _message(specification: Specification, room: HostRoom) -> str:
    cell, size = specification.cell, specification.budget.size
    named = f"{cell.path}, a tier of {size}," if cell.cpu_blocks else cell.path
    held, shared = memory_bytes(specification), shared_memory_bytes(specification)
    if held > room.memory_bytes:
        there = memory_text(room.memory_bytes)
        return f"{named} keeps {memory_text(held)} of KV cache in host memory, {room.subject} {there}"
    there = memory_text(room.shared_memory_bytes or 0)
    return f"{named} keeps {memory_text(shared)} in {SHARED_MEMORY}, where {room.subject} {there}"


def _largest_that_fits(
    config: Config, cell: Cell, room: HostRoom
) -> Specification | None:
    """Return the cell with the largest size that leaves the server its share of memory; None if there is none."""

    def of_size(blocks: int) -> Specification | None:
        try:
            return config.specification(replace(cell, cpu_blocks=blocks))
        except ConfigError:
            # Too small for the arm: less than a block for each of its tiers.
            return None

    def is_too_large(blocks: int) -> bool:
        specification = of_size(blocks)
        return specification is not None and not room.holds(specification, MEMORY_SHARE)

    step = max(1, config.specification(cell).block_size // BLOCK_TOKENS)
    sizes = range(step, cell.cpu_blocks, step)
    fitting = bisect.bisect_left(sizes, True, key=is_too_large)
    return of_size(sizes[fitting - 1]) if fitting else None
