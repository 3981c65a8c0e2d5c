"""The noise within a run, and the first visits of its window."""

import numpy as np
import pytest
from tests.support.simulated_levels import ClosedLoop
from tests.unit.tables.test_checks import steady

from kveval.configuration.reuse import visited
from kveval.load.reports import RequestRecord
from kveval.tables.levels.noise import (
    change_error,
    counting_error,
    cut_error,
    is_unsteady,
    latencies_needed,
    quantile_error,
    quantile_interval,
    rate_drift,
    state_bound,
    uncensored,
)
from kveval.tables.levels.records import prompt_shares, window_columns
from kveval.tables.levels.requests import Requests

WORKLOAD = {
    "prefix_count": 8,
    "prefix_tokens": 6000,
    "prompt_tokens": 32,
    "levels": [2],
    "turns": 1,
}


def loop(
    lengths: np.ndarray,
    tokens: np.ndarray | None = None,
    turn: int = 0,
    silent: float = 0.5,
) -> Requests:
    """One stream of requests back to back from second 0 on, of so many tokens each, silent for a share of each."""
    ends = np.cumsum(lengths)
    tokens = np.full(len(lengths), 16) if tokens is None else tokens
    return Requests(
        [
            RequestRecord(
                *(
                    "completed",
                    end - length,
                    end - (1 - silent) * length,
                    end,
                    end,
                    6032,
                    int(count),
                ),
                *(
                    1000 * silent * length,
                    1000 * length / count,
                    1.0,
                    1000 * length,
                    str(number),
                    turn,
                ),
            )
            for number, (end, length, count) in enumerate(
                zip(ends, lengths, tokens, strict=True)
            )
        ]
    )


def test_the_share_of_first_visits_is_of_the_windows_prompt_tokens() -> None:
    requests = loop(np.full(20, 1.0))
    visits, unshared = prompt_shares(WORKLOAD, 2, requests, (10.0, 20.0))
    assert visits == pytest.approx(
        (visited(8, 20) - visited(8, 10)) * 6000 / (10 * 6032)
    )
    assert unshared == pytest.approx(32 / 6032)
    assert prompt_shares({**WORKLOAD, "prime": True}, 2, requests, (10.0, 20.0))[0] == 0
    # Later turns visit what their conversation did.
    assert (
        prompt_shares(WORKLOAD, 2, loop(np.full(20, 1.0), turn=1), (10.0, 20.0))[0] == 0
    )
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
        logs.append(np.log(requests.tokens_delivered(50.0, 350.0).sum()))
        errors.append(counting_error(requests, 50.0, 350.0))
    assert np.mean(errors) == pytest.approx(np.std(logs), rel=0.15, abs=0.002)


def test_the_cut_is_that_of_windows_anywhere() -> None:
    """A request a second, silent for nine tenths of it, in windows of ten and a half."""
    requests = loop(np.full(60, 1.0), silent=0.9)
    logs = [
        np.log(requests.tokens_delivered(start, start + 10.37).sum())
        for start in np.linspace(10, 11, 200)
    ]
    assert cut_error(requests, 10.0, 20.37, 1.0) == pytest.approx(np.std(logs), rel=0.3)
    assert cut_error(steady(640.0, 120.0), 0.0, 120.0, 8.0) < 0.001


@pytest.mark.parametrize("count", [12, 50, 400])
@pytest.mark.parametrize("share", [0.5, 0.9])
def test_the_error_of_a_quantile_is_that_of_samples_drawn_again(
    count: int, share: float
) -> None:
    generator = np.random.default_rng(2)
    samples = generator.lognormal(0, 0.4, (1500, count))
    drawn = np.log(np.quantile(samples, share, axis=1, method="inverted_cdf")).std()
    errors = [quantile_error(uncensored(sample), share) for sample in samples]
    assert np.nanmean(errors) == pytest.approx(drawn, rel=0.3)


def test_a_quantile_needs_values_beyond_it() -> None:
    assert [latencies_needed(name) for name in ("p50", "p90", "p99")] == [4, 20, 1000]
    assert np.isnan(quantile_error(uncensored(np.empty(0)), 0.5))
    assert np.isnan(counting_error(Requests(()), 0.0, 1.0))
    assert counting_error(loop(np.array([2.0])), 0.0, 3.0) == 1.0


