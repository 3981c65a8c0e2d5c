"""Few tokens, few latencies, unsteady windows and a starved closed loop: uncertainty and bias instead of a refusal."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from benchmarks import bench_statistics as simulated
from hypothesis import given
from hypothesis import strategies as st
from tests.support.described import run_tables
from tests.support.guidellm_reports import Story, document
from tests.support.synthetic import BASELINES, levels_table, run_description

from kveval.campaign.campaign_file import Comparison
from kveval.estimators.intervals import Contrast
from kveval.report.data.comparisons import effect_text
from kveval.report.data.vocabulary import CANNOT_TELL_YET, verdict_of
from kveval.tables.levels.goodput import GOODPUT
from kveval.tables.levels.outcomes import outcome_columns, warn
from kveval.verdict.findings import read_findings
from kveval.verdict.verdict_words import (
    BETTER,
    INCONCLUSIVE,
    NOT_ASSESSED,
    PARITY,
    WORSE,
)
from kveval.verdict.verdicts import compare_all

LEVEL, TOKENS = 2, 16


def campaign(
    folder: Path, arms: dict[str, list[Story]], **workload: Any
) -> pd.DataFrame:
    """Rows of complete_metrics.csv of a level, from made-up reports of GuideLLM: a story a run."""
    tables = []
    for scenario, stories in arms.items():
        for run, story in enumerate(stories, start=1):
            place = folder / scenario / str(run)
            (place / "raw").mkdir(parents=True)
            (place / "raw" / "guidellm.json").write_text(
                json.dumps(document("2", [story]))
            )
            facts = run_description(
                "Qwen3-0.6B", scenario, 0 if scenario == "no-offload" else 10_000, run
            )
            facts["specification"] |= {"argv": ["vllm", "serve", scenario]}
            facts["specification"]["workload"] |= {
                **{
                    "prompt_tokens": 32,
                    "output_tokens": story.tokens,
                    "turns": 1,
                    "prefix_tokens": 6000,
                },
                **{
                    "prefix_count": 8,
                    "levels": [LEVEL],
                    "seconds": story.seconds,
                    "warmup_s": story.warmup_s,
                },
                **workload,
            }
            counters = {
                "vllm:generation_tokens_total": float(story.delivered),
                "vllm:hits_total": 5000.0,
            }
            facts["levels"] = [
                {
                    **{"level": LEVEL, "status": "ok", "report": "raw/guidellm.json"},
                    **{
                        "start": story.start + story.warmup_s,
                        "end": story.start + story.seconds,
                    },
                    "counters": {
                        name: {"before": 0.0, "after": gain, "delta": gain}
                        for name, gain in counters.items()
                    },
                }
            ]
            (place / "run.json").write_text(json.dumps(facts))
            tables.append(run_tables(place)[0])
    return pd.concat(tables, ignore_index=True)


def story(
    rate: float, in_flight: float = LEVEL, ttft_s: float = 0.1, seconds: float = 75.0
) -> Story:
    """A level of two streams that delivers so many tok/s with so many requests in flight on average."""
    cycle = LEVEL * TOKENS / rate
    latency = cycle * in_flight / LEVEL
    return Story(
        **{
            "streams": LEVEL,
            "seconds": seconds,
            "tokens": TOKENS,
            "warmup_s": 18.0,
            "prompt_tokens": 6032,
        },
        **{"latency_s": latency, "pause_s": cycle - latency, "ttft_s": ttft_s},
    )


def compared(levels: pd.DataFrame, **settings: Any) -> dict[str, dict[str, Any]]:
    """The rows of comparison.csv by metric."""
    found = compare_all(levels, BASELINES, Comparison(**settings)).baseline
    return {str(row["metric"]): row for row in found.to_dict("records")}


@pytest.fixture
def trial(tmp_path: Path) -> pd.DataFrame:
    """A trial on two cores: 52 requests a level without a tier, seven to nine times as many with one."""
    arms = {
        "no-offload": [story(rate, ttft_s=1.5) for rate in (14.86, 14.84, 14.85)],
        "native-offload": [
            story(rate, in_flight=1.83) for rate in (141.0, 104.0, 120.0)
        ],
    }
    return campaign(tmp_path, arms)


def test_a_nine_fold_effect_of_few_tokens_and_a_starved_loop_has_its_verdicts(
    trial: pd.DataFrame,
) -> None:
    without = trial[trial["scenario"] == "no-offload"]
    assert without["output_tokens"].between(800, 850).all()
    assert without["checks_noted"].str.contains("few_tokens").all()
    arm = trial[trial["scenario"] == "native-offload"]
    assert arm["concurrency_mean"].to_numpy() == pytest.approx(1.83, abs=0.01)
    assert arm["checks_warned"].str.contains("closed_loop").all()
    assert set(trial["checks_failed"]) == {""}
    rows = compared(trial)
    throughput = rows["throughput_tok_s"]
    assert (throughput["verdict"], throughput["bound"]) == (BETTER, "at least")
    assert throughput["low_percent"] > 100
    assert (
        throughput["low_percent"] < 100 * (120 / 14.85 - 1) < throughput["high_percent"]
    )
    assert effect_text(throughput).startswith("at least 8.1 times (")
    assert "fewer requests in flight" in throughput["reason"]
    ttft = rows["ttft_ms_p50"]
    assert (ttft["verdict"], ttft["bound"]) == (BETTER, "at most")
    assert ttft["high_percent"] < -50


def test_a_level_alone_is_not_bracketed_and_compared_all_the_same(
    trial: pd.DataFrame,
) -> None:
    assert {row["level"] for row in compared(trial).values()} == {LEVEL}


def with_shortfall(
    effect: float, reference: float = 0.0, arm: float = 0.0, **changes: Any
) -> pd.DataFrame:
    """A campaign with a true effect on throughput, and what starved loops leave of it: fewer deliver as much less."""
    effects = {
        "no-offload": np.log1p(-reference),
        "native-offload": np.log1p(effect) + np.log1p(-arm),
    }
    levels = levels_table(effects=effects, **{"sd": 0.004, "levels": (8,), **changes})
    share = levels["scenario"].map({"no-offload": reference, "native-offload": arm})
    latencies = [name for name in levels if "_ms_" in name]
    levels[latencies] = levels[latencies].mul(1 - share, axis=0)
    return levels.assign(concurrency_shortfall=share)


@pytest.mark.parametrize(
    "arms", [{"arm": 0.15}, {"reference": 0.15}, {"arm": 0.3, "reference": 0.1}]
)
def test_equals_of_which_one_is_starved_are_neither_different_nor_alike(
    arms: dict[str, float],
) -> None:
    rows = compared(with_shortfall(0.0, **arms))
    assert {row["verdict"] for row in rows.values()} == {INCONCLUSIVE}
    assert {row["bound"] for row in rows.values()} == {""}
    row = rows["throughput_tok_s"]
    assert row["low_percent"] < 0 < row["high_percent"]
    assert abs(row["effect_percent"]) > 10


@pytest.mark.parametrize(
    ("effect", "arms", "verdict", "bound"),
    [
        (0.5, {"arm": 0.15}, BETTER, "at least"),
        (0.5, {"reference": 0.15}, BETTER, "at most"),
        (-0.5, {"arm": 0.15}, WORSE, "at most"),
        (-0.5, {"reference": 0.15}, WORSE, "at least"),
        # Both were held back, so that nobody knows by how much more; the interval has it all.
        (0.5, {"arm": 0.15, "reference": 0.1}, BETTER, ""),
        (0.0, {"arm": 0.04}, PARITY, ""),
        (0.5, {}, BETTER, ""),
    ],
)
def test_a_starved_loop_bounds_the_effect(
    effect: float, arms: dict[str, float], verdict: str, bound: str
) -> None:
    row = compared(with_shortfall(effect, **arms))["throughput_tok_s"]
    assert (row["verdict"], row["bound"]) == (verdict, bound)
    assert row["low_percent"] <= 100 * effect + 5
    assert row["high_percent"] >= 100 * effect - 5


def test_a_starved_arm_past_its_peak_has_no_verdict() -> None:
    levels = levels_table(
        effects={"no-offload": 0.0, "native-offload": 1.0}, levels=(8, 32), sd=0.004
    )
    levels["concurrency_shortfall"] = 0.0
    arm = levels["scenario"] == "native-offload"
    levels.loc[arm, "concurrency_shortfall"] = 0.2
    assert compared(levels)["throughput_tok_s"]["verdict"] == BETTER
    levels.loc[arm & (levels["level"] == 8), "throughput_tok_s"] *= 3
    row = compared(levels)["throughput_tok_s"]
    assert (row["verdict"], row["grounds"]) == (NOT_ASSESSED, "past_the_peak")


def test_a_latency_may_be_longer_by_what_littles_law_allows() -> None:
    # With an effect: an interval beside parity would be that of another confidence.
    row = compared(
        with_shortfall(0.5, arm=0.2).assign(
            e2e_ms_mean=lambda table: table["e2e_ms_p50"]
        )
    )["e2e_ms_p50"]
    plain = compared(with_shortfall(0.5, arm=0.2).assign(concurrency_shortfall=0.0))[
        "e2e_ms_p50"
    ]
    assert (100 + row["high_percent"]) / (100 + plain["high_percent"]) == pytest.approx(
        1.25
    )
    assert row["low_percent"] == pytest.approx(plain["low_percent"])


def test_identical_runs_are_as_sure_as_their_requests_allow(tmp_path: Path) -> None:
    """Twelve requests a level, three runs alike: the spread is next to 0, and the window's ends are up to a sixth.

    Each run is ten microseconds slower than the one before, because runs that are equal to the last digit are copies.
    """
    held = []
    for latency in np.linspace(3.65, 5.85, 12):
        arms = {
            scenario: [
                Story(
                    streams=2,
                    seconds=40.0,
                    latency_s=each + run * 1e-5,
                    ttft_s=each - 0.1,
                    tokens=16,
                )
                for run in range(3)
            ]
            for scenario, each in (
                ("no-offload", 5.0),
                ("native-offload", float(latency)),
            )
        }
        row = compared(campaign(tmp_path / str(latency), arms))["throughput_tok_s"]
        truth = 100 * (5.0 / latency - 1)
        held.append(row["low_percent"] <= truth <= row["high_percent"])
        assert row["verdict"] in (BETTER if truth > 0 else WORSE, INCONCLUSIVE)
    assert np.mean(held) > 0.9


def test_identical_numbers_without_any_noise_are_taken_as_they_are() -> None:
    levels = levels_table(
        effects={"no-offload": 0.0, "native-offload": 0.0}, levels=(8,)
    )
    levels["throughput_tok_s"] = 500.0
    row = compared(levels)["throughput_tok_s"]
    assert (
        row["effect_percent"],
        row["low_percent"],
        row["high_percent"],
        row["verdict"],
    ) == (0, 0, 0, PARITY)
    noisy = compared(levels.assign(throughput_se=0.1))["throughput_tok_s"]
    assert (noisy["verdict"], noisy["low_percent"] < -5) == (INCONCLUSIVE, True)


def test_one_failed_run_of_three_leaves_too_few_and_four_enough() -> None:
    levels = with_shortfall(0.5, runs=4)
    levels.loc[
        (levels["scenario"] == "native-offload") & (levels["run"] == 2), "checks_failed"
    ] = "errors"
    assert compared(levels)["throughput_tok_s"]["verdict"] == BETTER
    row = compared(levels[levels["run"] < 4])["throughput_tok_s"]
    assert (row["verdict"], row["runs"]) == (NOT_ASSESSED, 3)


def test_windows_that_change_apart_widen_the_interval_and_alike_do_not() -> None:
    levels = with_shortfall(0.02).assign(throughput_drift=0.0, throughput_drift_se=0.01)
    arm = levels["scenario"] == "native-offload"
    row, alike = (
        compared(levels.assign(throughput_drift=change)) for change in (0.0, 0.2)
    )
    apart = compared(levels.assign(throughput_drift=np.where(arm, 0.2, 0.0)))
    widths = [
        found["throughput_tok_s"]["high_percent"]
        - found["throughput_tok_s"]["low_percent"]
        for found in (row, alike, apart)
    ]
    assert widths[0] == pytest.approx(widths[1])
    assert widths[2] > widths[0] + 20
    assert apart["throughput_tok_s"]["verdict"] == INCONCLUSIVE


NINE_RUNS = {
    "no-offload": (43.7, 39.0, 51.4),
    "native-offload": (37.9, 34.9, 33.3),
    "lmcache-redis": (130.0, 147.0, 134.0),
}
"""Tok/s of a campaign on a virtual machine of two cores."""


def nine_runs(change: float, **rates: tuple[float, ...]) -> pd.DataFrame:
    """That campaign; in the third run of the baseline the host's speed changed within the window."""
    values = NINE_RUNS | rates
    levels = levels_table(effects=dict.fromkeys(values, 0.0), levels=(8,), runs=3)
    levels["throughput_tok_s"] = np.concatenate([*values.values()])
    unsteady = (levels["scenario"] == "no-offload") & (levels["run"] == 3)
    drift = np.where(unsteady, change, 0.0)
    return levels.assign(throughput_drift=drift, throughput_drift_se=0.02)


