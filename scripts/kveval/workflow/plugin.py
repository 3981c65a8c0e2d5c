"""Plug-ins: capabilities that the mission does not need. Nothing in the core imports one; each adds itself here.

Ours are the folders of kveval/plugins. Those of others are installed distributions with an entry point of the group
`kveval.plugins` that names a `Plugin`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points

import typer

OURS = ("attach", "builds", "traces")
GROUP = "kveval.plugins"


def _nothing(_: typer.Typer) -> None:
    """Add no command."""


@dataclass(frozen=True)
class Plugin:
    """A capability beside the core.

    Attributes:
        name: its name, that of its folder.
        add_commands: adds its commands to those of `kveval`; what answers is to be imported when one is called.
    """

    name: str
    add_commands: Callable[[typer.Typer], None] = _nothing


@cache
def installed() -> tuple[Plugin, ...]:
    """Return our plug-ins, then those of others by name."""
    ours = [import_module(f"{GROUP}.{name}").PLUGIN for name in OURS]
    others = sorted(entry_points(group=GROUP), key=lambda point: point.name)
    return (*ours, *(point.load() for point in others))
