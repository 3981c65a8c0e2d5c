"""Shares of prompt tokens that caches should serve, computed for stored runs, beside those that servers counted."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.support.described import described_run
from tests.support.paths import REPOSITORY
from tests.support.report_text import said_by
from tests.support.synthetic import run_description
from tests.unit.tables.test_tier_activity import DEVICE, run

from kveval.campaign.cell import Cell
from kveval.campaign.specification import Specification
from kveval.configuration.loading import load_config
from kveval.load import traces
from kveval.load.guidellm import trace_file
from kveval.plugins.curve.predicted.hits import (
    NUMBERS,
    predicted_hits,
    served_shares,
    served_table,
)
from kveval.report.data.hits import TOLERANCE_POINTS, read_curve, read_served
from kveval.report.result.reuse import clues_to

CONFIG = REPOSITORY / "config"
TIERED = "native-offload", 10_000


@pytest.fixture(scope="module")
def laptop() -> Specification:
    return load_config(CONFIG / "config.yaml", CONFIG).specification(
        Cell("Qwen3-0.6B", *TIERED)
    )


@pytest.fixture(scope="module")
def replayed() -> Specification:
    config = load_config(CONFIG / "campaigns" / "laptop-trace.yaml", CONFIG)
    return config.specification(next(cell for cell in config.cells if cell.cpu_blocks))


def predicted(
    folder: Path, specification: Specification, /, sent: int = 83, **changes: Any
) -> Mapping[str, Any]:
    """The only row of a stored run's levels; `changes` are of its run.json."""
    level = specification.workload.given_levels[0]
    content = run_description("Qwen3-0.6B", *TIERED, 1) | {
        "specification": specification.to_json(),
        "levels": [{"level": level, "report": f"raw/guidellm-{level:04d}.json.zst"}],
    }
    stored = described_run(content | changes)
    started = pd.Series([pd.Timestamp("2026-01-01T00:00Z")] * sent + [pd.NaT])
    requests = pd.DataFrame({"run": 1, "level": level, "start": started})
    row: Mapping[str, Any] = predicted_hits([stored], [folder], requests).iloc[0]
    return row


def test_of_drawn_prefixes_the_requests_that_were_sent_count(laptop, tmp_path):
    """Found on the device of the default campaign's first run, with 83 requests: 28.2 %; with the tier 99.0 %."""
    row = predicted(tmp_path, laptop)
    assert 100 * row["predicted_device_ratio"] == pytest.approx(28.2, abs=0.5)
    assert (
        100 * row["predicted_ratio_low"]
        == 100 * row["predicted_ratio_high"]
        == pytest.approx(99.0, abs=0.5)
    )
    assert row["predicted_prompt_tokens"] == 83 * 6032
    assert (row["predicted_tier_blocks"], row["predicted_not"]) == (10_000, "")
    # One server: its caches are all there are.
    assert row["predicted_pooled_ratio"] == row["predicted_ratio_high"]
    assert row["predicted_pooled_ratio"] <= row["predicted_offered_ratio"] < 1
    curve = read_curve(row["predicted_curve"])
    assert curve["low"].is_monotonic_increasing and curve.index.is_monotonic_increasing
    ends = row["predicted_device_ratio"], row["predicted_ratio_high"]
    assert (curve["low"].iloc[0], curve["high"].iloc[-1]) == pytest.approx(
        ends, abs=1e-4
    )


def test_requests_that_still_waited_when_the_level_ended_found_nothing_and_asked_for_nothing(
    laptop, tmp_path
):
    asked = {"before": 0.0, "after": 60 * 6042.0, "delta": 60 * 6042.0}
    levels = [
        {
            "level": 2,
            "report": "raw/x.json.zst",
            "counters": {"vllm:prefix_cache_queries_total": asked},
        }
    ]
    waited = predicted(tmp_path, laptop, levels=levels)
    assert waited["predicted_prompt_tokens"] == 60 * 6032
    assert (
        waited["predicted_device_ratio"]
        == predicted(tmp_path, laptop, sent=60)["predicted_device_ratio"]
    )


def test_of_a_trace_the_requests_lie_beside_the_report(replayed, tmp_path):
    level = replayed.workload.given_levels[0]
    missing = predicted(tmp_path, replayed)
    assert np.isnan(missing["predicted_device_ratio"]) and missing["predicted_not"]
    (tmp_path / "raw").mkdir()
    traces.write(
        replayed.workload,
        level,
        1,
        trace_file(tmp_path / "raw" / f"guidellm-{level:04d}.json"),
    )
    found = predicted(tmp_path, replayed, sent=200)
    rows = list(traces.rows(replayed.workload, level, 1))[:200]
    assert found["predicted_prompt_tokens"] == sum(row.input_length for row in rows)
    assert 0 < found["predicted_device_ratio"] < found["predicted_ratio_low"]


