# The campaign, and the few names every rule uses.
import json
import os
import re
import shlex
import sys
import time
from pathlib import Path

# Before an installed kveval: jobs run this checkout, and what plans them must be the same code.
sys.path.insert(0, str(Path(workflow.snakefile).resolve().parents[1] / "scripts"))

from kveval.workflow.stopping import DRAINED, INTERRUPTED, Stopping

# Before the other imports: an interruption amid them ends in a line, too.
STOPPING = Stopping.watch(workflow, logger.handlers)

from kveval.configuration.loading import load_config
from kveval.host.errors import Failure
from kveval.host.hashing import content_hash
from kveval.host.kubeconfig import pin_context
from kveval.host.processes import announce_workflow
from kveval.report.figures.names import FAMILIES, figure_names, find_figure
from kveval.report.files import APPENDICES, COMMAND_VARIABLE
from kveval.workflow.brief_log import shorten_log
from kveval.workflow.campaign_source import (
    campaign_source,
    complete_values,
    resolved_campaign_file,
    write_resolved_campaign,
)
from kveval.workflow.code_digest import code_behind
from kveval.workflow.console import (
    after_failures,
    after_stop,
    after_success,
    before,
    explain,
)
from kveval.workflow.console import print_last, when_nothing_was_to_do
from kveval.workflow.directives import (
    WhenPrinted,
    captioned,
    captions_of,
    per_run_resource,
)
from kveval.workflow.invocation import (
    Invocation,
    RequestedJobs,
    SlurmPolling,
    beside_snakemake,
    drains,
    failed_analyses,
    left_elsewhere,
    limit_of,
)
from kveval.workflow.invocation import (
    is_executing,
    made_files,
    plan_anyway,
    record_parameters_without_pandas,
    target_names,
)
from kveval.workflow.plugin import rule_files, sections_beside
from kveval.workflow.report_settings import (
    campaign_models,
    comparison_settings,
    figure_families,
    report_command,
    report_settings,
)
from kveval.workflow.restoring import Restoring
from kveval.workflow.runs import PILOT, SO_FAR, Runs
from kveval.workflow.slurm import UnseenJobs, require_seen_jobs


def source(name):
    """Return a file of this repository, relative to the working directory, which may be that of another workflow."""
    return os.path.relpath(Path(workflow.snakefile).parents[1] / name)


BEGAN = time.time()
INVOCATION = Invocation.of(workflow)
# A workflow that uses this one as a module has a console of its own, and parameters of any kind.
if Path(workflow.main_snakefile).samefile(source("Snakefile")):
    shorten_log(workflow, STOPPING.handlers)
    record_parameters_without_pandas()
CATALOGUES, METRICS = source("config"), source("config/metrics.yaml")
SCRIPTS, SERVER_ENVIRONMENT = shlex.quote(source("scripts")), shlex.quote(
    source(".server-venv")
)
# How a rule of a plug-in runs a module.
MODULE = f"PYTHONPATH={SCRIPTS}:${{{{PYTHONPATH:-}}}} python -m"
STORE = "results/measurements"

try:
    SOURCE = campaign_source(
        GIVEN, INVOCATION.configfiles, Path(source("config/config.yaml"))
    )
    VALUES = complete_values(SOURCE)
    CONFIG = load_config(SOURCE, Path(CATALOGUES))
except Failure as error:
    raise WorkflowError(f"The configuration cannot be used:\n{error}")

