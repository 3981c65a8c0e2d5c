"""Recordings second by second."""

from pathlib import Path

import numpy as np
import pytest
from tests.support import synthetic_campaign as campaign

from kveval.analysis.system.timelines import timeline

START = campaign.START.value
END = START + (campaign.WINDOW_S - 1) * 10**9


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return campaign.recording(tmp_path_factory.mktemp("recording"), cpus=4)


def test_gauges_are_shown_as_they_are_and_counters_as_rates(recording: Path) -> None:
    usage = timeline(
        recording, campaign.METRICS["kv_cache_usage_percent"], "0.32.0", START, END
    )
    loads = timeline(
        recording, campaign.METRICS["offload_load_mb_s"], "0.32.0", START, END
    )
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
        "0.32.0",
        START + 10 * 10**9,
        START + 20 * 10**9,
    )
    assert part is not None
    assert list(part.index) == list(range(11))


@pytest.mark.parametrize("name", ["gpu_power_w", "gpu_utilisation_percent"])
def test_what_cannot_be_shown_over_time_is_none(recording: Path, name: str) -> None:
    assert timeline(recording, campaign.METRICS[name], "0.32.0", START, END) is None


def test_a_metric_the_version_does_not_have_is_none(recording: Path) -> None:
    assert (
        timeline(recording, campaign.METRICS["offload_load_mb_s"], "0.11.2", START, END)
        is None
    )


def test_a_ratio_is_that_of_what_its_counters_gained(recording: Path) -> None:
    hits = timeline(
        recording, campaign.METRICS["prefix_cache_hit_percent"], "0.32.0", START, END
    )
    busy = timeline(
        recording, campaign.METRICS["cpu_utilisation_percent"], "0.32.0", START, END
    )
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
    share = timeline(recording, still, "0.32.0", START, END)
    assert share is not None
    assert share.isna().all()


def test_of_several_places_the_first_that_was_recorded_is_read(recording: Path) -> None:
    running = campaign.METRICS["requests_running"]
    moved = {
        **running,
        "pcp": "not.there",
        "alternatives": [{"pcp": "not.there.either"}, {"pcp": running["pcp"]}],
    }
    first, other = (
        timeline(recording, entry, "0.32.0", START, END) for entry in (running, moved)
    )
    assert first is not None
    assert other is not None
    assert first.equals(other)


def test_instances_may_be_selected(recording: Path) -> None:
    entry = {
        "title": "share of a CPU",
        "unit": "CPUs",
        "pcp": "kernel.percpu.share",
        "instances": "sum",
    }
    asked = (entry, {**entry, "select": "^cpu0$"}, {**entry, "omit": "^cpu0$"})
    everything, part, rest = (
        timeline(recording, source, "0.32.0", START, END) for source in asked
    )
    assert everything is not None
    assert part is not None
    assert rest is not None
    assert part.mean() > 0
    assert (part + rest).to_numpy() == pytest.approx(everything.to_numpy())
