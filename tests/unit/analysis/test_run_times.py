"""Effects of when runs were measured, by tables whose trend, order and sessions are known.

These functions are tested by themselves: a comparison only qualifies its verdict by them, and shows none of their numbers.
"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveval.analysis.statistics.run_times import (
    constant_offset,
    find_pauses,
    group_by_session,
    session_effect,
    trend_error,
)

# Four blocks of three cells, an hour apart, ten minutes between the runs of a block.
STARTS = 3600.0 * np.arange(4)[:, None] + 600.0 * np.arange(3)


@given(st.floats(-1e-4, 1e-4), st.lists(st.floats(-2, 2), min_size=3, max_size=3))
def test_a_trend_counts_whole_whatever_the_cells_are(
    slope: float, cells: list[float]
) -> None:
    logs = slope * STARTS.mean(axis=1)[:, None] + np.array(cells)
    assert trend_error(logs, STARTS) == pytest.approx(abs(slope), abs=1e-9)


def test_what_a_trend_does_not_explain_is_its_standard_error() -> None:
    # By hand: no slope, residuals of 0.1 in size, two degrees of freedom, the sum of squares of four times.
    means = np.array([0.1, -0.1, -0.1, 0.1])
    square = 3600.0**2 * (1.5**2 + 0.5**2) * 2
    expected = math.sqrt(0.04 / 2 / square)
    assert trend_error(means[:, None] + np.zeros(3), STARTS) == pytest.approx(expected)


def test_two_blocks_have_no_trend_with_an_error() -> None:
    assert trend_error(np.zeros((2, 3)), STARTS[:2]) is None
    assert trend_error(np.zeros((3, 3)), STARTS[:3]) == 0.0
    assert trend_error(np.zeros((4, 3)), np.zeros((4, 3))) is None


def test_an_order_that_never_changes_is_an_offset() -> None:
    assert constant_offset(STARTS, 2, 0) == 1200.0
    assert constant_offset(STARTS, 0, 1) == -600.0
    assert constant_offset(STARTS[:2], 2, 0) == 0.0
    mirrored = STARTS.copy()
    mirrored[1::2] = mirrored[1::2, ::-1]
    assert constant_offset(mirrored, 2, 0) == 0.0
    # The middle one keeps its place, and is not always before or after the other.
    assert constant_offset(mirrored, 1, 0) == 0.0
    unknown = STARTS.copy()
    unknown[0, 1] = np.nan
    assert constant_offset(unknown, 2, 0) is None


def test_a_campaign_pauses_where_no_run_was_for_longer_than_three_runs_take() -> None:
    spans = [(0.0, 100.0), (110.0, 210.0), (510.0, 610.0), (911.0, 1011.0)]
    assert find_pauses(spans) == [(610.0 + 911.0) / 2]
    assert find_pauses([*spans[::-1], (math.nan, math.nan)]) == [760.5]
    # A run beside the others, which lasts over the gap.
    assert find_pauses([*spans, (500.0, 950.0)]) == []
    assert find_pauses([]) == []


def test_sessions_are_the_blocks_between_pauses() -> None:
    assert group_by_session(STARTS, [5000.0]) == [[0, 1], [2, 3]]
    assert group_by_session(STARTS, []) == [[0, 1, 2, 3]]
    unknown = STARTS.copy()
    unknown[3] = np.nan
    assert group_by_session(unknown, [5000.0]) == [[0], [1], [2], [3]]


def test_equal_sessions_give_a_mean_the_variance_between_them() -> None:
    # Within a session runs are alike, and sessions differ: the factor is the mean square between over that of all.
    generator = np.random.default_rng(7)
    sessions = np.repeat(generator.normal(size=(3, 4)), 2, axis=0)
    logs = sessions + generator.normal(scale=0.01, size=(6, 4))
    effect = session_effect(logs, [[0, 1], [2, 3], [4, 5]])
    assert effect is not None
    assert effect.significant
    assert effect.df == 6
    # 15 degrees of freedom in all, 6 of them between, and next to nothing within.
    assert effect.variance_factor == pytest.approx(15 / 6, rel=0.01)
    assert session_effect(logs, [[0, 1, 2, 3, 4, 5]]) is None
    assert session_effect(logs, [[run] for run in range(6)]) is None
    assert session_effect(np.zeros((6, 4)), [[0, 1], [2, 3], [4, 5]]) is None
    # Alternating runs are more unlike within sessions than between them.
    alternating = logs[[0, 2, 4, 1, 3, 5]]
    assert session_effect(alternating, [[0, 1, 2], [3, 4, 5]]) is None
