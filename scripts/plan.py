"""Print what a campaign would measure, why, at what cost and in which order; and write a CSV with a row per run."""

import os
from pathlib import Path

from kveval.campaign.loading import load_config
from kveval.host import hardware
from kveval.workflow.planning.order import planned_runs
from kveval.workflow.planning.plan import make_plan
from kveval.workflow.planning.stored import StoreIndex, frozen, pointed
from kveval.workflow.planning.text import PlanText

if __name__ == "__main__":
    params = snakemake.params
    config, results = (
        load_config(params.campaign, Path(params.catalogues)),
        Path(params.results),
    )
    if params.taken:
        said = [f"Campaign {config.campaign.name}: {params.taken}"]
    else:
        index, pointers = (
            StoreIndex.read(Path(params.store)),
            pointed(results, planned_runs(config)),
        )
        host = hardware.probe() if config.campaign.engine == "local" else {}
        planned = make_plan(
            config, pointers, index, host.get("fingerprint"), frozen(config, results)
        )
        plan = PlanText(planned, index, os.cpu_count() or 1, host.get("memory_bytes"))
        plan.write_table(Path(params.table))
        said = [*plan.lines(), "", f"Table: {params.table}"]
    Path(snakemake.log[0]).write_text("\n".join([*said, ""]))
