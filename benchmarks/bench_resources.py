"""Memory, time and cores of every analysis rule's job, as a batch system would run it, by the size of the campaign.

    python benchmarks/bench_resources.py [--sizes laptop published long large] [--folder DIR]

Needs Snakemake's plugin for any batch system (bash scripts/setup.sh execution). Makes a copy of the workflow with a
made-up campaign in its store, GuideLLM reports and PCP archives of real size, and runs `snakemake report` with each job
as a job script of its own (measured_job.py), one after the other. Tables of single runs and cells are made by jobs for
two cells, for the others of the published campaign by this process, and for further sizes of a tier from those of its
first size, with other throughputs. A cell's tables as one group job, as in profiles/cluster-generic, come last.

Prints for every rule the largest values of its jobs: the peak memory of the job's processes together (sum of resident
sets, 20 samples a second; and of proportional sets), wall seconds, seconds of CPU, the most cores busy over a second,
and what the rule asks for. On a machine that does other work as well wall seconds are an upper bound.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from benchmarks.bench_report import make_copy  # noqa: E402
from benchmarks.campaign_files import LEVEL_S, LEVELS, PUBLISHED_CELLS  # noqa: E402
from benchmarks.support import snakemake  # noqa: E402
from tests.support.described import run_tables  # noqa: E402

from kveval.pcp.archive_tools import pack_archives  # noqa: E402
from kveval.store.run_file import stored_run  # noqa: E402
from kveval.tables.cells import THROUGHPUT  # noqa: E402
from kveval.tables.peaks import cell_tables, peak_row  # noqa: E402

MEASURED_CELLS = 2
CELL_TABLES = ("requests.parquet", "levels.csv", "peak.csv")
PROFILE = ROOT / "profiles" / "cluster-generic" / "config.yaml"


@dataclass(frozen=True)
class Size:
    """A campaign: three runs of each cell."""

    cells: int
    levels: Sequence[int] = LEVELS
    seconds: float = LEVEL_S
    metrics: int = 1500


SIZES = {
    "laptop": Size(3, (1, 2, 4), 24, 300),
    "published": Size(PUBLISHED_CELLS),
    "long": Size(3, seconds=900),
    "large": Size(340),
    "huge": Size(1000),
}


def prepare(folder: Path, size: Size) -> list[Path]:
    """Make the campaign, with the tables of all cells but the measured ones; return the folders of the cells."""
    load = {"levels": size.levels, "seconds": size.seconds, "reported": PUBLISHED_CELLS}
    runs = make_copy(folder, size.cells, 3, size.metrics, **load)
    packed = folder / "pcp.tar.zst"
    pack_archives([folder / "results" / "recording" / "test"], packed)
    for raw in (folder / "results" / "measurements").glob("*/run-*/raw"):
        os.link(packed, raw / packed.name)
    cells = list(dict.fromkeys(run.parent for run in runs))
    cells = [cell.relative_to(folder) for cell in cells]
    # Pointers are relative to the repository.
    with ProcessPoolExecutor(initializer=os.chdir, initargs=(folder,)) as pool:
        list(pool.map(make_tables, cells[:PUBLISHED_CELLS]))
        list(pool.map(vary_tables, cells[PUBLISHED_CELLS:]))
    made = [run / "measurement.json" for cell in cells for run in runs_of(folder, cell)]
    for cell in cells[MEASURED_CELLS:]:
        made += [run / "pcp.parquet" for run in runs_of(folder, cell)]
        made += [cell / name for name in CELL_TABLES]
    for number in range(0, len(made), 2000):
        snakemake(
            folder, "--cores", "1", "--touch", *map(str, made[number : number + 2000])
        )
    for cell in cells[:MEASURED_CELLS]:
        remove_tables(folder, cell)
    return cells


def runs_of(folder: Path, cell: Path) -> list[Path]:
    """The folders of a cell's runs, relative to the repository as the cell is."""
    return sorted(run.relative_to(folder) for run in (folder / cell).glob("run-*"))


def make_tables(cell: Path) -> None:
    """What extract_peak makes of a cell."""
    runs = sorted(cell.glob("run-*"))
    found = [
        run_tables(stored_run(run / "measurement.json"), [], cell.parts[-2])
        for run in runs
    ]
    pd.concat([requests for _, requests in found], ignore_index=True).to_parquet(
        cell / "requests.parquet", index=False
    )
    catalogue = yaml.safe_load(Path("config/metrics.yaml").read_text())
    inputs = [levels for levels, _ in found], [run / "pcp.parquet" for run in runs]
    levels, peak = cell_tables(*inputs, catalogue, version="0.32.0", min_samples=30)
    levels.to_csv(cell / "levels.csv", index=False)
    peak.to_csv(cell / "peak.csv", index=False)


