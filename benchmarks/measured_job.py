"""A batch system of one machine, for Snakemake's cluster-generic: runs the jobs it is given and measures each.

    python benchmarks/measured_job.py RECORDS JOBSCRIPT

Starts the job script and returns at once, as sbatch does, printing the number of the process. When the job ends, a line
of JSON is added to the file RECORDS: the fields of `Usage`, and of the job its rule, threads and resources.

Snakemake's own `benchmark:` measures less: only the script's process, not the snakemake that a batch system starts
around it, whose memory counts against the job's limit too; and after 15 s it samples only every 30 s.
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

SAMPLE_S = 0.05
_BUSY_S = 1.0
_MIB = 2**20


@dataclass
class Usage:
    """What a command used, with all its processes."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    # The largest sum over the processes that lived at once, of resident sets: pages that they share count in each.
    memory_mib: float = 0.0
    # The same with every shared page divided among those that share it.
    proportional_mib: float = 0.0
    # Seconds of CPU in its busiest second.
    busiest_cores: float = 0.0


def measure(command: Sequence[str], **options: object) -> tuple[int, Usage]:
    """Run a command; return its exit status and what it used."""
    usage, before = Usage(), resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.monotonic()
    process = psutil.Popen(command, **options)
    then, used = began, {process.pid: 0.0}
    while process.poll() is None:
        members = _members(process)
        usage.memory_mib = max(
            usage.memory_mib, sum(rss for rss, _, _ in members.values()) / _MIB
        )
        usage.proportional_mib = max(
            usage.proportional_mib, sum(pss for _, pss, _ in members.values()) / _MIB
        )
        if (now := time.monotonic()) - then >= _BUSY_S:
            # For a new process this is all that it has used.
            spent = sum(
                cpu - used.get(pid, 0.0) for pid, (_, _, cpu) in members.items()
            )
            usage.busiest_cores = max(usage.busiest_cores, spent / (now - then))
            then, used = now, {pid: cpu for pid, (_, _, cpu) in members.items()}
        time.sleep(SAMPLE_S)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    usage.wall_s = time.monotonic() - began
    usage.cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return process.returncode, usage


def _members(process: psutil.Process) -> dict[int, tuple[int, int, float]]:
    """Return, for a process and all its descendants, pid -> resident and proportional bytes, seconds of CPU."""
    found: dict[int, tuple[int, int, float]] = {}
    try:
        family = [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return found
    for member in family:
        try:
            memory, times = member.memory_full_info(), member.cpu_times()
        except psutil.Error:
            continue  # gone meanwhile
        found[member.pid] = memory.rss, memory.pss, times.user + times.system
    return found


def main() -> None:
    """Start the measuring process and return; or, with a third argument, be that process."""
    records, script, *measuring = sys.argv[1:]
    if not measuring:
        # Snakemake reads what this prints until nobody holds its end of the pipe.
        with Path(f"{records}.log").open("a") as log:
            child = subprocess.Popen(
                [sys.executable, __file__, records, script, "measuring"],
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        print(child.pid)
        return
    # Snakemake removes the script as soon as the job has ended.
    text = Path(script).read_text()
    properties = json.loads(re.search(r"^# properties = (.*)$", text, re.M)[1])
    status, usage = measure(["sh", script])
    kind = properties.get("rule") or properties.get("groupid")
    record = {
        "rule": kind,
        "threads": properties.get("threads"),
        "resources": properties.get("resources"),
    }
    with Path(records).open("a") as sink:
        sink.write(json.dumps(record | asdict(usage) | {"status": status}) + os.linesep)


if __name__ == "__main__":
    main()