RUNS = Runs.of(CONFIG, jobs_share_folder=INVOCATION.shared_folder)
CAMPAIGN = CONFIG.campaign
RESTORING = Restoring(CAMPAIGN)
# What jobs read: inputs.smk.
CAMPAIGN_FILE = resolved_campaign_file(VALUES)
RESULTS, LOGS = CAMPAIGN.results, f"logs/{CAMPAIGN.name}"
# {so_far} is empty, or the folder of a report on the runs that exist: the same rules with fewer runs.
MEASURED_CELL = f"{RESULTS}/{{model}}/{{scenario}}/{{cpu_blocks}}"
CELL = f"{RESULTS}/{{so_far}}{{model}}/{{scenario}}/{{cpu_blocks}}"
ANALYSIS = f"{RESULTS}/{{so_far}}analysis"
FIGURES = f"{RESULTS}/{{so_far}}figures"
REPORT = f"{RESULTS}/{{so_far}}REPORT.md"
ALL_RUNS = f"{ANALYSIS}/runs.jsonl.zst"
CELL_FOLDERS = [f"{RESULTS}/{cell.path}" for cell in RUNS.cells]
MODELS, FIGURE_FAMILIES = campaign_models(RUNS), figure_families(RUNS)
SETTINGS = report_settings(RUNS)
# In the environment of the jobs, also of those that read this file again: as a parameter it would make a report out of
# date as soon as somebody asks for it from another folder.
os.environ.setdefault(
    COMMAND_VARIABLE, report_command(INVOCATION.configfiles, GIVEN.get("site"))
)
announce_workflow()
if CAMPAIGN.cluster is not None and CAMPAIGN.cluster.context is None:
    pin_context(CAMPAIGN.cluster.kubeconfig)
# The file that stands for a run in the analysis, and the run's files that are inputs where jobs share no folder.
RUN_POINTER, RUN_FILES = (
    ("measurement.json", [])
    if INVOCATION.shared_folder
    else ("shared.json", ["stored/run.json", "stored/raw"])
)
# Number of measurements at the same time, unless a profile or --resources sets it.
MEASUREMENT_SLOTS = limit_of(
    workflow, "measurement_slot", CAMPAIGN.cluster.slots if CAMPAIGN.cluster else 1
)
# Resources of jobs that read all runs. The constants here and in the rules were measured: docs/execution.md.
MB_FOR_ALL = per_run_resource(800, 0.7, len(RUNS.planned))
MINUTES_FOR_ALL = per_run_resource(10, 0.02, len(RUNS.planned))


wildcard_constraints:
    **CONFIG.wildcard_constraints,
    so_far=f"({SO_FAR})?",


onstart:
    try:
        require_seen_jobs(SlurmPolling.of(workflow), warn=logger.warning)
    except UnseenJobs as error:
        raise WorkflowError(str(error))
    before(
        RUNS,
        RequestedJobs.of(workflow),
        warn=logger.warning,
        measured_here="benchmark" not in INVOCATION.sent,
        slots=MEASUREMENT_SLOTS,
        cores=beside_snakemake(workflow),
    )
    RESTORING.begin(RequestedJobs.of(workflow).measured)


onsuccess:
    restored, lines = RESTORING.finish()
    # What is registered first is printed last.
    print_last(lines)
    print_last(after_success(RUNS, RequestedJobs.of(workflow)))
    if not restored:
        raise SystemExit(1)


onerror:
    ended = STOPPING.finish()
    _, lines = RESTORING.finish()
    print_last(lines, STOPPING.output)
    requested = RequestedJobs.of(workflow)
    if STOPPING.reason:
        why = f"Stopped ({STOPPING.reason}): {ended}. {left_elsewhere(workflow)}".rstrip()
        print_last(
            after_stop(RUNS, requested, BEGAN, why, logger.warning), STOPPING.output
        )
        # In place of Snakemake's "At least one job did not complete", with exit status 1.
        raise SystemExit(INTERRUPTED)
    if drains(workflow):
        why = "Stopped (SIGTERM) when the running jobs had ended; no others were started."
        print_last(after_stop(RUNS, requested, BEGAN, why, logger.warning))
        raise SystemExit(DRAINED)
    print_last(
        after_failures(RUNS, BEGAN, logger.warning, failed_analyses(workflow))
    )


logger.addFilter(
    lambda record: explain(record, RUNS, target_names(workflow), made_files(workflow))
)
when_nothing_was_to_do(lambda: RequestedJobs.if_up_to_date(workflow), RUNS)
