"""The promises of the statistics against simulations with known truth; benchmarks/bench_statistics.py runs longer.

The bounds are three standard errors or more from what is expected: of 2,000 intervals that hold the truth in 95 %, 0.5
points; of 1,000 campaigns of which 4 % err, 0.6 points.
"""

import numpy as np
import pytest
from benchmarks import bench_designs as designs
from benchmarks import bench_statistics as simulated

EVEN = np.full(8, 0.02)


@pytest.mark.parametrize(("runs", "cells"), [(3, 8), (5, 8), (10, 8), (5, 2)])
def test_intervals_over_blocks_cover_the_truth(runs: int, cells: int) -> None:
    count = 500 if cells > 2 else 2500
    assert 0.93 <= simulated.block_coverage(runs, np.full(cells, 0.02), count) <= 0.97


@pytest.mark.parametrize("runs", [3, 5, 10])
def test_intervals_over_runs_cover_the_truth(runs: int) -> None:
    assert 0.93 <= simulated.run_coverage(runs, 2000) <= 0.97


def test_intervals_of_the_other_designs_cover_the_truth() -> None:
    assert 0.93 <= simulated.other_time_coverage(5, 2000) <= 0.97


@pytest.mark.parametrize("runs", [3, 5])
def test_seven_equal_scenarios_are_rarely_called_different(runs: int) -> None:
    assert simulated.family_wise_error(runs, EVEN, 1000) <= 0.06


def test_parity_is_rarely_found_on_the_margin_and_mostly_where_it_is() -> None:
    assert simulated.false_parity(5, 0.02, 8, 1000) <= 0.06
    assert simulated.parity_found(5, 0.02, 8, 800) > 0.85
    # A three-run report cannot show much: an arm that looks noisier than the others keeps its own spread.
    assert 0.15 < simulated.parity_found(3, 0.02, 8, 800) < 0.3


def test_a_spread_four_times_the_others_does_not_ruin_its_own_arm() -> None:
    assert (
        0.93 <= simulated.block_coverage(5, np.r_[np.full(7, 0.02), 0.08], 800) <= 0.97
    )


@pytest.mark.parametrize("runs", [3, 5])
@pytest.mark.parametrize("cells", [4, 8])
def test_the_interval_of_a_noisy_arm_among_quiet_ones_covers_its_truth(
    runs: int, cells: int
) -> None:
    sds = np.r_[np.full(cells - 1, 0.02), 0.08]
    assert 0.91 <= simulated.coverage_by_cell(runs, sds, 900)[-1] <= 0.97
    assert simulated.family_wise_error(runs, sds, 1000) <= 0.07


def test_what_is_found_among_seven_arms_is_still_found() -> None:
    better, worse, half = designs.found_beside_others(40)
    assert min(better, worse) > 0.85
    assert half < 3.56


def test_intervals_of_peaks_of_flat_arms_cover_the_truth() -> None:
    assert 0.92 <= designs.flat_peaks(18, 4, 5, 40) <= 0.98


def test_the_chance_of_parity_is_that_of_its_family() -> None:
    said, true = designs.parity_said(8, 5, 0.025, 60)
    assert said == pytest.approx(true, abs=0.15)


def test_whole_campaigns_keep_the_promises() -> None:
    """From tables to verdicts, on four levels that are equally good, so that one has to be chosen."""
    found = simulated.whole_campaigns(80)
    assert 0.93 <= found["coverage"] <= 0.97
    assert found["error"] <= 0.06
    assert found["parity"] > 0.8


def test_the_peak_of_equal_levels_is_flattering_unless_cross_fitted() -> None:
    own, crossed = simulated.peak_bias(0.06, 400, runs=2)
    assert own > 5
    assert abs(crossed) < 0.5


def test_latencies_of_a_short_window_are_estimated_without_bias() -> None:
    naive, estimated = simulated.latency_bias(3.0, 60)
    assert naive < -0.3
    assert abs(estimated) < 0.02
