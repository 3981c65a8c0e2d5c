"""What of Snakemake's log is on the console."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from snakemake_interface_logger_plugins.common import LogEvent

from kveval.workflow.brief_log import shorten_log

QUIET = {"verbose": False, "printshellcmds": False, "debug_dag": False, "dryrun": False}


def handler(main: bool = True, **output: bool) -> logging.Handler:
    workflow = SimpleNamespace(
        is_main_process=main,
        touch=False,
        output_settings=SimpleNamespace(**QUIET | output),
    )
    made = logging.StreamHandler()
    made.setFormatter(logging.Formatter("whole: %(message)s"))
    shorten_log(workflow, [made])
    return made


def record(
    text: str = "", level: int = logging.INFO, **facts: Any
) -> logging.LogRecord:
    made = logging.LogRecord("snakemake", level, "", 0, text, (), None)
    vars(made).update(facts)
    return made


def test_a_job_has_a_line_with_how_many_are_done() -> None:
    console = handler()
    jobs = record("Job stats", event=LogEvent.RUN_INFO, stats={"a": 3, "total": 3})
    assert console.format(jobs) == "3 jobs to do"
    progress = record(event=LogEvent.PROGRESS, done=1, total=3)
    assert console.format(progress) == ""
    begun = record(event=LogEvent.JOB_INFO, rule_msg="Comparing the scenarios")
    assert console.format(begun).endswith(" Comparing the scenarios (1 of 3 jobs done)")
    target = record(event=LogEvent.JOB_INFO, rule_msg=None)
    assert console.format(target) == ""


@pytest.mark.parametrize(
    "chatter",
    [
        record("Select jobs to execute..."),
        record("Provided cores: 2", event=LogEvent.RESOURCES_INFO),
        record("Finished jobid: 4", event=LogEvent.JOB_FINISHED),
    ],
    ids=lambda chatter: str(chatter.msg),
)
def test_chatter_is_left_out_unless_it_is_asked_for(chatter: logging.LogRecord) -> None:
    assert handler().format(chatter) == ""
    for option in QUIET:
        assert handler(**{option: True}).format(chatter) == f"whole: {chatter.msg}"
    assert handler(main=False).format(chatter) == f"whole: {chatter.msg}"


@pytest.mark.parametrize(
    "word",
    [
        record("Nothing to be done"),
        record("runs is 1", logging.WARNING),
        record("Error in rule benchmark", logging.ERROR, event=LogEvent.JOB_ERROR),
    ],
    ids=lambda word: str(word.msg),
)
def test_results_warnings_and_errors_stay_as_they_are(word: logging.LogRecord) -> None:
    assert handler().format(word) == f"whole: {word.msg}"
