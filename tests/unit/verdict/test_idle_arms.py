"""What an arm costs whose tier served nothing, and gains that are larger than its tier can give."""

import numpy as np
import pandas as pd
import pytest
from tests.support.synthetic import BASELINES, levels_table

from kveval.campaign.campaign_file import Comparison
from kveval.estimators.intervals import holm
from kveval.verdict import verdict_words as words
from kveval.verdict.failed_checks import FAILURES
from kveval.verdict.verdicts import compare_all, judge_all

TTFT = "ttft_ms_p50"
ACTIVE = "native-offload"
SMALL_TIER = {"prefix_hit_ratio": 0.2, "external_hit_ratio": 0.006 / 0.8}
"""An arm whose tier served 0.6 % of the prompt tokens."""


def idle(effect: float, **changes: object) -> pd.DataFrame:
    """A baseline and an idle arm."""
    return levels_table(effects={"no-offload": 0.0, "idle": effect}, **changes)


def judged(
    levels: pd.DataFrame,
    scenario: str = "idle",
    metric: str = "throughput_tok_s",
    **settings: object,
) -> pd.Series:
    """The row of an arm against its baseline."""
    table = compare_all(levels, BASELINES, Comparison(**settings)).baseline
    return table[(table["metric"] == metric) & (table["scenario"] == scenario)].iloc[0]


def with_columns(levels: pd.DataFrame, scenario: str, **values: object) -> pd.DataFrame:
    """The same campaign with columns of one scenario's levels changed."""
    changed = levels.copy()
    for column, value in values.items():
        if column not in changed:
            changed[column] = np.nan
        changed.loc[changed["scenario"] == scenario, column] = value
    return changed


# --- what an idle arm costs


def test_an_idle_arm_that_is_slower_is_worse_although_idle() -> None:
    levels = idle(np.log(0.61))
    row = judged(levels)
    assert (row["verdict"], row["runs"], row["family"]) == (
        words.WORSE_IDLE,
        5,
        "primary, idle",
    )
    assert row["low_percent"] < -39 < row["high_percent"] < -37
    assert row["cost_percent"] > 39
    assert "served next to nothing" in row["reason"]
    latency = judged(levels, metric=TTFT)
    assert (latency["verdict"], latency["family"]) == (
        words.WORSE_IDLE,
        "exploratory, idle",
    )


@pytest.mark.parametrize("effect", [0.0, -0.02, 0.01])
def test_the_cost_of_an_idle_arm_is_bounded_by_the_end_of_its_interval(
    effect: float,
) -> None:
    levels = idle(effect, sd=0.005)
    row, latency = judged(levels), judged(levels, metric=TTFT)
    assert (row["verdict"], row["interval_percent"]) == (words.IDLE, 90)
    assert row["cost_percent"] == pytest.approx(max(0, -row["low_percent"]))
    assert row["cost_percent"] < 5
    assert latency["verdict"] == words.IDLE
    assert latency["cost_percent"] == pytest.approx(max(0, latency["high_percent"]))


def test_an_idle_arm_is_never_better() -> None:
    for effect in (0.1, 0.3):
        row = judged(idle(effect))
        assert row["verdict"] == words.NOT_EXERCISED
        assert "the tier cannot be why" in row["reason"]


def test_an_idle_arm_with_a_wide_interval_is_undecided_and_called_idle() -> None:
    row = judged(idle(-0.02, sd=0.1))
    assert (row["verdict"], row["qualifier"]) == (words.INCONCLUSIVE, "idle")
    assert row["cost_percent"] > 5
    assert row["grounds"] == "idle;more_runs"


@pytest.mark.parametrize("runs", [1, 2])
def test_too_few_idle_runs_say_nothing_of_the_cost(runs: int) -> None:
    row = judged(idle(-0.5, runs=runs))
    assert row["verdict"] == words.NOT_EXERCISED
    assert "served next to nothing" in row["reason"]
    assert row["grounds"].startswith("idle;no_cost;")
    assert np.isnan(row["cost_percent"])


