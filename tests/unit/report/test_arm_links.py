"""The links from a report's text to the runs behind it: each leads to the runs of the cell that the text is about."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.report_text import result_of
from tests.unit.report.test_report_claims import CAMPAIGNS, files_of

from kveval.campaign.cell import Cell
from kveval.report.data.arm_links import anchor_of, arm_link, plain_text, runs_title
from kveval.report.render import Rendering
from kveval.report.report import write_report

NAMES = st.from_regex(r"[A-Za-z][\w.+-]{0,20}", fullmatch=True)
CELLS = st.builds(Cell, NAMES, NAMES, st.integers(0, 10**6))


@given(CELLS)
def test_a_link_shows_the_label_and_leads_to_the_section_of_the_runs(
    cell: Cell,
) -> None:
    assert arm_link(cell) == f"[{cell.label}](#{anchor_of(runs_title(cell))})"
    assert plain_text(f"{arm_link(cell)} delivered") == f"{cell.label} delivered"


def test_other_links_and_code_stay_in_plain_text() -> None:
    text = "[failed](#checks), [the runs](#the-runs-behind-each-arm), `x[0](y)`"
    assert plain_text(text) == text


@pytest.mark.parametrize("name", ["contrasts", "failing"])
def test_each_link_leads_to_the_model_that_its_text_is_about(name: str) -> None:
    plan, measured = CAMPAIGNS[name]()
    first, second = plan.models_by_size
    # Which arms a model has does not tell the models apart.
    assert {cell.arm for cell in plan.cells_of(first)} & {
        cell.arm for cell in plan.cells_of(second)
    }
    runs = Rendering(result_of(plan, measured)).text("runs.md.j2")
    models = {anchor_of(model): model for model in (first, second)}
    links = [*links_in("\n".join([*files_of(name).values(), runs]), models)]
    assert len(links) > 300
    assert [(about, link) for about, link in links if models[link] != about] == []


def links_in(text: str, models: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each link to runs: the model that the text is about there, and the anchor of the link's model.

    A heading or a paragraph that names a model is about it, with what follows until the next heading; in a row or an item
    that names one, the rest is about that.
    """
    anchors, names = "|".join(models), "|".join(models.values())
    about = ""
    for line in text.splitlines():
        in_line = re.findall(names, line)
        heading = line.startswith(("#", "<details>"))
        if heading or (len(in_line) == 1 and not line.startswith(("|", "- "))):
            about = in_line[0] if in_line else ""
        subject = about
        for part in re.finditer(rf"#runs-of-[\w-]+-on-({anchors})\)|({names})", line):
            subject = part[2] or subject
            if part[1]:
                yield subject, part[1]


@pytest.mark.parametrize("name", CAMPAIGNS)
def test_report_json_has_the_labels_alone(name: str, tmp_path: Path) -> None:
    plan, measured = CAMPAIGNS[name]()
    write_report(plan, measured, [], tmp_path / "REPORT.md")
    for file in tmp_path.rglob("*.*"):
        assert "#runs-of-" not in file.read_text(encoding="utf-8")


def test_a_gap_names_its_cell_with_a_link() -> None:
    plan, measured = CAMPAIGNS["failing"]()
    missing = next(cell for cell in plan.cells if not measured.runs_of(cell))
    gap = result_of(plan, measured).not_assessed[0]
    assert [compared.cell.cell for compared in gap.cells] == [missing]
    text = files_of("failing")["appendix/not-assessed.md"]
    assert f"| {missing.model}, {arm_link(missing)} | {gap.reason} |" in text
