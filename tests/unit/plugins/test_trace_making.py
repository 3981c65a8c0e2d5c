"""Traces of logs without text: what prompts share by their sessions, and files of any kind and in any state."""

import gzip
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kveval.load import trace_file
from kveval.load.log_file import TraceError
from kveval.load.trace_file import TraceRow
from kveval.plugins.traces import trace_making
from kveval.plugins.traces.conversations import Sharing
from kveval.plugins.traces.trace_making import MadeTrace, TraceOptions, make_trace


def request(time: float, session: object, prompt: int, answer: int) -> dict[str, Any]:
    return {"ts": time, "session_id": session, "prompt_tokens": prompt, "completion_tokens": answer}  # fmt: skip


def write(path: Path, rows: Sequence[object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def made_of(
    folder: Path, rows: Sequence[object], **options: Any
) -> tuple[MadeTrace, list[TraceRow]]:
    output = folder / "trace.jsonl"
    output.unlink(missing_ok=True)
    values = {"hash_tokens": 10, **options}
    made = make_trace(
        write(folder / "log", rows), output, TraceOptions(**values), output
    )
    return made, list(trace_file.read(output, values["hash_tokens"]).rows)


def shared(one: TraceRow, other: TraceRow) -> int:
    """How many blocks two prompts have in common from their beginning on."""
    pairs = zip(one.hash_ids, other.hash_ids, strict=False)
    return next(
        (number for number, (a, b) in enumerate(pairs) if a != b),
        min(len(one.hash_ids), len(other.hash_ids)),
    )


CHAT = [
    request(0, "a", 25, 10),
    request(1, "b", 40, 5),
    request(2, "a", 52, 8),
    request(3, "a", 100, 1),
]


def test_a_prompt_has_the_whole_blocks_of_its_sessions_earlier_prompt(tmp_path):
    made, (first, other, second, third) = made_of(tmp_path, CHAT)
    assert [row.timestamp for row in (first, other, second, third)] == [0, 1000, 2000, 3000]  # fmt: skip
    assert (shared(first, second), shared(second, third)) == (2, 5)
    assert shared(first, other) == 0
    assert made.shared_tokens == 20 + 50
    assert made.log is not None
    assert made.log.conversations is not None
    assert (made.log.sessions, made.log.conversations.count) == (2, 2)


def test_a_prompt_shorter_than_its_history_begins_a_conversation(tmp_path):
    rows = [request(0, "a", 30, 20), request(1, "a", 40, 1), request(2, "a", 41, 1)]
    made, (first, second, third) = made_of(tmp_path, rows)
    assert (shared(first, second), shared(second, third)) == (0, 4)
    assert made.log is not None
    assert made.log.conversations is not None
    counts = made.log.conversations
    assert (counts.count, counts.shorter, counts.much_shorter) == (2, 1, 0)
    # Clients may leave answers out, or their reasoning.
    made, (first, second, _) = made_of(tmp_path, rows, sharing=Sharing.PROMPTS)
    assert shared(first, second) == 3


def test_without_a_session_nothing_is_shared_but_a_prefix_of_a_given_length(tmp_path):
    rows = [request(time, None, 40 + time, 1) for time in range(3)]
    made, (first, second, _) = made_of(tmp_path, rows)
    assert (made.shared_tokens, shared(first, second)) == (0, 0)
    made, (first, second, _) = made_of(tmp_path, rows, prefix_tokens=29)
    assert (made.shared_tokens, shared(first, second)) == (40, 2)
    made, (first, second, third) = made_of(tmp_path, rows, prefix_tokens=41)
    assert (shared(first, second), shared(second, third)) == (4, 4)
    assert made.log is not None
    assert made.log.conversations is not None
    assert made.log.conversations.below_prefix == 1
    _, (first, second, third, _) = made_of(
        tmp_path, CHAT, prefix_tokens=20, sharing=Sharing.NONE
    )
    assert (shared(first, second), shared(first, third)) == (2, 2)


def test_of_a_request_that_is_written_again_the_last_state_counts(tmp_path):
    rows = [
        request(time, "a", 30, answer) | {"request_id": name}
        for time, answer, name in ((1, 1, "x"), (0, 5, "y"), (2, 7, "x"))
    ]
    made, kept = made_of(tmp_path, rows)
    assert [(row.timestamp, row.output_length) for row in kept] == [(0, 5), (1000, 7)]
    (dropped,) = made.dropped
    assert (dropped.lines, made.requests) == ([1], 2)
    assert made_of(tmp_path, rows[::-1])[1] == kept


@pytest.mark.parametrize("name", ["message", "response", ""])
def test_ids_of_answers_are_those_of_requests(tmp_path, name):
    for answer in ("chatcmpl-7", "msg_7"):
        own = {name: {"id": answer}} if name else {"id": answer}
        rows = [request(1, "a", 30, grown) | own for grown in (1, 40, 90)]
        _, kept = made_of(tmp_path, rows)
        assert [row.output_length for row in kept] == [90]
    # Any other number that is called id may be that of the model.
    rows = [request(time, "a", 30, 5) | {"id": 1} for time in range(3)]
    assert made_of(tmp_path, rows)[0].requests == 3


def test_an_agents_events_count_once_and_are_of_the_session_that_begins_them(tmp_path):
    def event(second, prompt, answer, total):
        last = {"input_tokens": prompt, "output_tokens": answer}
        totals = {"input_tokens": total, "output_tokens": total // 9}
        info = {"total_token_usage": totals, "last_token_usage": last}
        return {
            "timestamp": f"2026-09-01T00:00:0{second}Z",
            "type": "event_msg",
            "payload": {"type": "token_count", "info": info},
        }

    meta = {"timestamp": "2026-09-01T00:00:00Z", "type": "session_meta", "payload": {"id": "s1"}}  # fmt: skip
    events = [event(1, 40, 10, 40), event(2, 40, 10, 40), event(4, 60, 9, 100)]
    made, (first, second) = made_of(tmp_path, [meta, *events])
    assert (first.output_length, second.timestamp) == (10, 3000)
    assert (made.log.sessions, shared(first, second)) == (1, 4)


def test_an_event_that_is_repeated_as_it_is_counts_once(tmp_path):
    one = request("2026-09-01T00:00:01.250Z", "a", 30, 5)
    other = one | {"completion_tokens": 6}
    made, _ = made_of(tmp_path, [one, other, one])
    assert (made.requests, made.answers.total) == (2, 11)
    # In one second of a coarse clock come equal requests.
    assert made_of(tmp_path, [request(7, "a", 30, 5)] * 2)[0].requests == 2


REQUESTS = st.lists(
    st.builds(
        request,
        st.integers(0, 5),
        st.sampled_from([None, "", "a", "b", "c"]),
        st.integers(1, 90),
        st.integers(0, 40),
    ),
    min_size=1,
    max_size=30,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    rows=REQUESTS,
    seed=st.integers(0, 99),
    sharing=st.sampled_from([Sharing.HISTORY, Sharing.PROMPTS, Sharing.NONE]),
    prefix_tokens=st.integers(0, 50),
)
def test_the_order_of_lines_does_not_matter_and_totals_are_the_logs(
    tmp_path, rows, seed, sharing, prefix_tokens
):
    options = {"sharing": sharing, "prefix_tokens": prefix_tokens}
    made, kept = made_of(tmp_path, rows, **options)
    assert made.requests == len(rows)
    assert made.prompts.total == sum(row["prompt_tokens"] for row in rows)
    assert made.answers.total == sum(row["completion_tokens"] for row in rows)
    assert made.span_s == max(row["ts"] for row in rows) - min(row["ts"] for row in rows)  # fmt: skip
    # Blocks that earlier prompts have, as a cache without bounds finds them.
    seen: set[int] = set()
    found = 0
    for row in kept:
        blocks = sum(one in seen for one in row.hash_ids)
        found += min(10 * blocks, row.input_length)
        seen.update(row.hash_ids)
    assert made.shared_tokens == found
    if sharing is Sharing.NONE:
        assert made.shared_tokens <= (len(rows) - 1) * prefix_tokens
    random.Random(seed).shuffle(rows)
    assert made_of(tmp_path, rows, **options)[1] == kept


# --- files


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
@pytest.mark.parametrize("suffix", [".gz", ".zst", ""])
def test_packed_logs_and_traces_are_as_good_as_plain_ones(tmp_path, pack, suffix):
    source, output = tmp_path / "log", tmp_path / f"trace.jsonl{suffix}"
    content = write(source, CHAT).read_bytes()
    # In two frames, as tools that append write it.
    source.write_bytes(pack(content[:50]) + pack(content[50:]))
    make_trace(source, output, TraceOptions(), output)
    assert len(trace_file.read(output, 32).rows) == len(CHAT)
    before = output.read_bytes()
    assert make_trace(source, output, TraceOptions(), output).state == "unchanged"
    assert output.read_bytes() == before


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_a_damaged_log_is_refused_and_leaves_no_file(tmp_path, pack):
    source, output = tmp_path / "log", tmp_path / "trace.jsonl"
    numbers = random.Random(1)
    rows = [request(n, n % 7, numbers.randrange(1, 9999), 1) for n in range(20_000)]
    packed = pack(write(source, rows).read_bytes())
    source.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(TraceError, match=r"after line [\d,]+: it ends too early"):
        make_trace(source, output, TraceOptions(), output)
    source.write_bytes(packed[:500] + bytes(500) + packed[1000:])
    with pytest.raises(TraceError, match="cannot be read"):
        make_trace(source, output, TraceOptions(), output)
    assert list(tmp_path.iterdir()) == [source]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("\n \n", "is empty"),
        ("INFO 10-10 08:00:00 Received request\n", "line 1 is neither JSON nor"),
        ('{\n "ts": 1\n}\n', "no field is known to hold lengths of prompts"),
        ('{\n "ts": 1\n', "is none"),
        ("[1, 2", "is none"),
        ("[]", "has no entry with values"),
        ("a,b,c\n1,2,3\n", "the fields are a, b, c"),
        ("INFO [logger] a, b, c\nd\n", "has no entry with values"),
        ('{"ts": 1, "prompt_tokens": 0, "completion_tokens": 0}\n', "has no request: a prompt of 0 tokens"),
    ],
)  # fmt: skip
def test_what_is_no_log_is_named_with_what_would_be_right(tmp_path, content, message):
    source = tmp_path / "log"
    source.write_text(content)
    with pytest.raises(TraceError) as raised:
        make_trace(source, None, TraceOptions(), tmp_path / "trace")
    assert message in str(raised.value)
    assert str(source) in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["usage", "hash_ids", "requests", "data", "timestamp", "t"]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)
