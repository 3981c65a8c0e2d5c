# The configuration, and the few names every rule uses.
import gc
import json
import os
import shlex
import sys
import time
from collections import Counter
from pathlib import Path

import msgspec
import yaml
from snakemake.utils import update_config

sys.path.append(f"{workflow.basedir}/scripts")

from kveval.importing.compared import combination, require_measured
from kveval.config.problems import ConfigError
from kveval.spec.loading import load_config
from kveval.config.inheritance import campaign_values
from kveval.host.errors import Failure
from kveval.measure.failures import REPORT_COMMAND, causes
from kveval.report.figures.names import FAMILIES, caption_file, figures_of
from kveval.importing.campaign import import_plan
from kveval.importing.table import findings
from kveval.workflow.code_digest import digest, files_behind
from kveval.workflow.resources import growing
from kveval.analysis.cells import by_size
from kveval.workflow.planning.order import planned_runs, priority
from kveval.analysis.levels.pilot import frozen_levels
from kveval.spec.sizing import kv_bytes_per_token, parameter_count

# What a plan is made of stays to its end: looking for garbage in it as often as Python does took a sixth of the time.
gc.set_threshold(100_000, 10, 10)


def campaign_source():
    """The campaign's own file, so that a mistake can be named with its place. Not `config`: there, Snakemake has merged a
    --configfile into the default campaign, key by key. With --config or several files, their merged values."""
    files = workflow.overwrite_configfiles or ["config/config.yaml"]
    # What prune is asked is no part of a campaign.
    given = workflow.config_settings.config or {}
    overrides = {key: value for key, value in given.items() if key not in ("prune", "prune_days", "prune_also")}
    if len(files) == 1 and not overrides:
        return Path(files[0])
    values = {}
    for part in [*(campaign_values(Path(file)) for file in files), overrides]:
        update_config(values, part)
    return values


try:
    SOURCE = campaign_source()
    CONFIG = load_config(SOURCE, Path("config"))
except ConfigError as error:
    raise WorkflowError(f"The configuration cannot be used:\n{error}")

# Without a storage provider the jobs see this folder, wherever they run; with one, only what it carries: rules/sharing.smk.
SHARED_FOLDER = workflow.storage_settings.default_storage_provider is None
if not SHARED_FOLDER and (CONFIG.imports or CONFIG.compared):
    raise WorkflowError(
        f"Campaign {CONFIG.campaign.name} reads results that only this machine has: make its report here, without the "
        "profile that sends the analysis away"
    )

BEGAN = time.time()
IMPORT_INDEX = "results/imports"
try:
    # Runs that this campaign does not measure: of other campaigns that it compares, or from results that there are.
    IMPORTS = combination(CONFIG) if CONFIG.compared else import_plan(CONFIG, Path(IMPORT_INDEX))
except Failure as error:
    raise WorkflowError(str(error))

RESULTS = CONFIG.campaign.results
LOGS = f"logs/{CONFIG.campaign.name}"
STORE = "results/measurements"
SERVER_ENVIRONMENT = ".server-venv"
# Of the folder of results and not of the campaign: a follow-up that shares it changes nothing for the runs that are there.
CAMPAIGN_FILE = f"{RESULTS}/campaign.yaml"
CAMPAIGN_RUNS = f"{RESULTS}/runs.txt"
CELL = f"{RESULTS}/{{model}}/{{scenario}}/{{cpu_blocks}}"
METRICS = "config/metrics.yaml"
# Whether a pilot searches the levels: then they, and with them what is measured, are known once it has run.
SEARCHES = CONFIG.searches
CELLS = [*CONFIG.cells, *IMPORTS.cells]
CELL_FOLDERS = [f"{RESULTS}/{cell.path}" for cell in CELLS]
POINTERS = [f"{RESULTS}/{cell.path}/run-{run}/measurement.json" for cell, run in planned_runs(CONFIG)]
POINTERS += [f"{RESULTS}/{run.cell.path}/run-i{run.run}/measurement.json" for run in IMPORTS.runs]
# By what the analysis knows a run, and which of the run's files its jobs have to be given.
RUN = "measurement.json" if SHARED_FOLDER else "shared.json"
RUN_FILES = [] if SHARED_FOLDER else ["stored/run.json", "stored/raw"]
RUNS = POINTERS if SHARED_FOLDER else [f"{Path(pointer).parent}/{RUN}" for pointer in POINTERS]
RUN_DESCRIPTIONS = [] if SHARED_FOLDER else [f"{Path(pointer).parent}/stored/run.json" for pointer in POINTERS]
RUNS_OF = Counter(pointer.rsplit("/", 2)[0] for pointer in POINTERS)
# What jobs ask for whose inputs are of all runs. Measured, as the constants of the others are: docs/execution.md.
MB_FOR_ALL = growing(800, 0.7, len(POINTERS))
MINUTES_FOR_ALL = growing(10, 0.02, len(POINTERS))
# What the searches for levels leave, where the workload has them searched.
SEARCHED = dict.fromkeys(pilot for cell in CONFIG.cells if (pilot := CONFIG.pilot(cell)) is not None)
PILOTS = [f"{RESULTS}/{cell.path}/pilot/levels.json" for cell in SEARCHED]
PARAMETERS = {cell.model: parameter_count(CONFIG.catalogue.models[cell.model].geometry) for cell in CELLS}
# By size, as everywhere.
MODELS = by_size(list(PARAMETERS), PARAMETERS)
FIGURES = [f"{RESULTS}/figures/{figure.name}.png" for figure in figures_of(MODELS)]
# The list of what is exported, not the files of every cell: Snakemake keeps a record of all inputs for each output.
BENCHMARK_REPORTS = f"{RESULTS}/analysis/benchmark_reports.txt"
# By path, not as `rules.NAME.output`: with one such input Snakemake hashes each list of inputs once per file in it.
COMPLETE = f"{RESULTS}/analysis/complete_metrics.csv"
ALL_RUNS = f"{RESULTS}/analysis/runs.jsonl.zst"
PEAKS = f"{RESULTS}/analysis/peak_throughput_all.csv"
VERDICTS = f"{RESULTS}/analysis/comparison.csv"
# What the comparison writes beside its verdicts.
BESIDE_VERDICTS = [f"{RESULTS}/analysis/{name}.csv" for name in ("contrasts", "averages", "checks")]
# Tables that the report names and does not read.
LINKED = [f"{RESULTS}/analysis/{name}.csv" for name in ("pcp_metrics_peak", "peak_comparison")]
SUMMARIES = [f"{RESULTS}/analysis/{name}.csv" for name in ("summary", "detailed", "pcp_summary_stats")]
COMPARISON = {
    "settings": CONFIG.campaign.comparison.model_dump(),
    "baselines": {name: scenario.baseline for name, scenario in CONFIG.catalogue.scenarios.items()},
}


