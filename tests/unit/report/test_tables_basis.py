"""What each verdict rests on, and what qualifies it, as the report shows them."""

import pandas as pd
from tests.support.report_text import answer_of, plain_table, result_of
from tests.support.synthetic_campaign import cells, levels_table, measured, plan

from kveval.report.data.campaign import Measured, ReportPlan, Table
from kveval.report.parts.blocks import WIDEST
from kveval.report.tables.not_assessed import gap_table, gaps_of
from kveval.report.tables.results import arms_table, basis_table

MODEL = "Qwen3-8B"


def campaign(arm: str, **changes: object) -> tuple[ReportPlan, Measured]:
    """One model's arms, one of them changed."""
    keys = cells([MODEL])
    levels: pd.DataFrame = levels_table(keys, runs=5)
    for column, value in changes.items():
        levels.loc[levels["scenario"] == arm, column] = value
    return plan(keys, runs=5), measured(levels)


def of_arm(table: Table, arm: str) -> list[str]:
    return next(list(row) for row in plain_table(table).rows if arm in row[:2])


def test_every_comparison_has_a_row_that_fits_a_page() -> None:
    table = basis_table(result_of(*campaign("lmcache-local")))
    # The model becomes a title.
    assert len(table.header) - 1 <= WIDEST
    assert len(table.rows) == 6
    assert of_arm(table, "lmcache-local 10K")[2:4] == [
        "the same",
        "active in 5 of 5 runs",
    ]


def test_what_refuses_is_bold_and_what_qualifies_in_italics() -> None:
    other_work = basis_table(
        result_of(*campaign("lmcache-local", request_output_tokens=32.0))
    )
    assert (
        of_arm(other_work, "lmcache-local 10K")[2]
        == "**output tokens of a request 32 against 64**"
    )
    other_build = basis_table(
        result_of(*campaign("lmcache-local", server_build="lmcache/vllm 0.11"))
    )
    assert (
        "*other build*; one kind of machine"
        in of_arm(other_build, "lmcache-local 10K")[4]
    )


def test_a_qualified_verdict_is_never_shown_without_what_qualifies_it() -> None:
    found = campaign("native-offload", server_build="another 0.32.0")
    verdict = of_arm(arms_table(result_of(*found), MODEL), "native-offload 10K")[4]
    assert verdict.startswith("**worse**, ")
    assert "other build" in verdict
    said = next(
        sentence
        for sentence in answer_of(*found).sentences
        if "native-offload 10K -" in sentence
    )
    assert "other build" in said


def test_what_keeps_an_arm_from_its_verdict_has_a_step_that_would_do_away_with_it() -> (
    None
):
    gaps = gap_table(
        gaps_of(*campaign("lmcache-local", request_output_tokens=32.0), {})
    )
    assert any(
        "lmcache-local 10K" in row[0] and row[2] == "one workload for both"
        for row in gaps.rows
    )
