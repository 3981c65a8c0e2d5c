"""The table of what the tiers did: a row per cell and level, means over runs."""

from tests.support import synthetic_campaign as large
from tests.support.predicted import with_predicted
from tests.support.report_text import result_of, said_by, table_of
from tests.unit.tables.test_tier_activity import DEVICE, run

from kveval.campaign.cell import Cell
from kveval.plugins.curve.predicted.hits import with_hits
from kveval.report.build import means_by_level
from kveval.report.facts.caches import Columns, tier_work
from kveval.report.result.model import CampaignResult, ReportedCell
from kveval.store.run_file import Run
from kveval.tables.cells import rows_of
from kveval.tables.system.tier_activity import tier_activity


def work(*runs: Run) -> Columns:
    """The table of a campaign that has nothing else than what these caches did."""
    activity = tier_activity(runs)
    cells = [
        ReportedCell.model_construct(
            **cell.row, tier_activity=means_by_level(rows_of(activity, cell))
        )
        for cell in dict.fromkeys(run.cell for run in runs)
    ]
    result = CampaignResult.model_construct(cells=cells)
    return tier_work(result, result.cells)


def test_every_cell_and_level_has_its_means_and_only_columns_that_say_something():
    hits = {"vllm:external_prefix_cache_hits_total": 20_000.0}
    loads = "vllm:kv_offload_load_bytes_total"
    table = work(
        run("no-offload", **DEVICE),
        run("native-offload", **DEVICE, **hits, **{loads: 20e6}),
        run("native-offload", **DEVICE, **hits, **{loads: 30e6}),
    )
    assert table.titles == [
        "found on the device, % of prompt tokens:",
        "found behind it, %:",
        "tier to device, MB:",
    ]
    assert [row[2:] for row in table.rows] == [
        ["4", "65", "", ""],
        ["4", "65", "10", "25"],
    ]


def test_without_a_tier_there_is_no_table():
    assert not work(run("no-offload", **DEVICE)).rows
    assert not work().rows


def test_shares_stand_by_level_and_a_finding_beside_what_was_counted():
    keys = [
        Cell("Qwen3-8B", "no-offload", 0),
        Cell("Qwen3-8B", "native-offload", 10_000),
    ]
    measured = large.with_reuse(
        large.measured(large.levels_table(keys, levels=(1, 50)))
    )
    part = "Reuse, computed and found, level by level"
    every = table_of(result_of(large.plan(keys), measured), part)
    assert [row[:2] for row in every.rows] == [
        *(["no-offload", "1"], ["no-offload", "50"]),
        *(["native-offload 10K", "1"], ["native-offload 10K", "50"]),
    ]
    assert every.rows[0][-2] == "" and " to " in every.rows[-1][-3]
    # The most of the range is what was found.
    assert every.rows[-1][-1] == "0.0"
    promised = with_hits(measured.levels, measured.predicted_hits).assign(
        predicted_ratio_low=0.9, predicted_ratio_high=0.9
    )
    lacking = table_of(
        result_of(large.plan(keys), with_predicted(measured, promised)), part
    )
    assert len(lacking.header) == len(every.header) + 1
    assert lacking.rows[-1][-2].startswith("-") and lacking.rows[-1][-1]


def test_what_was_not_found_is_explained_by_what_was_counted():
    lost = "12 points should have been held and were not found"
    leak = "not_found", "found", {"lost_points": 12.0}
    for clues, cause in (
        (None, ""),
        (
            {"failed": 3.0, "lengths_vary": 1.0},
            ": 3 stores or loads failed; "
            "lengths vary, and the computation uses their means",
        ),
        ({}, ": nothing that was counted explains it: a finding about the server"),
    ):
        assert said_by("leaks.md.j2", "where_lost", *leak, clues) == f"{lost}{cause}"
