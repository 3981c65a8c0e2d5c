"""Time and memory of the analysis of a whole campaign: 34 cells x 8 levels x 3 runs, 1,500 PCP metrics at 1 s.

    python benchmarks/bench_analysis.py [--cells 34] [--runs 3] [--metrics 1500] [--folder DIR] [--jobs 2]

Every job is a process of its own, as under Snakemake, `--jobs` of them at a time; Snakemake's own second or so per job
is not in it. Prints wall seconds, the seconds of one job, and the largest job's memory.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from benchmarks.campaign_files import baselines, write_campaign  # noqa: E402

METRICS = str(ROOT / "config" / "metrics.yaml")


def job(script: str, arguments: Sequence[object]) -> float:
    """Run one script's main in a process of its own; return its seconds."""
    begin = time.monotonic()
    path = [str(ROOT / "scripts")]
    code = f"import sys; sys.path[:0] = {path!r}; from {script} import main; main(*{tuple(arguments)!r})"
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.monotonic() - begin


def stage(script: str, jobs: Sequence[Sequence[object]], parallel: int) -> float:
    """Run a stage's jobs, `parallel` at a time, print a line about it and return its wall seconds."""
    begin = time.monotonic()
    with ThreadPoolExecutor(parallel) as pool:
        seconds = list(pool.map(lambda arguments: job(script, arguments), jobs))
    wall = time.monotonic() - begin
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    print(f"| {script} | {len(jobs)} | {wall:.1f} | {sum(seconds) / len(seconds):.2f} | {peak:.2f} |", flush=True)
    return wall


def main() -> None:
    """Make the campaign, run the stages, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("cells", 34), ("runs", 3), ("metrics", 1500), ("jobs", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        folder = Path(scratch)
        begin = time.monotonic()
        places = write_campaign(folder, options.runs, options.metrics, options.cells)
        print(f"made in {time.monotonic() - begin:.0f} s: {len(places)} cells x {options.runs} runs\n")
        print("| stage | jobs | wall s | s per job | largest job so far, GiB |\n| --- | ---: | ---: | ---: | ---: |")
        runs = [place for found in places.values() for place in found]
        load = [
            (str(run / "measurement.json"), (), str(run / "levels.parquet"), str(run / "requests.parquet"))
            for run in runs
        ]
        stage("convert_load", load, options.jobs)
        cell_folders = [found[0].parent for found in places.values()]
        settings = {"version": "0.32.0", "min_samples": 30}
        peaks = [
            (
                [str(run / "levels.parquet") for run in found],
                [str(run / "pcp.parquet") for run in found],
                METRICS,
                settings,
                (str(found[0].parent / "levels.csv"), str(found[0].parent / "peak.csv")),
            )
            for found in places.values()
        ]
        total = stage("extract_peak", peaks, options.jobs)
        analysis = folder / "results" / "analysis"
        analysis.mkdir()
        names = ("complete_metrics", "peak_throughput_all", "pcp_metrics_peak")
        collected = {name: str(analysis / f"{name}.csv") for name in names}
        tables = [[str(cell / f"{name}.csv") for cell in cell_folders] for name in ("levels", "peak")]
        total += stage("collect_metrics", [(*tables, METRICS, collected)], options.jobs)
        names = ("comparison", "contrasts", "peak_comparison", "averages", "checks")
        outputs = {name: str(analysis / f"{name}.csv") for name in names}
        asked = {"settings": {}, "baselines": baselines()}
        arguments = (collected["complete_metrics"], collected["peak_throughput_all"], asked, outputs)
        total += stage("compare_scenarios", [arguments], options.jobs)
        print(f"\nafter conversion: {total:.1f} s")
        sizes = {path.name: path.stat().st_size // 1024 for path in sorted(analysis.iterdir())}
        print(f"KiB: {json.dumps(sizes)}")


if __name__ == "__main__":
    main()
