"""What several benchmarks need: snakemake as a user runs it, timed."""

import resource
import shlex
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

LOG = "snakemake.log"


@dataclass(frozen=True)
class Took:
    """What a command took, seconds, and what it printed."""

    wall_s: float
    cpu_s: float
    output: str


def children_cpu_s() -> float:
    """Return the seconds of CPU of all processes that this one started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def snakemake(folder: Path, *arguments: str) -> Took:
    """Run snakemake in `folder`; ends the program with its output when it fails."""
    started, before, log = time.monotonic(), children_cpu_s(), folder / LOG
    with log.open("w") as sink:
        done = subprocess.run(
            ["snakemake", *arguments], cwd=folder, stdout=sink, stderr=subprocess.STDOUT
        )
    took = Took(time.monotonic() - started, children_cpu_s() - before, log.read_text())
    if done.returncode:
        raise SystemExit(
            f"snakemake {shlex.join(arguments)[:500]} failed:\n{took.output[-5000:]}"
        )
    return took
