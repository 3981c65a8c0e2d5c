"""The command `kveval curve`, what `kveval plan` says of tiers, the rules of predictions and their section."""
# ruff: noqa: PLC0415

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kveval.workflow.command.options import (
    CAMPAIGNS,
    CampaignFile,
    Changes,
    Directory,
    Json,
    SiteFile,
    campaign_context,
)
from kveval.workflow.plugin import Plugin

if TYPE_CHECKING:
    from kveval.configuration.config import Config
    from kveval.workflow.planning.plan import PlanNotes
    from kveval.workflow.planning.stored import StoreIndex


def _add_commands(app: typer.Typer) -> None:
    app.command("curve", rich_help_panel=CAMPAIGNS)(_curve)


def _curve(
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
    from kveval.plugins.curve.command import changes_for_model, show_curve

    if model_config is not None:
        changes = [*(changes or ()), *changes_for_model(campaign, model_config)]
    with campaign_context(campaign, site, changes, directory) as context:
        show_curve(context, as_json=as_json)


def _notes(config: Config, store: StoreIndex) -> PlanNotes:
    from kveval.plugins.curve.plan.notes import plan_notes

    return plan_notes(config, store)


_HERE = Path(__file__).parent
PLUGIN = Plugin(
    "curve",
    _add_commands,
    _HERE / "curve.smk",
    _HERE / "gain.md.j2",
    section_after="hits",
    plan=_notes,
)
