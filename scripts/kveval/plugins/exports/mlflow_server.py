"""Logs runs to MLflow, each once: a run whose tag is there already stays as it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException

from kveval.plugins.exports.mlflow_runs import MlflowExportError, MlflowRun


def log_runs(
    runs: Sequence[MlflowRun], address: str
) -> Iterator[tuple[MlflowRun, bool]]:
    """Log those of the runs that are not there; yield each when it is, and whether it is new.

    A run that an interrupted call left unfinished is deleted and logged anew. `address`: MLflow's tracking URI.
    Raises MlflowExportError.
    """
    try:
        client = MlflowClient(address)
        experiments: dict[str, str] = {}
        for run in runs:
            if run.experiment not in experiments:
                experiments[run.experiment] = _experiment_id(client, run.experiment)
            yield run, _log_once(client, experiments[run.experiment], run)
    except ImportError as error:
        raise MlflowExportError(
            f"an address of this kind needs the package {error.name}, which mlflow-skinny lacks: name a server"
            " (http://...), or install all of mlflow",
            code="no_package",
        ) from error
    except (MlflowException, OSError) as error:
        raise MlflowExportError(f"MLflow: {error}", code="refused") from error


def _experiment_id(client: Any, name: str) -> str:
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        return str(client.create_experiment(name))
    if experiment.lifecycle_stage == "deleted":
        raise MlflowExportError(
            f"MLflow has the experiment {name!r} among its deleted ones, and no second one can have the name: restore it"
            f" (mlflow experiments restore --experiment-id {experiment.experiment_id}), or have it removed for good",
            code="experiment_deleted",
        )
    return str(experiment.experiment_id)


def _log_once(client: Any, experiment: str, run: MlflowRun) -> bool:
    """Log a run unless it is there; tell whether it was logged."""
    tag, value = run.tag
    present = client.search_runs([experiment], f"tags.`{tag}` = '{value}'")
    if any(one.info.status == "FINISHED" for one in present):
        return False
    for unfinished in present:
        client.delete_run(unfinished.info.run_id)
    created = client.create_run(
        experiment, run.start_ms, {tag: value, **run.further_tags}, run.name
    )
    run_id = created.info.run_id
    client.log_batch(
        run_id,
        metrics=[
            Metric(entry.metric, entry.value, entry.time_ms, entry.step)
            for entry in run.metrics
        ],
        params=[Param(name, text) for name, text in run.parameters.items()],
    )
    for path, folder in run.files:
        client.log_artifact(run_id, str(path), folder or None)
    client.set_terminated(run_id, end_time=run.end_ms)
    return True