def proof_of(cell):
    """The counters that prove a cell's arm active. They judge a measurement and do not define it."""
    imported = IMPORTS.runs_of(cell.path)
    return imported[0].required if imported else [dict(entry) for entry in CONFIG.required_counters(cell)]


def found_in(imports):
    """What the report says of runs that were not measured for this campaign."""
    if CONFIG.compared:
        return imports.remarks
    return findings(imports) if imports.runs else ""


# What the report holds the measurements against.
PLAN = {
    "name": CONFIG.campaign.name,
    "title": CONFIG.campaign.title,
    "description": "\n\n".join(filter(None, [CONFIG.campaign.description, found_in(IMPORTS)])),
    # Nobody asked for imported runs: as many as the cell with the most has.
    "runs": max((run.run for run in IMPORTS.runs), default=CONFIG.campaign.runs),
    "cells": [(cell.model, cell.scenario, cell.cpu_blocks) for cell in CELLS],
    "cell_runs": [RUNS_OF[folder] for folder in CELL_FOLDERS],
    "scenarios": {
        cell.scenario: {
            "title": CONFIG.catalogue.scenarios[cell.scenario].title,
            "baseline": CONFIG.catalogue.scenarios[cell.scenario].baseline,
            "arm": CONFIG.catalogue.scenarios[cell.scenario].arm,
            "store": CONFIG.catalogue.scenarios[cell.scenario].store,
            "exercised": proof_of(cell),
        }
        for cell in CELLS
    },
    "models": {
        name: {
            "hf_id": model.hf_id,
            "parameters": PARAMETERS[name],
            "kv_bytes_per_token": kv_bytes_per_token(model.geometry, model.kv_cache_dtype, 1, model.dtype),
        }
        for name, model in CONFIG.catalogue.models.items()
        if name in PARAMETERS
    },
    "vllm": CONFIG.campaign.server.vllm,
    "margin": CONFIG.campaign.comparison.margin,
    "alpha": CONFIG.campaign.comparison.alpha,
}


wildcard_constraints:
    **CONFIG.wildcard_constraints,


onstart:
    for folder in (RESULTS, LOGS):
        Path(folder).mkdir(parents=True, exist_ok=True)
    # Complete, because from another folder it would not find what it extends.
    values = campaign_values(SOURCE) if isinstance(SOURCE, Path) else SOURCE
    Path(CAMPAIGN_FILE).write_text(yaml.safe_dump(values, sort_keys=False, allow_unicode=True))
    Path(CAMPAIGN_RUNS).write_text("\n".join([*POINTERS, ""]))
    for warning in CONFIG.warnings:
        logger.warning(f"Configuration: {warning}")


onerror:
    pilots = [str(Path(levels).with_name("measurement.json")) for levels in PILOTS]
    failed = causes(map(Path, [*pilots, *POINTERS]), Path(RESULTS), Path(LOGS), since=BEGAN)
    if failed:
        logger.error("Some measurements failed; the others are kept, and running again does the rest:")
    for run, reason in failed.items():
        logger.error(f"  {run}: {reason}")
    if failed and CONFIG.campaign.cluster is not None:
        from kveval.engines.kubernetes.shared_objects import release_after_failures

        release_after_failures(CONFIG.campaign.cluster, CONFIG.campaign.name, logger.warning)
    configured = " ".join(os.path.relpath(file) for file in workflow.overwrite_configfiles)
    option = f" --configfile {configured}" if configured else ""
    logger.error(f"A report over what there is: {REPORT_COMMAND}{option}")


