"""What of a campaign's results is logged to MLflow."""

import dataclasses
import re
import shutil
from pathlib import Path

import msgspec
import pandas as pd
import pytest
import zstandard
from tests.support import synthetic_campaign as campaign

from kveval.campaign.cell import Cell
from kveval.plugins.exports.mlflow_runs import (
    MEASUREMENT,
    REPORT,
    MlflowExportError,
    MlflowRun,
    read_mlflow_runs,
)
from kveval.report.data.campaign import Measured
from kveval.report.report import write_report

BASELINE, TIERED = (
    Cell("Qwen3-8B", "no-offload", 0),
    Cell("Qwen3-8B", "native-offload", 10_000),
)
EXPERIMENT = "2 x NVIDIA L40S (48 GiB)/vLLM 0.32.0"
# What MLflow takes: mlflow/utils/validation.py.
NAMES = re.compile(r"[/\w.\- :]+")


@pytest.fixture(scope="module")
def measured() -> Measured:
    return campaign.measured(
        campaign.levels_table([BASELINE, TIERED], runs=2, levels=(1, 50, 300))
    )


def write_results(folder: Path, measured: Measured, name: str = "mine") -> Path:
    """Write what `report` makes of the measurements, as far as it is exported."""
    tables, figures = folder / "analysis", folder / "figures" / "arms"
    tables.mkdir(parents=True)
    figures.mkdir(parents=True)
    measured.levels.to_csv(tables / "complete_metrics.csv", index=False)
    measured.peaks.to_csv(tables / "peak_throughput_all.csv", index=False)
    lines = b"".join(msgspec.json.encode(run) + b"\n" for run in measured.runs)
    (tables / "runs.jsonl.zst").write_bytes(zstandard.ZstdCompressor().compress(lines))
    (folder / "appendix").mkdir()
    for made in ("ttft_by_arm.png", "figures.json", "../../report.html"):
        (figures / made).touch()
    plan = campaign.plan([BASELINE, TIERED], name=name)
    write_report(plan, measured, [figures / "ttft_by_arm.png"], folder / "REPORT.md")
    return folder


