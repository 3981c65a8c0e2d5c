"""The runs of a campaign, as its result lists them."""

from __future__ import annotations

from collections.abc import Sequence

from kveval.campaign.types import on_cpu
from kveval.report.data.campaign import ReportPlan
from kveval.report.result.model import ReportedRun
from kveval.store.run_file import Run
from kveval.tables.disturbed_blocks import disturbed_runs


def run_results(plan: ReportPlan, runs: Sequence[Run]) -> list[ReportedRun]:
    """Return the facts of each run, in the order of the runs."""
    disturbed = {id(run) for run in disturbed_runs(runs, plan.runs)}
    return [
        ReportedRun(
            **run.cell.row,
            run=run.run,
            measurement=run.measurement,
            started=run.started,
            hardware=run.hardware.get("fingerprint"),
            nodes=[*run.hardware.get("nodes", ())],
            gpus_of_server=_gpus_of_server(run),
            phases=run.phases,
            disturbed=id(run) in disturbed,
        )
        for run in runs
    ]


def _gpus_of_server(run: Run) -> int | None:
    """The GPUs of one server, None where the device is the CPU, and where the run does not say it."""
    if on_cpu(str(run.specification.get("build", ""))):
        return None
    gpus: int | None = run.specification.get("model", {}).get("tensor_parallel_size")
    return gpus