def test_an_idle_run_that_fails_a_check_does_not_count_for_the_cost() -> None:
    levels = idle(-0.5)
    failed = (levels["scenario"] == "idle") & (levels["run"] == 2)
    levels.loc[failed, "checks_failed"] = "window"
    levels.loc[failed, "throughput_tok_s"] *= 1.5
    row = judged(levels)
    assert (row["verdict"], row["runs"]) == (words.WORSE_IDLE, 4)
    assert row["reason"].endswith(f"without run 2: {FAILURES['window']}")


def test_a_run_of_unknown_activity_does_not_count_for_the_cost() -> None:
    levels = idle(-0.5)
    levels.loc[(levels["scenario"] == "idle") & (levels["run"] == 2), "exercised"] = (
        pd.NA
    )
    row = judged(levels)
    assert (row["verdict"], row["runs"]) == (words.WORSE_IDLE, 4)
    assert "run 2: activity not known" in row["reason"]


def test_two_sides_that_are_not_comparable_give_no_verdict_on_the_cost() -> None:
    row = judged(with_columns(idle(-0.5), "idle", hardware="beef"))
    assert row["verdict"] == words.NOT_EXERCISED
    assert "other hardware" in row["reason"]


def test_an_idle_arm_against_an_active_one_is_no_cost() -> None:
    levels = levels_table(effects={"no-offload": 0.0, ACTIVE: 0.3, "idle": 0.0})
    settings = Comparison(contrasts=[["idle", ACTIVE], [ACTIVE, "idle"]])
    table = compare_all(levels, BASELINES, settings).contrasts
    table = table[table["metric"] == "throughput_tok_s"]
    assert set(table["verdict"]) == {words.NOT_EXERCISED}
    assert [reason.partition(" served")[0] for reason in table["reason"]] == [
        "by its own counters the arm",
        "by its own counters the cell it is compared with",
    ]


def test_a_slower_build_is_found_though_the_arm_is_idle_on_both() -> None:
    """As between two releases of a server, where the older one is the baseline."""
    levels = levels_table(effects={"idle": 0.0, ACTIVE: -0.3})
    levels["exercised"] = pd.array([False] * len(levels), dtype="boolean")
    table = compare_all(levels, {"idle": None, ACTIVE: "idle"}).baseline
    assert (
        table[table["metric"] == "throughput_tok_s"].iloc[0]["verdict"]
        == words.WORSE_IDLE
    )


def test_idle_arms_are_adjusted_for_each_other_and_change_no_other_verdict() -> None:
    effects = {"no-offload": 0.0, ACTIVE: 0.03, "lmcache-redis": -0.04, "idle": -0.02}
    levels = pd.concat([levels_table(effects=effects, sd=0.02)], ignore_index=True)
    more = levels[levels["scenario"] == "idle"].assign(
        cpu_blocks=20_000, configuration="larger"
    )
    more["throughput_tok_s"] *= 0.99
    table = compare_all(
        pd.concat([levels, more], ignore_index=True), BASELINES
    ).baseline
    table = table[table["metric"] == "throughput_tok_s"]
    for family, members in (("primary", 2), ("primary, idle", 2)):
        rows = table[table["family"] == family]
        assert len(rows) == members
        assert list(rows["p_holm"]) == pytest.approx(holm(list(rows["p_value"])))
        assert list(rows["p_parity_holm"]) == pytest.approx(
            holm(list(rows["p_parity"]))
        )


@pytest.mark.parametrize("runs", [3, 5])
def test_idle_arms_that_cost_nothing_are_rarely_called_worse(runs: int) -> None:
    """Of 250 campaigns with three idle arms, 5 % at most; one standard error is 1.4 points."""
    generator = np.random.default_rng(runs)
    wrong = 0
    base = levels_table(
        effects={"no-offload": 0.0, "idle": 0.0}, levels=(8,), runs=runs
    )
    more = [
        base[base["scenario"] == "idle"].assign(
            cpu_blocks=size, configuration=f"{size}"
        )
        for size in (1, 2)
    ]
    base = pd.concat([base, *more], ignore_index=True)
    for _ in range(250):
        noise = np.exp(generator.normal(0, 0.05, len(base)))
        verdicts = judge_all(
            base.assign(throughput_tok_s=100 * noise),
            BASELINES,
            metrics={"throughput_tok_s": True},
            peaks=False,
        )
        wrong += any(
            verdict.judgement.word == words.WORSE_IDLE for verdict in verdicts.baseline
        )
    assert wrong / 250 <= 0.06


