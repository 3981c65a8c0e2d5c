"""Campaigns built to mislead get no claim, and those like them that do not mislead keep theirs.

One test a row of what was tried, self-contained; each with its counterpart that must not be refused.
"""

import numpy as np
import pandas as pd
import pytest
from tests.support.synthetic import level_row

from kveval.campaign.campaign_file import Comparison
from kveval.estimators.spreads import Array
from kveval.verdict import verdict_words as words
from kveval.verdict.verdicts import METRICS, compare_all

SETTINGS = Comparison()
HOUR = 3600.0


def campaign(
    logs: Array, starts: Array, model: str = "m", copies: int = 0, hours: float = 0.15
) -> pd.DataFrame:
    """A campaign of one level: ln throughput and hours of start, runs x cells, the first the baseline.

    The last `copies` arms ran the same as each other. NaN is a run that a cell does not have.
    """
    rows = []
    for run, cell in np.argwhere(np.isfinite(logs)):
        name = "no-offload" if cell == 0 else f"arm-{cell}"
        first = pd.Timestamp("2026-01-01T00:00Z") + pd.Timedelta(
            hours=starts[run, cell]
        )
        times = {
            "run_started": first.isoformat(),
            "run_finished": (first + pd.Timedelta(hours=hours)).isoformat(),
        }
        row = (
            level_row(model, name, int(run) + 1, 8, 500 * np.exp(logs[run, cell]))
            | times
        )
        same = {"configuration": "the same"} if cell >= logs.shape[1] - copies else {}
        rows.append(row | same)
    return pd.DataFrame(rows)


def judged(
    table: pd.DataFrame,
    metric: str = "throughput_tok_s",
    settings: Comparison = SETTINGS,
) -> pd.DataFrame:
    """The comparisons of a metric, by arm."""
    baselines = {
        name: None if name == "no-offload" else "no-offload"
        for name in table["scenario"]
    }
    return compare_all(
        table, baselines, settings, {metric: METRICS[metric]}
    ).baseline.set_index("scenario")


def in_order(runs: int, cells: int) -> Array:
    """Hours of start of blocks measured in one order."""
    return np.arange(runs)[:, None] * cells * 0.2 + np.arange(cells) * 0.2


def in_random_order(generator: np.random.Generator, runs: int, cells: int) -> Array:
    places = np.array([generator.permutation(cells) for _ in range(runs)])
    return np.arange(runs)[:, None] * cells * 0.2 + places * 0.2


@pytest.mark.parametrize("cells", [2, 4])
def test_a_fixed_order_on_a_machine_that_slows_down_gives_no_verdict(
    cells: int,
) -> None:
    generator, wrong = np.random.default_rng(1), 0
    for _ in range(40):
        starts = in_order(5, cells)
        # The arm that comes last is 5.3 % below its baseline.
        logs = generator.normal(0, 0.01, (5, cells)) - 0.053 * starts / (
            0.2 * (cells - 1)
        )
        wrong += (
            judged(campaign(logs, starts))["verdict"].isin(words.VERDICTS[:3]).any()
        )
    assert wrong <= 3


def test_a_large_effect_in_a_fixed_order_keeps_its_verdict_and_says_so() -> None:
    generator = np.random.default_rng(2)
    for runs in (3, 5):
        logs = (
            np.array([0.0, 0.12])
            + generator.normal(0, 0.01, (runs, 1))
            + generator.normal(0, 0.01, (runs, 2))
        )
        row = judged(campaign(logs, in_order(runs, 2))).iloc[0]
        assert (row["verdict"], row["qualifier"], row["basis_order"]) == (
            "better",
            "fixed order",
            "qualifies: fixed order",
        )


def test_a_random_order_takes_a_drift_into_the_spread() -> None:
    generator = np.random.default_rng(3)
    starts = in_random_order(generator, 5, 4)
    logs = (
        np.array([0.0, 0.12, 0.0, 0.0])
        + generator.normal(0, 0.005, (5, 4))
        - 0.01 * starts
    )
    row = judged(campaign(logs, starts)).loc["arm-1"]
    assert (row["verdict"], row["qualifier"], row["basis_order"]) == (
        "better",
        "",
        "varied",
    )


def test_an_arm_of_a_later_day_is_no_block_of_runs_that_were_added_then() -> None:
    """Three runs of two cells, two more a day later, and a new arm with all five on that day."""
    starts = np.vstack([in_order(3, 3), in_order(2, 3) + 30])
    starts[:3, 2] = 28 + np.arange(3) * 0.2
    later = np.where(starts > 20, 0.06, 0.0)
    logs = later + np.random.default_rng(4).normal(0, 0.004, (5, 3))
    rows = judged(campaign(logs, starts))
    assert rows.loc["arm-2", "verdict"] == words.INDICATIVE_TIME
    assert (rows.loc["arm-1", "verdict"], rows.loc["arm-1", "runs"]) == ("parity", 5)


def test_runs_that_share_a_block_are_judged_without_those_that_do_not() -> None:
    starts = np.vstack([in_order(2, 2), in_order(3, 2) + 30])
    starts[:2, 1] = 28 + np.arange(2) * 0.2
    logs = np.where(starts > 20, 0.06, 0.0) + np.array([0.0, -0.2])
    row = judged(
        campaign(logs + np.random.default_rng(5).normal(0, 0.004, (5, 2)), starts)
    ).iloc[0]
    assert (row["verdict"], row["runs"]) == ("worse", 3)
    assert (
        row["reason"].startswith("without runs 1, 2")
        or "; without runs 1, 2" in row["reason"]
    )


