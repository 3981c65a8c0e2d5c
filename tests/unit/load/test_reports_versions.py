"""Every version of GuideLLM in use tells the same story in the same numbers, and real reports read as they were."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.described import described_run
from tests.support.guidellm_reports import GENERATIONS, Story, document
from tests.support.paths import SCRIPTS
from tests.support.synthetic import run_description

from kveval.load.reports import LevelReport, LoadReport
from kveval.load.reports.data import SyntheticData, synthetic_data
from kveval.load.reports.reading import decode_report, read_report
from kveval.store.run_file import LevelRun
from kveval.tables.levels.outcomes import outcomes_of
from kveval.tables.levels.rows import LevelsError, level_row

DATA = Path(os.environ.get("KVEVAL_TEST_DATA", "")) / "guidellm"
real_data = pytest.mark.skipif(
    "KVEVAL_TEST_DATA" not in os.environ,
    reason="KVEVAL_TEST_DATA is not set: it names a folder with real measurements",
)
SWEEP = DATA / "oct2025-Qwen3-0.6B-default.json"
STORY = Story()


def read(generation: str, story: Story = STORY, **options: Any) -> LevelReport:
    """The one level of a made-up report."""
    report = decode_report(
        json.dumps(document(generation, [story], **options)).encode(), "r.json"
    )
    assert len(report.levels) == 1
    return report.levels[0]


@pytest.fixture(autouse=True)
def whole_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut no warm-up from the short levels told here: what is read is compared, not where the window begins."""
    monkeypatch.setattr("kveval.tables.levels.rows.WARMUP_SHARE", 0.0)


def row(
    level: LevelReport, *, engine: str = "imported", streams: int = 4
) -> dict[str, Any]:
    """The level's row of levels.csv."""
    description = run_description("Qwen3-0.6B", "no-offload", 0, 1, engine=engine)
    description["specification"]["workload"] = {"turns": 1, "warmup_s": 0.0}
    run = described_run(description)
    return level_row(
        run, LevelRun(level=streams, start=level.start, end=level.end), level, "0.0"
    )


def names(row_: dict[str, Any]) -> set[str]:
    """The checks that did not simply pass."""
    return {
        n
        for column in ("failed", "warned", "noted")
        for n in row_[f"checks_{column}"].split(";")
        if n
    }


def figures(row_: dict[str, Any], name: str) -> list[float]:
    """The numbers that a check's message tells."""
    (message,) = (
        outcome.message for outcome in outcomes_of(row_) if outcome.code == name
    )
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?", message)]


@pytest.mark.parametrize("generation", GENERATIONS)
def test_the_window_the_totals_and_the_strategy(generation: str) -> None:
    level, story = read(generation), Story()
    assert (level.strategy, level.streams, level.rate_req_s, level.closed_loop) == (
        "concurrent",
        4,
        None,
        True,
    )
    assert (level.start, level.end - level.start) == (story.start, pytest.approx(60.0))
    assert (level.completed, level.incomplete, level.errored) == (116, 4, 0)
    assert level.requests_missing == 0


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_request_means_the_same_in_every_version(generation: str) -> None:
    request = next(r for r in read(generation).requests if r.status == "completed")
    story = Story()
    assert request.start == story.start
    assert request.first_token == pytest.approx(story.start + 0.2)
    assert request.last_token == pytest.approx(story.start + 2.0)
    assert request.end == pytest.approx(story.start + 2.0)
    assert (request.prompt_tokens, request.output_tokens, request.turn) == (64, 37, 0)
    assert request.ttft_ms == pytest.approx(200, abs=0.01)
    # With the time to the first token, also where GuideLLM leaves it out.
    assert request.tpot_ms == pytest.approx(2000 / 37, rel=1e-4)
    assert request.itl_ms == pytest.approx(1800 / 36, rel=1e-4)
    assert request.e2e_ms == pytest.approx(2000, abs=0.01)


