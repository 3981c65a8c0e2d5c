"""The command `kveval export`."""
# ruff: noqa: PLC0415

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kveval.workflow.command.options import STORED, Json
from kveval.workflow.plugin import Plugin

_exports = typer.Typer(
    no_args_is_help=True, help="Hand a campaign's results to other tools."
)


@_exports.command("mlflow")
def export_mlflow(
    results: Annotated[
        Path,
        typer.Argument(
            metavar="RESULTS",
            help="The folder of a campaign's results, or so-far in it: where report.json is.",
        ),
    ],
    address: Annotated[
        str,
        typer.Option(
            "--tracking-uri",
            metavar="URI",
            envvar="MLFLOW_TRACKING_URI",
            help="MLflow's tracking server.",
        ),
    ],
    as_json: Json = False,
) -> None:
    """Log every measured run and the report to MLflow; what is there already is not logged again."""
    from kveval.plugins.exports.command import export_to_mlflow

    export_to_mlflow(results, address, as_json=as_json)


def _add_commands(app: typer.Typer) -> None:
    app.add_typer(_exports, name="export", rich_help_panel=STORED)


PLUGIN = Plugin("exports", _add_commands, Path(__file__).with_name("exports.smk"))
