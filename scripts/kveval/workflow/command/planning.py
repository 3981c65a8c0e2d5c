"""`kveval plan`: what a campaign would measure and cost."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from kveval.campaign.problems import ConfigError
from kveval.host import hardware
from kveval.host.errors import Failure
from kveval.workflow.command.campaign import STORE, CampaignContext
from kveval.workflow.command.output import Output
from kveval.workflow.planning.host_room import known_room, room_problems
from kveval.workflow.planning.order import planned_runs
from kveval.workflow.planning.plan import Plan, make_plan
from kveval.workflow.planning.stored import (
    StoreIndex,
    deleted_runs,
    frozen,
    read_pointers,
)
from kveval.workflow.planning.text import PlanText
from kveval.workflow.plugin import plan_notes

NONE_RUNS = "\nNo server of this campaign runs already: the workflow starts them."


class NothingToRead(Failure):
    """The results that a campaign imports or compares are not there."""


def show_plan(
    context: CampaignContext, *, as_json: bool, ask_servers: bool = False
) -> None:
    """Print the plan, and write plan.csv with a row per run.

    `ask_servers`: whether servers that run already are compared with those that stored runs were measured on.
    """
    campaign, table = context.config.campaign, context.logs / "plan.csv"
    with Output.to(context.logs / "plan.log", as_json=as_json) as output:
        if context.config.sheet is not None or context.config.compared:
            output.line(f"Campaign {campaign.name}: {_read_elsewhere(context)}")
            output.document({"campaign": campaign.name, "runs": []})
            return
        index = StoreIndex.read(STORE)
        host = hardware.probe() if campaign.engine == "local" else {}
        plan = _plan_of(context, index, host.get("fingerprint"))
        _require_room(context, plan, host)
        notes = [notes_of(context.config, index) for notes_of in plan_notes()]
        cpus, memory = os.cpu_count() or 1, host.get("memory_bytes")
        text = PlanText(plan, index, cpus, memory, notes)
        for line in text.lines():
            output.line(line)
        text.write_table(table)
        servers: list[str] = []
        if ask_servers:
            # What asks servers takes a second to import.
            from kveval.workflow.planning.changed_stacks import changed_stacks  # noqa: PLC0415

            servers += changed_stacks(context.config, index)
            output.line("\nServers that run already:" if servers else NONE_RUNS)
            for line in servers:
                output.line(line)
        output.line(f"\nTable: {table}")
        document = {"campaign": campaign.name, "runs": text.rows()}
        output.document(document | ({"servers": servers} if ask_servers else {}))


def _require_room(
    context: CampaignContext, plan: Plan, host: Mapping[str, Any]
) -> None:
    """Raise ConfigError for cells to be measured whose KV caches their host does not hold."""
    room = known_room(context.config, host)
    if room is None:
        return
    file = context.file or context.checkout.default_campaign
    problems = list(room_problems(context.config, plan.to_measure, room, str(file)))
    if problems:
        raise ConfigError(problems)


def _plan_of(context: CampaignContext, index: StoreIndex, machine: str | None) -> Plan:
    """Return the plan of a campaign whose results are here; `machine`: fingerprint of the host that would measure."""
    pointers = read_pointers(context.results, planned_runs(context.config))
    levels = frozen(context.config, context.results)
    deleted = deleted_runs(context.results, pointers)
    return make_plan(context.config, pointers, index, machine, levels, deleted)


def _read_elsewhere(context: CampaignContext) -> str:
    # Both take a second to import, and most campaigns measure.
    from snakemake.exceptions import WorkflowError  # noqa: PLC0415

    from kveval.workflow.report_settings import (  # noqa: PLC0415
        external_runs_summary,
    )
    from kveval.workflow.runs import Runs  # noqa: PLC0415

    try:
        runs = Runs.of(context.config, jobs_share_folder=True)
    except WorkflowError as error:
        raise NothingToRead(str(error)) from None
    return external_runs_summary(runs)
