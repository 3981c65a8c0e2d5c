"""The table of what the tiers did: a row per cell and level, means over runs."""

import pandas as pd
from tests.unit.analysis.test_tier_activity import DEVICE, run

from kveval.report.data.campaign import Measured, ReportPlan
from kveval.report.tables.tiers import tiers_table

EMPTY = pd.DataFrame()


def plan(*scenarios):
    return ReportPlan("c", "C", "", 1, [("tiny", name, 2000) for name in scenarios], {}, {})


def measured(*runs):
    return Measured(runs, EMPTY, EMPTY, EMPTY)


def test_every_cell_and_level_has_its_means_and_only_columns_that_say_something():
    hits = {"vllm:external_prefix_cache_hits_total": 20_000.0}
    runs = [
        run("no-offload", **DEVICE),
        run("native-offload", **DEVICE, **hits, **{"vllm:kv_offload_load_bytes_total": 20e6}),
        run("native-offload", **DEVICE, **hits, **{"vllm:kv_offload_load_bytes_total": 30e6}),
    ]
    table = tiers_table(plan("no-offload", "native-offload"), measured(*runs))
    assert list(table.header[3:]) == [
        "found on the device, % of prompt tokens",
        "found behind it, %",
        "tier to device, MB",
    ]
    assert [list(row[2:]) for row in table.rows] == [["4", "65", "", ""], ["4", "65", "10", "25"]]


def test_without_a_tier_there_is_no_table():
    assert not tiers_table(plan("no-offload"), measured(run("no-offload", **DEVICE))).rows
    assert not tiers_table(plan("no-offload"), measured()).rows
