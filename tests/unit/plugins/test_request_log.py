"""Requests of logs as others write them: which fields they are read from, which clock, and what is dropped."""

import json
from pathlib import Path

import pytest

from kveval.load.log_file import TraceError
from kveval.plugins.traces.request_log import LoggedRequest, RequestLog

BURSTGPT = """\
Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
5,a7,3.1,ChatGPT,472,18,490,Conversation log
45,,2.0,GPT-4,1087,230,1317,API log
"""
AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
"""
LITELLM = {
    "request_id": "chatcmpl-1", "call_type": "acompletion", "status": "success", "spend": 0.1, "total_tokens": 130,
    "prompt_tokens": 120, "completion_tokens": 10, "startTime": "2026-10-10T08:00:00.250Z",
    "endTime": "2026-10-10T08:00:04Z", "completionStartTime": "2026-10-10T08:00:01Z", "session_id": "s-1",
    "user": "u-1", "metadata": {"usage_object": {"prompt_tokens": 1, "completion_tokens": 1}},
}  # fmt: skip
OPENAI = {
    "id": "chatcmpl-2", "object": "chat.completion", "created": 1760083200,
    "usage": {
        "prompt_tokens": 120, "completion_tokens": 10, "total_tokens": 130,
        "prompt_tokens_details": {"cached_tokens": 64}, "completion_tokens_details": {"reasoning_tokens": 5},
    },
}  # fmt: skip
ANTHROPIC = {
    "created_at": "2025-10-10T08:00:00Z",
    "usage": {
        "input_tokens": 20, "cache_read_input_tokens": 90, "cache_creation_input_tokens": 10, "output_tokens": 10,
    },
}  # fmt: skip
SPAN = {
    "start_time": "2025-10-10T08:00:00Z",
    "attributes": {
        "gen_ai.conversation.id": "s-1", "gen_ai.usage.input_tokens": 120, "gen_ai.usage.output_tokens": 10,
        "gen_ai.usage.cache_read.input_tokens": 64,
    },
}  # fmt: skip
GATEWAY = {
    "start_time": "2025-10-10T08:00:00Z", "session.id": "s-1", "response_code": "200",
    "gen_ai.usage.input_tokens": "120", "gen_ai.usage.output_tokens": "10",
}  # fmt: skip
AT_8_S = 1760083200.0


def log_of(path: Path, content: object, **options: str) -> RequestLog:
    text = content if isinstance(content, str) else json.dumps(content) + "\n"
    path.write_text(text)
    time_unit = options.pop("time_unit", "")
    return RequestLog(path, options, time_unit)


def lines(*values: object) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


@pytest.mark.parametrize(
    ("content", "seconds", "session", "request_id"),
    [
        (LITELLM, AT_8_S + 365 * 86400 + 0.25, "s-1", "chatcmpl-1"),
        (OPENAI, AT_8_S, None, "chatcmpl-2"),
        (ANTHROPIC, AT_8_S, None, None),
        (SPAN, AT_8_S, "s-1", None),
        (GATEWAY, AT_8_S, "s-1", None),
        ([SPAN, {"spans": []}], AT_8_S, "s-1", None),
        ({"spans": [SPAN]}, AT_8_S, "s-1", None),
        ({"data": [SPAN], "meta": {"page": 1}}, AT_8_S, "s-1", None),
        (json.dumps({"data": [SPAN]}, indent=2), AT_8_S, "s-1", None),
    ],
)
def test_fields_are_recognised_as_gateways_and_clients_name_them(
    tmp_path: Path,
    content: object,
    seconds: float,
    session: str | None,
    request_id: str | None,
) -> None:
    (request,) = log_of(tmp_path / "log", content)
    assert request == LoggedRequest(1, seconds, session, 120, 10, request_id, None)


def test_published_traces_are_logs(tmp_path: Path) -> None:
    first, second = log_of(tmp_path / "burst", BURSTGPT)
    assert first == LoggedRequest(2, 5.0, "a7", 472, 18, None, None)
    assert (second.line, second.session) == (3, None)
    log = log_of(tmp_path / "azure", AZURE)
    (request,) = log
    assert request[3:5] == (4808, 10)
    assert log.facts.clock == "without a zone"


@pytest.mark.parametrize(
    ("name", "value", "seconds"),
    [
        ("timestamp", 1760083200, AT_8_S),
        ("timestamp", 1760083200123, AT_8_S + 0.123),
        ("timestamp", "1760083200123000", AT_8_S + 0.123),
        ("timestamp", 1760083200123000000, AT_8_S + 0.123),
        ("startTimeUnixNano", "1760083200123000000", AT_8_S + 0.123),
        ("timestamp", 12.5, 12.5),
        ("timestamp_ms", 12500, 12.5),
        ("arrival_time_us", 12_500_000, 12.5),
        ("time", "2025-10-10T10:00:00+02:00", AT_8_S),
        ("time", "2025-10-10 08:00:00,250", AT_8_S + 0.25),
        ("time", "2025-10-10 08:00:00 UTC", AT_8_S),
        ("@timestamp", "2025-10-10T08:00:00.123456789Z", AT_8_S + 0.123456),
    ],
)
def test_times_are_recognised(
    tmp_path: Path, name: str, value: object, seconds: float
) -> None:
    content = {name: value, "prompt_tokens": 3, "completion_tokens": 1}
    (request,) = log_of(tmp_path / "log", content)
    assert request.seconds == pytest.approx(seconds, abs=1e-5)


def test_a_unit_may_be_named(tmp_path: Path) -> None:
    content = {"timestamp": 12500, "prompt_tokens": 3, "completion_tokens": 1}
    (request,) = log_of(tmp_path / "log", content, time_unit="ms")
    assert request.seconds == 12.5


def test_fields_of_other_names_are_named(tmp_path: Path) -> None:
    content = {"at": 5, "who": "anna", "n": {"in": 30, "out": 4}, "prompt_tokens": 1}
    with pytest.raises(TraceError, match="--field time=NAME --field answer=NAME") as e:
        log_of(tmp_path / "log", content)
    assert "at, n.in, n.out, prompt_tokens, who" in str(e.value)
    fields = {"time": "at", "session": "who", "prompt": "n.in", "answer": "n.out"}
    (request,) = log_of(tmp_path / "log", content, **fields)
    assert request == LoggedRequest(1, 5.0, "anna", 30, 4, None, None)


def test_what_is_no_request_is_dropped_with_its_line_and_the_reason(
    tmp_path: Path,
) -> None:
    def row(**changes: object) -> dict[str, object]:
        return {"ts": 1, "prompt_tokens": 8, "completion_tokens": 2} | changes

    text = lines(
        row(),
        row(prompt_tokens=-8),
        row(prompt_tokens=0),
        row(completion_tokens=None),
        row(completion_tokens=1.5),
        row(prompt_tokens=10**9),
        row(ts="yesterday"),
        row(ts=None),
        row(ts=float("nan")),
        row(completion_tokens=0),
    )
    text += '\n{"ts": 1, "prompt_tok\n[1]\n' + lines({"event": "health"}, row(ts=True))
    log = log_of(tmp_path / "log", text)
    assert [request.line for request in log] == [1, 10]
    dropped = {one.reason: one.lines for one in log.facts.dropped.values()}
    assert list(dropped.values()) == [[2], [3], [4], [5], [6], [7, 9, 15], [8], [12, 13], [14]]  # fmt: skip
    assert dropped["a negative length of the prompt"] == [2]
    assert dropped["no length of the prompt"] == [14]


@pytest.mark.parametrize("other", ["2025-10-10T08:00:00", 5, "2025-10-10"])
def test_clocks_that_cannot_be_compared_are_refused(
    tmp_path: Path, other: object
) -> None:
    rows = [
        {"ts": time, "prompt_tokens": 3, "completion_tokens": 1}
        for time in ("2025-10-10T08:00:00Z", 1760083200, other)
    ]
    with pytest.raises(TraceError, match=r"line 3: the time .* other times are") as e:
        list(log_of(tmp_path / "log", lines(*rows)))
    assert e.value.code == "mixed_times"
    # A few are mistakes.
    log = log_of(tmp_path / "log", lines(rows[2], *rows[:2] * 5))
    assert len(list(log)) == 10
    (dropped,) = log.facts.dropped.values()
    assert dropped.lines == [1]


@pytest.mark.parametrize("text", ["5,1", "a;b"])
def test_a_line_of_csv_that_has_not_all_values_is_dropped(
    tmp_path: Path, text: str
) -> None:
    table = f'\ufefftime;"prompt tokens";output_tokens\r\n{text}\r\n1;2;3\r\n'
    log = log_of(tmp_path / "log.csv", table)
    assert [request.line for request in log] == [3]
    assert [one.lines for one in log.facts.dropped.values()] == [[2]]


def test_text_is_messages_or_prompts_and_no_number(tmp_path: Path) -> None:
    row = {"ts": 1, "prompt_tokens": 8, "completion_tokens": 2, "prompt": "8"}
    assert not log_of(tmp_path / "number", row).has_text
    messages = [{"role": "user", "content": "Hello"}]
    log = log_of(tmp_path / "text", row | {"messages": messages, "prompt": None})
    (request,) = log
    assert log.has_text
    assert request.text == "user\nHello"


def test_tools_and_instructions_stand_before_the_messages(tmp_path: Path) -> None:
    row = {"ts": 1, "prompt_tokens": 8, "completion_tokens": 2}
    body = {"messages": [{"content": "Hello"}], "system": "Be kind", "tools": [{"name": "f"}]}  # fmt: skip
    (request,) = log_of(tmp_path / "text", row | {"request": body})
    assert request.text == "f\nBe kind\nHello"
    # As exports have it, packed into text; and empty where another field has it.
    packed = {"messages": "{}", "prompt": json.dumps(body["messages"])}
    (request,) = log_of(tmp_path / "packed", row | packed)
    assert request.text == "Hello"
