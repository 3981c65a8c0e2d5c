"""Campaigns built to mislead: each gets no claim that it must not get, and what is like it and sound keeps its own."""

import numpy as np
import pandas as pd
import pytest
from tests.support.synthetic import BASELINES, WORKLOAD, levels_table

from kveval.tables.levels.outcomes import Outcome, outcome_columns
from kveval.verdict import verdict_words as words
from kveval.verdict.verdicts import compare_all

ARM = "native-offload"
EFFECTS = {"no-offload": 0.0, ARM: 0.1}


def campaign(effect: float = 0.1, **changes: object) -> pd.DataFrame:
    """A baseline and an arm, 5 runs of three levels."""
    return levels_table(effects={"no-offload": 0.0, ARM: effect}, **changes)


def of_arm(levels: pd.DataFrame, **changes: object) -> pd.DataFrame:
    """The same campaign with columns of the arm's levels changed."""
    changed = levels.copy()
    for column, value in changes.items():
        if column not in changed:
            changed[column] = np.nan if isinstance(value, int | float) else ""
        changed.loc[changed["scenario"] == ARM, column] = value
    return changed


def judged(levels: pd.DataFrame, metric: str = "throughput_tok_s") -> pd.Series:
    """The row of the arm against its baseline."""
    table = compare_all(levels, BASELINES).baseline
    return table[table["metric"] == metric].iloc[0]


def active_in(levels: pd.DataFrame, *runs: int) -> pd.DataFrame:
    """The same campaign with an arm whose counters moved in these runs alone."""
    return levels.assign(
        exercised=levels["exercised"]
        .where(levels["scenario"] != ARM, levels["run"].isin(runs))
        .astype("boolean")
    )


# --- the arm's counters moved in 1 of 5 runs


def test_an_arm_that_was_active_in_one_of_five_runs_is_not_exercised() -> None:
    row = judged(active_in(campaign(), 3))
    assert row["verdict"] == words.NOT_EXERCISED
    assert row["basis_activity"] == "refuses: active in 1 of 5 runs"


@pytest.mark.parametrize(
    ("idle", "named"),
    [(ARM, "the arm served"), ("no-offload", "the cell it is compared with served")],
)
def test_the_side_that_was_idle_in_all_runs_is_named(idle: str, named: str) -> None:
    levels = campaign()
    levels["exercised"] = (levels["scenario"] != idle).astype("boolean")
    row = judged(levels)
    assert f"by its own counters {named} next to nothing" in row["reason"]


def test_an_arm_is_judged_on_its_active_runs_where_these_are_enough() -> None:
    levels = active_in(campaign(), 1, 2, 3, 4)
    # The run without the arm would hide the effect.
    levels.loc[
        (levels["scenario"] == ARM) & (levels["run"] == 5), "throughput_tok_s"
    ] /= 1.5
    row = judged(levels)
    assert (row["verdict"], row["runs"]) == (words.BETTER, 4)
    assert row["basis_activity"] == "active in 4 of 5 runs"
    assert "run 5: not active" in row["reason"]


# --- not the same work


@pytest.mark.parametrize(
    "changes",
    [
        {"request_output_tokens": 32.0},
        {"request_prompt_tokens": 1032.0},
        {"workload": WORKLOAD.replace("prefix_count=20", "prefix_count=200")},
        {"workload": WORKLOAD.replace("prompt_tokens=64", "prompt_tokens=256")},
        {"workload": WORKLOAD.replace("turns=3", "turns=1")},
        {"strategy": "constant"},
    ],
    ids=[
        "half the answer",
        "half the prompt",
        "other prefixes",
        "other prompts",
        "other turns",
        "other load",
    ],
)
@pytest.mark.parametrize("metric", ["throughput_tok_s", "e2e_ms_p50"])
def test_other_work_is_not_compared(metric: str, changes: dict[str, object]) -> None:
    row = judged(of_arm(campaign(), **changes), metric)
    assert row["verdict"] == words.NOT_ASSESSED
    assert row["basis_work"].startswith("refuses: ")
    assert " against " in row["reason"]


def test_other_work_says_both_sides() -> None:
    row = judged(
        of_arm(
            campaign(), workload=WORKLOAD.replace("prefix_count=20", "prefix_count=200")
        )
    )
    assert row["basis_work"] == "refuses: prefixes 200 against 20"


@pytest.mark.parametrize(
    "changes",
    [
        # What nobody declared may have been the same.
        {"workload": "prompt_tokens=64"},
        {"workload": ""},
        # Lengths drawn at random, as 60 requests may differ by chance.
        {"request_output_tokens": 70.0, "request_output_tokens_se": 0.05},
        # Long answers are cut off under load: 40 % of them, with a standard deviation of 30 %.
        {
            "request_output_tokens": 52.0,
            "request_output_tokens_se": 0.3 / 1000**0.5,
            "requests_completed": 1000,
            "incomplete_share": 0.4,
        },
    ],
    ids=["half declared", "not declared", "random lengths", "cut off"],
)
def test_the_same_work_is_compared(changes: dict[str, object]) -> None:
    row = judged(of_arm(campaign(), **changes))
    assert (row["verdict"], row["basis_work"]) == (words.BETTER, "the same")


