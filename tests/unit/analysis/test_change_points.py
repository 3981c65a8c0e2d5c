"""Change points of simulated histories with known truth; benchmarks/bench_change_points.py runs more of them."""

from collections.abc import Iterable
from itertools import islice

import numpy as np
import pytest
from benchmarks.bench_change_points import COMMITS, simulate

from kveval.analysis.estimators.change_points import change_points


def test_three_steps_of_5_percent_are_found_within_3_commits_of_200() -> None:
    outcomes = [simulate(seed) for seed in range(2)]
    assert [each.found for each in outcomes] == [3, 3]
    assert max(each.false for each in outcomes) <= 1


def test_histories_without_a_step_have_hardly_a_change() -> None:
    outcomes = [simulate(seed, ()) for seed in range(20)]
    assert max(each.false for each in outcomes) <= 1
    assert sum(each.false for each in outcomes) <= 1


def test_a_change_that_another_undoes_is_found() -> None:
    values = np.random.default_rng(3).normal(0, 0.02, COMMITS)
    values[100:115] -= 0.08
    assert [
        abs(point.index - place) <= 3
        for point, place in zip(change_points(values), (100, 115), strict=True)
    ] == [
        True,
        True,
    ]


def test_a_clear_step_is_placed_exactly_and_its_size_is_told() -> None:
    values = np.random.default_rng(0).normal(0, 0.001, 30)
    values[17:] += 0.1
    (point,) = change_points(values)
    assert (point.index, point.earliest, point.latest) == (17, 17, 17)
    low, high = point.difference.interval(0.95)
    assert low < 0.1 < high
    assert high - low < 0.01


def test_the_mirrored_and_the_shifted_series_change_at_the_same_places() -> None:
    values = np.random.default_rng(1).normal(0, 0.02, 60)
    values[30:] += 0.1
    (point,) = change_points(values)
    for other in (-values, values + 5, 3 * values):
        assert [found.index for found in change_points(other)] == [point.index]
    assert [len(values) - found.index for found in change_points(values[::-1])] == [
        point.index
    ]


def test_outliers_are_no_changes() -> None:
    values = np.random.default_rng(2).normal(0, 0.02, 60)
    values[[20, 41]] += 0.5
    assert change_points(values) == []


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0, 3.0], [1.0] * 40])
def test_short_and_constant_series_have_no_changes(values: list[float]) -> None:
    assert change_points(np.array(values)) == []


def test_values_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ValueError, match="not finite"):
        change_points(np.array([1.0, np.nan] * 10))


@pytest.mark.xfail(
    strict=True,
    reason="the noise of builds is taken as independent of that of the builds before them",
)
@pytest.mark.parametrize("kept", [0.6, 0.9])
def test_noise_that_lasts_for_several_builds_is_no_change(kept: float) -> None:
    """AR(1) noise of 80 builds, each of which keeps a part of the one before: one series in 200 may have a change."""
    assert not more_than_one_changes(lasting_noise(kept, seed) for seed in range(12))


def lasting_noise(kept: float, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    values = [0.0]
    for _ in range(80):
        values.append(kept * values[-1] + generator.normal(0, 0.02))
    return np.array(values[1:])


@pytest.mark.xfail(strict=True, reason="a slow trend is named as a change at one build")
def test_a_slow_trend_is_no_change_at_one_build() -> None:
    noise = [np.random.default_rng(seed).normal(0, 0.02, 80) for seed in range(6)]
    assert not more_than_one_changes(
        values + np.linspace(0, 0.05, 80) for values in noise
    )


def more_than_one_changes(series: Iterable[np.ndarray]) -> bool:
    """Look no further once two of the series have a change."""
    changed = (values for values in series if change_points(values))
    return len([*islice(changed, 2)]) > 1
