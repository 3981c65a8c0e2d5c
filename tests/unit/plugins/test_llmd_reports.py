"""llm-d-benchmark's reports: valid by its own package, and the numbers of the tables."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from llmd_benchmark_report import import_benchmark_report, load_benchmark_report
from tests.support import synthetic_campaign as campaign

from kveval.campaign.cell import CELL_COLUMNS, Cell
from kveval.plugins.exports.llmd import (
    ExportError,
    level_report,
    write_peak_reports,
)
from kveval.report.data.campaign import Measured, ReportPlan
from kveval.report.result.not_assessed import gaps_of
from kveval.store.run_file import Run
from kveval.tables.cells import THROUGHPUT, rows_of

CELL = Cell("Qwen3-14B", "lmcache-valkey", 20_000)


@pytest.fixture(scope="module")
def measured() -> Measured:
    return campaign.whole()


@pytest.fixture(scope="module")
def plan() -> ReportPlan:
    return campaign.plan()


def first_level(measured: Measured) -> tuple[dict[str, Any], Run]:
    return measured.levels_of(CELL).iloc[0].to_dict(), measured.runs_of(CELL)[0]


@pytest.fixture(scope="module")
def exported(measured: Measured, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The list of the exported files."""
    results = tmp_path_factory.mktemp("results")
    for cell in campaign.cells():
        (results / cell.path).mkdir(parents=True)
    listed = results / "analysis" / "benchmark_reports.txt"
    listed.parent.mkdir()
    write_peak_reports(measured.levels, measured.peaks, measured.runs, "large", listed)
    return listed


def test_peaks_as_benchmark_reports_are_valid(exported: Path) -> None:
    paths = exported.read_text().split()
    reports = [yaml.safe_load(Path(path).read_text(encoding="utf-8")) for path in paths]
    for path in paths:
        assert import_benchmark_report(path).version == "0.2"
    assert len({content["run"]["uid"] for content in reports}) == len(reports) == 34
    assert len({content["run"]["eid"] for content in reports}) == len(reports)


def test_a_benchmark_report_is_the_median_run_at_the_peak_level(
    measured: Measured, exported: Path
) -> None:
    file = exported.parents[1] / CELL.path / "benchmark_report_v0.2.yaml"
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    peak = rows_of(measured.peaks, CELL).iloc[0]
    runs = measured.levels_of(CELL, peak["level"]).sort_values("throughput_tok_s")
    middle = runs.iloc[1]
    aggregate = content["results"]["request_performance"]["aggregate"]
    assert (
        aggregate["throughput"]["output_token_rate"]["mean"]
        == middle["throughput_tok_s"]
    )
    assert (
        aggregate["requests"]["total"]
        == middle["requests_completed"] + middle["requests_incomplete"]
    )
    assert f"run {middle['run']}, " in content["run"]["description"]
    assert "median of 3" in content["run"]["description"]
    load = content["scenario"]["load"]["standardized"]
    assert load["concurrency"] == peak["level"]
    assert load["prefix"]["num_prefixes"] == 160
    engine = content["scenario"]["stack"][0]["standardized"]
    assert (engine["model"]["name"], engine["accelerator"]["count"]) == (
        "Qwen/Qwen3-14B",
        2,
    )


@pytest.mark.parametrize(
    ("profile", "said"),
    [
        ("concurrent", "1 concurrent,"),
        ("poisson", "1 requests/min,"),
        ("sweep", "strategy 1,"),
    ],
)
def test_a_level_is_named_by_what_it_counts(
    measured: Measured, profile: str, said: str
) -> None:
    row, run = first_level(measured)
    workload = run.workload | {"profile": profile}
    sent = msgspec.structs.replace(
        run, specification=run.specification | {"workload": workload}
    )
    assert said in level_report(row, sent, "large")["run"]["description"]


def test_every_replica_is_counted(plan: ReportPlan, measured: Measured) -> None:
    """A cluster's runs say how many servers they had, imported ones by their names; one is said of neither."""
    row, run = first_level(measured)
    deployed = msgspec.structs.replace(
        run, specification=run.specification | {"deployment": {"replicas": 3}}
    )
    for several in (deployed, msgspec.structs.replace(run, declared={"replicas": 3})):
        stack = level_report(row, several, "large")["scenario"]["stack"]
        assert stack[0]["standardized"]["replicas"] == 3
        gaps = gaps_of(plan, dataclasses.replace(measured, runs=[several]), {})
        assert not any(gap.code == "replicas" for gap in gaps)
    assert any(gap.code == "replicas" for gap in gaps_of(plan, measured, {}))


