"""`kveval export mlflow` on the command line; what it logs is tested in tests/unit/report."""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from tests.support.command import kveval

from kveval.plugins.exports import command as export
from kveval.plugins.exports.mlflow_runs import MEASUREMENT, MlflowRun

RUN = MlflowRun("2 x GPU/vLLM 1.0", "M_arm_r1", (MEASUREMENT, "0123/run-1"), 1, 2)
WORDS = ("export", "mlflow", "results", "--tracking-uri", "http://127.0.0.1:9")


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs in the folder that the command is given."""
    runs = [RUN, replace(RUN, name="M_arm_r2", tag=(MEASUREMENT, "0123/run-2"))]
    monkeypatch.setattr(export, "read_mlflow_runs", lambda folder: runs)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> None:
    """An MLflow that has the first of the runs already."""

    def log_runs(
        runs: Sequence[MlflowRun], address: str
    ) -> Iterator[tuple[MlflowRun, bool]]:
        assert address == "http://127.0.0.1:9"
        for number, run in enumerate(runs):
            yield run, number > 0

    name = "kveval.plugins.exports.mlflow_server"
    module = ModuleType(name)
    module.log_runs = log_runs  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.usefixtures("results", "server")
def test_each_run_is_a_line_that_says_whether_it_was_logged(tmp_path: Path) -> None:
    assert kveval(tmp_path, *WORDS) == (
        0,
        "2 x GPU/vLLM 1.0: M_arm_r1: already there\n2 x GPU/vLLM 1.0: M_arm_r2: logged\n",
    )


@pytest.mark.usefixtures("results", "server")
def test_as_json_it_is_one_document(tmp_path: Path) -> None:
    status, text = kveval(tmp_path, *WORDS, "--json")
    first, second = json.loads(text)["runs"]
    assert status == 0
    assert (first["new"], second["new"]) == (False, True)
    assert second["tag"] == {MEASUREMENT: "0123/run-2"}


@pytest.mark.usefixtures("results")
def test_without_the_client_it_says_what_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    monkeypatch.delitem(sys.modules, "kveval.plugins.exports.mlflow_server", False)
    status, text = kveval(tmp_path, *WORDS)
    assert status == 1
    assert "the package mlflow is missing here: `bash scripts/setup.sh mlflow`" in text


def test_a_folder_without_results_is_refused_before_anything_is_asked(
    tmp_path: Path,
) -> None:
    status, text = kveval(tmp_path, *WORDS)
    assert status == 1
    assert "results has no report.json" in text


def test_without_a_server_it_names_the_option_and_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    status, text = kveval(tmp_path, *WORDS[:3])
    assert status == 2
    assert "--tracking-uri" in text
    assert "MLFLOW_TRACKING_URI" in text
