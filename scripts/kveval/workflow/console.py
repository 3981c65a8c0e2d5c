"""The lines on the console besides Snakemake's own: warnings before anything is measured, and the last lines."""

import atexit
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from logging import LogRecord
from pathlib import Path
from typing import TextIO

from kveval.campaign.problems import closest
from kveval.host.findings import pluralize
from kveval.host.quiet import describe_now, quiet_wait_s
from kveval.measure.progress import write_requested
from kveval.measure.status import absences
from kveval.report.files import so_far_command
from kveval.workflow import HINT_VARIABLE
from kveval.workflow.invocation import RequestedJobs
from kveval.workflow.planning.order import requested_file
from kveval.workflow.runs import SO_FAR, Runs, as_workflow_error


def before(
    runs: Runs,
    requested: RequestedJobs,
    warn: Callable[[str], None],
    *,
    measured_here: bool = True,
    slots: int = 1,
    cores: int = 1,
) -> None:
    """Print what is known before measurements are made, and list them for the jobs' progress; nothing if there are none.

    Printed are the campaign's warnings and how busy this machine is. `measured_here`: whether it makes the measurements
    itself; `slots`: how many at once, and `cores`: for how many there are cores here. Raises WorkflowError where the
    environment does not say how long a run may wait.
    """
    if not requested.measured:
        return
    write_requested(requested_file(runs.config), requested.measured)
    for warning in runs.config.warnings:
        warn(str(warning))
    if measured_here and slots > cores:
        warn(
            f"{slots} measurements are to be made at once, and snakemake has {pluralize(cores, 'core')}, of which each"
            f" takes one: --cores {slots}"
        )
    if measured_here and runs.config.campaign.engine == "local":
        _describe_machine(warn)


def _describe_machine(warn: Callable[[str], None]) -> None:
    """Print how busy this machine is, unless runs do not wait for a quiet one."""
    with as_workflow_error():
        limit_s = quiet_wait_s()
    if limit_s == 0:
        return
    text, quiet = describe_now(limit_s)
    if quiet:
        print(text, file=sys.stderr, flush=True)
    else:
        warn(text)


def explain(
    record: LogRecord, runs: Runs, rules: Iterable[str], files: Iterable[str]
) -> bool:
    """Shorten Snakemake's error about a target that nothing makes, or a cell that is refused, to a line.

    `rules`: the names of targets; `files`: the paths that rules make, with their wildcards. Returns True: as a filter
    of the log, this keeps every record.
    """
    text = str(record.msg)
    missing = re.search(r"No rule to produce (.+?) \(if you use", text)
    if missing is not None:
        record.msg = no_target(missing[1], runs, rules, files)
    elif "\n  WorkflowError:\n" in text:
        # A refusal with its reason; the rest is where in the rules it was found.
        record.msg = (
            text.partition("\n  WorkflowError:\n")[2]
            .partition("\nWildcards:")[0]
            .strip()
        )
    return True


def no_target(
    target: str, runs: Runs, rules: Iterable[str], files: Iterable[str]
) -> str:
    """Say that nothing makes a target, what in it is unknown, and the names that are nearest."""
    path = Path(target)
    if path.parent == Path():
        return f"There is no target {target}: {_nearest(target, rules)}"
    catalogue = runs.config.catalogue
    parts = (
        path.relative_to(runs.config.campaign.results).parts
        if path.is_relative_to(runs.config.campaign.results)
        else ()
    )
    if (len(parts) >= 4 and parts[-2].isdecimal()) or len(parts) >= 5:
        first = 1 if parts[0] == SO_FAR.strip("/") else 0
        named = (
            ("model", parts[first], catalogue.models),
            ("scenario", parts[first + 1], catalogue.scenarios),
        )
        for kind, name, known in named:
            if name not in known:
                return f"Nothing makes {target}: there is no {kind} {name}; {_nearest(name, known)}"
    names = {Path(file).name for file in files}
    fixed = [name for name in names if "{" not in name]
    return f"Nothing makes {target}: {_nearest(path.name, fixed) if path.name not in fixed else 'no such folder'}"


def _nearest(name: str, known: Iterable[str]) -> str:
    hint, near = closest(name, known)
    return hint.partition("?")[0] + "?" if near else f"known: {hint}"


def print_last(lines: Iterable[str], file: TextIO | None = None) -> None:
    """Print lines when this process ends: Snakemake itself prints more after its handlers.

    `file`: where to; None for standard output.
    """
    atexit.register(_print, list(lines), file)