def test_one_run_repeated_late_leaves_a_campaign_of_three_too_few_blocks() -> None:
    starts = in_order(3, 3)
    starts[1, 1] = 5.0
    logs = np.array([0.0, 0.3, 0.3]) + np.random.default_rng(6).normal(0, 0.01, (3, 3))
    rows = judged(campaign(logs, starts))
    assert list(rows["verdict"]) == [words.INDICATIVE_TIME, "better"]


@pytest.mark.parametrize("seed", range(12))
def test_an_arm_at_noon_is_not_better_than_its_baseline_at_midnight(seed: int) -> None:
    """Day and night alternate which of the two is first; a machine 7 % faster by day has no effect of the arm."""
    day = 24.0 * np.arange(5)[:, None]
    midnight = np.array([0.0, 24.0, 0.0, 24.0, 0.0])
    starts = day + np.column_stack([midnight, np.full(5, 12.0)])
    by_day = np.where(starts % 24 == 12, np.log(1.07), 0.0)
    logs = by_day + np.random.default_rng(seed).normal(0, 0.005, (5, 2))
    row = judged(campaign(logs, starts)).iloc[0]
    assert (row["verdict"], row["indication"]) == (words.INDICATIVE_TIME, "better")


def test_a_block_of_twenty_cells_is_one() -> None:
    generator = np.random.default_rng(17)
    places = np.array([generator.permutation(20) for _ in range(5)])
    starts = (np.arange(5)[:, None] * 20 + places) / 6
    logs = generator.normal(0, 0.005, (5, 20)) + 0.3 * (np.arange(20) > 0)
    rows = judged(campaign(logs, starts, hours=0.15))
    assert set(rows["basis_blocks"]) == {"shared blocks"}
    assert set(rows["verdict"]) == {"better"}
    assert set(rows["runs"]) == {5}


def with_pauses(
    generator: np.random.Generator, pause: float, own: float
) -> pd.DataFrame:
    """Six runs in three pairs, hours of pause between them; of each pair a cell's runs share a part of their noise."""
    starts = in_order(6, 8) + pause * np.repeat(np.arange(3), 2)[:, None]
    for run in starts:
        generator.shuffle(run)
    logs = np.repeat(generator.normal(0, own, (3, 8)), 2, axis=0) + generator.normal(
        0, 0.014, (6, 8)
    )
    return campaign(logs, starts)


def test_runs_between_pauses_that_are_alike_widen_the_interval() -> None:
    wide, narrow = (
        judged(with_pauses(np.random.default_rng(8), pause, 0.03))
        for pause in (20.0, 0.0)
    )
    assert (
        (wide["high_percent"] - wide["low_percent"])
        > (narrow["high_percent"] - narrow["low_percent"])
    ).all()


def test_pauses_alone_cost_little() -> None:
    """Of thirty campaigns without an effect of pauses, their intervals are wider in less than three quarters."""
    wider = 0
    for seed in range(30):
        with_, without = (
            judged(with_pauses(np.random.default_rng(seed), pause, 0.0))
            for pause in (20.0, 0.0)
        )
        wider += with_["high_percent"].iloc[0] > 1.001 * without["high_percent"].iloc[0]
    assert wider < 22


def copies(effect: float, apart: float) -> pd.DataFrame:
    """A baseline, an arm, and two arms that ran the same, of which one is `apart` from the other."""
    generator = np.random.default_rng(12)
    logs = np.array([0.0, effect, 0.0, apart]) + generator.normal(0, 0.008, (5, 4))
    return judged(campaign(logs, in_random_order(generator, 5, 4), copies=2))


def test_nothing_smaller_than_the_difference_of_two_copies_is_claimed() -> None:
    row = copies(0.064, 0.073).loc["arm-1"]
    assert (row["verdict"], row["basis_replicates"].split(":")[0]) == (
        "inconclusive",
        "qualifies",
    )
    assert copies(0.0, 0.073).loc["arm-1", "verdict"] == "inconclusive", (
        "equality is not shown either"
    )
    assert copies(0.25, 0.073).loc["arm-1", "verdict"] == "better"
    alike = copies(0.064, 0.0).loc["arm-1"]
    assert (alike["verdict"], alike["qualifier"]) == ("better", "")


def test_verdicts_on_the_primary_metric_share_one_error_rate_over_models() -> None:
    generator = np.random.default_rng(10)
    tables = [
        campaign(
            generator.normal(0, 0.02, (5, 4)),
            in_random_order(generator, 5, 4),
            model=f"m{number}",
        )
        for number in range(4)
    ]
    table = pd.concat(tables, ignore_index=True)
    primary, other = judged(table), judged(table, "ttft_ms_p50")
    assert (set(primary["family"]), set(other["family"])) == (
        {"primary"},
        {"exploratory"},
    )
    smallest = primary["p_value"].min()
    assert primary["p_holm"].min() == pytest.approx(min(1.0, 12 * smallest))
    assert list(other["p_holm"]) == list(other["p_value"])
    assert set(other["interval_percent"]) <= {90.0, 95.0}
    declared = Comparison(primary="ttft_ms_p50")
    assert set(judged(table, "ttft_ms_p50", declared)["family"]) == {"primary"}
    assert set(judged(table, settings=declared)["family"]) == {"exploratory"}


def test_parity_stands_beside_the_interval_of_its_test() -> None:
    """Equality shown at the margin's edge: the 95 % interval would cross it."""
    generator, found = np.random.default_rng(11), []
    for _ in range(30):
        logs = np.array([0.0, 0.022]) + generator.normal(0, 0.014, (5, 2))
        row = judged(campaign(logs, in_random_order(generator, 5, 2))).iloc[0]
        if row["verdict"] == "parity":
            found.append(row)
            assert row["interval_percent"] == pytest.approx(90)
            assert -5 < row["low_percent"] < row["high_percent"] < 5
        else:
            assert row["interval_percent"] == pytest.approx(95)
    assert found
