"""Whether Snakemake's plugin for SLURM learns how jobs end; where it does not, it waits for ever, without a word."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Mapping

from kveval.workflow.invocation import SlurmPolling

# The plugin's longest pause between two queries, seconds, and time for a query.
LONGEST_PAUSE_S = 180 + 10
# The plugin asks sacct instead of squeue if SLURM keeps finished jobs for less than so many first pauses.
_FIRST_PAUSES = 3
_NO_ACCOUNTING = re.compile(r"(accounting_storage/)?none|\(null\)|")


class UnseenJobs(Exception):
    """Snakemake would never learn how SLURM's jobs end."""


def require_seen_jobs(
    polling: SlurmPolling | None, warn: Callable[[str], None]
) -> None:
    """Raise UnseenJobs if snakemake would wait without end for the end of a SLURM job, and warn if it might.

    `polling`: how the plugin asks, None where jobs are sent elsewhere.
    """
    configuration = _configuration() if polling is not None else {}
    if polling is None or not configuration:
        # Without an answer from SLURM the plugin itself complains when it submits a job.
        return
    accounting = not _NO_ACCOUNTING.fullmatch(
        configuration.get("AccountingStorageType", "")
    )
    kept_s = _seconds(configuration.get("MinJobAge", ""))
    needed_s = _FIRST_PAUSES * polling.first_pause_s
    if shutil.which("sacct") is None or (
        polling.command == "squeue" and kept_s >= needed_s
    ):
        if kept_s < LONGEST_PAUSE_S:
            remedy = (
                "slurm-status-command: sacct"
                if accounting
                else "profiles/cluster-generic, which asks more often"
            )
            warn(
                f"SLURM forgets a finished job after {kept_s} s (MinJobAge), and snakemake may ask only every"
                f" {LONGEST_PAUSE_S} s: it would then wait for that job without end. Use {remedy}, or have MinJobAge"
                " raised."
            )
        return
    if accounting:
        return
    message = "SLURM has no accounting here (AccountingStorageType): sacct cannot say how jobs end"
    if kept_s >= needed_s:
        raise UnseenJobs(
            f"{message}, and snakemake would wait for them without end. Set slurm-status-command: squeue"
        )
    raise UnseenJobs(
        f"{message}, and snakemake asks squeue only where SLURM remembers finished jobs for {needed_s} s (MinJobAge is"
        f" {kept_s} s): it would wait for them without end. Use profiles/cluster-generic, or have MinJobAge raised"
    )


def _configuration() -> Mapping[str, str]:
    """Return SLURM's configuration by name; empty if SLURM does not answer."""
    try:
        shown = subprocess.run(
            ["scontrol", "show", "config"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    pairs = (line.partition("=") for line in shown.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _seconds(text: str) -> int:
    """Return the seconds of a value such as "300 sec", 0 for anything else."""
    match = re.match(r"\d+", text)
    return int(match[0]) if match else 0
