"""Why measurements failed, read from their jobs' logs: for the end of a workflow and for the report so far.

A job's last line begins with one of the words below, which also those who write the lines take from here.
"""

from collections.abc import Iterable
from pathlib import Path

from kveval.host.lock import is_held

MEASURED = "measured: "
ADOPTED = "adopted "
FAILED = "FAILED: "
STOPPED = "stopped"
KEPT = "this attempt's files"
"""Where a failed attempt's files are; a line that may follow the cause."""
OTHERS_GO_ON = "the other measurements go on"
"""The last line of a job that failed, after the cause."""
REPORT_COMMAND = "snakemake --cores 4 report_so_far"
"""How to get a report when not everything was measured; a campaign of one's own adds its --configfile."""


def why_absent(log: Path) -> str | None:
    """Return why a run has no result, from its job's log: the job is running, or failed; None if none ran."""
    if is_held(log):
        texts = _texts(log)
        return f"running: {texts[-1]}" if texts else "running"
    reason = cause(log)
    if reason is None or is_stop(reason):
        return reason
    return f"failed: {reason}"


def cause(log: Path) -> str | None:
    """Return why the last job that wrote `log` did not measure, or None when it did or none ran."""
    texts = _texts(log)
    for text in reversed(texts):
        if text.startswith(FAILED):
            return text.removeprefix(FAILED)
        if text.startswith(STOPPED):
            return text
        if text.startswith((MEASURED, ADOPTED)):
            return None
        if not text.startswith((KEPT, OTHERS_GO_ON)):
            break
    return f"its job was killed; its last line was: {texts[-1]}" if texts else None


def is_stop(reason: str) -> bool:
    """Return whether a cause is that the job was told to stop, which is no failure."""
    return reason.startswith(STOPPED)


def _texts(log: Path) -> list[str]:
    """Return the lines of a job's log without their time and place; none if there is no log."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return []
    return [line.partition(" · ")[2] or line[len("00:00:00 ") :] for line in lines]


def causes(
    pointers: Iterable[Path], results: Path, logs: Path, since: float = 0.0
) -> dict[str, str]:
    """Return MODEL/SCENARIO/BLOCKS/run-N and cause of every run that was tried and has no result.

    `pointers`: the campaign's measurement.json files below `results`; `logs`: its folder of logs; `since`: only jobs
    that wrote their log after this time, epoch seconds.
    """
    causes_by_run = {}
    for pointer in pointers:
        run = pointer.parent.relative_to(results)
        log = logs / "benchmark" / run.with_name(run.name + ".log")
        if pointer.exists() or not log.exists() or log.stat().st_mtime < since:
            continue
        reason = cause(log)
        if reason is not None:
            causes_by_run[run.as_posix()] = f"{reason} [{log}]"
    return causes_by_run
