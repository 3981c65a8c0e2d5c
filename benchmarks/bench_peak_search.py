"""Compares a search for the peak with a fine grid, on the real miniature: levels, time, and throughput at the peak.

python benchmarks/bench_peak_search.py [--campaign FILE] [--levels 1,2,...]

Runs snakemake in a copy of the workflow: first the pilot of the campaign's baseline, then the same cell at the levels
of a grid, as long a level each. Prints both curves and, as ratios: the throughput that the grid measured at the level
nearest to the search's peak over the grid's best, the levels tried over the grid's, the seconds of both runs. Exit
status 1 if the first is below 0.9 or the second above 0.5. Needs a quiet machine; about 12 minutes on two cores.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from tests.support.fault_chain import workflow_copy  # noqa: E402

from kveval.store.run_file import read_run, stored_run  # noqa: E402
from kveval.tables.levels.pilot import read_pilot  # noqa: E402

GRID = (1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 20, 24, 32, 48)
NEAR_ENOUGH = 0.9
FEW_ENOUGH = 0.5


def snakemake(folder: Path, campaign: dict[str, Any], target: str) -> Path:
    """Make one target of a campaign in a copy of the workflow."""
    file = folder / f"{campaign['name']}.yaml"
    file.write_text(yaml.safe_dump(campaign))
    command = ["snakemake", "--cores", "2", target, "--configfile", file.name]
    subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": ""},
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return folder / target


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--campaign",
        type=Path,
        default=ROOT / "config" / "campaigns" / "laptop-peak-search.yaml",
    )
    parser.add_argument(
        "--levels", default=",".join(map(str, GRID)), help="of the grid"
    )
    args = parser.parse_args()
    campaign = yaml.safe_load(args.campaign.read_text())
    cell = f"{campaign['matrix'][0]['models'][0]}/{campaign['matrix'][0]['scenarios'][0]}/0"
    workload = campaign["workloads"][campaign["workload"]]
    fine = [int(level) for level in args.levels.split(",")]
    seconds = workload["levels"]["search"].get("seconds", workload["seconds"])
    grid = {
        **campaign,
        "name": "grid",
        "results": "results/campaigns/grid",
        "workloads": {
            campaign["workload"]: {**workload, "levels": fine, "seconds": seconds}
        },
    }
    with tempfile.TemporaryDirectory(prefix="kveval-search-") as base:
        folder = workflow_copy(Path(base) / "repository")
        (folder / ".server-venv").symlink_to(ROOT / ".server-venv")
        found = read_pilot(
            snakemake(
                folder, campaign, f"{campaign['results']}/{cell}/pilot/levels.json"
            )
        )
        pilot = json.loads(
            (
                folder / campaign["results"] / cell / "pilot" / "measurement.json"
            ).read_text()
        )
        searched = read_run(folder / pilot["path"])
        pointer = snakemake(
            folder, grid, f"{grid['results']}/{cell}/run-1/measurement.json"
        )
        measured = read_run(folder / stored_run(pointer))
    curve = {
        level.level: float(level.throughput_tok_s or 0.0) for level in measured.levels
    }
    print(
        "search, in order:",
        *(f"{level}: {value:.0f}" for level, value in found.tried),
        "tok/s",
    )
    print(
        "grid:            ",
        *(f"{level}: {value:.0f}" for level, value in curve.items()),
        "tok/s",
    )
    best = max(curve, key=lambda level: curve[level])
    nearest = min(curve, key=lambda level: abs(math.log(level / found.peak)))
    reached, share = curve[nearest] / curve[best], len(found.tried) / len(curve)
    print(
        f"peak {found.peak} (grid's best {best}); ended by {found.ending}; frozen {', '.join(map(str, found.levels))}"
    )
    print(f"throughput at the search's peak over the grid's best: {reached:.2f}")
    print(
        f"levels tried over the grid's: {len(found.tried)} / {len(curve)} = {share:.2f}"
    )
    print(
        f"seconds in levels, search over grid: {searched.phases['levels_s'] / measured.phases['levels_s']:.2f}"
    )
    return 0 if reached >= NEAR_ENOUGH and share <= FEW_ENOUGH else 1


if __name__ == "__main__":
    sys.exit(main())