@pytest.mark.parametrize("count", [400, 1000])
def test_the_interval_of_a_quantile_holds_it(count: int) -> None:
    samples = np.random.default_rng(5).exponential(1.0, (400, count))
    truth = -np.log(0.01)
    intervals = np.array(
        [quantile_interval(uncensored(sample), 0.99) for sample in samples]
    )
    held = (intervals[:, 0] <= truth) & (truth <= intervals[:, 1])
    # With few values beyond it the interval of order statistics holds it more often than asked for.
    assert 0.93 <= held.mean() <= 0.99


def test_too_few_values_bound_a_quantile_from_below_only() -> None:
    values = np.arange(1.0, 368.0)
    low, high = quantile_interval(uncensored(values), 0.99)
    assert low > 300
    assert np.isnan(high)
    assert np.isfinite(quantile_interval(uncensored(np.arange(1.0, 369.0)), 0.99)[1])
    assert np.isnan(quantile_interval(uncensored(np.empty(0)), 0.99)).all()


def test_turns_of_a_conversation_are_not_taken_for_so_many_requests() -> None:
    """Turns that are almost alike: an interval from as many requests would hold the p99 in two of three windows."""
    loop = ClosedLoop("light", 16, 100.0, turns=6, spread=0.4)
    truth, generator = loop.true_quantile(0.99), np.random.default_rng(8)
    rows = [
        window_columns(requests, *window)
        for requests, window in (loop.window(generator) for _ in range(60))
    ]
    held = [
        row["e2e_ms_p99_low"] <= truth and not row["e2e_ms_p99_high"] < truth
        for row in rows
    ]
    assert np.mean(held) >= 0.88
    deviation = np.std(np.log([row["e2e_ms_p50"] for row in rows]))
    assert np.mean([row["e2e_ms_p50_se"] for row in rows]) == pytest.approx(
        deviation, rel=0.3
    )


def called_uneven(loop: ClosedLoop, count: int = 60) -> float:
    generator = np.random.default_rng(3)
    windows = (loop.window(generator) for _ in range(count))
    return float(
        np.mean(
            [
                is_unsteady(*rate_drift(requests, *window, loop.streams))
                for requests, window in windows
            ]
        )
    )


@pytest.mark.parametrize(
    "loops",
    [
        [
            ClosedLoop(latencies, streams, seconds)
            for streams, seconds in ((1, 30.0), (8, 12.0), (8, 30.0), (32, 100.0))
        ]
        for latencies in ("light", "exponential", "heavy", "hits and misses")
    ]
    + [[ClosedLoop("light", streams, 60.0, pace_sd=0.05) for streams in (1, 8, 32)]],
    ids=[
        "light",
        "exponential",
        "heavy",
        "hits and misses",
        "a server with ups and downs",
    ],
)
def test_few_steady_levels_are_called_uneven(loops: list[ClosedLoop]) -> None:
    assert np.mean([called_uneven(loop) for loop in loops]) <= 0.06


def test_a_rate_that_rises_is_found() -> None:
    assert called_uneven(ClosedLoop("light", 32, 30.0, fill=0.2)) > 0.9
    assert called_uneven(ClosedLoop("light", 8, 100.0, fill=0.2)) > 0.9


def test_the_error_of_a_change_is_that_of_batches_drawn_again() -> None:
    batches = np.random.default_rng(1).normal(0, 1, (2000, 9))
    changes = batches[:, 6:].mean(axis=1) - batches[:, :3].mean(axis=1)
    errors = np.array([change_error(row) for row in batches])
    assert np.mean(np.abs(changes) > 2 * errors) == pytest.approx(0.05, abs=0.02)
    # A straight line is no scatter.
    assert change_error(np.arange(9.0)) == pytest.approx(0, abs=1e-9)


def test_a_window_of_two_states_leaves_the_rate_between_them() -> None:
    # Twice as fast: the states are 2/3 and 4/3 of their mean.
    assert state_bound(2 / 3, 0.1) == pytest.approx(np.log(2))
    assert state_bound(-2 / 3, 0.1) == pytest.approx(np.log(2))
    assert state_bound(0.5, 0.01) == state_bound(0.9, 0.4) == state_bound(0.04, 0) == 0
    assert state_bound(np.nan, np.nan) == 0
    assert state_bound(2.0, 0.1) == state_bound(-2.0, 0.1) == np.inf
