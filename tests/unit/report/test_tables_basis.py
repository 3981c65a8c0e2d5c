"""What each verdict rests on, and what qualifies it, as the report shows them."""

import pandas as pd
from tests.support.report_text import answer_in, remedies_text, result_of, table_of
from tests.support.synthetic_campaign import cells, levels_table, measured, plan

from kveval.report.result.model import CampaignResult

MODEL = "Qwen3-8B"


def result(arm: str, **changes: object) -> CampaignResult:
    """What one model's arms gave, one of them changed."""
    keys = cells([MODEL])
    levels: pd.DataFrame = levels_table(keys, runs=5)
    for column, value in changes.items():
        levels.loc[levels["scenario"] == arm, column] = value
    return result_of(plan(keys, runs=5), measured(levels))


def cell_of(of_arm: str, title: str, part: str, content: CampaignResult) -> str:
    """The cell of an arm in the first table of a part, in the first column so named."""
    table = table_of(content, part)
    place = list(table.header).index(title)
    return next(row[place] for row in table.rows if row[0] == of_arm)


def test_what_refuses_is_bold_and_has_a_step_that_would_do_away_with_it() -> None:
    content, arm = (
        result("lmcache-local", request_output_tokens=32.0),
        "lmcache-local 10K",
    )
    work = cell_of(arm, "same work", "What each verdict rests on", content)
    assert work == "**output tokens of a request 32 against 64**"
    steps = [
        remedies_text(gap.remedies)
        for gap in content.not_assessed
        if arm in [compared.cell.label for compared in gap.cells]
    ]
    assert "one workload for both" in steps


def test_what_qualifies_is_in_italics_and_beside_the_verdict_wherever_it_is_shown() -> (
    None
):
    content, arm = (
        result("native-offload", server_build="another 0.32.0"),
        "native-offload 10K",
    )
    machine = cell_of(arm, "server and machine", "What each verdict rests on", content)
    assert "*other build*; one kind of machine" in machine
    verdict = cell_of(arm, "verdict", MODEL, content)
    assert verdict.startswith("**worse**, ") and "other build" in verdict
    said = next(line for line in answer_in(content).sentences if f"{arm} -" in line)
    assert "other build" in said
