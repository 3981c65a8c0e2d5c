"""Correlations within a model at equal concurrency."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import pearsonr

from kveval.estimators.correlations import (
    COLUMNS,
    correlation_at_equal_levels,
    correlations_by_model,
)


def levels(
    cells: int, grid: tuple[int, ...], slope: float, noise: float, seed: int = 1
) -> pd.DataFrame:
    """Throughput grows with the level; a metric does too, and beyond that with the cell's throughput by `slope`."""
    generator = np.random.default_rng(seed)
    rows = []
    for cell in range(cells):
        for level in grid:
            deviation = generator.normal(0, 0.1)
            metric = 50 * level + slope * deviation + generator.normal(0, noise)
            rate = level * np.exp(deviation)
            rows.append(
                {
                    "scenario": str(cell),
                    "cpu_blocks": 0,
                    "level": level,
                    "x": metric,
                    "y": rate,
                }
            )
    return pd.DataFrame(rows)


def test_the_level_does_not_make_a_correlation() -> None:
    table = levels(7, (1, 10, 100), slope=0, noise=1)
    assert pearsonr(table["x"], np.log(table["y"]))[0] > 0.8
    found = correlation_at_equal_levels(table, "x", "y")
    assert found.low < 0 < found.high
    assert found.points == 21


def test_what_moves_with_throughput_at_equal_level_is_found() -> None:
    found = correlation_at_equal_levels(
        levels(7, (1, 10, 100), slope=100, noise=1), "x", "y"
    )
    assert found.low > 0.5


@pytest.mark.parametrize(
    ("cells", "grid", "slope"),
    [
        (3, (1, 10, 100), 1.0),
        (1, (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12), 1.0),
        (2, (1, 2, 3, 4), 1.0),
    ],
)
def test_too_few_points_give_none(
    cells: int, grid: tuple[int, ...], slope: float
) -> None:
    assert np.isnan(
        correlation_at_equal_levels(levels(cells, grid, slope, 1), "x", "y").r
    )


def test_a_metric_that_does_not_vary_gives_none() -> None:
    table = levels(7, (1, 10, 100), 0, 0).assign(x=lambda rows: 0.1 * rows["level"])
    assert np.isnan(correlation_at_equal_levels(table, "x", "y").r)


def test_models_are_never_pooled() -> None:
    """Within neither model the metric moves with throughput; over both it would."""
    one, other = (levels(7, (1, 10, 100), 0, 1, seed) for seed in (1, 2))
    both = pd.concat(
        [
            one.assign(model="one"),
            other.assign(model="other", x=other["x"] + 9e3, y=other["y"] * 9),
        ]
    )
    found = correlations_by_model(both, ("x", "absent"), "y")
    assert list(found.columns) == [*COLUMNS]
    assert found[["model", "x", "y", "n"]].to_numpy().tolist() == [
        ["one", "x", "y", 21],
        ["other", "x", "y", 21],
    ]
    assert (found["low"] < 0).all() and (found["high"] > 0).all()


def test_the_interval_covers_as_it_says() -> None:
    """Independent metric and throughput: the 95 % interval holds 0 in about 95 % of campaigns."""
    held = [
        found.low <= 0 <= found.high
        for seed in range(200)
        if (
            found := correlation_at_equal_levels(
                levels(6, (1, 10, 100), 0, 1, seed), "x", "y"
            )
        )
    ]
    assert 0.90 <= np.mean(held) <= 0.99
