"""Every command of `kveval` with its options and help; what answers is imported when a command is called."""
# ruff: noqa: PLC0415

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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

if TYPE_CHECKING:
    from kveval.workflow.command.campaign import CampaignContext

CampaignFile = Annotated[
    Path | None,
    typer.Argument(
        metavar="CAMPAIGN",
        help="The campaign's file, or the name of one in config/campaigns, such as smoke; config/config.yaml if none"
        " is named.",
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
NAME = "kveval"
RUNNING, CAMPAIGNS = "A server that runs", "Campaigns"
STORED, BUILDS = "The store", "Builds"


class PruneKind(StrEnum):
    """Kinds of entries that nothing refers to: those of kveval.workflow.upkeep.prune."""

    MEASUREMENT = "measurement"
    IMPORT = "import"
    FAILED = "failed"
    DAMAGED = "damaged"
    PARTIAL = "partial"
    INCOMING = "incoming"
    PRUNED = "pruned"


class TimeUnit(StrEnum):
    """Units of times: those of kveval.load.request_log."""

    S = "s"
    MS = "ms"
    US = "us"
    NS = "ns"


class PromptSharing(StrEnum):
    """Assumptions of what prompts begin with: kveval.load.conversations.Sharing."""

    TEXT = "text"
    HISTORY = "history"
    PROMPTS = "prompts"
    NONE = "none"


class TraceForm(StrEnum):
    """Forms of files with requests: those of kveval.load.trace_making."""

    LOG = "log"
    MOONCAKE = "mooncake"
    BAILIAN = "bailian"
    HARVARD = "harvard"
    WEKA = "weka"


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


@contextlib.contextmanager
def _campaign(
    file: Path | None,
    site: Path | None,
    changes: list[str] | None,
    directory: Path | None,
) -> Iterator[CampaignContext]:
    from kveval.workflow.command.campaign import CampaignOptions, working_on

    with working_on(CampaignOptions(file, site, changes or (), directory)) as context:
        yield context


@app.command(rich_help_panel=RUNNING)
def attach(
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL",
            help="Where the server answers, in OpenAI's form: http://HOST:PORT, with or without /v1.",
        ),
    ],
    model: Annotated[
        str, typer.Option(help="The model to ask for; by default the server's first.")
    ] = "",
    key_env: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="The environment variable that has the API key; the key itself appears nowhere.",
        ),
    ] = "",
    metrics: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Where the server's metrics are, if not at the same address, as behind a gateway.",
        ),
    ] = "",
    share: Annotated[
        float,
        typer.Option(
            min=0.1,
            max=100.0,
            help="Percent of the device's cache that the three prefixes may take together.",
        ),
    ] = 2.0,
    reset: Annotated[
        bool | None,
        typer.Option(
            "--reset/--no-reset",
            help="Empty the device's cache, without which a tier is not asked; by default only if nobody else is seen.",
            show_default=False,
        ),
    ] = None,
    capacity: Annotated[
        bool,
        typer.Option(
            "--capacity",
            help="Find out how much the caches retain; says before what it evicts and how long it takes, and asks.",
        ),
    ] = False,
    capacity_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="TOKENS",
            help="Tokens that --capacity sends; by default 1.25 times what the server declares.",
        ),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Agree to what --capacity does.")
    ] = False,
    recipe: Annotated[
        bool,
        typer.Option(
            "--recipe",
            help="Print the table that vllm-project/recipes has for a verified offloading option.",
        ),
    ] = False,
    max_requests: Annotated[
        int, typer.Option(min=2, help="Requests for tokens, at most.")
    ] = 200,
    max_ttft: Annotated[
        float,
        typer.Option(
            min=0.1,
            metavar="SECONDS",
            help="Stop at a first token that is later than this.",
        ),
    ] = 10.0,
    as_json: Json = False,
) -> None:
    """Ask a server that runs already: what it is, what a prefix costs computed and cached, whether its tier serves."""
    from kveval.probe.client import Limits
    from kveval.probe.survey import Options
    from kveval.workflow.command.attach import show_attached

    show_attached(
        url,
        Options(model, share / 100, reset, capacity, capacity_tokens),
        Limits(max_requests, max_ttft),
        metrics_url=metrics,
        key_variable=key_env,
        agrees=yes,
        as_recipe=recipe,
        as_json=as_json,
    )


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

    with _campaign(campaign, site, changes, directory) as context:
        show_plan(context, as_json=as_json, ask_servers=ask_servers)


