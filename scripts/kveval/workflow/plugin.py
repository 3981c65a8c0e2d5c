"""Plug-ins: capabilities that the mission does not need. Nothing in the core imports one; each adds itself here.

Ours are the folders of kveval/plugins, each with a `PLUGIN` in its plugin.py. No script of a rule imports that, so that
an edit of the command `kveval` is none of the code behind a rule. Those of others are installed distributions with an
entry point of the group `kveval.plugins` that names a `Plugin`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from kveval.configuration.config import Config
    from kveval.workflow.elsewhere import RunsElsewhere
    from kveval.workflow.planning.plan import PlanNotes
    from kveval.workflow.planning.stored import StoreIndex

OURS = ("attach", "builds", "curve", "exports", "imports", "prices", "traces")
GROUP = "kveval.plugins"


def _nothing(_: typer.Typer) -> None:
    """Add no command."""


@dataclass(frozen=True)
class Plugin:
    """A capability beside the core.

    Attributes:
        name: its name, that of its folder.
        add_commands: adds its commands to those of `kveval`; what answers is to be imported when one is called.
        rules: its file of Snakemake rules, None without one. It is included before the rules of the report; that of an
            installed distribution only where jobs share a folder. What it adds to `BESIDE_REPORT`, tables and figures of
            its own, is made before the report, what it adds to `BESIDE_FIGURES` before the figures of a family, what it
            adds to `BESIDE_TARGET` with the report.
        section: its template of a section of the report, from its own tables, see kveval.report.render.
        section_after: the part of the report after which it stands, one of those in report/templates/report.md.j2.
        plan: returns the lines that it adds to the plan of a campaign, given the store.
        runs: returns the runs that it brings to a campaign which measures none itself; None for any other campaign.
    """

    name: str
    add_commands: Callable[[typer.Typer], None] = _nothing
    rules: Path | None = None
    section: Path | None = None
    section_after: str = "origin"
    runs: Callable[[Config], RunsElsewhere | None] | None = None
    plan: Callable[[Config, StoreIndex], PlanNotes] | None = None


@cache
def ours() -> tuple[Plugin, ...]:
    """Return our plug-ins."""
    return tuple(import_module(f"{GROUP}.{name}.plugin").PLUGIN for name in OURS)


@cache
def installed() -> tuple[Plugin, ...]:
    """Return our plug-ins, then those of others by name."""
    others = sorted(entry_points(group=GROUP), key=lambda point: point.name)
    return (*ours(), *(point.load() for point in others))


def rule_files(*, shared_folder: bool) -> list[Path]:
    """Return the rule files of plug-ins: of ours alone where jobs have no more than what the checkout has."""
    plugins = installed() if shared_folder else ours()
    return [plugin.rules for plugin in plugins if plugin.rules is not None]


def plan_notes() -> list[Callable[[Config, StoreIndex], PlanNotes]]:
    """Return the functions by which plug-ins add lines to a plan."""
    return [plugin.plan for plugin in installed() if plugin.plan is not None]


def sections_beside() -> dict[Path, str]:
    """Return the templates of the sections that plug-ins add to a report -> the part after which each stands."""
    return {
        plugin.section: plugin.section_after
        for plugin in installed()
        if plugin.section is not None
    }
