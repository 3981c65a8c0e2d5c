import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from tests.support.described import described_run, run_tables
from tests.support.paths import DATA
from tests.support.synthetic import run_description
from tests.support.vllm_bench import result

from kveval.load.reports.reading import read_report
from kveval.load.reports.vllm_bench import results_of
from kveval.store.run_file import IMPORTED, LevelRun, RunFileError
from kveval.tables.levels.outcomes import outcomes_of
from kveval.tables.levels.records import request_tokens
from kveval.tables.levels.requests import Requests, delivered_tokens
from kveval.tables.levels.rows import LevelsError, level_row, working_set_tokens

REPORT = DATA / "guidellm-0.8.1-0008.json.zst"
START, END = 1795249881.91359, 1795249897.92842


@pytest.fixture
def measurement(tmp_path: Path) -> Callable[..., Path]:
    """A measured run of one level; `changes` replace top-level keys of its run.json, `level` those of the level."""

    def make(
        level: dict[str, Any] | None = None,
        workload: dict[str, Any] | None = None,
        **changes: Any,
    ) -> Path:
        description = run_description("Qwen3-0.6B", "native-offload", 10_000, 1)
        description["specification"]["workload"] |= {
            "seconds": 20,
            "warmup_s": 4,
            **(workload or {}),
        }
        counters = {"vllm:generation_tokens_total": 2697.0, "vllm:hits_total": 33632.0}
        counters |= {
            "vllm:prefix_cache_hits_total": 60.0,
            "vllm:prefix_cache_queries_total": 80.0,
        }
        entry = {
            **{
                "level": 8,
                "status": "ok",
                "start": START,
                "end": END,
                "report": "raw/guidellm-0008.json.zst",
            },
            "counters": {
                name: {"before": 1.0, "after": 1.0 + delta, "delta": delta}
                for name, delta in counters.items()
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


def test_throughput_is_the_generators_own_within_a_token(
    measurement: Callable[..., Path],
) -> None:
    requests = Requests(read_report(REPORT).levels[0].requests)
    # The report's output_tokens_per_second.total.mean: tokens delivered in the window, by their own times.
    assert requests.tokens_delivered(START, END).sum() / (END - START) == pytest.approx(
        157.009, rel=1e-3
    )
    row = only(run_tables(measurement())[0])
    assert 7.5 < row["concurrency_mean"] < 8
    assert row["output_tokens"] == pytest.approx(
        row["throughput_tok_s"] * row["duration_s"]
    )
    assert row["throughput_completed_tok_s"] != row["throughput_tok_s"]
    assert row["total_tok_s"] > 100 * row["throughput_tok_s"]


def test_counts_are_of_the_window_and_add_up(measurement: Callable[..., Path]) -> None:
    row = only(run_tables(measurement())[0])
    # 164 requests completed in all, 154 of them overlap the window, one ended after it.
    assert (
        row["requests_completed"],
        row["requests_incomplete"],
        row["requests_errored"],
    ) == (153, 8, 0)
    assert row["requests_total"] == 161
    assert row["incomplete_share"] == pytest.approx(8 / 161)


def test_latencies_are_of_events_in_the_window(
    measurement: Callable[..., Path],
) -> None:
    levels, requests = run_tables(measurement())
    row = only(levels)
    start, end = row["window_start"], row["window_end"]
    done = requests[
        (requests["status"] == "completed") & requests["end"].between(start, end)
    ]
    assert row["tpot_ms_p90"] == pytest.approx(
        np.quantile(done["tpot_ms"], 0.9, method="inverted_cdf")
    )
    assert row["e2e_ms_mean"] == pytest.approx(done["e2e_ms"].mean())
    first = requests[requests["first_token"].between(start, end)]
    assert row["ttft_count"] == len(first) == 152
    assert (row["e2e_count"], row["e2e_censored"]) == (len(done), 8)
    assert row["ttft_ms_p50"] in set(first["ttft_ms"])
    assert row["not_reached"] == ""


def test_a_request_without_first_token_is_missing_and_not_zero(
    measurement: Callable[..., Path],
) -> None:
    requests = run_tables(measurement())[1]
    silent = requests[requests["first_token"].isna()]
    assert len(silent)
    assert silent["ttft_ms"].isna().all()
    assert not (requests[["ttft_ms", "tpot_ms", "e2e_ms"]] == 0).any().any()


def test_counters_become_columns_and_absent_ones_nan(
    measurement: Callable[..., Path],
) -> None:
    row = only(run_tables(measurement())[0])
    assert row["server_generation_tokens"] == 2697
    assert row["throughput_server_difference"] == pytest.approx(0, abs=1e-3)
    assert row["prefix_hit_ratio"] == pytest.approx(0.75)
    assert np.isnan(row["external_hit_tokens"])
    assert np.isnan(row["offload_load_bytes"])
    assert row["exercised"] is True


def test_an_arm_whose_counter_stood_still_was_not_exercised(
    measurement: Callable[..., Path],
) -> None:
    still = {"vllm:hits_total": {"before": 5.0, "after": 5.0, "delta": 0.0}}
    assert (
        only(run_tables(measurement(level={"counters": still}))[0])["exercised"]
        is False
    )


@pytest.mark.parametrize(
    ("unit", "moved"), [("tokens", 500.0), ("bytes", 500.0 * 1024)]
)
def test_a_tier_that_served_next_to_nothing_was_not_exercised(
    measurement: Callable[..., Path], unit: str, moved: float
) -> None:
    def active(delta: float) -> bool:
        counters = {
            "vllm:prefix_cache_queries_total": {
                "before": 0.0,
                "after": 1e5,
                "delta": 1e5,
            },
            "vllm:hits_total": {"before": 0.0, "after": delta, "delta": delta},
        }
        required = [{"counter": "vllm:hits_total", "at_least": 1, "unit": unit}]
        folder = measurement(
            level={"counters": counters},
            specification={"model": {"kv_bytes_per_token": 1024}},
        )
        return bool(only(run_tables(folder, required)[0])["exercised"])

    assert active(moved)
    assert not active(0.99 * moved)


def test_a_run_is_judged_by_the_counters_the_catalogue_names_now(
    measurement: Callable[..., Path],
) -> None:
    folder = measurement()
    assert (
        only(run_tables(folder, [{"counter": "vllm:hits_total", "at_least": 1e9}])[0])[
            "exercised"
        ]
        is False
    )
    assert (
        only(run_tables(folder, [{"counter": "vllm:hits_total", "at_least": 1}])[0])[
            "exercised"
        ]
        is True
    )


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


def test_primed_levels_have_only_their_requests_to_settle(
    measurement: Callable[..., Path],
) -> None:
    primed = only(run_tables(measurement(workload={"prime": True}))[0])
    latency_s = primed["e2e_ms_p90"] / 1000
    assert primed["warmup_wanted_s"] == pytest.approx(latency_s, rel=0.5)
    assert primed["duration_s"] > 15.0
    assert "warmup_scaled" not in primed["checks_noted"]


def test_a_failed_level_is_a_row_that_failed(measurement: Callable[..., Path]) -> None:
    error = 'the server died: {"code": 1} {0}'
    levels, requests = run_tables(
        measurement(level={"status": "failed", "error": error, "report": None})
    )
    row = only(levels)
    assert row["checks_failed"] == "level_failed"
    (failed,) = outcomes_of(row)
    assert (failed.code, failed.facts) == ("level_failed", {"error": error})
    assert failed.message == error
    assert np.isnan(row["throughput_tok_s"])
    assert requests.empty


def test_a_report_that_kept_a_sample_is_refused(
    measurement: Callable[..., Path],
) -> None:
    directory = measurement()
    document = json.loads(
        zstandard.ZstdDecompressor().stream_reader(REPORT.read_bytes()).read()
    )
    del document["benchmarks"][0]["requests"]["successful"][20:]
    (directory / "raw" / "guidellm-0008.json.zst").write_bytes(
        json.dumps(document).encode()
    )
    with pytest.raises(LevelsError, match="sample_size=0") as error:
        run_tables(directory)
    assert (error.value.code, error.value.facts) == (
        "requests_missing",
        {"missing": 144},
    )


@pytest.mark.parametrize(
    ("text", "code", "word"),
    [
        ("", "no_description", "truncated"),
        ('{"schema": 1}', "no_description", "required field"),
        (None, "unreadable", "No such file"),
    ],
)
def test_says_what_is_wrong_with_run_json(
    tmp_path: Path, text: str | None, code: str, word: str
) -> None:
    if text is not None:
        (tmp_path / "run.json").write_text(text)
    with pytest.raises(RunFileError, match=word) as error:
        run_tables(tmp_path)
    assert error.value.code == code


def test_a_run_json_of_another_schema_is_refused(
    measurement: Callable[..., Path],
) -> None:
    with pytest.raises(RunFileError, match="schema 2") as error:
        run_tables(measurement(schema=2))
    assert error.value.code == "other_schema"


spans = st.tuples(st.floats(0, 100), st.floats(0, 50), st.integers(0, 200))


def arrays(
    requests: list[tuple[float, float, int]],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    first = np.array([start for start, _, _ in requests], dtype=float)
    last = first + np.array([length for _, length, _ in requests], dtype=float)
    return first, last, np.array([tokens for _, _, tokens in requests], dtype=float)


@given(
    st.lists(spans, min_size=1, max_size=20),
    st.floats(-10, 160),
    st.floats(0, 80),
    st.floats(0, 80),
)
def test_delivered_tokens_add_up_over_adjoining_windows(
    requests: list[tuple[float, float, int]], start: float, one: float, two: float
) -> None:
    columns = arrays(requests)
    parts = delivered_tokens(*columns, start, start + one) + delivered_tokens(
        *columns, start + one, start + one + two
    )
    assert np.array_equal(parts, delivered_tokens(*columns, start, start + one + two))


@given(st.lists(spans, min_size=1, max_size=20))
def test_a_window_that_holds_everything_has_every_token(
    requests: list[tuple[float, float, int]],
) -> None:
    columns = arrays(requests)
    assert np.array_equal(delivered_tokens(*columns, -1.0, 1000.0), columns[2])


def test_a_request_cut_by_the_window_counts_the_tokens_inside() -> None:
    first, last, tokens = np.array([0.0]), np.array([9.0]), np.array([10.0])
    assert delivered_tokens(first, last, tokens, 0.0, 3.0) == 3
    assert delivered_tokens(first, last, tokens, 7.5, 100.0) == 2
    assert (
        delivered_tokens(
            np.array([np.nan]), np.array([np.nan]), np.array([0.0]), 0.0, 3.0
        )
        == 0
    )


def test_parts_of_a_window_add_up_to_it() -> None:
    requests = Requests(read_report(REPORT).levels[0].requests)
    parts = requests.tokens_delivered_in_parts(START, END, 7)
    assert parts.sum() == requests.tokens_delivered(START, END).sum()
    assert (
        parts[2]
        == requests.tokens_delivered(
            START + 2 * (END - START) / 7, START + 3 * (END - START) / 7
        ).sum()
    )


@pytest.mark.parametrize(
    ("workload", "tokens"),
    [
        ({"prefix_tokens": 2000, "prefix_count": 20}, 40_000),
        ({"prefix_tokens": 10_000, "prefix_count": {"per_level": 2}}, 160_000),
        ({"prefix_tokens": 0, "prefix_count": 0}, 0),
    ],
)
def test_the_working_set_is_all_distinct_prefixes(
    workload: dict[str, Any], tokens: float
) -> None:
    assert working_set_tokens(workload, 8) == tokens
    assert np.isnan(working_set_tokens({}, 8))


def test_a_level_says_what_it_was_measured_under(
    measurement: Callable[..., Path],
) -> None:
    row = only(run_tables(measurement())[0])
    assert (row["device_tokens"], row["tier_tokens"], row["working_set_tokens"]) == (
        17_920,
        160_000,
        40_000,
    )
    assert row["run_started"] == "2026-01-01T00:00:00.000000Z"
    assert row["hardware"] == "f00d"
    assert row["server_build"] == "0.32.0"
    other = only(
        run_tables(
            measurement(server={"argv": ["vllm", "serve", "--port", "1"], "env": {}})
        )[0]
    )
    again = only(
        run_tables(
            measurement(server={"argv": ["vllm", "serve", "--port", "2"], "env": {}})
        )[0]
    )
    assert row["configuration"] != other["configuration"] == again["configuration"]


def test_a_report_without_latencies_does_not_say_that_every_stream_was_busy() -> None:
    """`vllm bench serve` writes none unless it is asked for them, and requests in flight follow from latencies."""
    described = described_run(run_description("m", "native-offload", 1, 1))
    run, entry = msgspec.structs.replace(described, engine=IMPORTED), LevelRun(level=8)
    for latencies, shortfall in ({}, 0.0), ({"mean_e2el_ms": None}, np.nan):
        (report,) = (
            results_of(
                json.dumps(result(streams=8, detailed=False, **latencies)).encode()
            )
            or []
        )
        row = level_row(run, entry, report, "")
        assert row["concurrency_shortfall"] == pytest.approx(
            shortfall, abs=0.01, nan_ok=True
        )


def test_what_ran_and_of_which_build_are_told_apart(
    measurement: Callable[..., Path],
) -> None:
    def row(source: str | None, argv: list[str], **changes: Any) -> dict[str, Any]:
        place = measurement(server={"argv": argv, "env": {}}, **changes)
        description = json.loads((place / "run.json").read_text())
        description["specification"] |= {} if source is None else {"source": source}
        (place / "run.json").write_text(json.dumps(description))
        return only(run_tables(place)[0])

    plain, patched, other = (
        row(None, ["a"]),
        row("checkout-1a2b", ["a"]),
        row("checkout-1a2b", ["b"]),
    )
    assert len({found["configuration"] for found in (plain, patched, other)}) == 3
    assert plain["arm_settings"] == patched["arm_settings"] != other["arm_settings"]
    assert (plain["server_build"], patched["server_build"]) == (
        "0.32.0",
        "0.32.0 checkout-1a2b",
    )
    assert row(None, [])["arm_settings"] == ""
    release = row(None, ["a"], build={"kind": "release", "key": "lmcache-0.5.5"})
    assert release["server_build"] == "0.32.0 lmcache-0.5.5"


def test_the_mean_tokens_of_a_request_are_of_completed_ones_with_their_error(
    measurement: Callable[..., Path],
) -> None:
    row = only(run_tables(measurement(workload={"turns": 1}))[0])
    requests = [
        record
        for record in read_report(REPORT).levels[0].requests
        if record.status == "completed"
    ]
    within = [
        record.output_tokens
        for record in requests
        if record.end is not None and START <= record.end < END
    ]
    assert row["request_output_tokens"] == pytest.approx(np.mean(within), rel=0.02)
    assert row["request_output_tokens_se"] >= 0
    first = [record.prompt_tokens for record in requests if record.turn in (None, 0)]
    assert row["request_prompt_tokens"] == pytest.approx(np.mean(first))


def test_prompts_of_conversations_whose_turns_are_not_known_are_not_compared() -> None:
    records = [
        msgspec.structs.replace(record, turn=None)
        for record in read_report(REPORT).levels[0].requests
    ]
    assert np.isnan(
        request_tokens(Requests(records), START, END, 3)["request_prompt_tokens"]
    )
    assert request_tokens(Requests(records), START, END, 1)["request_prompt_tokens"] > 0


def test_the_work_that_was_asked_for_is_a_column(
    measurement: Callable[..., Path],
) -> None:
    said = only(
        run_tables(
            measurement(workload={"prompt_spread": {"stdev": 8, "min": 32, "max": 96}})
        )[0]
    )["workload"]
    assert said == (
        "prompt_tokens=64;output_tokens=64;prompt_stdev=8;output_stdev=0;prefix_tokens=2000;prefix_count=20;turns=3;"
        "primed=0"
    )
    # Seconds, seeds and levels may differ between runs that do the same work.
    again = only(
        run_tables(measurement(workload={"seconds": 19, "seed": 3, "levels": [8]}))[0]
    )["workload"]
    assert again == said.replace("prompt_stdev=8", "prompt_stdev=0")


def test_an_arm_whose_counters_nobody_read_was_not_shown_active(
    measurement: Callable[..., Path],
) -> None:
    assert only(run_tables(measurement())[0])["activity"] == "shown"
    assert only(run_tables(measurement(), required=[])[0])["activity"] == "not shown"
    still = [{"counter": "vllm:hits_total", "at_least": 10**9}]
    assert only(run_tables(measurement(), required=still)[0])["activity"] == "none"
    baseline = {"model": "Qwen3-0.6B", "scenario": "no-offload", "cpu_blocks": 0}
    assert (
        only(run_tables(measurement(cell=baseline), required=[])[0])["activity"] == ""
    )


def test_the_conditions_of_gpus_are_means_over_them(
    measurement: Callable[..., Path],
) -> None:
    limits = [
        {"power_limit_w": 700.0, "clock_mhz_mean": 1900.0},
        {"power_limit_w": 500.0, "clock_mhz_mean": 1700.0},
    ]
    gpus = [
        {"index": place, "name": "NVIDIA H200", "samples": 9, **limit}
        for place, limit in enumerate(limits)
    ]
    gpus[1]["throttle_reasons"] = ["sw_power_cap"]
    row = only(run_tables(measurement(gpu_conditions=gpus))[0])
    assert (row["gpu_power_limit_w"], row["gpu_clock_mhz"], row["gpu_throttled"]) == (
        600.0,
        1800.0,
        "sw_power_cap",
    )
    assert np.isnan(row["gpu_clock_limit_mhz"])
