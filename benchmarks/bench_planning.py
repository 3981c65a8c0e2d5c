"""How long a plan of a large campaign takes, compared with a minimal workflow of the same jobs.

python benchmarks/bench_planning.py [--cells 1000 ...] [--runs 3] [--repeat 3] [--finished] [--folder DIR]

Makes a campaign of --cells cells (10 + 90 x a number of sizes: 100, 1000, 10000) and a toy: a minimal Snakefile with
the same rules, jobs, files and edges. Prints seconds and CPU seconds of `snakemake -n report` for both, the smallest of
--repeat, and their ratio; rules and numbers of jobs must agree. For several numbers of cells it prints how the time
grows. With --finished also the plan of a finished campaign, and `report` with nothing to do. On a busy machine compare
the CPU seconds.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from benchmarks.support import Took, snakemake  # noqa: E402
from tests.support.planning import (  # noqa: E402
    finish,
    job_counts,
    make_campaign,
    make_toy,
    rule_names,
)

CORES = ("--cores", "4")


def least(folders: list[Path], repeat: int, *arguments: str) -> list[Took]:
    """The quickest of `repeat` runs in each folder; the folders take turns, so that a slow minute slows them alike."""
    rounds = [
        [snakemake(folder, *CORES, *arguments) for folder in folders]
        for _ in range(repeat)
    ]
    return [
        min(runs, key=lambda took: took.cpu_s) for runs in zip(*rounds, strict=True)
    ]


def line(name: str, took: Took, beside: Took, than: str) -> str:
    """A measurement and its ratio to another."""
    ratio = f"{took.cpu_s / beside.cpu_s:.2f} ({took.wall_s / beside.wall_s:.2f} of the seconds) of {than}"
    return f"  {name:<28} {took.wall_s:7.1f} s {took.cpu_s:7.1f} s of CPU   {ratio}"


def measure(
    folder: Path, cells: int, runs: int, repeat: int, *, finished: bool
) -> Took:
    """Time and print one size of campaign; return what the plan of everything took."""
    campaign, toy = folder / "campaign", folder / "toy"
    make_campaign(campaign, cells, runs)
    make_toy(toy, cells, runs)
    ours, its = (
        rule_names(snakemake(place, *CORES, "--list-rules").output)
        for place in (campaign, toy)
    )
    if ours != its:
        raise SystemExit(
            f"the toy is out of step: only one of the two has {sorted(ours ^ its)}"
        )
    planned, bare = least([campaign, toy], repeat, "-n", "report")
    counts = job_counts(planned.output)
    if counts != job_counts(bare.output):
        raise SystemExit(
            f"the toy is out of step: {counts} and {job_counts(bare.output)} jobs"
        )
    print(f"{cells} cells x {runs} runs, {sum(counts.values())} jobs; {folder}")
    print(line("plan of everything", planned, bare, "the toy's"))
    print(line("the toy's", bare, bare, "its own"))
    if finished:
        for place in (campaign, toy):
            finish(
                place,
                cells,
                runs,
                lambda *arguments, here=place: (
                    snakemake(here, *CORES, *arguments).output
                ),
            )
        done, bare = least([campaign, toy], repeat, "-n", "report")
        (again,) = least([campaign], repeat, "report")
        for took in (done, bare, again):
            if "Nothing to be done" not in took.output:
                raise SystemExit(f"something was planned:\n{took.output[-3000:]}")
        print(line("plan, all files there", done, bare, "the toy's"))
        print(line("report, nothing to do", again, done, "its plan"))
    return planned


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument(
        "--cells",
        type=int,
        nargs="+",
        default=[1000],
        help="of each campaign that is planned",
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--finished", action="store_true")
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    os.environ["PATH"] = (
        f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    )
    folder = given.folder or Path(tempfile.mkdtemp(prefix="bench-planning-"))
    before: tuple[int, Took] | None = None
    for cells in given.cells:
        planned = measure(
            folder / str(cells),
            cells,
            given.runs,
            given.repeat,
            finished=given.finished,
        )
        if before is not None:
            print(
                f"  growth: {cells / before[0]:.1f} times the cells, {planned.cpu_s / before[1].cpu_s:.1f} of the CPU"
            )
        before = cells, planned


if __name__ == "__main__":
    main()
