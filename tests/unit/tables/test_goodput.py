"""Goodput of a level: when a request's fate is sealed, what the window cuts, sessions, reports without requests."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.described import run_tables
from tests.unit.plugins.curve.test_table_docs import documented
from tests.unit.tables.test_level_tables import measurement, only  # noqa: F401  (a fixture)

from kveval.load.reports import RequestRecord, Status
from kveval.tables.levels.goodput import GOODPUT, goodput, limits_text, settle
from kveval.tables.levels.requests import Requests

LIMITS: dict[str, Any] = {"ttft_ms": 500.0, "e2e_ms": 3000.0}
WINDOW = (100.0, 110.0)


def request(
    start: float,
    first: float | None,
    end: float | None,
    status: Status = "completed",
    **more: Any,
) -> Any:
    """A request of eleven tokens; times in seconds."""
    done = status == "completed" and end is not None and first is not None
    facts = {
        **{
            "prompt_tokens": 100,
            "output_tokens": 11 if first else 0,
            "conversation": None,
            "turn": 0,
        },
        "ttft_ms": None if first is None else 1000 * (first - start),
        "tpot_ms": 1000 * (end - start) / 11 if done else None,
        "itl_ms": 1000 * (end - first) / 10 if done else None,
        "e2e_ms": 1000 * (end - start) if done else None,
    }
    return RequestRecord(**{"status": status, "start": start, "first_token": first, "last_token": end, "end": end}
                         | facts | more)  # fmt: skip


def of(
    records: list[RequestRecord], limits: dict[str, Any] = LIMITS, **more: Any
) -> dict[str, Any]:
    return goodput(
        Requests(tuple(records)), WINDOW, limits, **{"turns": 1, "streams": 2, **more}
    )


@pytest.mark.parametrize(
    ("record", "limits", "at", "met"),
    [
        (request(101, 101.4, 103), LIMITS, 103, True),
        (request(101, 101.6, 103), LIMITS, 101.5, False),
        (request(101, 101.4, 105), LIMITS, 104, False),
        # Cut off by the end of the load, after a limit had passed, and before.
        (request(101, None, 101.7, "incomplete"), LIMITS, 101.5, False),
        (request(101, None, 101.3, "incomplete"), LIMITS, np.inf, False),
        (request(101, 101.2, 103, "incomplete"), LIMITS, np.inf, False),
        (request(101, 101.2, None, "incomplete"), LIMITS, 104, False),
        # A failure misses when it happens, or before.
        (request(101, None, 101.2, "errored"), LIMITS, 101.2, False),
        (request(101, None, 160, "errored"), LIMITS, 101.5, False),
        # What is known at the end alone.
        (request(101, 101.4, 103), {"itl_ms": 159.0}, 103, False),
        (request(101, 101.4, 103), {"itl_ms": 161.0}, 103, True),
        (request(101, 101.4, 103), {"tpot_ms": 181.0}, 103, False),
        (request(101, 101.4, 103), {"tpot_ms": 182.0}, 103, True),
        (
            request(101, 101.4, 103, itl_ms=None, output_tokens=1),
            {"itl_ms": 1.0},
            103,
            True,
        ),
        # Completed, and nobody knows how fast.
        (request(101, 101.4, 103, ttft_ms=None), LIMITS, np.inf, False),
    ],
)
def test_a_request_is_settled_when_its_fate_is_sealed(
    record: RequestRecord, limits: dict[str, Any], at: float, met: bool
) -> None:
    found = settle(Requests((record,)), limits, WINDOW[1])
    assert (found.time_s[0], found.met[0]) == (pytest.approx(at), met)


def test_a_request_counts_in_the_window_that_settles_it() -> None:
    before, within = request(96, 96.9, 101), request(98, 98.2, 100.5)
    across, missed_across = request(109, 109.2, 111), request(109, 109.9, 112)
    row = of([before, within, across, missed_across, request(104, 104.1, 106)])
    # The one that began before the window met its limits in it; that which had missed them by then did not.
    assert (row["goodput_met"], row["goodput_settled"]) == (2, 3)
    assert row[GOODPUT] == pytest.approx(0.2)
    assert row["goodput_share"] == pytest.approx(2 / 3)
    assert row["goodput_limits"] == limits_text(LIMITS)


def test_none_that_met_the_limits_is_a_rate_of_zero_and_nothing_settled_is_not_known() -> (
    None
):
    row = of([request(101, 102, 103), request(104, 105, 106)])
    assert (row[GOODPUT], row["goodput_share"], row["goodput_settled"]) == (0, 0, 2)
    assert np.isnan(row[f"{GOODPUT}_se"])
    for records in (
        [],
        [request(109.9, None, 110, "incomplete")],
        [request(101, 101.1, 102, e2e_ms=None)] * 3,
    ):
        assert np.isnan(of(records)[GOODPUT])


def closed_loop(
    generator: np.random.Generator, streams: int = 64, seconds: float = 60.0
) -> list[RequestRecord]:
    """Streams of requests with latencies of a heavy tail, cut at both ends of the window."""
    records = []
    for _ in range(streams):
        start = 100 - 50 * generator.random()
        while start < 100 + seconds:
            latency = generator.lognormal(1, 1)
            first, end = start + 0.3 * latency, start + latency
            cut = end > 100 + seconds
            seen = first if first < 100 + seconds else None
            records.append(
                request(
                    start,
                    seen,
                    100 + seconds if cut else end,
                    "incomplete" if cut else "completed",
                )
            )
            start = end
    return records


def test_what_the_window_cuts_biases_neither_rate_nor_share_and_the_error_is_that_of_repetitions() -> (
    None
):
    generator = np.random.default_rng(1)
    latencies = generator.lognormal(1, 1, 1_000_000)
    share = float((latencies <= 3).mean())
    rows = [
        goodput(
            Requests(tuple(closed_loop(generator))),
            (100, 160),
            {"e2e_ms": 3000.0},
            1,
            64,
        )
        for _ in range(40)
    ]
    rates, shares = (
        np.array([row[name] for row in rows]) for name in (GOODPUT, "goodput_share")
    )
    assert shares.mean() == pytest.approx(share, abs=0.01)
    assert rates.mean() == pytest.approx(64 / latencies.mean() * share, rel=0.03)
    errors = np.array([row[f"{GOODPUT}_se"] for row in rows])
    assert np.log(rates).std() == pytest.approx(errors.mean(), rel=0.35)


def test_the_error_of_an_open_loop_is_that_of_a_share() -> None:
    records = [request(101 + k / 10, 101.1 + k / 10, 102 + k / 10) for k in range(30)]
    records += [request(101 + k / 10, 101.9 + k / 10, 102 + k / 10) for k in range(20)]
    row = of(records, streams=None)
    assert (row["goodput_met"], row["goodput_settled"]) == (30, 50)
    assert row[f"{GOODPUT}_se"] == pytest.approx(np.sqrt(0.4 / 30))
    assert np.isnan(row["goodput_cut"])


def turn(
    number: int, start: float, wait: float = 0.1, session: str = "a"
) -> RequestRecord:
    return request(start, start + wait, start + 1, conversation=session, turn=number)


def test_a_session_counts_when_all_its_turns_meet_the_limits() -> None:
    limits = LIMITS | {"of": "sessions"}
    whole = [turn(number, 101 + 2 * number) for number in range(3)]
    assert of(whole, limits, turns=3)["goodput_met"] == 1
    # One turn that waits too long makes the session miss, once.
    late = [whole[0], turn(1, 103, wait=0.7), turn(2, 105, wait=0.7)]
    row = of(late, limits, turns=3)
    assert (row["goodput_met"], row["goodput_settled"]) == (0, 1)
    # One that goes on is not settled yet, and of one that began unseen nobody knows.
    assert np.isnan(of(whole[:2], limits, turns=3)[GOODPUT])
    assert np.isnan(of(whole[1:], limits, turns=3)[GOODPUT])
    both = of([*whole, *late], limits, turns=3)
    assert both["goodput_settled"] == 1
    other = [replace_session(record, "b") for record in late]
    assert (of([*whole, *other], limits, turns=3)["goodput_share"], len(other)) == (
        0.5,
        3,
    )


def replace_session(record: RequestRecord, name: str) -> RequestRecord:
    facts = {field: getattr(record, field) for field in record.__struct_fields__}
    return RequestRecord(**facts | {"conversation": name})


def test_requests_without_a_session_are_sessions_of_their_own() -> None:
    limits = LIMITS | {"of": "sessions"}
    row = of([request(101, 101.1, 102), request(103, 103.9, 104)], limits, turns=3)
    assert (row["goodput_met"], row["goodput_settled"]) == (1, 2)


def test_a_measured_level_has_columns_of_goodput_where_limits_are_declared(
    measurement: Callable[..., Path],  # noqa: F811
) -> None:
    folder = measurement()
    without = only(run_tables(folder)[0])
    assert not [name for name in without if "goodput" in name]
    easy = only(run_tables(folder, limits={"e2e_ms": 1e6, "of": "requests"})[0])
    assert easy[GOODPUT] == pytest.approx(easy["throughput_req_s"])
    assert easy["goodput_share"] == 1
    median = easy["ttft_ms_p50"]
    half = only(run_tables(folder, limits={"ttft_ms": median, "of": "requests"})[0])
    assert half["goodput_share"] == pytest.approx(0.5, abs=0.1)
    assert 0 < half[GOODPUT] < easy[GOODPUT]
    assert [name for name in half if not documented(name)] == []


def test_a_report_that_did_not_keep_its_requests_says_nothing_of_limits(
    measurement: Callable[..., Path],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from kveval.tables.levels import rows as tables  # noqa: PLC0415

    read = tables.read_report

    def sampled(path: Path) -> Any:
        report = read(path)
        return replace(
            report,
            levels=tuple(replace(level, requests_missing=5) for level in report.levels),
        )

    monkeypatch.setattr(tables, "read_report", sampled)
    row = only(run_tables(measurement(engine="imported"), limits={"ttft_ms": 500.0})[0])
    assert np.isnan(row[GOODPUT])
    assert row["goodput_limits"] == limits_text({"ttft_ms": 500.0})
    assert row["throughput_tok_s"] > 0
