"""Faults as a user of snakemake meets them: the others go on, causes are listed, a rerun does the rest, locks hold.

Snakemake, the jobs, the recording and the store are real; vLLM and GuideLLM are stand-ins (see fault_chain.py).
"""

import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from tests.support.fault_chain import (
    CAMPAIGN,
    PATIENCE_S,
    merged,
    needs_pcp,
    without_figures,
)
from tests.support.tree import Tree

from kveval.workflow.stopping import jobs_below

pytestmark = [pytest.mark.workflow, needs_pcp]
CELL = "Qwen3-0.6B/{}/0/run-1"
POINTER = "results/faults/Qwen3-0.6B/no-offload/0/run-1/measurement.json"
BENCHMARKS = ("report", "--until", "benchmark")
SHORT = merged(CAMPAIGN, {"workloads": {"short": {"seconds": 2}}})


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    """One cell that works, and one whose server dies as long as a file is there."""
    broken = {
        "extends": "no-offload",
        "title": "broken",
        "env": {"FAULT": f"dies while {tmp_path}/broken exists"},
    }
    campaign = merged(
        SHORT,
        {
            "scenarios": {"broken": broken},
            "matrix": [
                {
                    "models": ["Qwen3-0.6B"],
                    "scenarios": ["no-offload", "broken"],
                    "cpu_blocks": [0],
                }
            ],
        },
    )
    made = Tree(tmp_path / "repository", campaign, lock=tmp_path / "lock")
    without_figures(made.folder)
    yield made
    assert made.left() == []


def test_the_others_go_on_causes_are_listed_and_a_rerun_measures_the_rest(
    tree: Tree, tmp_path: Path
) -> None:
    (tmp_path / "broken").touch()
    code, output = tree.run("report")
    assert code == 1
    assert tree.measured() == {"no-offload"}
    end = output[
        output.index(
            "Some measurements failed. The others are kept, and the same command measures the rest:"
        ) :
    ]
    cause = r"the server died \(exit code 1\): ValueError: No available memory for the cache blocks; see \S+server\.log"
    assert re.search(
        rf"{CELL.format('broken')}: {cause} \[logs/faults/\S+run-1\.log\]", end
    )
    assert "no-offload" not in end
    assert "snakemake --cores 4 report_so_far --configfile campaign.yaml" in end

    code, output = tree.run("report_so_far")
    assert code == 0, output
    report = (tree.results / "so-far" / "REPORT.md").read_text()
    assert re.search(
        r"broken: failed: .*\(exit code 1\): ValueError: No available memory", report
    )

    (tmp_path / "broken").unlink()
    code, output = tree.run(*BENCHMARKS)
    assert code == 0, output
    assert tree.measured() == {"no-offload", "broken"}
    assert "no-offload/0 run 1" not in output


def test_runs_are_not_started_once_every_cell_has_failed_alike(tmp_path: Path) -> None:
    broken = {
        "extends": "no-offload",
        "env": {"FAULT": f"dies while {tmp_path}/broken exists"},
    }
    entry = {"models": ["Qwen3-0.6B"], "scenarios": ["broken"], "cpu_blocks": [0]}
    changes = {"scenarios": {"broken": broken}, "matrix": [entry], "runs": 4}
    lock = tmp_path / "lock"
    tree = Tree(tmp_path / "repository", merged(SHORT, changes), lock=lock)
    (tmp_path / "broken").touch()
    code, output = tree.run(*BENCHMARKS)
    assert code == 1
    assert len(re.findall(r"starting the server", output)) == 3
    why = r"run-\d: not started, because every cell has failed in the same way: the server died"
    assert len(re.findall(why, output)) == 1
    assert tree.left() == []


