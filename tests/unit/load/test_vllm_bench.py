"""Results of `vllm bench serve`: with all records, without the times of their starts, and with statistics alone."""

import json
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.support.guidellm_reports import START
from tests.support.vllm_bench import result

from kveval.load.reports import LevelReport, ReportFileError
from kveval.load.reports.reading import decode_report, read_report
from kveval.load.reports.vllm_bench import VLLM_BENCH

LATENCY_S = 0.2 + 36 * 0.05


def levels(*results: dict[str, Any]) -> tuple[LevelReport, ...]:
    report = decode_report(
        "\n".join(json.dumps(entry) for entry in results).encode(), "a result"
    )
    assert report.guidellm_version == VLLM_BENCH
    return report.levels


def level(**options: Any) -> LevelReport:
    (found,) = levels(result(**options))
    return found


def test_the_records_of_requests_lie_in_the_window_that_ends_when_the_result_was_written() -> (
    None
):
    found = level(failed=2)
    assert (found.strategy, found.streams, found.closed_loop, found.model) == (
        "concurrent",
        4,
        True,
        "Qwen/Qwen3-0.6B",
    )
    assert (
        found.completed,
        found.incomplete,
        found.errored,
        found.requests_missing,
    ) == (80, 0, 2, 0)
    assert found.end == START
    assert found.end - found.start == pytest.approx(20 * LATENCY_S + 0.01)
    done = [request for request in found.requests if request.status == "completed"]
    assert (len(done), len(found.requests)) == (80, 82)
    starts, ends = (
        [request.start or 0.0 for request in done],
        [request.end or 0.0 for request in done],
    )
    assert found.start < min(starts) < found.start + 0.01
    assert found.end - 0.01 < max(ends) < found.end
    request = done[4]
    assert (request.start, request.first_token, request.last_token) == pytest.approx(
        (
            found.end - 1e-3 - 19 * LATENCY_S,
            found.end - 1e-3 - 19 * LATENCY_S + 0.2,
            found.end - 1e-3 - 18 * LATENCY_S,
        )
    )
    assert (request.prompt_tokens, request.output_tokens, request.turn) == (64, 37, 0)
    # Of the time per token the first one is part here, of the gap between tokens it is not.
    expected = (200.0, 1000 * LATENCY_S / 37, 50.0, 1000 * LATENCY_S)
    assert (
        request.ttft_ms,
        request.tpot_ms,
        request.itl_ms,
        request.e2e_ms,
    ) == pytest.approx(expected)


def test_a_request_that_failed_has_no_latency() -> None:
    failed = [
        request for request in level(failed=1).requests if request.status == "errored"
    ]
    assert [
        (request.ttft_ms, request.e2e_ms, request.first_token, request.output_tokens)
        for request in failed
    ] == [(None, None, None, 0)]


def test_a_run_in_which_every_request_failed_completed_none() -> None:
    found = level(rounds=0, failed=2, duration=3.0)
    assert (found.completed, found.errored, len(found.requests)) == (0, 2, 2)


def test_without_start_times_the_records_are_summed_up() -> None:
    found = level(timed=False, failed=2)
    assert (found.requests, found.requests_missing, found.latencies_kept) == (
        (),
        82,
        True,
    )
    summed = found.aggregate
    assert summed is not None
    for values, expected in (
        (summed.ttft_ms, 200.0),
        (summed.tpot_ms, 1000 * LATENCY_S / 37),
        (summed.itl_ms, 50.0),
        (summed.e2e_ms, 1000 * LATENCY_S),
        (summed.prompt_tokens, 64.0),
        (summed.output_tokens, 37.0),
    ):
        assert values.completed is not None
        assert (
            values.completed.mean,
            values.completed.p50,
            values.completed.p99,
        ) == pytest.approx([expected] * 3)
        assert values.completed.count == 80
    assert summed.delivered_tokens == 80 * 37
    assert summed.concurrency.everything is not None
    assert summed.concurrency.everything.mean == pytest.approx(4, rel=0.01)


def test_a_result_without_records_has_the_statistics_it_names() -> None:
    found = level(detailed=False)
    assert (found.requests, found.requests_missing, found.latencies_kept) == (
        (),
        80,
        False,
    )
    summed = found.aggregate
    assert summed is not None
    assert summed.delivered_tokens == 80 * 37
    assert summed.ttft_ms.completed is not None
    assert (
        summed.ttft_ms.completed.p50,
        summed.ttft_ms.completed.p90,
        summed.ttft_ms.completed.p99,
    ) == (
        200.0,
        None,
        200.0,
    )
    assert summed.itl_ms.completed is not None
    assert summed.itl_ms.completed.mean == 50.0
    # Its own time per token leaves the first one out, so that ours follows from the sums alone.
    assert summed.tpot_ms.completed is not None
    assert summed.tpot_ms.completed.mean == pytest.approx(1000 * LATENCY_S / 37)
    assert summed.tpot_ms.completed.p50 is None
    without = level(
        detailed=False,
        **{f"{kind}_e2el_ms": None for kind in ("mean", "median", "p99")},
    ).aggregate
    assert without is not None
    assert (
        without.tpot_ms.completed,
        without.e2e_ms.completed,
        without.concurrency.everything,
    ) == (None, None, None)


@pytest.mark.parametrize(
    ("options", "strategy", "streams", "rate"),
    [
        ({"streams": None}, "throughput", None, None),
        ({"streams": None, "rate": 2.5}, "poisson", None, 2.5),
        ({"streams": 8, "rate": 2}, "poisson", None, 2.0),
        ({"streams": None, "rate": 2.5, "burstiness": 0.5}, "gamma", None, 2.5),
        ({"streams": None, "ramp_up_strategy": "linear"}, "linear ramp-up", None, None),
        ({"rate": math.inf}, "concurrent", 4, None),
    ],
)
def test_how_requests_were_sent(
    options: dict[str, Any], strategy: str, streams: int | None, rate: float
) -> None:
    found = level(**options)
    assert (found.strategy, found.streams, found.rate_req_s) == (
        strategy,
        streams,
        rate,
    )


def test_results_one_after_another_are_levels_of_one_file() -> None:
    found = levels(result(streams=1), result(streams=8, end=START + 600))
    assert [(entry.streams, entry.end) for entry in found] == [
        (1, START),
        (8, START + 600),
    ]


def test_a_measured_latency_counts_and_not_the_sum_of_its_gaps() -> None:
    found = level(latencies=[2.5] * 80)
    assert {round(request.e2e_ms or 0.0) for request in found.requests} == {2500}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"ttfts": [0.2]}, "not_its_schema"),
        ({"date": "yesterday"}, "not_its_schema"),
        ({"duration": 0.0}, "empty_window"),
        ({"date": None}, "no_list_of_benchmarks"),
    ],
)
def test_what_cannot_be_used_is_refused(changes: dict[str, Any], code: str) -> None:
    with pytest.raises(ReportFileError) as error:
        level(**changes)
    assert error.value.code == code


def test_a_pointer_of_git_lfs_is_called_that(tmp_path: Path) -> None:
    path = tmp_path / "guidellm-results.json.zst"
    path.write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 108388\n"
    )
    with pytest.raises(ReportFileError) as error:
        read_report(path)
    assert error.value.code == "lfs_pointer"


def test_the_window_is_in_utc() -> None:
    assert level().end == datetime.fromtimestamp(START, UTC).timestamp()
