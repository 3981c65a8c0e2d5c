"""Snakemake's own words on the console, in brief: a line for each job and how many are done, warnings and errors.

By itself Snakemake prints six lines a job, a table of the jobs and what it found of the machine. Its log file has all of
that, and so has the console in a dry run, with --verbose, --printshellcmds or --debug-dag, and with --touch.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Any

from snakemake_interface_logger_plugins.common import LogEvent

from kveval.host.findings import pluralize
from kveval.workflow.invocation import prints_everything

_SILENT = {
    LogEvent.WORKFLOW_STARTED,
    LogEvent.RESOURCES_INFO,
    LogEvent.JOB_STARTED,
    LogEvent.JOB_FINISHED,
}
_CHATTER = (
    "Assuming unrestricted shared filesystem",
    "Using shell: ",
    "Conda environments: ",
    "Singularity containers: ",
    "Select jobs to execute",
)
"""How lines begin that have no event and say nothing about the campaign."""


def shorten_log(workflow: Any, handlers: Iterable[logging.Handler]) -> None:
    """Have these handlers of Snakemake's log print in brief, unless this process runs a job of it."""
    if not workflow.is_main_process:
        return
    for handler in handlers:
        handler.setFormatter(_Brief(workflow, handler))


class _Brief(logging.Formatter):
    """The text of a record on the console; a handler of Snakemake prints nothing for an empty one."""

    def __init__(self, workflow: Any, handler: Any) -> None:
        super().__init__()
        self._workflow, self._handler, self._whole = (
            workflow,
            handler,
            handler.formatter,
        )
        self._done = self._total = 0

    def format(self, record: logging.LogRecord) -> str:
        """Return the text; "" for what has no place on the console."""
        if prints_everything(self._workflow):
            return str(self._whole.format(record))
        # For otherwise the handler begins a job's text with an empty line.
        self._handler.last_msg_was_job_info = True
        facts, event = vars(record), getattr(record, "event", None)
        if event == LogEvent.RUN_INFO:
            self._total = facts["stats"]["total"]
            return f"{pluralize(self._total, 'job')} to do"
        if event == LogEvent.PROGRESS:
            self._done = facts["done"]
            return ""
        if event == LogEvent.JOB_INFO:
            return self._job(facts["rule_msg"])
        if event in _SILENT or str(record.msg).startswith(_CHATTER):
            return ""
        return str(self._whole.format(record))

    def _job(self, message: str | None) -> str:
        """Return the line of a job that begins; none of a target, which only names what others make."""
        if not message:
            return ""
        clock = time.strftime("%H:%M:%S")
        return f"{clock} {message} ({self._done} of {self._total} jobs done)"