def after_success(runs: Runs, requested: RequestedJobs) -> Iterator[str]:
    """Yield the last lines of a successful snakemake: where the report is, or the files that were requested."""
    yield from _made(runs, requested)
    yield from _hint()


def when_nothing_was_to_do(
    up_to_date: Callable[[], RequestedJobs | None], runs: Runs
) -> None:
    """Print where the report is also if all files existed already, because Snakemake then calls no handler.

    `up_to_date` returns at the end what was requested, None unless that was files which all existed.
    """

    def name() -> None:
        requested = up_to_date()
        if requested is not None:
            _print(list(_made(runs, requested)))

    atexit.register(name)


def after_failures(
    runs: Runs,
    since: float,
    warn: Callable[[str], None],
    analyses: Sequence[str] = (),
) -> Iterator[str]:
    """Yield each failed measurement with its cause, the other jobs that failed, and how to get a report all the same.

    `since`: when snakemake began, epoch seconds; `analyses`: a line for each of the other jobs. On a cluster this also
    removes what killed jobs left and the recorder that the campaign's jobs share; `warn` gets what was left, or stays.
    """
    # Snakemake calls its handler when all jobs have ended.
    failed, stopped = _unmeasured(runs, runs.pointers, since, jobs_ended=True)
    if failed:
        yield "Some measurements failed. The others are kept, and the same command measures the rest:"
        yield from (f"  {line}" for line in failed)
    if stopped:
        yield "Some measurements were stopped. The same command measures them:"
        yield from (f"  {line}" for line in stopped)
    if failed or stopped:
        _release_recorder(runs, warn)
    if analyses:
        yield "Other jobs failed. The same command tries them again:"
        yield from (f"  {line}" for line in analyses)
    yield from _report_command()


def after_stop(
    runs: Runs,
    requested: RequestedJobs,
    since: float,
    why: str,
    warn: Callable[[str], None],
) -> Iterator[str]:
    """Yield what a stopped or drained snakemake has kept, and how to go on; `why` is the first line.

    The other parameters are those of `after_failures`; this also releases the recorder.
    """
    yield why
    if not requested.measured:
        yield "The same command goes on."
        return
    done = sum(
        pointer.exists() and pointer.stat().st_mtime >= since
        for pointer in requested.measured
    )
    yield f"Kept: {done} of {pluralize(len(requested.measured), 'measurement')}. The same command goes on with the rest."
    failed, _ = _unmeasured(runs, requested.measured, since)
    yield from (f"Failed: {line}" for line in failed)
    _release_recorder(runs, warn)
    yield from _report_command()


def _unmeasured(
    runs: Runs, pointers: Iterable[Path], since: float, *, jobs_ended: bool = False
) -> tuple[list[str], list[str]]:
    """Return a line for each run that has failed, and for each that was stopped; those that still run have none."""
    campaign = runs.config.campaign
    absent = absences(
        pointers,
        Path(campaign.results),
        Path("logs", campaign.name),
        since=since,
        jobs_ended=jobs_ended,
    )
    failed, stopped = [], []
    for run, absence in absent.items():
        line = f"{run}: {absence.reason} [{absence.log}]"
        if absence.state == "stopped":
            stopped.append(line)
        elif absence.state != "running":
            failed.append(line)
    return failed, stopped


def _release_recorder(runs: Runs, warn: Callable[[str], None]) -> None:
    campaign = runs.config.campaign
    if campaign.cluster is not None:
        from kveval.engines.kubernetes.recordings import release_recorder  # noqa: PLC0415  (slow, not for plans)

        release_recorder(campaign.cluster, campaign.name, warn)


def _report_command() -> Iterator[str]:
    """Yield the last lines where not everything was measured."""
    yield f"A report on what exists: {so_far_command()}"
    yield from _hint()


def _hint() -> Iterator[str]:
    if hint := os.environ.get(HINT_VARIABLE):
        yield hint


def _print(lines: Sequence[str], file: TextIO | None = None) -> None:
    if lines:
        print("", *lines, sep="\n", file=file, flush=True)


def _made(runs: Runs, requested: RequestedJobs) -> Iterator[str]:
    """Yield a summary of each report and where it is, or the files that were requested by path."""
    results, summary = runs.config.campaign.results, runs.elsewhere.summary
    for folder in requested.reports:
        # Slow, and not for plans.
        from kveval.report.summary import summary_lines  # noqa: PLC0415

        yield from summary_lines(Path(results, folder))
        if summary:
            yield summary
    files = () if requested.reports else requested.files
    yield from (str(path) for path in files if path.exists())
