"""Time and memory from measurements to a report, through Snakemake, for a campaign as large as a published one.

    python benchmarks/bench_report.py [--cells 34] [--runs 3] [--metrics 1500] [--cores 2] [--folder DIR]

Makes a copy of the workflow with a made-up campaign in its store - 34 cells x 8 levels x 3 runs, GuideLLM 0.8 reports
that keep every request, a recording of 1,500 metrics at 1 s - and runs, as a user would:

1. the tables of cells: the reports are read and put beside the recordings, which lie there converted (bench_pcp.py);
2. `snakemake report`: tables, comparison, figures, REPORT.md, report.json, exports;
3. `snakemake report` again, which has nothing to do.

Prints for each, and for the first two together, the wall seconds, the seconds of CPU of all its processes, and the peak
memory of snakemake and all of its jobs together (the sum of resident sets, sampled: an upper bound, because shared
pages count in each). On an idle machine compare wall seconds, on a busy one CPU seconds. Last come the seconds by rule,
and the CPU seconds of a job's imports.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from benchmarks.campaign_files import LEVELS, write_campaign  # noqa: E402
from benchmarks.campaign_files import cells as made_up_cells  # noqa: E402
from benchmarks.support import LOG, children_cpu_s  # noqa: E402
from tests.support.fault_chain import workflow_copy  # noqa: E402

from kveval.conditions.facts import conditions_of  # noqa: E402
from kveval.configuration.loading import load_config  # noqa: E402
from kveval.store.conditions import CONDITIONS, write_conditions  # noqa: E402
from kveval.store.run_file import pointed_run  # noqa: E402

# The site and the release of the published evaluation, of which this is the matrix.
PUBLISHED = ROOT / "config" / "campaigns" / "feb-2026.yaml"
SAMPLE_S = 0.2
IMPORTING = ("extract_peak", "compare_scenarios", "plot_family", "write_report")


def snakemake(folder: Path, *arguments: str) -> tuple[float, float, float]:
    """Run snakemake; return seconds, seconds of CPU, and the peak memory of it and its jobs in GiB."""
    started, before, peak = time.monotonic(), children_cpu_s(), 0.0
    log = folder / LOG
    with log.open("w") as sink:
        process = psutil.Popen(
            ["snakemake", *arguments], cwd=folder, stdout=sink, stderr=subprocess.STDOUT
        )
        while process.poll() is None:
            peak = max(peak, _memory(process))
            time.sleep(SAMPLE_S)
    if process.returncode:
        raise SystemExit(log.read_text()[-5000:])
    return time.monotonic() - started, children_cpu_s() - before, peak


def _memory(process: psutil.Popen) -> float:
    total = 0
    for member in [process, *process.children(recursive=True)]:
        try:
            total += member.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total / 2**30


def make_copy(
    folder: Path, cells: int, runs: int, metrics: int, **load: Any
) -> list[Path]:
    """Write a copy of the workflow with the campaign in its store; return the folders of the runs."""
    workflow_copy(folder)
    matrix = [
        {
            "models": [cell.model],
            "scenarios": [cell.scenario],
            "cpu_blocks": [cell.cpu_blocks],
        }
        for cell in made_up_cells(cells)
    ]
    campaign = yaml.safe_load(PUBLISHED.read_text()) | {
        "name": "large",
        "results": "results",
    }
    campaign |= {"runs": runs, "matrix": matrix, "comparison": {}}
    file = folder / "config" / "config.yaml"
    file.write_text(yaml.safe_dump(campaign))
    config = load_config(file, folder / "config")
    places = write_campaign(
        folder / "results",
        runs,
        metrics,
        cells,
        measurement_id=config.measurement_id,
        **load,
    )
    runs_of_cells = [run for folders in places.values() for run in folders]
    # Pointers hold paths as seen from the workflow's folder.
    with contextlib.chdir(folder):
        for run in (each.relative_to(folder) for each in runs_of_cells):
            described = conditions_of(pointed_run(run / "measurement.json"))
            write_conditions(described, run / CONDITIONS)
    return runs_of_cells


def seconds_by_rule(folder: Path) -> list[tuple[str, int, float]]:
    """Return rule, number of jobs and the sum of their seconds, longest first, of the last snakemake in a folder.

    From the times in Snakemake's own log file: what it prints is shorter.
    """
    log = max((folder / ".snakemake" / "log").glob("*.log"))
    started: dict[str, float] = {}
    found: dict[str, list[float]] = collections.defaultdict(list)
    at = 0.0
    for line in log.read_text().splitlines():
        if stamp := re.match(r"\[(\w{3} \w{3} +\d+ [\d:]+ \d{4})\]", line):
            at = datetime.strptime(stamp[1], "%a %b %d %H:%M:%S %Y").timestamp()
        elif number := re.match(r"(?:Job | +jobid: )(\d+)", line):
            started[number[1]] = at
        elif ended := re.match(r"Finished jobid: (\d+) \(Rule: (\w+)\)", line):
            found[ended[2]].append(at - started.get(ended[1], at))
    return sorted(
        ((name, len(took), sum(took)) for name, took in found.items()),
        key=lambda entry: -entry[2],
    )


def import_seconds(script: str) -> float:
    """Return the seconds of CPU that a script's imports take, as every one of its jobs does."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "scripts")}
    before = children_cpu_s()
    subprocess.run(
        [sys.executable, "-c", f"import {script}"], env=environment, check=True
    )
    return children_cpu_s() - before