@pytest.mark.parametrize("effect", [-0.02, np.log(0.95)])
def test_a_bounded_cost_is_rarely_below_the_true_one(effect: float) -> None:
    generator = np.random.default_rng(5)
    base = idle(0.0, levels=(8,))
    true = 100 * -np.expm1(effect)
    wrong = 0
    for _ in range(250):
        logs = generator.normal(0, 0.02, len(base)) + np.where(
            base["scenario"] == "idle", effect, 0.0
        )
        verdicts = judge_all(
            base.assign(throughput_tok_s=100 * np.exp(logs)),
            BASELINES,
            metrics={"throughput_tok_s": True},
            peaks=False,
        )
        (verdict,) = verdicts.baseline
        wrong += verdict.judgement.word == words.IDLE and verdict.cost_percent < true
    assert wrong / 250 <= 0.08


# --- gains beyond the tier


def ahead(effect: float = np.log(1.3), **changes: object) -> pd.DataFrame:
    """A baseline that finds a fifth of the prompt tokens on the device, and an arm that is ahead."""
    levels = levels_table(effects={"no-offload": 0.0, ACTIVE: effect}, **changes)
    return with_columns(levels, "no-offload", prefix_hit_ratio=0.2)


def test_a_tier_that_served_next_to_nothing_cannot_be_why_an_arm_is_far_ahead() -> None:
    row = judged(with_columns(ahead(), ACTIVE, **SMALL_TIER), ACTIVE)
    assert (row["verdict"], row["qualifier"]) == (
        words.BETTER,
        "the tier alone cannot be why (it served 0.6 % of the prompt tokens)",
    )
    assert row["basis_activity"].startswith("qualifies: ")
    assert "cannot gain more than 1.5 %" in row["reason"]


@pytest.mark.parametrize(
    "changes",
    [
        # Reloads of what preempted requests had are no hits of prompts.
        {"reloaded_tokens": 600_000.0},
        {"requests_preempted": 400.0},
        {"preemptions": 400.0},
        # Bytes that may be such reloads, as preempted requests were not counted.
        {"offload_load_bytes": 1e9},
        # Loads that served later requests from the device.
        {"prefix_hit_ratio": 0.4},
        # Nearly everything else was found on the device: little is left to compute.
        {"prefix_hit_ratio": 0.98, "external_hit_ratio": 0.3},
        {"external_hit_ratio": 0.5},
        {"external_hit_ratio": np.nan},
    ],
)
def test_a_gain_that_the_tier_can_give_stands_alone(changes: dict[str, float]) -> None:
    row = judged(with_columns(ahead(), ACTIVE, **{**SMALL_TIER, **changes}), ACTIVE)
    assert (row["verdict"], row["qualifier"]) == (words.BETTER, "")


def test_what_the_baseline_computes_again_after_preemptions_can_be_gained() -> None:
    levels = with_columns(
        with_columns(ahead(), ACTIVE, **SMALL_TIER),
        "no-offload",
        requests_preempted=400.0,
    )
    assert judged(levels, ACTIVE)["qualifier"] == ""


def test_latencies_may_gain_much_from_few_hits() -> None:
    row = judged(with_columns(ahead(), ACTIVE, **SMALL_TIER), ACTIVE, TTFT)
    assert (row["verdict"], row["qualifier"]) == (words.BETTER, "")


def test_a_gain_that_may_be_within_the_margin_of_what_the_tier_gives_stands_alone() -> (
    None
):
    row = judged(with_columns(ahead(0.06, sd=0.005), ACTIVE, **SMALL_TIER), ACTIVE)
    assert (row["verdict"], row["qualifier"]) == (words.BETTER, "")


def test_an_active_arm_keeps_its_verdict() -> None:
    row = judged(levels_table(effects={"no-offload": 0.0, ACTIVE: 0.3}), ACTIVE)
    assert (row["verdict"], row["qualifier"], row["family"]) == (
        words.BETTER,
        "",
        "primary",
    )
    assert row["basis_activity"] == "active in 5 of 5 runs"
    assert np.isnan(row["cost_percent"])
