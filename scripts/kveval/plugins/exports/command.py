"""`kveval export`: a campaign's results for other tools."""

from __future__ import annotations

import os
from pathlib import Path

from kveval.plugins.exports.mlflow_runs import MlflowExportError, read_mlflow_runs
from kveval.workflow.command.output import print_document

# Of MLflow's client: it sends statistics of its use to nobody, prints nothing between our lines, and gives up within
# seconds where no server answers. The environment may say otherwise.
_MLFLOW_SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
}


def export_to_mlflow(results: Path, address: str, *, as_json: bool) -> None:
    """Log the results to MLflow, a line for each run; what is there already is not logged again. Raises MlflowExportError."""
    runs = read_mlflow_runs(results)
    for name, value in _MLFLOW_SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        from kveval.plugins.exports.mlflow_server import log_runs  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise MlflowExportError(
            f"the package {error.name} is missing here: `bash scripts/setup.sh mlflow` in a checkout, or"
            " pip install '.[workflow,mlflow]'",
            code="no_mlflow",
        ) from None
    lines = []
    for run, new in log_runs(runs, address):
        lines.append(
            {
                "experiment": run.experiment,
                "run": run.name,
                "tag": dict([run.tag]),
                "new": new,
            }
        )
        if not as_json:
            state = "logged" if new else "already there"
            print(f"{run.experiment}: {run.name}: {state}", flush=True)
    if as_json:
        print_document({"runs": lines})
