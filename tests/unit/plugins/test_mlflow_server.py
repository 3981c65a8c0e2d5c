"""Logging to MLflow: its own server, or the files that its client keeps where only the client is installed."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support import mlflow_store

from kveval.plugins.exports.mlflow_runs import (
    MEASUREMENT,
    REPORT,
    MlflowExportError,
    MlflowRun,
    Value,
)

mlflow_store.find_client()

MEASURED = MlflowRun(
    experiment="2 x GPU/vLLM 1.0",
    name="M_arm_10K_r1",
    tag=(MEASUREMENT, "0123456789abcdef/run-1"),
    start_ms=1_000,
    end_ms=2_000,
    further_tags={"kveval.campaign": "mine"},
    parameters={f"part.{number}": "x" for number in range(120)} | {"long": 9_000 * "y"},
    metrics=[
        Value("peak/throughput_tok_s", 3.5, 1_500),
        *(Value("level/throughput_tok_s", 1.0, 1_500, step) for step in range(1_100)),
    ],
)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with mlflow_store.tracking_address(tmp_path_factory.mktemp("mlflow")) as address:
        yield address


@pytest.fixture
def runs(request: pytest.FixtureRequest, tmp_path: Path) -> list[MlflowRun]:
    """A measured run and a report, in an experiment of the test's own."""
    (tmp_path / "REPORT.md").write_text("# Report")
    report = MlflowRun(
        experiment=MEASURED.experiment,
        name="report_mine",
        tag=(REPORT, "0123"),
        start_ms=1_000,
        end_ms=2_000,
        files=[(tmp_path / "REPORT.md", ""), (tmp_path / "REPORT.md", "figures/arms")],
    )
    return [replace(run, experiment=request.node.name) for run in (report, MEASURED)]


# MLflow is imported by the tests alone: it takes a second of every process that collects them.


def client_of(address: str) -> Any:
    from mlflow import MlflowClient  # noqa: PLC0415

    return MlflowClient(address)


def log_runs(
    runs: Sequence[MlflowRun], address: str
) -> Iterator[tuple[MlflowRun, bool]]:
    from kveval.plugins.exports import mlflow_server  # noqa: PLC0415

    return mlflow_server.log_runs(runs, address)


def logged(address: str, experiment: str) -> dict[str, Any]:
    client = client_of(address)
    number = client.get_experiment_by_name(experiment).experiment_id
    active = client.search_runs([number])
    by_name = {run.info.run_name: run for run in active}
    assert len(by_name) == len(active)
    return by_name


def test_a_second_call_adds_nothing(address: str, runs: list[MlflowRun]) -> None:
    assert [new for _, new in log_runs(runs, address)] == [True, True]
    first = logged(address, runs[0].experiment)
    assert [new for _, new in log_runs(runs, address)] == [False, False]
    again = logged(address, runs[0].experiment)
    assert {name: run.to_dictionary() for name, run in again.items()} == {
        name: run.to_dictionary() for name, run in first.items()
    }
    client, run = client_of(address), again["M_arm_10K_r1"]
    history = client.get_metric_history(run.info.run_id, "level/throughput_tok_s")
    assert len(history) == 1_100
    assert (run.info.start_time, run.info.end_time) == (1_000, 2_000)
    assert run.data.metrics["peak/throughput_tok_s"] == 3.5
    assert len(run.data.params) == 121
    assert run.data.tags["kveval.campaign"] == "mine"
    report = again["report_mine"].info.run_id
    assert {file.path for file in client.list_artifacts(report)} == {
        "REPORT.md",
        "figures",
    }


def test_what_was_interrupted_is_logged_anew(
    address: str, runs: list[MlflowRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopped(BaseException):
        """As a signal ends it."""

    def stop(*arguments: Any) -> None:
        raise Stopped

    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr("mlflow.MlflowClient.log_artifact", stop)
        list(log_runs(runs, address))
    assert logged(address, runs[0].experiment)["report_mine"].info.status == "RUNNING"
    assert [new for _, new in log_runs(runs, address)] == [True, True]
    assert {
        run.info.status for run in logged(address, runs[0].experiment).values()
    } == {"FINISHED"}


def test_a_run_that_was_deleted_is_logged_again(
    address: str, runs: list[MlflowRun]
) -> None:
    list(log_runs(runs, address))
    run = logged(address, runs[0].experiment)["M_arm_10K_r1"]
    client_of(address).delete_run(run.info.run_id)
    assert [new for _, new in log_runs(runs, address)] == [False, True]


def test_a_deleted_experiment_is_named(address: str, runs: list[MlflowRun]) -> None:
    list(log_runs(runs, address))
    client = client_of(address)
    number = client.get_experiment_by_name(runs[0].experiment).experiment_id
    client.delete_experiment(number)
    with pytest.raises(MlflowExportError, match=f"restore --experiment-id {number}"):
        list(log_runs(runs, address))


def test_a_server_that_is_not_there_is_an_error_of_one_line(
    runs: list[MlflowRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(MlflowExportError, match=r"^MLflow: .*127\.0\.0\.1:9"):
        list(log_runs(runs, "http://127.0.0.1:9"))
