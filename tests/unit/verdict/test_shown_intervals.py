"""What is shown decides: a verdict follows from its interval, in families of any size."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.verdict.test_attacks_statistics import (
    campaign,
    in_random_order,
    judged,
)

from kveval.estimators.intervals import Contrast, holm, holm_levels
from kveval.estimators.power import runs_to_differ, runs_to_equal
from kveval.estimators.spreads import Array
from kveval.verdict import verdict_words as words
from kveval.verdict.findings import read_findings

ALPHA = 0.05
MARGIN = 5.0
contrasts = st.builds(
    Contrast,
    theta=st.floats(-0.3, 0.3),
    se=st.floats(0.001, 0.1),
    df=st.floats(2, 60),
    floor=st.floats(0, 0.02),
    below=st.sampled_from([0.0, 0.02]),
    above=st.sampled_from([0.0, 0.02]),
)
families = st.lists(contrasts, min_size=1, max_size=9)


@given(families)
def test_an_interval_leaves_0_out_where_holm_rejects(family: list[Contrast]) -> None:
    p_values = [contrast.p_difference() for contrast in family]
    levels = holm_levels(p_values, ALPHA)
    for contrast, adjusted, level in zip(family, holm(p_values), levels, strict=True):
        low, high = contrast.interval(1 - level)
        assert (adjusted < ALPHA) == (not low <= 0 <= high)


@given(families)
def test_an_interval_lies_within_the_margin_where_parity_is_shown(
    family: list[Contrast],
) -> None:
    p_values = [contrast.p_equivalence(MARGIN / 100) for contrast in family]
    levels = holm_levels(p_values, ALPHA)
    bound = np.log1p(MARGIN / 100)
    for contrast, adjusted, level in zip(family, holm(p_values), levels, strict=True):
        low, high = contrast.interval(1 - 2 * level)
        assert (adjusted < ALPHA) == (-bound < low and high < bound)


@given(families)
def test_one_more_arm_without_an_effect_decides_nothing(family: list[Contrast]) -> None:
    p_values = [contrast.p_difference() for contrast in family]
    equal = Contrast(0.0, 0.02, 10).p_difference()
    before, after = holm(p_values), holm([*p_values, equal])[:-1]
    assert all(first <= second for first, second in zip(before, after, strict=True))


def test_the_levels_are_those_of_the_steps() -> None:
    assert holm_levels([0.2, 0.001, 0.03, 0.012], ALPHA) == pytest.approx(
        [ALPHA / 2, ALPHA / 4, ALPHA / 2, ALPHA / 3]
    )
    assert holm_levels([], ALPHA) == []


def made(seed: int) -> tuple[Array, Array]:
    """A campaign of one to seven arms: ln throughput and hours of start, runs x cells."""
    generator = np.random.default_rng(seed)
    runs, arms = int(generator.integers(3, 7)), int(generator.integers(1, 8))
    effects = generator.choice([0.0, 0.02, 0.04, 0.08, -0.05, 0.2], arms)
    sd = generator.choice([0.004, 0.02, 0.05])
    logs = generator.normal(0, sd, (runs, arms + 1)) + np.r_[0.0, effects]
    return logs, in_random_order(generator, runs, arms + 1)


@pytest.mark.parametrize("seed", range(60))
def test_a_verdict_is_what_its_interval_shows(seed: int) -> None:
    for row in judged(campaign(*made(seed))).to_dict("records"):
        low, high = row["low_percent"], row["high_percent"]
        least = 100 * (1 / (1 + MARGIN / 100) - 1)
        if row["verdict"] == words.PARITY:
            assert least < low < high < MARGIN
        elif low <= 0 <= high:
            assert row["verdict"] == words.INCONCLUSIVE
            assert not least < low < high < MARGIN
        else:
            assert row["verdict"] == (words.BETTER if low > 0 else words.WORSE)


COLUMNS = ["verdict", "effect_percent", "low_percent", "high_percent"]


@pytest.mark.parametrize("seed", range(12))
def test_neither_the_unit_nor_the_numbers_of_runs_matter(seed: int) -> None:
    logs, starts = made(seed)
    known = judged(campaign(logs, starts))[COLUMNS]
    order = np.random.default_rng(seed).permutation(len(logs))
    for other in (
        campaign(logs + np.log(60.0), starts),
        campaign(logs[order], starts[order]),
    ):
        pd.testing.assert_frame_equal(judged(other)[COLUMNS], known, rtol=1e-8)


@pytest.mark.parametrize("seed", range(12))
def test_sides_that_change_places_turn_the_verdict_round(seed: int) -> None:
    generator = np.random.default_rng(seed)
    logs = generator.normal(0, 0.02, (5, 2)) + np.array([0.0, 0.05 * (seed % 3)])
    starts = in_random_order(generator, 5, 2)
    row, turned = (
        judged(campaign(logs[:, sides], starts[:, sides])).iloc[0]
        for sides in ([0, 1], [1, 0])
    )
    opposite = {words.BETTER: words.WORSE, words.WORSE: words.BETTER}
    assert turned["verdict"] == opposite.get(row["verdict"], row["verdict"])
    assert 1 + turned["low_percent"] / 100 == pytest.approx(
        1 / (1 + row["high_percent"] / 100)
    )


@pytest.mark.parametrize("seed", range(6))
def test_a_larger_effect_is_never_less_of_one(seed: int) -> None:
    """From worse over undecided, equal and undecided again to better, as the effect grows."""
    logs, starts = made(seed)
    found = []
    for effect in np.linspace(-0.4, 0.4, 41):
        shifted = logs.copy()
        shifted[:, 1] += effect - shifted[:, 1].mean() + shifted[:, 0].mean()
        found.append(judged(campaign(shifted, starts)).loc["arm-1", "verdict"])
    ranks = {words.WORSE: -1, words.BETTER: 1}
    ordered = [ranks.get(word, 0) for word in found]
    assert ordered == sorted(ordered)
    equal = [place for place, word in enumerate(found) if word == words.PARITY]
    assert equal == [*range(equal[0], equal[-1] + 1)] if equal else True


def test_advice_is_about_the_effect_at_hand() -> None:
    """Three runs of about +60 % with a spread of 25 %: a few more show it, however many 5 % would take."""
    generator = np.random.default_rng(4)
    logs = generator.normal(0, 0.25, (3, 2)) + np.array([0.0, np.log(1.6)])
    row = judged(campaign(logs, in_random_order(generator, 3, 2))).iloc[0]
    assert row["verdict"] == words.INCONCLUSIVE
    assert 3 < row["runs_to_decide"] <= 12
    assert row["runs_to_resolve"] > 300


def test_a_small_effect_is_advised_on_equality() -> None:
    generator = np.random.default_rng(2)
    logs = generator.normal(0, 0.06, (5, 2))
    logs[:, 1] += 0.004 - (logs[:, 1] - logs[:, 0]).mean()
    row = judged(campaign(logs, in_random_order(generator, 5, 2))).iloc[0]
    (ground,) = (each for each in read_findings(row) if each.code == "more_runs")
    assert ground.facts["shows"] == "equality"
    assert 5 < ground.facts["runs"] == row["runs_to_decide"] < 30


def test_the_runs_for_an_effect_are_those_of_its_power() -> None:
    # One standard deviation apart, paired: 10 pairs have a power of 80 % (G*Power: n = 10, two-sided, 5 %).
    contrast = Contrast(0.1, 0.1 / np.sqrt(5), 4)
    assert runs_to_differ(contrast, 5, 0.05) == 10
    assert runs_to_differ(Contrast(0.01, 0.0, 4, below=0.02), 5, 0.05) is None
    assert runs_to_differ(Contrast(1e-4, 0.1, 4), 5, 0.05) is None
    assert runs_to_equal(contrast, 5, 0.05, 0.05) is None, "not within the margin"
    few, many = (
        runs_to_equal(Contrast(0.0, se, 4), 5, 0.05, 0.05) for se in (0.02, 0.03)
    )
    assert few is not None
    assert many is not None
    assert 5 < few < many
