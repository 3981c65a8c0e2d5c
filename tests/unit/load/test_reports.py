import bz2
import gzip
import json
import lzma
from pathlib import Path
from typing import Any

import pytest
import yaml
import zstandard
from tests.support.paths import DATA

from kveval.load.reports import ReportFileError
from kveval.load.reports.reading import decode_report, read_report, require_report
from kveval.load.reports.wire import Info, Request, Settings, Timings, WireRequests

# Our own measurement: vLLM 0.32 on a CPU with a miniature, 8 streams, texts and statistics taken out.
REPORT = DATA / "guidellm-0.8.1-0008.json.zst"


def content() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(
        zstandard.ZstdDecompressor().stream_reader(REPORT.read_bytes()).read()
    )
    return document


def test_reads_a_report_of_0_8_1() -> None:
    report = read_report(REPORT)
    assert (report.guidellm_version, len(report.levels)) == ("0.8.1", 1)
    level = report.levels[0]
    assert (
        level.strategy,
        level.streams,
        level.completed,
        level.incomplete,
        level.errored,
    ) == (
        "concurrent",
        8,
        162,
        7,
        0,
    )
    assert level.end - level.start == pytest.approx(16.01, abs=0.01)
    assert level.warmup_s == pytest.approx(3.985, abs=0.001)
    assert [request.status for request in level.requests].count("completed") == 164
    assert level.requests_missing == 0


def test_a_users_question_is_due_when_the_pause_after_the_answer_before_is_over() -> (
    None
):
    def wire(turn: int, pause_s: float | None, answered: float | None) -> Request:
        timings = Timings(predecessor_completed=answered, targeted_start=0.5)
        return Request(Info(timings, "c", turn, Settings(pause_s)))

    first, second = wire(0, 3.0, None), wire(1, None, 10.0)
    records = WireRequests(successful=[first], incomplete=[second]).neutral()
    assert [record.due for record in records] == [None, 13.0]
    assert [record.pause_s for record in records] == [3.0, None]
    # Without pauses it is what the strategy says.
    (single,) = WireRequests(successful=[wire(0, None, None)]).neutral()
    assert single.due == 0.5


def test_a_request_that_never_got_a_token_has_no_latency() -> None:
    silent = [
        request
        for request in read_report(REPORT).levels[0].requests
        if request.first_token is None
    ]
    assert silent
    for request in silent:
        assert (request.ttft_ms, request.e2e_ms, request.output_tokens) == (
            None,
            None,
            0,
        )


def test_a_cut_off_request_keeps_its_partial_output() -> None:
    partial = [
        r
        for r in read_report(REPORT).levels[0].requests
        if r.status == "incomplete" and r.output_tokens
    ]
    assert len(partial) == 7
    assert all(request.ttft_ms and request.e2e_ms is None for request in partial)


def test_stream_events_stand_in_for_a_missing_token_count() -> None:
    document = content()
    request = document["benchmarks"][0]["requests"]["incomplete"][0]
    request["output_tokens"], events = (
        None,
        request["info"]["timings"]["token_iterations"],
    )
    report = decode_report(json.dumps(document).encode(), "r.json")
    assert (
        next(
            r for r in report.levels[0].requests if r.status == "incomplete"
        ).output_tokens
        == events
    )


