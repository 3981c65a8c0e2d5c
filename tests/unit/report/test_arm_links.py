"""The links from a report's text to the runs behind it: each leads to the runs of the cell that the text is about."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.report_text import result_of
from tests.unit.report.test_report_claims import CAMPAIGNS, tree

from kveval.campaign.cell import Cell
from kveval.report.data.arm_links import anchor_of, arm_link, plain_text, runs_title
from kveval.report.data.campaign import Table
from kveval.report.html.arm_runs import TITLE, lead_answer_to_runs, runs_section
from kveval.report.markdown import render
from kveval.report.report import write_report
from kveval.report.sections import Bullets, Paragraph, Section
from kveval.report.tables.not_assessed import gap_table, gaps_of

SMALL = Cell("Qwen3-0.6B", "native-offload", 10_000)
NAMES = st.from_regex(r"[A-Za-z][\w.+-]{0,20}", fullmatch=True)
CELLS = st.builds(Cell, NAMES, NAMES, st.integers(0, 10**6))


@given(CELLS)
def test_a_link_shows_the_label_and_leads_to_the_section_of_the_runs(
    cell: Cell,
) -> None:
    section = Section(runs_title(cell), [])
    assert arm_link(cell) == f"[{cell.label}](#{section.anchor})"
    assert plain_text(f"{arm_link(cell)} delivered") == f"{cell.label} delivered"


def test_other_links_and_code_stay_in_plain_text() -> None:
    text = "[failed](#checks), [the runs](#the-runs-behind-each-arm), `x[0](y)`"
    assert plain_text(text) == text


def test_markdown_has_the_labels_alone() -> None:
    link = arm_link(SMALL)
    table = Table(["arm", link], [[link, f"{link} against {link}"]])
    blocks = [Paragraph(link), Paragraph(link, note=True), Bullets([link]), table]
    (text,) = render(Section("r", blocks)).values()
    assert "](" not in text
    assert text.count(SMALL.label) == 7


def test_each_sentence_of_the_answer_leads_to_runs() -> None:
    answer = Bullets([f"{arm_link(SMALL)} did.", "It rests on 3 runs."])
    root = Section("r", [Paragraph("Which?"), answer, Bullets(["Do more."])])
    linked = lead_answer_to_runs(root).blocks
    assert linked[1].items == [
        f"{arm_link(SMALL)} did.",
        f"It rests on 3 runs. [The runs](#{anchor_of(TITLE)})",
    ]
    assert linked[2].items == ["Do more."]
    assert lead_answer_to_runs(Section("r", [])) == Section("r", [])


@pytest.mark.parametrize("name", ["contrasts", "failing"])
def test_each_link_leads_to_the_model_that_its_text_is_about(name: str) -> None:
    plan, measured = CAMPAIGNS[name]()
    first, second = plan.models_by_size
    # Which arms a model has does not tell the models apart.
    assert {cell.arm for cell in plan.cells_of(first)} & {
        cell.arm for cell in plan.cells_of(second)
    }
    page = Section(
        "", [tree(name), runs_section(result_of(plan, measured), {}, Path())]
    )
    models = {anchor_of(model): model for model in (first, second)}
    links = [*links_in(page, models, "")]
    assert len(links) > 300
    assert [(about, link) for about, link in links if models[link] != about] == []


def links_in(
    section: Section, models: Mapping[str, str], about: str
) -> Iterator[tuple[str, str]]:
    """Yield each link to runs: the model that the text is about there, and the anchor of the link's model."""
    for block in section.blocks:
        match block:
            case Section():
                inner = [model for model in models.values() if model in block.title]
                yield from links_in(block, models, *(inner or [about]))
            case Paragraph():
                named = [model for model in models.values() if model in block.text]
                about = named[0] if len(named) == 1 else about
                yield from links_of(block.text, models, about)
            case Bullets():
                for item in block.items:
                    yield from links_of(item, models, about)
            case Table():
                for row in [block.header, *block.rows]:
                    of_row = row[0] if row[0] in models.values() else about
                    for cell in row:
                        yield from links_of(cell, models, of_row)


def links_of(
    text: str, models: Mapping[str, str], about: str
) -> Iterator[tuple[str, str]]:
    """Yield the links of a text; where it names a model itself, what follows is about that."""
    anchors, names = "|".join(models), "|".join(models.values())
    for found in re.finditer(rf"#runs-of-[\w-]+-on-({anchors})\)|({names})", text):
        about = found[2] or about
        if found[1]:
            yield about, found[1]


@pytest.mark.parametrize("name", CAMPAIGNS)
def test_report_json_has_the_labels_alone(name: str, tmp_path: Path) -> None:
    plan, measured = CAMPAIGNS[name]()
    write_report(plan, measured, [], tmp_path / "REPORT.md")
    for file in tmp_path.rglob("*.*"):
        assert "#runs-of-" not in file.read_text(encoding="utf-8")


def test_a_cell_without_runs_has_a_section_that_says_why() -> None:
    plan, measured = CAMPAIGNS["failing"]()
    missing = [cell for cell in plan.cells if not measured.runs_of(cell)]
    assert missing
    sections = {
        part.title: part
        for part in runs_section(result_of(plan, measured), {}, Path()).tree()
    }
    for cell in missing:
        why = f"No runs: {measured.why_missing(cell)}."
        assert sections[runs_title(cell)].blocks == [Paragraph(why)]
    gap = gaps_of(plan, measured, {})[0]
    assert gap_table([gap]).rows[0][0] == f"{missing[0].model}, {arm_link(missing[0])}"
    assert gap.what == f"{missing[0].model}, {missing[0].label}"
