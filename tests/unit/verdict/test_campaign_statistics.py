import re

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tests.support.synthetic import comparison_table, levels_table

from kveval.estimators.intervals import (
    contrasts,
    holm,
    welch,
)
from kveval.estimators.power import runs_to_resolve
from kveval.estimators.spreads import bartlett
from kveval.verdict import verdict_words as words
from kveval.verdict.failed_checks import failures_text

tables = st.tuples(st.integers(3, 6), st.integers(2, 5)).flatmap(
    lambda shape: arrays(float, shape, elements=st.floats(-3, 3, allow_nan=False))
)


def verdicts(table: pd.DataFrame, metric: str = "throughput_tok_s") -> dict[str, str]:
    rows = table[table["metric"] == metric]
    return dict(zip(rows["scenario"], rows["verdict"], strict=True))


@given(tables)
def test_swapping_arm_and_baseline_turns_the_sign(logs: np.ndarray) -> None:
    there, back = contrasts(logs[:, :2])[0], contrasts(logs[:, 1::-1])[0]
    assert there.theta == pytest.approx(-back.theta, abs=1e-9)
    assert there.se == pytest.approx(back.se, abs=1e-9)
    assert there.df == back.df


@given(tables, st.floats(-3, 3), st.data())
def test_neither_scale_nor_blocks_change_a_contrast(
    logs: np.ndarray, shift: float, data: st.DataObject
) -> None:
    blocks = data.draw(
        arrays(float, (logs.shape[0], 1), elements=st.floats(-3, 3, allow_nan=False))
    )
    for before, after in zip(contrasts(logs), contrasts(logs + shift), strict=True):
        assert after.theta == pytest.approx(before.theta, abs=1e-6)
        assert after.se == pytest.approx(before.se, abs=1e-6)
    for before, after in zip(contrasts(logs), contrasts(logs + blocks), strict=True):
        assert after.theta == pytest.approx(before.theta, abs=1e-6)


def test_two_cells_are_the_paired_t_test() -> None:
    logs = np.random.default_rng(1).normal(size=(5, 2))
    contrast = contrasts(logs)[0]
    expected = scipy.stats.ttest_rel(logs[:, 1], logs[:, 0])
    assert contrast.p_difference() == pytest.approx(expected.pvalue)
    assert contrast.interval(0.95) == pytest.approx(
        tuple(expected.confidence_interval())
    )


def test_the_intervals_cover_what_they_say() -> None:
    generator = np.random.default_rng(20260101)
    covered, total = 0, 0
    for _ in range(600):
        truth = np.array([0.0, 0.05, -0.1])
        logs = (
            truth + generator.normal(0, 0.1, (4, 1)) + generator.normal(0, 0.03, (4, 3))
        )
        for contrast, effect in zip(contrasts(logs), truth[1:], strict=True):
            low, high = contrast.interval(0.95)
            covered += low <= effect <= high
            total += 1
    assert 0.93 <= covered / total <= 0.97


@pytest.mark.parametrize("seed", range(10))
def test_bartletts_and_welchs_formulas_give_what_scipys_do(seed: int) -> None:
    generator = np.random.default_rng(seed)
    runs, cells = generator.integers(3, 12), generator.integers(3, 9)
    logs = generator.normal(5, 0.02, (runs, cells)) * generator.uniform(1, 3, cells)
    assert bartlett(logs.var(axis=0, ddof=1), runs - 1) == pytest.approx(
        scipy.stats.bartlett(*logs.T).pvalue, rel=1e-9
    )
    found, known = (
        welch(logs[:, 0], logs[1:, 1]),
        scipy.stats.ttest_ind(logs[:, 0], logs[1:, 1], equal_var=False),
    )
    assert (found.df, found.theta / found.se) == pytest.approx(
        (known.df, known.statistic), rel=1e-9
    )


def test_unequal_spread_uses_each_pairs_own_differences() -> None:
    generator = np.random.default_rng(3)
    logs = generator.normal(0, [0.001, 0.001, 0.5], (6, 3))
    assert [contrast.df for contrast in contrasts(logs)] == [5, 5]
    assert contrasts(logs)[0].se < 0.01 < contrasts(logs)[1].se
    for cells in (3, 8):
        degrees = [
            contrasts(generator.normal(0, 0.02, (6, cells)))[0].df for _ in range(200)
        ]
        assert degrees.count(5) < 60


@pytest.mark.parametrize("shape", [(1, 3), (3, 1)])
def test_too_little_to_compare_is_an_error(shape: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="cannot be compared"):
        contrasts(np.zeros(shape))


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_never_lowers_and_keeps_the_order(p_values: list[float]) -> None:
    adjusted = holm(p_values)
    assert all(
        after >= before for before, after in zip(p_values, adjusted, strict=True)
    )
    assert all(0 <= value <= 1 for value in adjusted)
    for one in range(len(p_values)):
        for other in range(len(p_values)):
            assert not (
                p_values[one] < p_values[other] and adjusted[one] > adjusted[other]
            )


def test_holm_on_a_known_example() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


@pytest.mark.parametrize(("sd", "runs"), [(0.02, 5), (0.03, 8), (0.062, 27)])
def test_runs_needed_for_five_per_cent(sd: float, runs: int) -> None:
    assert runs_to_resolve(sd, 0.05) == runs