def test_plain_json_reads_as_compressed(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(json.dumps(content()))
    assert read_report(path) == read_report(REPORT)


def test_says_how_many_requests_were_not_kept() -> None:
    document = content()
    del document["benchmarks"][0]["requests"]["successful"][10:]
    assert (
        decode_report(json.dumps(document).encode(), "r.json")
        .levels[0]
        .requests_missing
        == 154
    )


@pytest.mark.parametrize(
    ("text", "code", "facts"),
    [
        (b"", "empty", {}),
        (b'{"metadata": {"version": 2', "damaged_json", {}),
        (b"[1, 2]", "not_a_report", {}),
        (b'{"results": []}', "no_list_of_benchmarks", {}),
        (b'{"metadata": {"version": 2}, "benchmarks": []}', "no_benchmark", {}),
        (
            b'{"metadata": {"version": 1}, "benchmarks": [{}]}',
            "not_its_schema",
            {"guidellm": "0.5 or 0.6"},
        ),
        (
            b'{"benchmarks": [{"args": {}}]}',
            "not_its_schema",
            {"guidellm": "0.3 or older"},
        ),
        (
            b'{"benchmarks": [{"scheduler": {}}]}',
            "not_its_schema",
            {"guidellm": "0.4 preview"},
        ),
        (b'{"benchmarks": [{"config": {}}]}', "not_its_schema", {"guidellm": "0.4"}),
        (b'{"benchmarks": [{"name": "another tool"}]}', "unknown_shape", {}),
        (b'{"benchmarks": [17]}', "not_a_report", {}),
        (
            b'{"metadata": {"version": 3}, "benchmarks": [{}]}',
            "unsupported_version",
            {"version": 3},
        ),
        (
            b'{"metadata": {"version": 2}, "benchmarks": [{"config": {}}]}',
            "not_its_schema",
            {"guidellm": "0.7 or 0.8"},
        ),
    ],
)
def test_says_what_is_wrong_with_a_file(
    tmp_path: Path, text: bytes, code: str, facts: dict[str, Any]
) -> None:
    path = tmp_path / "guidellm-0008.json"
    path.write_bytes(text)
    with pytest.raises(ReportFileError) as caught:
        read_report(path)
    assert (caught.value.code, caught.value.facts) == (code, facts)
    assert "guidellm-0008.json" in str(caught.value)


def test_a_truncated_compressed_report_is_an_error_at_any_length(
    tmp_path: Path,
) -> None:
    whole, path = REPORT.read_bytes(), tmp_path / "r.json.zst"
    for length in (3, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ReportFileError):
            read_report(path)


@pytest.mark.parametrize("layers", [2, 3])
def test_a_report_compressed_again_reads_as_compressed_once(
    tmp_path: Path, layers: int
) -> None:
    path = tmp_path / "r.json.zst.zst"
    whole = REPORT.read_bytes()
    for _ in range(layers - 1):
        whole = zstandard.compress(whole)
    path.write_bytes(whole)
    assert read_report(path) == read_report(REPORT)


def test_a_truncated_report_compressed_twice_is_an_error_at_any_length(
    tmp_path: Path,
) -> None:
    inner, path = REPORT.read_bytes(), tmp_path / "r.json.zst.zst"
    outer = zstandard.compress(inner)
    broken = [outer[:length] for length in (5, 100, len(outer) // 2, len(outer) - 1)]
    broken += [
        zstandard.compress(inner[:length])
        for length in (0, 3, 100, len(inner) // 2, len(inner) - 1)
    ]
    for content_ in broken:
        path.write_bytes(content_)
        with pytest.raises(ReportFileError, match=r"r\.json\.zst\.zst: ") as error:
            read_report(path)
        assert error.value.code in {
            "truncated_zstd",
            "empty",
            "damaged_zstd",
            "damaged_json",
        }


def test_frames_one_after_another_are_one_report(tmp_path: Path) -> None:
    plain = json.dumps(content()).encode()
    path = tmp_path / "r.json.zst"
    path.write_bytes(
        zstandard.compress(plain[:1000]) + zstandard.compress(plain[1000:])
    )
    assert read_report(path) == read_report(REPORT)


def test_numbers_that_json_has_no_word_for_are_missing(tmp_path: Path) -> None:
    document = content()
    document["benchmarks"][0]["metrics"]["output_tokens_per_second"]["total"][
        "mean"
    ] = float("nan")
    document["benchmarks"][0]["requests"]["successful"][0]["inter_token_latency_ms"] = (
        float("inf")
    )
    level = decode_report(json.dumps(document).encode(), "r.json").levels[0]
    assert level.requests[0].itl_ms is None
    assert level.aggregate is not None
    assert level.aggregate.output_tok_s.everything is None


def test_a_missing_file_and_an_empty_window_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ReportFileError) as missing:
        read_report(tmp_path / "none.json")
    document = content()
    document["benchmarks"][0]["end_time"] = document["benchmarks"][0]["start_time"]
    with pytest.raises(ReportFileError) as empty:
        decode_report(json.dumps(document).encode(), "r.json")
    assert (missing.value.code, empty.value.code) == ("unreadable", "empty_window")


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, bz2.compress])
def test_reports_packed_by_other_programs_are_read(tmp_path: Path, pack: Any) -> None:
    path = tmp_path / "r.json.packed"
    path.write_bytes(pack(json.dumps(content()).encode()))
    assert read_report(path) == read_report(REPORT)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ReportFileError, match="damaged or truncated") as error:
        read_report(path)
    assert error.value.code == "damaged_packing"


def test_a_report_in_yaml_is_read(tmp_path: Path) -> None:
    path = tmp_path / "benchmarks.yaml"
    path.write_text(yaml.safe_dump(content()))
    assert read_report(path) == read_report(REPORT)
    require_report(path)
    path.write_text("benchmarks:\n- a: [1\n")
    with pytest.raises(ReportFileError, match="not readable as YAML"):
        read_report(path)


@pytest.mark.parametrize(
    ("before", "behind", "said"),
    [
        ("", "pod deleted\n", "ends in line 1; behind it is 'pod deleted'"),
        ("Defaulted container\n", "", "'Defaulted container'; the report begins in line 2"),
        ("\n{not JSON}\n", "", "truncated or damaged"),
        ("", '{"a": 1}', "behind it is '{\"a\": 1}'"),
    ],
)  # fmt: skip
def test_lines_of_another_program_around_a_whole_report_are_named(
    before: str, behind: str, said: str
) -> None:
    text = f"{before}{json.dumps(content())}\n{behind}"
    with pytest.raises(ReportFileError) as error:
        decode_report(text.encode(), "r.json")
    assert said in str(error.value)
    assert ("measure the level again" in str(error.value)) == ("not JSON" in before)


def test_a_byte_order_mark_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text("\ufeff" + json.dumps(content()))
    assert read_report(path) == read_report(REPORT)
