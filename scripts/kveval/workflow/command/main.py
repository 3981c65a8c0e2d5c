"""Every command of `kveval` with its options and help; what answers is imported when a command is called."""
# ruff: noqa: PLC0415

import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from kveval.host.errors import Failure
from kveval.workflow.command.exits import (
    CANNOT_ANSWER,
    MISTAKE,
    NO,
    Ended,
    judges,
)

CampaignFile = Annotated[
    Path | None,
    typer.Argument(
        metavar="CAMPAIGN",
        help="The campaign's file; config/config.yaml if none is named.",
        show_default=False,
    ),
]
SiteFile = Annotated[
    Path | None,
    typer.Option("--site", help="File with the cluster's settings: site.yaml."),
]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a value of the campaign; may be repeated.",
    ),
]
Directory = Annotated[
    Path | None,
    typer.Option(
        help="The folder that has results/ and logs/; by default the checkout."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


class Commands(TyperGroup):
    """The commands; ends with the statuses of docs/exit-codes.md."""

    def main(self, args: Sequence[str] | None = None, **extra: Any) -> Any:
        """Run a command line; a mistake in it or in the campaign ends with its message and no traceback."""
        words = sys.argv[1:] if args is None else list(args)
        least = CANNOT_ANSWER if judges(words) else 0
        try:
            return super().main(words, **{**extra, "prog_name": "kveval"})
        except Ended:
            raise
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(bool(end.code))
            raise Ended(max(least, status) if status else 0) from None
        except Failure as failure:
            status, message = _explained(failure)
            print(message, file=sys.stderr)
            raise Ended(max(least, status)) from None
        except Exception:  # noqa: BLE001  (Python's own status, 1, would be a verdict)
            traceback.print_exc()
            raise Ended(max(least, NO)) from None


def _explained(failure: Failure) -> tuple[int, str]:
    from kveval.workflow.command.cell_lookup import UnknownCell

    if isinstance(failure, UnknownCell):
        return MISTAKE, str(failure)
    from kveval.campaign.problems import ConfigError
    from kveval.workflow.command.campaign import OptionError
    from kveval.workflow.command.checkout import NoCheckout

    if isinstance(failure, ConfigError):
        return MISTAKE, f"The configuration cannot be used:\n{failure}"
    if isinstance(failure, OptionError | NoCheckout):
        return MISTAKE, str(failure)
    return NO, f"FAILED: {failure}"


app = typer.Typer(
    name="kveval",
    cls=Commands,
    help="Answer questions about campaigns of KV-cache offload; `snakemake` measures and reports them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def kveval() -> None:
    """Answer questions about campaigns of KV-cache offload; `snakemake` measures and reports them."""


@app.command()
def show(
    cell: Annotated[
        str,
        typer.Argument(
            metavar="CELL",
            help="MODEL/SCENARIO/CPU_BLOCKS, a path of its results, or a measurement's id.",
        ),
    ],
    directory: Annotated[
        Path | None,
        typer.Option(
            help="The folder that has results/; by default the nearest, from here upwards."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show a stored cell: its runs, levels and peak, what proves the arm active, what checks found."""
    from kveval.workflow.command.show import show_cell

    show_cell(cell, directory, as_json=as_json)


@app.command()
def plan(
    campaign: CampaignFile = None,
    site: SiteFile = None,
    changes: Changes = None,
    directory: Directory = None,
    as_json: Json = False,
) -> None:
    """Say what would be measured and why, its GPU hours and disk, and what it can show."""
    from kveval.workflow.command.campaign import CampaignOptions, working_on
    from kveval.workflow.command.planning import show_plan

    options = CampaignOptions(campaign, site, changes or (), directory)
    with working_on(options) as given:
        show_plan(given, as_json=as_json)


def run() -> None:
    """Run the command line of this process."""
    app()
