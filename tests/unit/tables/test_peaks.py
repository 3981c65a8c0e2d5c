from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.synthetic import METRICS, level_row, levels_table, peaks_table

from kveval.estimators.intervals import mean_interval
from kveval.tables.csv_files import TablesError, collect_tables, read_table
from kveval.tables.level_selection import cross_fit, plateau
from kveval.tables.peaks import PeaksError, peak_row


def cell(rates: dict[int, list[float]]) -> pd.DataFrame:
    """One cell: level -> throughput of each run."""
    rows = [
        level_row("m", "native-offload", run, level, rate)
        for level, runs in rates.items()
        for run, rate in enumerate(runs, 1)
    ]
    table = pd.DataFrame(rows)
    table["exercised"] = table["exercised"].astype("boolean")
    return table


def test_the_peak_is_the_level_with_the_highest_mean() -> None:
    row = peak_row(cell({1: [100, 110], 8: [200, 205], 32: [190, 195]}), list(METRICS))
    assert (row["level"], row["bracketed"], row["runs"]) == (8, True, 2)
    assert row["throughput_tok_s"] == pytest.approx(202.5)
    assert row["throughput_low_tok_s"] < 202.5 < row["throughput_high_tok_s"]
    assert row["kv_cache_usage_percent"] == pytest.approx(45.2)
    assert np.isnan(row["server_rss_gib"])
    assert row["exercised"] is True


@pytest.mark.parametrize("rates", [{1: [300.0], 8: [200.0]}, {1: [100.0], 8: [200.0]}])
def test_a_peak_at_the_edge_is_not_bracketed(rates: dict[int, list[float]]) -> None:
    row = peak_row(cell(rates))
    assert row["bracketed"] is False
    assert np.isnan(row["throughput_low_tok_s"])


def test_a_level_that_a_run_lacks_is_not_chosen() -> None:
    table = cell({1: [100, 110], 8: [200, 205], 32: [900, 900]})
    table.loc[(table["level"] == 32) & (table["run"] == 2), "throughput_tok_s"] = np.nan
    assert peak_row(table)["level"] == 8


def test_a_cell_without_a_throughput_says_so() -> None:
    table = cell({1: [100.0]})
    table["throughput_tok_s"] = np.nan
    with pytest.raises(PeaksError, match="m/native-offload/10000"):
        peak_row(table)


def test_failed_checks_of_the_peak_are_united() -> None:
    table = cell({1: [100, 110], 8: [200, 205]})
    table.loc[table["level"] == 8, "checks_failed"] = [
        "steadiness",
        "errors;steadiness",
    ]
    table.loc[table["level"] == 1, "checks_failed"] = "turns"
    assert peak_row(table)["checks_failed"] == "errors;steadiness"


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=8), st.floats(0.1, 100))
def test_an_interval_scales_with_its_values(logs: list[float], factor: float) -> None:
    low, high = mean_interval(np.array(logs))
    scaled = mean_interval(np.array(logs) + np.log(factor))
    assert low <= np.exp(np.mean(logs)) * (1 + 1e-9)
    assert scaled == pytest.approx((low * factor, high * factor), rel=1e-6)


def test_cross_fitting_takes_the_bias_of_the_choice_away() -> None:
    generator = np.random.default_rng(11)
    chosen, crossed = [], []
    for _ in range(400):
        logs = pd.DataFrame(generator.normal(0, 0.06, (4, 8)), columns=range(1, 9))
        chosen.append(logs.mean().max())
        crossed.append(np.log(cross_fit(logs)))
    assert np.mean(chosen) > 0.03
    assert abs(np.mean(crossed)) < 0.006
    assert np.isnan(cross_fit(logs.iloc[:1]))


def test_a_plateau_holds_the_levels_that_are_as_good() -> None:
    generator = np.random.default_rng(5)
    logs = pd.DataFrame(
        np.array([0.0, 0.5, 0.5, 0.3]) + generator.normal(0, 0.01, (5, 4)),
        columns=[1, 8, 16, 32],
    )
    assert plateau(logs) == [8, 16]
    assert plateau(logs + generator.normal(0, 1, (5, 1))) == [8, 16]
    assert plateau(logs.iloc[:1]) == [int(logs.iloc[0].idxmax())]


def test_tables_over_cells(tmp_path: Path) -> None:
    table = levels_table(runs=2)
    levels, peaks = [], []
    for number, (_, rows) in enumerate(
        table.groupby(["model", "scenario"], sort=False)
    ):
        levels.append(tmp_path / f"levels-{number}.csv")
        peaks.append(tmp_path / f"peak-{number}.csv")
        rows.to_csv(levels[-1], index=False)
        peaks_table(rows).to_csv(peaks[-1], index=False)
    tables = collect_tables(levels, peaks, METRICS)
    pd.testing.assert_frame_equal(tables["complete_metrics"], table, check_dtype=False)
    assert list(tables["peak_throughput_all"]["scenario"]) == [
        "no-offload",
        "native-offload",
        "lmcache-redis",
        "idle",
    ]
    assert set(METRICS) <= set(tables["pcp_metrics_peak"])
    with pytest.raises(TablesError, match="twice"):
        collect_tables([levels[0]] * 2, [peaks[0]] * 2, METRICS)


def test_text_brings_the_types_back(tmp_path: Path) -> None:
    path = tmp_path / "levels.csv"
    levels_table(runs=1).to_csv(path, index=False)
    table = read_table(path)
    assert table["exercised"].dtype == "boolean"
    assert list(table["exercised"].unique()) == [pd.NA, True, False]
    assert set(table["checks_failed"]) == {""}
    assert str(table["window_start"].dtype).endswith("UTC]")
