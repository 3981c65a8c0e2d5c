"""The analysis on a real SLURM, by the profiles as they are; measurements beside snakemake, or there when asked."""

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.support import plugins, slurm_testbed
from tests.support.fault_chain import ADOPTED
from tests.support.result_trees import write_campaign_tree
from tests.workflow.test_reruns import PARTS, REPOSITORY, fill_store

PLUGINS = ("snakemake_executor_plugin_slurm", "snakemake_executor_plugin_cluster_generic")
why = slurm_testbed.missing() or plugins.missing("execution", *PLUGINS)
pytestmark = [pytest.mark.workflow, pytest.mark.skipif(why is not None, reason=str(why))]

# What is this cluster's own: no accounts, and nobody waits for a status. The plugin asks after 2 s and, where nothing
# has ended, after 12 s more and 22 s more.
SITE = ["--seconds-between-status-checks", "1", "--latency-wait", "10"]
SLURM = ["--slurm-no-account", "--slurm-status-command", "squeue", "--slurm-init-seconds-before-status-checks", "2"]
RESULTS = Path("results/campaigns/old-results")


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder: Path = tmp_path_factory.mktemp("slurm") / "state"
    with slurm_testbed.slurm(folder):
        yield folder


@pytest.fixture
def workflow(tmp_path: Path) -> Path:
    """A copy of the workflow with results to import: one run of two cells."""
    folder = tmp_path / "repository"
    folder.mkdir()
    for part in PARTS:
        source = REPOSITORY / part
        if source.is_dir():
            shutil.copytree(source, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, folder / part)
    write_campaign_tree(folder / "tree", runs=1, rates=(4,))
    campaign = {"name": "old-results", "results": str(RESULTS), "import": [{"path": "tree"}]}
    (folder / "campaign.yaml").write_text(yaml.safe_dump(campaign))
    return folder


def snakemake(folder: Path, *arguments: str) -> str:
    """Run snakemake without --cores: where the jobs go is the profile's to say."""
    done = subprocess.run(
        ["snakemake", *SITE, *arguments],
        cwd=folder,
        env=plugins.environment("execution"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


def test_the_tables_come_from_slurm(state: Path, workflow: Path) -> None:
    before = slurm_testbed.finished_jobs(state)
    target = str(RESULTS / "analysis" / "comparison.csv")
    output = snakemake(workflow, "--profile", "profiles/slurm", "--configfile", "campaign.yaml", *SLURM, "--", target)
    assert (workflow / target).is_file()
    # Two runs imported, two cells' tables in a job each, collected, compared.
    assert slurm_testbed.finished_jobs(state) - before == 6, output


def test_the_tables_come_from_any_cluster_that_takes_a_command(state: Path, workflow: Path) -> None:
    before = slurm_testbed.finished_jobs(state)
    target = str(RESULTS / "Qwen3-0.6B" / "no-offload" / "0" / "peak.csv")
    profile = ["--workflow-profile", "profiles/cluster-generic"]
    output = snakemake(workflow, *profile, "--configfile", "campaign.yaml", "--", target)
    assert (workflow / target).is_file()
    assert slurm_testbed.finished_jobs(state) - before == 2, output


def test_the_status_command_knows_how_jobs_end(state: Path, tmp_path: Path) -> None:
    submit = ["sbatch", "--parsable", "--output", str(tmp_path / "%j.log"), "--wrap"]
    jobs = [
        subprocess.check_output([*submit, command], text=True).strip() for command in ("true", "exit 3", "sleep 60")
    ]
    script = REPOSITORY / "profiles" / "cluster-generic" / "status.sh"

    def told() -> list[str]:
        return [subprocess.check_output([script, job], text=True).strip() for job in [*jobs, "999999"]]

    deadline = time.monotonic() + 60
    while "running" in told()[:2]:
        assert time.monotonic() < deadline, told()
        time.sleep(0.5)
    assert told() == ["success", "failed", "running", "failed"]
    subprocess.run(["scancel", jobs[2]], check=True)


@pytest.mark.parametrize(
    ("profile", "jobs"),
    [
        (["--profile", "profiles/slurm"], 0),
        (["--workflow-profile", "profiles/slurm-gpu", "--set-threads", "benchmark=1"], 1),
    ],
    ids=["beside snakemake", "on a node"],
)
def test_a_measurement_is_made_where_the_profile_says(state: Path, workflow: Path, profile, jobs) -> None:
    fill_store(workflow)
    before = slurm_testbed.finished_jobs(state)
    target = "results/Qwen3-0.6B/no-offload/0/run-1/measurement.json"
    here = ["--set-resources", "benchmark:slurm_partition=main"] if jobs else []
    output = snakemake(workflow, *profile, *here, *SLURM, "--", target)
    assert (workflow / target).is_file(), output
    assert slurm_testbed.finished_jobs(state) - before == jobs
    log = (workflow / "logs/laptop/benchmark/Qwen3-0.6B/no-offload/0/run-1.log").read_text()
    assert ADOPTED in log
