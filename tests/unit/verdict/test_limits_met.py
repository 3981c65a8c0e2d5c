"""Goodput compared: where, when it may not be, and what becomes of none that met the limits."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.support.synthetic import BASELINES, levels_table
from tests.support.synthetic_value import with_goodput

from kveval.campaign.campaign_file import Comparison
from kveval.estimators.intervals import contrasts
from kveval.tables.csv_files import read_table
from kveval.tables.levels.goodput import GOODPUT
from kveval.tables.peaks import peak_row
from kveval.verdict.failed_checks import FAILURES
from kveval.verdict.limits_met import (
    replace_zero_goodput,
)
from kveval.verdict.uncertainty import widen_by_noise
from kveval.verdict.verdict_tables import verdict_tables
from kveval.verdict.verdict_words import (
    BETTER,
    NOT_ASSESSED,
    NOT_JUDGED,
    PARITY,
    WORSE,
)
from kveval.verdict.verdicts import METRICS, compare_all

Share = Callable[[str, int], float]
# The baseline meets its limits up to 8 streams, this arm up to 32.
KNEES = {"no-offload": 14, "native-offload": 60, "lmcache-redis": 14, "idle": 14}


def knee(scenario: str, level: int) -> float:
    return 1 / (1 + (level / KNEES[scenario]) ** 6)


def campaign(
    share: Share = knee, effects: dict[str, float] | None = None, **more: Any
) -> pd.DataFrame:
    flat = {"no-offload": 0.0, "native-offload": 0.0, "lmcache-redis": 0.0}
    return with_goodput(levels_table(effects=effects or flat, **more), share)


def rows_of(table: pd.DataFrame) -> dict[str, dict[str, Any]]:
    rows = table[table["metric"] == GOODPUT].to_dict("records")
    return {
        str(row["scenario"]): {str(key): value for key, value in row.items()}
        for row in rows
    }


def test_it_is_compared_where_limits_are_declared_and_nowhere_else() -> None:
    assert GOODPUT in set(compare_all(campaign(), BASELINES).baseline["metric"])
    plain = compare_all(levels_table(), BASELINES)
    assert set(plain.baseline["metric"]) == set(METRICS)
    assert set(plain.peaks["metric"]) == {"throughput_tok_s"}


def test_arms_are_compared_where_the_baselines_goodput_is_best_and_each_at_its_own_best() -> (
    None
):
    found = compare_all(campaign(), BASELINES)
    common, best = (
        rows_of(found.baseline)["native-offload"],
        rows_of(found.peaks)["native-offload"],
    )
    throughput = found.baseline[found.baseline["metric"] == "throughput_tok_s"]
    assert common["level"] == 8
    assert set(throughput["level"]) == {32}
    assert best["level"] == 32
    assert set(best["levels_compared"].split(";")) == {"8", "32"}
    assert best["verdict"] == NOT_JUDGED
    assert best["effect_percent"] > 2 * common["effect_percent"] > 0


def test_limits_that_everything_meets_compare_as_throughput_does() -> None:
    table = campaign(
        lambda *_: 1.0,
        {"no-offload": 0.0, "native-offload": 0.12, "lmcache-redis": -0.12},
    )
    compared = compare_all(table, BASELINES).baseline
    verdicts = compared.pivot_table(
        index="scenario", columns="metric", values="verdict", aggfunc="first"
    )
    assert list(verdicts[GOODPUT]) == list(verdicts["throughput_tok_s"])
    flat = rows_of(compare_all(campaign(lambda *_: 1.0, sd=0.005), BASELINES).baseline)
    assert flat["native-offload"]["verdict"] == PARITY


@pytest.mark.parametrize(
    ("empty", "verdict"), [("native-offload", WORSE), ("no-offload", BETTER)]
)
def test_none_on_one_side_is_a_difference_at_least_as_large_as_shown(
    empty: str, verdict: str
) -> None:
    table = campaign(lambda scenario, _: 0.0 if scenario == empty else 0.9)
    found = compare_all(table, BASELINES)
    for table_, said in ((found.baseline, verdict), (found.peaks, NOT_JUDGED)):
        row = rows_of(table_)["native-offload"]
        assert (row["verdict"], row["bound"]) == (said, "at least")
        assert np.isfinite([row["low_percent"], row["high_percent"]]).all()
        assert "5 of 5 runs" in row["reason"]
    assert table[table["scenario"] == empty][GOODPUT].eq(0).all()


def test_an_arm_without_any_leaves_the_others_comparisons_as_they_are() -> None:
    def but_one(scenario: str, _: int) -> float:
        return 0.0 if scenario == "lmcache-redis" else 0.9

    alone = campaign(but_one, {"no-offload": 0.0, "native-offload": 0.05})
    beside = campaign(
        but_one, {"no-offload": 0.0, "native-offload": 0.05, "lmcache-redis": 0.0}
    )
    both = [
        rows_of(compare_all(table, BASELINES).baseline)["native-offload"]
        for table in (alone, beside)
    ]
    widths = [row["high_percent"] - row["low_percent"] for row in both]
    assert widths[1] == pytest.approx(widths[0], rel=0.6)


def changed(column: str, scenario: str, value: Any) -> pd.DataFrame:
    table = campaign()
    table.loc[table["scenario"] == scenario, column] = value
    return table


@pytest.mark.parametrize(
    ("table", "says"),
    [
        (campaign(lambda *_: 0.0), "nothing met the limits in either: use looser limits"),
        (changed(GOODPUT, "native-offload", np.nan), "goodput is unknown for one of the two"),
        (changed("goodput_settled", "native-offload", 9), "9 met or missed"),
        (changed("concurrency_shortfall", "native-offload", 0.2), "20 % fewer requests in flight"),
        (changed("checks_failed", "native-offload", "window"), FAILURES["window"]),
    ],
)  # fmt: skip
def test_nothing_is_said_where_goodput_cannot_be_compared(
    table: pd.DataFrame, says: str
) -> None:
    row = rows_of(compare_all(table, BASELINES).baseline)["native-offload"]
    assert row["verdict"] == NOT_ASSESSED
    assert says in row["reason"]


def test_at_fixed_rates_goodput_is_judged_though_throughput_is_not() -> None:
    table = campaign().assign(rate_req_s=lambda rows: rows["level"].astype(float))
    found = compare_all(table, BASELINES)
    throughput = found.baseline[found.baseline["metric"] == "throughput_tok_s"]
    assert set(throughput["verdict"]) == {NOT_ASSESSED}
    assert rows_of(found.baseline)["native-offload"]["verdict"] == PARITY


def test_failed_requests_missed_the_limits_already_and_widen_nothing() -> None:
    none, some = (
        rows_of(compare_all(campaign().assign(requests_errored=n), BASELINES).baseline)
        for n in (0, 1)
    )
    for name in ("low_percent", "effect_percent", "high_percent"):
        assert some["native-offload"][name] == none["native-offload"][name]


def test_few_that_meet_the_limits_make_no_claim_of_chance() -> None:
    generator = np.random.default_rng(5)
    claims, looked = 0, 300
    for _ in range(looked):
        met = generator.poisson(2.0, (5, 2)).astype(float)
        rows = [
            replace_zero_goodput(pd.DataFrame({GOODPUT: column, f"{GOODPUT}_se": 1 / np.sqrt(np.maximum(column, 1e-9))})
                       .assign(duration_s=1.0)).to_dict("records")
            for column in met.T
        ]  # fmt: skip
        logs = np.log([[row[GOODPUT] for row in side] for side in rows]).T
        claims += (
            widen_by_noise(
                contrasts(logs, [(1, 0)])[0], rows[0], rows[1], GOODPUT
            ).p_difference()
            < 0.05
        )
    assert claims <= 0.06 * looked


def test_a_peak_names_the_level_of_the_most_goodput(tmp_path: Any) -> None:
    table = campaign()
    arm = peak_row(table[table["scenario"] == "native-offload"])
    base = peak_row(table[table["scenario"] == "no-offload"])
    assert (arm["goodput_level"], base["goodput_level"]) == (32, 8)
    assert arm["goodput_low_per_s"] < arm[GOODPUT] < arm["goodput_high_per_s"]
    none = peak_row(campaign(lambda *_: 0.0).query("scenario == 'no-offload'"))
    assert np.isnan(none["goodput_level"])
    assert (none[GOODPUT], none["goodput_share"]) == (0, 0)
    unknown = peak_row(
        changed(GOODPUT, "no-offload", np.nan).query("scenario == 'no-offload'")
    )
    assert np.isnan(unknown[GOODPUT])
    path = tmp_path / "peak.csv"
    pd.DataFrame([arm, none]).to_csv(path, index=False)
    assert list(read_table(path)["goodput_limits"]) == [arm["goodput_limits"]] * 2


def test_the_campaigns_own_checks_find_nothing_in_it() -> None:
    table = campaign()
    peaks = pd.DataFrame(
        [peak_row(rows) for _, rows in table.groupby(["model", "scenario"], sort=False)]
    )
    checks = verdict_tables(table, peaks, BASELINES, Comparison())["checks"]
    assert list(checks[checks["severity"] == "fail"]["message"]) == []
