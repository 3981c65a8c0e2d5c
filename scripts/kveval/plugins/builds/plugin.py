"""The commands `kveval check` and `kveval history`."""
# ruff: noqa: PLC0415

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kveval.workflow.command.options import (
    BUILDS,
    CampaignFile,
    Changes,
    Directory,
    Json,
    SiteFile,
    campaign_context,
)
from kveval.workflow.plugin import Plugin


def _add_commands(app: typer.Typer) -> None:
    # Modules here have these names.
    app.command("check", rich_help_panel=BUILDS)(_check)
    app.command("history", rich_help_panel=BUILDS)(_history)


def _check(
    candidate: Annotated[
        str,
        typer.Option(
            metavar="BUILD",
            help="The build to check: PROGRAM==VERSION, FILE.whl, the folder of a checkout or of an"
            " environment, FOLDER@COMMIT.",
        ),
    ],
    campaign: CampaignFile = None,
    base: Annotated[
        str,
        typer.Option(
            metavar="BUILD", help="What it is checked against, likewise, or installed."
        ),
    ] = "installed",
    arms: Annotated[
        list[str] | None,
        typer.Option(
            "--arm",
            metavar="SCENARIO/CPU_BLOCKS",
            help="An arm to compare the builds in; may be repeated.",
        ),
    ] = None,
    blocks: Annotated[int, typer.Option(min=1, help="The most blocks.")] = 6,
    site: SiteFile = None,
    changes: Changes = None,
    directory: Directory = None,
    as_json: Json = False,
) -> None:
    """Measure whether a build is slower than another. 0: it is not, 1: it is, 125: undecided, from 128 on: an error."""
    from kveval.plugins.builds.check import CheckRequest
    from kveval.plugins.builds.check_command import check_build

    request = CheckRequest(candidate, base, arms or (), blocks)
    with campaign_context(campaign, site, changes, directory) as context:
        check_build(context, request, as_json=as_json)


def _history(
    campaign: CampaignFile = None,
    site: SiteFile = None,
    changes: Changes = None,
    folders: Annotated[
        list[Path] | None,
        typer.Option(
            "--folder",
            help="The folder of the history, by default results/history; if repeated, the first is added to.",
        ),
    ] = None,
    program: Annotated[
        str | None,
        typer.Option(help="Its versions are the builds, by default the server's."),
    ] = None,
    directory: Directory = None,
    as_json: Json = False,
) -> None:
    """Add the campaign's results to the history, and show them from build to build."""
    from kveval.plugins.builds.history import show_campaign_history

    places = [folder.absolute() for folder in folders or ()]
    with campaign_context(campaign, site, changes, directory) as context:
        show_campaign_history(
            context,
            folders=places or [Path("results/history")],
            program=program,
            as_json=as_json,
        )


PLUGIN = Plugin("builds", _add_commands)
