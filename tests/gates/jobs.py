"""The jobs that Snakemake plans for every campaign that ships, without results: `python -m tests.gates.jobs FOLDER`.

FOLDER/planned.json has rule -> number of jobs of each, or why it is refused. Snakemakes are forks, as most of the time would
be Python's start.
"""

import json
import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

import snakemake.cli
from tests.gates import campaigns, forks
from tests.support.paths import REPOSITORY, SCRIPTS
from tests.support.planning import job_counts

NOTHING = "Nothing to be done"
AT_ONCE = 2
CATALOGUES = REPOSITORY / "config"
SHIPPED = sorted([CATALOGUES / "config.yaml", *CATALOGUES.glob("campaigns/*.yaml")])
WITH_BUCKET = "config, with a bucket in place of a shared folder"
"""The default campaign as profiles/kubernetes-executor plans it; the bucket: host/snakemake_storage_plugin_nowhere."""
_BUCKET = (
    *("--default-storage-provider", "nowhere", "--shared-fs-usage", "none"),
    *("--default-storage-prefix", "nowhere://bucket"),
)


def main(folder: Path) -> int:
    """Write what is planned, by two processes; return 1 if one failed."""
    forks.load(SCRIPTS.glob("*.py"))
    folder.mkdir(parents=True, exist_ok=True)
    workflow = folder / "workflow"
    campaigns.make_workflow(workflow, folder / "no-stand-ins")
    copied = workflow / "config" / "campaigns"
    shutil.copytree(CATALOGUES / "campaigns", copied, dirs_exist_ok=True)
    asked = {
        path.stem: ("-n", "--configfile", str(path.relative_to(REPOSITORY)))
        for path in SHIPPED
    }
    asked[WITH_BUCKET] = (*asked["config"], *_BUCKET)
    shares = [[*asked][number::AT_ONCE] for number in range(AT_ONCE)]

    def plan(share: Iterable[str]) -> None:
        for name in share:
            run_snakemake(workflow, folder / f"{name}.txt", *asked[name])

    children = [forks.in_fork(lambda share=share: plan(share)) for share in shares]
    failed = [os.waitpid(child, 0)[1] for child in children]
    planned = {name: jobs_in((folder / f"{name}.txt").read_text()) for name in asked}
    (folder / "planned.json").write_text(json.dumps(planned))
    return int(any(failed))


def jobs_in(printed: str) -> dict[str, int] | str:
    """Return rule -> number of jobs that a dry run lists; none if nothing is to be done, its last line if it is refused."""
    if NOTHING in printed:
        return {}
    if "Job stats:" in printed:
        return job_counts(printed)
    return printed.strip().splitlines()[-1]


def run_snakemake(folder: Path, printed: Path, *arguments: str) -> int:
    """Run Snakemake for a report in a folder, in a fork; return its exit status. What it prints is in a file."""

    def run() -> None:
        os.chdir(folder)
        with printed.open("wb") as file:
            for stream in (1, 2):
                os.dup2(file.fileno(), stream)
        command = ["report", *arguments, "--cores", "2", "--scheduler", "greedy"]
        sys.argv = ["snakemake", *command]
        snakemake.cli.main(command)

    return os.waitpid(forks.in_fork(run), 0)[1]


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute()))
