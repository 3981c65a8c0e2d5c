"""The command `kveval import`, and the runs of a campaign that imports."""
# ruff: noqa: PLC0415

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kveval.workflow.command.options import CAMPAIGNS, Json
from kveval.workflow.plugin import Plugin

if TYPE_CHECKING:
    from kveval.configuration.config import Config
    from kveval.workflow.elsewhere import RunsElsewhere


def _add_commands(app: typer.Typer) -> None:
    app.command("import", rich_help_panel=CAMPAIGNS)(_import)


def _import(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER...",
            help="Folders of results that were measured elsewhere.",
        ),
    ],
    sheet: Annotated[
        Path,
        typer.Option(
            metavar="PATH",
            help="The sheet, which a campaign names under `import`. If it is there, what it lacks is added to it.",
        ),
    ] = Path("imports.csv"),
    as_json: Json = False,
) -> None:
    """List results that were measured elsewhere in a sheet, to be corrected and imported by a campaign."""
    from kveval.plugins.imports.command import write_sheet

    write_sheet(folders, sheet, as_json=as_json)


def _runs(config: Config) -> RunsElsewhere | None:
    from kveval.plugins.imports.plan import import_plan

    return import_plan(config)


PLUGIN = Plugin("imports", _add_commands, runs=_runs)
