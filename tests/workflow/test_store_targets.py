"""`kveval verify` and `kveval prune` as users meet them, on a workflow whose runs are all measured."""

import os
import re
import shutil
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
import yaml
from tests.support.command import kveval
from tests.support.described import vllm
from tests.support.fault_chain import REPOSITORY, workflow_copy
from tests.support.loaded import run_snakemake
from tests.support.stored_runs import CELL, measured

from kveval.configuration.loading import load_config
from kveval.store.derived import DamagedTable
from kveval.store.store import Store
from kveval.tables.peaks import cell_tables
from kveval.workflow.command import store as command_store
from kveval.workflow.upkeep import prune

pytestmark = pytest.mark.workflow
METRICS = yaml.load(
    (REPOSITORY / "config" / "metrics.yaml").read_bytes(), Loader=yaml.CSafeLoader
)
# No campaign that ships searches its levels, which would keep every run of it.
OLD = {"cell": {**CELL, "cpu_blocks": 12345}, "engine": "local", "seconds": 1}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workflow with a store that holds every run of its campaign, and one that nothing refers to."""
    folder = workflow_copy(tmp_path_factory.mktemp("finished") / "repository")
    config = load_config(folder / "config" / "config.yaml", folder / "config")
    kept = Store(folder / "results" / "measurements")
    for cell in config.cells:
        for run in range(1, config.campaign.runs + 1):
            measured(kept, config.specification(cell).to_json(), run)
    measured(kept, OLD)
    code, output = run_snakemake(folder, "report", "--until", "benchmark")
    assert code == 0, output
    return folder


@pytest.fixture
def workflow(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "repository", symlinks=True)
    return tmp_path / "repository"


@pytest.fixture
def long_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have what came here a moment ago have come long ago: the time of change cannot be set."""
    monkeypatch.setattr(command_store, "Store", partial(Store, settled_s=-1.0))
    monkeypatch.setattr(prune, "_YOUNG_S", -1.0)


@pytest.mark.usefixtures("long_ago")
def test_verifying_names_what_is_measured_again_and_snakemake_then_plans_exactly_that(
    workflow: Path,
) -> None:
    code, output = kveval(workflow, "verify")
    assert code == 0, output
    assert "10 of 10 entries" in output
    report = next(
        workflow.glob("results/Qwen3-0.6B/native-offload/500/run-2/measurement.json")
    )
    place = next(
        path
        for path in workflow.glob("results/measurements/*/run-2")
        if path.parent.name in report.read_text()
    )
    (place / "raw" / "pcp.tar.zst").write_bytes(b"archivE")
    code, output = kveval(workflow, "verify")
    assert code == 1
    assert (
        "The next run measures again, or imports:\n  Qwen3-0.6B/native-offload/500 run 2 of laptop\n"
        in output
    )
    assert "checksum differs" in " ".join(
        (workflow / "logs" / "laptop" / "verify.log").read_text().split()
    )
    assert kveval(workflow, "verify")[0] == 0
    code, output = run_snakemake(workflow, "-n", "report")
    assert output.count("Measuring ") == 1
    assert "Measuring Qwen3-0.6B/native-offload/500, run 2" in output


@pytest.mark.usefixtures("long_ago")
def test_pruning_deletes_on_request_alone(
    workflow: Path,
) -> None:
    before = sorted(workflow.glob("results/measurements/*/run-*"))
    code, output = kveval(workflow, "prune")
    assert code == 0, output
    assert "kveval prune --delete" in output
    assert sorted(workflow.glob("results/measurements/*/run-*")) == before
    code, output = kveval(workflow, "prune", "--delete", "--older-than", "30")
    assert code == 0, output
    assert sorted(workflow.glob("results/measurements/*/run-*")) == before
    code, output = kveval(workflow, "prune", "--delete")
    assert code == 0, output
    assert len(list(workflow.glob("results/measurements/*/run-*"))) == len(before) - 1
    code, output = kveval(workflow, "prune", "--delete", "--kind", "everything")
    assert code == 2
    assert "'everything' is not one of" in output


def test_a_damaged_table_is_named_with_what_to_do_by_whoever_reads_it(
    tmp_path: Path,
) -> None:
    frame, recording = (
        pd.DataFrame({"run": [1] * 1000, "level": range(1000)}),
        tmp_path / "pcp.parquet",
    )
    frame.to_parquet(recording, index=False)
    content = recording.read_bytes()
    for damaged in (content[:300] + bytes(200) + content[500:], b""):
        recording.write_bytes(damaged)
        with pytest.raises(DamagedTable, match=r"pcp\.parquet .*`kveval verify`"):
            cell_tables([frame], [recording], [vllm("0.32.0")], METRICS)


def test_damaged_tables_are_made_again_from_the_store(workflow: Path) -> None:
    """Tables that the workflow believes in: after verifying, the next run plans to make them, and measures nothing."""
    run = workflow / "results/Qwen3-0.6B/no-offload/0/run-1"
    for path in (
        run.parent / "requests.parquet",
        *(each / "pcp.parquet" for each in run.parent.glob("run-*")),
    ):
        pd.DataFrame({"run": [1], "level": [2]}).to_parquet(path, index=False)
    for name in ("levels.csv", "peak.csv"):
        (run.parent / name).write_text("model\n")
    target = "results/Qwen3-0.6B/no-offload/0/peak.csv"
    assert run_snakemake(workflow, target, "--touch")[0] == 0
    assert "Nothing to be done" in run_snakemake(workflow, "-n", target)[1]
    (run / "pcp.parquet").write_bytes(b"PAR1 and then nothing")
    os.utime(run / "pcp.parquet", (run / "measurement.json").stat()[7:9])
    code, output = kveval(workflow, "verify")
    assert code == 1
    assert "run-1/pcp.parquet cannot be read" in " ".join(output.split())
    assert "snakemake --cores 4 report" in output
    code, output = run_snakemake(workflow, "-n", target)
    assert re.search(r"Converting .* Qwen3-0\.6B/no-offload/0, run 1", output)
    assert re.search(r"extracting .* Qwen3-0\.6B/no-offload/0", output)
    assert "Measuring " not in output
