"""A report is one that is read: short, narrow, in words that need no asking, and each arm has one name."""

import functools
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.report_text import Table, tables_in
from tests.unit.report.test_report_claims import CAMPAIGNS, files_of

from kveval.report.files import APPENDICES, MAIN
from kveval.report.render import WIDEST, table, written_files
from kveval.report.report import write_report
from kveval.report.summary import summary_lines

# Lines of the first screen, and of a report of a small campaign.
SCREEN, SMALL = 50, 270
LONG_DECIMAL = re.compile(r"\d\.\d{7,}")


@functools.cache
def files(name: str) -> dict[str, str]:
    return written_files(files_of(name))


@pytest.mark.parametrize("name", CAMPAIGNS)
def test_a_report_is_short_and_narrow(name: str) -> None:
    found = files(name)
    assert tuple(found) == (MAIN, *APPENDICES)
    assert len(found[MAIN].splitlines()) <= SMALL
    for text in found.values():
        for shown in tables_in(text):
            assert len(shown.header) <= WIDEST
            widths = {len(row) for row in shown.rows}
            assert widths == {len(shown.header)}
        assert not LONG_DECIMAL.search(text)


@pytest.mark.parametrize("name", CAMPAIGNS)
def test_the_first_screen_has_question_answer_and_figure(name: str) -> None:
    screen = files(name)[MAIN].split("\n## ")[0]
    assert len(screen.splitlines()) <= SCREEN
    question, glance, figure = (screen.index(part) for part in ("?**", "\n| ", "!["))
    assert question < glance < figure < screen.index("\n- ")
    assert "checks passed" in screen[glance:figure]
    words = screen.partition("**In words**")[2].partition("\n**")[0]
    assert 2 <= len(words.strip().splitlines()) <= 5


@pytest.mark.parametrize("name", CAMPAIGNS)
def test_an_arm_has_one_name(name: str) -> None:
    """Outside of code, which is how a campaign names it, a cell is called by its label."""
    plan, measured = CAMPAIGNS[name]()
    text = re.sub(
        r"`[^`\n]*`|```.*?```|\]\([^)]*\)",
        "",
        "\n".join(files(name).values()),
        flags=re.DOTALL,
    )
    labels = {cell.label for cell in measured.cells_with_peak(plan.cells)}
    assert all(label in text for label in labels)
    for cell in plan.cells:
        scenario, blocks = cell.scenario, cell.cpu_blocks
        assert cell.arm not in text
        assert blocks < 1000 or not re.search(
            rf"{re.escape(scenario)}[ ,(]+({blocks:,}|{blocks})\b", text
        )


@given(st.integers(1, 30), st.integers(0, 12), st.integers(1, 3))
def test_a_wide_table_loses_nothing(width: int, height: int, keys: int) -> None:
    columns = range(width)
    header = [f"h{at}" for at in columns]
    rows = []
    for row in range(height):
        rows.append([f"{row}:{at}" for at in columns])
    header[-1] += ":"
    parts = tables_in(table(rows, header, keys=keys))
    assert all(len(part.header) <= WIDEST for part in parts)
    shown: set[str] = set()
    for part in parts:
        for row in (part.header, *part.rows):
            assert len(row) == len(part.header)
            shown.update(row)
    titles = {title.removesuffix(":") for title in header}
    assert shown == (titles.union(*rows) if rows else set())


def test_a_table_by_model_has_no_column_of_models() -> None:
    rows = [["a", "x", "1"], ["b", "x", "2"], ["a", "y", "3"]]
    text = table(rows, ["model", "arm", "n:"], by_model=True)
    first, second = text.split("**b**")
    assert first.strip().startswith("**a**\n\n")
    of_a, of_b = tables_in(first) + tables_in(second)
    numbers = frozenset({"n"})
    assert of_a == Table(["arm", "n"], [["x", "1"], ["y", "3"]], numbers)
    assert of_b == Table(["arm", "n"], [["x", "2"]], numbers)


def test_links_lead_to_headings_that_are_there() -> None:
    found = files("whole")
    for file, text in found.items():
        for target in re.findall(r"\]\(([^)]+)\)", text):
            path, _, anchor = target.partition("#")
            if path.endswith(".png"):
                assert path.startswith("../") == file.startswith("appendix/")
                continue
            other = (
                found[
                    str((Path(file).parent / path).as_posix()).replace(
                        "appendix/../", ""
                    )
                ]
                if path
                else text
            )
            headings = [
                re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
                for title in _headings(other)
            ]
            assert not anchor or anchor in headings


def _headings(text: str) -> list[str]:
    return re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)


def test_a_report_in_short_is_three_lines(tmp_path: Path) -> None:
    plan, measured = CAMPAIGNS["mechanism"]()
    write_report(plan, measured, [], tmp_path / MAIN)
    answer, following, place = summary_lines(tmp_path)
    assert "native-offload 10K" in answer
    assert "as much as no-offload" in answer
    assert following
    assert place.endswith(str(tmp_path / MAIN))
    (tmp_path / "report.json").write_text("{}")
    assert summary_lines(tmp_path) == [place]
