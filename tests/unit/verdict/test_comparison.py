"""What is compared with what: declared contrasts, replicates, measurements at another time, averages over models."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.synthetic import BASELINES, level_row, levels_table, peaks_table

from kveval.campaign.campaign_file import Comparison
from kveval.campaign.cell import Cell
from kveval.estimators.intervals import holm
from kveval.tables.level_selection import log_table, own_peak
from kveval.verdict import verdict_words as words
from kveval.verdict.averages import averages
from kveval.verdict.comparison import (
    contrast_pairs,
)
from kveval.verdict.findings import read_exclusions
from kveval.verdict.pairing import Pairing, pair_runs, run_spans
from kveval.verdict.verdict_tables import verdict_tables
from kveval.verdict.verdicts import Comparisons, compare_all, judge_all, method_hash

HOUR = 3600.0


def spans(
    first: float, count: int, length: float = 0.2, number: int = 1
) -> dict[int, tuple[float, float]]:
    """Runs one hour apart, from hour `first` on."""
    return {
        number + run: ((first + run) * HOUR, (first + run + length) * HOUR)
        for run in range(count)
    }


def compared(levels: pd.DataFrame, **settings: object) -> Comparisons:
    return compare_all(levels, BASELINES, Comparison(**settings))


def throughput(table: pd.DataFrame) -> pd.DataFrame:
    return table[table["metric"] == "throughput_tok_s"].set_index(
        ["scenario", "cpu_blocks"]
    )


def test_a_run_without_its_times_has_none_that_is_a_number() -> None:
    known = {"run": 1, "run_started": "2026-01-01T00:00:00+00:00"}
    unknown = {"run": "2", "run_started": "", "run_finished": np.nan}
    spans = run_spans([known, unknown])
    assert list(spans) == [1, 2]
    assert spans[1][0] == pd.Timestamp("2026-01-01", tz="UTC").timestamp()
    assert np.isnan([spans[1][1], *spans[2]]).all()


def test_runs_of_the_same_blocks_are_paired_by_number() -> None:
    assert pair_runs(spans(0.3, 3), spans(0, 3)) == Pairing(((1, 1), (2, 2), (3, 3)))
    # One failed run was repeated after all others: it shares its block with nothing.
    late = {**spans(0.3, 3), 2: (9 * HOUR, 9.2 * HOUR)}
    every = Pairing(((1, 1), (2, 2), (3, 3)), together=False)
    assert pair_runs(late, spans(0, 3)) == every, "two blocks are too few"
    late = {**spans(0.3, 5), 2: (9 * HOUR, 9.2 * HOUR)}
    assert pair_runs(late, spans(0, 5)) == Pairing(
        ((1, 1), (3, 3), (4, 4), (5, 5)), separate_pairs=((2, 2),)
    )


def test_a_follow_up_is_measured_at_another_time() -> None:
    assert pair_runs(spans(100, 3), spans(0, 3)) == Pairing(
        ((1, 1), (2, 2), (3, 3)), together=False
    )


def test_a_baseline_measured_again_bridges_the_time() -> None:
    baseline = spans(0, 3) | spans(100.3, 3, number=4)
    assert pair_runs(spans(100, 3), baseline) == Pairing(((1, 4), (2, 5), (3, 6)))
    assert pair_runs(spans(0.3, 3), baseline) == Pairing(((1, 1), (2, 2), (3, 3)))
    again = spans(0, 1) | spans(100.3, 1, number=2)
    assert pair_runs(spans(100, 1), again, [50 * HOUR]) == Pairing(((1, 2),))


def test_runs_with_a_pause_of_the_campaign_between_them_are_no_block() -> None:
    arm, baseline = spans(0, 3), spans(0.3, 3)
    assert pair_runs(arm, baseline, [9 * HOUR]).together
    assert not pair_runs(arm, baseline, [0.25 * HOUR, 1.25 * HOUR]).together


def test_unknown_times_count_as_together() -> None:
    unknown = dict.fromkeys((1, 2, 3), (np.nan, np.nan))
    assert pair_runs(unknown, spans(0, 3), [0.1]).together


@given(st.integers(2, 6), st.floats(0, 500), st.permutations(range(1, 7)))
def test_blocks_are_paired_whatever_the_order_within_them(
    count: int, first: float, order: list[int]
) -> None:
    places = {cell: place for place, cell in enumerate(order)}
    cells = {
        cell: spans(first + 0.1 * place, count, length=0.09)
        for cell, place in places.items()
    }
    assert all(pair_runs(cells[cell], cells[1]).together for cell in cells)


def later(levels: pd.DataFrame, scenario: str, hours: int) -> pd.DataFrame:
    """The same table with one scenario measured so many hours later."""
    moved = levels.copy()
    of_arm = moved["scenario"] == scenario
    for name in ("run_started", "run_finished"):
        times = pd.to_datetime(moved.loc[of_arm, name], utc=True) + pd.Timedelta(
            hours=hours
        )
        moved.loc[of_arm, name] = [time.isoformat() for time in times]
    return moved


def test_another_time_makes_a_verdict_indicative() -> None:
    levels = levels_table(
        effects={"no-offload": 0.0, "native-offload": 0.3, "lmcache-redis": 0.3}
    )
    table = throughput(compared(later(levels, "native-offload", 1000)).baseline)
    row = table.loc[("native-offload", 10_000)]
    assert (row["verdict"], row["indication"]) == (words.INDICATIVE_TIME, words.BETTER)
    assert table.loc[("lmcache-redis", 10_000), "verdict"] == "better"
    # The spread of the blocks is in it, which cancels between cells of the same blocks.
    width = table["high_percent"] - table["low_percent"]
    assert (
        width.loc[("native-offload", 10_000)]
        > 1.3 * width.loc[("lmcache-redis", 10_000)]
    )


def test_a_bridge_gives_a_follow_up_its_verdict() -> None:
    levels = levels_table(effects={"no-offload": 0.0, "native-offload": 0.3})
    again = levels[levels["scenario"] == "no-offload"].assign(
        run=lambda table: table["run"] + 5
    )
    bridged = pd.concat(
        [later(levels, "native-offload", 1000), later(again, "no-offload", 1000)]
    )
    row = throughput(compared(bridged).baseline).loc[("native-offload", 10_000)]
    assert (row["verdict"], row["runs"]) == ("better", 5)


def with_sizes(levels: pd.DataFrame) -> pd.DataFrame:
    """The same table with a second size of native-offload, 5 % better than the first."""
    larger = levels[levels["scenario"] == "native-offload"].assign(
        cpu_blocks=20_000, configuration="larger"
    )
    larger["throughput_tok_s"] *= 1.05
    return pd.concat([levels, larger], ignore_index=True)


def test_declared_contrasts_are_compared_and_join_the_family() -> None:
    levels = with_sizes(levels_table(sd=0.004))
    found = compared(
        levels,
        contrasts=[
            ["native-offload/20000", "native-offload/10000"],
            ["lmcache-redis", "native-offload"],
        ],
    )
    table = throughput(found.contrasts)
    assert list(table["baseline"]) == [
        "Qwen3-0.6B/native-offload/10000",
        "Qwen3-0.6B/native-offload/10000",
    ]
    assert table.loc[("native-offload", 20_000), "effect_percent"] == pytest.approx(
        5.0, abs=1e-6
    )
    assert table.loc[("lmcache-redis", 10_000), "verdict"] == "worse"
    both = pd.concat([throughput(found.baseline), table]).dropna(subset=["p_holm"])
    # What an idle arm costs is a family of its own.
    both = both[both["family"] == "primary"]
    assert list(both["p_holm"]) == pytest.approx(holm(list(both["p_value"])))
    alone = throughput(compared(levels).baseline)
    assert len(both) == (alone["family"] == "primary").sum() + 2
    assert set(throughput(found.baseline)["baseline"]) == {"Qwen3-0.6B/no-offload/0"}


@pytest.mark.parametrize(
    ("one", "other", "pairs"),
    [
        ("a/10", "b/10", [("a/10", "b/10")]),
        ("a", "b", [("a/10", "b/10"), ("a/20", "b/20")]),
        ("a/20", "a/10", [("a/20", "a/10")]),
        ("a", "c", [("a/10", "c/0"), ("a/20", "c/0")]),
        ("a", "gone", []),
    ],
)
def test_a_contrast_names_cells_with_or_without_size(
    one: str, other: str, pairs: list[tuple[str, str]]
) -> None:
    cells = [
        Cell("m", "a", 10),
        Cell("m", "a", 20),
        Cell("m", "b", 10),
        Cell("m", "b", 20),
        Cell("m", "c", 0),
    ]
    found = contrast_pairs(cells, one, other)
    assert [(arm.arm, reference.arm) for arm, reference in found] == pairs


def published() -> pd.DataFrame:
    """The 14B rows of a published evaluation, one run each: three cells ran the same, two others as well."""
    rows = []
    for scenario, rate, configuration in [
        ("no-offload", 58.7, "plain"),
        ("llm-d-redis", 60.6, "plain"),
        ("llm-d-valkey", 64.5, "plain"),
        ("lmcache-valkey", 66.3, "valkey"),
        ("lmcache-valkey-20k", 74.6, "valkey"),
        ("lmcache-local", 58.7 * 1.118, "local"),
    ]:
        row = level_row("Qwen3-14B", scenario, 1, 50, rate) | {
            "configuration": configuration,
            "exercised": None,
        }
        rows.append(row | {"output_tokens": 7000.0})
    return pd.DataFrame(rows)


def test_the_spread_of_replicates_judges_no_single_run() -> None:
    levels = published()
    baselines = {
        name: None if name == "no-offload" else "no-offload"
        for name in levels["scenario"]
    }
    table = throughput(compare_all(levels, baselines).baseline)
    row = table.loc[("lmcache-local", 10_000)]
    assert (row["verdict"], row["effect_percent"]) == (
        words.SINGLE_RUN,
        pytest.approx(11.8, abs=0.01),
    )
    assert np.isnan(row["low_percent"])
    copy = table.loc[("llm-d-valkey", 10_000)]
    assert (copy["verdict"], bool(copy["replicate"])) == ("not assessed", True)
    assert "a replicate" in copy["reason"]


def test_a_single_run_is_not_assessed() -> None:
    levels = levels_table(runs=1)
    assert set(throughput(compared(levels).baseline)["verdict"]) == {
        words.SINGLE_RUN,
        words.NOT_EXERCISED,
    }


def test_replicates_are_never_a_treatment() -> None:
    levels = levels_table(effects={"no-offload": 0.0, "native-offload": 0.3})
    levels["configuration"] = "the same"
    row = throughput(compared(levels).baseline).loc[("native-offload", 10_000)]
    assert (row["verdict"], row["effect_percent"] > 20) == ("not assessed", True)


def flat(seed: int, runs: int = 5, sd: float = 0.03) -> pd.DataFrame:
    """A baseline and an arm without any difference, eight levels of equal throughput."""
    generator = np.random.default_rng(seed)
    rows = [
        level_row("m", scenario, run, level, 500 * np.exp(generator.normal(0, sd)))
        for scenario in ("no-offload", "native-offload")
        for run in range(1, runs + 1)
        for level in range(1, 9)
    ]
    return pd.DataFrame(rows)


def test_the_common_level_does_not_flatter_the_baseline() -> None:
    """The baseline's best of eight equal levels is above the arm's value there by a whole standard error."""
    chosen, naive = [], []
    for seed in range(100):
        levels = flat(seed)
        (verdict,) = judge_all(
            levels, BASELINES, metrics={"throughput_tok_s": True}, peaks=False
        ).baseline
        chosen.append(verdict.estimate.effect_ln)
        logs = {
            name: log_table(rows, "throughput_tok_s")
            for name, rows in levels.groupby("scenario")
        }
        best = logs["no-offload"].mean().idxmax()
        naive.append(
            logs["native-offload"][best].mean() - logs["no-offload"][best].mean()
        )
    assert np.mean(naive) < -0.012
    assert abs(np.mean(chosen)) < 0.006


def test_a_clear_peak_of_the_baseline_is_the_common_level() -> None:
    levels = levels_table(effects={"no-offload": 0.0, "native-offload": 0.1}, sd=0.004)
    # The arm alone is much better at another level.
    levels.loc[
        (levels["scenario"] == "native-offload") & (levels["level"] == 8),
        "throughput_tok_s",
    ] *= 3
    assert set(compared(levels).baseline["level"]) == {32}
    assert set(compared(levels, level=8).baseline["levels_compared"]) == {"8"}


def test_runs_are_looked_at_where_the_other_half_is_best() -> None:
    table = flat(3)
    chosen = own_peak(table[table["scenario"] == "no-offload"], "throughput_tok_s")
    assert set(chosen.by_run) == {1, 2, 3, 4, 5}
    assert chosen.by_run[1] == chosen.by_run[3] == chosen.by_run[5]
    assert chosen.by_run[2] == chosen.by_run[4]


def test_of_equal_levels_one_that_passed_is_the_common_one() -> None:
    levels = flat(3)
    common = compared(levels).baseline["level"].iloc[0]
    levels.loc[
        (levels["scenario"] == "no-offload") & (levels["level"] == common),
        "checks_failed",
    ] = "steadiness"
    other = compared(levels).baseline
    assert other["level"].iloc[0] != common
    # A worse level is not taken for the peak because the peak failed.
    clear = levels_table(effects={"no-offload": 0.0, "native-offload": 0.3})
    clear.loc[
        (clear["scenario"] == "no-offload") & (clear["level"] == 32), "checks_failed"
    ] = "steadiness"
    table = throughput(compared(clear).baseline)
    assert (table["level"].tolist(), table["verdict"].tolist()) == (
        [32],
        ["not assessed"],
    )


def test_a_rate_of_no_one_state_refuses_the_throughput_and_not_the_latencies() -> None:
    levels = levels_table(effects={"no-offload": 0.0, "native-offload": 0.3})
    levels.loc[levels["level"] == 32, "checks_failed"] = "steadiness"
    table = compared(levels, level=32).baseline.set_index("metric")["verdict"]
    assert table["throughput_tok_s"] == words.NOT_ASSESSED
    assert table["ttft_ms_p50"] != words.NOT_ASSESSED


def test_other_hardware_allows_no_verdict() -> None:
    levels = levels_table(effects={"no-offload": 0.0, "native-offload": 0.3})
    levels.loc[levels["scenario"] == "native-offload", "hardware"] = "beef"
    row = throughput(compared(levels).baseline).iloc[0]
    assert (row["verdict"], row["grounds"]) == (words.NOT_ASSESSED, "other_machine")


def test_peaks_are_compared_apart() -> None:
    levels = levels_table(effects={"no-offload": 0.0, "native-offload": 0.1}, sd=0.004)
    # The arm peaks elsewhere.
    high = (levels["scenario"] == "native-offload") & (levels["level"] == 8)
    levels.loc[high, "throughput_tok_s"] *= 2
    found = compared(levels)
    peak, common = throughput(found.peaks).iloc[0], throughput(found.baseline).iloc[0]
    assert (peak["level"], peak["levels_compared"], common["level"]) == (8, "8;32", 32)
    assert peak["effect_percent"] > 40 > common["effect_percent"]
    assert (peak["verdict"], peak["grounds"]) == (words.NOT_JUDGED, "peaks_not_judged")
    assert np.isnan(peak[["p_value", "p_holm", "p_parity_holm"]].astype(float)).all()
    assert peak["low_percent"] < peak["effect_percent"] < peak["high_percent"]
    assert set(found.peaks["metric"]) == {"throughput_tok_s"}


def test_the_method_has_a_number_that_changes_with_it() -> None:
    table = compared(levels_table()).baseline
    assert set(table["method_hash"]) == {method_hash(Comparison())}
    others = [
        Comparison(margin=0.03),
        Comparison(alpha=0.01),
        Comparison(level=8),
        Comparison(contrasts=[["a", "b"]]),
    ]
    assert len({method_hash(settings) for settings in [Comparison(), *others]}) == 5


def test_averages_are_over_models_that_have_every_arm() -> None:
    effects = {"no-offload": 0.0, "native-offload": 0.1, "lmcache-redis": -0.1}
    levels = levels_table(["a", "b", "c"], effects, sd=0.001)
    lacking = levels[
        ~((levels["model"] == "c") & (levels["scenario"] == "lmcache-redis"))
    ]
    table = (
        averages(compared(lacking).baseline)
        .query("metric == 'throughput_tok_s'")
        .set_index("scenario")
    )
    assert set(table["panel"]) == {"a;b"}
    assert table["models"].tolist() == [2, 2]
    assert set(table["missing"]) == {"c/lmcache-redis/10000"}
    assert table.loc["native-offload", "effect_percent"] == pytest.approx(
        100 * np.expm1(0.1), abs=0.2
    )
    unmeasured = lacking.copy()
    gone = (unmeasured["model"] == "b") & (unmeasured["scenario"] == "native-offload")
    unmeasured.loc[gone, "throughput_tok_s"] = np.nan
    table = (
        averages(compared(unmeasured).baseline)
        .query("metric == 'throughput_tok_s'")
        .set_index("scenario")
    )
    assert set(table["panel"]) == {"a"}
    assert "b/native-offload/10000" in table.loc["native-offload", "missing"]


def test_the_geometric_mean_treats_ratios_alike() -> None:
    rows = [
        {
            "model": model,
            "scenario": "arm",
            "cpu_blocks": 1,
            "metric": "x",
            "effect_percent": effect,
            "verdict": "better",
        }
        for model, effect in (("a", 100.0), ("b", -50.0))
    ]
    table = averages(pd.DataFrame(rows).assign(replicate=False))
    assert table["effect_percent"].tolist() == pytest.approx([0.0])
    with pytest.raises(ValueError, match="compared twice"):
        averages(pd.DataFrame([*rows, rows[0]]).assign(replicate=False))


def test_the_tables_of_verdicts_are_whole() -> None:
    levels = levels_table(["a", "b"])
    tables = verdict_tables(levels, peaks_table(levels), BASELINES, Comparison())
    assert list(tables) == [
        "comparison",
        "contrasts",
        "peak_comparison",
        "averages",
        "checks",
    ]
    assert set(tables["checks"]["check"]) == {"peak_bracketed"}
    assert tables["comparison"]["p_holm"].notna().any()


def test_the_throughput_of_an_open_loop_is_what_was_sent_and_gets_no_verdict() -> None:
    found = compared(levels_table().assign(rate_req_s=10.0)).baseline
    sent = found[found["metric"] == "throughput_tok_s"]
    assert set(sent["verdict"]) <= {"not assessed", "not exercised"}
    codes = {
        found.code for row in sent.to_dict("records") for found in read_exclusions(row)
    }
    assert "open_loop" in codes
    assert set(found[found["metric"] == "ttft_ms_p50"]["verdict"]) >= {
        "better",
        "worse",
    }