def test_verdicts_are_the_ones_that_were_put_in() -> None:
    table = comparison_table(levels_table(sd=0.008))
    assert verdicts(table) == {
        "native-offload": "better",
        "lmcache-redis": "worse",
        "idle": words.IDLE,
    }
    # Fewer milliseconds are better.
    assert verdicts(table, "e2e_ms_p50")["native-offload"] == "better"
    row = table[
        (table["metric"] == "throughput_tok_s")
        & (table["scenario"] == "native-offload")
    ].iloc[0]
    assert row["low_percent"] < 100 * np.expm1(0.12) < row["high_percent"]
    assert (row["baseline"], row["level"], row["runs"]) == (
        "Qwen3-0.6B/no-offload/0",
        32,
        5,
    )


def test_parity_only_where_it_is_shown() -> None:
    equal = dict.fromkeys(("no-offload", "native-offload", "lmcache-redis"), 0.0)
    assert set(
        verdicts(comparison_table(levels_table(effects=equal, sd=0.005))).values()
    ) == {"parity"}
    noisy = comparison_table(levels_table(effects=equal, sd=0.06))
    assert set(verdicts(noisy).values()) == {"inconclusive"}
    needed = noisy["runs_to_decide"]
    assert (needed.isna() | (needed > noisy["runs"])).all()
    told = noisy[needed.notna()]
    assert all(
        str(int(row["runs_to_decide"])) in row["reason"]
        for row in told.to_dict("records")
    )


@pytest.mark.parametrize(
    ("runs", "verdict", "numbers"),
    [
        (1, words.SINGLE_RUN, []),
        (2, words.NOT_ASSESSED, ["2", "2", "3"]),
    ],
)
def test_too_few_runs_are_described_and_not_judged(
    runs: int, verdict: str, numbers: list[str]
) -> None:
    table = comparison_table(
        levels_table(runs=runs, effects={"no-offload": 0.0, "native-offload": 0.3})
    )
    assert set(table["verdict"]) == {verdict}
    assert [re.findall(r"\d+", reason) for reason in table["reason"]] == [
        numbers
    ] * len(table)
    assert table["effect_percent"].notna().all()
    assert table["p_holm"].isna().all()


def test_a_level_that_failed_enters_no_verdict() -> None:
    reason = failures_text(["steadiness", "turns"])
    levels = levels_table(effects={"no-offload": 0.0, "native-offload": 0.3})
    at = (
        (levels["scenario"] == "native-offload")
        & (levels["level"] == 32)
        & (levels["run"] == 2)
    )
    levels.loc[at, "checks_failed"] = "steadiness;turns"
    row = comparison_table(levels).iloc[0]
    assert (row["verdict"], row["runs"], row["reason"]) == (
        "better",
        4,
        f"without run 2: {reason}",
    )
    few = comparison_table(levels[levels["run"] <= 3]).iloc[0]
    assert few["verdict"] == "not assessed"
    assert re.findall(r"\d+", few["reason"])[:2] == ["2", "3"]
    assert few["reason"].endswith(f": run 2: {reason}")
    assert few["effect_percent"] > 20


def test_a_quantile_of_too_few_latencies_to_be_one_enters_no_verdict() -> None:
    levels = levels_table(effects={"no-offload": 0.0, "native-offload": 0.3})
    levels["ttft_count"] = 19
    table = comparison_table(levels)
    assert verdicts(table, "ttft_ms_p90")["native-offload"] == "not assessed"
    assert verdicts(table, "ttft_ms_p50")["native-offload"] == "better"


def test_few_tokens_refuse_nothing() -> None:
    levels = levels_table(effects={"no-offload": 0.0, "native-offload": 0.3}).assign(
        output_tokens=800.0
    )
    assert verdicts(comparison_table(levels))["native-offload"] == "better"


def test_runs_that_only_one_cell_has_are_left_out() -> None:
    levels = levels_table(
        effects={"no-offload": 0.0, "native-offload": 0.1, "lmcache-redis": 0.1}
    )
    levels = levels[~((levels["scenario"] == "native-offload") & (levels["run"] > 3))]
    table = comparison_table(levels)
    runs = table[table["metric"] == "throughput_tok_s"].set_index("scenario")["runs"]
    assert runs.to_dict() == {"native-offload": 3, "lmcache-redis": 5}


def test_without_its_baseline_nothing_is_judged() -> None:
    levels = levels_table(effects={"native-offload": 0.1})
    table = comparison_table(levels)
    assert set(table["verdict"]) == {"not assessed"}
    assert set(table["baseline"]) == {""}


def test_a_campaign_of_baselines_has_an_empty_comparison() -> None:
    table = comparison_table(levels_table(effects={"no-offload": 0.0}))
    assert table.empty
    assert "verdict" in table


def test_the_level_can_be_declared() -> None:
    table = comparison_table(levels_table(), level=8)
    assert set(table["level"]) == {8}


@settings(max_examples=5, deadline=None)
@given(st.floats(0.5, 2.0))
def test_the_unit_of_a_metric_does_not_matter(factor: float) -> None:
    levels = levels_table(
        effects={"no-offload": 0.0, "native-offload": 0.05}, levels=(8, 32)
    )
    scaled = levels.assign(throughput_tok_s=levels["throughput_tok_s"] * factor)
    one, other = (
        comparison_table(t)["effect_percent"].iloc[0] for t in (levels, scaled)
    )
    assert other == pytest.approx(one)
