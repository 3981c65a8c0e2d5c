"""From how many tokens on loading beats computing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveval.plugins.curve.simulation.break_even import ComputeTime, LoadTime, break_even

SECONDS = st.floats(1e-7, 1e-3)
COMPUTE = st.builds(ComputeTime, SECONDS, st.one_of(st.just(0.0), SECONDS))
LOAD = st.builds(LoadTime, st.one_of(st.just(0.0), SECONDS), SECONDS)
_MOST = 10**9


def tokens(compute: ComputeTime, load: LoadTime) -> int:
    found = break_even(compute, load)
    return _MOST if found is None else min(found, _MOST)


@given(COMPUTE, LOAD, st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_faster_loading_never_raises_it(compute, load, fixed, rate):
    faster = LoadTime(load.fixed_s * fixed, load.token_s * rate)
    assert tokens(compute, faster) <= tokens(compute, load)


@given(COMPUTE, LOAD, st.floats(1.0, 10.0))
def test_slower_computing_never_raises_it(compute, load, factor):
    slower = ComputeTime(compute.token_s * factor, compute.context_share)
    assert tokens(slower, load) <= tokens(compute, load)


@given(COMPUTE, LOAD)
def test_loading_is_slower_before_and_not_after_it(compute, load):
    found = tokens(compute, load)
    tolerance = 1 + 1e-6
    if found > 1:
        before = found - 1
        assert compute.seconds(before) <= load.seconds(before) * tolerance
    if found < _MOST:
        for after in (found, found + 1, 2 * found):
            assert load.seconds(after) <= compute.seconds(after) * tolerance


def test_it_is_where_both_times_are_equal():
    compute = ComputeTime.from_prefix(1000, 2.0, 1e-3)
    load = LoadTime(0.0, 2.0 / 1000)
    assert compute.seconds(1000) == pytest.approx(load.seconds(1000)) == 2.0
    assert break_even(compute, load) in (1000, 1001)


def test_without_attention_it_may_never_come():
    assert break_even(ComputeTime(1e-4), LoadTime(0.0, 2e-4)) is None
    assert break_even(ComputeTime(1e-4), LoadTime(0.1, 1e-4)) is None
    assert break_even(ComputeTime(1e-4), LoadTime(0.0, 1e-4)) == 1
    assert break_even(ComputeTime(1e-4), LoadTime(0.01, 0.5e-4)) == 200


def test_a_published_case_of_slow_files():
    """dynamo#6101: of 20,000 tokens of Llama-3.1-8B on an H100, 0.9 s to compute, 40 s to load from a disk."""
    compute = ComputeTime.from_prefix(20_000, 0.9, 1e-5)
    found = break_even(compute, LoadTime(0.0, 40 / 20_000))
    assert found is None or found > 1_000_000
