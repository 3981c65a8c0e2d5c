"""Hosts that were faster for one side, and campaigns on hosts that change their speed."""

import math
from typing import Any

import numpy as np
import pytest
from benchmarks import bench_host_speed as simulated
from tests.support.described import described_run
from tests.support.synthetic import run_description

from kveval.host import work
from kveval.store.run_file import HostWork, LevelRun
from kveval.tables.cells import THROUGHPUT
from kveval.tables.levels.rows import failed_row
from kveval.verdict.host_speed import host_speeds
from kveval.verdict.sides import Sides
from kveval.verdict.wording import SideNames, explanation


def rows(rate: float, *speeds: float | None) -> list[dict[str, Any]]:
    return [
        {"run": run, THROUGHPUT: rate, "host_speed": speed}
        for run, speed in enumerate(speeds, start=1)
    ]


def test_runs_on_a_host_that_was_faster_by_more_than_the_effect_are_named() -> None:
    reference = rows(100.0, 10.0, 10.0, 10.0)
    found = host_speeds(Sides(THROUGHPUT, reference, rows(108.0, 10.5, 11.5, 13.0)))
    assert found is not None
    assert (found.code, found.severity) == ("host_speed_differs", "qualifies")
    assert found.facts == {"side": "arm", "runs": [2, 3], "ratio": pytest.approx(1.3)}
    words = explanation(found, SideNames(("native", "no-offload")))
    assert "1.30 times as fast in runs 2, 3 of native" in words
    slower = host_speeds(Sides(THROUGHPUT, reference, rows(108.0, 10.5, 8.0, 11.5)))
    assert slower is not None
    assert slower.facts == {
        "side": "reference",
        "runs": [2],
        "ratio": pytest.approx(1.25),
    }


@pytest.mark.parametrize(
    ("rate", "speeds"),
    [
        (300.0, (10.0, 11.5, 13.0)),
        (100.0, (10.0, 10.4, 9.6)),
        (108.0, (None, math.nan, 10.0)),
    ],
    ids=["a larger effect", "within 5 %", "not known"],
)
def test_a_host_that_cannot_be_why_is_not_named(
    rate: float, speeds: tuple[float | None, ...]
) -> None:
    arm = rows(rate, *speeds)
    assert host_speeds(Sides(THROUGHPUT, rows(100.0, 10.0, 10.0, 10.0), arm)) is None
    assert host_speeds(Sides(THROUGHPUT)) is None


@pytest.mark.parametrize(
    ("done", "speed"),
    [
        (HostWork(work.VERSION, 80.0, 120.0), 10.0),
        (HostWork(work.VERSION, None, 50.0), 20.0),
        (HostWork(work.VERSION), math.nan),
        (HostWork(work.VERSION + 1, 80.0, 120.0), math.nan),
        (None, math.nan),
    ],
)
def test_the_speed_of_a_level_is_pieces_of_work_in_a_second(
    done: HostWork | None, speed: float
) -> None:
    run = described_run(run_description("m", "no-offload", 0, 1))
    row = failed_row(run, LevelRun(8, "failed", host_work=done))
    assert row["host_speed"] == pytest.approx(speed, nan_ok=True)


@pytest.mark.parametrize("switches", [0.3, 1.0])
def test_windows_of_two_states_make_no_wrong_claims(switches: float) -> None:
    wrong, _ = simulated.verdicts_of_windows(
        simulated.with_bounds, 3, 3, switches, 0.0, 300
    )
    assert wrong <= 0.06
    _, shown = simulated.verdicts_of_windows(
        simulated.with_bounds, 3, 3, switches, 1.13, 60
    )
    assert shown > 0.3


def test_a_covariate_that_is_measured_exactly_takes_the_hosts_speed_away() -> None:
    facts = {"speed_sd": 0.15, "slope": 1.0, "error_sd": 0.0, "count": 200}
    wrong, width = simulated.covariate("estimated", 5, 3, **facts)
    _, plain = simulated.covariate("none", 5, 3, **facts)
    assert wrong <= 0.09
    assert width < plain / 3
    assert np.isfinite(width)
