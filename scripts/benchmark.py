"""Measure one run of one cell, or adopt it from the measurement store; writes the pointer to it.

Started by rule `benchmark` through the shell. Exits with 1 and a one-line cause when the run fails, with 2 when it was
asked to stop.
"""

import argparse
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from kveval.configuration.config import Config
from kveval.configuration.loading import load_config
from kveval.host.errors import Failure, code_of
from kveval.host.processes import Terminated, stop_signals_raise
from kveval.host.quiet import busy_remark
from kveval.host.redaction import Redactor
from kveval.measure.progress import (
    Progress,
    campaign_progress,
    requested_with,
)
from kveval.measure.status import (
    NOT_STARTED,
    TIME_LIMIT,
    common_failure,
    keep_status,
    slurm_end_s,
)
from kveval.measure.transaction import Job, MeasurementError, measure
from kveval.report.files import so_far_command
from kveval.tables.levels.pilot import frozen_levels
from kveval.workflow.planning.order import (
    campaign_pointer,
    planned_runs,
    requested_file,
)


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--campaign",
        type=Path,
        required=True,
        help="the campaign's file, complete",
    )
    parser.add_argument(
        "--catalogues",
        type=Path,
        required=True,
        help="folder of models, scenarios and workloads",
    )
    parser.add_argument("--cell", required=True, help="MODEL/SCENARIO/CPU_BLOCKS")
    parser.add_argument(
        "--measurement",
        required=True,
        help="the id that the workflow planned, before levels are searched",
    )
    parser.add_argument("--run", type=int, required=True)
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--levels",
        type=Path,
        help="file of the levels that the pilot found, if they are searched",
    )
    group.add_argument("--pilot", action="store_true", help="search the levels")
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--server-environment", type=Path, required=True)
    parser.add_argument(
        "--output",
        type=Path,
        required=True,
        help="measurement.json, the pointer into the store",
    )
    parser.add_argument("--log", type=Path, required=True)
    args = parser.parse_args()
    label = f"{args.cell} pilot" if args.pilot else f"{args.cell} run {args.run}"
    with stop_signals_raise(), keep_status(args.log) as status:
        return _measure(args, Progress(label, 0.0, args.log, status=status))


def _measure(args: argparse.Namespace, progress: Progress) -> int:
    """Measure or adopt the run, and return the exit status.

    `progress`: that of a run by itself, until it is known what is measured together.
    """
    here, end_s = False, slurm_end_s()
    try:
        config = load_config(args.campaign, args.catalogues)
        here = config.campaign.engine == "local"
        job = _job(args, config)
        requested = requested_with(args.output, requested_file(config))
        if requested is not None:
            _require_hope(config, args.output, *requested)
        progress = campaign_progress(
            progress.label,
            job.specification.workload,
            job.pointers,
            args.log,
            Redactor.of(job.secrets).text,
            requested,
            progress.status,
        )
        measure(job, args.output, progress)
        return 0
    except Terminated as stopped:
        # A codec that the signal interrupts raises a new Terminated, with the original as its cause.
        cause = stopped.__cause__
        # Nothing is left to tear down, and SLURM sends the signal more than once.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if time.time() >= end_s:
            message = "SLURM ended the job at its time limit, and would again: give rule benchmark a longer runtime"
            progress.fail(f"{message} (set-resources in the profile)", TIME_LIMIT)
            return 1
        progress.stop(str(cause if isinstance(cause, Terminated) else stopped))
        return 2
    except (Failure, OSError) as failure:
        remark = busy_remark() if here else ""
        progress.fail(f"{failure}{remark}", code_of(failure))
    except Exception as error:  # noqa: BLE001  (a traceback could show a secret, and nobody reads it at night)
        print(progress.redact(traceback.format_exc()), file=sys.stderr)
        progress.fail(
            f"{type(error).__name__}: {error}; this is a mistake in the program",
            code_of(error),
        )
    progress.say(
        f"the other measurements go on; a report on what exists: {so_far_command()}"
    )
    return 1


def _require_hope(
    config: Config, own: Path, pointers: Sequence[Path], since: float
) -> None:
    """Raise MeasurementError if every cell that this snakemake measures has failed in the same way, and none has not."""
    campaign = config.campaign
    results, logs = Path(campaign.results), Path("logs", campaign.name)
    status = common_failure(own, pointers, results, logs, since)
    if status is not None:
        message = f"not started, because every cell has failed in the same way: {status.message}"
        raise MeasurementError(message, code=NOT_STARTED)


def _job(args: argparse.Namespace, config: Config) -> Job:
    """Return what to measure: rendered again, not passed in, so that nothing is measured but what was planned."""
    cell, campaign = config.cell(args.cell), config.campaign
    specification = planned = (
        config.pilot_specification(cell) if args.pilot else config.specification(cell)
    )
    if args.levels is not None:
        specification = config.specification(cell, frozen_levels(args.levels))
    # The id with the levels follows from the planned one; another id than the planned one is refused.
    as_planned = planned.measurement_id == args.measurement
    return Job(
        specification=specification,
        measurement=specification.measurement_id if as_planned else args.measurement,
        run=args.run,
        store=args.store,
        server_environment=args.server_environment.absolute(),
        build=config.build(cell),
        required=config.required_counters(cell),
        stall_limit_s=campaign.stall_limit_s,
        secrets=(*campaign.secrets, *campaign.keys),
        campaign=campaign.name,
        site=campaign.cluster,
        existing=campaign.existing.get(cell.scenario),
        prometheus=campaign.prometheus,
        pointers=[campaign_pointer(config, *run) for run in planned_runs(config)],
        known_defects=config.catalogue.known_defects,
    )


if __name__ == "__main__":
    sys.exit(main())
