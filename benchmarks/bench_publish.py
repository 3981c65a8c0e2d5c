"""Time and memory of figures, report and exports of a campaign as large as a published one, through Snakemake.

python benchmarks/bench_publish.py [--cells 34] [--cores 2] [--folder DIR]

Makes a workflow's copy with a made-up campaign (models x arms x tier sizes, 8 levels, 3 runs) whose tables, pointers
and recordings are there, and lets Snakemake make what is published from them. Prints seconds, seconds of CPU and peak
memory of the first `report`, seconds of the second, which has nothing to do, and the sizes.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from tests import synthetic_campaign as campaign  # noqa: E402
from tests.synthetic_workflow import make_workflow  # noqa: E402


def snakemake(folder: Path, *arguments: str) -> tuple[float, float, float]:
    """Run snakemake; return seconds, seconds of CPU time, and the peak of its and its jobs' memory in GiB."""
    started, before, peak = time.monotonic(), _cpu_s(), 0.0
    log = folder / "snakemake.log"
    with log.open("w") as sink:
        process = psutil.Popen(["snakemake", *arguments], cwd=folder, stdout=sink, stderr=subprocess.STDOUT)
        while process.poll() is None:
            peak = max(peak, _memory(process))
            time.sleep(0.1)
    if process.returncode:
        raise SystemExit(log.read_text())
    return time.monotonic() - started, _cpu_s() - before, peak


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _memory(process: psutil.Popen) -> float:
    total = 0
    for member in [process, *process.children(recursive=True)]:
        try:
            total += member.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total / 2**30


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--cells", type=int, default=34)
    parser.add_argument("--cores", default="2")
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    folder = given.folder or Path(tempfile.mkdtemp(prefix="bench-publish-"))
    make_workflow(folder, campaign.cells()[: given.cells])
    # What was put there counts as made by the rules.
    snakemake(folder, "--cores", given.cores, "--touch", "collect_metrics", "compare_scenarios")
    seconds, cpu, memory = snakemake(folder, "--cores", given.cores, "report")
    again, *_ = snakemake(folder, "--cores", given.cores, "report")
    if "Nothing to be done" not in (folder / "snakemake.log").read_text():
        raise SystemExit("the second run planned something")
    figures = list((folder / "results" / "figures").glob("*.png"))
    size = sum(path.stat().st_size for path in figures) / 1e6
    print(f"{given.cells} cells: figures, report and exports {seconds:.1f} s, of CPU {cpu:.0f} s, {memory:.2f} GiB")
    print(f"again, with nothing to do: {again:.1f} s")
    print(f"{len(figures)} figures, {size:.1f} MB as PNG; {folder}")


if __name__ == "__main__":
    main()