def test_tpot_goes_by_the_name_that_means_it(measured: Measured) -> None:
    """kveval's TPOT holds the first token: that is the normalised time per output token there, not their TPOT."""
    row, run = first_level(measured)
    latency = level_report(row, run, "large")["results"]["request_performance"][
        "aggregate"
    ]["latency"]
    assert latency["normalized_time_per_output_token"]["p50"] == row["tpot_ms_p50"]
    assert latency["inter_token_latency"]["p50"] == row["itl_ms_p50"]


def test_latencies_nobody_observed_and_metrics_nobody_recorded_are_left_out(
    measured: Measured,
) -> None:
    row, run = first_level(measured)
    blank = {name: float("nan") for name in row if name.startswith(("ttft_", "gpu_"))}
    content = level_report(row | blank, run, "large")
    assert (
        "time_to_first_token"
        not in content["results"]["request_performance"]["aggregate"]["latency"]
    )
    observed = content["results"]["observability"]["components"][0]["aggregate"]
    assert "gpu_utilization" not in observed
    assert observed["kv_cache_usage"]["units"] == "percent"


def test_how_many_requests_were_in_flight_may_be_unknown(measured: Measured) -> None:
    row, run = first_level(measured)
    row["concurrency_mean"] = float("nan")
    swept = msgspec.structs.replace(
        run, specification={"workload": run.workload | {"profile": "sweep"}}
    )
    content = level_report(row, swept, "large")
    assert content["scenario"]["load"]["standardized"]["concurrency"] == 1


def test_what_a_benchmark_report_cannot_say_is_refused(measured: Measured) -> None:
    row, run = first_level(measured)
    with pytest.raises(ExportError, match=rf"{CELL.path}: .*\n.*requests\.total"):
        level_report(row | {"requests_completed": -100_000}, run, "large")


@given(data=st.data())
def test_whatever_is_unknown_of_a_level_its_benchmark_report_is_valid(
    measured: Measured, data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(measured.levels) - 1))
    row = measured.levels.iloc[place].to_dict()
    known = (THROUGHPUT, "level", "duration_s", "requests_", *CELL_COLUMNS)
    numbers = [
        str(name)
        for name in measured.levels.select_dtypes("number")
        if not str(name).startswith(known)
    ]
    unknown = data.draw(st.lists(st.sampled_from(numbers), unique=True))
    row |= dict.fromkeys(unknown, float("nan"))
    run = measured.runs_of(Cell.from_row(row))[0]
    profile = data.draw(st.sampled_from(["concurrent", "poisson", "sweep"]))
    workload = run.workload | {"profile": profile}
    changed = msgspec.structs.replace(
        run,
        specification=run.specification | {"workload": workload},
        hardware=data.draw(st.sampled_from([run.hardware, {}])),
        versions=data.draw(st.sampled_from([run.versions, {}])),
    )
    content = level_report(row, changed, "large")
    read = load_benchmark_report(content)
    assert content == read.model_dump(
        mode="json", exclude_unset=True, exclude_none=True
    )
    assert "nan" not in json.dumps(content).lower()


def test_a_cell_without_a_peak_cannot_be_exported(
    measured: Measured, tmp_path: Path
) -> None:
    of_cell = rows_of(measured.levels, CELL)
    with pytest.raises(ExportError, match="Qwen3-14B/lmcache-valkey/20000"):
        write_peak_reports(
            of_cell,
            measured.peaks.iloc[:0],
            measured.runs,
            "large",
            tmp_path / "listed",
        )


def test_values_stand_in_a_benchmark_report_as_they_are(measured: Measured) -> None:
    """YAML reads 1e-07, yes and 012 as other values than JSON and Python do."""
    row, run = first_level(measured)
    odd = {
        "zipf": 1e-07,
        "title": 'a "b": #\n\u2028\U0001f600 {{ x }}',
        "of": ["yes", "012"],
    }
    sent = msgspec.structs.replace(
        run, specification=run.specification | {"workload": run.workload | odd}
    )
    load = level_report(row, sent, "large")["scenario"]["load"]
    assert load["native"]["config"] == sent.workload
    assert load["metadata"]["description"] == odd["title"]