ENTRIES = st.lists(
    st.fixed_dictionaries(
        {"ts": st.just(1) | JSON, "prompt_tokens": st.just(9) | JSON},
        optional={"output_length": JSON, "timestamp": JSON, "hash_ids": JSON, "requests": JSON, "input_length": JSON},
    ),
    max_size=4,
)  # fmt: skip


FILES = (
    st.binary(max_size=60)
    | ENTRIES.map(lambda rows: "\n".join(map(json.dumps, rows)).encode())
    | ENTRIES.map(lambda rows: json.dumps(rows).encode())
    | st.binary(max_size=20).map(b"ts,prompt_tokens,output_tokens\n1,9,1\n".__add__)
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(content=FILES)
@example(
    b'{"input_length": Infinity, "output_length": 1, "timestamp": 1, "hash_ids": []}'
)
@example(b'{"requests": [{"t": 1, "in": 1e12, "out": 1}]}')
# Lines that end as those of old spreadsheets.
@example(b"ts,prompt_tokens,output_tokens\r1,9,1\r")
def test_any_file_becomes_a_trace_or_is_refused(tmp_path, content):
    source, output = tmp_path / "log", tmp_path / "trace.jsonl"
    output.unlink(missing_ok=True)
    source.write_bytes(content)
    try:
        made = make_trace(source, output, TraceOptions(), output)
    except TraceError as error:
        assert str(source) in str(error)
        assert not output.exists()
    else:
        assert len(trace_file.read(output, made.hash_tokens).rows) == made.requests


def test_another_content_is_not_overwritten_nor_the_log(tmp_path):
    source, output = write(tmp_path / "log", CHAT), tmp_path / "trace.jsonl"
    make_trace(source, output, TraceOptions(), output)
    before = output.read_bytes()
    for path, code in (
        (output, "other_content"),
        (source, "same_file"),
        (tmp_path, "folder"),
    ):
        with pytest.raises(TraceError) as raised:
            make_trace(source, path, TraceOptions(hash_tokens=16), path)
        assert raised.value.code == code
    assert output.read_bytes() == before


def test_logs_put_together_are_one_log(tmp_path):
    source, output = tmp_path / "log.csv.gz", tmp_path / "trace.jsonl"
    part = b"time,prompt_tokens,output_tokens\n1,20,3\n2,30,4\n"
    source.write_bytes(gzip.compress(part) + gzip.compress(part))
    made = make_trace(source, output, TraceOptions(), output)
    assert (made.requests, [one.lines for one in made.dropped]) == (4, [[4]])


def test_a_trace_with_too_many_blocks_has_larger_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(trace_making, "MOST_BLOCKS", 4)
    source, output = write(tmp_path / "log", CHAT), tmp_path / "trace.jsonl"
    made = make_trace(source, output, TraceOptions(), output)
    assert made.hash_tokens == 64
    assert made.prompts.total == sum(row["prompt_tokens"] for row in CHAT)


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    source = write(tmp_path / "log", CHAT)
    with pytest.raises(TraceError, match=r"cannot be written: .*; --out"):
        make_trace(source, None, TraceOptions(), source / "trace.jsonl")


def test_a_trace_is_summed_up_as_it_is(tmp_path):
    rows = [
        {"timestamp": time, "input_length": 130, "output_length": 2, "hash_ids": ids}
        for time, ids in ((0, [9, 4, 7]), (500, [9, 4, 5]), (2500, [6, 0, 2]))
    ]
    source = write(tmp_path / "trace", rows)
    made = make_trace(source, None, TraceOptions(), tmp_path / "other")
    assert (made.state, made.form, made.hash_tokens) == ("as it is", "mooncake", 64)
    assert (made.file, made.shared_tokens, made.span_s) == (source, 128, 2.5)
    assert list(tmp_path.iterdir()) == [source]