def test_prompts_are_not_held_against_those_that_another_version_counted() -> None:
    row = judged(
        of_arm(campaign(), request_prompt_tokens=64.0, guidellm_version="0.5.3")
    )
    assert row["verdict"] == words.BETTER


# --- an import without a recording


def test_an_arm_that_nothing_shows_active_is_only_indicated() -> None:
    row = judged(of_arm(campaign(), exercised=pd.NA, activity="not shown"))
    assert (row["verdict"], row["indication"]) == (
        words.INDICATIVE_ACTIVITY,
        words.BETTER,
    )


def test_a_baseline_has_no_activity_to_show() -> None:
    assert judged(campaign())["verdict"] == words.BETTER
    # A recording of some of the runs shows the arm.
    levels = campaign()
    later = (levels["scenario"] == ARM) & (levels["run"] > 2)
    levels.loc[later, "exercised"], levels.loc[later, "activity"] = pd.NA, "not shown"
    assert judged(levels)["verdict"] == words.BETTER


# --- another image or build


def test_another_build_is_said_beside_the_verdict() -> None:
    row = judged(of_arm(campaign(), server_build="lmcache/vllm 0.11.0"))
    assert (row["verdict"], row["qualifier"]) == (words.BETTER, "other build")
    assert "lmcache/vllm 0.11.0" in row["reason"]
    assert judged(campaign())["qualifier"] == ""


def test_two_builds_of_one_arm_are_compared_and_need_no_more_to_be_said() -> None:
    alike = campaign().assign(arm_settings="a1")
    row = judged(of_arm(alike, server_build="vllm 0.32.0 checkout-1a2b"))
    assert (row["verdict"], row["qualifier"], row["basis_build"]) == (
        words.BETTER,
        "",
        "builds compared",
    )
    row = judged(
        of_arm(alike, server_build="vllm 0.32.0 checkout-1a2b", arm_settings="b2")
    )
    assert row["qualifier"] == "other build"


# --- GPU clocks and power limits


def on_gpus(levels: pd.DataFrame, **changes: object) -> pd.DataFrame:
    gpus = {
        "gpus": 2.0,
        "gpu_power_limit_w": 700.0,
        "gpu_clock_limit_mhz": 1980.0,
        "gpu_clock_mhz": 1900.0,
    }
    return of_arm(levels.assign(**gpus), **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"gpu_power_limit_w": 500.0},
        {"gpu_clock_limit_mhz": 1410.0},
        {"gpu_clock_mhz": 1400.0},
    ],
)
def test_other_clocks_or_power_limits_allow_no_verdict(
    changes: dict[str, object],
) -> None:
    row = judged(on_gpus(campaign(-0.1), **changes))
    assert row["verdict"] == words.NOT_ASSESSED
    assert row["basis_clocks"].startswith("refuses: other ")


def test_a_gpu_that_was_throttled_on_one_side_is_said_beside_the_verdict() -> None:
    row = judged(
        on_gpus(
            campaign(-0.1), gpu_throttled="sw_thermal_slowdown", gpu_clock_mhz=1700.0
        )
    )
    assert (row["verdict"], row["qualifier"]) == (
        words.WORSE,
        "GPU throttled on one side",
    )


@pytest.mark.parametrize("scenario", [ARM, "no-offload"])
def test_an_arm_that_computes_up_to_the_power_limit_is_no_throttled_machine(
    scenario: str,
) -> None:
    frame = on_gpus(campaign(-0.1))
    frame.loc[frame["scenario"] == scenario, ["gpu_throttled", "gpu_clock_mhz"]] = (
        "sw_power_cap",
        1700.0,
    )
    row = judged(frame)
    assert (row["verdict"], row["qualifier"]) == (words.WORSE, "")
    assert row["basis_clocks"].startswith("equal limits, ")


def test_a_power_limit_that_nobody_recorded_is_not_taken_for_an_equal_one() -> None:
    frame = on_gpus(campaign(-0.1), gpu_throttled="sw_power_cap")
    row = judged(frame.assign(gpu_power_limit_w=float("nan")))
    assert row["qualifier"] == "GPU throttled on one side"


def test_a_thermal_limit_beside_the_power_limit_is_said_beside_the_verdict() -> None:
    row = judged(
        on_gpus(
            campaign(-0.1),
            gpu_throttled="sw_power_cap;sw_thermal_slowdown",
            gpu_clock_mhz=1700.0,
        )
    )
    assert row["qualifier"] == "GPU throttled on one side"


