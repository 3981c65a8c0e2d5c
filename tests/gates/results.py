"""Makes the results of the campaigns: `python -m tests.gates.results FOLDER [CAMPAIGN...]`, in FOLDER/CAMPAIGN.

What Snakemake plans for a campaign that is finished is in FOLDER/CAMPAIGN.planned.txt, of one of them its own report in
FOLDER/snakemake.html.

Through Snakemake's rules, from the store on. Figures are not drawn (stand_ins/plot_family.py), as most of the time would
be theirs; and jobs are forks, as most of the rest would be Python's start.
"""

import os
import sys
import time
from pathlib import Path

import snakemake.cli
from tests.gates import campaigns, forks
from tests.gates.jobs import run_snakemake
from tests.support.paths import SCRIPTS

STAND_INS = Path(__file__).resolve().parent / "stand_ins"
AT_ONCE = 2
SHOWN = "arms"
"""The campaign of which Snakemake's own report is made: it has most arms."""


def main(folder: Path, names: list[str]) -> int:
    """Make the results; return the number of campaigns that failed."""
    forks.load(SCRIPTS.glob("*.py"))
    folder.mkdir(parents=True, exist_ok=True)
    waiting = [name for name in campaigns.MAKERS if not names or name in names]
    running: dict[int, str] = {}
    failed = []
    with forks.served(folder / "forks") as programs:
        while waiting or running:
            while waiting and len(running) < AT_ONCE:
                name = waiting.pop(0)
                child = forks.in_fork(lambda name=name: make(folder, name, programs))
                running[child] = name
            child, status = os.wait()
            if child in running and (name := running.pop(child)) and status:
                failed.append(name)
    for name in failed:
        print((folder / f"{name}.log").read_text()[-6000:], file=sys.stderr)
    return len(failed)


def make(folder: Path, name: str, programs: Path) -> None:
    """Make the results of one campaign; what is printed is in its log."""
    begin = time.monotonic()
    with (folder / f"{name}.log").open("wb") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    workflow = folder / name
    campaigns.make_workflow(workflow, STAND_INS)
    campaigns.MAKERS[name](workflow)
    print(f"{time.monotonic() - begin:.1f} s: stored", flush=True)
    os.chdir(workflow)
    os.environ["PATH"] = f"{programs}{os.pathsep}{os.environ['PATH']}"
    # Snakemake starts a rule's script with the Python that it runs in, other programs with the first one in PATH.
    sys.executable = str(programs / "python")
    for first in campaigns.FIRST.get(name, ()):
        _snakemake(first, "--until", "benchmark")
    _snakemake(name)
    configured = ("--configfile", str(campaigns.campaign_file(Path(), name)))
    run_snakemake(workflow, folder / f"{name}.planned.txt", "-n", *configured)
    if name == SHOWN:
        page = ("--report", str(folder / "snakemake.html"))
        run_snakemake(workflow, folder / f"{name}.shown.txt", *page, *configured)
    print(f"{time.monotonic() - begin:.1f} s: reported", flush=True)


def _snakemake(name: str, *arguments: str) -> None:
    """Run Snakemake for the report of a campaign; end this process if it fails."""
    command = ["report", *arguments, "--cores", "2", "--scheduler", "greedy"]
    command += ["--configfile", f"config/campaigns/{name}.yaml"]
    sys.argv = ["snakemake", *command]
    child = forks.in_fork(lambda: snakemake.cli.main(command))
    if os.waitpid(child, 0)[1]:
        sys.exit(1)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute(), sys.argv[2:]))
