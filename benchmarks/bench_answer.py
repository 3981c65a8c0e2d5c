"""How soon `kveval curve` answers the question of config/README.md: its first line, its text, its table and figure.

python benchmarks/bench_answer.py [CAMPAIGN.yaml ...] [--repeat 5]

Without campaigns: that question, and config/campaigns/laptop-hybrid.yaml. Prints, for the quickest of --repeat runs,
wall and CPU seconds until the first line, until the last line before the table, and in all; and their ratio to the CPU
seconds in which Python imports numpy, pydantic and typer, without which there is no answer, in the same minute. On a
busy machine compare these ratios.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_IMPORTS = "import numpy, pydantic, typer"
_TICKS_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Elapsed:
    """Seconds since the start of a process, and seconds of CPU that it used until then."""

    wall_s: float
    cpu_s: float


def cpu_s(process: int) -> float:
    """Return the seconds of CPU that a running process has used (proc(5), utime and stime)."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_S


def children_s() -> float:
    """Return the seconds of CPU of all processes that this one started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def answer(campaign: Path, folder: Path) -> tuple[Elapsed, Elapsed, Elapsed]:
    """Run the command; return what its first line took, its last before the table, and the whole."""
    command = [sys.executable, "-P", "-m", "kveval", "curve", str(campaign)]
    before, began, lines = children_s(), time.monotonic(), list[tuple[str, Elapsed]]()
    with subprocess.Popen(
        [*command, "--directory", str(folder)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT / "scripts")},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            took = Elapsed(time.monotonic() - began, cpu_s(process.pid))
            lines.append((line, took))
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed")
    whole = Elapsed(time.monotonic() - began, children_s() - before)
    text = [took for line, took in lines if not line.startswith(("Table:", "Figure:"))]
    return text[0], text[-1], whole


def imports() -> Elapsed:
    """Import what every answer needs in a process of its own."""
    before, began = children_s(), time.monotonic()
    subprocess.run([sys.executable, "-c", _IMPORTS], check=True)
    return Elapsed(time.monotonic() - began, children_s() - before)


def question(folder: Path) -> Path:
    """Write the question of config/README.md into a campaign's file."""
    page = (ROOT / "config" / "README.md").read_text(encoding="utf-8")
    shown = re.search(r"```yaml\n(.*?)```", page, re.DOTALL)
    if shown is None:
        raise SystemExit("config/README.md has no campaign")
    file = folder / "ours.yaml"
    file.write_text(shown[1], encoding="utf-8")
    return file


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("campaigns", type=Path, nargs="*", metavar="CAMPAIGN")
    parser.add_argument("--repeat", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-answer-") as name:
        folder = Path(name)
        campaigns = [one.absolute() for one in given.campaigns] or [
            question(folder),
            ROOT / "config" / "campaigns" / "laptop-hybrid.yaml",
        ]
        for campaign in campaigns:
            rounds = [
                (imports(), *answer(campaign, folder)) for _ in range(given.repeat)
            ]
            bare, *parts = (
                min(runs, key=lambda took: took.cpu_s)
                for runs in zip(*rounds, strict=True)
            )
            print(
                f"{campaign.name}: imports {bare.wall_s:.2f} s, {bare.cpu_s:.2f} s of CPU"
            )
            for part, took in zip(
                ("first line", "whole text", "with table and figure"),
                parts,
                strict=True,
            ):
                print(
                    f"  {part:<22} {took.wall_s:6.2f} s {took.cpu_s:6.2f} s of CPU, {took.cpu_s / bare.cpu_s:5.1f} times"
                )


if __name__ == "__main__":
    main()