def test_clocks_that_may_differ_by_load_are_said_beside_the_verdict() -> None:
    row = judged(on_gpus(campaign(-0.1), gpu_clock_mhz=1750.0))
    assert (row["verdict"], row["qualifier"]) == (words.WORSE, "other GPU clocks")


def test_equal_clocks_are_sound() -> None:
    row = judged(on_gpus(campaign(-0.1), gpu_clock_mhz=1880.0))
    assert (row["verdict"], row["qualifier"], row["basis_clocks"]) == (
        words.WORSE,
        "",
        "equal clocks",
    )


# --- a tier of twice its cpu_blocks


def test_a_tier_of_another_size_has_no_verdict() -> None:
    row = judged(
        of_arm(
            campaign(), checks_failed="tier_capacity", tier_reported_tokens=320_000.0
        )
    )
    assert row["verdict"] == words.NOT_ASSESSED
    assert row["basis_tier"] == "refuses: 320,000 tokens for 160,000 tokens"


# --- 0.7 % errors, all on the slowest requests


def with_errors(
    levels: pd.DataFrame, share: float, scenario: str = ARM
) -> pd.DataFrame:
    changed = levels.copy()
    of = changed["scenario"] == scenario
    changed.loc[of, "requests_errored"] = (
        (share * changed.loc[of, "requests_completed"]).round().astype(int)
    )
    return changed


def test_errors_of_the_arm_alone_bar_parity() -> None:
    flat = campaign(0.0, sd=0.003)
    assert judged(flat)["verdict"] == words.PARITY
    row = judged(with_errors(flat, 0.007))
    assert row["verdict"] == words.INCONCLUSIVE
    assert row["qualifier"] == "0.69 % of requests failed against none"


def test_errors_widen_the_interval_to_the_side_they_may_hide() -> None:
    sound, erring = (
        judged(levels, "e2e_ms_p90")
        for levels in (campaign(0.1), with_errors(campaign(0.1), 0.007))
    )
    assert erring["low_percent"] == pytest.approx(sound["low_percent"])
    assert erring["high_percent"] > sound["high_percent"] + 1


def test_errors_alike_on_both_sides_leave_parity() -> None:
    flat = campaign(0.0, sd=0.003)
    row = judged(with_errors(with_errors(flat, 0.005), 0.005, "no-offload"))
    assert row["verdict"] == words.PARITY
    assert row["qualifier"] == "0.48 % of requests failed against 0.48 %"


def test_a_large_effect_outlives_a_few_errors() -> None:
    row = judged(with_errors(campaign(), 0.007))
    assert (row["verdict"], row["qualifier"]) == (
        words.BETTER,
        "0.69 % of requests failed against none",
    )


# --- open loops at other rates, and windows with other shares of first visits


def open_loop(answered: float = 5.0, sent: float = 5.0) -> pd.DataFrame:
    """Open loops of 5 requests a second, all of which are answered; the arm is sent, and answers, as many as given."""
    everywhere = campaign().assign(rate_req_s=5.0, throughput_req_s=5.0)
    return of_arm(everywhere, rate_req_s=sent, throughput_req_s=answered)


@pytest.mark.parametrize(
    ("levels", "said"),
    [
        (open_loop(answered=4.8), "requests/s answered 4.8 against 5"),
        (open_loop(sent=4.85), "requests/s sent 4.85 against 5"),
    ],
)
def test_open_loops_at_other_rates_qualify_the_verdict_on_latency(
    levels: pd.DataFrame, said: str
) -> None:
    row = judged(levels, "ttft_ms_p50")
    assert (row["verdict"], row["qualifier"]) == (words.BETTER, said)
    assert "latencies are those of different loads" in row["reason"]


def test_the_throughput_of_users_who_pause_is_not_compared_but_their_latency() -> None:
    levels = campaign()
    levels = levels.assign(workload=levels["workload"] + ";pause_s=8")
    row = judged(levels)
    assert row["verdict"] == words.NOT_ASSESSED
    assert "follows from their pauses" in row["reason"]
    assert judged(levels, "ttft_ms_p50")["verdict"] == words.BETTER


def test_users_with_other_pauses_do_other_work() -> None:
    levels = campaign()
    text = levels["workload"] + ";pause_s=8"
    row = judged(of_arm(levels, workload=text), "ttft_ms_p50")
    assert "seconds of a user's pause 8 against 0" in row["reason"]


def test_open_loops_at_one_rate_and_closed_loops_are_not_qualified() -> None:
    for levels in (
        open_loop(),
        open_loop(answered=5.08),
        campaign().assign(throughput_req_s=5.0),
    ):
        row = judged(levels, "ttft_ms_p50")
        assert (row["verdict"], row["qualifier"]) == (words.BETTER, "")
    # A faster arm of a closed loop answers more.
    assert (
        judged(of_arm(campaign().assign(throughput_req_s=5.0), throughput_req_s=6.0))[
            "qualifier"
        ]
        == ""
    )


