"""The commands of `kveval` with their options and help; those of plug-ins are added to them.

What answers is imported when a command is called.
"""
# ruff: noqa: PLC0415

from __future__ import annotations

import atexit
import os
import sys
import traceback
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from kveval import __version__
from kveval.host.errors import Failure
from kveval.workflow import HINT_VARIABLE
from kveval.workflow.command.exits import (
    CANNOT_ANSWER,
    MISTAKE,
    NO,
    Ended,
    judges,
)
from kveval.workflow.command.options import (
    CAMPAIGNS,
    STORED,
    CampaignFile,
    Changes,
    Directory,
    Json,
    SiteFile,
    campaign_context,
)
from kveval.workflow.plugin import installed

NAME = "kveval"


class PruneKind(StrEnum):
    """Kinds of entries that nothing refers to: those of kveval.workflow.upkeep.prune."""

    MEASUREMENT = "measurement"
    IMPORT = "import"
    FAILED = "failed"
    DAMAGED = "damaged"
    PARTIAL = "partial"
    INCOMING = "incoming"
    PRUNED = "pruned"


class Commands(TyperGroup):
    """The commands; ends with the statuses of docs/exit-codes.md."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command line; a mistake in it or in the campaign ends with its message and no traceback."""
        words = sys.argv[1:] if args is None else list(args)
        least = CANNOT_ANSWER if judges(words) else 0
        try:
            return super().main(
                words,
                NAME,
                complete_var,
                standalone_mode,
                windows_expand_args,
                **extra,
            )
        except Ended:
            raise
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(bool(end.code))
            raise Ended(max(least, status) if status else 0) from None
        except Failure as failure:
            status, message = _explained(failure)
            print(message, file=sys.stderr)
            raise Ended(max(least, status)) from None
        except OSError as error:
            print(f"FAILED: {_of_file(error)}", file=sys.stderr)
            raise Ended(max(least, NO)) from None
        except Exception as error:  # noqa: BLE001  (Python's own status, 1, would be a verdict)
            print(_unexpected(error), file=sys.stderr)
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


def _of_file(error: OSError) -> str:
    """Return what the system refused, and of which file: no permission, no room, no such folder."""
    if error.strerror is None or error.filename is None:
        return str(error)
    return f"{error.filename}: {error.strerror}"


