import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from tests.support.described import vllm
from tests.support.paths import CONFIG
from tests.support.synthetic import level_row

from kveval.stacks.model_server import TERMS
from kveval.tables.levels.outcomes import Outcome, outcome_columns, outcomes_of
from kveval.tables.system.checks_system import WindowMetrics
from kveval.tables.system.metrics import (
    NO_WINDOW,
    MetricsError,
    SystemRecording,
    parse_metrics,
    with_system_metrics,
)
from pcp_parquet.conversion.conversion import convert
from pcp_parquet.tests.test_archive_writer import (
    COUNTER,
    DOUBLE,
    NULL,
    U64,
    Metric,
    Writer,
    indom,
    pmid,
    units,
)

SECOND = 10**9
START = 1_700_000_000 * SECOND
SECONDS = 40
CATALOGUE = CONFIG / "metrics.yaml"
VLLM = "openmetrics.vllm.vllm."
KBYTE = units(1, 0, 0, (1, 0, 0))


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 s at 1 s: known gauges and counters; the offload counter appears after 20 s, the engines are two."""
    folder = tmp_path_factory.mktemp("pcp")
    writer = Writer(folder, start=START)
    engines, names = indom(144, 1), iter(range(1, 100))
    writer.domain(START, engines, {0: "0 engine:0", 1: "1 engine:1"})

    def metric(name: str, kind: int = DOUBLE, **facts: Any) -> int:
        number = pmid(60, 0, next(names))
        writer.metric(Metric(number, (name,), kind, **facts))
        return number

    usage = metric(f"{VLLM}kv_cache_usage_perc", indom=engines)
    running = metric(f"{VLLM}num_requests_running", indom=engines)
    hits = metric(f"{VLLM}prefix_cache_hits_total", indom=engines, semantics=COUNTER)
    queries = metric(
        f"{VLLM}prefix_cache_queries_total", indom=engines, semantics=COUNTER
    )
    loaded = metric(
        f"{VLLM}kv_offload_load_bytes_total", semantics=COUNTER, units=units(1)
    )
    used = metric("mem.util.used", U64, units=KBYTE)
    sent = metric("network.interface.out.bytes", U64, semantics=COUNTER, units=units(1))
    odd = metric("odd.time", U64, units=units(0, 1))
    for step in range(SECONDS):
        values: dict[int, dict[int, object] | int] = {
            usage: {0: 0.40, 1: 0.50},
            running: {0: 3.0, 1: 4.0},
            hits: {0: 30.0 * step, 1: 30.0 * step},
            queries: {0: 40.0 * step, 1: 40.0 * step},
            used: {NULL: 2 * 2**20 if step < 20 else 4 * 2**20},
            sent: {NULL: 3_000_000 * step},
            odd: {NULL: 1},
        }
        if step >= 20:
            values[loaded] = {NULL: 5e6 * (step - 20)}
        writer.record(START + step * SECOND, values)
    convert(writer.close(), folder / "pcp.parquet")
    return folder / "pcp.parquet"


def entry(**changes: Any) -> dict[str, Any]:
    return {
        "title": "a metric",
        "unit": "requests",
        "reduction": "mean",
        "pcp": f"{VLLM}num_requests_running",
        **changes,
    }


def reduced(
    recording: Path, first: float = 0, last: float = SECONDS - 1, **changes: Any
) -> tuple[float, WindowMetrics]:
    metrics = parse_metrics({"x": entry(**changes)})
    begin, end = START + round(first * SECOND), START + round(last * SECOND)
    found = SystemRecording(recording, metrics, vllm("0.32.0")).reduce(
        (begin, end), least=10
    )
    return found.values["x"], found


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"instances": "sum"}, 7.0),
        ({"instances": "max"}, 4.0),
        (
            {
                "pcp": f"{VLLM}kv_cache_usage_perc",
                "unit": "percent",
                "scale": 100,
                "instances": "mean",
            },
            45.0,
        ),
        ({"pcp": "mem.util.used", "unit": "GiB"}, 3.0),
        ({"pcp": "mem.util.used", "unit": "GiB", "reduction": "max"}, 4.0),
        ({"pcp": "mem.util.used", "unit": "GiB", "reduction": "last"}, 4.0),
        (
            {"pcp": "network.interface.out.bytes", "unit": "MB/s", "reduction": "rate"},
            3.0,
        ),
        (
            {
                "pcp": f"{VLLM}prefix_cache_hits_total",
                "unit": "tokens",
                "reduction": "increase",
            },
            60 * 39,
        ),
        ({"pcp": f"{VLLM}num_requests_running + {VLLM}num_requests_running"}, 14.0),
    ],
)
def test_reductions_instances_and_units(
    recording: Path, changes: dict[str, Any], expected: float
) -> None:
    value, found = reduced(recording, **changes)
    assert value == pytest.approx(expected)
    assert (found.samples, found.notes) == (SECONDS, [])


def test_a_ratio_is_of_increases_in_the_window(recording: Path) -> None:
    pair = {
        "numerator": f"{VLLM}prefix_cache_hits_total",
        "denominator": f"{VLLM}prefix_cache_queries_total",
    }
    value, _ = reduced(
        recording,
        10,
        30,
        pcp=None,
        reduction="ratio",
        unit="percent",
        scale=100,
        **pair,
    )
    assert value == pytest.approx(75.0)


def test_only_samples_of_the_window_count(recording: Path) -> None:
    value, found = reduced(recording, 20, 34, pcp="mem.util.used", unit="GiB")
    assert (value, found.samples) == (4.0, 15)


def test_a_rate_covers_the_whole_window_though_its_samples_do_not(
    recording: Path,
) -> None:
    value, _ = reduced(
        recording,
        10.9,
        30.1,
        pcp="network.interface.out.bytes",
        unit="MB/s",
        reduction="rate",
    )
    assert value == pytest.approx(3.0)


def test_a_bound_that_is_passed_by_rounding_alone_is_kept(recording: Path) -> None:
    value, found = reduced(recording, 0, 39, plausible=[0, 7 * (1 - 1e-12)])
    assert (value, found.notes) == (7.0, [])


def test_what_was_not_recorded_is_missing_and_named(recording: Path) -> None:
    value, found = reduced(recording, pcp="nvidia.gpuactive")
    assert math.isnan(value)
    assert found.notes == ["not recorded: x"]
    value, found = reduced(recording, pcp={"0.40": f"{VLLM}num_requests_running"})
    assert math.isnan(value)


@pytest.mark.parametrize(
    ("window", "changes", "note"),
    [
        ((0, 5), {}, "fewer than 10 samples in the window: x"),
        (
            (0, 39),
            {"plausible": [0, 5]},
            "7 requests refused, outside the plausible 0..5",
        ),
        ((0, 39), {"pcp": "odd.time", "unit": "GiB"}, "cannot be turned into GiB"),
        (
            (-40, 10),
            {"pcp": f"{VLLM}prefix_cache_hits_total", "reduction": "increase"},
            "cover 10 s of the window's 50",
        ),
        ((0, 39), {"reduction": "rate"}, "is instant, not a counter"),
        (
            (0, 39),
            {"pcp": f"{VLLM}kv_cache_usage_perc", "unit": "percent"},
            "a fraction that is not scaled by 100",
        ),
    ],
)
def test_what_cannot_be_trusted_is_missing_with_its_reason(
    recording: Path, window: tuple[float, float], changes: dict[str, Any], note: str
) -> None:
    value, found = reduced(recording, *window, **changes)
    assert math.isnan(value)
    assert note in found.notes[0]


def test_a_name_may_depend_on_the_version(recording: Path) -> None:
    names = {"*": "gone", "0.24": f"{VLLM}num_requests_running", "0.40": "future"}
    assert reduced(recording, pcp=names)[0] == 7.0


def levels(**changes: Any) -> pd.DataFrame:
    row = level_row("m", "native-offload", 1, 8, 500.0)
    measured = {
        name: value
        for name, value in row.items()
        if not name.startswith(("requests_r", "requests_w", "pcp_"))
    }
    window = {
        "window_start": pd.Timestamp(START),
        "window_end": pd.Timestamp(START + 39 * SECOND),
    }
    return pd.DataFrame([measured | window | changes])


def test_metrics_join_their_level(recording: Path) -> None:
    catalogue = {"requests_running": entry()}
    table = with_system_metrics(levels(), recording, catalogue, vllm("0.32.0"))
    assert (
        table["requests_running"][0],
        table["pcp_samples"][0],
        table["pcp_notes"][0],
    ) == (7.0, SECONDS, "")


def test_the_hit_ratio_is_followed_through_the_window(recording: Path) -> None:
    """30 of 40 tokens are found in every second of the recording."""
    catalogue = yaml.safe_load(CATALOGUE.read_text())
    bare = levels().drop(columns=catalogue.keys() & set(levels()))
    table = with_system_metrics(bare, recording, catalogue, vllm("0.32.0"))
    assert table.loc[
        0, ["hit_ratio_drift", "hit_ratio_drift_se"]
    ].tolist() == pytest.approx([0.0, 0.0], abs=1e-9)
    other = with_system_metrics(
        levels(), recording, {"requests_running": entry()}, vllm("0.32.0")
    )
    assert other[["hit_ratio_drift", "hit_ratio_drift_se"]].isna().all(axis=None)


def test_more_requests_in_the_server_than_were_sent_fails_the_level(
    recording: Path,
) -> None:
    catalogue = {"requests_running": entry(), "requests_waiting": entry(scale=0.25)}
    judged = outcome_columns([Outcome("steadiness", "fail", words="it rose")])
    failed = with_system_metrics(levels(**judged), recording, catalogue, vllm("0.32.0"))
    assert failed["checks_failed"][0] == "steadiness;queues"
    (facts,) = [
        found.facts
        for found in outcomes_of(failed.loc[0].to_dict())
        if found.code == "queues"
    ]
    assert facts == {"requests_in_server": 8.75, "in_flight": 8}


def test_the_catalogue_is_well_formed() -> None:
    metrics = parse_metrics(yaml.safe_load(CATALOGUE.read_text()))
    for key, metric in metrics.items():
        suffix = {
            "percent": "_percent",
            "GiB": "_gib",
            "MB/s": "_mb_s",
            "tok/s": "_tok_s",
            "W": "_w",
        }.get(metric.unit, "")
        assert key.endswith(suffix), f"{key} carries no unit"
        assert metric.plausible is not None
    usage = metrics["kv_cache_usage_percent"]
    assert usage.scale == 100, "the gauge is a fraction"


@pytest.mark.parametrize(
    ("name", "counter"),
    [
        ("prefix_cache_hit_percent", "prefix_cache"),
        ("external_cache_hit_percent", "external_prefix_cache"),
    ],
)
def test_a_share_of_hits_is_one_of_the_tokens_that_its_cache_was_asked_for(
    name: str, counter: str
) -> None:
    metric = parse_metrics(yaml.safe_load(CATALOGUE.read_text()))[name]
    assert metric.numerator == {"*": f"server.{counter}_hits"}
    assert metric.denominator == {"*": f"server.{counter}_queries"}
    assert {TERMS[f"{counter}_{of}"].split()[1] for of in ("hits", "queries")} == {
        "tokens"
    }
    assert metric.title.endswith(", of those asked for there")


def test_a_mistake_in_the_catalogue_names_its_entry() -> None:
    with pytest.raises(MetricsError, match="metric broken"):
        parse_metrics({"broken": entry(reduction="median")})


def test_a_failed_level_has_no_window(recording: Path) -> None:
    table = levels()
    table["window_start"] = pd.NaT
    joined = with_system_metrics(
        table, recording, {"requests_running": entry()}, vllm("0.32.0")
    )
    assert np.isnan(joined["requests_running"][0])
    assert joined["pcp_notes"][0] == NO_WINDOW


def test_a_counter_that_appears_later_was_zero_before(recording: Path) -> None:
    """Prometheus clients create a counter at its first use: its first value was gained then, and nothing before."""
    loaded = {
        "pcp": f"{VLLM}kv_offload_load_bytes_total",
        "unit": "MB/s",
        "reduction": "rate",
    }
    assert reduced(recording, 0, 15, **loaded)[0] == 0.0
    value, found = reduced(recording, 0, 39, **loaded)
    assert value == pytest.approx(5.0 * 19 / 39)
    assert found.samples == SECONDS
    assert reduced(recording, 25, 39, **loaded)[0] == pytest.approx(5.0)


def test_the_first_source_that_was_recorded_is_read(recording: Path) -> None:
    value, _ = reduced(
        recording,
        pcp="nvidia.gpuactive",
        alternatives=[{"pcp": "gone"}, {"pcp": "mem.util.used", "scale": 7}],
        unit="GiB",
    )
    assert value == pytest.approx(3.0)
    other = [{"pcp": f"{VLLM}num_requests_running", "scale": 10}]
    assert reduced(recording, pcp="gone", alternatives=other)[0] == 70.0


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"select": "engine:1"}, 4.0),
        ({"omit": "engine:1"}, 3.0),
        ({"instances": "min"}, 3.0),
        ({"instances": "mean"}, 3.5),
    ],
)
def test_instances_are_selected_and_combined(
    recording: Path, changes: dict[str, Any], expected: float
) -> None:
    assert reduced(recording, **changes)[0] == expected


def test_a_ratio_per_instance_shows_the_extreme_and_the_share(recording: Path) -> None:
    pair = {
        "numerator": f"{VLLM}prefix_cache_hits_total",
        "denominator": f"{VLLM}prefix_cache_queries_total",
    }
    common = {
        "pcp": None,
        "reduction": "ratio",
        "unit": "percent",
        "scale": 100,
        **pair,
    }
    assert reduced(recording, instances="max", **common)[0] == pytest.approx(75.0)
    assert reduced(recording, instances="share_above", above=74, **common)[0] == 100
    assert reduced(recording, instances="share_above", above=76, **common)[0] == 0


def test_a_breakdown_names_every_instance(recording: Path) -> None:
    _, found = reduced(recording, breakdown=True)
    assert found.breakdown == {"x_by_instance": "0 engine:0=3;1 engine:1=4"}


def test_what_is_optional_and_absent_is_no_remark(recording: Path) -> None:
    value, found = reduced(recording, pcp="nvidia.gpuactive", optional=True)
    assert math.isnan(value)
    assert found.notes == []
    assert found.absent == ()


def test_a_source_that_never_had_a_value_gives_way_to_one_that_had(
    tmp_path: Path,
) -> None:
    writer = Writer(tmp_path, start=START)
    empty, told = pmid(60, 0, 1), pmid(60, 0, 2)
    writer.metric(Metric(empty, ("nvidia.power",), DOUBLE))
    writer.metric(Metric(told, ("openmetrics.nvml.gpu_power_watts",), DOUBLE))
    for step in range(40):
        writer.record(START + step * SECOND, {told: {NULL: 689.0}})
    convert(writer.close(), tmp_path / "pcp.parquet")
    alternatives = [{"pcp": "openmetrics.nvml.gpu_power_watts"}]
    value, _ = reduced(
        tmp_path / "pcp.parquet",
        pcp="nvidia.power",
        scale=0.001,
        alternatives=alternatives,
    )
    assert value == 689.0


def test_a_reset_counts_what_came_after_it(tmp_path: Path) -> None:
    writer = Writer(tmp_path, start=START)
    number = pmid(60, 0, 1)
    writer.metric(Metric(number, ("some.counter",), DOUBLE, semantics=COUNTER))
    for step in range(40):
        writer.record(
            START + step * SECOND,
            {number: {NULL: 10.0 * (step if step < 20 else step - 20)}},
        )
    convert(writer.close(), tmp_path / "pcp.parquet")
    value, _ = reduced(
        tmp_path / "pcp.parquet", pcp="some.counter", reduction="increase"
    )
    assert value == pytest.approx(190 + 190)


def test_the_window_follows_the_clock_of_the_recording(recording: Path) -> None:
    catalogue = {"x": entry(pcp="mem.util.used", unit="GiB", reduction="max")}
    early = {
        "window_start": pd.Timestamp(START - 22 * SECOND),
        "window_end": pd.Timestamp(START - 3 * SECOND),
    }
    assert (
        with_system_metrics(levels(**early), recording, catalogue, vllm("0"), 10)["x"]
        .isna()
        .all()
    )
    moved = with_system_metrics(
        levels(**early, clock_offset_s=22.0), recording, catalogue, vllm("0"), 10
    )
    assert moved["x"].tolist() == [2.0]
    assert "clock_offset" in moved["checks_noted"][0]
