"""The blocks of a check: measured one after the other with the script that measures any campaign, and their values."""

import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kveval.campaign.cell import Cell
from kveval.conditions.facts import described
from kveval.configuration.config import Config
from kveval.host.errors import Failure
from kveval.host.processes import announce_workflow, signals_deferred
from kveval.measure.progress import write_requested
from kveval.measure.status import absence_of, job_log
from kveval.store.run_file import read_run, stored_run
from kveval.tables.levels.checks_level import steadiness
from kveval.tables.levels.rows import run_tables
from kveval.verdict.exclusions import Exclusion, is_active, unusable
from kveval.verdict.pairing import Row
from kveval.verdict.uncertainty import window_bound
from kveval.verdict.wording import exclusion_words
from kveval.workflow.campaign_source import write_resolved_campaign
from kveval.workflow.planning.order import (
    campaign_pointer,
    in_order,
    planned_runs,
    requested_file,
)

COLD = "cold_prefixes_per_s"
"""Prefixes per second that a server with empty caches processed while it was primed, before the level."""
SHOWN = ("throughput_tok_s", COLD, "ttft_ms_p50", "e2e_ms_p50")
"""The quantities of a check; only the first two decide."""
IDLE = "idle"
"""In place of a quantity: by its own counters the arm was not active at this level. Its value is 1."""
_STOPPED = 2
_STANDARD_ERROR = 2
_TEARDOWN_S = 120.0
Values = dict[tuple[Cell, int, str], float]
"""Cell, level and quantity, or IDLE -> value in one run."""


class Stopped(Failure):
    """A measurement was asked to stop, and with it the check."""


@dataclass(frozen=True)
class Places:
    """The paths that a check needs: benchmark.py, the catalogues, the store, the environment of the server."""

    script: Path
    catalogues: Path
    store: Path
    server: Path


def measure_block(
    config: Config, values: Mapping[str, Any], block: int, places: Places
) -> dict[str, str]:
    """Measure the runs of a block that the store lacks, in random order; return cell -> why its run failed.

    `values`: those that `config` was loaded from. Raises Stopped if a measurement was asked to stop.
    """
    failed = {}
    if block == 1:
        write_requested(
            requested_file(config),
            [campaign_pointer(config, *run) for run in planned_runs(config)],
        )
    for cell, run in in_order(config):
        if run != block:
            continue
        log = job_log(Path("logs", config.campaign.name), Path(cell.path, f"run-{run}"))
        log.parent.mkdir(parents=True, exist_ok=True)
        output = campaign_pointer(config, cell, run)
        output.parent.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable,
            str(places.script),
            "--campaign",
            str(write_resolved_campaign(values)),
        ]
        command += [
            "--catalogues",
            str(places.catalogues),
            "--measurement",
            config.measurement_id(cell),
        ]
        command += [
            "--cell",
            cell.path,
            "--run",
            str(run),
            "--store",
            str(places.store),
        ]
        command += ["--server-environment", str(places.server)]
        status = _run_job([*command, "--output", str(output), "--log", str(log)])
        if status == _STOPPED or status < 0:
            raise Stopped(
                f"{cell.path} run {run} was stopped; the same command continues"
            )
        if status:
            absence = absence_of(log)
            failed[cell.path] = (
                f"run {run}: {absence.reason if absence else f'see {log}'}"
            )
    return failed


def _run_job(command: Sequence[str]) -> int:
    """Run a measurement's job to its end and return its exit status; however this process is stopped, it stops first.

    The job has a session of its own: a Ctrl-C in the terminal reaches it once, from here.
    """
    job = None
    announce_workflow()
    try:
        with signals_deferred():
            job = subprocess.Popen(
                command, stdout=_STANDARD_ERROR, start_new_session=True
            )
        return job.wait()
    finally:
        if job is not None and job.poll() is None:
            with signals_deferred():
                _end(job)


def _end(job: "subprocess.Popen[bytes]") -> None:
    """Have a job tear down what it has started, and wait for it."""
    job.terminate()
    try:
        job.wait(_TEARDOWN_S)
    except subprocess.TimeoutExpired:
        # What it has started is then removed by its guardian.
        job.kill()
        job.wait()


def values_of(config: Config, cell: Cell, run: int) -> tuple[Values, list[str]]:
    """Return the values of a run that may enter a verdict, and the reasons why others may not.

    Those of an idle arm are marked by IDLE: they show only what it costs. Both are empty if the run does not exist.
    """
    pointer = campaign_pointer(config, cell, run)
    if not pointer.exists():
        return {}, []
    place = stored_run(pointer)
    ran = described(read_run(place))
    table, _ = run_tables(ran, place, config.required_counters(cell))
    values: Values = {}
    reasons = []
    primed = {level.level: level.primed for level in ran.levels}
    for row in table.to_dict("records"):
        level = int(row["level"])
        named = {str(key): value for key, value in row.items()}
        if is_active(named) is False:
            reasons.append(
                f"{cell.path} run {run}: by its own counters the arm was not active"
            )
            values[cell, level, IDLE] = 1.0
        facts = primed.get(level) or {}
        cold = (
            facts.get("prefixes", 0) / facts["seconds"]
            if facts.get("seconds")
            else math.nan
        )
        for name in SHOWN:
            value = cold if name == COLD else float(row.get(name) or math.nan)
            excluded = None if name == COLD else _excluded(named, name)
            if value > 0 and excluded is None:
                values[cell, level, name] = value
            elif excluded is not None and name == SHOWN[0]:
                words = exclusion_words(excluded)
                reasons.append(f"{cell.path} run {run}: {words}")
    return values, reasons


def _excluded(row: Row, name: str) -> Exclusion | None:
    """Return why a value of a level enters no test; the sequential ones allow for no bound, as a window of two states has."""
    excluded = unusable(row, name)
    if excluded is None and window_bound(row, name):
        facts = {"checks": [steadiness.name]}
        return Exclusion("check_failed", int(row["run"]), "arm", facts)
    return excluded