@pytest.mark.parametrize("generation", [g for g in GENERATIONS if g != "0.4 preview"])
def test_a_request_that_was_cut_off_keeps_its_output_and_has_no_latency(
    generation: str,
) -> None:
    story = Story(latency_s=2.3)
    cut = [r for r in read(generation, story).requests if r.status == "incomplete"]
    assert [r.output_tokens for r in cut] == [story.cut_tokens] * 4
    assert {r.e2e_ms for r in cut} == {None}


def test_a_request_of_the_preview_that_was_cut_off_keeps_the_tokens_that_came() -> None:
    made = document("0.4 preview", [STORY])
    request = made["benchmarks"][0]["requests"]["incomplete"][0]
    request["output_tokens"], request["info"]["timings"]["iterations"] = 0, 7
    level = decode_report(json.dumps(made).encode(), "r.json").levels[0]
    assert (
        next(one.output_tokens for one in level.requests if one.status == "incomplete")
        == 7
    )


@pytest.mark.parametrize("generation", GENERATIONS)
def test_the_statistics_say_the_same_as_the_requests(generation: str) -> None:
    from_requests = row(read(generation))
    from_statistics = row(read(generation, keep=0))
    assert "aggregate_only" in names(from_statistics)
    assert "aggregate_only" not in names(from_requests)
    for name in (
        "requests_completed",
        "requests_incomplete",
        "requests_errored",
        "duration_s",
    ):
        assert from_statistics[name] == from_requests[name], name
    for name in (
        "ttft_ms_mean",
        "ttft_ms_p50",
        "itl_ms_mean",
        "e2e_ms_p90",
        "tpot_ms_mean",
    ):
        assert from_statistics[name] == pytest.approx(from_requests[name], rel=1e-3), (
            name
        )


@pytest.mark.parametrize("generation", [g for g in GENERATIONS if g != "0.4 preview"])
def test_throughput_counts_the_tokens_of_unfinished_requests(generation: str) -> None:
    story = Story(latency_s=4.7)
    expected = story.delivered / story.seconds
    assert row(read(generation, story))["throughput_tok_s"] == pytest.approx(
        expected, rel=2e-3
    )
    assert row(read(generation, story, keep=0))["throughput_tok_s"] == pytest.approx(
        expected, rel=2e-3
    )
    assert row(read(generation, story))["throughput_completed_tok_s"] < 0.99 * expected


def test_tokens_of_unfinished_requests_that_are_not_in_the_report_are_said_to_be_missing() -> (
    None
):
    judged = row(read("0.4 preview", keep=0))
    assert "partial_output" in names(judged)
    unfinished, per_cent = figures(judged, "partial_output")
    assert (unfinished, per_cent) == (4, round(100 * 4 / 120))


@pytest.mark.parametrize("generation", GENERATIONS)
def test_quantiles_of_the_time_per_token_are_missing_where_they_cannot_be_converted(
    generation: str,
) -> None:
    assert np.isnan(row(read(generation, keep=0))["tpot_ms_p50"]) == (
        generation == "0.3"
    )


def test_the_original_definition_is_kept() -> None:
    for generation in GENERATIONS:
        aggregate = read(generation).aggregate
        assert aggregate is not None
        assert aggregate.tpot_includes_first_token == (generation != "0.3")
        assert aggregate.tpot_ms.completed is not None
        original = 1800 / 37 if generation == "0.3" else 2000 / 37
        assert aggregate.tpot_ms.completed.mean == pytest.approx(original)


@pytest.mark.parametrize("generation", ["0.4", "1", "2"])
def test_a_window_that_ends_after_the_run_is_cut_to_it(generation: str) -> None:
    level = read(generation, Story(limit_s=90.0, warmup_s=10.0))
    assert level.end - level.start == pytest.approx(50.0)
    assert level.warmup_s == 10.0


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_sweep_gives_one_level_for_each_strategy(generation: str) -> None:
    stories = [
        Story(strategy="synchronous", streams=1),
        Story(strategy="throughput", streams=64),
        Story(strategy="constant", rate=4.25, streams=9),
    ]
    levels = decode_report(
        json.dumps(document(generation, stories)).encode(), "r.json"
    ).levels
    assert [(level.strategy, level.streams, level.rate_req_s) for level in levels] == [
        ("synchronous", 1, None),
        ("throughput", None, None),
        ("constant", None, 4.25),
    ]