@pytest.mark.parametrize(
    ("workload", "changes"),
    [
        ({}, {"engine": "imported"}),
        ({}, {"versions": {"vllm": "0.32.0", "guidellm": "0.6.0"}}),
        ({}, {"specification": {"workload": {"levels": [2]}}}),
        ({"profile": "poisson", "turns": 2}, {}),
        ({"profile": "sweep"}, {}),
    ],
)
def test_what_cannot_be_computed_says_why(workload, changes, laptop, tmp_path):
    row = predicted(tmp_path, laptop.with_workload(**workload), **changes)
    assert row[[*NUMBERS]].isna().all()
    assert row["predicted_not"] and not row["predicted_curve"]
    assert predicted(tmp_path, laptop, sent=0)["predicted_not"]


def test_a_device_of_unknown_size_is_as_the_server_reported_it(laptop, tmp_path):
    sizes = {"device_blocks": None, "device_tokens": None}
    content = laptop.to_json()
    unknown = Specification.from_json(content | {"budget": content["budget"] | sizes})
    assert predicted(tmp_path, unknown)["predicted_not"]
    reported = predicted(
        tmp_path, unknown, server={"facts": {"kv_cache_tokens": 17_920}}
    )
    assert (
        reported["predicted_device_ratio"]
        == predicted(tmp_path, laptop)["predicted_device_ratio"]
    )


def test_of_many_requests_longer_blocks_stand_for_those_of_a_prefix(
    laptop, tmp_path, monkeypatch
):
    exact = predicted(tmp_path, laptop, sent=300)
    monkeypatch.setattr("kveval.plugins.curve.predicted.hits._ENOUGH_BLOCKS", 20_000)
    coarse = predicted(tmp_path, laptop.with_workload(prefix_tokens=6144), sent=300)
    assert coarse["predicted_device_ratio"] == pytest.approx(
        exact["predicted_device_ratio"], abs=0.03
    )
    monkeypatch.setattr("kveval.plugins.curve.predicted.hits._MOST_BLOCKS", 20_000)
    assert predicted(tmp_path, laptop, sent=3000)["predicted_not"]


def shares(device: float, low: float, high: float, **counters: float) -> Any:
    """The only share of a cell of which 65 % were found on the device and 10 % in the tier."""
    counted = {**DEVICE, "vllm:external_prefix_cache_hits_total": 20_000.0, **counters}
    level = {
        **{
            "model": "tiny",
            "scenario": "native-offload",
            "cpu_blocks": 2000,
            "run": 1,
            "level": 4,
        },
        **dict(zip(NUMBERS, (device, low, high, 2e5, 2000.0, 0.9, high), strict=True)),
        **{
            "request_prompt_tokens": 1000.0,
            "request_output_tokens": 10.0,
            "concurrency_mean": 1.0,
        },
        "device_tokens": 1e5,
    }
    found = served_shares(pd.DataFrame([level]), [run("native-offload", **counted)])
    (read,) = read_served(served_table(found))
    assert read.clues == pytest.approx(found[0].clues, nan_ok=True)
    return read


def test_within_the_range_nothing_differs():
    found = shares(0.6, 0.7, 0.8)
    assert (found.device_measured, found.measured, found.difference) == pytest.approx(
        (65, 75, 0)
    )
    assert not found.is_finding and np.isnan(found.half_width)
    below = shares(0.6, 0.75 + 0.02 + TOLERANCE_POINTS / 100, 0.9)
    assert below.is_finding and below.difference == pytest.approx(-5)
    assert served_shares(pd.DataFrame({"model": []}), []) == []


def test_a_finding_names_what_was_counted_and_else_the_server():
    preempted = likely_cause(**{"vllm:num_preemptions_total": 17.0})
    assert preempted.startswith("17 preempted requests")
    unexplained = likely_cause(**{"vllm:kv_offload_store_bytes_total": 1024 * 50_000.0})
    assert "server" in unexplained and not any(
        letter.isdigit() for letter in unexplained
    )


def likely_cause(**counters: float) -> str:
    """What the report says of a cell of which 15 % fewer were found than computed."""
    return said_by(
        "leaks.md.j2", "likely_cause", clues_to(shares(0.6, 0.9, 0.9, **counters))
    )


def test_a_counter_and_its_parts_by_label_are_counted_once():
    name = "lmcache_mp_l1_allocation_failure_chunks_total"
    found = shares(
        0.6, 0.9, 0.9, **{name: 834.0, f'{name}{{during="l1_store"}}': 834.0}
    )
    assert found.clues["failed"] == 834