def test_after_kill_9_of_snakemake_nothing_runs_on_and_a_rerun_completes(
    tree: Tree,
) -> None:
    running = tree.start(*BENCHMARKS)
    deadline = time.monotonic() + PATIENCE_S
    while not any(
        tree.log(name).exists() and "2 streams" in tree.log(name).read_text()
        for name in ("no-offload", "broken")
    ):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    running.kill()
    running.wait()
    assert tree.left() == []
    stopped = [name for name in ("no-offload", "broken") if tree.log(name).exists()]
    assert any("stopped by SIGTERM" in tree.log(name).read_text() for name in stopped)
    # Snakemake's own lock outlives it; what to do is in its message.
    code, output = tree.run(*BENCHMARKS)
    assert code != 0
    assert "--unlock" in output
    assert tree.run("--unlock")[0] == 0
    assert tree.run(*BENCHMARKS)[0] == 0
    assert tree.measured() == {"no-offload", "broken"}


def in_first_level(tree: Tree) -> str:
    """Wait until one of the two measurements is in its level; return its scenario."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        for name in ("no-offload", "broken"):
            if tree.log(name).exists() and "2 streams" in tree.log(name).read_text():
                return name
        assert time.monotonic() < deadline
        time.sleep(0.05)


# Far longer than stopping may take on a busy machine.
LONG = merged(SHORT, {"workloads": {"short": {"seconds": 300}}})


def assert_nothing_is_left(tree: Tree) -> None:
    assert tree.left() == []
    assert not list((tree.folder / ".snakemake" / "locks").glob("*"))


def can_go_on_after_a_stop(tree: Tree) -> None:
    assert_nothing_is_left(tree)
    code, output = tree.run("-n", *BENCHMARKS)
    assert code == 0, output
    planned = set(re.findall(r"Measuring [^/]+/([^/]+)/", output))
    assert planned == {"no-offload", "broken"} - tree.measured()


def goes_on_after_a_stop(tree: Tree) -> None:
    assert_nothing_is_left(tree)
    tree.configure({**tree.campaign, "workloads": SHORT["workloads"]})
    code, output = tree.run(*BENCHMARKS)
    assert code == 0, output
    assert tree.measured() == {"no-offload", "broken"}


@pytest.mark.parametrize(
    ("count", "afterwards"),
    [(1, goes_on_after_a_stop), (2, can_go_on_after_a_stop)],
    ids=["once", "twice"],
)
def test_a_sigint_to_snakemake_alone_tears_the_measurement_down_and_is_no_failure(
    tree: Tree, count: int, afterwards: Callable[[Tree], None]
) -> None:
    tree.configure(merged(tree.campaign, {"workloads": LONG["workloads"]}))
    running = tree.start(*BENCHMARKS)
    name = in_first_level(tree)
    for _ in range(count):
        running.send_signal(signal.SIGINT)
        time.sleep(0.3)
    output, _ = running.communicate(timeout=120)
    assert running.returncode == 130, output
    assert (
        "stopped by SIGTERM; everything it had started is gone"
        in tree.log(name).read_text()
    )
    end = output.partition("Terminating processes on user request")[2]
    assert (
        "\nStopped (SIGINT): the jobs on this host have ended; what they had started, here or on a cluster, is gone,"
        " or their logs name it."
        "\nKept: 0 of 2 measurements. " in end
    )
    assert "The same command goes on with the rest." in end
    assert "snakemake --cores 4 report_so_far --configfile campaign.yaml" in end
    assert "failed:" not in end.lower()
    assert "Some measurements failed" not in end
    assert "Error" not in end
    assert "Traceback" not in output
    assert len(end.splitlines()) < 10
    afterwards(tree)


def test_a_job_at_slurms_time_limit_has_failed_with_what_helps(tree: Tree) -> None:
    tree.configure(merged(tree.campaign, {"workloads": LONG["workloads"]}))
    programs = tree.folder / "programs"
    programs.mkdir()
    (programs / "scontrol").write_text(
        "#!/bin/sh\necho JobState=RUNNING EndTime=2026-01-01T00:00:00 Deadline=N/A\n"
    )
    (programs / "scontrol").chmod(0o755)
    tree.env |= {"PATH": f"{programs}:{tree.env['PATH']}", "SLURM_JOB_ID": "7"}
    running = tree.start(*BENCHMARKS)
    name = in_first_level(tree)
    # As slurmstepd does; the other measurement is left out.
    running.send_signal(signal.SIGTERM)
    [job] = jobs_below(psutil.Process(running.pid))
    job.terminate()
    output, _ = running.communicate(timeout=120)
    said = "SLURM ended the job at its time limit, and would again: give rule benchmark a longer runtime"
    assert f"FAILED: {said}" in tree.log(name).read_text()
    assert re.search(rf"Failed: \S+: {said}", output), output
    assert "stopped by SIGTERM" not in output


def test_a_closed_pipe_stops_snakemake_and_its_measurement(tree: Tree) -> None:
    tree.configure(merged(tree.campaign, {"workloads": LONG["workloads"]}))
    running = tree.start(*BENCHMARKS)
    assert running.stdout is not None
    name = in_first_level(tree)
    running.stdout.close()
    assert running.wait(timeout=120) == 130
    assert (
        "stopped by SIGTERM; everything it had started is gone"
        in tree.log(name).read_text()
    )
    can_go_on_after_a_stop(tree)


def test_a_sigterm_to_snakemake_waits_for_the_measurement_and_starts_no_other(
    tree: Tree,
) -> None:
    running = tree.start(*BENCHMARKS)
    name = in_first_level(tree)
    running.send_signal(signal.SIGTERM)
    output, _ = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 143, output
    assert tree.measured() == {name}
    end = output[
        output.index(
            "\nStopped (SIGTERM) when the running jobs had ended; no others were started."
        ) :
    ]
    assert "Kept: 1 of 2 measurements. The same command goes on with the rest." in end
    assert "failed:" not in end.lower()
    assert "Some measurements failed" not in end
    goes_on_after_a_stop(tree)


def test_a_sigint_while_jobs_are_planned_ends_in_a_line(tree: Tree) -> None:
    running = tree.start(*BENCHMARKS)
    assert running.stdout is not None
    # The lines that come before the first of the rules is read.
    while "is extended by" not in running.stdout.readline():
        assert running.poll() is None
    time.sleep(1.5)
    running.send_signal(signal.SIGINT)
    output, _ = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 130, output
    assert "Stopped" in output
    assert "Traceback" not in output
    assert not list((tree.folder / ".snakemake" / "locks").glob("*"))


def test_a_second_snakemake_in_the_same_tree_is_refused_and_disturbs_nothing(
    tree: Tree,
) -> None:
    first = tree.start(POINTER)
    deadline = time.monotonic() + PATIENCE_S
    while not list((tree.folder / ".snakemake" / "locks").glob("*")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    code, output = tree.run(*BENCHMARKS)
    assert code != 0
    assert "Directory cannot be locked" in output
    first.communicate(timeout=3 * PATIENCE_S)
    assert first.returncode == 0
    assert tree.measured() == {"no-offload"}


def test_a_second_snakemake_in_another_tree_waits_for_the_host(
    tree: Tree, tmp_path: Path
) -> None:
    other = Tree(tmp_path / "other", SHORT, lock=tmp_path / "lock")
    # Longer than a snakemake takes to its first measurement, also on a busy machine.
    tree.configure(merged(SHORT, {"workloads": {"short": {"seconds": 25}}}))
    first = tree.start(POINTER)
    tree.wait_for("no-offload", "starting the server")
    assert other.run(*BENCHMARKS)[0] == 0
    first.communicate(timeout=PATIENCE_S)
    assert first.returncode == 0
    said = other.log("no-offload").read_text()
    assert re.search(
        r"waiting for the host: .*\(process \d+: Qwen3-0\.6B/no-offload/0", said
    )
    assert other.left() == []


def test_a_job_that_is_killed_without_a_word_is_listed_with_its_last_one(
    tree: Tree,
) -> None:
    running = tree.start(POINTER)
    tree.wait_for("no-offload", "2 streams")
    for process in psutil.Process(running.pid).children(recursive=True):
        if "scripts/benchmark.py" in process.cmdline() and "python" in process.name():
            process.send_signal(signal.SIGKILL)
    output, _ = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 1
    assert re.search(
        rf"{CELL.format('no-offload')}: .* job was killed; .*: 2 streams", output
    )
    assert tree.run(POINTER)[0] == 0
