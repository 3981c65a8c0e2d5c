"""Latencies that nobody observed, or in another unit, from the load generator's report to the verdict."""

import dataclasses
import functools
import json
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest
from tests.support.described import described_run
from tests.support.guidellm_reports import Story, document
from tests.support.synthetic import BASELINES, run_description, times
from tests.support.vllm_bench import result

from kveval.load.reports import LevelReport
from kveval.load.reports.reading import decode_report
from kveval.store.run_file import IMPORTED
from kveval.tables.levels.activity import required_counters
from kveval.tables.levels.goodput import GOODPUT
from kveval.tables.levels.latencies import parse_reasons, unknown_latencies
from kveval.tables.levels.rows import level_row
from kveval.verdict import verdict_words as words
from kveval.verdict.verdicts import compare_all

ARM = "native-offload"
STREAMS = 8
LIMITS = {"ttft_ms": 500.0, "of": "requests"}
TTFT, ITL, LATENCY = (
    "time_to_first_token_ms",
    "inter_token_latency_ms",
    "request_latency",
)
TPOT = "time_per_output_token_ms"
# A field of the report, and what it is multiplied by.
Scale = tuple[str, float]


@functools.cache
def report(
    scale: Scale | None,
    latency_s: float,
    keep: int | None = None,
    generation: str = "2",
) -> LevelReport:
    """A level of ten minutes with one field scaled; `keep`: of a report that keeps so few requests, its statistics."""
    content = document(
        generation,
        [Story(streams=STREAMS, seconds=600.0, latency_s=latency_s)],
        keep=keep,
    )
    (benchmark,) = content["benchmarks"]
    if scale is not None:
        name, factor = scale
        records = [
            *benchmark["requests"]["successful"],
            *benchmark["requests"]["incomplete"],
        ]
        for record in records if keep is None else ():
            record[name] = None if record[name] is None else factor * record[name]
        for summary in benchmark["metrics"][name].values():
            summary |= {
                key: factor * summary[key] for key in ("mean", "median", "total_sum")
            }
            summary["percentiles"] = {
                key: factor * value for key, value in summary["percentiles"].items()
            }
    return decode_report(json.dumps(content).encode(), "report").levels[0]


def row_of(
    scenario: str, run: int, found: LevelReport, **changes: Any
) -> dict[str, Any]:
    counters = {"vllm:hits_total": {"before": 0.0, "after": 5e4, "delta": 5e4}}
    entry = {"level": STREAMS, "status": "ok", "counters": counters}
    blocks = 0 if scenario == "no-offload" else 10_000
    described = run_description("Qwen3-0.6B", scenario, blocks, run) | changes
    described["levels"] = [entry]
    described["specification"]["workload"] = {
        "turns": 1,
        "seconds": 600,
        "warmup_s": 0,
        "prefix_count": 4,
    }
    required = required_counters(described["exercised"]["required"])
    stored = described_run(described)
    return level_row(stored, stored.levels[0], found, "0.8.1", required, LIMITS) | {
        **times(scenario, run),
        # The story repeats itself to the digit; runs differ by a per cent.
        **{"configuration": scenario, "checks_failed": ""},
    }


@functools.cache
def campaign(
    scale: Scale | None, runs: tuple[int, ...] = (1, 2, 3, 4, 5), **options: Any
) -> pd.DataFrame:
    """A baseline, and an arm that answers 15 % sooner whose reports were changed in these of five runs.

    The table is shared by the tests, which change it nowhere.
    """
    rows = []
    generator = np.random.default_rng(5)
    engine = {"engine": IMPORTED} if "keep" in options else {}
    for run in range(1, 6):
        for scenario, latency_s in (("no-offload", 2.0), (ARM, 1.7)):
            of_run = scale if scenario == ARM and run in runs else None
            row = row_of(scenario, run, report(of_run, latency_s, **options), **engine)
            noise = np.exp(generator.normal(0, 0.01))
            measured = [
                name
                for name in row
                if name == "throughput_tok_s" or ("_ms_" in name and "_se" not in name)
            ]
            rows.append(row | {name: row[name] * noise for name in measured})
    table = pd.DataFrame(rows)
    table["exercised"] = table["exercised"].astype("boolean")
    return table


@functools.cache
def judged(scale: Scale | None, **options: Any) -> dict[str, pd.Series]:
    """The comparison of a campaign with such reports in each metric; it is changed nowhere."""
    found = compare_all(campaign(scale, **options), BASELINES).baseline
    return {row["metric"]: row for _, row in found.iterrows()}


def test_latencies_as_the_requests_have_them_get_their_verdicts() -> None:
    levels = campaign(None)
    assert set(levels["latencies_unknown"]) == {""}
    found = judged(None)
    for metric in ("throughput_tok_s", "itl_ms_p50", "e2e_ms_p50"):
        assert found[metric]["verdict"] == words.BETTER
    assert found["ttft_ms_p50"]["verdict"] in words.VERDICTS