def test_a_sample_of_the_requests_is_no_basis_and_the_statistics_are_taken() -> None:
    level = read("1", keep=10)
    assert (len(level.requests), level.requests_missing) == (14, 106)
    assert row(level)["requests_completed"] == 116
    assert figures(row(level), "aggregate_only") == [10, 116]
    with pytest.raises(LevelsError) as error:
        row(level, engine="local")
    assert (error.value.code, error.value.facts["missing"]) == ("requests_missing", 106)


def test_a_saturated_and_a_derived_rate_are_refused_and_noted() -> None:
    everything = row(
        read("0.3", Story(strategy="throughput", latency_s=14.0, streams=64), keep=0)
    )
    assert {"saturated_open_loop", "incomplete_share", "no_reuse"} <= set(
        everything["checks_failed"].split(";")
    )
    assert figures(everything, "incomplete_share") == [20, 320]
    kept_up = row(read("0.3", Story(strategy="constant", rate=2.0, streams=4)))
    assert "saturated_open_loop" not in names(kept_up)
    assert "open_loop" in kept_up["checks_warned"].split(";")
    behind = row(read("0.3", Story(strategy="constant", rate=5.0, streams=4)))
    assert figures(behind, "saturated_open_loop") == [5.0, 1.93]
    assert not {"closed_loop", "littles_law"} & names(behind)


def test_shared_prefixes_and_turns_make_reuse_possible() -> None:
    assert read("0.3").data == SyntheticData(64, 37)
    assert read("1").data == SyntheticData(64, 37, 2000, 8)
    assert read("2").data == SyntheticData(64, 37, 2000, 8, 5)
    assert "no_reuse" in names(row(read("0.3")))
    assert "no_reuse" not in names(row(read("1")))
    assert read("0.4 preview").data is None
    assert "no_reuse" not in names(row(read("0.4 preview")))


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        (["prompt_tokens=256,output_tokens=128"], SyntheticData(256, 128)),
        (
            ["prompt_tokens=256, output_tokens=128, turns=3"],
            SyntheticData(256, 128, turns=3),
        ),
        (
            [{"prompt_tokens": 1, "output_tokens": 2, "prefix_tokens": 3}],
            SyntheticData(1, 2, 3, 1),
        ),
        (
            [{"prompt_tokens": 1, "output_tokens": 2, "prefix_buckets": [{}, {}]}],
            SyntheticData(1, 2),
        ),
        (["/data/questions.jsonl"], None),
        (["{broken"], None),
        (["[1]"], None),
        ([{"prompt_tokens": "many", "output_tokens": 2}], None),
        (["prompt_tokens=1,output_tokens=1", "prompt_tokens=1,output_tokens=1"], None),
        ([None], None),
        ([], None),
    ],
)
def test_data_arguments(sources: list[Any], expected: SyntheticData | None) -> None:
    assert synthetic_data(sources) == expected


@real_data
def test_a_real_sweep_of_0_3() -> None:
    report = read_report(SWEEP)
    assert (report.guidellm_version, len(report.levels)) == ("0.3 or older", 10)
    assert [level.strategy for level in report.levels] == [
        "synchronous",
        "throughput",
        *["constant"] * 8,
    ]
    saturated = report.levels[1]
    assert (saturated.completed, saturated.incomplete, saturated.requests_missing) == (
        747,
        511,
        747,
    )
    assert (saturated.model, saturated.data) == (
        "Qwen/Qwen3-0.6B",
        SyntheticData(256, 128),
    )
    found = row(saturated)
    # All tokens, those of unfinished requests too, over the window: what 0.3 calls output_tokens_per_second.
    assert found["throughput_tok_s"] == pytest.approx(5031.2, rel=1e-4)
    assert found["throughput_completed_tok_s"] == pytest.approx(
        95616 / 30.0142, rel=1e-5
    )
    assert found["ttft_ms_mean"] == pytest.approx(7324.06, rel=1e-5)
    first = row(report.levels[0], streams=1)
    # (last token - start) / tokens, from means without the time to the first token: close to latency / tokens.
    assert first["tpot_ms_mean"] == pytest.approx(first["e2e_ms_mean"] / 128, rel=1e-3)
    assert first["itl_ms_p50"] > 6


