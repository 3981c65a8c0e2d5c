"""Recordings second by second."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.support import synthetic_campaign as campaign
from tests.support.described import vllm

from kveval.tables.system import timelines as module
from kveval.tables.system.timelines import timelines
from pcp_parquet.parquet.reading import samples_of

START = campaign.START.value
END = START + (campaign.WINDOW_S - 1) * 10**9


def timeline(
    recording: Path,
    entry: Mapping[str, Any],
    version: str = "0.32.0",
    start: int = START,
    end: int = END,
) -> pd.Series | None:
    return timelines(recording, {"it": entry}, vllm(version), start, end).get("it")


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return campaign.recording(tmp_path_factory.mktemp("recording"), cpus=4)


def test_gauges_are_shown_as_they_are_and_counters_as_rates(recording: Path) -> None:
    usage = timeline(recording, campaign.METRICS["kv_cache_usage_percent"])
    loads = timeline(recording, campaign.METRICS["offload_load_mb_s"])
    assert usage is not None
    assert loads is not None
    assert usage.index[0] == 0
    assert usage.index[-1] == campaign.WINDOW_S - 1
    assert usage.mean() == pytest.approx(55, rel=0.1)
    assert loads.mean() == pytest.approx(900, rel=0.1)
    assert len(loads) == len(usage) - 1


def test_the_window_is_cut(recording: Path) -> None:
    part = timeline(
        recording,
        campaign.METRICS["requests_running"],
        start=START + 10 * 10**9,
        end=START + 20 * 10**9,
    )
    assert part is not None
    assert list(part.index) == list(range(11))


@pytest.mark.parametrize("name", ["gpu_power_w", "gpu_utilisation_percent"])
def test_what_cannot_be_shown_over_time_is_none(recording: Path, name: str) -> None:
    assert timeline(recording, campaign.METRICS[name]) is None


def test_a_metric_the_version_does_not_have_is_none(recording: Path) -> None:
    assert timeline(recording, campaign.METRICS["offload_load_mb_s"], "0.11.2") is None


def test_a_ratio_is_that_of_what_its_counters_gained(recording: Path) -> None:
    hits = timeline(recording, campaign.METRICS["prefix_cache_hit_percent"])
    busy = timeline(recording, campaign.METRICS["cpu_utilisation_percent"])
    assert hits is not None
    assert busy is not None
    assert hits.to_numpy() == pytest.approx(
        np.full(campaign.WINDOW_S - 1, 100 * 2200 / 9000)
    )
    assert busy.to_numpy() == pytest.approx(np.full(campaign.WINDOW_S - 1, 40), abs=0.1)


def test_a_ratio_is_missing_where_its_denominator_gained_nothing(
    recording: Path,
) -> None:
    still = {
        **campaign.METRICS["prefix_cache_hit_percent"],
        "denominator": "kernel.all.cpu.nice",
    }
    share = timeline(recording, still)
    assert share is not None
    assert share.isna().all()


def test_of_several_places_the_first_that_was_recorded_is_read(recording: Path) -> None:
    running = campaign.METRICS["requests_running"]
    moved = {
        **running,
        "pcp": "not.there",
        "alternatives": [{"pcp": "not.there.either"}, {"pcp": running["pcp"]}],
    }
    first, other = (timeline(recording, entry) for entry in (running, moved))
    assert first is not None
    assert other is not None
    assert first.equals(other)


def test_a_recording_is_read_once_for_several_entries(recording: Path) -> None:
    names = ["requests_running", "prefix_cache_hit_percent", "gpu_power_w"]
    entries = {name: campaign.METRICS[name] for name in names}
    lines = timelines(recording, entries, vllm("0.32.0"), START, END)
    assert [*lines] == names[:2]
    for name, line in lines.items():
        alone = timeline(recording, entries[name])
        assert alone is not None
        pd.testing.assert_series_equal(line, alone)


def test_a_counter_has_no_point_where_it_was_reset(
    recording: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = campaign.METRICS["server_generation_tok_s"]

    def with_reset(parquet: Path, names: Collection[str]) -> Any:
        samples, archive = samples_of(parquet, names)
        for name, each in samples.items():
            later = each.times >= START + 10 * 10**9
            values = np.where(later, each.values / 1000, each.values)
            samples[name] = replace(each, values=values)
        return samples, archive

    whole = timeline(recording, entry)
    monkeypatch.setattr(module, "samples_of", with_reset)
    reset = timeline(recording, entry)
    assert whole is not None
    assert reset is not None
    assert {*whole.index} - {*reset.index} == {10}
    assert (reset[reset.index < 10] > 0).all()


def test_instances_may_be_selected(recording: Path) -> None:
    entry = {
        "title": "share of a CPU",
        "unit": "CPUs",
        "pcp": "kernel.percpu.share",
        "instances": "sum",
    }
    asked = (entry, {**entry, "select": "^cpu0$"}, {**entry, "omit": "^cpu0$"})
    everything, part, rest = (timeline(recording, source) for source in asked)
    assert everything is not None
    assert part is not None
    assert rest is not None
    assert part.mean() > 0
    assert (part + rest).to_numpy() == pytest.approx(everything.to_numpy())
