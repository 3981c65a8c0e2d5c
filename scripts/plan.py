"""Print what a campaign would measure, why, at what cost and in which order; and write a CSV with a row per run."""

import os
from pathlib import Path
from typing import Any

from kveval.host import hardware
from kveval.spec.loading import load_config
from kveval.workflow.planning.order import planned_runs
from kveval.workflow.planning.plan import make_plan
from kveval.workflow.planning.stored import StoreIndex, frozen, pointed
from kveval.workflow.planning.text import PlanText


def main(
    campaign: dict[str, Any], catalogues: str, results: str, store: str, taken: str, table: str, log: Path
) -> None:
    """`campaign`: its complete values; `taken`: its runs in words, if none is measured; `log`: gets the plan itself."""
    config, index, folder = load_config(campaign, Path(catalogues)), StoreIndex.read(Path(store)), Path(results)
    if taken:
        log.write_text(f"Campaign {config.campaign.name}: {taken}\n")
        return
    pointers = pointed(folder, planned_runs(config))
    host = hardware.probe()["fingerprint"] if config.campaign.engine == "local" else None
    outline = PlanText(make_plan(config, pointers, index, host, frozen(config, folder)), index, os.cpu_count() or 1)
    outline.write_table(Path(table))
    log.write_text("\n".join([*outline.lines(), "", f"Table: {table}", ""]))


if __name__ == "__main__":
    main(**dict(snakemake.params.items()), log=Path(snakemake.log[0]))
