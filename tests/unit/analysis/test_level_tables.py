import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from tests.support.paths import DATA
from tests.support.synthetic import run_description

from kveval.analysis.levels.requests import Requests, delivered_tokens
from kveval.analysis.levels.tables import LevelsError, run_tables, working_set_tokens
from kveval.load.reports import read_report
from kveval.store.run_file import RunFileError

REPORT = DATA / "guidellm-0.8.1-0008.json.zst"
START, END = 1795249881.91359, 1795249897.92842


@pytest.fixture
def measurement(tmp_path: Path) -> Callable[..., Path]:
    """A measured run of one level; `changes` replace top-level keys of its run.json, `level` those of the level."""

    def make(level: dict[str, Any] | None = None, workload: dict[str, Any] | None = None, **changes: Any) -> Path:
        description = run_description("Qwen3-0.6B", "native-offload", 10_000, 1)
        description["specification"]["workload"] |= {"seconds": 20, "warmup_s": 4, **(workload or {})}
        counters = {"vllm:generation_tokens_total": 2697.0, "vllm:hits_total": 33632.0}
        counters |= {"vllm:prefix_cache_hits_total": 60.0, "vllm:prefix_cache_queries_total": 80.0}
        entry = {
            **{"level": 8, "status": "ok", "start": START, "end": END, "report": "raw/guidellm-0008.json.zst"},
            "counters": {
                name: {"before": 1.0, "after": 1.0 + delta, "delta": delta} for name, delta in counters.items()
            },
        }
        description |= {"levels": [{**entry, **(level or {})}], **changes}
        (tmp_path / "raw").mkdir(exist_ok=True)
        shutil.copy(REPORT, tmp_path / "raw" / "guidellm-0008.json.zst")
        (tmp_path / "run.json").write_text(json.dumps(description))
        return tmp_path

    return make


def only(table: pd.DataFrame) -> dict[str, Any]:
    assert len(table) == 1
    row: dict[str, Any] = table.to_dict("records")[0]
    return row


def test_throughput_is_the_generators_own_within_a_token(measurement: Callable[..., Path]) -> None:
    requests = Requests(read_report(REPORT).levels[0].requests)
    # The report's output_tokens_per_second.total.mean: tokens delivered in the window, by their own times.
    assert requests.delivered(START, END).sum() / (END - START) == pytest.approx(157.009, rel=1e-3)
    row = only(run_tables(measurement())[0])
    assert row["within_low_tok_s"] < row["throughput_tok_s"] < row["within_high_tok_s"]
    assert row["within_method"] == "batch means"
    assert 7.5 < row["concurrency_mean"] < 8
    assert row["output_tokens"] == pytest.approx(row["throughput_tok_s"] * row["duration_s"])
    assert row["throughput_completed_tok_s"] != row["throughput_tok_s"]
    assert row["total_tok_s"] > 100 * row["throughput_tok_s"]


def test_counts_are_of_the_window_and_add_up(measurement: Callable[..., Path]) -> None:
    row = only(run_tables(measurement())[0])
    # 164 requests completed in all, 154 of them overlap the window, one ended after it.
    assert (row["requests_completed"], row["requests_incomplete"], row["requests_errored"]) == (153, 8, 0)
    assert row["requests_total"] == 161
    assert row["incomplete_share"] == pytest.approx(8 / 161)


def test_latencies_are_of_events_in_the_window(measurement: Callable[..., Path]) -> None:
    levels, requests = run_tables(measurement())
    row = only(levels)
    start, end = row["window_start"], row["window_end"]
    done = requests[(requests["status"] == "completed") & requests["end"].between(start, end)]
    assert row["tpot_ms_p90"] == pytest.approx(np.quantile(done["tpot_ms"], 0.9, method="inverted_cdf"))
    assert row["e2e_ms_mean"] == pytest.approx(done["e2e_ms"].mean())
    first = requests[requests["first_token"].between(start, end)]
    assert row["ttft_count"] == len(first) == 152
    assert (row["e2e_count"], row["e2e_censored"]) == (len(done), 8)
    assert row["ttft_ms_p50"] in set(first["ttft_ms"])
    assert row["not_reached"] == ""