CASES = {
    "TTFT of 0": ((TTFT, 0.0), "ttft", "0 ms or less in 2,8"),
    "TTFT in seconds": (
        (TTFT, 1e-3),
        "ttft",
        "0.2 ms, though the requests' own times say 200 ms: likely in seconds",
    ),
    "TTFT in microseconds": ((TTFT, 1e3), "ttft", "say 200 ms: likely in microseconds"),
    "ITL in seconds": ((ITL, 1e-3), "itl", "likely in seconds"),
    "ITL of 0": ((ITL, 0.0), "itl", "0 ms or less in "),
    "E2E in other units": ((LATENCY, 1e3), "e2e", "likely in microseconds"),
    "half of the TTFT": (
        (TTFT, 0.5),
        "ttft",
        "100 ms, though the requests' own times say 200 ms",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_latency_that_nobody_observed_gets_no_verdict_and_no_number(
    case: str,
) -> None:
    scale, name, why = CASES[case]
    levels = campaign(scale)
    of_arm = levels[levels["scenario"] == ARM]
    assert (
        of_arm[[f"{name}_ms_mean", f"{name}_ms_p50", f"{name}_ms_p90"]]
        .isna()
        .all(axis=None)
    )
    assert all(why in parse_reasons(text)[name] for text in of_arm["latencies_unknown"])
    assert all("latencies_known" in text for text in of_arm["checks_warned"])
    row = judged(scale)[f"{name}_ms_p50"]
    assert (row["verdict"], row["basis_latencies"]) == (
        words.NOT_ASSESSED,
        "refuses: not known",
    )
    assert np.isnan(row["effect_percent"])
    assert row["reason"].startswith(f"in the arm, {name.upper()} is unknown: ")
    assert why in row["reason"]
    assert row["reason"].endswith("(5 of 5 runs)")


@pytest.mark.parametrize("case", CASES)
def test_an_unknown_latency_leaves_the_other_verdicts_alone(case: str) -> None:
    scale, name, _ = CASES[case]
    changed, sound = judged(scale), judged(None)
    for metric, row in sound.items():
        if not metric.startswith(name) and metric != GOODPUT:
            assert changed[metric]["verdict"] == row["verdict"], metric
            assert changed[metric]["effect_percent"] == pytest.approx(
                row["effect_percent"], nan_ok=True
            )


def test_goodput_within_a_limit_on_an_unknown_latency_is_unknown() -> None:
    assert judged((TTFT, 1e-3))[GOODPUT]["verdict"] == words.NOT_ASSESSED
    assert judged(None)[GOODPUT]["verdict"] in words.VERDICTS


def test_a_run_with_an_unknown_latency_is_left_out_where_enough_others_remain() -> None:
    row = judged((TTFT, 0.0), runs=(4,))["ttft_ms_p50"]
    assert row["verdict"] in words.VERDICTS
    assert row["runs_kept"] == "1;2;3;5"
    assert "run 4 of native-offload 10K: TTFT is unknown: 0 ms or less" in row["reason"]


def test_a_few_requests_with_a_ttft_of_0_are_left_out() -> None:
    sound = report(None, 2.0)
    first, *others = sound.requests
    zero = msgspec.structs.replace(first, ttft_ms=0.0)
    rows = [
        row_of("no-offload", 1, dataclasses.replace(sound, requests=tuple(requests)))
        for requests in ((zero, *others), others)
    ]
    assert {row["latencies_unknown"] for row in rows} == {""}
    assert rows[0]["ttft_count"] == rows[1]["ttft_count"]
    assert rows[0]["ttft_ms_mean"] == pytest.approx(200.0)
    assert rows[0]["ttft_ms_p50"] == rows[1]["ttft_ms_p50"]


STATISTICS = {
    "TTFT of 0": ((TTFT, 0.0), "ttft", "0 ms or less in the report's statistics"),
    "TTFT in seconds": (
        (TTFT, 1e-3),
        "ttft",
        "0.2 ms, though E2E and ITL leave 200 ms: likely in seconds",
    ),
    "TTFT in microseconds": ((TTFT, 1e3), "ttft", "likely in microseconds"),
    "ITL in seconds": ((ITL, 1e-3), "itl", "likely in seconds"),
    "TPOT in seconds": ((TPOT, 1e-3), "tpot", "likely in seconds"),
}


@pytest.mark.parametrize("case", STATISTICS)
def test_statistics_that_do_not_add_up_get_no_verdict(case: str) -> None:
    scale, name, why = STATISTICS[case]
    levels = campaign(scale, keep=10)
    unknown = levels[levels["scenario"] == ARM]["latencies_unknown"].map(parse_reasons)
    assert [[*reasons] for reasons in unknown] == [[name]] * 5
    assert all(why in reasons[name] for reasons in unknown)
    found = judged(scale, keep=10)
    assert found[f"{name}_ms_p50"]["verdict"] == words.NOT_ASSESSED
    assert why in found[f"{name}_ms_p50"]["reason"]


@pytest.mark.parametrize("generation", ["0.3", "0.4 preview", "0.4", "1", "2"])
@pytest.mark.parametrize("keep", [None, 10])
def test_reports_of_every_version_agree_with_themselves(
    generation: str, keep: int | None
) -> None:
    assert unknown_latencies(report(None, 2.0, keep, generation)) == {}


@pytest.mark.parametrize("detailed", [True, False])
def test_results_of_vllm_bench_agree_with_themselves(detailed: bool) -> None:
    content = result(detailed=detailed)
    (level,) = decode_report(json.dumps(content).encode(), "result").levels
    assert unknown_latencies(level) == {}