@app.command(rich_help_panel=CAMPAIGNS)
def curve(
    campaign: CampaignFile = None,
    site: SiteFile = None,
    changes: Changes = None,
    directory: Directory = None,
    model_config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The config.json of a model that takes the place of the campaign's.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compute what every tier size would serve of the load, and what it buys."""
    from kveval.workflow.command.planning import changes_for_model, show_curve

    if model_config is not None:
        changes = [*(changes or ()), *changes_for_model(campaign, model_config)]
    with _campaign(campaign, site, changes, directory) as context:
        show_curve(context, as_json=as_json)


@app.command(rich_help_panel=CAMPAIGNS)
def trace(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="A log of requests (JSON lines, a JSON list or CSV) or a trace; plain, .gz or .zst.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="The trace's file, compressed if it ends in .gz or .zst; by default FILE's name in config/traces/"
            " of the checkout, or here without one.",
        ),
    ] = None,
    fields: Annotated[
        list[str] | None,
        typer.Option(
            "--field",
            metavar="KIND=NAME",
            help="The log's field for time, session, prompt or answer (their tokens), request (its id) or text, where it"
            " is not recognised; a.b is field b in a. May be repeated.",
        ),
    ] = None,
    time_unit: Annotated[
        TimeUnit | None,
        typer.Option(
            help="Unit of times that are numbers; by default by name and size."
        ),
    ] = None,
    sharing: Annotated[
        PromptSharing | None,
        typer.Option(
            help="What prompts begin with: what their text has in common; the earlier prompt and answer of their session"
            " (history), or its prompt alone (prompts); nothing of it. By default text where there is text, else history."
        ),
    ] = None,
    shared_prefix_tokens: Annotated[
        int,
        typer.Option(
            min=0,
            help="Tokens with which all conversations begin, such as a system prompt's.",
        ),
    ] = 0,
    hash_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Tokens of a block of the trace; by default 32, or those of the form.",
        ),
    ] = None,
    form: Annotated[
        TraceForm | None,
        typer.Option(help="The file's form, where it is not recognised."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a trace of a log of requests, which a campaign can replay; say what is in it."""
    from kveval.load.conversations import Sharing
    from kveval.load.trace_making import TraceOptions
    from kveval.workflow.command.trace import named_fields, show_trace

    options = TraceOptions(
        form=form.value if form else "",
        hash_tokens=hash_tokens,
        sharing=Sharing(sharing.value) if sharing else None,
        prefix_tokens=shared_prefix_tokens,
        fields=named_fields(fields or ()),
        time_unit=time_unit.value if time_unit else "",
    )
    show_trace(file, out, options, as_json=as_json)


@app.command(name="import", rich_help_panel=CAMPAIGNS)
def import_(
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
    from kveval.workflow.command.import_sheet import write_sheet

    write_sheet(folders, sheet, as_json=as_json)


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

    with _campaign(campaign, site, changes, directory) as context:
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

    with _campaign(campaign, site, changes, directory) as context:
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

    with _campaign(campaign, site, changes, directory) as context:
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

    with _campaign(campaign, site, changes, directory) as context:
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

    with _campaign(campaign, site, changes, directory) as context:
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
    with _campaign(campaign, site, changes, directory) as context:
        prune_store(
            context,
            delete=delete,
            kinds=[kind.value for kind in kinds or ()],
            older_than_days=older_than,
            also=others,
            as_json=as_json,
        )


@app.command(rich_help_panel=BUILDS)
def check(
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
    from kveval.workflow.check.check import CheckRequest
    from kveval.workflow.command.builds import check_build

    request = CheckRequest(candidate, base, arms or (), blocks)
    with _campaign(campaign, site, changes, directory) as context:
        check_build(context, request, as_json=as_json)


@app.command(rich_help_panel=BUILDS)
def history(
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
    from kveval.workflow.command.store import add_to_history

    places = [folder.absolute() for folder in folders or ()]
    with _campaign(campaign, site, changes, directory) as context:
        add_to_history(
            context,
            folders=places or [Path("results/history")],
            program=program,
            as_json=as_json,
        )


exports = typer.Typer(
    no_args_is_help=True, help="Hand a campaign's results to other tools."
)
app.add_typer(exports, name="export", rich_help_panel=STORED)


@exports.command("mlflow")
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
    from kveval.workflow.command.export import export_to_mlflow

    export_to_mlflow(results, address, as_json=as_json)


def run() -> None:
    """Run the command line of this process."""
    if hint := os.environ.get(HINT_VARIABLE):
        atexit.register(print, hint, file=sys.stderr)
    atexit.register(_flush)
    app()


def _flush() -> None:
    """Write what is left to write, unless its reader has gone, as in a pipe into `head`."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
