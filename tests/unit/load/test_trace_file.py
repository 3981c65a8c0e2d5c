"""Traces of requests: read, checked, cut, scaled, and made of other forms."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveval.load import trace_file, traces
from kveval.load.levels import rate_req_s_at
from kveval.load.log_file import TraceError
from kveval.load.trace_file import TraceContent, TraceRow, read, scaled
from kveval.load.workload import workload_of
from kveval.plugins.traces.trace_making import TraceOptions, make_trace

ROWS = (
    {"timestamp": 0, "input_length": 1030, "output_length": 500, "hash_ids": [0, 1, 2]},
    {"timestamp": 2000, "input_length": 1024, "output_length": 3, "hash_ids": [0, 1]},
    {"timestamp": 1000, "input_length": 513, "output_length": 0, "hash_ids": [0, 3]},
    {"timestamp": 9000, "input_length": 512, "output_length": 8, "hash_ids": [4]},
)


def written(path: Path, rows: object = ROWS) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))  # type: ignore[attr-defined]
    return path


def code(path: Path, tokens: int = 512) -> str | None:
    with pytest.raises(TraceError) as raised:
        read(path, tokens)
    return raised.value.code


def test_requests_come_in_order_of_time_and_a_trace_is_what_is_in_it(tmp_path):
    plain = read(written(tmp_path / "a.jsonl"), 512)
    assert [row.timestamp for row in plain.rows] == [0, 1000, 2000, 9000]
    packed = tmp_path / "b.jsonl.gz"
    packed.write_bytes(gzip.compress((tmp_path / "a.jsonl").read_bytes()))
    assert read(packed, 512) == plain


def test_what_is_wrong_with_a_trace_is_named(tmp_path):
    assert code(tmp_path / "none") == "no_trace"
    (tmp_path / "empty").write_text("\n")
    assert code(tmp_path / "empty") == "empty"
    (tmp_path / "text").write_text('{"timestamp": 0}\n')
    assert code(tmp_path / "text") == "not_a_request"
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"x" * 1000)[:20])
    assert code(tmp_path / "cut.gz") == "unreadable"
    with pytest.raises(TraceError, match=r"line 1: .*; hash_tokens 512 would fit") as e:
        read(written(tmp_path / "a"), 256)
    assert e.value.code == "inconsistent"
    swapped = [
        *ROWS,
        {"timestamp": 1, "input_length": 1024, "output_length": 1, "hash_ids": [1, 0]},
    ]
    assert code(written(tmp_path / "b", swapped)) == "inconsistent"
    assert (
        code(written(tmp_path / "c", [dict(ROWS[0], input_length=0, hash_ids=[])]))
        == "inconsistent"
    )


@pytest.mark.parametrize("ids", [[-3], [0, -3]])
def test_a_negative_id_is_called_that(tmp_path, ids):
    row = {
        "timestamp": 0,
        "input_length": 512 * len(ids),
        "output_length": 1,
        "hash_ids": ids,
    }
    with pytest.raises(TraceError, match="-3 is negative"):
        read(written(tmp_path / "a", [row]), 512)


@given(
    st.integers(1, 5000),
    st.sampled_from([1, 7, 32, 512]),
    st.sampled_from([1, 32, 64, 512]),
)
def test_scaling_keeps_the_number_of_blocks_and_which_are_whole(
    tokens, hash_tokens, to
):
    ids = list(range(-(-tokens // hash_tokens)))
    row = scaled(TraceRow(0.0, tokens, 10, ids), hash_tokens, to)
    assert -(-row.input_length // to) == len(row.hash_ids) == len(ids)
    if tokens % hash_tokens == 0:
        assert row.input_length % to == 0
    if hash_tokens == to:
        assert row.input_length == tokens


def workload(path: Path, **changes):
    trace = TraceContent(
        file=str(path),
        sha256=read(path, 512).sha256,
        hash_tokens=512,
        tokens=32,
        requests=(2, 3),
    )
    known = {
        "profile": "trace",
        "levels": [50, 100],
        "seconds": 3.0,
        "prompt_tokens": 60,
        "seed": 1,
    }
    return workload_of(known).replace(trace=trace, **changes)


def test_a_level_sends_what_came_in_its_time_at_its_rate_and_one_more_after_its_end(
    tmp_path,
):
    load = workload(written(tmp_path / "a"))
    half, whole = (
        [row.timestamp for row in traces.rows(load, level, 1)] for level in (50, 100)
    )
    assert (half[:-1], whole[:-1]) == ([0, 2], [0, 1, 2])
    assert min(half[-1], whole[-1]) > load.seconds
    assert [rate_req_s_at(load, level) for level in (50, 100)] == [2 / 3, 1.0]
    first = next(iter(traces.rows(load, 100, 1)))
    assert (first.input_length, first.output_length, first.hash_ids) == (
        65,
        31,
        [0, 1, 2],
    )


def test_streams_send_all_requests_in_order(tmp_path):
    load = workload(written(tmp_path / "a"), profile="trace-streams")
    assert [row.hash_ids for row in traces.rows(load, 50, 1)] == [
        [0, 1, 2],
        [0, 3],
        [0, 1],
        [4],
    ]


def test_a_start_cuts_off_what_was_before_and_another_file_is_refused(tmp_path):
    load = workload(written(tmp_path / "a"))
    later = load.replace(trace=load.trace.model_copy(update={"start_s": 1.0}))
    assert [row.timestamp for row in traces.rows(later, 100, 1)][:2] == [0, 1]
    written(tmp_path / "a", ROWS[:2])
    with pytest.raises(TraceError) as raised:
        list(traces.rows(load, 100, 1))
    assert raised.value.code == "other_trace"


def converted(
    tmp_path: Path, form: str, entries: object, tokens: int
) -> list[TraceRow]:
    source, output = written(tmp_path / "in", entries), tmp_path / "out.jsonl.gz"
    output.unlink(missing_ok=True)
    made = make_trace(source, output, TraceOptions(form, tokens), output)
    assert (made.file, made.hash_tokens) == (output, tokens)
    return list(trace_file.read(output, tokens).rows)


def test_sessions_of_agents_have_their_subagents_in_them(tmp_path):
    inner = [{"t": 1.0, "in": 70, "out": 2, "hash_ids": [5]}]
    requests = [
        {"t": 10.0, "in": 128, "out": 3, "hash_ids": [1, 2]},
        {"type": "subagent", "t": 20.0, "requests": inner},
        {"t": 30.0, "in": 200, "out": 4, "hash_ids": [1, 2, 3]},
    ]
    rows = converted(tmp_path, "weka", [{"id": "a", "requests": requests}], 64)
    assert [(row.timestamp, row.input_length, len(row.hash_ids)) for row in rows] == [
        (0, 128, 2),
        (11_000, 70, 2),
        (20_000, 200, 4),
    ]
    assert rows[2].hash_ids[:2] == rows[0].hash_ids
    twice = [
        {"id": name, "hash_id_scope": "local", "requests": requests[:1]}
        for name in "ab"
    ]
    one, other = converted(tmp_path, "weka", twice, 64)
    assert not set(one.hash_ids) & set(other.hash_ids)


def test_harvards_sessions_have_whole_blocks_and_subagents_in_their_tool_calls(
    tmp_path,
):
    def request(
        start_ms: int, tokens: int, answer: int | None, ids: list[int], *calls: object
    ) -> dict[str, object]:
        counted = {
            "system": 16,
            "user": tokens - 16,
            "assistant": 0,
            "tool": 0,
            "tool_definitions": 0,
        }
        said = {"prompt": 2 * tokens, "completion": answer, "cached": 0}
        return {
            "start_ms": start_ms, "role_tokens": counted, "provider_tokens": said, "block_ids": ids,
            "tool_calls": [{"name": "task", "subagent": call} for call in calls],
        }  # fmt: skip

    inner = {"session_id": "b", "requests": [request(1_778_000_002_000, 33, 5, [9, 8])]}
    first = request(1_778_000_001_000, 32, 7, [9, 8], inner, None)
    last = request(1_778_000_003_500, 50, None, [9, 8, 7])
    rows = converted(
        tmp_path, "harvard", [{"session_id": "a", "requests": [first, last]}], 16
    )
    assert [
        (row.timestamp, row.input_length, row.output_length, len(row.hash_ids))
        for row in rows
    ] == [
        (0, 32, 7, 2),
        (1000, 33, 5, 3),
        (2500, 50, 0, 4),
    ]
    assert rows[0].hash_ids == rows[1].hash_ids[:2] == rows[2].hash_ids[:2]
    # What is behind the whole blocks is nobody else's, and ids that do not make up the prompt are refused.
    assert not {*rows[1].hash_ids[2:]} & {*rows[2].hash_ids[2:]}
    wrong = written(
        tmp_path / "wrong.jsonl", [{"requests": [request(1, 16, 1, [1, 2])]}]
    )
    with pytest.raises(TraceError, match="no usual hash_tokens fits"):
        make_trace(wrong, None, TraceOptions("harvard"), tmp_path / "wrong.out")
    assert not (tmp_path / "wrong.out").exists()


def test_hashes_of_any_name_are_numbered(tmp_path):
    entries = [
        {
            "timestamp": 5.0,
            "input_length": 40,
            "output_length": 1,
            "hash_ids": ["x", "y", "z"],
        },
        {
            "timestamp": 5.5,
            "input_length": 48,
            "output_length": 1,
            "hash_ids": ["x", "y", "z"],
        },
    ]
    one, other = converted(tmp_path, "bailian", entries, 16)
    assert (one.hash_ids[:2], other.timestamp) == (other.hash_ids[:2], 500)
    assert one.hash_ids[2] != other.hash_ids[2]


def test_text_becomes_lengths_and_hashes_and_is_nowhere_in_the_file(tmp_path):
    system = "You are a discreet assistant. " * 20
    entries = [
        {
            "timestamp": 0,
            "prompt": system + "Where is Anna?",
            "prompt_tokens": 154,
            "output_length": 5,
        },
        {
            "timestamp": 1,
            "prompt": system + "Where is Bob?",
            "prompt_tokens": 153,
            "output_length": 5,
        },
        {
            "timestamp": 2,
            "prompt": "Another beginning. " + system,
            "prompt_tokens": 155,
            "output_length": 5,
        },
    ]
    rows = converted(tmp_path, "log", entries, 16)
    shared = [
        len([1 for a, b in zip(rows[0].hash_ids, row.hash_ids, strict=False) if a == b])
        for row in rows[1:]
    ]
    assert shared == [9, 0]
    content = gzip.decompress((tmp_path / "out.jsonl.gz").read_bytes())
    assert not any(
        word in content for word in (b"discreet", b"Anna", b"Bob", b"prompt")
    )


def test_spans_that_failed_or_say_nothing_are_left_out(tmp_path):
    def span(second, **changes):
        said = {
            "gen_ai.input.messages": "x" * 400,
            "gen_ai.usage.input_tokens": 100,
            "gen_ai.usage.output_tokens": 7,
        }
        return {
            "start_time": f"2026-01-01T00:00:0{second}Z",
            "attributes": said,
        } | changes

    spans = [
        span(3),
        span(1),
        span(2, status={"code": 2}),
        span(4, attributes={"gen_ai.operation.name": "embeddings"}),
    ]
    rows = converted(tmp_path, "log", [{"spans": spans}], 32)
    assert [(row.timestamp, row.output_length) for row in rows] == [(0, 7), (2000, 7)]
    assert rows[0].hash_ids == rows[1].hash_ids


def test_another_form_is_refused_without_a_file_and_names_the_line(tmp_path):
    known = {"timestamp": 1, "input_length": 9, "output_length": 1, "hash_ids": ["x"]}
    source, output = written(tmp_path / "in", [known, {"a": 1}]), tmp_path / "out"
    with pytest.raises(TraceError, match="in line 2") as raised:
        make_trace(source, output, TraceOptions(), output)
    assert raised.value.code == "no_length"
    assert not output.exists()


def test_advice_leads_elsewhere(tmp_path):
    lacking = {"input_length": 9, "output_length": 1, "hash_ids": [1]}
    path = written(tmp_path / "in", [lacking])
    with pytest.raises(TraceError) as raised:
        trace_file.read(path, 16)
    # `kveval trace` would say the same of it.
    assert "kveval trace" not in str(raised.value)
    path = written(tmp_path / "in", [lacking | {"hash_ids": ["x"]}])
    with pytest.raises(TraceError, match=r"it has no 'timestamp'; .* log, mooncake"):
        make_trace(path, tmp_path / "out", TraceOptions(), tmp_path / "out")
