"""`kveval show`: a cell of a campaign found by all its names, its numbers, what is wrong with it, and no heavy import."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.support.paths import SCRIPTS
from tests.support.stored_runs import measured, pointed
from tests.support.synthetic import levels_table
from typer.testing import CliRunner, Result

from kveval.configuration.config import measurement_id
from kveval.store.store import Store
from kveval.tables.levels.outcomes import Outcome, outcome_columns
from kveval.tables.peaks import peak_row
from kveval.workflow.command.main import app

CELL = "Qwen3-0.6B/native-offload/10000"
RESULTS = Path("results/campaigns/made")
STORE = Path("results/measurements")
RUNS = (1, 2, 3)
SPECIFICATION: dict[str, Any] = {
    "cell": {
        "model": "Qwen3-0.6B",
        "scenario": "native-offload",
        "cpu_blocks": 10_000,
    },
    "budget": {"requested_bytes": 3 * 2**29},
    "versions": {"vllm": "0.32.0"},
}
MEASUREMENT = measurement_id(SPECIFICATION)
PROOF = {
    "counter": "vllm:hits_total",
    "at_least": 1,
    "moved": 12_345,
    "exercised": True,
}
RISE = {"before": 5.0, "after": 12_350.0, "delta": 12_345.0}
LEVELS = [
    {"level": 8, "status": "ok", "counters": {PROOF["counter"]: RISE}},
    {"level": 32, "status": "failed"},
]
HEAVY = ("pandas", "scipy", "pyarrow", "matplotlib", "snakemake", "numpy")


@pytest.fixture
def campaign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A campaign with one cell, of which every run is stored; the working folder. Its tables are not made."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    for run in RUNS:
        place = measured(
            Store(STORE),
            SPECIFICATION,
            run,
            exercised={"required": [PROOF], "exercised": True},
            levels=LEVELS,
        )
        pointed(RESULTS, place, SPECIFICATION, run)
    return tmp_path


def levels_of_cell() -> pd.DataFrame:
    """levels.csv of the cell: runs that differ, with an error in the first."""
    table = levels_table(runs=len(RUNS), sd=0.1)
    levels = table[table["scenario"] == "native-offload"].reset_index(drop=True)
    levels["requests_errored"] = (levels["run"] == 1).astype(int)
    levels["streams_asked"] = levels["level"]
    levels["rate_req_s"] = float("nan")
    for name in ("ttft_ms_p50", "ttft_ms_p90", "itl_ms_p50"):
        levels[name] = 10.0 * levels["run"]
    return levels


def write_tables(folder: Path, levels: pd.DataFrame) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    levels.to_csv(folder / "levels.csv", index=False)
    peak = peak_row(levels, {})
    pd.DataFrame([peak]).to_csv(folder / "peak.csv", index=False)


def show(*words: str) -> Result:
    return CliRunner().invoke(app, ["show", *words])


def document(*words: str) -> dict[str, Any]:
    result = show(*words, "--json")
    assert result.exit_code == 0, result.output
    content: dict[str, Any] = json.loads(result.stdout)
    return content


@pytest.mark.parametrize(
    "name",
    [
        CELL,
        f"{CELL}/",
        f"{RESULTS}/{CELL}",
        f"{RESULTS}/{CELL}/peak.csv",
        f"{RESULTS}/{CELL}/run-2/measurement.json",
        MEASUREMENT,
        f"{STORE}/{MEASUREMENT}",
        f"{STORE}/{MEASUREMENT}/run-3/run.json",
    ],
)
def test_a_cell_is_found_by_every_name_it_has(campaign: Path, name: str) -> None:
    write_tables(RESULTS / CELL, levels_of_cell())
    shown = document(name)
    assert shown == document(CELL)
    assert shown["cell"]["path"] == CELL
    assert shown["cell"]["tier_gib"] == 1.5
    assert shown["measurements"] == [MEASUREMENT]
    assert [run["run"] for run in shown["runs"]] == list(RUNS)
    assert all((Path(run["place"]) / "run.json").is_file() for run in shown["runs"])


def test_it_is_found_from_any_folder(
    campaign: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: Any
) -> None:
    monkeypatch.chdir(campaign / RESULTS)
    below = document(CELL)
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    # By its path, as the checkout may have measured a cell of that name.
    assert show(str(RESULTS / CELL)).exit_code == 2
    assert document(CELL, "--directory", str(campaign)) == below
    assert document(str(campaign / RESULTS / CELL)) == below


def test_its_levels_are_the_means_of_the_table(campaign: Path) -> None:
    levels = levels_of_cell()
    write_tables(RESULTS / CELL, levels)
    shown = document(CELL)
    means = levels.groupby("level").mean(numeric_only=True)
    assert [level["level"] for level in shown["levels"]] == list(means.index)
    for level in shown["levels"]:
        row = means.loc[level["level"]]
        assert level["throughput_tok_s"] == pytest.approx(row["throughput_tok_s"])
        assert level["ttft_ms_p50"] == pytest.approx(row["ttft_ms_p50"])
        assert level["external_hit_ratio"] == pytest.approx(0.4)
        assert level["runs"] == len(RUNS)
        assert level["requests_errored"] == 1
    highest = means["throughput_tok_s"].idxmax()
    assert shown["peak"]["level"] == highest
    assert shown["peak"]["throughput_tok_s"] == pytest.approx(
        means["throughput_tok_s"].max()
    )


def test_its_text_has_what_the_document_has(campaign: Path) -> None:
    write_tables(RESULTS / CELL, levels_of_cell())
    text = show(CELL).stdout
    shown = document(CELL)
    assert f"{CELL}  CPU tier of 1.50 GiB (10,000 blocks)" in text
    assert f"measurement {MEASUREMENT}" in text
    assert f"{STORE}/{MEASUREMENT}/run-3" in text
    assert "vllm 0.32.0" in text
    assert f"Peak: {shown['peak']['throughput_tok_s']:,.0f} tok/s" in text
    assert "vllm:hits_total  12,345" in text
    assert "40 %" in text
    assert shown["next"][-1]["command"] in text


def test_what_was_not_observed_is_not_zero(campaign: Path) -> None:
    levels = levels_of_cell()
    levels["external_hit_ratio"] = float("nan")
    write_tables(RESULTS / CELL, levels)
    assert {level["external_hit_ratio"] for level in document(CELL)["levels"]} == {None}


def test_a_cell_without_tables_shows_what_its_runs_say(campaign: Path) -> None:
    shown = document(CELL)
    assert shown["peak"] is None
    assert shown["levels"] == [
        {"level": 8, "runs": len(RUNS), "failed_runs": []},
        {"level": 32, "runs": 0, "failed_runs": list(RUNS)},
    ]
    assert "report_so_far" in shown["next"][0]["command"]
    assert "failed in run" in show(CELL).stdout


def test_tables_of_the_runs_so_far_are_shown(campaign: Path) -> None:
    write_tables(RESULTS / "so-far" / CELL, levels_of_cell())
    shown = document(CELL)
    assert shown["so_far"]
    assert shown["peak"]["runs"] == len(RUNS)
    assert shown == document(f"{RESULTS}/so-far/{CELL}")
    assert "so far" in show(CELL).stdout


def test_a_table_that_could_not_be_made_has_its_reason(campaign: Path) -> None:
    for name in ("levels.csv", "peak.csv"):
        table = RESULTS / "so-far" / CELL / name
        table.parent.mkdir(parents=True, exist_ok=True)
        table.write_text("FAILED: no level was measured\n")
    shown = document(CELL)
    assert shown["not_computed"] == "no level was measured"
    assert shown["peak"] is None
    assert [level["level"] for level in shown["levels"]] == [8, 32]
    assert "no level was measured" in show(CELL).stdout


def test_levels_of_an_open_loop_are_rates(campaign: Path) -> None:
    levels = levels_of_cell().assign(streams_asked=float("nan"))
    write_tables(RESULTS / CELL, levels.assign(rate_req_s=levels["level"] / 4))
    text = show(CELL).stdout
    assert "req/s" in text
    assert [level["rate_req_s"] for level in document(CELL)["levels"]] == [0.25, 2, 8]


def test_checks_come_from_the_levels_and_from_the_campaigns_tables(
    campaign: Path,
) -> None:
    levels = levels_of_cell()
    facts = {"change_percent": -20.0, "limit_percent": float("nan")}
    slower = Outcome("steadiness", "warn", facts, "the last ¦ third is slower")
    columns = outcome_columns([slower])
    levels.loc[0, list(columns)] = list(columns.values())
    write_tables(RESULTS / CELL, levels)
    (RESULTS / "analysis").mkdir()
    (RESULTS / "analysis" / "checks.csv").write_text(
        "model,scenario,cpu_blocks,run,level,severity,rule,check,message,facts\n"
        'Qwen3-0.6B,native-offload,10000,,,fail,R2,one_measurement_per_cell,two ids,"{""ids"":2}"\n'
        "Qwen3-0.6B,native-offload,10000,1,1,warn,R1,steadiness,the last third is slower,{}\n"
        "Qwen3-0.6B,no-offload,0,,,fail,R2,one_measurement_per_cell,of another cell,{}\n"
    )
    assert [
        (check["severity"], check["check"], check["run"], check["facts"])
        for check in document(CELL)["checks"]
    ] == [
        ("fail", "one_measurement_per_cell", None, {"ids": 2}),
        ("warn", "steadiness", 1, {"change_percent": -20.0, "limit_percent": None}),
    ]
    text = show(CELL).stdout
    assert "two ids" in text
    assert "the last | third is slower" in text


def test_an_arm_that_was_idle_is_said_to_be(campaign: Path) -> None:
    levels = levels_of_cell()
    levels["activity"] = "none"
    write_tables(RESULTS / CELL, levels)
    assert "tier not active" in show(CELL).stdout
    assert document(CELL)["next"][0]["command"].startswith("kveval curve")


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        (CELL.replace("native", "natve"), CELL),
        ("Qwen3-0.6B/native-offload", CELL),
        (f"{MEASUREMENT[:15]}x", ""),
        ("0" * 16, ""),
        ("results", ""),
        ("nothing-like-it", ""),
    ],
)
def test_an_unknown_cell_ends_with_the_nearest_names(
    campaign: Path, name: str, nearest: str
) -> None:
    result = show(name)
    assert result.exit_code == 2
    assert name in result.stderr
    assert nearest in result.stderr
    assert result.stdout == ""


def test_a_run_that_cannot_be_read_is_named_beside_the_others(campaign: Path) -> None:
    damaged = STORE / MEASUREMENT / "run-2" / "run.json"
    damaged.write_text("{")
    shown = document(CELL)
    assert [run["run"] for run in shown["runs"]] == [1, 3]
    assert len(shown["unreadable"]) == 1
    assert str(damaged) in shown["unreadable"][0]
    assert "verify" in shown["next"][0]["command"]
    assert "unreadable" in show(CELL).stdout


def test_a_cell_that_only_the_store_has(campaign: Path) -> None:
    other = SPECIFICATION | {"cell": SPECIFICATION["cell"] | {"cpu_blocks": 500}}
    path = CELL.replace("10000", "500")
    measured(Store(STORE), other, levels=LEVELS)
    shown = document(path)
    assert shown["results"] is None
    assert shown["measurements"] == [measurement_id(other)]
    assert "only in the store" in show(path).stdout
    again = other | {"versions": {"vllm": "0.33.0"}}
    measured(Store(STORE), again, levels=LEVELS)
    result = show(path)
    assert result.exit_code == 2
    assert measurement_id(other) in result.stderr
    assert measurement_id(again) in result.stderr


def test_a_cell_of_several_campaigns_is_that_of_the_first(campaign: Path) -> None:
    second = Path("results/campaigns/second")
    pointed(second, STORE / MEASUREMENT / "run-1", SPECIFICATION)
    shown = document(CELL)
    assert shown["results"] == str(campaign / RESULTS / CELL)
    assert shown["elsewhere"] == [str(campaign / second / CELL)]
    assert f"also in     {second / CELL}" in show(CELL).stdout


def test_it_imports_nothing_heavy(campaign: Path) -> None:
    """The answer comes within a second."""
    write_tables(RESULTS / CELL, levels_of_cell())
    code = (
        "import sys, kveval.__main__ as command\n"
        f"sys.argv = ['kveval', 'show', '{CELL}']\n"
        "try:\n    command.main()\n"
        "except SystemExit as end:\n"
        f"    print(end.code, [name for name in {HEAVY} if name in sys.modules])\n"
    )
    shown = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={**os.environ, "PYTHONPATH": str(SCRIPTS)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.splitlines()[-1] == "0 []"


def test_the_times_of_one_request_are_those_of_all_runs(campaign: Path) -> None:
    assert document(CELL)["one_request"] == []
    assert "One request alone" not in show(CELL).output

    def request(ttft_ms: float, served_tokens: int) -> dict[str, float]:
        return {
            "ttft_ms": ttft_ms,
            "prompt_tokens": 1024,
            "served_tokens": served_tokens,
        }

    for place in Path(STORE).glob("*/run-*"):
        facts = json.loads((place / "run.json").read_text())
        number = facts["run"]
        facts["one_request"] = {
            "cold": {"requests": [request(200.0 + number, 0)]},
            "device": {"requests": [request(20.0 + number, 1008)]},
            "tier": {"requests": [], "reason": "the tier served nothing"},
        }
        (place / "run.json").write_text(json.dumps(facts))
    rows = {row["source"]: row for row in document(CELL)["one_request"]}
    assert [*rows] == ["cold", "device", "tier"]
    assert rows["cold"]["ttft_ms_median"] == 202.0
    assert (rows["device"]["ttft_ms_least"], rows["device"]["served_tokens"]) == (
        21,
        1008,
    )
    assert (rows["tier"]["ttft_ms_median"], rows["tier"]["reason"]) == (
        None,
        "the tier served nothing",
    )
    text = show(CELL).output
    assert "One request alone" in text
    assert "from the device's cache" in text
    assert "the tier served nothing" in text
