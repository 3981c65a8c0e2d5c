"""Exports of usage are refused by what shows it, and logs of requests that look a little like them are read."""

import json
from pathlib import Path

import pytest

from kveval.load.log_file import TraceError
from kveval.plugins.traces.request_log import RequestLog

LENGTHS = {"prompt_tokens": 821000, "completion_tokens": 90001}


def rows(**changes: object) -> list[dict[str, object]]:
    """Five rows of a log with other values, which may follow from the number of the row."""
    numbered = []
    for number in range(5):
        values = {name: value(number) if callable(value) else value for name, value in changes.items()}  # fmt: skip
        numbered.append({"created_at": 1788220807.5 + 61 * number, **LENGTHS, **values})
    return numbered


def day(number: int) -> str:
    return f"2026-07-0{number + 1}"


def minute(number: int) -> str:
    return f"2026-07-01T08:{14 * number:02}:00Z"


def written(path: Path, content: object) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (rows(request_count=lambda number: 1201 + number), "request_count counts"),
        (rows(**{"API Requests": 1201}), "API Requests counts requests, up to 1,201"),
        (rows(num_model_requests=140), "num_model_requests"),
        (rows(metrics={"api_requests": 9}), "metrics.api_requests"),
        (rows(**{"Number of requests": "12"}), "Number of requests"),
        (rows(countObservations=12), "countObservations"),
        (rows(created_at=day), "dates without a time of day, such as 2026-07-01"),
        (rows(created_at=lambda n: f"0{n + 1}/07/2026"), "dates without"),
        (rows(created_at=lambda n: day(n) + "T00:00:00Z"), "whole hours"),
        (rows(created_at=lambda n: 1788220800 + 3600 * n), "whole hours"),
        (
            rows(created_at=lambda n: 1788220860 + 60 * n, end_time=lambda n: 1788220920 + 60 * n),
            "each row is of 60 s",
        ),
        ({"data": [{"object": "bucket", "start_time": 1788220800, "end_time": 1788307200,
                    "results": [{"input_tokens": 9, "output_tokens": 9, "num_model_requests": 5}]}]}, "num_model_requests"),
        ({"results": [{"date": "2026-07-01", "metrics": LENGTHS}]}, "dates without"),
        ({"data": [{"starting_at": "2026-07-01T00:00:00Z", "ending_at": "2026-07-02T00:00:00Z",
                    "results": [{"uncached_input_tokens": 9, "output_tokens": 9}]}]}, "starting_at"),
        ("Day;Model;Input Tokens;Output Tokens\n2026-07-01;m;9;9\n", "Day is a time"),
    ],
)  # fmt: skip
def test_sums_are_refused_by_what_shows_them(
    tmp_path: Path, content: object, shown: str
) -> None:
    path = written(tmp_path / "export", content)
    with pytest.raises(TraceError, match="a row for each request") as raised:
        RequestLog(path, {})
    assert shown in str(raised.value)
    assert raised.value.code == "sums"


@pytest.mark.parametrize(
    "changes",
    [
        {"num_requests": 1, "count": 0},
        {"num_requests_running": 12, "requests_waiting": 3},
        {"x-ratelimit-remaining-requests": 99},
        {"requestId": lambda number: number + 7, "request": 5, "message_count": 12},
        {"created_at": lambda number: f"2026-07-01T08:00:0{number}Z"},
        {"created_at": minute},
        {"created_at": lambda number: 3600.0 * number},
        {"endTime": lambda number: 1788220809.5 + 61 * number + number % 2},
    ],
)
def test_logs_of_requests_are_read(tmp_path: Path, changes: dict[str, object]) -> None:
    path = written(tmp_path / "log", rows(**changes))
    assert len(list(RequestLog(path, {}))) == 5
