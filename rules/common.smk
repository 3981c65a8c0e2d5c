# The configuration, and the few names every rule uses.
import json
import os
import random
import sys
import time
from pathlib import Path

import yaml
from snakemake.utils import update_config

sys.path.append(f"{workflow.basedir}/scripts")

from kveval.config import ConfigError, load_config
from kveval.failures import REPORT_COMMAND, causes
from kveval.figure_names import figure_names


def campaign_source():
    """The campaign's own file, so that a mistake can be named with its place. Not `config`: there, Snakemake has merged a
    --configfile into the default campaign, key by key. With --config or several files, their merged values."""
    files = workflow.overwrite_configfiles or ["config/config.yaml"]
    overrides = workflow.config_settings.config
    if len(files) == 1 and not overrides:
        return Path(files[0])
    values = {}
    for part in [*(yaml.safe_load(Path(file).read_text()) for file in files), overrides or {}]:
        update_config(values, part)
    return values


try:
    CONFIG = load_config(campaign_source(), Path("config"))
except ConfigError as error:
    raise WorkflowError(f"The configuration cannot be used:\n{error}")

BEGAN = time.time()
RESULTS = CONFIG.campaign.results
LOGS = f"logs/{CONFIG.campaign.name}"
STORE = "results/measurements"
SERVER_ENVIRONMENT = ".server-venv"
CAMPAIGN_FILE = f"{LOGS}/campaign.yaml"
CAMPAIGN_RUNS = f"{LOGS}/runs.txt"
CELL = f"{RESULTS}/{{model}}/{{scenario}}/{{cpu_blocks}}"
RUNS = range(1, CONFIG.campaign.runs + 1)
CELL_FOLDERS = [f"{RESULTS}/{cell.path}" for cell in CONFIG.cells]
POINTERS = [f"{cell}/run-{run}/measurement.json" for run in RUNS for cell in CELL_FOLDERS]
FIGURES = [f"{RESULTS}/figures/{name}.png" for name in figure_names([cell.model for cell in CONFIG.cells])]
COMPARISON = {
    "settings": CONFIG.campaign.comparison.model_dump(),
    "baselines": {name: scenario.baseline for name, scenario in CONFIG.catalogue.scenarios.items()},
}
# What the report holds the measurements against.
PLAN = {
    "name": CONFIG.campaign.name,
    "title": CONFIG.campaign.title,
    "description": CONFIG.campaign.description,
    "runs": CONFIG.campaign.runs,
    "cells": [(cell.model, cell.scenario, cell.cpu_blocks) for cell in CONFIG.cells],
    "scenarios": {
        cell.scenario: {
            "title": CONFIG.catalogue.scenarios[cell.scenario].title,
            "baseline": CONFIG.catalogue.scenarios[cell.scenario].baseline,
            "exercised": [dict(entry) for entry in CONFIG.resolve(cell).exercised],
        }
        for cell in CONFIG.cells
    },
    "margin": CONFIG.campaign.comparison.margin,
    "alpha": CONFIG.campaign.comparison.alpha,
}


wildcard_constraints:
    **CONFIG.wildcard_constraints,
    figure="[A-Za-z0-9._+-]+",


onstart:
    folder = Path(LOGS)
    folder.mkdir(parents=True, exist_ok=True)
    source = campaign_source()
    content = source.read_text() if isinstance(source, Path) else yaml.safe_dump(source)
    Path(CAMPAIGN_FILE).write_text(content)
    Path(CAMPAIGN_RUNS).write_text("\n".join(POINTERS) + "\n")
    for warning in CONFIG.warnings:
        logger.warning(f"Configuration: {warning}")


onerror:
    failed = causes(map(Path, POINTERS), Path(RESULTS), Path(LOGS), since=BEGAN)
    if failed:
        logger.error("Some measurements failed; the others are kept, and running again does the rest:")
    for run, reason in failed.items():
        logger.error(f"  {run}: {reason}")
    configured = " ".join(os.path.relpath(file) for file in workflow.overwrite_configfiles)
    logger.error(
        f"A report over what there is: {REPORT_COMMAND}" + f" --configfile {configured}" * bool(configured)
    )


def cell_of(wildcards):
    """The cell a job is about; a cell that makes no sense ends the plan with its reason."""
    try:
        return CONFIG.cell(wildcards.model, wildcards.scenario, wildcards.cpu_blocks)
    except ConfigError as error:
        raise WorkflowError(str(error))


def measurement_of(wildcards):
    return CONFIG.measurement_id(cell_of(wildcards))


def required_counters(wildcards):
    """The counters that prove the cell's arm active. They judge a measurement and do not define it."""
    return [dict(entry) for entry in CONFIG.resolve(cell_of(wildcards)).exercised]


def specification_of(wildcards):
    return json.dumps(CONFIG.specification(cell_of(wildcards)), sort_keys=True)


def block_priority(wildcards):
    """Randomised blocks: all first runs before all second ones, the cells of a block in a random order of its own."""
    order = random.Random(f"{CONFIG.campaign.seed}/{wildcards.run}/{cell_of(wildcards).path}").randrange(1000)
    return 1000 * (1000 - int(wildcards.run)) + order


def library(*modules):
    """Files of kveval that a rule's result depends on: Snakemake does not see imports."""
    found = []
    for module in modules:
        path = Path(workflow.basedir) / "scripts" / "kveval" / module
        files = sorted(path.rglob("*.py")) if path.is_dir() else [path if path.suffix else path.with_suffix(".py")]
        found += [str(file.relative_to(workflow.basedir)) for file in files]
    return found
