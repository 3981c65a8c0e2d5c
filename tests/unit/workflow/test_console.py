"""The text that a run of snakemake begins and ends with, from what it was asked for."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from snakemake.exceptions import WorkflowError
from tests.support.config_files import CONFIG, RAW
from tests.support.job_status import ELSEWHERE, leave_status
from tests.support.paths import REPOSITORY

from kveval.configuration.loading import load_config
from kveval.host.quiet import QUIET_WAIT, describe_now
from kveval.report.files import COMMAND_VARIABLE
from kveval.workflow import console
from kveval.workflow.console import (
    after_failures,
    after_stop,
    after_success,
    before,
    no_target,
)
from kveval.workflow.invocation import RequestedJobs, failed_analyses
from kveval.workflow.report_settings import report_command
from kveval.workflow.runs import Runs

NOTHING = RequestedJobs((), (), ())


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    """A campaign that cannot show a difference, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    workload = RAW["workloads"]["laptop"] | {"prefix_count": 2}
    campaign = RAW["config"] | {"workload": "own", "workloads": {"own": workload}}
    Path("campaign.yaml").write_text(yaml.safe_dump(campaign))
    config = load_config(Path("campaign.yaml"), CONFIG)
    return Runs.of(config, jobs_share_folder=True)


def job(rule: str, output: str = "", **wildcards: str) -> SimpleNamespace:
    outputs = [output] if output else []
    return SimpleNamespace(
        rule=SimpleNamespace(name=rule),
        output=outputs,
        wildcards=SimpleNamespace(**wildcards),
    )


class Graph:
    """Snakemake's graph of jobs, as far as it is asked."""

    def __init__(
        self,
        needed: list[Any],
        others: tuple[Any, ...] = (),
        files: tuple[str, ...] = (),
    ) -> None:
        self.needed, self.jobs, self.targetfiles = (
            needed,
            [*needed, *others],
            set(files),
        )

    def needrun_jobs(self, exclude_finished: bool) -> list[Any]:
        assert not exclude_finished
        return self.needed

    def __len__(self) -> int:
        return len(self.needed)


def workflow(graph: Graph | None, **changes: Any) -> SimpleNamespace:
    values = {
        "is_main_process": True,
        "executor_plugin": object(),
        "dryrun": False,
        "dag": graph,
    }
    return SimpleNamespace(**values | changes)


def test_what_was_asked_for_is_read_off_the_jobs() -> None:
    jobs = [
        job("benchmark", "run-1/measurement.json"),
        job("pilot", "pilot/measurement.json"),
        job("extract_peak", "x"),
    ]
    asked = RequestedJobs.of(
        workflow(
            Graph(
                jobs,
                (job("write_report", so_far=""),),
                ("x",),
            )
        )
    )
    assert asked == RequestedJobs(
        (Path("run-1/measurement.json"), Path("pilot/measurement.json")),
        ("",),
        (Path("x"),),
    )


def test_nothing_to_be_done_is_told_from_all_else() -> None:
    there = Graph([], (job("write_report", so_far=""),))
    assert RequestedJobs.if_up_to_date(workflow(there)) == RequestedJobs((), ("",), ())
    for other in (
        workflow(there, dryrun=True),
        workflow(there, executor_plugin=None),
        workflow(there, is_main_process=False),
        workflow(None),
        workflow(Graph([job("extract_peak", "x")])),
    ):
        assert RequestedJobs.if_up_to_date(other) is None


def test_what_the_campaign_cannot_show_is_said_where_something_is_measured(
    runs: Runs,
) -> None:
    said: list[str] = []
    before(runs, NOTHING, said.append)
    assert said == []
    before(runs, RequestedJobs((runs.pointers[0],), (), ()), said.append)
    (warning,) = said
    assert warning.startswith(
        "this campaign cannot show a difference between native-offload and no-offload"
    )
    assert json.loads(Path("logs/laptop/requested.json").read_text()) == [
        str(runs.pointers[0])
    ]


def test_how_busy_the_machine_is_is_said_where_it_measures(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = RequestedJobs((runs.pointers[0],), (), ())
    monkeypatch.setenv(QUIET_WAIT, "60")

    def lines(share: float, *, here: bool = True) -> tuple[list[str], str]:
        monkeypatch.setattr(
            console,
            "describe_now",
            lambda limit_s: describe_now(limit_s, lambda _: share),
        )
        warned: list[str] = []
        before(runs, measured, warned.append, measured_here=here)
        return warned[1:], capsys.readouterr().err

    (busy,), printed = lines(44.0)
    assert busy.startswith("Other programs take 44 % of this machine's processors now")
    assert printed == ""
    warned, printed = lines(1.0)
    assert warned == []
    assert printed.endswith(
        "take 1 % of this machine's processors now: quiet enough to measure.\n"
    )
    assert lines(44.0, here=False) == ([], "")
    monkeypatch.setenv(QUIET_WAIT, "soon")
    with pytest.raises(WorkflowError, match="KVEVAL_QUIET_WAIT_S=soon"):
        before(runs, measured, [].append)


def test_a_report_is_named_and_what_was_asked_for_by_path(runs: Runs) -> None:
    report, peak = Path("results/REPORT.md"), Path("results/a/peak.csv")
    asked = RequestedJobs((), ("",), ())
    assert list(after_success(runs, asked)) == []
    for path in (report, peak):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert list(after_success(runs, asked)) == [f"Report: {report}"]
    assert list(
        after_success(runs, RequestedJobs((), (), (peak, Path("gone.csv"))))
    ) == [str(peak)]


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("reprot", "There is no target reprot: did you mean report?"),
        ("zzz", "There is no target zzz: known: peaks, report"),
        (
            "results/Qwen3-8/no-offload/0/peak.csv",
            "there is no model Qwen3-8; did you mean Qwen3-8B",
        ),
        (
            "results/so-far/Qwen3-8B/no-ofload/0/peak.csv",
            "there is no scenario no-ofload; did you mean no-offload",
        ),
        (
            "results/Qwen3-8B/no-ofload/0/run-1/pcp.parquet",
            "there is no scenario no-ofload; did you mean no-offload",
        ),
        ("results/Qwen3-8B/no-offload/0/paek.csv", "0/paek.csv: did you mean peak.csv"),
        ("result/Qwen3-8B/no-offload/0/peak.csv", "0/peak.csv: no such folder"),
    ],
)
def test_a_target_that_nothing_makes_is_named_with_what_is_nearest(
    runs: Runs, target: str, said: str
) -> None:
    files = [
        "results/{model}/{scenario}/{cpu_blocks}/peak.csv",
        "results/{so_far}analysis/comparison.csv",
    ]
    assert said in no_target(target, runs, ["report", "peaks"], files)


