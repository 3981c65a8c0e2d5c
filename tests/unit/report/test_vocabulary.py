"""What a reader meets first is a closed list: six verdicts and at most twelve warnings, each with what removes it."""

import inspect
import re
from dataclasses import replace
from typing import Any

import pytest
from tests.support.report_text import answer_in, remedies_text, result_of
from tests.unit.report.test_report_claims import CAMPAIGNS

from kveval.campaign.cell import Cell
from kveval.report.data.vocabulary import (
    CANNOT_TELL_YET,
    IDLE,
    NO_RELEVANT_DIFFERENCE,
    NOT_COMPARABLE,
    VERDICTS,
    WARNINGS,
    verdict_of,
    verdict_text,
)
from kveval.report.render import environment
from kveval.report.result import next_steps, remedies
from kveval.report.result.model import Remedy
from kveval.tables.cells import THROUGHPUT
from kveval.verdict import verdict_words as words

# Warnings that are no next step: a note above the question, and a line of the tile of checks.
ELSEWHERE = {"machines_differ", "check_failed"}


def test_there_are_few() -> None:
    assert len(VERDICTS) == 6
    assert len(WARNINGS) <= 12


def test_every_warning_names_a_command_or_a_line_of_yaml() -> None:
    remedies = {code: warning.remedy for code, warning in WARNINGS.items()}
    del remedies[
        "no_verdict"
    ]  # Its remedy depends on the reason, which the warning has.
    assert all(re.search("`.+`", remedy) for remedy in remedies.values())


def test_every_step_answers_a_warning_of_the_list() -> None:
    source = inspect.getsource(next_steps)
    codes = {*re.findall(r'_step\(\s*"(\w+)"', source)}
    assert codes | ELSEWHERE == {*WARNINGS}


@pytest.mark.parametrize("name", CAMPAIGNS)
def test_no_report_has_another(name: str) -> None:
    plan, measured = CAMPAIGNS[name]()
    assert {step.code for step in result_of(plan, measured).steps} <= {*WARNINGS}
    for row in measured.comparison.to_dict("records"):
        assert verdict_of(row) in VERDICTS


def test_too_few_runs_are_not_yet_a_verdict_and_say_what_is_needed() -> None:
    plan, measured = CAMPAIGNS["failing"]()
    plan = replace(plan, command="snakemake report")
    few = ("native-offload", "Qwen3-8B")
    (row,) = (
        row
        for row in measured.comparison.to_dict("records")
        if (row["scenario"], row["model"]) == few and row["metric"] == THROUGHPUT
    )
    assert (row["verdict"], row["grounds"]) == (words.NOT_ASSESSED, "few_runs")
    assert verdict_text(row) == f"{CANNOT_TELL_YET} ({row['reason']})"
    result = result_of(plan, measured)
    (step,) = (step for step in result.steps if step.code == "few_runs")
    cell = Cell("Qwen3-8B", few[0], 10_000)
    assert [cell.cell for cell in step.cells] == [cell]
    assert step.command == "snakemake report"
    missing = "the missing run, which `snakemake report` measures"
    assert (
        f"For {cell.model} with {cell.label}: {missing}."
        in answer_in(result).next_steps
    )
    reported = result.with_baselines(THROUGHPUT)[cell]
    assert reported.shown_verdict == CANNOT_TELL_YET
    assert remedies_text(reported.remedies) == missing


@pytest.mark.parametrize(
    ("verdict", "shown"),
    [
        (words.BETTER, "better"),
        (words.PARITY, NO_RELEVANT_DIFFERENCE),
        (words.INCONCLUSIVE, CANNOT_TELL_YET),
        (words.INDICATIVE_TIME, f"{CANNOT_TELL_YET}, indicates better (why)"),
        (words.SINGLE_RUN, f"{CANNOT_TELL_YET}, indicates better (why)"),
        (words.NOT_ASSESSED, f"{NOT_COMPARABLE}, indicates better (why)"),
        (words.WORSE_IDLE, f"{IDLE}, and worse"),
    ],
)
def test_a_verdict_has_the_reason_where_it_is_needed(verdict: str, shown: str) -> None:
    indication = "" if verdict in words.VERDICTS else "better"
    row = {"verdict": verdict, "reason": "why", "indication": indication}
    assert verdict_text(row) == shown


def test_every_remedy_has_its_own_sentence_and_no_sentence_is_of_none() -> None:
    of_tables = (remedies._OF_CAUSE, remedies._OF_VERDICT, remedies._OF_INPUT)
    codes = {code for table in of_tables for code in table.values()}
    codes |= {*re.findall(r'Remedy\(code="(\w+)"', inspect.getsource(remedies))}
    facts = {"runs": 4, "more": 2, "command": ""}
    sentences = {
        code: remedies_text([Remedy(code=code, facts=facts)]) for code in codes
    }
    assert len({*sentences.values()}) == len(codes)
    module: Any = environment().get_template("remedies.md.j2").module
    assert {*module.words} <= codes
