"""A campaign of many cells without their measurements, and a bare workflow of the same jobs, to time planning by."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import yaml
from tests.support.paths import copy_parts

from kveval.configuration.loading import load_config
from kveval.report.figures.names import FAMILIES
from kveval.report.files import APPENDICES
from kveval.store.run_file import pointer_of

PARTS = ("Snakefile", "config", "rules", "scripts", "profiles", "envs")
MODELS, TIERED = 10, 9
"""A model has one cell without a tier, and one for every tiered scenario and size."""
_PER_RUN = ("measurement.json", "pcp.parquet")
_PER_CELL = ("requests.parquet", "levels.csv", "peak.csv", "predicted_hits.csv")
_COLLECTED = ("complete_metrics", "peak_throughput_all", "pcp_metrics_peak")
_COMPARED = ("comparison", "contrasts", "peak_comparison", "averages", "checks")
_SUMMARISED = ("summary", "detailed", "pcp_summary_stats", "one_request")
_PREDICTED = ("predicted_hits", "hits", "waterfall", "predicted")
_TABLES = _COLLECTED + _COMPARED + _SUMMARISED + _PREDICTED
# The workflow's rules, the jobs of `report` and what they read of each other, in Snakemake's bare language. That rules
# and jobs are the workflow's is asserted wherever the two are compared, and in test_planning_toy.py.
_TOY = """
import json
PLAN = json.load(open("plan.json"))
RUNS, CELLS, FAMILIES = PLAN["runs"], PLAN["cells"], PLAN["families"]
RUNS_FILE = "results/analysis/runs.jsonl.zst"
POINTERS = [f"results/{cell}/run-{run}/measurement.json" for run in RUNS for cell in CELLS]
TABLES, COMPARED, SUMMARIES, PREDICTED = [[f"results/analysis/{name}.csv" for name in names] for names in PLAN["tables"]]
REPORTS = "results/analysis/benchmark_reports.txt"

rule report:
    input: "results/REPORT.md", REPORTS
    default_target: True
rule benchmark:
    input: ancient("plan.json"), ancient("config")
    output: "results/{model}/{scenario}/{blocks}/run-{run}/measurement.json"
    wildcard_constraints: run="[1-9][0-9]*"
    shell: "touch {output}"
rule convert_pcp:
    input: "results/{model}/{scenario}/{blocks}/run-{run}/measurement.json"
    output: "results/{model}/{scenario}/{blocks}/run-{run}/pcp.parquet"
    shell: "touch {output}"
rule extract_peak:
    input: expand("results/{{model}}/{{scenario}}/{{blocks}}/run-{run}/measurement.json", run=RUNS),
           expand("results/{{model}}/{{scenario}}/{{blocks}}/run-{run}/pcp.parquet", run=RUNS)
    output: expand("results/{{model}}/{{scenario}}/{{blocks}}/{n}", n=["requests.parquet", "levels.csv", "peak.csv"])
    shell: "touch {output}"
rule collect_metrics:
    input: expand("results/{cell}/{name}.csv", cell=CELLS, name=["levels", "peak"]), POINTERS
    output: TABLES, RUNS_FILE
    shell: "touch {output}"
rule compare_scenarios:
    input: TABLES[:2], expand("results/{cell}/predicted_hits.csv", cell=CELLS)
    output: COMPARED
    shell: "touch {output}"
rule summarise_campaign:
    input: TABLES[:2], COMPARED[0], RUNS_FILE
    output: SUMMARIES
    shell: "touch {output}"
rule predict_hits:
    input: expand("results/{{model}}/{{scenario}}/{{blocks}}/run-{run}/measurement.json", run=RUNS),
           "results/{model}/{scenario}/{blocks}/requests.parquet"
    output: "results/{model}/{scenario}/{blocks}/predicted_hits.csv"
    shell: "touch {output}"
rule predict_campaign:
    input: TABLES[:2], COMPARED[0], RUNS_FILE,
           expand("results/{cell}/{name}", cell=CELLS, name=["requests.parquet", "predicted_hits.csv"])
    output: PREDICTED
    shell: "touch {output}"
for family, figures in FAMILIES.items():
    rule:
        name: f"plot_{family}"
        input: TABLES[:2], COMPARED[0], RUNS_FILE,
               [p.replace("measurement.json", "pcp.parquet") for p in POINTERS] if family == "recordings" else []
        output: directory(figures)
        shell: "mkdir {output}"
rule copy_figure:
    input: [*FAMILIES.values()][0]
    output: "results/figures/{figure}.{kind}"
    wildcard_constraints: kind="png|svg"
    shell: "touch {output}"
rule write_report:
    input: TABLES[:2], COMPARED[0], RUNS_FILE, SUMMARIES, PREDICTED, *FAMILIES.values()
    output: "results/REPORT.md", "results/report.html", "results/report.json", PLAN["appendices"]
    shell: "touch {output}"
rule export_benchmark_reports:
    input: TABLES[:2], COMPARED[0], RUNS_FILE
    output: REPORTS
    shell: "touch {output}"
# Rules that `report` has no job of.
CELL = "results/{model}/{scenario}/{blocks}"
rule link_run:
    output: f"{CELL}/run-{{run}}/measurement.json"
    wildcard_constraints: run="i[1-9][0-9]*"
    shell: "touch {output}"
rule pilot:
    output: f"{CELL}/pilot/measurement.json"
    shell: "touch {output}"
