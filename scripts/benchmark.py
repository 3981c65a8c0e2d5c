"""Measure one run of one cell, or adopt it from the measurement store; writes the pointer to it.

Started by rule `benchmark` through the shell. Exits with 1 and a one-line cause when the run fails, with 2 when it was
asked to stop.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from kveval.config import load_config
from kveval.errors import Failure
from kveval.processes import Terminated
from kveval.progress import campaign_progress
from kveval.transaction import Job, measure


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--campaign", type=Path, required=True, help="the campaign's values, as the workflow has them")
    parser.add_argument("--cell", required=True, help="MODEL/SCENARIO/CPU_BLOCKS")
    parser.add_argument("--measurement", required=True, help="id that the workflow planned with")
    parser.add_argument("--run", type=int, required=True)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--server-environment", type=Path, required=True)
    parser.add_argument("--campaign-runs", type=Path, required=True, help="file that lists the campaign's pointers")
    parser.add_argument("--output", type=Path, required=True, help="measurement.json, the pointer into the store")
    parser.add_argument("--log", type=Path, required=True)
    args = parser.parse_args()
    # Rendered anew, not handed over: the job refuses to measure anything but what the plan was made for.
    config = load_config(args.campaign, Path("config"))
    cell = config.resolve(config.cell(*args.cell.split("/")))
    environment = args.server_environment.absolute()
    job = Job(cell.specification(), args.measurement, args.run, args.store, environment, cell.exercised)
    progress = campaign_progress(job.label, job.specification["workload"], args.campaign_runs, args.log)
    try:
        measure(job, args.output, progress)
    except Failure as failure:
        progress.say(f"FAILED: {failure}")
        return 1
    except Terminated as stopped:
        progress.say(f"stopped by {stopped}; everything it had started is gone")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
