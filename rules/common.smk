# The campaign, and the few names every rule uses.
import json
import os
import re
import shlex
import sys
import time
from pathlib import Path

sys.path.append(str(Path(workflow.snakefile).resolve().parents[1] / "scripts"))

from kveval.campaign.problems import ConfigError
from kveval.report.figures.names import FAMILIES, figure_names, find_figure
from kveval.report.files import APPENDICES
from kveval.workflow.campaign_plan import SO_FAR, WorkflowPlan
from kveval.workflow.campaign_source import campaign_source, complete_values
from kveval.workflow.console import (
    after_failures,
    after_stop,
    after_success,
    before,
    explain,
)
from kveval.workflow.console import print_last, when_nothing_was_to_do
from kveval.workflow.code_digest import code_behind
from kveval.workflow.directives import WhenPrinted, captioned, captions_of, growing
from kveval.workflow.former_targets import FORMER_TARGETS, end_with_command
from kveval.workflow.invocation import (
    Asked,
    Invocation,
    SlurmPolling,
    drains,
    left_elsewhere,
    limit_of,
)
from kveval.workflow.invocation import made_files, plan_anyway, target_names
from kveval.workflow.slurm import UnseenJobs, require_seen_jobs
from kveval.workflow.stopping import DRAINED, INTERRUPTED, Stopping


def source(name):
    """Return a file of this repository, relative to the working directory, which may be that of another workflow."""
    return os.path.relpath(Path(workflow.snakefile).parents[1] / name)


BEGAN = time.time()
STOPPING = Stopping.watch(workflow, logger.handlers)
INVOCATION = Invocation.of(workflow)
CATALOGUES, METRICS = source("config"), source("config/metrics.yaml")
SCRIPTS, SERVER_ENVIRONMENT = shlex.quote(source("scripts")), shlex.quote(
    source(".server-venv")
)
STORE, IMPORT_INDEX = "results/measurements", "results/imports"

try:
    SOURCE = campaign_source(
        GIVEN, INVOCATION.configfiles, Path(source("config/config.yaml"))
    )
    VALUES = complete_values(SOURCE)
except ConfigError as error:
    raise WorkflowError(f"The configuration cannot be used:\n{error}")

PLAN = WorkflowPlan.of(
    SOURCE,
    Path(CATALOGUES),
    Path(IMPORT_INDEX),
    jobs_share_folder=INVOCATION.shared_folder,
)
CAMPAIGN = PLAN.config.campaign
RESULTS, LOGS = PLAN.results, PLAN.logs
# {so_far} is empty, or the folder of a report on the runs that exist: the same rules with fewer runs.
MEASURED_CELL = f"{RESULTS}/{{model}}/{{scenario}}/{{cpu_blocks}}"
CELL = f"{RESULTS}/{{so_far}}{{model}}/{{scenario}}/{{cpu_blocks}}"
ANALYSIS = f"{RESULTS}/{{so_far}}analysis"
FIGURES = f"{RESULTS}/{{so_far}}figures"
REPORT = f"{RESULTS}/{{so_far}}REPORT.md"
# The file that stands for a run in the analysis, and the run's files that are inputs where jobs share no folder.
RUN, RUN_FILES = (
    ("measurement.json", [])
    if INVOCATION.shared_folder
    else ("shared.json", ["stored/run.json", "stored/raw"])
)
# Number of measurements at the same time, unless a profile or --resources sets it.
MEASUREMENT_SLOTS = limit_of(
    workflow, "measurement_slot", CAMPAIGN.cluster.slots if CAMPAIGN.cluster else 1
)
# Resources of jobs that read all runs. The constants here and in the rules were measured: docs/execution.md.
MB_FOR_ALL, MINUTES_FOR_ALL = growing(800, 0.7, len(PLAN.runs)), growing(
    10, 0.02, len(PLAN.runs)
)


wildcard_constraints:
    **PLAN.config.wildcard_constraints,
    so_far=f"({SO_FAR})?",


def doing(verb):
    """Return the parameter that begins a message: `verb` (Measuring), or Adopting for what the store already holds."""

    def began(wildcards, input):
        return WhenPrinted(
            lambda: "Adopting" if PLAN.adoptable(wildcards, Path(STORE)) else verb
        )

    return began


def runs_of_cell(wildcards):
    """Input function: the runs of a job's cell. Those that are absent or not what is planned are made, or made again.

    Here and not in the rules that make runs, because Snakemake takes long to call functions of thousands of jobs.
    """
    plan_anyway(workflow, PLAN.due_runs(wildcards))
    return PLAN.files_of_cell(RUN)(wildcards)


def tables_for_report(wildcards):
    """Input function without files: have the tables that are not of the planned runs made again.

    It is the first one of its rule, because it also ends snakemake where there is nothing to report so far.
    """
    if wildcards.so_far:
        PLAN.require_something_so_far()
        return []
    # A report that is made elsewhere is not here to be compared.
    return plan_anyway(
        workflow,
        PLAN.due_tables(ALL_RUNS.format(so_far="")) if INVOCATION.shared_folder else [],
    )


onstart:
    try:
        require_seen_jobs(SlurmPolling.of(workflow), warn=logger.warning)
    except UnseenJobs as error:
        raise WorkflowError(str(error))
    before(PLAN, Asked.of(workflow), warn=logger.warning)


onsuccess:
    print_last(after_success(PLAN, Asked.of(workflow)))


onerror:
    ended = STOPPING.finish()
    ending = (PLAN, Asked.of(workflow), INVOCATION.configfiles, BEGAN)
    if STOPPING.reason:
        why = f"Stopped ({STOPPING.reason}): {ended}. {left_elsewhere(workflow)}".rstrip()
        print_last(
            after_stop(*ending, why=why, warn=logger.warning), STOPPING.output
        )
        # In place of Snakemake's "At least one job did not complete", with exit status 1.
        raise SystemExit(INTERRUPTED)
    if drains(workflow):
        why = "Stopped (SIGTERM) when the running jobs had ended; no others were started."
        print_last(after_stop(*ending, why=why, warn=logger.warning))
        raise SystemExit(DRAINED)
    print_last(after_failures(*ending, warn=logger.warning))


logger.addFilter(
    lambda record: explain(record, PLAN, target_names(workflow), made_files(workflow))
)
when_nothing_was_to_do(lambda: Asked.idle(workflow), PLAN)
