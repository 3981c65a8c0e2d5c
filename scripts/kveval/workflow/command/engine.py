"""`kveval doctor`, `deploy-one` and `teardown`: the host or the cluster on which a campaign runs."""

from __future__ import annotations

import shutil

from kveval.host.findings import table, worst
from kveval.workflow.command.campaign import STORE, CampaignContext
from kveval.workflow.command.exits import NO, Ended
from kveval.workflow.command.output import Output
from kveval.workflow.deploy_one import deploy_one
from kveval.workflow.doctor.doctor import diagnose
from kveval.workflow.teardown import tear_down

SLOTS = 1
"""Measurements at the same time on one host."""


def show_findings(
    context: CampaignContext, *, slots: int | None, as_json: bool
) -> None:
    """Print whether the campaign can run; ends with NO if it cannot.

    `slots`: the measurements that snakemake will run at once; None for what the campaign says.
    """
    cluster = context.config.campaign.cluster
    with Output.to(context.logs / "doctor.log", as_json=as_json) as output:
        findings = diagnose(
            context.config,
            _named(context),
            store=STORE,
            server_environment=context.checkout.server_environment,
            at_once=slots or (cluster.slots if cluster else SLOTS),
            say=output.progress,
        )
        width = shutil.get_terminal_size((120, 24)).columns
        output.line(table(findings, width=width))
        output.document({"findings": [vars(finding) for finding in findings]})
    if worst(findings) == "error":
        raise Ended(NO)


def _named(context: CampaignContext) -> str:
    """Return the words that name the campaign to scripts/print_permissions.py."""
    file = context.file or context.checkout.default_campaign
    words = ["CAMPAIGN.yaml" if context.changes else file.as_posix()]
    words += [] if context.site is None else [f"site={context.site}"]
    return " ".join(words)


def deploy_cell(context: CampaignContext, *, cell: str, as_json: bool) -> None:
    """Deploy a cell and remove it again; ends with NO if that fails. `cell`: empty for the one that requests most."""
    with (
        Output.to(context.logs / "deploy_one.log", as_json=as_json) as output,
        output.ended_by_signals(),
    ):
        good, text = deploy_one(
            context.config,
            cell,
            (context.logs / "deploy_one").absolute(),
            context.checkout.server_environment,
        )
        output.line(text)
        output.document({"deployed": good, "text": text})
    if not good:
        raise Ended(NO)


def remove_remains(context: CampaignContext, *, as_json: bool) -> None:
    """Remove what the campaign, or on this host any campaign, has left running, and name it."""
    with Output.to(context.logs / "teardown.log", as_json=as_json) as output:
        lines: list[str] = []

        def say(text: str) -> None:
            lines.append(text)
            output.line(text)

        tear_down(context.config, say)
        output.document({"lines": lines})
