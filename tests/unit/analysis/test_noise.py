"""The noise within a run, and the first visits of its window."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.analysis.test_checks import steady

from kveval.analysis.levels.first_visits import first_visits, prompt_shares
from kveval.analysis.levels.noise import counting_error, cut_error, needed_for, quantile_error, whole
from kveval.analysis.levels.requests import Requests
from kveval.load.reports import RequestRecord

counts = st.integers(0, 200)
WORKLOAD = {"prefix_count": 8, "prefix_tokens": 6000, "prompt_tokens": 32, "levels": [2], "turns": 1}


def loop(lengths: np.ndarray, tokens: np.ndarray | None = None, turn: int = 0, silent: float = 0.5) -> Requests:
    """One stream of requests back to back from second 0 on, of so many tokens each, silent for a share of each."""
    ends = np.cumsum(lengths)
    tokens = np.full(len(lengths), 16) if tokens is None else tokens
    return Requests(
        [
            RequestRecord(
                *("completed", end - length, end - (1 - silent) * length, end, end, 6032, int(count)),
                *(1000 * silent * length, 1000 * length / count, 1.0, 1000 * length, str(number), turn),
            )
            for number, (end, length, count) in enumerate(zip(ends, lengths, tokens, strict=True))
        ]
    )


@given(st.integers(1, 500), counts, counts)
def test_first_visits_are_no_more_than_prefixes_and_conversations(prefixes: int, before: int, within: int) -> None:
    found = first_visits(prefixes, before, within)
    assert -1e-9 <= found <= min(prefixes, within) + 1e-9
    assert first_visits(prefixes, before + 1, within) <= found + 1e-9
    # What is seen first before and within is what is seen first in all.
    assert first_visits(prefixes, 0, before) + found == pytest.approx(first_visits(prefixes, 0, before + within))


@given(st.integers(1, 30), st.integers(0, 30), st.integers(0, 30))
def test_first_visits_are_those_of_random_draws(prefixes: int, before: int, within: int) -> None:
    generator = np.random.default_rng(prefixes + 31 * before + 997 * within)
    draws = generator.integers(0, prefixes, (400, before + within))
    new = [len(set(row)) - len(set(row[:before])) for row in draws.tolist()]
    assert first_visits(prefixes, before, within) == pytest.approx(np.mean(new), abs=0.15 * np.sqrt(prefixes))


def test_the_share_of_first_visits_is_of_the_windows_prompt_tokens() -> None:
    requests = loop(np.full(20, 1.0))
    visits, unshared = prompt_shares(WORKLOAD, 2, requests, (10.0, 20.0))
    assert visits == pytest.approx(first_visits(8, 10, 10) * 6000 / (10 * 6032))
    assert unshared == pytest.approx(32 / 6032)
    assert prompt_shares({**WORKLOAD, "prime": True}, 2, requests, (10.0, 20.0))[0] == 0
    # Later turns visit what their conversation did.
    assert prompt_shares(WORKLOAD, 2, loop(np.full(20, 1.0), turn=1), (10.0, 20.0))[0] == 0
    assert np.isnan(prompt_shares({"levels": [2]}, 2, requests, (10.0, 20.0))[0])


@pytest.mark.parametrize("varied", ["latencies", "both"])
def test_the_counting_error_is_that_of_runs_made_again(varied: str) -> None:
    """Long answers take long: where both vary together, throughput hardly does."""
    generator = np.random.default_rng(1)
    logs, errors = [], []
    for _ in range(300):
        lengths = generator.lognormal(0, 0.5, 600)
        tokens = np.maximum(1, np.round(100 * lengths)) if varied == "both" else None
        requests = loop(lengths, tokens, silent=0.0)
        logs.append(np.log(requests.delivered(50.0, 350.0).sum()))
        errors.append(counting_error(requests, 50.0, 350.0))
    assert np.mean(errors) == pytest.approx(np.std(logs), rel=0.15, abs=0.002)


def test_the_cut_is_that_of_windows_anywhere() -> None:
    """A request a second, silent for nine tenths of it, in windows of ten and a half."""
    requests = loop(np.full(60, 1.0), silent=0.9)
    logs = [np.log(requests.delivered(start, start + 10.37).sum()) for start in np.linspace(10, 11, 200)]
    assert cut_error(requests, 10.0, 20.37, 1.0) == pytest.approx(np.std(logs), rel=0.3)
    assert cut_error(steady(640.0, 120.0), 0.0, 120.0, 8.0) < 0.001


@pytest.mark.parametrize("count", [12, 50, 400])
@pytest.mark.parametrize("share", [0.5, 0.9])
def test_the_error_of_a_quantile_is_that_of_samples_drawn_again(count: int, share: float) -> None:
    generator = np.random.default_rng(2)
    samples = generator.lognormal(0, 0.4, (1500, count))
    drawn = np.log(np.quantile(samples, share, axis=1, method="inverted_cdf")).std()
    errors = [quantile_error(whole(sample), share) for sample in samples]
    assert np.nanmean(errors) == pytest.approx(drawn, rel=0.3)


def test_a_quantile_needs_values_beyond_it() -> None:
    assert [needed_for(name) for name in ("p50", "p90", "p99")] == [4, 20, 200]
    assert np.isnan(quantile_error(whole(np.empty(0)), 0.5))
    assert np.isnan(counting_error(Requests(()), 0.0, 1.0))
    assert counting_error(loop(np.array([2.0])), 0.0, 3.0) == 1.0
