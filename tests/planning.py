"""A campaign of many cells without their measurements, and a bare workflow of the same jobs, to time planning by."""

import json
import re
import shutil
from pathlib import Path

import yaml

from kveval.figure_names import FAMILIES, figures_of

REPOSITORY = Path(__file__).resolve().parent.parent
PARTS = ("Snakefile", "config", "rules", "scripts", "profiles", "envs")
MODELS, TIERED = 10, 9
"""A model has one cell without a tier, and one for every tiered scenario and size."""
# The jobs of `report` and what they read of each other, in Snakemake's bare language. That they are as many as the
# workflow's own is asserted wherever the two are compared.
_TOY = """
import json
PLAN = json.load(open("plan.json"))
RUNS, CELLS, FAMILIES = PLAN["runs"], PLAN["cells"], PLAN["families"]
POINTERS = [f"results/{cell}/run-{run}/measurement.json" for run in RUNS for cell in CELLS]
TABLES = expand("results/analysis/{name}.csv", name=["complete_metrics", "peak_throughput_all", "pcp_metrics_peak"])
COMPARED = expand("results/analysis/{n}.csv", n=["comparison", "contrasts", "peak_comparison", "averages", "checks"])
SUMMARIES = expand("results/analysis/{name}.csv", name=["summary", "detailed", "pcp_summary_stats"])
REPORTS = [f"results/{cell}/benchmark_report_v0.2.yaml" for cell in CELLS]

rule report:
    input: "results/REPORT.md", REPORTS
    default_target: True
rule benchmark:
    output: "results/{model}/{scenario}/{blocks}/run-{run}/measurement.json"
    shell: "touch {output}"
rule convert_load:
    input: "results/{model}/{scenario}/{blocks}/run-{run}/measurement.json"
    output: "results/{model}/{scenario}/{blocks}/run-{run}/levels.parquet",
            "results/{model}/{scenario}/{blocks}/run-{run}/requests.parquet"
    shell: "touch {output}"
rule convert_pcp:
    input: "results/{model}/{scenario}/{blocks}/run-{run}/measurement.json"
    output: "results/{model}/{scenario}/{blocks}/run-{run}/pcp.parquet"
    shell: "touch {output}"
rule extract_peak:
    input: expand("results/{{model}}/{{scenario}}/{{blocks}}/run-{run}/{n}.parquet", run=RUNS, n=["levels", "pcp"])
    output: "results/{model}/{scenario}/{blocks}/levels.csv", "results/{model}/{scenario}/{blocks}/peak.csv"
    shell: "touch {output}"
rule collect_metrics:
    input: expand("results/{cell}/{name}.csv", cell=CELLS, name=["levels", "peak"])
    output: TABLES
    shell: "touch {output}"
rule compare_scenarios:
    input: TABLES[:2]
    output: COMPARED
    shell: "touch {output}"
rule summarise_campaign:
    input: TABLES[:2], COMPARED[0]
    output: SUMMARIES
    shell: "touch {output}"
for family, figures in FAMILIES.items():
    rule:
        name: f"plot_{family}"
        input: TABLES[:2], COMPARED[0], POINTERS,
               [p.replace("measurement.json", "pcp.parquet") for p in POINTERS] if family == "recordings" else []
        output: figures
        shell: "touch {output}"
rule write_report:
    input: TABLES[:2], COMPARED[0], POINTERS, SUMMARIES, *FAMILIES.values()
    output: "results/REPORT.md", "results/report.json"
    shell: "touch {output}"
rule export_benchmark_reports:
    input: TABLES[:2], COMPARED[0], POINTERS
    output: REPORTS
    shell: "touch {output}"
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
    for part in PARTS:
        source = REPOSITORY / part
        if source.is_dir():
            shutil.copytree(source, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, folder / part)
    models = {name: {"extends": "Qwen3-8B"} for name in _models()}
    tiered = {f"tier-{number}": {"extends": "native-offload"} for number in range(TIERED)}
    blocks = [1000 * size for size in sizes(cells)]
    campaign = {
        **{"name": "large", "results": "results", "engine": "local", "workload": "published", "runs": runs},
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
    tiers = [f"{m}/tier-{s}/{1000 * size}" for m in _models() for s in range(TIERED) for size in sizes(cells)]
    return plain + tiers


def make_toy(folder: Path, cells: int, runs: int) -> None:
    """Write the bare workflow of the same jobs."""
    families = {
        family: [
            *(
                f"results/figures/{each.name}.{kind}"
                for each in figures_of(_models(), family)
                for kind in ("png", "svg")
            ),
            f"results/figures/{family}.json",
        ]
        for family in FAMILIES
    }
    folder.mkdir(parents=True)
    plan = {"runs": list(range(1, runs + 1)), "cells": cell_paths(cells), "families": families}
    (folder / "plan.json").write_text(json.dumps(plan))
    (folder / "Snakefile").write_text(_TOY)


def job_counts(output: str) -> dict[str, int]:
    """Rule -> number of its jobs, from what a dry run prints."""
    table = re.search(r"^job +count\n[- ]+\n(.*?)^total", output, flags=re.MULTILINE | re.DOTALL)
    assert table, output[-2000:]
    return {name: int(count) for name, count in (line.split() for line in table.group(1).splitlines())}


def outputs(folder: Path, listed: str) -> list[Path]:
    """The files that a plan makes, from what `snakemake --summary` prints."""
    return [folder / line.split("\t", 1)[0] for line in listed.splitlines() if line.startswith("results/")]


def _models() -> list[str]:
    return [f"model-{number}" for number in range(MODELS)]
