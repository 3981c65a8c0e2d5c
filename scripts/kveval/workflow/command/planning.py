"""`kveval plan`: what a campaign would measure, why, at what cost and in which order."""

from __future__ import annotations

import os

from kveval.host import hardware
from kveval.workflow.campaign_plan import WorkflowPlan
from kveval.workflow.command.campaign import IMPORT_INDEX, STORE, GivenCampaign
from kveval.workflow.command.output import Output
from kveval.workflow.planning.order import planned_runs
from kveval.workflow.planning.plan import make_plan
from kveval.workflow.planning.stored import StoreIndex, frozen, pointed
from kveval.workflow.planning.text import PlanText


def show_plan(given: GivenCampaign, *, as_json: bool) -> None:
    """Print the plan, and write plan.csv with a row per run."""
    config, table = given.config, given.logs / "plan.csv"
    with Output.to(given.logs / "plan.log", as_json=as_json) as output:
        if config.imports or config.compared:
            reads = WorkflowPlan.of(
                given.source,
                given.checkout.catalogues,
                IMPORT_INDEX,
                jobs_share_folder=True,
            ).taken
            output.line(f"Campaign {config.campaign.name}: {reads}")
            output.document({"campaign": config.campaign.name, "runs": []})
            return
        index = StoreIndex.read(STORE)
        pointers = pointed(given.results, planned_runs(config))
        host = hardware.probe() if config.campaign.engine == "local" else {}
        plan = make_plan(
            config,
            pointers,
            index,
            host.get("fingerprint"),
            frozen(config, given.results),
        )
        text = PlanText(plan, index, os.cpu_count() or 1, host.get("memory_bytes"))
        for line in text.lines():
            output.line(line)
        text.write_table(table)
        output.line()
        output.line(f"Table: {table}")
        output.document({"campaign": config.campaign.name, "runs": text.rows()})
