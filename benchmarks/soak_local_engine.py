"""Measures one cell many times in a row on this machine, to see leftovers and a drift of the start-up time.

python benchmarks/soak_local_engine.py [--runs 10] [--cell MODEL/SCENARIO/CPU_BLOCKS] [--seconds 10] [--folder DIR]

Runs snakemake in a copy of the workflow, one run of the cell at a time, and prints for each: seconds of the start-up
and altogether, whether the stored measurement verifies, and what was left: processes, listening ports, shared memory
(POSIX and System V), temporary files, registry entries, unfinished runs. Ends with the drift of the start-up time,
seconds per run with its 95 % interval. Exit status 1 if a run failed or anything was left. Needs a quiet machine: most
leftovers count only if the runs' processes made them, but all new files in /tmp count.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from scipy import stats

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from tests.support.fault_chain import workflow_copy  # noqa: E402
from tests.support.leftovers import Trace  # noqa: E402

from kveval.host import hardware  # noqa: E402
from kveval.host.lock import LOCK  # noqa: E402
from kveval.store.store import Key, StoreError, verify  # noqa: E402

NAME = "soak"
SETTLING_S = 5.0


@dataclass(frozen=True)
class Turn:
    """One run: seconds until the server answered, seconds altogether, what was wrong, what was left."""

    startup_s: float | None
    total_s: float
    problem: str
    left: list[str]

    def line(self, number: int) -> str:
        """Return the run as one line."""
        startup = "-" if self.startup_s is None else f"{self.startup_s:.1f}"
        state = self.problem or "verified"
        return f"{number:4d}  {startup:>9}  {self.total_s:7.1f}  {state}, {len(self.left) or 'nothing'} left"


def campaign(cell: str, seconds: float, runs: int) -> dict[str, Any]:
    """Return a campaign of the smoke campaign's server and workload, with this one cell and one level."""
    model, scenario, blocks = cell.split("/")
    content: dict[str, Any] = yaml.safe_load(
        (ROOT / "config" / "campaigns" / "smoke.yaml").read_text()
    )
    workload = content["workloads"]["smoke"] | {"levels": [4], "seconds": seconds}
    server = content["server"] | {"lmcache": "0.5.6"}
    matrix = [{"models": [model], "scenarios": [scenario], "cpu_blocks": [int(blocks)]}]
    return content | {
        **{
            "name": NAME,
            "results": f"results/{NAME}",
            "server": server,
            "runs": runs,
            "matrix": matrix,
        },
        "workloads": {"smoke": workload},
    }


def turn(folder: Path, cell: str, number: int) -> Turn:
    """Measure run `number` of the cell, and look for what it left."""
    temporary = {path.name for path in Path(tempfile.gettempdir()).iterdir()}
    pointer = folder / "results" / NAME / cell / f"run-{number}" / "measurement.json"
    begin = time.monotonic()
    with (folder / "output").open("ab") as output:
        running = subprocess.Popen(
            [
                "snakemake",
                "--cores",
                "2",
                str(pointer.relative_to(folder)),
                "--configfile",
                "campaign.yaml",
            ],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": ""},
            stdout=output,
            stderr=output,
        )
        trace = Trace(running.pid, Path.home(), interval_s=3.0)
        code = running.wait()
    total_s = time.monotonic() - begin
    trace.end()
    deadline = time.monotonic() + SETTLING_S
    while (left := trace.left()) and time.monotonic() < deadline:
        time.sleep(0.2)
    new = (
        {path.name for path in Path(tempfile.gettempdir()).iterdir()}
        - temporary
        - {LOCK.name}
    )
    left += [f"temporary file {name}" for name in sorted(new)]
    store = folder / "results" / "measurements"
    left += [str(path) for path in (*store.glob("partial/*"), *store.glob("damaged/*"))]
    if code != 0:
        return Turn(None, total_s, f"FAILED (exit status {code})", left)
    try:
        facts = _verified(folder, pointer)
    except (OSError, ValueError, KeyError, StoreError) as error:
        return Turn(None, total_s, f"NOT VERIFIED ({error})", left)
    return Turn(facts["server"]["startup_s"], total_s, "", left)


def _verified(folder: Path, pointer: Path) -> dict[str, Any]:
    described = json.loads(pointer.read_text())
    key = Key(
        described["measurement"], described["run"], hardware.probe()["fingerprint"]
    )
    return verify(folder / described["path"], key)


def drift(startups: list[float]) -> str:
    """Say how the start-up time changes with the run, seconds a run with its 95 % interval."""
    if len(startups) < 3:
        return f"drift of the start-up time: {len(startups)} runs are too few"
    fit = stats.linregress(range(1, len(startups) + 1), startups)
    half = stats.t.ppf(0.975, len(startups) - 2) * fit.stderr
    verdict = "none to be seen" if abs(fit.slope) <= half else "yes"
    low, high = fit.slope - half, fit.slope + half
    return f"drift of the start-up time: {fit.slope:+.3f} s a run (95 %: {low:+.3f} to {high:+.3f}): {verdict}"


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument(
        "--cell",
        default="Qwen3-0.6B/native-offload/10000",
        help="MODEL/SCENARIO/CPU_BLOCKS",
    )
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="length of the one level"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        help="scratch folder; a temporary one, removed, by default",
    )
    args = parser.parse_args()
    base = args.folder or Path(tempfile.mkdtemp(prefix="kveval-soak-"))
    folder = workflow_copy(base / "repository")
    (folder / ".server-venv").symlink_to(ROOT / ".server-venv")
    (folder / "campaign.yaml").write_text(
        yaml.safe_dump(campaign(args.cell, args.seconds, args.runs))
    )
    print(
        f"{args.cell}, {args.runs} runs in {folder}\n run  start-up   total  (seconds)",
        flush=True,
    )
    turns = []
    for number in range(1, args.runs + 1):
        turns.append(turn(folder, args.cell, number))
        print(
            turns[-1].line(number), *turns[-1].left, sep="\n        left: ", flush=True
        )
    print(drift([done.startup_s for done in turns if done.startup_s is not None]))
    bad = sum(bool(done.problem or done.left) for done in turns)
    if bad:
        print(
            f"{bad} of {len(turns)} runs failed or left something; output and results are kept in {folder}"
        )
        return 1
    if args.folder is None:
        shutil.rmtree(base)
    return 0


if __name__ == "__main__":
    sys.exit(main())