@real_data
def test_the_normal_mode_refuses_a_verdict_on_the_sweep_and_says_why() -> None:
    for name in ("default", "offload", "lmcache"):
        found = row(read_report(DATA / f"oct2025-Qwen3-0.6B-{name}.json").levels[1])
        assert set(found["checks_failed"].split(";")) >= {
            "saturated_open_loop",
            "incomplete_share",
            "no_reuse",
        }
        assert figures(found, "incomplete_share") == [41, found["requests_total"]]


@real_data
def test_a_real_report_of_the_preview_of_0_4() -> None:
    report = read_report(DATA / "v0.4.json")
    assert report.guidellm_version == "0.4 preview"
    level = report.levels[0]
    assert (level.strategy, level.streams, level.completed, level.incomplete) == (
        "concurrent",
        99,
        1669,
        99,
    )
    found = row(level, streams=99)
    assert found["throughput_tok_s"] == pytest.approx(1669 * 50 / 60.0584, rel=1e-4)
    assert found["tpot_ms_mean"] == pytest.approx(40.169, rel=1e-4)
    assert found["itl_ms_mean"] == pytest.approx(30.329, rel=1e-4)
    assert {"aggregate_only", "partial_output"} <= names(found)


@real_data
def test_a_real_report_of_0_5() -> None:
    report: LoadReport = read_report(DATA / "v0.5-Qwen3-4B-tp2-fp8.json")
    assert report.guidellm_version == "0.5.0.dev0"
    level = report.levels[0]
    assert (level.strategy, level.streams, level.completed, level.requests_missing) == (
        "synchronous",
        1,
        26,
        0,
    )
    # The window was computed from a limit of 900 s, of which 90 s at the end are cut; 30 requests took 605 s.
    assert level.end == pytest.approx(1772474997.1346653)
    found = row(level, streams=1)
    assert found["throughput_tok_s"] == pytest.approx(1 / 0.019658, rel=0.01)
    request = level.requests[0]
    assert request.tpot_ms == pytest.approx(
        (request.last_token - request.start) / 1.024
    )  # type: ignore[operator]
    assert request.itl_ms == pytest.approx(
        (request.last_token - request.first_token) / 1.023
    )  # type: ignore[operator]
    assert request.turn == 0


LARGE = """
import resource, sys
from pathlib import Path
from kveval.load.reports.reading import read_report
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
report = read_report(Path(sys.argv[1]))
print(len(report.levels[0].requests), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


def test_a_report_of_37_mb_needs_little_more_memory_than_its_text(
    tmp_path: Path,
) -> None:
    content = document("1", [Story(seconds=500.0, streams=4)])
    benchmark = content["benchmarks"][0]
    for request in benchmark["requests"]["successful"]:
        request["request_args"] = "a prompt of ten thousand tokens " * 1160
    path = tmp_path / "large.json"
    path.write_text(json.dumps(content))
    size = path.stat().st_size / 2**20
    assert size > 35
    run = subprocess.run(
        [sys.executable, "-c", LARGE, str(path)],
        env={**os.environ, "PYTHONPATH": str(SCRIPTS)},
        capture_output=True,
        text=True,
        check=True,
    )
    count, mib = run.stdout.split()
    assert int(count) == len(benchmark["requests"]["successful"]) + 4
    assert float(mib) < size + 16
