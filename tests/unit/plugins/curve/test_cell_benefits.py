"""From the tables and runs of a campaign to what its tiers were predicted to buy."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from msgspec.structs import replace
from tests.support.described import described_run
from tests.support.synthetic import run_description
from tests.unit.plugins.curve.test_benefit import LEVEL, of

from kveval.campaign.cell import Cell
from kveval.plugins.curve.predicted.cell_benefits import (
    COLUMNS,
    measured_levels,
    predicted_benefits,
)
from kveval.store.run_file import Run

MODEL = "Qwen3-0.6B"
BASE, TIERED = Cell(MODEL, "no-offload", 0), Cell(MODEL, "native-offload", 5000)
BASELINES = {"no-offload": None, "native-offload": "no-offload"}
BEGAN = pd.Timestamp("2026-11-23T07:00:00Z")
# Two streams, and of four requests one whose prefix is on the device, as the default campaign was measured once.
COUNT, EACH_S, WARMUP_S, WINDOW_S = 126, 0.413, 4.0, 22.0
TTFT_MS, ITL_MS = (50.0, 240.0, 250.0, 410.0), (5.0, 5.5, 6.0, 17.5)


def a_run(cell: Cell) -> Run:
    known = described_run(run_description(*cell.key, 1))
    return replace(known, specification=of(cell.scenario, cell.cpu_blocks).to_json())


def levels(**changed: Any) -> pd.DataFrame:
    row = {
        **BASE.row,
        **{
            "run": 1,
            "level": LEVEL,
            "warmup_s": WARMUP_S,
            "duration_s": WINDOW_S,
            "requests_completed": 84,
            "checks_warned": "",
        },
        **{
            "window_start": BEGAN + pd.Timedelta(seconds=WARMUP_S),
            "window_end": BEGAN + pd.Timedelta(seconds=26),
        },
        **{"throughput_tok_s": 16 * 2 / EACH_S, "request_prompt_tokens": 6032.0},
        **{"ttft_ms_mean": 237.5, "ttft_ms_p50": 245.0},
    }
    return pd.DataFrame([row | changed])


def requests() -> pd.DataFrame:
    started = BEGAN + pd.to_timedelta(np.arange(COUNT) * EACH_S / 2, unit="s")
    ttft_ms, itl_ms = (np.resize(values, COUNT) for values in (TTFT_MS, ITL_MS))
    table = pd.DataFrame(
        {"run": 1, "level": LEVEL, "start": started, "ttft_ms": ttft_ms}
    )
    ends = {
        "first_token": started + pd.to_timedelta(ttft_ms, unit="ms"),
        "end": started + pd.Timedelta(seconds=EACH_S),
    }
    return table.assign(itl_ms=itl_ms, **ends)


def predicted(
    runs: list[Run],
    table: pd.DataFrame | None = None,
    sent: pd.DataFrame | None = None,
    base: Cell = BASE,
) -> list[dict[str, Any]]:
    baselines = BASELINES | {"native-offload": base.scenario}
    peaks = pd.DataFrame({"model": [MODEL], "level": [LEVEL]})
    with tempfile.TemporaryDirectory() as folder:
        files = (
            [Path(folder, base.path, "requests.parquet")]
            if sent is None or len(sent.columns)
            else []
        )
        for file in files:
            file.parent.mkdir(parents=True)
            (requests() if sent is None else sent).to_parquet(file)
        table = levels() if table is None else table
        found = predicted_benefits(runs, table, peaks, peaks[:0], files, baselines)
    assert tuple(found.columns) == COLUMNS
    return found.to_dict("records")  # type: ignore[return-value]


def test_a_tier_that_holds_all_prefixes_is_predicted_to_serve_more_and_sooner() -> None:
    [row] = predicted([a_run(BASE), a_run(TIERED)])
    assert [
        row[name]
        for name in ("model", "scenario", "cpu_blocks", "level", "baseline_runs")
    ] == [*TIERED.key, LEVEL, 1]
    assert (
        0
        < row["throughput_percent_low"]
        <= row["throughput_percent"]
        <= row["throughput_percent_high"]
    )
    assert row["throughput_percent"] > 100
    assert row["ttft_ms_mean_low"] <= row["ttft_ms_mean"] < 100
    # Nine tenths of what 72,000 tokens of prefixes can add: somewhat fewer blocks of 16 tokens than all of them.
    assert 3600 < row["enough_blocks"] < 4500
    assert row["enough_gib"] == pytest.approx(row["enough_blocks"] * 16 * 1024 / 2**30)


def test_a_baseline_that_bears_another_name_in_a_comparison_is_one() -> None:
    base = Cell(MODEL, "no-offload-on-v1", 0)
    renamed = replace(a_run(BASE), cell=base)
    assert (
        len(
            predicted(
                [renamed, a_run(TIERED)], levels(scenario=base.scenario), base=base
            )
        )
        == 1
    )


@pytest.mark.parametrize(
    ("runs", "table", "known"),
    [
        pytest.param([TIERED], levels(), True, id="no baseline"),
        pytest.param([BASE], levels(), True, id="no tier"),
        pytest.param(
            [BASE, TIERED], levels(throughput_tok_s=np.nan), True, id="nothing measured"
        ),
        pytest.param([BASE, TIERED], levels(level=8), True, id="another level"),
        pytest.param([BASE, TIERED], levels(), False, id="no table of requests"),
    ],
)
def test_without_what_it_follows_from_nothing_is_predicted(
    runs: list[Cell], table: pd.DataFrame, known: bool
) -> None:
    assert (
        predicted(
            [a_run(cell) for cell in runs],
            table,
            requests() if known else pd.DataFrame(),
        )
        == []
    )


def test_without_any_request_nothing_is_predicted() -> None:
    assert predicted([a_run(BASE), a_run(TIERED)], sent=requests()[:0]) == []


def test_imported_runs_and_runs_of_two_machines_predict_nothing() -> None:
    base, tiered = a_run(BASE), a_run(TIERED)
    assert predicted([replace(base, engine="imported"), tiered]) == []
    assert predicted([base, replace(tiered, hardware={"fingerprint": "another"})]) == []
    foreign = replace(tiered, cell=TIERED, specification={"workload": {}})
    assert predicted([base, foreign]) == []


def test_times_to_the_first_token_are_those_in_the_window() -> None:
    [seen] = measured_levels(levels(), requests())[LEVEL]
    assert (seen.run, seen.window, seen.requests) == (
        1,
        (WARMUP_S, WARMUP_S + WINDOW_S),
        COUNT,
    )
    assert 80 < len(seen.ttft_ms) < COUNT and 80 < len(seen.itl_ms) < COUNT


def test_a_replayed_trace_is_left_out_as_runs_do_not_say_where_its_file_is() -> None:
    campaign, runs = "campaigns/laptop-trace.yaml", []
    for cell in (BASE, TIERED):
        specification = of(cell.scenario, cell.cpu_blocks, campaign).to_json()
        specification["workload"]["levels"] = [LEVEL]
        runs.append(replace(a_run(cell), specification=specification))
    assert predicted(runs) == []


def test_what_was_disturbed_or_too_short_does_not_show_how_fast_the_server_is() -> None:
    assert measured_levels(levels(), requests())
    disturbed = levels(checks_warned="few_tokens;disturbed")
    assert measured_levels(disturbed, requests()) == {}
    assert measured_levels(levels(requests_completed=9), requests()) == {}
    both = pd.concat([disturbed, levels(run=2)])
    sent = pd.concat([requests(), requests().assign(run=2)])
    assert [seen.run for seen in measured_levels(both, sent)[LEVEL]] == [2]