rule freeze_levels:
    input: f"{CELL}/pilot/measurement.json"
    output: f"{CELL}/pilot/levels.json"
    shell: "touch {output}"
rule preview_deployment:
    output: f"{CELL}/deployment.yaml"
    shell: "touch {output}"
rule peaks:
    input: expand("results/{cell}/peak.csv", cell=CELLS)
rule preview:
    input: expand("results/{cell}/deployment.yaml", cell=CELLS)
rule figures:
    input: *FAMILIES.values()
rule report_so_far:
    shell: "true"
"""


def sizes(cells: int) -> range:
    """The sizes, thousands of blocks, that make a campaign of this many cells; ValueError where none do."""
    count, rest = divmod(cells - MODELS, MODELS * TIERED)
    if rest or count < 1:
        raise ValueError(
            f"{cells} cells: only {MODELS} + {MODELS * TIERED} x a number of sizes, such as 100, 1000, 10000"
        )
    return range(1, count + 1)


def make_campaign(folder: Path, cells: int, runs: int) -> None:
    """Copy the workflow and give it a campaign of `cells` cells."""
    copy_parts(folder, PARTS)
    models = {name: {"extends": "Qwen3-8B"} for name in _models()}
    tiered = {
        f"tier-{number}": {"extends": "native-offload"} for number in range(TIERED)
    }
    blocks = [1000 * size for size in sizes(cells)]
    campaign = {
        **{
            "name": "large",
            "results": "results",
            "engine": "local",
            "workload": "published",
            "runs": runs,
        },
        "server": {"vllm": "0.22.1", "guidellm": "0.8.1", "weights": "full"},
        **{"models": models, "scenarios": tiered},
        "matrix": [
            {"models": [*models], "scenarios": ["no-offload"], "cpu_blocks": [0]},
            {"models": [*models], "scenarios": [*tiered], "cpu_blocks": blocks},
        ],
    }
    (folder / "config" / "config.yaml").write_text(yaml.safe_dump(campaign))


def cell_paths(cells: int) -> list[str]:
    """MODEL/SCENARIO/CPU_BLOCKS of all cells, as the campaign orders them."""
    plain = [f"{model}/no-offload/0" for model in _models()]
    tiers = [
        f"{m}/tier-{s}/{1000 * size}"
        for m in _models()
        for s in range(TIERED)
        for size in sizes(cells)
    ]
    return plain + tiers


def make_toy(folder: Path, cells: int, runs: int) -> None:
    """Write the bare workflow of the same jobs."""
    families = {family: f"results/figures/{family}" for family in FAMILIES}
    (folder / "config").mkdir(parents=True)
    plan = {
        "runs": list(range(1, runs + 1)),
        "cells": cell_paths(cells),
        "families": families,
    }
    plan["appendices"] = [f"results/{name}" for name in APPENDICES]
    plan["tables"] = [_COLLECTED, _COMPARED, _SUMMARISED, _PREDICTED]
    (folder / "plan.json").write_text(json.dumps(plan))
    (folder / "Snakefile").write_text(_TOY)


def job_counts(output: str) -> dict[str, int]:
    """Rule -> number of its jobs, from what a dry run prints."""
    table = re.search(
        r"^job +count\n[- ]+\n(.*?)^total", output, flags=re.MULTILINE | re.DOTALL
    )
    assert table, output[-2000:]
    return {
        name: int(count)
        for name, count in (line.split() for line in table.group(1).splitlines())
    }


def rule_names(output: str) -> set[str]:
    """The names in what --list-rules prints."""
    return {line.strip() for line in output.splitlines() if line.strip().isidentifier()}


def _models() -> list[str]:
    return [f"model-{number}" for number in range(MODELS)]


def finish(
    folder: Path, cells: int, runs: int, snakemake: Callable[..., object]
) -> None:
    """Put every file of the plan there, empty, and have Snakemake count it as made; `snakemake` runs it in `folder`."""
    made = [f"{path}/{name}" for path in cell_paths(cells) for name in _PER_CELL]
    made += [
        f"{path}/run-{run}/{name}"
        for path in cell_paths(cells)
        for run in range(1, runs + 1)
        for name in _PER_RUN
    ]
    for family in FAMILIES:
        (folder / "results" / "figures" / family).mkdir(parents=True)
    made += [f"analysis/{name}.csv" for name in _TABLES]
    made += ["analysis/runs.jsonl.zst", "analysis/benchmark_reports.txt"]
    made += ["REPORT.md", "report.html", "report.json", *APPENDICES]
    for name in made:
        path = folder / "results" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    if (folder / "config" / "config.yaml").exists():
        _name_measurements(folder)
    snakemake("--touch", "report")


def _name_measurements(folder: Path) -> None:
    """Have the pointers and report.json of the campaign name the measurements that it plans."""
    config = load_config(folder / "config" / "config.yaml", folder / "config")
    reported = []
    for cell in config.cells:
        measurement, numbers = config.measurement_id(cell), config.runs_of(cell)
        for run in numbers:
            pointer_of(folder / "results", cell, run).write_text(
                json.dumps({"measurement": measurement})
            )
        named = cell.row
        reported.append(
            named | {"runs": [f"{measurement}/run-{run}" for run in numbers]}
        )
    (folder / "results" / "report.json").write_text(json.dumps({"cells": reported}))