def with_goodput(levels: pd.DataFrame) -> pd.DataFrame:
    """The same levels; all requests met the limits."""
    return levels.assign(
        goodput_met=100,
        goodput_settled=100,
        concurrency_shortfall=0.0,
        **{GOODPUT: levels["throughput_tok_s"] / 64},
        **{f"{GOODPUT}_se": 0.0},
    )


def throughput_of(levels: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """The rows on throughput by scenario."""
    table = compare_all(levels, BASELINES, Comparison()).baseline
    rows = table[table["metric"] == "throughput_tok_s"].to_dict("records")
    return {str(row["scenario"]): row for row in rows}


def test_a_threefold_effect_stands_against_a_window_of_two_states() -> None:
    steady, row = (
        throughput_of(nine_runs(change))["lmcache-redis"] for change in (0.0, 0.63)
    )
    assert (row["verdict"], row["runs"], row["exclusions"]) == (BETTER, 3, "")
    assert row["effect_percent"] == pytest.approx(steady["effect_percent"])
    # One of three runs may be off by ln(1.315 / 0.685), to either side.
    for end, sign in (("low_percent", -1), ("high_percent", 1)):
        wider = (100 + row[end]) / (100 + steady[end])
        assert wider == pytest.approx((1.315 / 0.685) ** (sign / 3))
    assert row["p_value"] > steady["p_value"]


def test_a_difference_that_a_window_of_two_states_may_be_is_not_assessed() -> None:
    rows = throughput_of(nine_runs(0.63))
    # 21 % slower, and the window may have made 20 % of that.
    assert rows["native-offload"]["verdict"] == INCONCLUSIVE
    row = throughput_of(nine_runs(-0.7))["native-offload"]
    assert (row["verdict"], row["grounds"]) == (NOT_ASSESSED, "unsteady_windows")
    (found,) = [
        finding for finding in read_findings(row) if finding.code == row["grounds"]
    ]
    assert found.facts == {
        "windows": [{"side": "reference", "run": 3, "change_percent": -70.0}],
        "bound_ln": pytest.approx(np.log(1.35 / 0.65) / 3),
    }
    assert "-70 % in run 3 of no-offload" in row["reason"]
    assert verdict_of(row) == CANNOT_TELL_YET


def test_too_few_runs_come_before_a_window_of_two_states() -> None:
    levels = nine_runs(0.63)
    few = levels[levels["run"] > 1]
    assert throughput_of(few)["native-offload"]["grounds"] == "few_runs"


def test_windows_of_two_states_say_nothing_of_latencies_and_all_of_goodput() -> None:
    steady, unsteady = (
        compared(with_goodput(nine_runs(change))) for change in (0.0, 0.63)
    )
    assert GOODPUT in steady
    for metric, row in steady.items():
        of_rate = metric in ("throughput_tok_s", GOODPUT)
        assert (unsteady[metric]["high_percent"] > row["high_percent"]) == of_rate


def test_a_window_without_a_bound_leaves_rates_out_and_keeps_latencies() -> None:
    levels = nine_runs(0.0)
    unsteady = (levels["scenario"] == "no-offload") & (levels["run"] == 3)
    failed = with_goodput(levels).assign(
        checks_failed=np.where(unsteady, "steadiness", "")
    )
    for metric, row in compared(failed).items():
        of_rate = metric in ("throughput_tok_s", GOODPUT)
        assert ("few_runs" in row["grounds"]) == of_rate


def test_a_level_whose_windows_had_one_state_is_preferred() -> None:
    levels = levels_table(effects={"no-offload": 0.0, "native-offload": 0.1})
    plain = levels.assign(
        throughput_tok_s=levels["throughput_tok_s"].where(
            levels["level"] != 8, levels["throughput_tok_s"] * (14 / 8) * (32 / 38)
        ),
        throughput_drift=0.0,
        throughput_drift_se=0.01,
    )
    common = compared(plain)["throughput_tok_s"]["level"]
    drift = np.where(plain["level"] == common, 0.8, 0.0)
    other = compared(plain.assign(throughput_drift=drift))["throughput_tok_s"]
    assert {common, other["level"]} == {8, 32}


@pytest.mark.parametrize(("code", "side"), [("server_rate", 0), ("server_tokens", 1)])
def test_counts_that_disagree_by_as_much_as_the_effect_leave_no_difference(
    code: str, side: int
) -> None:
    levels = with_shortfall(0.054)
    assert compared(levels)["throughput_tok_s"]["verdict"] == BETTER
    found = warn("{difference_percent:+.1f} % apart", difference_percent=-5.0)
    columns = outcome_columns([replace(found, code=code)])
    at = levels["scenario"] == ("no-offload", "native-offload")[side]
    levels.loc[at, [*columns]] = [*columns.values()]
    rows = compared(levels)
    row, latency = rows["throughput_tok_s"], rows["e2e_ms_p50"]
    assert row["verdict"] == INCONCLUSIVE
    assert row["low_percent"] < 0.5
    assert row["high_percent"] > 10
    assert latency["verdict"] == BETTER


contrasted = st.builds(
    Contrast,
    theta=st.floats(-2, 2),
    se=st.floats(0, 1),
    df=st.floats(1, 50),
    floor=st.floats(0, 1),
    below=st.floats(0, 1),
    above=st.floats(0, 1),
)


@given(contrasted, st.floats(0, 1))
def test_nothing_that_is_allowed_for_makes_a_contrast_surer(
    contrast: Contrast, systematic: float
) -> None:
    plain = Contrast(contrast.theta, contrast.se, contrast.df)
    for wider in (contrast, contrast.with_error(systematic)):
        (low, high), (least, most) = plain.interval(0.95), wider.interval(0.95)
        if wider.df == contrast.df:
            assert least <= low <= high <= most
            assert wider.p_difference() >= plain.p_difference() - 1e-12
            # Above a half the difference lies outside the margin: more noise makes that less sure.
            assert (
                wider.p_equivalence(0.05) >= min(plain.p_equivalence(0.05), 0.5) - 1e-12
            )


@given(contrasted)
def test_a_difference_is_significant_where_its_interval_excludes_none(
    contrast: Contrast,
) -> None:
    low, high = contrast.interval(0.95)
    if min(abs(low), abs(high)) > 1e-6:
        assert (contrast.p_difference() < 0.05) == (low > 0 or high < 0)


@pytest.mark.parametrize(("runs", "cells"), [(3, 2), (3, 3), (3, 8), (5, 8)])
@pytest.mark.parametrize("times", [0.25, 4.0])
def test_intervals_cover_whatever_the_baselines_spread(
    times: float, runs: int, cells: int
) -> None:
    sds = np.r_[0.02 * times, np.full(cells - 1, 0.02)]
    assert (
        0.93 <= simulated.block_coverage(runs, sds, 1500 if cells < 8 else 500) <= 0.97
    )


@pytest.mark.parametrize("between", [0.0, 1.0])
@pytest.mark.parametrize("cells", [2, 8])
def test_noise_within_runs_is_not_counted_twice(cells: int, between: float) -> None:
    assert (
        0.93
        <= simulated.floor_coverage(3, cells, between, 1000 if cells < 8 else 400)
        <= 0.97
    )


@pytest.mark.parametrize("saturated", [False, True])
def test_equals_of_which_one_is_starved_are_rarely_called_different(
    saturated: bool,
) -> None:
    assert simulated.starved_verdicts(0.15, saturated, 300)[0] <= 0.06
