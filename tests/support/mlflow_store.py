"""An MLflow of the test's own: its server where all of MLflow is installed, else files, which its client can keep."""

import importlib.util
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support import plugins
from tests.support.testbed import free_pair, wait_until

LOCK = "mlflow"
# What the server needs, and the client does not have.
_SERVER = ("flask", "sqlalchemy", "alembic")


def find_client() -> None:
    """Have this process find MLflow's client; skip the tests where there is none."""
    missing = plugins.missing(LOCK, "mlflow")
    if missing:
        pytest.skip(missing, allow_module_level=True)
    apart = plugins.folder(LOCK)
    if apart is not None and importlib.util.find_spec("mlflow") is None:
        sys.path.append(str(apart))


@contextmanager
def tracking_address(folder: Path) -> Iterator[str]:
    """Offer the address of an empty MLflow."""
    if not all(map(importlib.util.find_spec, _SERVER)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
            yield (folder / "runs").as_uri()
        return
    port = free_pair()
    command = [sys.executable, "-m", "mlflow", "server", "--port", str(port)]
    command += ["--workers", "1", "--backend-store-uri", f"sqlite:///{folder}/runs.db"]
    command += ["--artifacts-destination", str(folder / "artifacts")]
    log = folder / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        address = f"http://127.0.0.1:{port}"
        wait_until(lambda: _answers(address), f"an answer of MLflow ({log})")
        yield address
    finally:
        # It has processes of its own.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=10) as reply:
            return bool(reply.status == 200)
    except (OSError, urllib.error.HTTPError):
        return False