def _unexpected(error: Exception) -> str:
    """Return what to do where a package is missing, as in a bare installation; else the traceback."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        if package != NAME:
            return (
                f"FAILED: the package {package} is missing here, which this command needs:"
                " pip install '.[workflow]' in a checkout, or use .venv/bin/kveval of one"
                " that `bash scripts/setup.sh` has set up"
            )
    return "".join(traceback.format_exception(error)).rstrip()


app = typer.Typer(
    name=NAME,
    cls=Commands,
    help="Answer questions about campaigns of KV-cache offload; `snakemake` measures and reports them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"{NAME} {__version__}")
        raise typer.Exit


@app.callback()
def kveval(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the version and exit.",
        ),
    ] = False,
) -> None:
    """Answer questions about campaigns of KV-cache offload; `snakemake` measures and reports them."""


@app.command(rich_help_panel=CAMPAIGNS)
def plan(
    campaign: CampaignFile = None,
    site: SiteFile = None,
    changes: Changes = None,
    directory: Directory = None,
    as_json: Json = False,
    ask_servers: Annotated[
        bool,
        typer.Option(
            "--probe",
            help="Ask servers that run already whether they are those of the stored runs.",
        ),
    ] = False,
) -> None:
    """Say what would be measured and why, its GPU hours and disk, and what it can show."""
    from kveval.workflow.command.planning import show_plan

    with campaign_context(campaign, site, changes, directory) as context:
        show_plan(context, as_json=as_json, ask_servers=ask_servers)


@app.command(rich_help_panel=CAMPAIGNS)
def models(
    campaign: CampaignFile = None,
    site: SiteFile = None,
    changes: Changes = None,
    directory: Directory = None,
    as_json: Json = False,
) -> None:
    """List the models of the catalogue: parameters, layers, bytes of KV cache."""
    from kveval.workflow.command.models import show_models

    with campaign_context(campaign, site, changes, directory) as context:
        show_models(context, as_json=as_json)


@app.command(rich_help_panel=CAMPAIGNS)
def doctor(
    campaign: CampaignFile = None,
    site: SiteFile = None,
    changes: Changes = None,
    slots: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Measurements that snakemake will run at once, where a profile or"
            " --resources measurement_slot=N says so; by default as many as the campaign's cluster.slots.",
        ),
    ] = None,
    directory: Directory = None,
    as_json: Json = False,
) -> None:
    """Check whether the campaign can run here; name what is missing, and the fix. 1 if it cannot."""
    from kveval.workflow.command.engine import show_findings

    with campaign_context(campaign, site, changes, directory) as context:
        show_findings(context, slots=slots, as_json=as_json)


@app.command(rich_help_panel=CAMPAIGNS)
def deploy_one(
    campaign: CampaignFile = None,
    site: SiteFile = None,
    changes: Changes = None,
    cell: Annotated[
        str,
        typer.Option(
            metavar="MODEL/SCENARIO/CPU_BLOCKS",
            help="The cell; by default the one that requests most.",
        ),
    ] = "",
    directory: Directory = None,
    as_json: Json = False,
) -> None:
    """Deploy one cell on the cluster, send it requests, and remove it again. 1 if that fails."""
    from kveval.workflow.command.engine import deploy_cell

    with campaign_context(campaign, site, changes, directory) as context:
        deploy_cell(context, cell=cell, as_json=as_json)


@app.command(rich_help_panel=CAMPAIGNS)
def teardown(
    campaign: CampaignFile = None,
    site: SiteFile = None,
    changes: Changes = None,
    directory: Directory = None,
    as_json: Json = False,
) -> None:
    """Remove what killed measurements have left on the campaign's cluster, or on this host."""
    from kveval.workflow.command.engine import remove_remains

    with campaign_context(campaign, site, changes, directory) as context:
        remove_remains(context, as_json=as_json)


@app.command(rich_help_panel=STORED)
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


@app.command(rich_help_panel=STORED)
def verify(
    campaign: CampaignFile = None,
    site: SiteFile = None,
    changes: Changes = None,
    cores: Annotated[int, typer.Option(min=1, help="Threads that hash files.")] = 4,
    directory: Directory = None,
    as_json: Json = False,
) -> None:
    """Check that every measurement is still what was measured. 1 if anything was wrong."""
    from kveval.workflow.command.store import check_store

    with campaign_context(campaign, site, changes, directory) as context:
        check_store(context, cores=cores, as_json=as_json)


@app.command(rich_help_panel=STORED)
def prune(
    campaign: CampaignFile = None,
    site: SiteFile = None,
    changes: Changes = None,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete what is listed.")
    ] = False,
    kinds: Annotated[
        list[PruneKind] | None,
        typer.Option("--kind", help="Of this kind alone; may be repeated."),
    ] = None,
    older_than: Annotated[
        float,
        typer.Option(metavar="DAYS", min=0, help="Finished at least so many days ago."),
    ] = 0,
    also: Annotated[
        list[Path] | None,
        typer.Option(
            help="A further campaign, or another copy of the workflow, that uses the store; may be repeated."
        ),
    ] = None,
    directory: Directory = None,
    as_json: Json = False,
) -> None:
    """List what no campaign and no result refers to; delete it only on request."""
    from kveval.workflow.command.store import prune_store

    others = [path.absolute() for path in also or ()]
    with campaign_context(campaign, site, changes, directory) as context:
        prune_store(
            context,
            delete=delete,
            kinds=[kind.value for kind in kinds or ()],
            older_than_days=older_than,
            also=others,
            as_json=as_json,
        )


for plugin in installed():
    plugin.add_commands(app)


def run() -> None:
    """Run the command line of this process."""
    if hint := os.environ.get(HINT_VARIABLE):
        atexit.register(print, hint, file=sys.stderr)
    atexit.register(_flush)
    app()


def _flush() -> None:
    """Write what is left to write, unless its reader has gone, as in a pipe into `head`."""
    if sys.stdout is None:
        # It was closed by whoever started this.
        return
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
