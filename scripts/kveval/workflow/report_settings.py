"""Settings of the analysis and the report that follow from a campaign: plain values, as parameters of rules are."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kveval.campaign.catalogue import Model
from kveval.campaign.cell import Cell
from kveval.campaign.sizing import kv_bytes_per_token, parameter_count
from kveval.host.findings import pluralize
from kveval.report.figures.names import FAMILIES, Extent, families_of
from kveval.tables.cells import models_by_size
from kveval.workflow.planning.order import planned_runs
from kveval.workflow.runs import Runs

_OF_SCENARIO = ("title", "baseline", "arm", "store")


def report_settings(runs: Runs) -> dict[str, Any]:
    """Return the plan with which the report compares the measurements: kveval.report.data.campaign."""
    campaign = runs.config.campaign
    runs_of_cell = Counter(cell for cell, _ in runs.planned)
    models = {cell.model for cell in runs.cells}
    remarks = [campaign.description, runs.elsewhere.remarks]
    return {
        "name": campaign.name,
        "title": campaign.title,
        "description": "\n\n".join(filter(None, remarks)),
        # Imported runs were not planned: the number is that of the cell with the most.
        "runs": max((run.run for run in runs.elsewhere.runs), default=campaign.runs),
        "cells": [cell.path for cell in runs.cells],
        "cell_runs": [runs_of_cell[cell] for cell in runs.cells],
        "scenarios": {
            cell.scenario: _scenario(runs, cell)
            for cell in _last_of_scenarios(runs.cells)
        },
        "models": {
            name: _model(model)
            for name, model in runs.config.catalogue.models.items()
            if name in models
        },
        "margin": campaign.comparison.margin,
        "alpha": campaign.comparison.alpha,
        "primary": campaign.comparison.primary,
        "goodput": campaign.goodput.declared if campaign.goodput else {},
        "prices": campaign.prices.declared if campaign.prices else {},
    }


def report_command(configfiles: Iterable[Path], site: str | None) -> str:
    """Return the command that measures what is missing of a campaign and writes its report.

    `configfiles`: those of --configfile; `site`: the value of --config site=, None without one.
    """
    files = " ".join(os.path.relpath(file) for file in configfiles)
    options = [f" --configfile {files}" if files else ""]
    options += [f" --config site={site}" if site else ""]
    return f"snakemake --cores 4 report{''.join(options)}"


def comparison_settings(runs: Runs) -> dict[str, Any]:
    """Return the settings of the comparison, each scenario's baseline, and how many runs the campaign plans by cell.

    Nobody has planned a number of imported runs.
    """
    config = runs.config
    planned = [] if runs.elsewhere.runs else planned_runs(config)
    counts = Counter(cell for cell, _ in planned)
    return {
        "settings": config.campaign.comparison.model_dump(),
        "baselines": {
            name: scenario.baseline
            for name, scenario in config.catalogue.scenarios.items()
        },
        "runs": {cell.path: count for cell, count in counts.items()},
    }


def campaign_models(runs: Runs) -> list[str]:
    """Return the campaign's models, ordered by size."""
    models = runs.config.catalogue.models
    parameters = {
        cell.model: parameter_count(models[cell.model].geometry) for cell in runs.cells
    }
    return models_by_size(list(parameters), parameters)


def figure_families(runs: Runs) -> list[str]:
    """Return the families of figures with data for this campaign; all if the number of levels is not known yet."""
    campaign = runs.config.campaign
    workload = runs.config.catalogue.workloads.get(campaign.workload)
    if runs.elsewhere.runs or workload is None:
        return [*FAMILIES]
    if workload.searched or not workload.given_levels:
        return [*FAMILIES]
    extent = Extent(
        len(workload.given_levels),
        len({cell.model for cell in runs.cells}),
        bool(campaign.goodput),
    )
    return families_of(extent)


def external_runs_summary(runs: Runs) -> str:
    """Return how many cells and runs are imported or compared in place of measuring; "" if the campaign measures."""
    external = runs.elsewhere
    if not external.runs:
        return ""
    cells, number = len(external.cells), len(external.runs)
    how = "compared" if runs.config.compared else "imported"
    return f"{pluralize(cells, 'cell')}, {pluralize(number, 'run')}: {how}; nothing is measured"


def _last_of_scenarios(cells: Iterable[Cell]) -> Iterable[Cell]:
    """Return one cell of every scenario, by which its counters are known, in the order of the scenarios."""
    return {cell.scenario: cell for cell in cells}.values()


def _scenario(runs: Runs, cell: Cell) -> dict[str, Any]:
    scenario = runs.config.catalogue.scenarios[cell.scenario]
    settings = {key: getattr(scenario, key) for key in _OF_SCENARIO}
    return {**settings, "required": runs.required_counters(cell)}


def _model(model: Model) -> dict[str, Any]:
    return {
        "hf_id": model.hf_id,
        "parameters": parameter_count(model.geometry),
        "kv_bytes_per_token": kv_bytes_per_token(
            model.geometry, model.kv_cache_dtype, 1, model.dtype
        ),
    }
