"""report.json and llm-d-benchmark's reports: valid, complete, and the numbers of the tables."""

import dataclasses
import json
from pathlib import Path

import jsonschema
import msgspec
import pandas as pd
import pytest
import yaml
from tests.support import synthetic_campaign as campaign

from kveval.analysis.cells import rows_of
from kveval.campaign.cell import Cell
from kveval.report.data.campaign import Measured, ReportPlan
from kveval.report.export import report_json
from kveval.report.export.llmd import (
    ExportError,
    level_report,
    peak_report,
    write_peak_reports,
)
from kveval.report.report import write_report
from kveval.report.tables.not_assessed import gap_table

SCHEMAS = Path(report_json.__file__).with_name("schemas")
REPORT_SCHEMA = json.loads((SCHEMAS / "report.json").read_text(encoding="utf-8"))
BENCHMARK_SCHEMA = json.loads(
    (SCHEMAS / "benchmark_report_v0.2.json").read_text(encoding="utf-8")
)
CELL = Cell("Qwen3-14B", "lmcache-valkey", 20_000)


@pytest.fixture(scope="module")
def measured() -> Measured:
    return campaign.measured(
        campaign.levels_table(campaign.cells(), levels=(1, 50, 300, 650))
    )


@pytest.fixture(scope="module")
def plan() -> ReportPlan:
    return campaign.plan()


def test_a_report_as_json_is_valid_and_holds_every_cell_and_comparison(
    plan: ReportPlan, measured: Measured, tmp_path: Path
) -> None:
    write_report(
        plan,
        measured,
        [tmp_path / "figures" / "pcp_lmcache.png"],
        tmp_path / "REPORT.md",
        {"pcp_lmcache": "x"},
    )
    content = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    jsonschema.validate(content, REPORT_SCHEMA)
    assert len(content["cells"]) == 34
    assert len(content["comparisons"]) == len(measured.comparison)
    assert content["figures"] == [
        {
            "name": "pcp_lmcache",
            "title": "What does LMCache count itself?",
            "path": "figures/pcp_lmcache.png",
            "empty": "x",
        }
    ]
    verdicts = [row["verdict"] for row in content["comparisons"]]
    assert verdicts == list(measured.comparison["verdict"])
    peak = next(
        cell["peak"] for cell in content["cells"] if Cell.from_row(cell) == CELL
    )
    row = rows_of(measured.peaks, CELL).iloc[0]
    assert peak["throughput_tok_s"]["value"] == row["throughput_tok_s"]
    assert peak["latency_ms"]["ttft"]["p90"] == row["ttft_ms_p90"]
    assert peak["system"]["gpu_power_w"] == row["gpu_power_w"]


def test_declared_pairs_and_averages_are_in_it(
    plan: ReportPlan, measured: Measured
) -> None:
    pair = measured.comparison.iloc[[0]].assign(
        indication="better", verdict="indicative", bound="at least"
    )
    means = pd.DataFrame(
        {
            **{
                "scenario": ["lmcache-local"],
                "cpu_blocks": [10_000],
                "metric": ["throughput_tok_s"],
                "models": [2],
            },
            **{
                "effect_percent": [5.0],
                "low_percent": [float("nan")],
                "high_percent": [float("nan")],
            },
            **{"panel": ["Qwen3-8B;Qwen3-14B"], "missing": [""]},
        }
    )
    content = report_json.report_content(
        plan,
        dataclasses.replace(measured, contrasts=pair, averages=means),
        {},
        {},
        gap_table(plan, measured, {}),
    )
    jsonschema.validate(json.loads(report_json.to_json(content)), REPORT_SCHEMA)
    assert len(content["comparisons"]) == len(measured.comparison) + 1
    assert content["comparisons"][-1]["indication"] == "better"
    assert content["comparisons"][-1]["bound"] == "at least"
    assert content["comparisons"][0]["bound"] is None
    assert content["averages"][0]["models"] == ["Qwen3-8B", "Qwen3-14B"]
    assert content["averages"][0]["effect_percent"]["low"] is None


def test_what_is_not_there_is_null_and_says_why(measured: Measured) -> None:
    keys = [
        Cell("Qwen3-8B", "no-offload", 0),
        Cell("Qwen3-8B", "native-offload", 10_000),
    ]
    part = campaign.measured(campaign.levels_table(keys[:1], runs=1, levels=(50,)))
    plan = campaign.plan(keys)
    missing = Measured(
        part.runs,
        part.levels,
        part.peaks,
        part.comparison,
        {keys[1]: "failed: no memory"},
    )
    content = report_json.report_content(
        plan, missing, {}, {}, gap_table(plan, missing, {})
    )
    present, absent = content["cells"]
    assert (absent["peak"], absent["missing"], absent["runs"]) == (
        None,
        "failed: no memory",
        [],
    )
    assert present["peak"]["throughput_tok_s"]["low"] is None
    jsonschema.validate(json.loads(report_json.to_json(content)), REPORT_SCHEMA)


