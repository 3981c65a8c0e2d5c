import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.simulated_levels import ClosedLoop

from kveval.estimators.survival import (
    ObservedTimes,
    effective_count,
    quantiles,
    risk_sets,
)
from kveval.tables.levels.records import window_columns


def observed(rows: list[tuple[float, float, bool]]) -> ObservedTimes:
    entry, leave, event = zip(*rows, strict=True)
    return ObservedTimes(np.array(entry), np.array(leave), np.array(event))


@given(st.lists(st.floats(0.001, 1e3), min_size=1, max_size=40), st.floats(0.01, 0.99))
def test_with_everything_observed_it_is_the_sample_quantile(
    values: list[float], share: float
) -> None:
    seen = observed([(0.0, value, True) for value in values])
    expected = np.quantile(values, share, method="inverted_cdf")
    found = quantiles(seen, [share])[0]
    # At a share of exactly k/n rounding may decide for the neighbour.
    assert (
        found == expected
        or min(abs(share * len(values) - k) for k in range(len(values) + 1)) < 1e-6
    )


def remission(times: int = 1) -> ObservedTimes:
    """Remission under 6-MP (Freireich et al. 1963), the textbooks' example; every patient so many times."""
    events = [6, 6, 6, 7, 10, 13, 16, 22, 23]
    censored = [6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35]
    once = observed(
        [(0.0, t, True) for t in events] + [(0.0, t, False) for t in censored]
    )
    unit = np.tile(np.arange(len(once.exit)), times)
    return ObservedTimes(
        *(np.tile(each, times) for each in (once.entry, once.exit, once.event)), unit
    )


def test_a_known_example() -> None:
    seen = remission()
    sets = risk_sets(seen)
    surviving = sets.surviving
    assert dict(zip(sets.times, surviving, strict=True))[6] == pytest.approx(18 / 21)
    assert dict(zip(sets.times, surviving, strict=True))[10] == pytest.approx(
        0.753, abs=5e-4
    )
    assert surviving[-1] == pytest.approx(0.448, abs=5e-4)
    assert quantiles(seen, [0.5]) == [23]
    assert np.isnan(quantiles(seen, [0.9])[0])


def test_a_quantile_beyond_the_last_event_is_not_reached() -> None:
    seen = observed(
        [(0.0, 1.0, True), (0.0, 2.0, True), (0.0, 50.0, False), (0.0, 50.0, False)]
    )
    assert quantiles(seen, [0.25, 0.5]) == [1.0, 2.0]
    assert np.isnan(quantiles(seen, [0.51, 0.9])).all()
    assert np.isnan(quantiles(observed([(0.0, 1.0, False)]), [0.5])[0])


def test_one_early_event_among_late_entries_does_not_end_the_curve() -> None:
    waiting = [(40.0, 60.0 + number, True) for number in range(50)]
    seen = observed([(0.0, 1.0, True), *waiting])
    assert quantiles(seen, [0.5])[0] == pytest.approx(84, abs=1)


@pytest.mark.parametrize("window", [3.0, 5.0, 30.0])
def test_a_window_of_a_closed_loop_gives_the_quantiles_of_its_requests(
    window: float,
) -> None:
    """Latencies of mean 1: what completes within a short window is too fast, the estimate is not."""
    generator = np.random.default_rng(4)
    naive, estimated = [], []
    for _ in range(60):
        begin = np.cumsum(generator.lognormal(-0.5, 1.0, (200, 400)), axis=1)
        age = np.diff(begin, axis=1)
        start, end = 20.0, 20.0 + window
        begin, finish, length = begin[:, :-1].ravel(), begin[:, 1:].ravel(), age.ravel()
        inside = (begin < end) & (finish >= start)
        done = finish[inside] < end
        entry = np.maximum(start - begin[inside], 0)
        leave = np.where(done, length[inside], end - begin[inside])
        estimated.append(quantiles(ObservedTimes(entry, leave, done), [0.9])[0])
        cohort = (begin >= start) & (finish < end)
        naive.append(np.quantile(length[cohort], 0.9))
    truth = np.exp(-0.5 + 1.2816)
    assert np.mean(estimated) == pytest.approx(truth, rel=0.02)
    if window < 10:
        assert np.mean(naive) < 0.9 * truth


def test_the_effective_count_is_that_of_greenwoods_error() -> None:
    """Survival past week 10 is 0.753 with a standard error of 0.0963 in every textbook; week 13 is the next event."""
    greenwood = 0.753 * 0.247 / 0.0963**2
    assert effective_count(remission(), 0.3) == pytest.approx(greenwood, rel=0.05)
    values = np.random.default_rng(1).lognormal(size=500)
    complete = ObservedTimes(np.zeros(500), values, np.ones(500, dtype=np.bool_))
    assert [
        effective_count(complete, share) for share in (0.5, 0.9, 0.99)
    ] == pytest.approx([500] * 3)
    assert np.isnan(effective_count(observed([(0.0, 1.0, False)]), 0.5))


def test_units_that_are_all_alike_count_as_many_as_they_are() -> None:
    # Two conversations with the same two latencies each.
    alike = ObservedTimes(
        np.zeros(4),
        np.array([1.0, 2.0, 1.0, 2.0]),
        np.ones(4, dtype=bool),
        np.array([0, 0, 1, 1]),
    )
    assert effective_count(alike, 0.75) == 2


def test_subjects_of_one_unit_count_as_one() -> None:
    assert effective_count(remission(4), 0.3) == pytest.approx(
        effective_count(remission(), 0.3)
    )


@pytest.mark.parametrize(
    "latencies", ["light", "exponential", "heavy", "hits and misses"]
)
@pytest.mark.parametrize(("streams", "seconds"), [(8, 80.0), (32, 20.0), (128, 10.0)])
def test_the_tail_of_a_window_is_estimated_without_bias(
    latencies: str, streams: int, seconds: float
) -> None:
    """640 requests and more, of which those in the tail are few at risk because most have ended."""
    loop = ClosedLoop(latencies, streams, seconds)
    generator = np.random.default_rng(6)
    windows = (loop.window(generator) for _ in range(40))
    found = [
        window_columns(requests, *window)["e2e_ms_p99"] for requests, window in windows
    ]
    error = np.std(np.log(found)) / np.sqrt(len(found))
    assert np.mean(np.log(found)) == pytest.approx(
        np.log(loop.true_quantile(0.99)), abs=0.02 + 2.5 * error
    )