def test_a_request_without_first_token_is_missing_and_not_zero(measurement: Callable[..., Path]) -> None:
    requests = run_tables(measurement())[1]
    silent = requests[requests["first_token"].isna()]
    assert len(silent)
    assert silent["ttft_ms"].isna().all()
    assert not (requests[["ttft_ms", "tpot_ms", "e2e_ms"]] == 0).any().any()


def test_counters_become_columns_and_absent_ones_nan(measurement: Callable[..., Path]) -> None:
    row = only(run_tables(measurement())[0])
    assert row["server_generation_tokens"] == 2697
    assert row["throughput_server_difference"] == pytest.approx(0, abs=1e-3)
    assert row["prefix_hit_ratio"] == pytest.approx(0.75)
    assert np.isnan(row["external_hit_tokens"])
    assert np.isnan(row["offload_load_bytes"])
    assert row["exercised"] is True


def test_an_arm_whose_counter_stood_still_was_not_exercised(measurement: Callable[..., Path]) -> None:
    still = {"vllm:hits_total": {"before": 5.0, "after": 5.0, "delta": 0.0}}
    assert only(run_tables(measurement(level={"counters": still}))[0])["exercised"] is False


def test_a_run_is_judged_by_the_counters_the_catalogue_names_now(measurement: Callable[..., Path]) -> None:
    folder = measurement()
    assert only(run_tables(folder, [{"counter": "vllm:hits_total", "at_least": 1e9}])[0])["exercised"] is False
    assert only(run_tables(folder, [{"counter": "vllm:hits_total", "at_least": 1}])[0])["exercised"] is True


def test_a_baseline_has_nothing_to_exercise(measurement: Callable[..., Path]) -> None:
    levels = run_tables(measurement(exercised={"required": [], "exercised": True}))[0]
    assert levels["exercised"].isna().all()
    assert levels["exercised"].dtype == "boolean"


def test_warm_up_is_cut_once(measurement: Callable[..., Path]) -> None:
    # The generator cut 3.985 s, a quarter of the level is 5 s, max(30 s, p90 of latency) would be all of it.
    cut = only(run_tables(measurement())[0])
    assert cut["warmup_s"] == pytest.approx(5.0, abs=0.01)
    assert cut["duration_s"] == pytest.approx(15.0, abs=0.01)
    assert cut["warmup_wanted_s"] == 30.0
    assert "warmup_scaled" in cut["checks_noted"]
    rest = only(run_tables(measurement(workload={"warmup_s": 10}))[0])
    assert rest["duration_s"] == pytest.approx(10.0, abs=0.02)
    assert rest["warmup_s"] == pytest.approx(10.0, abs=0.02)
    assert "warmup" in rest["checks_warned"]


def test_a_failed_level_is_a_row_that_failed(measurement: Callable[..., Path]) -> None:
    levels, requests = run_tables(measurement(level={"status": "failed", "error": "the server died", "report": None}))
    row = only(levels)
    assert row["checks_failed"] == "level_failed"
    assert "the server died" in row["checks_messages"]
    assert np.isnan(row["throughput_tok_s"])
    assert requests.empty


def test_a_report_that_kept_a_sample_is_refused(measurement: Callable[..., Path]) -> None:
    directory = measurement()
    document = json.loads(zstandard.ZstdDecompressor().stream_reader(REPORT.read_bytes()).read())
    del document["benchmarks"][0]["requests"]["successful"][20:]
    (directory / "raw" / "guidellm-0008.json.zst").write_bytes(json.dumps(document).encode())
    with pytest.raises(LevelsError, match="sample_size=0") as error:
        run_tables(directory)
    assert (error.value.code, error.value.facts) == ("requests_missing", {"missing": 144})


