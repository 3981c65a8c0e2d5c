"""Rows of the history, and series over builds."""

import json

import pandas as pd
import pytest
from tests.support.synthetic_campaign import cells, levels_table, measured
from tests.support.synthetic_history import history, nightly

from kveval.campaign.cell import CELL_COLUMNS
from kveval.plugins.builds.series import build_series, commit_of, history_rows
from kveval.tables.cells import THROUGHPUT, common_level
from kveval.verdict.verdicts import METRICS


def test_builds_are_in_order_with_their_means_and_intervals() -> None:
    rows = history([100] * 12 + [92] * 12)
    (series,) = build_series(rows.sample(frac=1, random_state=1))
    assert [build.version for build in series.builds] == [
        nightly(number) for number in range(24)
    ]
    assert all(
        build.low < build.mean < build.high and build.runs == 3
        for build in series.builds
    )
    assert [series.builds[0].mean, series.builds[-1].mean] == pytest.approx(
        [100, 92], rel=0.03
    )


def test_a_campaign_has_a_row_for_each_cell_run_and_metric_at_the_level_of_comparison() -> (
    None
):
    levels = levels_table(cells()[:3], levels=(1, 50, 100))
    tables = measured(levels)
    rows = history_rows(levels, tables.comparison, tables.peaks, tables.runs, "large")
    assert len(rows) == 3 * 3 * len(METRICS)
    assert not rows.duplicated([*CELL_COLUMNS, "run", "metric"]).any()
    assert set(rows["level"]) == {
        common_level(tables.comparison, tables.peaks, str(levels["model"][0]))
    }
    row = rows[rows["metric"] == THROUGHPUT].iloc[0]
    source = levels[
        (levels["level"] == row["level"]) & (levels["run"] == row["run"])
    ].iloc[0]
    assert (row["value"], json.loads(row["software"])["vllm"]) == (
        source[THROUGHPUT],
        "0.32.0",
    )
    assert len(build_series(rows)) == 3 * len(METRICS)


def test_builds_may_be_those_of_another_program() -> None:
    rows = history([100] * 10 + [120] * 10, beside={10: "0.5.6"})
    (series,) = build_series(rows, "lmcache")
    assert [(build.version, build.runs) for build in series.builds] == [
        ("0.5.5", 30),
        ("0.5.6", 30),
    ]
    assert build_series(rows, "sglang") == []


def test_an_empty_history_has_no_series() -> None:
    assert build_series(history([100]).iloc[:0]) == []


def test_other_conditions_are_another_series_and_failed_checks_do_not_count() -> None:
    rows = history([100, 90])
    other = rows.assign(
        hardware="another", checks_failed=["preempted", *[""] * (len(rows) - 1)]
    )
    series = build_series(pd.concat([rows, other]))
    assert [each.conditions["hardware"] for each in series] == [
        "a1b2c3d4e5f6",
        "another",
    ]
    assert [build.runs for each in series for build in each.builds] == [3, 3, 2, 3]


def test_builds_without_a_version_number_are_in_the_order_of_their_first_run() -> None:
    rows = history([100, 90, 95])
    names = {nightly(0): "main-gabcdef1", nightly(1): "fix", nightly(2): "a"}
    for old, new in names.items():
        rows["software"] = rows["software"].str.replace(old, new, regex=False)
    (series,) = build_series(rows)
    assert [build.label for build in series.builds] == ["abcdef1", "fix", "a"]


@pytest.mark.parametrize(
    ("version", "commit"),
    [
        ("0.11.1rc2.dev14+g1234abc.d20251101.cpu", "1234abc"),
        ("0.5.6-g3e11e108", "3e11e108"),
        ("0.33.0+cpu.g0123456", "0123456"),
        ("0.32.0", ""),
        ("0.32.0+cpu", ""),
    ],
)
def test_the_commit_of_a_version(version: str, commit: str) -> None:
    assert commit_of(version) == commit
