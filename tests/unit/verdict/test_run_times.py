"""Effects of when runs were measured, by tables whose trend, order and pauses are known.

These functions are tested by themselves: a comparison only qualifies its verdict by them, and shows none of their numbers.
"""

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveval.verdict.run_times import (
    constant_offset,
    find_pauses,
    pause_effect,
    trend_error,
)

MINUTE_S = 60.0
HOUR_S = 60 * MINUTE_S
# Four blocks of three cells: a block begins each hour, its runs ten minutes one after the other.
BLOCK_STARTS_S = HOUR_S * np.arange(4)
STARTS_S = BLOCK_STARTS_S[:, np.newaxis] + 10 * MINUTE_S * np.arange(3)
FIRST, MIDDLE, LAST = range(3)


@given(st.floats(-1e-4, 1e-4), st.lists(st.floats(-2, 2), min_size=3, max_size=3))
def test_a_trend_counts_whole_whatever_the_cells_are(
    slope_per_s: float, cells: list[float]
) -> None:
    block_times_s = STARTS_S.mean(axis=1)
    logs = slope_per_s * block_times_s[:, np.newaxis] + np.array(cells)
    assert trend_error(logs, STARTS_S) == pytest.approx(abs(slope_per_s), abs=1e-9)


def test_what_a_trend_does_not_explain_is_its_standard_error() -> None:
    # The means of the blocks have no slope, so each is a residual.
    residuals = np.array([0.1, -0.1, -0.1, 0.1])
    logs = residuals[:, np.newaxis] + np.zeros(3)
    # By hand: the residuals' variance, with two degrees of freedom fewer than blocks, over the sum of squares of times.
    variance = np.sum(residuals**2) / 2
    hours_from_the_middle = np.array([-1.5, -0.5, 0.5, 1.5])
    squares_of_times = np.sum((HOUR_S * hours_from_the_middle) ** 2)
    expected = math.sqrt(variance / squares_of_times)
    assert trend_error(logs, STARTS_S) == pytest.approx(expected)


@given(st.floats(1e-6, 1e3))
def test_a_trend_is_per_second_however_short_the_runs(factor: float) -> None:
    logs = np.array([0.0, 0.2, 0.1, 0.5])[:, np.newaxis] + np.zeros(3)
    per_s = trend_error(logs, STARTS_S)
    assert per_s is not None
    assert trend_error(logs, STARTS_S * factor) == pytest.approx(per_s / factor)


def test_two_blocks_have_no_trend_with_an_error() -> None:
    assert trend_error(np.zeros((2, 3)), STARTS_S[:2]) is None
    assert trend_error(np.zeros((3, 3)), STARTS_S[:3]) == 0.0


def test_blocks_at_one_time_have_no_trend() -> None:
    assert trend_error(np.zeros((4, 3)), np.zeros((4, 3))) is None


def test_an_order_that_never_changes_is_an_offset() -> None:
    assert constant_offset(STARTS_S, LAST, FIRST) == 20 * MINUTE_S
    assert constant_offset(STARTS_S, FIRST, MIDDLE) == -10 * MINUTE_S
    two_blocks = STARTS_S[:2]
    assert constant_offset(two_blocks, LAST, FIRST) == 0.0


def test_an_order_that_is_mirrored_in_every_second_block_is_none() -> None:
    mirrored = STARTS_S.copy()
    mirrored[1::2] = mirrored[1::2, ::-1]
    assert constant_offset(mirrored, LAST, FIRST) == 0.0
    # The middle one keeps its place, and is not always before or after the other.
    assert constant_offset(mirrored, MIDDLE, FIRST) == 0.0


def test_an_order_with_an_unknown_time_is_unknown() -> None:
    unknown = STARTS_S.copy()
    unknown[0, MIDDLE] = np.nan
    assert constant_offset(unknown, LAST, FIRST) is None


def test_a_campaign_pauses_where_no_run_was_for_longer_than_three_runs_take() -> None:
    # Runs of 100 s; after them 10 s, 300 s and 301 s without any.
    runs = [(0.0, 100.0), (110.0, 210.0), (510.0, 610.0), (911.0, 1011.0)]
    middle_of_the_pause = (610.0 + 911.0) / 2
    assert find_pauses(runs) == [middle_of_the_pause]
    of_unknown_times = (math.nan, math.nan)
    assert find_pauses([*reversed(runs), of_unknown_times]) == [middle_of_the_pause]
    beside_the_others = (500.0, 950.0)
    assert find_pauses([*runs, beside_the_others]) == []
    assert find_pauses([]) == []
    assert find_pauses(runs, least_s=99.0) == [middle_of_the_pause]
    assert find_pauses(runs, least_s=101.0) == [], (
        "runs take longer than their times say"
    )


# Six blocks of four cells: one a second, with a pause after every second one.
SIX_BLOCKS_S = np.arange(6.0)[:, np.newaxis] + np.zeros(4)
PAUSES_S = [1.5, 3.5]


def in_groups() -> npt.NDArray[np.float64]:
    """Return six runs of four cells: two alike between two pauses each, the three pairs different."""
    generator = np.random.default_rng(7)
    groups = np.repeat(generator.normal(size=(3, 4)), 2, axis=0)
    return groups + generator.normal(scale=0.01, size=(6, 4))


def test_equal_groups_of_blocks_give_a_mean_the_variance_between_them() -> None:
    effect = pause_effect(in_groups(), SIX_BLOCKS_S, PAUSES_S)
    assert effect is not None
    # The mean square between groups over that of all: of 15 degrees of freedom 6 are between, next to nothing within.
    assert effect == (pytest.approx(15 / 6, rel=0.01), 6)


@pytest.mark.parametrize(
    "pauses",
    [
        pytest.param([], id="no pause"),
        pytest.param([0.5, 1.5, 2.5, 3.5, 4.5], id="single blocks"),
    ],
)
def test_groups_that_cannot_be_compared_have_no_effect(pauses: list[float]) -> None:
    assert pause_effect(in_groups(), SIX_BLOCKS_S, pauses) is None
    unknown = SIX_BLOCKS_S.copy()
    unknown[3] = np.nan
    assert pause_effect(in_groups(), unknown, PAUSES_S) is None


def test_groups_that_do_not_differ_have_no_effect() -> None:
    assert pause_effect(np.zeros((6, 4)), SIX_BLOCKS_S, PAUSES_S) is None
    # Of each pair one run is before the pause, one after it: more unlike within groups than between them.
    alternating = in_groups()[[0, 2, 4, 1, 3, 5]]
    assert pause_effect(alternating, SIX_BLOCKS_S, [2.5]) is None
