"""The text that is printed, and what is given back, at the end of a run of snakemake in which something failed."""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from kveval.measure.failures import REPORT_COMMAND, causes
from kveval.workflow.campaign_plan import WorkflowPlan


def after_failures(
    plan: WorkflowPlan, configfiles: Sequence[Path], since: float, warn: Callable[[str], None]
) -> Iterator[str]:
    """Yield the lines that name every measurement that failed and its cause, and how to get a report all the same.

    `since`: when snakemake began, epoch seconds; `configfiles`: those of --configfile. On a cluster, what the
    campaign's jobs share there is given back; `warn` hears what cannot be.
    """
    failed = causes(plan.attempted, Path(plan.results), Path(plan.logs), since=since)
    if failed:
        yield "Some measurements failed; the others are kept, and running again does the rest:"
        yield from (f"  {run}: {reason}" for run, reason in failed.items())
        campaign = plan.config.campaign
        if campaign.cluster is not None:
            from kveval.engines.kubernetes.shared_objects import release_after_failures  # noqa: PLC0415  (no plan loads the client)

            release_after_failures(campaign.cluster, campaign.name, warn)
    option = f" --configfile {' '.join(map(os.path.relpath, configfiles))}" if configfiles else ""
    yield f"A report over what there is: {REPORT_COMMAND}{option}"
