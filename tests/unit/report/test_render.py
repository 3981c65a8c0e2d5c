"""Markdown from templates: lines that become one, tables, what users write, and marks that only the page has."""

import re
from dataclasses import replace

import pytest
from tests.support.report_text import result_of, text_of
from tests.unit.report.test_report import measured, plan

from kveval.report.filters import description
from kveval.report.render import laid_out, table, without_marks


@pytest.mark.parametrize(
    ("template", "markdown"),
    [
        (
            "A sentence\n  of two lines.\n\n\n\nAnother.\n",
            "A sentence of two lines.\n\nAnother.\n",
        ),
        ("- one\n  item\n\n- another\n", "- one item\n- another\n"),
        ("> a\n> note\n", "> a note\n"),
        (
            "| a |  |\n| --- | --- |\n| b  c\n  d |  |\n",
            "| a |  |\n| --- | --- |\n| b c d |  |\n",
        ),
        ("```\na  b\n\n- c\n```\nd\n", "```\na  b\n\n- c\n```\n\nd\n"),
        ("```bash\na  b\n```\nd\n", "```bash\na  b\n```\n\nd\n"),
        ("said ``` so\n\nb\n", "said ``` so\n\nb\n"),
    ],
)
def test_lines_of_a_template_may_be_broken_anywhere(
    template: str, markdown: str
) -> None:
    assert laid_out(template) == markdown


def test_a_table_has_a_rule_for_numbers_and_escapes_what_would_split_a_cell() -> None:
    made = table([["x|y", "1"]], "arm ¦ tok/s:").strip()
    assert made == "| arm | tok/s |\n| --- | ---: |\n| x\\|y | 1 |"
    assert table([], "arm ¦ tok/s:") == ""
    assert "b" not in table([["1", ""]], "a ¦ b", drop_blank=True)
    with pytest.raises(ValueError, match="one cell for each title"):
        table([["1"]], "a ¦ b")


def test_a_wide_table_is_cut_or_turned() -> None:
    titles = [f"t{number}" for number in range(10)]
    turned = table([["c"] * 10], titles).strip().splitlines()
    assert (len(turned), turned[0]) == (11, "| t0 | c |")
    cut = table([["c"] * 10] * 9, titles, keys=2).strip().split("\n\n\n\n")
    heads = [part.splitlines()[0] for part in cut]
    assert heads == ["| " + " | ".join(titles[:8]) + " |", "| t0 | t1 | t8 | t9 |"]


@pytest.mark.parametrize("text", ["# 1 wins", "> so", "``` code", "| a |", "- "])
def test_what_an_author_writes_begins_no_block(text: str) -> None:
    result = result_of(replace(plan(), description=text), measured())
    report = text_of(result)
    assert "\n## By model\n" in report
    assert f"\n{text}" not in report or text == "- "


def test_remarks_of_a_description_are_a_list() -> None:
    said = description("About it.\n- a remark\nMore.")
    assert (said.text, list(said.remarks)) == ("About it. More.", ["a remark"])


def test_marks_are_for_the_page_alone() -> None:
    text = "**better** {.better}, [an arm](#runs-of-an-arm) and [checks](#checks)"
    assert without_marks(text) == "**better**, an arm and [checks](#checks)"
    assert not re.search(r"\{\.\w+\}", text_of(result_of(plan(), measured())))