def vary_tables(cell: Path) -> None:
    """The tables of a cell from those of the same arm's first tier, at throughputs 2 % apart or so."""
    source, generator = cell.with_name("10000"), np.random.default_rng(int(cell.name))
    stored = stored_run(next(cell.glob("run-*")) / "measurement.json")
    changed = {"cpu_blocks": int(cell.name), "measurement": stored.parent.name}
    factors = np.exp(generator.normal(0, 0.02, len(list(cell.glob("run-*")))))
    levels = pd.read_csv(source / "levels.csv").assign(**changed)
    levels[THROUGHPUT] *= factors[levels["run"].to_numpy() - 1]
    os.link(source / "requests.parquet", cell / "requests.parquet")
    levels.to_csv(cell / "levels.csv", index=False)
    catalogue = yaml.safe_load(Path("config/metrics.yaml").read_text())
    pd.DataFrame([peak_row(levels, list(catalogue))]).to_csv(
        cell / "peak.csv", index=False
    )


def remove_tables(folder: Path, cell: Path) -> None:
    """Remove what the jobs of a cell make."""
    for name in ("run-*/*.parquet", "*.parquet", "*.csv"):
        for path in (folder / cell).glob(name):
            path.unlink()


def measured(folder: Path, *arguments: str) -> dict[str, list[dict[str, object]]]:
    """Run snakemake with every job as a measured job script; return rule -> the records of its jobs."""
    records = folder / "records.jsonl"
    records.unlink(missing_ok=True)
    submit = shlex.join(
        [sys.executable, str(ROOT / "benchmarks" / "measured_job.py"), str(records)]
    )
    batch = ["--executor", "cluster-generic", "--cluster-generic-submit-cmd", submit]
    snakemake(
        folder,
        *batch,
        "--jobs",
        "1",
        "--seconds-between-status-checks",
        "1",
        *arguments,
    )
    found = collections.defaultdict(list)
    for line in records.read_text().splitlines():
        record = json.loads(line)
        found[record["rule"]].append(record)
    return found


def in_groups() -> list[str]:
    """The arguments by which the profile makes one job of a cell's tables."""
    profile = yaml.safe_load(PROFILE.read_text())
    return ["--groups", *profile["groups"], "--cores", str(profile["cores"])]


def show(name: str, found: dict[str, list[dict[str, object]]]) -> None:
    """Print a line per rule: the largest of its jobs' values."""
    for rule, jobs in found.items():
        peak = {
            key: max(job[key] for job in jobs)
            for key in jobs[0]
            if key not in ("rule", "threads", "resources")
        }
        asked = jobs[0]["resources"]
        print(
            f"| {name} | {rule} | {len(jobs)} | {peak['memory_mib']:.0f} | {peak['proportional_mib']:.0f} "
            f"| {peak['wall_s']:.1f} | {peak['cpu_s']:.1f} | {peak['busiest_cores']:.1f} "
            f"| {asked.get('mem_mb')} | {asked.get('runtime')} | {jobs[0]['threads']} |",
            flush=True,
        )


def main() -> None:
    """Make the campaigns, run, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--sizes",
        nargs="+",
        choices=SIZES,
        default=["laptop", "published", "long", "large"],
    )
    parser.add_argument("--folder", type=Path, help="where to work; kept if given")
    given = parser.parse_args()
    os.environ["PATH"] = (
        f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    )
    folder = given.folder or Path(tempfile.mkdtemp(prefix="bench-resources-"))
    print(
        "| campaign | rule | jobs | MiB | MiB proportional | wall s | CPU s | cores | mem_mb | runtime | threads |"
    )
    print(
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    )
    for name in given.sizes:
        place = folder / name
        place.mkdir(parents=True)
        cells = prepare(place, SIZES[name])
        show(name, measured(place, "report"))
        remove_tables(place, cells[0])
        show(name, measured(place, *in_groups(), "--", str(cells[0] / "peak.csv")))
        if given.folder is None:
            shutil.rmtree(place)


if __name__ == "__main__":
    main()
