"""Tables for spreadsheets."""

import numpy as np
import pandas as pd
import pytest
from tests.support import synthetic_campaign as campaign

from kveval.report.data.campaign import Measured
from kveval.tables.cells import THROUGHPUT
from kveval.tables.summaries import detailed_table, summary_table, system_summary
from kveval.verdict.averages import ARM


@pytest.fixture(scope="module")
def measured() -> Measured:
    return campaign.whole()


def means(measured: Measured, levels: pd.DataFrame | None = None) -> pd.DataFrame:
    complete = measured.levels if levels is None else levels
    return system_summary(
        complete,
        measured.comparison,
        measured.peaks,
        campaign.BASELINES,
        campaign.PARAMETERS,
    )


def test_a_row_per_cell_with_its_peak_and_its_differences(measured: Measured) -> None:
    table = summary_table(measured.peaks, measured.comparison, campaign.PARAMETERS)
    assert len(table) == 34
    assert list(dict.fromkeys(table["model"])) == [
        "Qwen3-0.6B",
        "Qwen3-8B",
        "Qwen3-14B",
        "Qwen3-32B-AWQ",
    ]
    row = table[
        (table["model"] == "Qwen3-14B")
        & (table["config"] == "lmcache-local")
        & (table["cpu_blocks"] == 20_000)
    ]
    peak = measured.peaks[
        (measured.peaks["model"] == "Qwen3-14B")
        & (measured.peaks["scenario"] == "lmcache-local")
        & (measured.peaks["cpu_blocks"] == 20_000)
    ]
    assert row["max_output_tps"].item() == peak[THROUGHPUT].item()
    assert row["baseline"].item() == "Qwen3-14B/no-offload/0"
    compared = measured.comparison[
        measured.comparison["metric"] == THROUGHPUT
    ].set_index(["model", *ARM])
    at = compared.loc[("Qwen3-14B", "lmcache-local", 20_000)]
    assert row["throughput_verdict"].item() == at["verdict"]
    assert row["throughput_pct"].item() == pytest.approx(at["effect_percent"])
    assert row["throughput_pct"].item() > 0 > row["ttft_p50_pct"].item()
    baseline = table[table["config"] == "no-offload"]
    assert baseline["throughput_pct"].isna().all()
    assert (baseline["baseline"] == "").all()


def test_a_row_per_level_and_run(measured: Measured) -> None:
    table = detailed_table(measured.levels, campaign.PARAMETERS)
    assert len(table) == 34 * 4 * 3
    assert {
        "config",
        "concurrency",
        "output_tps",
        "avg_ttft_ms",
        "p90_tpot_ms",
        "incomplete",
    } <= set(table)
    assert table["output_tps"].sum() == pytest.approx(measured.levels[THROUGHPUT].sum())


def test_means_over_models_are_over_the_same_models_in_every_row_of_a_panel(
    measured: Measured,
) -> None:
    table = means(measured)
    everywhere = table[table["models"].str.count(";") == 3]
    assert set(everywhere["scenario"]) == set(campaign.ARMS)
    assert (everywhere["models_missing"] == "").all()
    larger = table[table["models"] == "Qwen3-14B;Qwen3-32B-AWQ"]
    assert len(larger) == 10
    assert (larger["models_missing"] == "Qwen3-0.6B;Qwen3-8B").all()
    assert (
        table[table["scenario"] == "no-offload"]["geomean_ratio_to_baseline"] == 1
    ).all()


def test_a_missing_cell_cannot_move_the_means_of_the_others(measured: Measured) -> None:
    """A baseline averaged over other models than its arms is how a report came by a loss of 29 %."""
    gone = (measured.levels["model"] == "Qwen3-32B-AWQ") & (
        measured.levels["scenario"] == "no-offload"
    )
    table = means(measured, measured.levels[~gone])
    together = table[table["models"] == "Qwen3-0.6B;Qwen3-8B;Qwen3-14B"].set_index(
        ["scenario", "cpu_blocks"]
    )
    of_three = means(
        measured, measured.levels[measured.levels["model"] != "Qwen3-32B-AWQ"]
    )
    alone = of_three[of_three["models"] == "Qwen3-0.6B;Qwen3-8B;Qwen3-14B"].set_index(
        ["scenario", "cpu_blocks"]
    )
    pd.testing.assert_series_equal(together["geomean_tps"], alone["geomean_tps"])
    four = table[table["models"].str.count(";") == 3]
    assert "no-offload" not in set(four["scenario"])
    assert four["geomean_ratio_to_baseline"].isna().all()


def test_a_mean_of_ratios_is_not_that_of_the_smallest_model(measured: Measured) -> None:
    levels = measured.levels.copy()
    arm = levels["scenario"] == "llm-d-redis"
    levels.loc[arm & (levels["model"] == "Qwen3-0.6B"), THROUGHPUT] *= 4
    before, after = (
        table[
            (table["scenario"] == "llm-d-redis") & (table["models"].str.count(";") == 3)
        ]["geomean_ratio_to_baseline"]
        for table in (means(measured), means(measured, levels))
    )
    assert after.item() / before.item() == pytest.approx(np.sqrt(2))


def test_what_was_not_recorded_for_a_model_gives_no_mean(measured: Measured) -> None:
    levels = measured.levels.copy()
    levels.loc[levels["model"] == "Qwen3-8B", "gpu_utilisation_percent"] = np.nan
    table = means(measured, levels)
    four = table[table["models"].str.count(";") == 3]
    assert four["avg_gpu_util_pct"].isna().all()
    assert four["avg_running"].notna().all()