def cell_of(wildcards):
    """The cell a job is about; a cell that makes no sense ends the plan with its reason."""
    if CONFIG.imports:
        cell = f"{wildcards.model}/{wildcards.scenario}/{wildcards.cpu_blocks}"
        raise WorkflowError(f"{cell}: was not found, and campaign {CONFIG.campaign.name} imports and measures nothing")
    try:
        return CONFIG.cell(wildcards.model, wildcards.scenario, wildcards.cpu_blocks)
    except ConfigError as error:
        raise WorkflowError(str(error))


def levels_file(wildcards):
    """What the pilot of a cell's baseline froze."""
    return local(f"{RESULTS}/{CONFIG.pilot(cell_of(wildcards)).path}/pilot/levels.json")


def measurement_of(wildcards, input):
    """The measurement's id where its levels are searched: unknown, to Snakemake, as long as they are."""
    return CONFIG.measurement_id(cell_of(wildcards), frozen_levels(Path(input.levels)))


def levels_option(wildcards, input):
    return f"--levels {shlex.quote(input.levels)}"


def pilot_measurement_of(wildcards):
    return CONFIG.pilot_specification(cell_of(wildcards)).measurement_id


def preview_id_of(wildcards):
    return CONFIG.measurement_id(cell_of(wildcards))


# What rule benchmark has besides where a pilot searches the levels. Snakemake remembers no parameter that is made of
# inputs, as the id then is: by `definition` a change plans a rerun.
SEARCHED_PARAMS = {"levels": levels_option, "definition": preview_id_of} if SEARCHES else {}
SEARCHED_OPTION = " {params.levels}" if SEARCHES else ""


def imported_runs(wildcards):
    """The runs of a cell that are imported, none for a cell that is measured."""
    return IMPORTS.runs_of(f"{wildcards.model}/{wildcards.scenario}/{wildcards.cpu_blocks}")


def imported_run(wildcards):
    """What makes an imported run, as plain values."""
    found = [run for run in imported_runs(wildcards) if f"i{run.run}" == wildcards.run]
    if not found:
        raise WorkflowError(
            f"{wildcards.model}/{wildcards.scenario}/{wildcards.cpu_blocks}: no run {wildcards.run} found"
        )
    return msgspec.to_builtins(found[0])


def linked_pointer(wildcards):
    """The pointer of the campaign that measured the run."""
    found = [run for run in imported_runs(wildcards) if CONFIG.compared and f"i{run.run}" == wildcards.run]
    try:
        return [require_measured(run) for run in found]
    except Failure as error:
        raise WorkflowError(str(error))


def of_runs(name):
    """Input function: a file of every run of a cell."""

    def paths(wildcards):
        runs = [f"i{run.run}" for run in imported_runs(wildcards)] or CONFIG.runs_of(cell_of(wildcards))
        folder = f"{RESULTS}/{wildcards.model}/{wildcards.scenario}/{wildcards.cpu_blocks}"
        return [f"{folder}/run-{run}/{name}" for run in runs]

    return paths


def required_counters(wildcards):
    """The counters that prove the cell's arm active, as JSON; null where the run itself says which could be known."""
    return json.dumps(None if imported_runs(wildcards) else proof_of(cell_of(wildcards)), sort_keys=True)


def vllm_of(wildcards):
    """The release of vLLM that a cell ran with: its metrics are named by it."""
    imported = imported_runs(wildcards)
    return imported[0].vllm if imported else CONFIG.campaign.server.vllm


def specification_of(wildcards):
    return json.dumps(CONFIG.specification(cell_of(wildcards)).to_json(), sort_keys=True)


def block_priority(wildcards):
    return priority(CONFIG, cell_of(wildcards), int(wildcards.run))


def code_behind(script, *modules, beside=()):
    """What the text of a script, of all of kveval that it imports and of files `beside` it comes to: as a parameter it
    makes an edited library rerun what rests on it, as Snakemake does not see imports. As inputs, 25 files a job, they
    would take most of the time a plan needs."""
    files = files_behind(Path(workflow.basedir, "scripts", f"{script}.py"), *modules)
    return digest([*files, *(Path(workflow.basedir, name) for name in beside)])


def captioned(figure):
    """A figure's path, marked so that `snakemake --report` shows it with its caption."""
    return report(
        f"{RESULTS}/figures/{figure.name}.png",
        caption=f"../{caption_file(figure.template).relative_to(workflow.basedir)}",
        category=figure.family.capitalize(),
        labels={
            "figure": FAMILIES[figure.family][figure.template].replace(", {model}", ""),
            "model": figure.model or "all",
        },
    )