@pytest.mark.parametrize("metric", ["throughput_tok_s", "ttft_ms_p50"])
def test_windows_with_other_shares_of_first_visits_qualify(metric: str) -> None:
    cold = campaign().assign(first_visit_share=0.45)
    row = judged(of_arm(cold, first_visit_share=0.12), metric)
    assert (row["verdict"], row["qualifier"]) == (
        words.BETTER,
        "first visits 12 against 45 % of the prompt tokens",
    )
    assert "no cache can hold" in row["reason"]
    assert judged(of_arm(cold, first_visit_share=0.42), metric)["qualifier"] == ""
    assert judged(cold.assign(first_visit_share=0.0), metric)["qualifier"] == ""


def test_a_latency_without_a_value_is_named_as_such() -> None:
    row = judged(
        of_arm(
            campaign(), itl_ms_p50=np.nan, ttft_ms_p50=np.nan, not_reached="ttft_ms_p50"
        ),
        "itl_ms_p50",
    )
    assert row["reason"] == "in the arm, ITL was not observed (5 of 5 runs)"
    row = judged(
        of_arm(campaign(), ttft_ms_p50=np.nan, not_reached="ttft_ms_p50"), "ttft_ms_p50"
    )
    assert row["reason"].startswith(
        "in the arm, TTFT is longer than anything observed: too many requests were cut off"
    )


# --- a baseline whose tier is at work, and statistics with other definitions


def test_a_baseline_whose_counters_show_a_tier_at_work_refuses() -> None:
    levels = campaign()
    levels.loc[levels["scenario"] == "no-offload", "external_hit_ratio"] = 0.3
    row = judged(levels)
    assert row["verdict"] == words.NOT_ASSESSED
    assert (
        row["basis_tier"] == "refuses: a tier at work in the cell it is compared with"
    )
    assert "30 % of the lookups" in row["reason"]
    levels.loc[levels["scenario"] == "no-offload", "external_hit_ratio"] = 0.001
    assert judged(levels)["verdict"] == words.BETTER


@pytest.mark.parametrize("version", ["0.3 or older", "0.2.1", "vllm bench serve"])
def test_statistics_of_generators_with_other_definitions_are_not_compared(
    version: str,
) -> None:
    sums = campaign().assign(checks_warned="aggregate_only")
    row = judged(of_arm(sums, guidellm_version=version))
    assert (row["verdict"], row["basis_work"].split(":")[0]) == (
        words.NOT_ASSESSED,
        "refuses",
    )
    assert "define them differently" in row["reason"]
    # Computed from the requests, or by versions with the same definitions.
    assert (
        judged(of_arm(campaign(), guidellm_version=version))["verdict"] == words.BETTER
    )
    assert judged(of_arm(sums, guidellm_version="0.6.0"))["verdict"] == words.BETTER


# --- servers that differ in more than the arm


def test_device_caches_of_other_sizes_refuse() -> None:
    assert (
        judged(of_arm(campaign(), device_tokens=35_840.0))["verdict"]
        == words.NOT_ASSESSED
    )


# --- wrong answers: a cache that returns other keys and values is fast


@pytest.mark.parametrize("scenario", [ARM, "no-offload"])
@pytest.mark.parametrize("runs", [(3,), (1, 2, 3, 4, 5)], ids=["one run", "every run"])
@pytest.mark.parametrize("metric", ["throughput_tok_s", "e2e_ms_p50"])
def test_wrong_answers_in_one_run_of_either_side_refuse_the_verdict(
    scenario: str, runs: tuple[int, ...], metric: str
) -> None:
    levels = campaign()
    said = "4 of 4 greedy answers changed when the tier served their prompts"
    found = outcome_columns([Outcome("answers", "fail", words=said)])
    wrong = (levels["scenario"] == scenario) & levels["run"].isin(runs)
    for column, value in found.items():
        levels[column] = levels[column].astype(object) if column in levels else ""
        levels.loc[wrong, column] = value
    row = judged(levels, metric)
    assert (row["verdict"], row["basis_answers"]) == (
        words.NOT_ASSESSED,
        "refuses: wrong answers",
    )
    assert (
        f"wrong answers, whose speed is no result: {scenario}, run {runs[0]}: {said}"
        in row["reason"]
    )


def test_answers_that_were_not_checked_or_are_right_refuse_nothing() -> None:
    levels = campaign()
    for column, value in outcome_columns(
        [Outcome("answers", "note", words="not checked")]
    ).items():
        levels[column] = value
    row = judged(levels)
    assert (row["verdict"], row["basis_answers"]) == (words.BETTER, "")