@pytest.fixture(scope="module")
def results(measured: Measured, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_results(tmp_path_factory.mktemp("results"), measured)


@pytest.fixture(scope="module")
def runs(results: Path) -> dict[str, MlflowRun]:
    return {run.name: run for run in read_mlflow_runs(results)}


def test_every_measured_run_is_one_named_by_model_arm_size_and_number(
    runs: dict[str, MlflowRun], measured: Measured
) -> None:
    assert sorted(runs) == [
        "Qwen3-8B_native-offload_10K_r1",
        "Qwen3-8B_native-offload_10K_r2",
        "Qwen3-8B_no-offload_r1",
        "Qwen3-8B_no-offload_r2",
        "report_mine",
    ]
    assert {run.experiment for run in runs.values()} == {EXPERIMENT}
    known = {run.tag for run in runs.values()}
    assert {
        (MEASUREMENT, f"{run.measurement}/run-{run.run}") for run in measured.runs
    } < known
    assert len(known) == len(runs)


def test_metrics_are_the_runs_own_peak_and_its_levels_as_steps(
    runs: dict[str, MlflowRun], measured: Measured
) -> None:
    rows = measured.levels_of(TIERED)
    rows = rows[rows["run"] == 2].set_index("level")
    best = rows["throughput_tok_s"].idxmax()
    metrics = runs["Qwen3-8B_native-offload_10K_r2"].metrics
    peak = {
        value.metric: value.value for value in metrics if value.metric[:4] == "peak"
    }
    assert peak["peak/level"] == best
    assert peak["peak/throughput_tok_s"] == rows.loc[best, "throughput_tok_s"]
    assert peak["peak/ttft_ms_p90"] == rows.loc[best, "ttft_ms_p90"]
    assert peak["peak/gpu_power_w"] == rows.loc[best, "gpu_power_w"]
    curve = {
        value.step: value.value
        for value in metrics
        if value.metric == "level/throughput_tok_s"
    }
    assert curve == rows["throughput_tok_s"].to_dict()
    assert len({(value.metric, value.step) for value in metrics}) == len(metrics)


def test_parameters_are_what_defined_the_run_and_what_it_ran_on(
    runs: dict[str, MlflowRun],
) -> None:
    parameters = runs["Qwen3-8B_native-offload_10K_r1"].parameters
    assert parameters["argv"] == "vllm serve native-offload 10000"
    assert parameters["workload.prefix_tokens"] == "10000"
    assert parameters["software.guidellm"] == "0.8.1"
    assert parameters["machine_fingerprint"] == "f00d"
    assert parameters["tier"] == "22.0 GiB (10,000 blocks)"
    assert all(NAMES.fullmatch(name) for name in parameters)
    assert all(parameters.values())


def test_names_of_parameters_are_such_as_mlflow_takes(
    measured: Measured, tmp_path: Path
) -> None:
    renamed = [
        msgspec.structs.replace(
            run, specification={"env": {"A(1)": "x", "EMPTY": "", "NONE": None}}
        )
        for run in measured.runs
    ]
    write_results(tmp_path, dataclasses.replace(measured, runs=renamed))
    parameters = read_mlflow_runs(tmp_path)[-1].parameters
    assert [name for name in parameters if name.startswith("env")] == ["env.A_1_"]


def test_the_report_has_its_files_and_its_answer(
    runs: dict[str, MlflowRun], results: Path
) -> None:
    report = runs["report_mine"]
    files = {
        path.relative_to(results).as_posix(): folder for path, folder in report.files
    }
    assert files["REPORT.md"] == files["report.html"] == files["report.json"] == ""
    assert files["figures/arms/ttft_by_arm.png"] == "figures/arms"
    assert files["appendix/configuration.md"] == "appendix"
    assert "figures/arms/figures.json" not in files
    assert report.further_tags["mlflow.note.content"].startswith("Does")
    assert report.tag[0] == REPORT


def test_a_report_that_changed_is_another_one(
    runs: dict[str, MlflowRun], results: Path, tmp_path: Path
) -> None:
    shutil.copytree(results, tmp_path / "other")
    text = (results / "report.json").read_text()
    (tmp_path / "other" / "report.json").write_text(text + "\n")
    changed = {run.name: run for run in read_mlflow_runs(tmp_path / "other")}
    differing = [name for name in runs if changed[name].tag != runs[name].tag]
    assert differing == ["report_mine"]


def test_a_measured_run_is_the_same_in_every_campaign(
    measured: Measured, runs: dict[str, MlflowRun], tmp_path: Path
) -> None:
    """Campaigns share runs, and the one that exports first must not decide what is logged of them."""
    first = measured.levels["run"] == 1
    fewer = campaign.measured(measured.levels[first].reset_index(drop=True))
    for run in read_mlflow_runs(write_results(tmp_path, fewer, "other")):
        if run.tag[0] == MEASUREMENT:
            tags = {"kveval.campaign": "mine"}
            assert dataclasses.replace(run, further_tags=tags) == runs[run.name]


@pytest.mark.parametrize("imported", [False, True])
def test_runs_of_two_versions_are_two_experiments_with_a_report_each(
    measured: Measured, tmp_path: Path, imported: bool
) -> None:
    release = "llm-d-0.7.0"
    llm_d = {"software": release} if imported else {"deployment": {"release": release}}
    several = [
        msgspec.structs.replace(
            run,
            versions={"vllm": "0.19.1"} if run.run == 1 else run.versions,
            specification=run.specification | (llm_d if run.run == 1 else {}),
            declared=llm_d if imported and run.run == 1 else {},
        )
        for run in measured.runs
    ]
    write_results(tmp_path, dataclasses.replace(measured, runs=several))
    logged = read_mlflow_runs(tmp_path)
    other = "2 x NVIDIA L40S (48 GiB)/llm-d-0.7.0, vLLM 0.19.1"
    assert [run.experiment for run in logged if run.name == "report_mine"] == [
        other,
        EXPERIMENT,
    ]
    first = [run for run in logged if run.name.endswith("r1")]
    assert {run.experiment for run in first} == {other}
    assert {run.parameters["software.vllm"] for run in first} == {"0.19.1"}


def test_a_run_without_a_level_that_succeeded_is_left_out(
    measured: Measured, tmp_path: Path
) -> None:
    failed = (measured.levels["run"] == 2) & (measured.levels["cpu_blocks"] == 0)
    levels = measured.levels.copy()
    levels.loc[failed, "throughput_tok_s"] = 0.0
    write_results(tmp_path, dataclasses.replace(measured, levels=levels))
    names = [run.name for run in read_mlflow_runs(tmp_path)]
    assert "Qwen3-8B_no-offload_r2" not in names
    assert "Qwen3-8B_no-offload_r1" in names


def test_a_value_that_is_not_known_is_not_logged(
    measured: Measured, tmp_path: Path
) -> None:
    levels = measured.levels.assign(gpu_power_w=float("inf"), ttft_ms_p99=pd.NA)
    write_results(tmp_path, dataclasses.replace(measured, levels=levels))
    metrics = [value.metric for value in read_mlflow_runs(tmp_path)[-1].metrics]
    assert "peak/ttft_ms_p90" in metrics
    assert {"peak/gpu_power_w", "peak/ttft_ms_p99"}.isdisjoint(metrics)


def test_a_folder_without_results_says_what_would_be_right(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text("{}")
    with pytest.raises(
        MlflowExportError, match=r"no analysis/complete_metrics\.csv and .*: name the"
    ):
        read_mlflow_runs(tmp_path)
