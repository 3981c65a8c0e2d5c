"""The table of what limits a tier's loads: prompts of one length or of several, one at a time or many."""

import pandas as pd
from msgspec.structs import replace
from tests.support.report_text import tables_in, text_of_template
from tests.unit.tables.test_ceilings import ARM, BASELINE

from kveval.campaign.cell import Cell
from kveval.conditions.facts import described
from kveval.report.data.campaign import Measured, ReportPlan
from kveval.report.result.ceilings import ceiling_results
from kveval.report.result.model import CampaignResult
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


def row(profile, plain_ms, tiered_ms):
    """The only row of the table by title; a table of many columns has them as rows."""
    runs = [
        of(BASELINE, PLAIN, profile, [*plain_ms]),
        of(ARM, TIERED, profile, [*tiered_ms]),
    ]
    levels = pd.DataFrame([*rows(PLAIN, plain_ms), *rows(TIERED, tiered_ms)])
    [table] = tables_of(runs, levels)
    lines = [table.header, *table.rows]
    return dict(lines if len(table.header) == 2 else zip(*lines, strict=True))


def tables_of(runs, levels):
    ceilings = [*ceiling_results(PLAN, Measured(runs, levels, EMPTY, EMPTY))]
    nothing = {"workloads": [], "cells": [], "comparisons": []}
    result = CampaignResult.model_construct(
        **nothing, common_levels={"whole": None}, ceilings=ceilings
    )
    return tables_in(text_of_template(result, "by_model.md.j2"))


def test_a_tier_that_is_slower_than_computing_is_never_faster():
    cells = row("concurrent", {1: 5.2}, {1: 275.0})
    assert cells["loading is faster from, tokens"] == "never"


def test_at_the_longest_prefix_it_says_what_loading_reaches_and_from_where_it_pays():
    cells = row(
        "prefix-length",
        {8: 100.0, 64: 700.0, 512: 5200.0},
        {8: 120.0, 64: 130.0, 512: 275.0},
    )
    assert [*cells.values()][:2] == ["native-offload 2K", "512"]
    assert (
        cells["tier loads, GB/s"],
        cells["probe copies, GB/s"],
        cells["loads, % of the probe"],
    ) == (
        "2.00",
        "8.00",
        "25.0",
    )
    assert (cells["loaded, tokens/s"], cells["prefill, tokens/s"]) == ("20,000", "100")
    # 50 ms / (10 ms - 0.05 ms) a token
    assert (
        cells["other time, ms a request"],
        cells["loading is faster from, tokens"],
    ) == (
        "50.0",
        "6",
    )
    assert cells["measured: faster at"] == "64, 512"


def test_where_requests_wait_for_each_other_nothing_is_said_of_prefills():
    cells = row("concurrent", {4: 5200.0, 8: 9000.0}, {4: 275.0, 8: 500.0})
    assert cells["tier loads, GB/s"] == "2.00"
    assert (
        not {
            "prefill, tokens/s",
            "loading is faster from, tokens",
            "measured: faster at",
        }
        & cells.keys()
    )


def test_one_stream_is_as_good_as_one_length():
    cells = row("concurrent", {1: 5200.0, 8: 9000.0}, {1: 275.0, 8: 500.0})
    assert cells["loading is faster from, tokens"] == "6"


def test_an_arm_whose_loads_nobody_counts_has_no_row():
    runs = [
        of(BASELINE, PLAIN, "concurrent", [4]),
        of(BASELINE, TIERED, "concurrent", [4]),
    ]
    levels = pd.DataFrame([*rows(PLAIN, {4: 1.0}), *rows(TIERED, {4: 1.0})])
    assert not tables_of(runs, levels)
    assert not tables_of([], EMPTY)
