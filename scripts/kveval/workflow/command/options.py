"""Options that several commands of `kveval` have, and the groups in which its help lists commands."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

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
RUNNING, CAMPAIGNS = "A server that runs", "Campaigns"
STORED, BUILDS = "The store", "Builds"


@contextlib.contextmanager
def campaign_context(
    file: Path | None,
    site: Path | None,
    changes: list[str] | None,
    directory: Path | None,
) -> Iterator[CampaignContext]:
    """Yield the campaign that these options name; meanwhile its working directory is that of the process.

    Raises ConfigError, OptionError.
    """
    from kveval.workflow.command.campaign import (  # noqa: PLC0415  (slow, not for help)
        CampaignOptions,
        working_on,
    )

    with working_on(CampaignOptions(file, site, changes or (), directory)) as context:
        yield context
