"""The table of what limits a tier's loads: prompts of one length or of several, one at a time or many."""

import pandas as pd
from msgspec.structs import replace
from tests.support.report_text import plain_table
from tests.unit.tables.test_ceilings import ARM, BASELINE

from kveval.campaign.cell import Cell
from kveval.conditions.facts import described
from kveval.report.data.campaign import Measured, ReportPlan
from kveval.report.result.ceilings import ceiling_results
from kveval.report.result.model import CampaignResult
from kveval.report.tables.caches import ceilings_table
from kveval.store.run_file import CopyBandwidth, LevelRun

EMPTY = pd.DataFrame()
PLAIN, TIERED = Cell("whole", "no-offload", 0), Cell("whole", "native-offload", 2000)
SCENARIOS = {
    "no-offload": {"baseline": None},
    "native-offload": {"baseline": "no-offload"},
}
PLAN = ReportPlan("c", "C", "", 1, [PLAIN, TIERED], SCENARIOS, {})


def of(run, cell, profile, levels):
    specification = run.specification | {
        "workload": {"profile": profile, "levels": levels}
    }
    entries = [
        LevelRun(level=level, counters=run.levels[0].counters) for level in levels
    ]
    copying = CopyBandwidth(host_gb_s=8.0)
    stored = replace(
        run,
        cell=cell,
        specification=specification,
        levels=entries,
        copy_bandwidth=copying,
    )
    return described(stored)


def rows(cell, ttft_ms):
    names = cell.row
    return [
        names | {"level": level, "ttft_ms_mean": ms, "request_prompt_tokens": 520.0}
        for level, ms in ttft_ms.items()
    ]


def table(profile, plain_ms, tiered_ms):
    runs = [
        of(BASELINE, PLAIN, profile, [*plain_ms]),
        of(ARM, TIERED, profile, [*tiered_ms]),
    ]
    levels = pd.DataFrame([*rows(PLAIN, plain_ms), *rows(TIERED, tiered_ms)])
    found = table_of(runs, levels)
    return [dict(zip(found.header, row, strict=True)) for row in found.rows]


def table_of(runs, levels):
    ceilings = [*ceiling_results(PLAN, Measured(runs, levels, EMPTY, EMPTY))]
    result = CampaignResult.model_construct(workloads=[], ceilings=ceilings)
    return plain_table(ceilings_table(result, "whole"))


def test_a_tier_that_is_slower_than_computing_is_never_faster():
    (row,) = table("concurrent", {1: 5.2}, {1: 275.0})
    assert row["loading is faster from, tokens"] == "never"


def test_at_the_longest_prefix_it_says_what_loading_reaches_and_from_where_it_pays():
    (row,) = table(
        "prefix-length",
        {8: 100.0, 64: 700.0, 512: 5200.0},
        {8: 120.0, 64: 130.0, 512: 275.0},
    )
    assert [*row.values()][:2] == ["native-offload 2K", "512"]
    assert (
        row["tier loads, GB/s"],
        row["probe copies, GB/s"],
        row["loads, % of the probe"],
    ) == (
        "2.00",
        "8.00",
        "25.0",
    )
    assert (row["loaded, tokens/s"], row["prefill, tokens/s"]) == ("20,000", "100")
    # 50 ms / (10 ms - 0.05 ms) a token
    assert (row["other time, ms a request"], row["loading is faster from, tokens"]) == (
        "50.0",
        "6",
    )
    assert row["measured: faster at"] == "64, 512"


def test_where_requests_wait_for_each_other_nothing_is_said_of_prefills():
    (row,) = table("concurrent", {4: 5200.0, 8: 9000.0}, {4: 275.0, 8: 500.0})
    assert row["tier loads, GB/s"] == "2.00"
    assert (
        not {
            "prefill, tokens/s",
            "loading is faster from, tokens",
            "measured: faster at",
        }
        & row.keys()
    )


def test_one_stream_is_as_good_as_one_length():
    (row,) = table("concurrent", {1: 5200.0, 8: 9000.0}, {1: 275.0, 8: 500.0})
    assert row["loading is faster from, tokens"] == "6"


def test_an_arm_whose_loads_nobody_counts_has_no_row():
    runs = [
        of(BASELINE, PLAIN, "concurrent", [4]),
        of(BASELINE, TIERED, "concurrent", [4]),
    ]
    levels = pd.DataFrame([*rows(PLAIN, {4: 1.0}), *rows(TIERED, {4: 1.0})])
    assert not table_of(runs, levels).rows
    assert not table_of([], EMPTY).rows
