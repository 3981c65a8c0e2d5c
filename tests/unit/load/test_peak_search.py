import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveval.load.peak_search import SearchResult, levels_to_freeze, next_level, outcome
from kveval.load.workload import PeakSearch

SEARCH = PeakSearch.model_validate(
    {"from": 1, "to": 650, "resolution": 0.1, "budget": 10, "keep": 5, "noise": 0.0}
)
FINE_GRID = sorted({round(1.1**step) for step in range(69)} | {650})


def with_(**changes):
    return SEARCH.model_copy(update=changes)


def peaked(optimum, *, sharpness=1.0):
    """A server whose throughput rises with the streams, and falls when they get in each other's way."""
    return lambda level: (
        1000 * math.exp(-sharpness * math.log(level / optimum) ** 2 / 8)
    )


def saturating(knee):
    """A server that delivers in proportion up to its knee, and the same ever after."""
    return lambda level: 20.0 * min(level, knee)


def run(search, server):
    tried = {}
    while (level := next_level(search, tried)) is not None:
        assert level not in tried
        assert search.start <= level <= search.stop
        tried[level] = server(level)
        assert len(tried) <= search.budget
    return tried


@given(st.floats(1, 650), st.floats(0.3, 3))
def test_the_peak_is_within_ten_percent_of_a_fine_grids_with_a_quarter_of_its_levels(
    optimum, sharpness
):
    server = peaked(optimum, sharpness=sharpness)
    tried = run(SEARCH, server)
    found = outcome(SEARCH, tried)
    assert tried[found.peak] >= 0.9 * max(map(server, FINE_GRID))
    assert len(tried) <= len(FINE_GRID) / 4


@given(st.floats(1, 650))
def test_with_levels_enough_the_peaks_own_level_is_found_as_closely_as_asked(optimum):
    search = with_(budget=25)
    found = outcome(search, run(search, peaked(optimum)))
    assert found.ending == "resolution"
    best = max(range(1, 651), key=peaked(optimum))
    assert (found.below or 1) <= best <= (found.above or 650)
    assert found.peak / best < 1.1 + 1 / best
    assert best / found.peak < 1.1 + 1 / best


@given(st.integers(3, 200))
def test_on_a_plateau_the_knee_is_found_not_its_far_end(knee):
    search = with_(budget=25, noise=0.02)
    found = outcome(search, run(search, saturating(knee)))
    assert found.above is not None
    assert 0.85 * knee - 1 <= found.peak <= 1.12 * knee + 1


@given(
    st.integers(1, 20),
    st.integers(2, 700),
    st.integers(3, 15),
    st.lists(st.floats(0, 1000), min_size=30, max_size=30),
)
def test_any_answers_end_within_the_budget(start, further, budget, answers):
    search = with_(start=start, stop=start + further, budget=budget, noise=0.02)
    given_answers = iter(answers)
    tried = run(search, lambda level: next(given_answers))
    assert len(tried) <= budget
    assert tried[outcome(search, tried).peak] >= 0.98 * max(tried.values())


def test_a_server_that_still_rises_at_the_end_is_not_bracketed():
    tried = run(SEARCH, float)
    found = outcome(SEARCH, tried)
    assert found.peak == 650
    assert found.above is None


def test_a_search_that_was_interrupted_goes_on_where_it_stopped():
    server = peaked(50)
    whole = run(SEARCH, server)
    half = dict(list(whole.items())[:4])
    rest = dict(half)
    while (level := next_level(SEARCH, rest)) is not None:
        rest[level] = server(level)
    assert rest == whole
    assert outcome(SEARCH, half).ending == "unfinished"


def test_levels_that_deliver_nothing_bound_the_search():
    tried = run(SEARCH, lambda level: 0.0 if level > 100 else 10.0 * level)
    found = outcome(SEARCH, tried)
    assert 50 < found.peak <= 100
    assert found.above is not None


def test_few_levels_are_frozen_around_the_peak_and_at_the_ends():
    tried = run(SEARCH, peaked(50))
    found = outcome(SEARCH, tried)
    frozen = levels_to_freeze(SEARCH, tried)
    assert frozen == tuple(
        sorted({found.peak, found.below, found.above, min(tried), max(tried)})
    )
    assert levels_to_freeze(with_(keep=99), tried) == tuple(sorted(tried))
    assert levels_to_freeze(with_(keep=3), tried) == tuple(
        sorted({found.peak, found.below, found.above})
    )


def test_levels_between_are_those_that_split_the_widest_ratio():
    search = with_(stop=100, budget=9, keep=6)
    tried = {1: 1.0, 4: 3.0, 16: 8.0, 40: 9.0, 50: 10.0, 60: 9.0, 100: 5.0}
    assert levels_to_freeze(search, tried) == (1, 4, 40, 50, 60, 100)


def test_nothing_tried_has_no_outcome():
    assert next_level(SEARCH, {}) == 1
    with pytest.raises(ValueError, match="nothing was tried"):
        outcome(SEARCH, {})


def test_one_level_is_its_own_peak():
    assert outcome(SEARCH, {1: 5.0}) == SearchResult(1, None, None, "unfinished")
