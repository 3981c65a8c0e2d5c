"""What there is of a campaign that is not complete, and what stands for what could not be made of it."""

from pathlib import Path

import pandas as pd
import pytest
from tests.support.job_status import killed_process, leave_status
from tests.support.stored_runs import CELL, measured

from kveval.campaign.cell import Cell
from kveval.host.errors import Failure
from kveval.measure.status import status_path
from kveval.store.store import Store
from kveval.tables.peaks import PeaksError
from kveval.workflow.failed_tables import (
    reason_in,
    reasons,
    with_tables,
    write_failure_to,
)
from kveval.workflow.so_far import measured_so_far

HERE, LOST, NEVER = (
    Cell("Qwen3-8B", scenario, 0) for scenario in ("no-offload", "broken", "later")
)


@pytest.fixture
def campaign(tmp_path: Path) -> Path:
    """Two runs of one cell; another whose only job failed; a third that was never tried."""
    store = Store(tmp_path / "measurements")
    for run in (1, 2):
        place = measured(store, {"cell": CELL, "engine": "local", "seconds": 1}, run)
        link = tmp_path / "results" / HERE.path / f"run-{run}" / "measurement.json"
        link.parent.mkdir(parents=True)
        link.write_text(f'{{"path": "{place}"}}')
    leave_status(log_of(tmp_path), state="failed", message="no memory")
    return tmp_path


def log_of(folder: Path, run: int = 1) -> Path:
    """Return the log of a job of the cell whose job failed."""
    return folder / "logs" / "benchmark" / LOST.path / f"run-{run}.log"


RUNS = [(HERE, "run-1"), (LOST, "run-1"), (NEVER, "run-1"), (HERE, "run-2")]


def test_runs_that_exist_in_their_order_and_the_reason_for_one_that_failed(
    campaign: Path,
) -> None:
    found = measured_so_far(RUNS, campaign / "results", campaign / "logs")
    assert found.runs == [(HERE, "run-1"), (HERE, "run-2")]
    assert found.failures == {LOST: "failed: no memory"}


def test_a_run_of_an_earlier_form_of_the_campaign_is_left_out_and_told(
    campaign: Path,
) -> None:
    folders = campaign / "results", campaign / "logs"
    found = measured_so_far(RUNS, *folders, lambda cell, name: name == "run-2")
    assert found.runs == [(HERE, "run-1")]
    assert found.failures[HERE].startswith("run-2 is of an earlier form")


def test_a_run_that_was_stopped_has_not_failed(campaign: Path) -> None:
    message = "stopped by SIGTERM; everything it had started is gone"
    leave_status(log_of(campaign), state="stopped", message=message)
    found = measured_so_far(RUNS, campaign / "results", campaign / "logs")
    assert found.failures == {LOST: message}


def test_a_damaged_run_is_left_out_with_its_reason(campaign: Path) -> None:
    run_json = next(campaign.glob("measurements/*/run-2/run.json"))
    run_json.chmod(0o644)
    run_json.write_text('{"schema": 1, "measurem')
    found = measured_so_far(RUNS, campaign / "results", campaign / "logs")
    assert found.runs == [(HERE, "run-1")]
    assert found.failures[HERE].startswith("failed: run-2 cannot be read: ")


def test_a_job_that_runs_is_named_beside_a_run_of_the_same_cell_that_failed(
    campaign: Path,
) -> None:
    runs = [*RUNS, (LOST, "run-2")]
    log = log_of(campaign, run=2)
    leave_status(log, line="starting the server")
    found = measured_so_far(runs, campaign / "results", campaign / "logs")
    assert found.failures == {LOST: "failed: no memory; running: starting the server"}
    leave_status(log, line="starting the server", process=killed_process())
    found = measured_so_far(runs, campaign / "results", campaign / "logs")
    assert found.failures[LOST].endswith(
        "failed: its job was killed; its last line was: starting the server"
    )


def test_a_log_of_an_earlier_version_is_named(campaign: Path) -> None:
    status_path(log_of(campaign)).unlink()
    log_of(campaign).write_text("12:00:00 FAILED: no memory\n")
    found = measured_so_far(RUNS, campaign / "results", campaign / "logs")
    assert found.failures == {LOST: f"no status was left: see {log_of(campaign)}"}


def test_a_reason_stands_where_the_table_would_be(tmp_path: Path) -> None:
    whole, lacking = (
        tmp_path / HERE.path / "peak.csv",
        tmp_path / LOST.path / "peak.csv",
    )
    for path in (whole, lacking):
        path.parent.mkdir(parents=True)
    pd.DataFrame({"model": ["Qwen3-8B"]}).to_csv(whole, index=False)
    with write_failure_to([lacking]):
        raise PeaksError("no level with a throughput")
    assert reason_in(whole) is None
    assert reason_in(lacking) == "no level with a throughput"
    assert reasons([whole, lacking]) == {
        Cell("Qwen3-8B", "broken", 0): "failed: no level with a throughput"
    }
    files = [
        path.parent / name
        for path in (whole, lacking)
        for name in ("levels.csv", "run-1/pcp.parquet")
    ]
    assert with_tables(files, [whole, lacking]) == files[:2]
    assert with_tables(files, []) == files
    with pytest.raises(Failure, match="no level with a throughput"):
        with_tables(files[2:], [lacking])
    assert with_tables(files, []) == files


def test_without_files_for_the_reason_a_failure_goes_on() -> None:
    with pytest.raises(PeaksError), write_failure_to([]):
        raise PeaksError("no level with a throughput")
