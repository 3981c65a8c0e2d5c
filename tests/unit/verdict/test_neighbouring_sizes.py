"""Neighbouring sizes of an arm are compared without a declaration, and no other comparison depends on them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.synthetic import levels_table, peaks_table

from kveval.campaign.campaign_file import Comparison
from kveval.campaign.cell import Cell
from kveval.estimators.intervals import holm
from kveval.verdict import verdict_words as words
from kveval.verdict.comparison import neighbouring_sizes
from kveval.verdict.verdict_tables import verdict_tables
from kveval.verdict.verdicts import Comparisons, compare_all

MODEL, OTHER_MODEL = "Qwen3-0.6B", "Qwen3-8B"
ARM = "native-offload"
SIZES = (500, 10_000, 20_000)
EFFECTS = {500: 0.02, 10_000: 0.30, 20_000: 0.30}
"""Size of the tier -> effect on the ln scale: the second one pays, the third one no more."""
THROUGHPUT, TTFT = "throughput_tok_s", "ttft_ms_p50"
METRICS = {THROUGHPUT: True, TTFT: False}
NAMES = [
    "scenario",
    "baseline",
    "reason",
    "qualifier",
    "findings",
    "exclusions",
    "method_hash",
]
"""Columns in which cells, or the declared pairs, have their names."""


def campaign(
    effects: Mapping[int, float] = EFFECTS,
    *,
    models: Sequence[str] = (MODEL,),
    one_arm: bool = True,
    **more: Any,
) -> pd.DataFrame:
    """A baseline, another arm, and sizes of one arm; without `one_arm` each size is an arm of its own."""
    of_arms = {f"{ARM}-{size}": effect for size, effect in effects.items()}
    every = {"no-offload": 0.0, "lmcache-redis": -0.1, **of_arms}
    levels = levels_table(models, every, **{"sd": 0.01, **more})
    for size in effects:
        of_size = levels["scenario"] == f"{ARM}-{size}"
        levels.loc[of_size, "cpu_blocks"] = size
        if one_arm:
            levels.loc[of_size, "scenario"] = ARM
    return levels


def compared(levels: pd.DataFrame, **declared: Any) -> Comparisons:
    baselines = {
        name: None if name == "no-offload" else "no-offload"
        for name in levels["scenario"].unique()
    }
    return compare_all(levels, baselines, Comparison(**declared), METRICS)


def of_metric(table: pd.DataFrame, metric: str = THROUGHPUT) -> pd.DataFrame:
    return table[table["metric"] == metric]


def pairs(table: pd.DataFrame) -> list[tuple[int, str]]:
    """The size of each row, and the arm with its size that it is compared with."""
    return [
        (row["cpu_blocks"], Cell.from_path(row["baseline"]).arm)
        for row in of_metric(table).to_dict("records")
    ]


@pytest.mark.parametrize("declared", [(), [[f"{ARM}/10000", f"{ARM}/500"]]])
def test_a_smaller_size_that_served_nothing_is_a_reference(
    declared: Sequence[Any],
) -> None:
    levels = _idle(campaign(), 500)
    row, _ = of_metric(compared(levels, contrasts=declared).contrasts).to_dict(
        "records"
    )
    assert (row["cpu_blocks"], row["verdict"]) == (10_000, words.BETTER)
    # The larger size of a pair that was declared the other way round has to be active, as any other reference.
    upside_down = compared(
        _idle(campaign(), 10_000), contrasts=[[f"{ARM}/500", f"{ARM}/10000"]]
    )
    first = of_metric(upside_down.contrasts).to_dict("records")[0]
    assert (first["cpu_blocks"], first["verdict"]) == (500, words.NOT_EXERCISED)
    # A tier that serves nothing is no reference for another arm.
    other = compared(levels, contrasts=[["lmcache-redis", f"{ARM}/500"]])
    (row,) = (
        of_metric(other.contrasts)
        .query("scenario == 'lmcache-redis'")
        .to_dict("records")
    )
    assert row["verdict"] == words.NOT_EXERCISED


def test_each_size_is_compared_with_the_next_smaller_one() -> None:
    tables = compared(campaign())
    assert pairs(tables.contrasts) == [
        (10_000, f"{ARM}/500"),
        (20_000, f"{ARM}/10000"),
    ]
    first, second = of_metric(tables.contrasts).to_dict("records")
    assert (first["verdict"], second["verdict"]) == (words.BETTER, words.PARITY)
    assert first["low_percent"] < 100 * np.expm1(0.28) < first["high_percent"]
    assert "TOST" in second["reason"]
    assert set(tables.contrasts["metric"]) == {*METRICS}
    assert set(tables.peaks["baseline"]) == {f"{MODEL}/no-offload/0"}


@pytest.mark.parametrize(
    ("names", "steps"),
    [
        (["a/20", "a/5", "a/10"], [("a/10", "a/5"), ("a/20", "a/10")]),
        (["a/10", "b/5", "c/0", "a/0"], []),
        (["a/10", "b/5", "a/2", "b/1"], [("a/10", "a/2"), ("b/5", "b/1")]),
    ],
)
def test_neighbours_are_of_one_arm_and_have_a_tier(
    names: list[str], steps: list[tuple[str, str]]
) -> None:
    cells = [Cell.from_arm(model, name) for model in ("m", "n") for name in names]
    assert [
        (larger.path, smaller.path) for larger, smaller in neighbouring_sizes(cells)
    ] == [
        (f"{model}/{larger}", f"{model}/{smaller}")
        for model in ("m", "n")
        for larger, smaller in steps
    ]


def test_neighbours_are_adjusted_for_each_other_alone() -> None:
    levels = campaign(models=(MODEL, OTHER_MODEL), sd=0.03)
    tables = compared(levels, contrasts=[["lmcache-redis", f"{ARM}/500"]])
    primary = of_metric(tables.contrasts)
    primary = primary[primary["family"] == "primary, neighbouring sizes"]
    assert len(primary) == 4
    latencies = of_metric(tables.contrasts, TTFT)
    latencies = latencies[latencies["family"] == "exploratory, neighbouring sizes"]
    assert len(latencies) == 4
    for p_value, adjusted in (("p_value", "p_holm"), ("p_parity", "p_parity_holm")):
        assert list(primary[adjusted]) == holm(list(primary[p_value]))
        assert list(latencies[adjusted]) == list(latencies[p_value])
    tables_of_verdicts = verdict_tables(
        levels,
        peaks_table(levels),
        dict.fromkeys([ARM, "lmcache-redis"], "no-offload") | {"no-offload": None},
        Comparison(),
    )
    checks = tables_of_verdicts["checks"]
    assert checks[checks["check"] == "multiplicity"].empty


@pytest.mark.parametrize("pair", [(20_000, 10_000), (10_000, 20_000)])
def test_a_declared_pair_of_sizes_stays_declared_and_is_not_doubled(
    pair: tuple[int, int],
) -> None:
    arm, reference = (f"{ARM}/{size}" for size in pair)
    tables = compared(campaign(), contrasts=[[arm, reference]])
    assert pairs(tables.contrasts) == [(pair[0], reference), (10_000, f"{ARM}/500")]
    assert list(of_metric(tables.contrasts)["family"]) == [
        "primary",
        "primary, neighbouring sizes",
    ]


def _idle(levels: pd.DataFrame, *sizes: int) -> pd.DataFrame:
    """The same campaign with idle tiers of these sizes."""
    idle = levels["cpu_blocks"].isin(sizes)
    levels.loc[idle, "exercised"] = False
    levels.loc[idle, "activity"] = "none"
    return levels


def _changed(size: int, **values: object) -> pd.DataFrame:
    levels = campaign()
    levels.loc[levels["cpu_blocks"] == size, [*values]] = [*values.values()]
    return levels


def _of_one_configuration() -> pd.DataFrame:
    levels = campaign()
    return levels.assign(
        configuration=levels["configuration"].where(levels["cpu_blocks"] < 10_000, "a")
    )


@pytest.mark.parametrize(
    ("levels", "verdict"),
    [
        (campaign(), words.PARITY),
        (campaign(runs=1), words.SINGLE_RUN),
        (campaign(runs=2), words.NOT_ASSESSED),
        (campaign(sd=0.2), words.INCONCLUSIVE),
        (_idle(campaign(), 20_000), words.NOT_EXERCISED),
        (_idle(campaign(), 10_000), words.PARITY),
        (_idle(campaign(sd=0.003), 10_000, 20_000), words.IDLE),
        (_changed(10_000, throughput_tok_s=0.0, output_tokens=0.0), words.NOT_ASSESSED),
        (_changed(20_000, checks_failed="errors"), words.NOT_ASSESSED),
        (_changed(20_000, hardware="another"), words.NOT_ASSESSED),
        (_of_one_configuration(), words.NOT_ASSESSED),
        (
            campaign().query("cpu_blocks != 20_000 or level != 32"),
            words.NOT_ASSESSED,
        ),
    ],
)
def test_neighbours_are_judged_as_a_declared_pair_is(
    levels: pd.DataFrame, verdict: str
) -> None:
    """All but what the number of comparisons in the family changes."""
    contrasts = [[f"{ARM}/20000", f"{ARM}/10000"]]
    declared = of_metric(compared(levels, level=32, contrasts=contrasts).contrasts)
    table = of_metric(compared(levels, level=32).contrasts)
    (pair,) = declared[declared["cpu_blocks"] == 20_000].to_dict("records")
    (row,) = table[table["cpu_blocks"] == 20_000].to_dict("records")
    assert row["verdict"] == verdict
    of_family = {"family", "p_holm", "p_parity_holm", "parity_power_percent"}
    of_family |= {"runs_to_resolve", "method_hash", "reason", "findings"}
    of_family |= {"low_percent", "high_percent", "interval_percent", "cost_percent"}
    of_family |= {"runs_to_decide"}
    same = [name for name in row if name not in of_family]
    pd.testing.assert_series_equal(
        pd.Series(row)[same], pd.Series(pair)[same], check_exact=True
    )


@settings(max_examples=20)
@given(
    seed=st.integers(0, 1000),
    effects=st.lists(st.sampled_from([0.0, 0.05, 0.3]), min_size=1, max_size=4),
    runs=st.sampled_from([1, 2, 3, 5]),
    sd=st.sampled_from([0.004, 0.03, 0.2]),
    idle=st.booleans(),
    alike=st.booleans(),
)
def test_no_other_comparison_depends_on_neighbours(
    seed: int, effects: list[float], runs: int, sd: float, idle: bool, alike: bool
) -> None:
    """Sizes of one arm, and the same cells as arms of their own, which have no neighbours: the same rows."""
    by_size = {1000 * (place + 1): effect for place, effect in enumerate(effects)}
    tables = []
    for one_arm in (True, False):
        levels = campaign(by_size, one_arm=one_arm, seed=seed, runs=runs, sd=sd)
        levels = _idle(levels, 1000) if idle else levels
        if alike:
            smaller = levels["cpu_blocks"].isin((1000, 2000))
            levels["configuration"] = levels["configuration"].where(~smaller, "alike")
        arm = ARM if one_arm else f"{ARM}-1000"
        contrasts = [["lmcache-redis", f"{arm}/1000"]]
        tables.append(compared(levels, contrasts=contrasts))
    sizes, arms = tables
    for table, expected in (
        (sizes.baseline, arms.baseline),
        (sizes.peaks, arms.peaks),
        (sizes.contrasts.head(len(arms.contrasts)), arms.contrasts),
    ):
        pd.testing.assert_frame_equal(
            table.drop(columns=NAMES),
            expected.drop(columns=NAMES),
            check_exact=True,
            check_dtype=False,
        )
    neighbours = sizes.contrasts.iloc[len(arms.contrasts) :]
    assert len(neighbours) == len(METRICS) * (len(effects) - 1)
    assert neighbours["family"].str.contains("neighbouring sizes").all()