def main() -> None:
    """Make the campaign, run, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in (("cells", 34), ("runs", 3), ("metrics", 1500), ("cores", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--folder", type=Path, help="where to work; kept if given")
    given = parser.parse_args()
    os.environ["PATH"] = (
        f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    )
    folder = given.folder or Path(tempfile.mkdtemp(prefix="bench-report-"))
    folder.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    runs = make_copy(folder, given.cells, given.runs, given.metrics)
    print(
        f"{given.cells} cells x {len(LEVELS)} levels x {given.runs} runs, made in {time.monotonic() - begin:.0f} s\n"
    )
    there = [
        str((run / name).relative_to(folder))
        for run in runs
        for name in ("measurement.json", "pcp.parquet", CONDITIONS)
    ]
    cells = [
        str(cell.relative_to(folder) / "peak.csv")
        for cell in dict.fromkeys(run.parent for run in runs)
    ]
    cores = ("--cores", str(given.cores))
    # What was put there counts as made by the rules.
    snakemake(folder, *cores, "--touch", *there)
    print("| step | wall s | CPU s | GiB |\n| --- | ---: | ---: | ---: |", flush=True)
    rules: list[tuple[str, int, float]] = []
    used: list[tuple[float, float, float]] = []
    for step, targets in (
        ("tables of cells", cells),
        ("report", ["report"]),
        ("again", ["report"]),
    ):
        used.append(snakemake(folder, *cores, *targets))
        print("| {} | {:.1f} | {:.1f} | {:.2f} |".format(step, *used[-1]), flush=True)
        rules += seconds_by_rule(folder)
    (wall, cpu, memory), (more_wall, more_cpu, more_memory) = used[:2]
    print(
        f"| reports to report | {wall + more_wall:.1f} | {cpu + more_cpu:.1f} | {max(memory, more_memory):.2f} |"
    )
    if "Nothing to be done" not in (folder / LOG).read_text():
        raise SystemExit("the second run planned something")
    print("\n| rule | jobs | s of all |\n| --- | ---: | ---: |")
    for name, jobs, seconds in rules:
        print(f"| {name} | {jobs} | {seconds:.0f} |")
    imports = ", ".join(
        f"{script} {import_seconds(script):.2f}" for script in IMPORTING
    )
    print(f"\nimports, CPU s a job: {imports}")
    figures = list((folder / "results" / "figures").rglob("*.png"))
    print(
        f"\n{len(figures)} figures, {sum(path.stat().st_size for path in figures) / 1e6:.1f} MB as PNG"
    )
    if given.folder is None:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