def test_peaks_as_benchmark_reports_are_valid(
    measured: Measured, tmp_path: Path
) -> None:
    cells = [cell for cell in campaign.cells() if cell.model == CELL.model]
    files = {cell: tmp_path / f"{number}.yaml" for number, cell in enumerate(cells)}
    write_peak_reports(measured, "large", files)
    found = [
        yaml.safe_load(path.read_text(encoding="utf-8")) for path in files.values()
    ]
    for content in found:
        jsonschema.validate(content, BENCHMARK_SCHEMA)
    assert len({content["run"]["uid"] for content in found}) == len(found) == 10
    assert len({content["run"]["eid"] for content in found}) == len(found)


def test_a_benchmark_report_is_the_median_run_at_the_peak_level(
    measured: Measured,
) -> None:
    content = peak_report(measured, CELL, "large")
    assert content is not None
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
    row, run = measured.levels_of(CELL).iloc[0].to_dict(), measured.runs_of(CELL)[0]
    workload = run.workload | {"profile": profile}
    sent = msgspec.structs.replace(
        run, specification=run.specification | {"workload": workload}
    )
    assert said in level_report(row, sent, "large")["run"]["description"]


def test_every_replica_is_counted(plan: ReportPlan, measured: Measured) -> None:
    """A cluster's runs say how many servers they had, imported ones by their names; one is said of neither."""
    row, run = measured.levels_of(CELL).iloc[0].to_dict(), measured.runs_of(CELL)[0]
    deployed = msgspec.structs.replace(
        run, specification=run.specification | {"deployment": {"replicas": 3}}
    )
    for several in (deployed, msgspec.structs.replace(run, declared={"replicas": 3})):
        stack = level_report(row, several, "large")["scenario"]["stack"]
        assert stack[0]["standardized"]["replicas"] == 3
        gaps = gap_table(plan, dataclasses.replace(measured, runs=[several]), {})
        assert not any("one replica" in cells[1] for cells in gaps.rows)
    assert any(
        "one replica" in cells[1] for cells in gap_table(plan, measured, {}).rows
    )


def test_tpot_goes_by_the_name_that_means_it(measured: Measured) -> None:
    """kveval's TPOT holds the first token: that is the normalised time per output token there, not their TPOT."""
    row = measured.levels_of(CELL).iloc[0].to_dict()
    run = measured.runs_of(CELL)[0]
    latency = level_report(row, run, "large")["results"]["request_performance"][
        "aggregate"
    ]["latency"]
    assert latency["normalized_time_per_output_token"]["p50"] == row["tpot_ms_p50"]
    assert latency["inter_token_latency"]["p50"] == row["itl_ms_p50"]


def test_latencies_nobody_observed_and_metrics_nobody_recorded_are_left_out(
    measured: Measured,
) -> None:
    row = measured.levels_of(CELL).iloc[0].to_dict()
    blank = {name: float("nan") for name in row if name.startswith(("ttft_", "gpu_"))}
    content = level_report(row | blank, measured.runs_of(CELL)[0], "large")
    assert (
        "time_to_first_token"
        not in content["results"]["request_performance"]["aggregate"]["latency"]
    )
    observed = content["results"]["observability"]["components"][0]["aggregate"]
    assert "gpu_utilization" not in observed
    assert observed["kv_cache_usage"]["units"] == "percent"


def test_how_many_requests_were_in_flight_may_be_unknown(measured: Measured) -> None:
    row, run = measured.levels_of(CELL).iloc[0].to_dict(), measured.runs_of(CELL)[0]
    row["concurrency_mean"] = float("nan")
    swept = msgspec.structs.replace(
        run, specification={"workload": run.workload | {"profile": "sweep"}}
    )
    content = level_report(row, swept, "large")
    jsonschema.validate(content, BENCHMARK_SCHEMA)
    assert content["scenario"]["load"]["standardized"]["concurrency"] == 1


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (
            (
                "results",
                "request_performance",
                "aggregate",
                "latency",
                "request_latency",
                "units",
            ),
            "minutes",
        ),
        (("results", "request_performance", "aggregate", "requests", "total"), -1),
        (
            ("scenario", "load", "standardized", "input_seq_len", "distribution"),
            "sometimes",
        ),
        (("version",), "0.1"),
        (("run", "made_up"), 1),
    ],
)
def test_the_schema_refuses_what_the_published_one_does(
    measured: Measured, path: tuple[str, ...], value: object
) -> None:
    content = peak_report(measured, CELL, "large")
    assert content is not None
    place = content
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(content, BENCHMARK_SCHEMA)


def test_a_cell_without_a_peak_cannot_be_exported(
    measured: Measured, tmp_path: Path
) -> None:
    gone = Measured(
        measured.runs, measured.levels, measured.peaks.iloc[:0], measured.comparison
    )
    with pytest.raises(ExportError, match="Qwen3-14B/lmcache-valkey/20000"):
        write_peak_reports(gone, "large", {CELL: tmp_path / "x.yaml"})