@pytest.mark.parametrize(
    ("text", "code", "word"),
    [
        ("", "no_description", "truncated"),
        ('{"schema": 1}', "no_description", "required field"),
        (None, "unreadable", "No such file"),
    ],
)
def test_says_what_is_wrong_with_run_json(tmp_path: Path, text: str | None, code: str, word: str) -> None:
    if text is not None:
        (tmp_path / "run.json").write_text(text)
    with pytest.raises(RunFileError, match=word) as error:
        run_tables(tmp_path)
    assert error.value.code == code


def test_a_run_json_of_another_schema_is_refused(measurement: Callable[..., Path]) -> None:
    with pytest.raises(RunFileError, match="schema 2") as error:
        run_tables(measurement(schema=2))
    assert error.value.code == "other_schema"


spans = st.tuples(st.floats(0, 100), st.floats(0, 50), st.integers(0, 200))


def arrays(requests: list[tuple[float, float, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    first = np.array([start for start, _, _ in requests], dtype=float)
    last = first + np.array([length for _, length, _ in requests], dtype=float)
    return first, last, np.array([tokens for _, _, tokens in requests], dtype=float)


@given(st.lists(spans, min_size=1, max_size=20), st.floats(-10, 160), st.floats(0, 80), st.floats(0, 80))
def test_delivered_tokens_add_up_over_adjoining_windows(
    requests: list[tuple[float, float, int]], start: float, one: float, two: float
) -> None:
    columns = arrays(requests)
    parts = delivered_tokens(*columns, start, start + one) + delivered_tokens(*columns, start + one, start + one + two)
    assert np.array_equal(parts, delivered_tokens(*columns, start, start + one + two))


@given(st.lists(spans, min_size=1, max_size=20))
def test_a_window_that_holds_everything_has_every_token(requests: list[tuple[float, float, int]]) -> None:
    columns = arrays(requests)
    assert np.array_equal(delivered_tokens(*columns, -1.0, 1000.0), columns[2])


def test_a_request_cut_by_the_window_counts_the_tokens_inside() -> None:
    first, last, tokens = np.array([0.0]), np.array([9.0]), np.array([10.0])
    assert delivered_tokens(first, last, tokens, 0.0, 3.0) == 3
    assert delivered_tokens(first, last, tokens, 7.5, 100.0) == 2
    assert delivered_tokens(np.array([np.nan]), np.array([np.nan]), np.array([0.0]), 0.0, 3.0) == 0


def test_parts_of_a_window_add_up_to_it() -> None:
    requests = Requests(read_report(REPORT).levels[0].requests)
    parts = requests.delivered_in_parts(START, END, 7)
    assert parts.sum() == requests.delivered(START, END).sum()
    assert parts[2] == requests.delivered(START + 2 * (END - START) / 7, START + 3 * (END - START) / 7).sum()


@pytest.mark.parametrize(
    ("workload", "tokens"),
    [
        ({"prefix_tokens": 2000, "prefix_count": 20}, 40_000),
        ({"prefix_tokens": 10_000, "prefix_count": {"per_level": 2}}, 160_000),
        ({"prefix_tokens": 0, "prefix_count": 0}, 0),
    ],
)
def test_the_working_set_is_all_distinct_prefixes(workload: dict[str, Any], tokens: float) -> None:
    assert working_set_tokens(workload, 8) == tokens
    assert np.isnan(working_set_tokens({}, 8))


def test_a_level_says_what_it_was_measured_under(measurement: Callable[..., Path]) -> None:
    row = only(run_tables(measurement())[0])
    assert (row["device_tokens"], row["tier_tokens"], row["working_set_tokens"]) == (17_920, 160_000, 40_000)
    assert row["run_started"] == "2026-01-01T00:00:00.000000Z"
    assert row["hardware"] == "f00d"
    assert row["server_build"] == "0.32.0"
    other = only(run_tables(measurement(server={"argv": ["vllm", "serve", "--port", "1"], "env": {}}))[0])
    again = only(run_tables(measurement(server={"argv": ["vllm", "serve", "--port", "2"], "env": {}}))[0])
    assert row["configuration"] != other["configuration"] == again["configuration"]
