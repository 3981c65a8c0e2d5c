"""The analysis on a real SLURM, by the profiles as they are; measurements beside snakemake, or there when asked."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.support import import_sheets, plugins, slurm_testbed
from tests.support.fault_chain import ADOPTED
from tests.support.paths import REPOSITORY, copy_parts
from tests.support.result_trees import write_campaign_tree
from tests.workflow.test_reruns import PARTS, fill_store

PLUGINS = (
    "snakemake_executor_plugin_slurm",
    "snakemake_executor_plugin_cluster_generic",
)
why = slurm_testbed.missing() or plugins.missing("execution", *PLUGINS)
pytestmark = [
    pytest.mark.workflow,
    pytest.mark.skipif(why is not None, reason=str(why)),
]

# What is this cluster's own: no accounts, and nobody waits for a status. The plugin asks after 2 s and, where nothing
# has ended, after 12 s more and 22 s more.
SITE = ["--seconds-between-status-checks", "1", "--latency-wait", "10"]
SLURM = ["--slurm-no-account", "--slurm-init-seconds-before-status-checks", "2"]
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
    copy_parts(folder, PARTS)
    write_campaign_tree(folder / "tree", runs=1, rates=(4,))
    campaign = {
        "name": "old-results",
        "results": str(RESULTS),
        "import": "imports.csv",
    }
    (folder / "campaign.yaml").write_text(yaml.safe_dump(campaign))
    import_sheets.update(folder / "imports.csv", folder / "tree")
    return folder


def started(folder: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    """Start snakemake without --cores: where the jobs go is the profile's to say."""
    return subprocess.Popen(
        ["snakemake", *SITE, *arguments],
        cwd=folder,
        env=plugins.environment("execution") | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def snakemake(folder: Path, *arguments: str) -> str:
    """Run snakemake to its end, which must be a good one, and return what it said."""
    with started(folder, *arguments) as process:
        output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output[-4000:]
    return output


def test_the_tables_come_from_slurm(state: Path, workflow: Path) -> None:
    before = slurm_testbed.finished_jobs(state)
    target = str(RESULTS / "analysis" / "comparison.csv")
    output = snakemake(
        workflow,
        "--profile",
        "profiles/slurm",
        "--configfile",
        "campaign.yaml",
        *SLURM,
        "--",
        target,
    )
    assert (workflow / target).is_file()
    # Two runs imported, two cells' tables in a job each, collected, compared.
    assert slurm_testbed.finished_jobs(state) - before == 6, output


def test_the_tables_come_from_any_cluster_that_takes_a_command(
    state: Path, workflow: Path
) -> None:
    before = slurm_testbed.finished_jobs(state)
    target = str(RESULTS / "Qwen3-0.6B" / "no-offload" / "0" / "peak.csv")
    profile = ["--workflow-profile", "profiles/cluster-generic"]
    output = snakemake(
        workflow, *profile, "--configfile", "campaign.yaml", "--", target
    )
    assert (workflow / target).is_file()
    assert slurm_testbed.finished_jobs(state) - before == 2, output


def test_the_status_command_knows_how_jobs_end(state: Path, tmp_path: Path) -> None:
    submit = ["sbatch", "--parsable", "--output", str(tmp_path / "%j.log"), "--wrap"]
    jobs = [
        subprocess.check_output([*submit, command], text=True).strip()
        for command in ("true", "exit 3", "sleep 60")
    ]
    script = REPOSITORY / "profiles" / "cluster-generic" / "status.sh"

    def told() -> list[str]:
        return [
            subprocess.check_output([script, job], text=True).strip()
            for job in [*jobs, "999999"]
        ]

    deadline = time.monotonic() + 600
    while "running" in told()[:2]:
        assert time.monotonic() < deadline, told()
        time.sleep(0.5)
    assert told() == ["success", "failed", "running", "failed"]
    subprocess.run(["scancel", jobs[2]], check=True)


@pytest.mark.parametrize("profile", ["profiles/slurm", "profiles/slurm-gpu"])
def test_a_slurm_without_accounting_is_named_before_anything_is_sent(
    state: Path, workflow: Path, profile: str
) -> None:
    before = slurm_testbed.finished_jobs(state)
    copy = [
        "--slurm-status-command",
        "sacct",
    ]  # as in a copy of a profile that does not set it
    target = [
        "--configfile",
        "campaign.yaml",
        "--",
        str(RESULTS / "analysis" / "comparison.csv"),
    ]
    with started(workflow, "--profile", profile, *SLURM, *copy, *target) as process:
        output, _ = process.communicate(timeout=600)
    assert process.returncode == 1
    assert (
        "SLURM has no accounting here" in output
        and "Set slurm-status-command: squeue" in output
    )
    assert "Traceback" not in output
    assert slurm_testbed.finished_jobs(state) == before


def test_a_queue_that_does_not_answer_for_a_while_loses_no_job(
    state: Path, workflow: Path, tmp_path: Path
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    shim = programs / "squeue"
    calls = tmp_path / "calls"
    real = shutil.which("squeue")
    shim.write_text(
        f'#!/bin/sh\necho >> {calls}\n[ $(wc -l < {calls}) -gt 20 ] && exec {real} "$@"\nexit 1\n'
    )
    shim.chmod(0o755)
    target = str(
        RESULTS / "Qwen3-0.6B" / "no-offload" / "0" / "run-i1" / "measurement.json"
    )
    profile = ["--profile", "profiles/slurm", *SLURM, "--configfile=campaign.yaml"]
    with started(
        workflow, *profile, "--", target, PATH=f"{programs}:{os.environ['PATH']}"
    ) as process:
        output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output[-4000:]


@pytest.mark.parametrize(
    ("profile", "options", "message"),
    [
        ("profiles/slurm", SLURM, "SLURM status is: 'CANCELLED'"),
        ("profiles/cluster-generic", [], "has ended: CANCELLED"),
    ],
)
def test_a_job_that_somebody_cancels_is_named_as_cancelled(
    state: Path, workflow: Path, profile: str, options: list[str], message: str
) -> None:
    target = str(RESULTS / "Qwen3-0.6B" / "no-offload" / "0" / "peak.csv")
    held = ["scontrol", "update", "partitionname=main", "state=down"]
    subprocess.run(held, check=True)
    try:
        with started(
            workflow,
            "--profile",
            profile,
            "--configfile",
            "campaign.yaml",
            *options,
            "--",
            target,
        ) as process:
            while not (
                jobs := subprocess.check_output(
                    ["squeue", "--noheader", "--format", "%i"], text=True
                ).split()
            ):
                assert process.poll() is None
                time.sleep(0.2)
            subprocess.run(["scancel", *jobs], check=True)
            output, _ = process.communicate(timeout=600)
    finally:
        subprocess.run([*held[:-1], "state=up"], check=True)
    assert process.returncode == 1
    assert message in output, output[-4000:]
    last = output.partition("Other jobs failed.")[2]
    assert "  import_run Qwen3-0.6B/no-offload/0/i1 [logs/" in last, output[-4000:]


@pytest.mark.parametrize(
    ("profile", "jobs"),
    [
        (["--profile", "profiles/slurm"], 0),
        (
            [
                "--workflow-profile",
                "profiles/slurm-gpu",
                "--set-threads",
                "benchmark=1",
            ],
            1,
        ),
    ],
    ids=["beside snakemake", "on a node"],
)
def test_a_measurement_is_made_where_the_profile_says(
    state: Path, workflow: Path, profile, jobs
) -> None:
    fill_store(workflow)
    before = slurm_testbed.finished_jobs(state)
    target = "results/Qwen3-0.6B/no-offload/0/run-1/measurement.json"
    here = ["--set-resources", "benchmark:slurm_partition=main"] if jobs else []
    output = snakemake(workflow, *profile, *here, *SLURM, "--", target)
    assert (workflow / target).is_file(), output
    assert slurm_testbed.finished_jobs(state) - before == jobs
    log = (
        workflow / "logs/laptop/benchmark/Qwen3-0.6B/no-offload/0/run-1.log"
    ).read_text()
    assert ADOPTED in log