def test_a_job_that_was_stopped_is_listed_apart_from_those_that_failed(
    runs: Runs,
) -> None:
    endings = (
        {"state": "failed", "message": "no memory"},
        {"state": "stopped", "message": "stopped by SIGTERM; all is gone"},
        {"process": ELSEWHERE, "line": "8 streams"},
    )
    for pointer, ending in zip(runs.pointers, endings, strict=False):
        leave_status(log_of(pointer), **ending)
    said = list(after_failures(runs, 0.0, pytest.fail))
    heads = [line for line in said if not line.startswith("  ")]
    assert heads[0].startswith("Some measurements failed. ")
    assert heads[1] == "Some measurements were stopped. The same command measures them:"
    assert [
        line.partition(": ")[2].partition(" [")[0]
        for line in said
        if line.startswith("  ")
    ] == [
        "no memory",
        "its job was killed; its last line was: 8 streams",
        "stopped by SIGTERM; all is gone",
    ]


def test_jobs_of_the_analysis_that_failed_are_named_with_their_logs(
    runs: Runs, tmp_path: Path
) -> None:
    (tmp_path / "made.csv").touch()
    alone = failing("benchmark", "measurement.json")
    group = SimpleNamespace(
        is_group=lambda: True,
        jobs=[failing("convert_pcp", "made.csv"), failing("extract_peak", "peak.csv")],
    )
    scheduler = SimpleNamespace(failed={"group": group, "alone": alone}.values())
    lines = failed_analyses(SimpleNamespace(scheduler=scheduler))
    assert lines == ["extract_peak M/a/0 [logs/extract_peak.log]"]
    said = list(after_failures(runs, 0.0, pytest.fail, lines))
    assert said[:2] == [
        "Other jobs failed. The same command tries them again:",
        f"  {lines[0]}",
    ]


def failing(rule: str, output: str) -> SimpleNamespace:
    failed = job(rule, output)
    failed.wildcards, failed.log = ["M", "a", "0"], [f"logs/{rule}.log"]
    failed.is_group = lambda: False
    return failed


def test_slots_that_have_no_core_each_are_said_before_anything_is_measured(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(QUIET_WAIT, "0")
    asked = RequestedJobs(tuple(runs.pointers), (), ())

    def said(**given: Any) -> list[str]:
        lines: list[str] = []
        before(runs, asked, lines.append, **given)
        return [line for line in lines if "--cores" in line]

    (line,) = said(slots=12, cores=8)
    assert "12 measurements" in line and "8 cores" in line and "--cores 12" in line
    assert said(slots=8, cores=8) == said(slots=12, cores=1, measured_here=False) == []


def log_of(pointer: Path) -> Path:
    """Return the log of the job of a run."""
    run = pointer.parent.relative_to("results")
    return Path("logs/laptop/benchmark", f"{run}.log")


def test_after_a_stop_a_job_that_runs_on_elsewhere_has_not_failed(runs: Runs) -> None:
    failed, running = runs.pointers[:2]
    leave_status(log_of(failed), state="failed", message="no memory")
    leave_status(log_of(running), process=ELSEWHERE, line="8 streams")
    requested = RequestedJobs((failed, running), (), ())
    lines = list(after_stop(runs, requested, 0.0, "Stopped.", pytest.fail))
    assert [line for line in lines if "run-" in line] == [
        f"Failed: {failed.parent.relative_to('results')}: no memory [{log_of(failed)}]"
    ]


def test_after_a_stop_the_measurements_that_are_kept_are_counted(
    runs: Runs,
) -> None:
    done = runs.pointers[0]
    done.parent.mkdir(parents=True, exist_ok=True)
    done.touch()
    asked = RequestedJobs(tuple(runs.pointers[:3]), (), ())
    said = list(
        after_stop(runs, asked, 0.0, "Stopped (SIGINT): all is gone.", pytest.fail)
    )
    assert said[:2] == [
        "Stopped (SIGINT): all is gone.",
        "Kept: 1 of 3 measurements. The same command goes on with the rest.",
    ]


def test_after_failures_there_is_a_way_to_the_campaigns_report(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = report_command([Path("campaign.yaml")], "site.yaml")
    monkeypatch.setenv(COMMAND_VARIABLE, command)
    (said,) = after_failures(runs, 0.0, pytest.fail)
    options = "--configfile campaign.yaml --config site=site.yaml"
    assert said.endswith(f"snakemake --cores 4 report_so_far {options}")


def test_the_last_words_come_after_everything_that_is_printed_later(
    tmp_path: Path,
) -> None:
    program = "from kveval.workflow.console import print_last; print_last(['one', 'two']); print_last([]); print('more')"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPOSITORY / "scripts",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    assert done.stdout == "more\n\none\ntwo\n"
